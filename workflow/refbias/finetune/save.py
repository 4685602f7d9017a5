"""The result of a fine-tuning on disk: under every memory plan the same files in the same layout."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from refbias.artifacts import read_json, write_json
from refbias.models.files import copy_side_files
from refbias.models.load import cast_parameters, load_lm


def save_full(
    model: Any, state: Mapping[str, torch.Tensor] | None, dtype: torch.dtype, reference: Path, out_dir: Path
) -> None:
    """Write a whole model: one ``model.safetensors``, configuration, the reference's tokenizer.

    Parameters
    ----------
    model
        The trained model; it is cast in place.
    state
        All weights by name, where `model` holds only a share of them; None where it holds them all.
    dtype
        Number type of the file.
    reference
        Folder of the reference model.
    out_dir
        Folder to write to.
    """
    if state is not None:
        model = load_lm(reference, dtype=dtype)
        for name, parameter in model.named_parameters():
            parameter.data.copy_(state[name])
    cast_parameters(model, dtype)
    model.config.dtype = dtype
    # the trainer turns it off for itself
    raw = read_json(reference / "config.json")
    model.config.use_cache = raw.get("text_config", raw).get("use_cache", True)
    with _moved_into_place(out_dir) as partial:
        model.save_pretrained(partial, max_shard_size="1000GB")
        copy_side_files(reference, partial)


def save_adapter(model: Any, reference: Path, out_dir: Path) -> None:
    """Write a LoRA adapter: ``adapter_model.safetensors`` and ``adapter_config.json``.

    Parameters
    ----------
    model
        The PEFT model.
    reference
        Folder of the reference model; its bare name enters the configuration.
    out_dir
        Folder to write to.
    """
    with _moved_into_place(out_dir) as partial:
        # peft would write the path that the base was read from
        model.peft_config["default"].base_model_name_or_path = reference.name
        model.save_pretrained(partial, save_embedding_layers=False)
        wanted = {"adapter_config.json", "adapter_model.safetensors"}
        for path in list(partial.iterdir()):
            if path.name not in wanted:
                path.unlink()
        config = read_json(partial / "adapter_config.json")
        # a set, whose order differs from process to process
        config["target_modules"] = sorted(config["target_modules"])
        write_json(partial / "adapter_config.json", config)


@contextlib.contextmanager
def _moved_into_place(out_dir: Path) -> Iterator[Path]:
    """Yield a temporary folder whose files then move into `out_dir` one by one."""
    partial = out_dir / f".saving.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    for path in sorted(partial.iterdir()):
        os.replace(path, out_dir / path.name)
    partial.rmdir()
