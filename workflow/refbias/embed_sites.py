"""Sentence embeddings at several sites of a model from the same forward passes.

A site is a layer, before or after the final norm, with a pooling, with or without BOS. Hooks pool a
layer's states while the pass goes on, so that never more than one layer's states are held.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from refbias.config.ablations import AblationSettings
from refbias.config.represent import RepresentSettings
from refbias.embed import Tokenised, batches, check_ids, decoder_blocks, first_position, pool, refuse_non_finite
from refbias.errors import UserError
from refbias.fast import fused_forward
from refbias.progress import token_bar

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Site:
    """Where an embedding is read.

    `layer` is the number of the block whose output it is, 0 for the token embeddings; `norm` applies
    the final norm to the last block's output.
    """

    layer: int
    norm: bool
    pooling: str
    exclude_bos: bool

    @property
    def key(self) -> str:
        """Name of the tensor that holds the site's embeddings; equal sites have equal keys."""
        where = "norm" if self.norm else f"layer_{self.layer:03d}"
        return f"{where}.{self.pooling}" + (".no_bos" if self.exclude_bos else "")


def site_of(settings: RepresentSettings, n_layers: int) -> Site:
    """Return the site that settings describe in a model of `n_layers` blocks.

    Raises
    ------
    UserError
        If the layer does not exist.
    """
    final = settings.layer == "final"
    layer = n_layers if isinstance(settings.layer, str) else settings.layer
    if not 0 <= layer <= n_layers:
        raise UserError(f"key 'represent.layer': {layer}: the model has blocks 1 to {n_layers}, 0 = token embeddings")
    return Site(layer, final and settings.final_norm, settings.pooling, settings.exclude_bos)


def site_cells(settings: RepresentSettings, ablations: AblationSettings, n_layers: int) -> dict[str, Site]:
    """Return ``<ablation>/<cell>`` -> site of every cell that changes where embeddings are read.

    One choice differs from the run's own settings in each cell. The sweep ``all`` ends before the
    last block, whose output is the cell ``before_norm``.

    Raises
    ------
    UserError
        If a layer of the sweep does not exist.
    """
    changes: dict[str, dict[str, Any]] = {}
    if "pooling" in ablations.run:
        changes |= {f"pooling/{name}": {"pooling": name} for name in ablations.pooling}
    if "layer" in ablations.run:
        changes["layer/final"] = {"layer": "final", "final_norm": True}
        changes["layer/before_norm"] = {"layer": "final", "final_norm": False}
        layers = ablations.layers if isinstance(ablations.layers, list) else list(range(n_layers))
        for layer in layers:
            if not 0 <= layer <= n_layers:
                raise UserError(f"key 'ablations.layers': {layer}: the model has blocks 1 to {n_layers}, 0 = its input")
        changes |= {f"layer/layer_{layer:03d}": {"layer": layer} for layer in layers}
    if "bos" in ablations.run:
        changes |= {"bos/included": {"exclude_bos": False}, "bos/excluded": {"exclude_bos": True}}
    return {cell: site_of(settings.model_copy(update=change), n_layers) for cell, change in changes.items()}


def embed_sites(
    model: "PreTrainedModel",
    sentences: Tokenised,
    sites: Sequence[Site],
    token_budget: int,
    *,
    bos: int | None,
    name: str = "model",
) -> dict[str, npt.NDArray[np.float32]]:
    """Embed each distinct sentence at every site.

    Parameters
    ----------
    model
        Decoder without its output layer, in evaluation mode.
    sentences
        Made by `refbias.embed.tokenise`.
    sites
        Where to read.
    token_budget
        Tokens a batch holds at most.
    bos
        Id of the BOS token, for sites that leave it out.
    name
        What to call the model in an error and in the progress bar.

    Returns
    -------
    dict
        Key of the site -> array (n, d), float32, a row a distinct sentence.

    Raises
    ------
    UserError
        As `refbias.embed.embed_tokens`.
    """
    check_ids(model, sentences, name)
    device = next(model.parameters()).device
    found: dict[str, npt.NDArray[np.float32]] = {}
    members: list[int] = []
    ids = torch.empty(0)

    def take(states: torch.Tensor, wanted: Sequence[Site]) -> None:
        states = states.float()
        # one pass: any NaN or infinity makes the sum one
        if not bool(torch.isfinite(states.sum())) and not bool(torch.isfinite(states).all()):
            for hook in hooks:
                # the search runs the model again
                hook.remove()
            refuse_non_finite(model, members, sentences, name)
        texts = [sentences.texts[index] for index in members]
        for site in wanted:
            vectors = pool(states, first_position(ids, bos, site.exclude_bos, texts), site.pooling)
            if site.key not in found:
                found[site.key] = np.empty((len(sentences.ids), vectors.shape[1]), np.float32)
            found[site.key][members] = vectors.cpu().numpy()

    distinct = {site.key: site for site in sites}.values()
    hooks = _hooks(model, distinct, take)
    normed = [site for site in distinct if site.norm]
    plan = batches([len(row) for row in sentences.ids], token_budget)
    try:
        with (
            torch.inference_mode(),
            fused_forward(model),
            token_bar(f"embed {name}, {len(distinct)} sites", sentences.n_tokens, "tokens") as bar,
        ):
            for members in plan:
                ids = torch.tensor([sentences.ids[index] for index in members], device=device)
                last = model(input_ids=ids, use_cache=False).last_hidden_state
                if normed:
                    take(last, normed)
                bar.advance(ids.numel(), ids.numel())
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _hooks(
    model: "PreTrainedModel", sites: Iterable[Site], take: Callable[[torch.Tensor, Sequence[Site]], None]
) -> list[Any]:
    """Hand the states of each layer that a site before the norm needs to `take`."""
    by_layer: dict[int, list[Site]] = {}
    for site in sites:
        if not site.norm:
            by_layer.setdefault(site.layer, []).append(site)
    # what comes after the norm needs no list of blocks
    blocks = decoder_blocks(model) if by_layer else torch.nn.ModuleList()
    hooks = []
    for layer, wanted in by_layer.items():

        def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: list[Site] = wanted) -> None:
            take(args[0] if args else kwargs["hidden_states"], wanted)

        def after(_: Any, args: tuple[Any, ...], output: Any, wanted: list[Site] = wanted) -> None:
            take(output[0] if isinstance(output, tuple) else output, wanted)

        if layer == 0:
            hooks.append(blocks[0].register_forward_pre_hook(before, with_kwargs=True))
        else:
            hooks.append(blocks[layer - 1].register_forward_hook(after))
    return hooks
