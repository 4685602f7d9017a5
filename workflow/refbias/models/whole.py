"""A whole model from trained weights: the language tower replaced, everything else carried over.

Fine-tuning and merging know the language tower of a multimodal model only, as a text-only
checkpoint or as an adapter. Whoever needs the whole model, with its vision tower and its projector,
gets it back here: the reference's tensors byte by byte, but for those of the language tower.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refbias.artifacts import atomic_path
from refbias.errors import UserError
from refbias.models.adapter import Adapter, language_name, read_adapter
from refbias.models.files import PROCESSOR_FILES, check_directory, copy_side_files, open_tensors

if TYPE_CHECKING:
    import torch


def export_whole(reference: Path | str, trained: Path | str, out_dir: Path | str) -> dict[str, Any]:
    """Write a checkpoint in the reference's own layout with trained language weights.

    Parameters
    ----------
    reference
        Folder of the reference model, multimodal or not.
    trained
        Folder of a text-only checkpoint of its language tower, or of a LoRA adapter.
    out_dir
        Receives ``model.safetensors``, the reference's configuration, tokenizer and processors.

    Returns
    -------
    dict
        Facts for the manifest: numbers of tensors replaced and carried over.

    Raises
    ------
    UserError
        If the trained weights do not fit the reference; names the tensor.
    """
    from safetensors.torch import save_file

    reference, trained, out_dir = Path(reference), Path(trained), Path(out_dir)
    check_directory(reference)
    with open_tensors(reference) as where:
        stored = {name: handle.get_tensor(name) for name, handle in where.items()}
    # the name in the text-only model -> the name in the reference's files
    places = {language_name(name): name for name in stored}
    if (trained / "adapter_config.json").is_file():
        found = dict(_adapted(stored, places, read_adapter(trained), trained))
    else:
        found = dict(_checkpoint(stored, places, trained))
    with atomic_path(out_dir / "model.safetensors") as path:
        save_file({**stored, **found}, path, metadata={"format": "pt"})
    shutil.copyfile(reference / "config.json", out_dir / "config.json")
    copy_side_files(reference, out_dir, PROCESSOR_FILES)
    return {"n_replaced": len(found), "n_carried_over": len(stored) - len(found)}


def _checkpoint(
    stored: "Mapping[str, torch.Tensor]", places: Mapping[str, str], trained: Path
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield the reference's name and the trained tensor, in the trained number type."""
    multimodal = any(place != name for name, place in places.items())
    waiting = {name for name, place in places.items() if place != name or not multimodal}
    embedding: torch.Tensor | None = None
    with open_tensors(trained) as where:
        for name, handle in where.items():
            place = places.get(language_name(name))
            if language_name(name) not in waiting or place is None:
                raise UserError(f"{trained}: tensor {name!r} is not in the reference: use a checkpoint of its family")
            tensor = handle.get_tensor(name)
            if tensor.shape != stored[place].shape:
                sizes = f"{tuple(tensor.shape)}, the reference's is {tuple(stored[place].shape)}"
                raise UserError(f"{trained}: tensor {name!r} is {sizes}: use a checkpoint of its family")
            waiting.discard(language_name(name))
            embedding = tensor if name.endswith("embed_tokens.weight") else embedding
            yield place, tensor
    # a tied output layer is not stored beside the embedding that it repeats
    if "lm_head.weight" in waiting and embedding is not None:
        waiting.remove("lm_head.weight")
        yield places["lm_head.weight"], embedding.clone()
    if missing := sorted(waiting):
        raise UserError(f"{trained}: tensor {missing[0]!r} is missing: use a checkpoint of the reference's family")


def _adapted(
    stored: "Mapping[str, torch.Tensor]", places: Mapping[str, str], adapter: Adapter, trained: Path
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield the reference's name and tensor with the adapter's change added in fp32, rounded once."""
    import torch

    for module in adapter.pairs:
        place = places.get(f"{module}.weight")
        delta = adapter.delta(module, torch.float32)
        if place is None or stored[place].shape != delta.shape:
            raise UserError(f"{trained}: adapts {module!r}, which the reference does not have so: check the pair")
        yield place, (stored[place].float() + delta).to(stored[place].dtype)
