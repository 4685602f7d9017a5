"""Whether an adapter's base is the reference: by name, by path, by weights; and whether its matrices fit."""

import logging
from collections.abc import Set
from pathlib import Path

from refbias.artifacts import read_json, sha256_file
from refbias.audit.identity import directory_hash
from refbias.errors import UserError
from refbias.models.adapter import language_name, read_adapter
from refbias.models.files import open_tensors

LOG = logging.getLogger(__name__)


def check_base(adapter: Path, directory: Path, names: Set[str], any_base: bool) -> None:
    """Refuse an adapter that was trained on another base than the reference, as far as can be told.

    Parameters
    ----------
    adapter
        Folder of a PEFT adapter.
    directory
        Folder of the reference's weights.
    names
        What the reference is called.
    any_base
        Let the name be; the matrices' sizes are still checked.

    Raises
    ------
    UserError
        If the adapter names another base, and neither the base's path, nor its weights, nor the record
        of its training say otherwise; or if a matrix that it changes is not the reference's.
    """
    config = read_json(adapter / "adapter_config.json")
    named = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not any_base and isinstance(named, str) and named and not _is_same(named, adapter, directory, names):
        raise UserError(
            f"{adapter}: adapter of another base: it was trained on {named!r}, the reference is {min(names)!r}: "
            "name that model as reference, or say --any-base if it is the same under another name"
        )
    _check_shapes(adapter, directory)


def _is_same(named: str, adapter: Path, directory: Path, names: Set[str]) -> bool:
    if named in names or named.rstrip("/").rpartition("/")[2] in names:
        return True
    if (place := Path(named)).is_dir():
        if place.resolve() == directory.resolve():
            return True
        if (place / "config.json").is_file():
            return directory_hash(place) == directory_hash(directory)
    # a training by this project records which reference it read
    record, manifest = adapter / "manifest.json", directory / "manifest.json"
    if record.is_file() and manifest.is_file():
        inputs = read_json(record).get("inputs", {})
        return bool(inputs.get("reference", {}).get("sha256") == sha256_file(manifest))
    return False


def _check_shapes(adapter: Path, directory: Path) -> None:
    found = read_adapter(adapter)
    with open_tensors(directory) as where:
        shapes = {language_name(name): tuple(handle.get_slice(name).get_shape()) for name, handle in where.items()}
    for module, (a, b) in found.pairs.items():
        wanted, has = (b.shape[0], a.shape[1]), shapes.get(f"{module}.weight")
        if has is None:
            raise UserError(
                f"{adapter}: adapter of another base: it adapts {module!r}, which {directory} does not have"
            )
        if has != wanted:
            raise UserError(
                f"{adapter}: adapter of another base: {module!r} changes a matrix of {wanted}, in {directory} it is "
                f"{has}"
            )
