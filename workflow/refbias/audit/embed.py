"""States of the models of an audit: streamed layer by layer where that can be, else with the whole model.

This is the one place that decides between the two; both give the same numbers to rounding.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from refbias.audit.quantised import load_quantised, quantisation
from refbias.audit.sources import Source
from refbias.config.represent import RepresentSettings
from refbias.embed import Tokenised
from refbias.embed_sites import Site, embed_sites, site_of
from refbias.errors import UserError
from refbias.models import Checkpoint, load_base, torch_dtype
from refbias.models.files import check_directory
from refbias.models.sizes import read_config, stored_shapes
from refbias.spectrum import load_merged_into
from refbias.stream import Part, Variant, can_stream, stream_embeddings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOG = logging.getLogger(__name__)
Layer = int | Literal["final"]
Array = npt.NDArray[np.float32]
States = dict[Layer, Array]
"""Pooled states (n, d) by layer: 0 = token embeddings, k = output of block k, ``final`` = the last output."""


@dataclass(frozen=True)
class Reading:
    """How states are read.

    `layers` is ``one`` for the layer that `represent` names alone, ``all`` for all of them beside it. `read_ahead` is
    whether a streamed layer is read while the one before it computes.
    """

    represent: RepresentSettings
    layers: Literal["one", "all"]
    dtype: str
    device: str
    memory_mb: int | None = None
    spill_dir: Path | None = None
    read_ahead: bool = True

    @property
    def main(self) -> Layer:
        """Layer that dB is about."""
        return self.represent.layer


@dataclass
class Cost:
    """Seconds and tokens so far."""

    read: float = 0.0
    embed: float = 0.0
    tokens: int = 0
    bytes_read: dict[str, int] = field(default_factory=dict)


def architecture(directory: Path) -> tuple[str, int, int]:
    """Return a model's architecture, number of blocks and width, from its configuration.

    Raises
    ------
    UserError
        If transformers does not know the configuration, or the files hold fewer layers.
    """
    raw = check_directory(directory, tokenizer=False)
    text = read_config(directory, raw, stored_shapes(directory)).get_text_config()
    try:
        blocks, width = int(text.num_hidden_layers), int(text.hidden_size)
    except (ValueError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{directory / 'config.json'}: not a configuration of transformers: {reason}") from None
    names = raw.get("architectures")
    stated = names[0] if isinstance(names, list) and names else None
    return stated if isinstance(stated, str) else type(text).__name__, blocks, width


def refusal_to_stream(source: Source) -> str | None:
    """Return why a model cannot be streamed, None where it can."""
    for part in source.parts:
        if (method := quantisation(part.directory)) is not None:
            return f"quantised ({method})"
    return can_stream(source.directory)


def refusals_to_stream(sources: Sequence[Source]) -> dict[str, str]:
    """Return name and reason of the models that cannot be streamed; folders that several share are looked at once."""
    reasons: dict[tuple[Path, ...], str | None] = {}
    found = {}
    for source in sources:
        folders = tuple(part.directory for part in source.parts)
        if folders not in reasons:
            reasons[folders] = refusal_to_stream(source)
        if (reason := reasons[folders]) is not None:
            found[source.name] = reason
    return found


def embed_together(
    sources: Sequence[Source], sentences: Tokenised, reading: Reading, *, bos: int | None, label: str, cost: Cost
) -> dict[str, States]:
    """Embed the same tokens with several models.

    Models that share folders of weights go through their layers together, so that each is read once.

    Parameters
    ----------
    sources
        Models with distinct names.
    sentences
        Made by `refbias.embed.tokenise`.
    reading
        Layers, number type and device.
    bos
        Id of the BOS token.
    label
        What to call them together in the progress bar.
    cost
        Receives seconds, tokens and bytes.

    Returns
    -------
    dict
        Name -> layer -> states.

    Raises
    ------
    UserError
        If weights cannot be read or do not fit, or a state is not finite.
    """
    found: dict[str, States] = {}
    streamed = []
    for source in sources:
        reason = refusal_to_stream(source)
        if reason is None:
            streamed.append(source)
        else:
            LOG.warning("%s: %s: the whole model is loaded instead of layer by layer", source.name, reason)
            found[source.name] = _whole(source, sentences, reading, bos, cost)
    for group in _sharing(streamed):
        name = group[0].name if len(group) == 1 else label
        found |= _streamed(group, sentences, reading, bos, name, cost)
    return found


def _sharing(sources: Sequence[Source]) -> list[list[Source]]:
    """Divide models into sets that have no folder of weights in common."""
    groups: list[tuple[set[Path], list[Source]]] = []
    for source in sources:
        folders = {part.directory.resolve() for part in source.parts}
        members = [source]
        rest = []
        for known, others in groups:
            if known & folders:
                folders |= known
                members = others + members
            else:
                rest.append((known, others))
        groups = [*rest, (folders, members)]
    return [members for _, members in groups]


def _streamed(
    sources: Sequence[Source], sentences: Tokenised, reading: Reading, bos: int | None, label: str, cost: Cost
) -> dict[str, States]:
    start = time.perf_counter()
    variants = [
        Variant(source.name, tuple(Part(part.weight, part.directory, part.adapter) for part in source.parts))
        for source in sources
    ]
    result = stream_embeddings(
        variants,
        sentences,
        reading.represent,
        bos=bos,
        dtype=torch_dtype(reading.dtype),
        device=reading.device,
        layers="all" if reading.layers == "all" else "final",
        memory_mb=reading.memory_mb,
        spill_dir=reading.spill_dir,
        name=label,
        read_ahead=reading.read_ahead,
    )
    spent = time.perf_counter() - start
    waited = min(result.seconds.get("wait", 0.0), spent)
    cost.read += waited
    cost.embed += spent - waited
    cost.tokens += result.tokens * len(sources)
    for folder, count in result.bytes_read.items():
        cost.bytes_read[folder] = cost.bytes_read.get(folder, 0) + count
    return {name: dict(states) for name, states in result.embeddings.items()}


def load_whole(source: Source, dtype: str, device: str) -> "PreTrainedModel":
    """Load a model's decoder with all its weights.

    Raises
    ------
    UserError
        If the weights cannot be read, or are a sum that only the streamed reading makes.
    """
    first = source.parts[0]
    if (method := quantisation(source.directory)) is not None:
        if len(source.parts) > 1 or first.adapter is not None:
            raise UserError(f"{source.spec}: weights quantised with {method} cannot be added to: use plain weights")
        return load_quantised(source.directory, method, torch_dtype(dtype), device)
    if len(source.parts) == 1:
        return load_base(first.directory, first.adapter, dtype=torch_dtype(dtype), device=device)
    ends = [Checkpoint(part.directory, part.adapter) for part in source.parts]
    alike = len({end.adapter is None for end in ends}) == 1
    if len(ends) != 2 or not alike or abs(first.weight + source.parts[1].weight - 1) > 1e-9:
        raise UserError(f"{source.spec}: a sum of this kind needs a model that can be read layer by layer")
    if len({end.weights for end in ends}) > 1 and ends[0].adapter is not None:
        raise UserError(f"{source.spec}: the adapters are of several bases: use adapters of one model")
    model = load_base(first.directory, dtype=torch_dtype(dtype), device=device)
    load_merged_into(model, ends[0], ends[1], source.parts[1].weight)
    return model


def _whole(source: Source, sentences: Tokenised, reading: Reading, bos: int | None, cost: Cost) -> States:
    start = time.perf_counter()
    model = load_whole(source, reading.dtype, reading.device)
    loaded = time.perf_counter()
    settings = reading.represent
    n_layers = int(model.config.get_text_config().num_hidden_layers)
    sites: dict[Layer, Site] = {settings.layer: site_of(settings, n_layers)}
    if reading.layers == "all":
        sites |= {k: Site(k, False, settings.pooling, settings.exclude_bos) for k in range(n_layers + 1)}
        sites["final"] = site_of(settings.model_copy(update={"layer": "final"}), n_layers)
    found = embed_sites(model, sentences, list(sites.values()), settings.token_budget, bos=bos, name=source.name)
    cost.read += loaded - start
    cost.embed += time.perf_counter() - loaded
    cost.tokens += sentences.n_tokens
    rows = list(sentences.row)
    return {layer: found[site.key][rows] for layer, site in sites.items()}
