"""The files of a checkpoint directory: what must be there, what must not, what goes along.

Weights are read from safetensors only, and no directory that asks for its own code is accepted.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from refbias.artifacts import read_json, sha256_file
from refbias.errors import UserError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
SIDE_FILES = (*TOKENIZER_FILES, "generation_config.json")
# of use to a whole multimodal model only
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
# what a tokenizer is read from beside its vocabulary, and where it may name code of its own
_TOKENIZER_SETTINGS = ("tokenizer_config.json", *PROCESSOR_FILES)


def weight_files(directory: Path | str) -> list[Path]:
    """Return the safetensors files of a checkpoint directory, in order.

    Raises
    ------
    UserError
        If there are none, or one that the index names is missing.
    """
    directory = Path(directory)
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names = _named_files(index)
        missing = [name for name in names if not (directory / name).is_file()]
        if missing or not names:
            raise UserError(f"{index}: names {missing[0] if missing else 'no file'} that is missing: copy it again")
        return [directory / name for name in names]
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    other = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in directory.glob(pattern))
    if other:
        raise UserError(f"{directory}: weights only as pickle ({other[0]}): convert them to safetensors first")
    raise UserError(f"{directory}: no model.safetensors: name a directory in transformers' layout")


def _named_files(index: Path) -> list[str]:
    """Return the files that an index of weights names, none of them outside of its folder."""
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f"{index}: its weight_map is no mapping of tensors to files: copy it again")
    names = sorted(set(places.values()))
    for name in names:
        if Path(name).name != name or name in ("", ".", ".."):
            raise UserError(f"{index}: names {name!r}, which is no file name: copy the checkpoint again")
    return names


def refuse_code(directory: Path | str, names: Sequence[str] = ("config.json", *_TOKENIZER_SETTINGS)) -> None:
    """Refuse a folder that asks for code of its own: a model, an adapter, or what lies beside a GGUF file.

    Parameters
    ----------
    directory
        The folder.
    names
        Its files that may ask for it.

    Raises
    ------
    UserError
        Names the file.
    """
    for place in (Path(directory) / name for name in names):
        if place.is_file() and _asks_for_code(read_json(place)):
            raise UserError(f"{place}: asks for remote code (auto_map), never run: use another model")


def refuse_tokenizer_code(directory: Path | str) -> None:
    """Refuse a folder whose tokenizer asks for code of its own; its model's files are let be."""
    refuse_code(directory, _TOKENIZER_SETTINGS)


def has_tokenizer(directory: Path | str) -> bool:
    """Whether a folder holds a tokenizer's vocabulary."""
    return any((Path(directory) / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))


def check_directory(directory: Path | str, *, tokenizer: bool = True) -> dict[str, Any]:
    """Check a checkpoint directory before anything is loaded and return its ``config.json``.

    Parameters
    ----------
    directory
        The directory.
    tokenizer
        Whether it must hold a tokenizer; weights are read without one.

    Raises
    ------
    UserError
        If the configuration, the weights or the tokenizer is missing, or if it asks for remote code.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory: correct the model's `path`")
    if not (directory / "config.json").is_file():
        raise UserError(f"{directory}: no config.json: name a directory in transformers' layout")
    config = read_json(directory / "config.json")
    if not isinstance(config, dict):
        raise UserError(f"{directory / 'config.json'}: no JSON object: copy the model's own there")
    refuse_code(directory)
    weight_files(directory)
    if tokenizer and not has_tokenizer(directory):
        raise UserError(f"{directory}: no tokenizer (tokenizer.json or tokenizer.model): copy the model's own there")
    return config


def _asks_for_code(content: Any) -> bool:
    waiting = [content]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if "auto_map" in part:
                return True
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return False


@contextmanager
def open_tensors(directory: Path | str) -> Iterator[dict[str, Any]]:
    """Yield tensor name -> open safetensors handle over all weight files, nothing read yet."""
    from contextlib import ExitStack

    from safetensors import SafetensorError, safe_open

    with ExitStack() as stack:
        where: dict[str, Any] = {}
        for path in weight_files(directory):
            try:
                handle = stack.enter_context(safe_open(str(path), framework="pt"))
            except SafetensorError as error:
                raise UserError(f"{path}: not a whole safetensors file ({error}): copy it again") from None
            where.update(dict.fromkeys(handle.keys(), handle))
        yield where


def copy_side_files(source: Path | str, target: Path | str, more: Sequence[str] = ()) -> None:
    """Copy the tokenizer, the generation settings and `more` files byte by byte beside new weights."""
    for name in (*SIDE_FILES, *more):
        path = Path(source) / name
        if path.is_file():
            shutil.copyfile(path, Path(target) / name)


def weight_hashes(directory: Path | str) -> dict[str, str]:
    """Return file name -> SHA-256 of the safetensors files directly in `directory`."""
    return {path.name: sha256_file(path) for path in sorted(Path(directory).glob("*.safetensors"))}


def weights_fingerprint(directory: Path | str) -> str:
    """Return one hash of a directory's weights, from its manifest where one holds their hashes."""
    manifest = Path(directory) / "manifest.json"
    stored = read_json(manifest).get("weights_sha256") if manifest.is_file() else None
    hashes = stored or weight_hashes(directory)
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
