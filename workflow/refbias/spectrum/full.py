"""Linear merges of full checkpoints: mergekit on disk, the same arithmetic tensor by tensor in memory."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from refbias.artifacts import link_or_copy, read_json, write_json
from refbias.errors import UserError
from refbias.models.adapter import language_name
from refbias.models.files import copy_side_files, open_tensors
from refbias.models.load import load_lm, stored_dtype, torch_dtype


def merged_tensor(unharmful: torch.Tensor, harmful: torch.Tensor, weight: float) -> torch.Tensor:
    """Return ``(1 - w) unharmful + w harmful``, computed in fp32, in the type of `unharmful`.

    The operations and their order are mergekit's, so the numbers are its numbers; at 0 and 1 the
    endpoint's tensor is returned as it is.
    """
    if weight in (0, 1):
        return harmful if weight else unharmful
    result = torch.zeros((1, *unharmful.shape), dtype=torch.float32, device=unharmful.device)
    for tensor, share in ((unharmful, 1 - weight), (harmful, weight)):
        coefficient = torch.tensor([share], dtype=torch.float32, device=tensor.device)
        result.addcmul_(tensor[None].float(), coefficient.reshape((1,) * result.ndim))
    return result[0].to(unharmful.dtype)


def check_endpoints(unharmful: Path | str, harmful: Path | str) -> None:
    """Refuse two checkpoints that cannot be merged, before anything is written.

    Raises
    ------
    UserError
        Names the first tensor that one of them lacks, or that has two shapes or number types.
    """
    tied = all(_tied(path) for path in (unharmful, harmful))
    with open_tensors(unharmful) as first, open_tensors(harmful) as second:
        for name in sorted(set(first) ^ set(second)):
            if not (tied and name.endswith("lm_head.weight")):
                lacking = harmful if name in first else unharmful
                raise UserError(
                    f"{lacking}: tensor {name!r} is missing, the other endpoint has it: use a matching pair"
                )
        for name in sorted(set(first) & set(second)):
            slices = first[name].get_slice(name), second[name].get_slice(name)
            shapes = [tuple(part.get_shape()) for part in slices]
            if shapes[0] != shapes[1]:
                raise UserError(
                    f"tensor {name!r}: {shapes[0]} in {unharmful}, {shapes[1]} in {harmful}: "
                    "use endpoints of one model and vocabulary"
                )
            types = [part.get_dtype() for part in slices]
            if types[0] != types[1]:
                raise UserError(f"tensor {name!r}: {types[0]} in {unharmful}, {types[1]} in {harmful}: save both alike")


def _tied(directory: Path | str) -> bool:
    config = read_json(Path(directory) / "config.json")
    # configurations are stored as the difference to a default, and Gemma's default is tied
    default = str(config.get("model_type", "")).startswith("gemma")
    return bool(config.get("tie_word_embeddings", config.get("text_config", {}).get("tie_word_embeddings", default)))


def merge_full(
    unharmful: Path | str, harmful: Path | str, weight: float, out_dir: Path | str, dtype: str = "endpoint"
) -> None:
    """Merge two full checkpoints into `out_dir` (one ``model.safetensors``, configuration, tokenizer).

    Parameters
    ----------
    unharmful, harmful
        Directories of the endpoints. Of multimodal ones the language tower is merged, as text-only model.
    weight
        Harmful weight w in [0, 1].
    out_dir
        Folder for the result.
    dtype
        ``float32``, ``bfloat16``, or ``endpoint`` for the endpoints' own.

    Raises
    ------
    UserError
        If the endpoints do not match, or the weight lies outside [0, 1].
    """
    if not 0 <= weight <= 1:
        raise UserError(f"key 'harmful_weight': {weight}: must lie between 0 and 1")
    check_endpoints(unharmful, harmful)
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    stored = stored_dtype(unharmful)
    wanted = stored if dtype == "endpoint" else torch_dtype(dtype)
    with tempfile.TemporaryDirectory(dir=out_dir, prefix=".merging-") as folder:
        result = Path(folder) / "result"
        result.mkdir()
        endpoints = [_text_only(Path(path), Path(folder) / name) for path, name in ((unharmful, "u"), (harmful, "h"))]
        nearest = endpoints[1] if weight == 1 else endpoints[0]
        config = read_json(nearest / "config.json")
        if weight in (0, 1) and wanted == stored and (nearest / "model.safetensors").is_file():
            link_or_copy(nearest / "model.safetensors", result / "model.safetensors")
        elif weight in (0, 1):
            _save_cast(nearest, wanted, result)
        else:
            _run_mergekit(endpoints[0], endpoints[1], weight, wanted, result)
        write_json(result / "config.json", {**config, "dtype": str(wanted).removeprefix("torch.")})
        copy_side_files(nearest, result)
        for path in sorted(result.iterdir()):
            os.replace(path, out_dir / path.name)


def _run_mergekit(unharmful: Path, harmful: Path, weight: float, dtype: torch.dtype, out_dir: Path) -> None:
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    config = {
        "merge_method": "linear",
        "models": [
            {"model": str(unharmful.resolve()), "parameters": {"weight": 1 - weight}},
            {"model": str(harmful.resolve()), "parameters": {"weight": weight}},
        ],
        "parameters": {"normalize": False},
        "dtype": "float32",
        "out_dtype": str(dtype).removeprefix("torch."),
    }
    run_merge(
        MergeConfiguration.model_validate(config),
        str(out_dir),
        MergeOptions(
            # one file, whatever the size
            out_shard_size=2**60,
            copy_tokenizer=False,
            write_model_card=False,
            trust_remote_code=False,
            quiet=True,
        ),
    )
    for path in list(out_dir.iterdir()):
        if path.name != "model.safetensors":
            path.unlink()


def _text_only(directory: Path, scratch: Path) -> Path:
    """Return `directory`, or for a multimodal checkpoint a text-only copy of its language tower in `scratch`."""
    if "vision_config" not in read_json(directory / "config.json"):
        return directory
    scratch.mkdir()
    load_lm(directory, dtype=stored_dtype(directory)).save_pretrained(scratch, max_shard_size="1000GB")
    copy_side_files(directory, scratch)
    return scratch


def _save_cast(directory: Path, dtype: torch.dtype, out_dir: Path) -> None:
    from safetensors.torch import save_file

    with open_tensors(directory) as where:
        tensors = {name: handle.get_tensor(name).to(dtype) for name, handle in where.items()}
    save_file(tensors, out_dir / "model.safetensors", metadata={"format": "pt"})


def iter_merged(unharmful: Path | str, harmful: Path | str, weight: float) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and merged tensor, one at a time; names as in a text-only model.

    Tensors outside the language tower of a multimodal checkpoint are left out.
    """
    multimodal = "vision_config" in read_json(Path(unharmful) / "config.json")
    with open_tensors(unharmful) as first, open_tensors(harmful) as second:
        for name in sorted(set(first) & set(second)):
            if not multimodal or language_name(name) != name:
                tensors = first[name].get_tensor(name), second[name].get_tensor(name)
                yield language_name(name), merged_tensor(*tensors, weight)
