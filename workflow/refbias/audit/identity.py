"""What a model's embeddings depend on, as hashes: weights, configuration, adapters, shares."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refbias.acquisition.hub import stated_sha256
from refbias.artifacts import sha256_file
from refbias.audit.store import file_hash
from refbias.models.files import weight_files

if TYPE_CHECKING:
    from refbias.audit.sources import Source


def digest(value: Any) -> str:
    """Return the SHA-256 of a value's JSON, keys sorted."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def directory_hash(directory: Path) -> str:
    """Return one SHA-256 of a directory's weights: that of the hashes of its files by name.

    A file of the hub is named by its hash already; of other large files the hash is remembered.
    """
    return digest({path.name: stated_sha256(path) or file_hash(path) for path in weight_files(directory)})


def _adapter_hash(adapter: Path) -> str:
    names = ("adapter_model.safetensors", "adapter_config.json")
    return digest({name: sha256_file(adapter / name) for name in names})


def weights_hash(source: "Source") -> str:
    """Return one SHA-256 of all weights that a model is made of."""
    if len(source.parts) == 1 and source.parts[0].adapter is None:
        return directory_hash(source.directory)
    return digest(
        [
            [part.weight, directory_hash(part.directory), _adapter_hash(part.adapter) if part.adapter else None]
            for part in source.parts
        ]
    )


def same_weights(first: "Source", second: "Source") -> bool:
    """Whether two models of one part each hold the same weights, by size before they are hashed.

    An adapter's configuration is let be: a trainer writes it beside each checkpoint anew.
    """
    if first.directory != second.directory and (first.adapters or second.adapters):
        return False
    files = [_files_of(source) for source in (first, second)]
    if [_facts(path) for path in files[0]] != [_facts(path) for path in files[1]]:
        return False
    return all(file_hash(a) == file_hash(b) for a, b in zip(*files, strict=True))


def _files_of(source: "Source") -> list[Path]:
    if source.adapters:
        return [folder / "adapter_model.safetensors" for folder in source.adapters]
    return weight_files(source.directory)


def _facts(path: Path) -> tuple[str, int]:
    return path.name, path.stat().st_size if path.is_file() else -1


def identity(source: "Source") -> dict[str, Any]:
    """Return what decides a model's states beside the sentences: weights and configuration."""
    configs = [sha256_file(part.directory / "config.json") for part in source.parts]
    return {"weights": weights_hash(source), "configs": configs}
