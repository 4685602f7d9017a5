"""Whether an adapter's base is the reference: by name, by path, by weights; and whether its matrices fit."""

import contextlib
import logging
import os
from collections.abc import Set
from pathlib import Path

from refbias.artifacts import read_json, sha256_file
from refbias.audit.identity import directory_hash
from refbias.audit.quantised import quantisation
from refbias.errors import UserError
from refbias.models.adapter import language_name, read_adapter
from refbias.models.files import open_tensors, weight_files

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
        of its training say otherwise; if a matrix that it changes is not the reference's; or if the reference is
        quantised, so that nothing can be added to its weights.
    """
    if (method := quantisation(directory)) is not None:
        raise UserError(
            f"{adapter}: the weights of {directory} are quantised ({method}) and cannot be added to: name the plain "
            "weights as reference"
        )
    config = read_json(adapter / "adapter_config.json")
    named = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not any_base and isinstance(named, str) and named and not _is_same(named, adapter, directory, names):
        raise UserError(
            f"{adapter}: adapter of another base: it was trained on {named!r}, the reference is {min(names)!r}: "
            "name that model as reference, or say --any-base if it is the same under another name"
        )
    _check_shapes(adapter, directory)


def _is_same(named: str, adapter: Path, directory: Path, names: Set[str]) -> bool:
    """Whether the base that an adapter names is the reference: where it is at hand by its weights, else by name."""
    if (place := named_base(named, adapter)) is not None:
        return place.resolve() == directory.resolve() or directory_hash(place) == directory_hash(directory)
    # a training by this project records which reference it read
    record, manifest = adapter / "manifest.json", directory / "manifest.json"
    if record.is_file() and manifest.is_file():
        inputs = read_json(record).get("inputs", {})
        if inputs.get("reference", {}).get("sha256") == sha256_file(manifest):
            return True
    if named in names:
        return True
    if named.rstrip("/").rpartition("/")[2] not in names:
        return False
    LOG.warning("%s: its base %r is not at hand: the reference is taken for it, as its name ends alike", adapter, named)
    return True


def named_base(named: str, adapter: Path) -> Path | None:
    """Return the folder of weights that an adapter's configuration names, where it is at hand.

    A relative path is one from here, or from where the adapter lies.
    """
    for place in (Path(named), adapter.parent / named):
        # an absent, unreadable or impossible path is no folder
        if os.path.isfile(place / "config.json"):
            with contextlib.suppress(UserError):
                weight_files(place)
                return place
    return None


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
