"""A model under test: the reference, an endpoint or a point between two, read by layers or loaded whole."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from refbias.config.models import Compute
from refbias.config.represent import RepresentSettings
from refbias.embed import Tokenised, decoder_blocks
from refbias.embed_sites import Site, embed_sites
from refbias.errors import UserError
from refbias.models import Checkpoint, load_lm, torch_dtype
from refbias.spectrum import load_merged_into
from refbias.stream import Part, Variant, can_stream, stream_embeddings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LOG = logging.getLogger(__name__)
States = dict[int, npt.NDArray[np.float32]]
_TOKEN_BUDGET = 1024


@dataclass(frozen=True)
class Subject:
    """A name, and the checkpoint that it is: one, or two with weights that sum to one."""

    name: str
    parts: tuple[Part, ...]
    merge_dtype: str = "endpoint"


def find_subject(
    name: str,
    reference: Path,
    ends: Sequence[Path] = (),
    weight: float = 0.0,
    merge_dtype: str = "endpoint",
) -> Subject:
    """Return the subject that the reference is, or the point of weight `weight` between two ends.

    Parameters
    ----------
    name
        What to call it.
    reference
        Folder of the reference model.
    ends
        None for the reference itself; else the unharmful and the harmful endpoint, checkpoints or adapters.
    weight
        Of the second end.
    merge_dtype
        Number type in which a merge would be stored.
    """
    if not ends:
        return Subject(name, (Part(1.0, reference),))
    checkpoints = [
        Checkpoint(reference, end) if (end / "adapter_config.json").is_file() else Checkpoint(end) for end in ends
    ]
    shares = (1 - weight, weight)
    parts = [
        Part(share, checkpoint.weights, checkpoint.adapter)
        for share, checkpoint in zip(shares, checkpoints, strict=True)
        if share
    ]
    return Subject(name, tuple(parts), merge_dtype)


def load_subject(subject: Subject, compute: Compute) -> "PreTrainedModel":
    """Load a whole model with its output layer, in evaluation mode.

    Raises
    ------
    UserError
        If the weights cannot be read or do not fit together.
    """
    dtype = torch_dtype(compute.dtype)
    first = subject.parts[0]
    if len(subject.parts) == 1:
        return load_lm(first.directory, first.adapter, dtype=dtype, device=compute.device)
    second = subject.parts[1]
    model = load_lm(first.directory, dtype=dtype, device=compute.device)
    ends = [Checkpoint(part.directory, part.adapter) for part in (first, second)]
    load_merged_into(model, ends[0], ends[1], second.weight, subject.merge_dtype)
    return model


def sentence_tokens(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> Tokenised:
    """Return the token ids of raw sentences, with BOS before them where the model uses one and no other special token.

    Raises
    ------
    UserError
        If a text gives no token.
    """
    bos = tokenizer.bos_token_id
    first = [bos] if bos is not None and bos in tokenizer("", add_special_tokens=True)["input_ids"] else []
    index = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    found = tokenizer(list(index), add_special_tokens=False)["input_ids"]
    for text, ids in zip(index, found, strict=True):
        if not ids:
            raise UserError(f"sentence {text!r}: the tokenizer gives no token for it: leave it out")
    ids = tuple((*first, *row) for row in found)
    return Tokenised(tuple(index), ids, tuple(index[text] for text in texts))


def read_states(
    subject: Subject,
    sentences: Tokenised,
    layers: Sequence[int] | Literal["all"],
    compute: Compute,
    *,
    pooling: Literal["mean", "last"],
    bos: int | None,
) -> States:
    """Return the states of blocks' outputs, pooled in fp32 over a sentence without BOS, or of its last token.

    All layers come from one pass, layer by layer where the model can be read so.

    Parameters
    ----------
    subject
        The model.
    sentences
        n texts as token ids.
    layers
        Numbers of blocks, or ``all`` for 1 to the last.
    compute
        Device and number type of the pass.
    pooling
        ``mean`` over the tokens behind BOS, or ``last``.
    bos
        Id of BOS.

    Returns
    -------
    dict
        Layer -> (n, d) float32.

    Raises
    ------
    UserError
        If weights cannot be read, a layer does not exist or a state is not finite.
    """
    settings = RepresentSettings(pooling=pooling, exclude_bos=pooling == "mean", token_budget=_TOKEN_BUDGET)
    reasons = [reason for part in subject.parts if (reason := can_stream(part.directory)) is not None]
    if not reasons:
        variant = Variant(subject.name, subject.parts)
        result = stream_embeddings(
            [variant],
            sentences,
            settings,
            bos=bos,
            dtype=torch_dtype(compute.dtype),
            device=compute.device,
            layers=layers,
            name=subject.name,
            merge_dtype=subject.merge_dtype,
        )
        found = result.embeddings[subject.name]
        return {layer: states for layer, states in found.items() if isinstance(layer, int) and layer > 0}
    LOG.warning("%s: %s: the whole model is loaded instead of layer by layer", subject.name, reasons[0])
    model = load_subject(subject, compute).base_model
    return whole_states(model, sentences, layers, pooling=pooling, bos=bos, name=subject.name)


def whole_states(
    model: "PreTrainedModel",
    sentences: Tokenised,
    layers: Sequence[int] | Literal["all"],
    *,
    pooling: Literal["mean", "last"],
    bos: int | None,
    name: str = "model",
) -> States:
    """Return the same states from a decoder that is loaded; see `read_states`."""
    blocks = len(decoder_blocks(model))
    numbers = range(1, blocks + 1) if isinstance(layers, str) else layers
    for layer in numbers:
        if not 1 <= layer <= blocks:
            raise UserError(f"key 'competence.layer': {layer}: the model has blocks 1 to {blocks}")
    sites = {layer: Site(layer, False, pooling, pooling == "mean") for layer in numbers}
    found = embed_sites(model, sentences, list(sites.values()), _TOKEN_BUDGET, bos=bos, name=name)
    rows = list(sentences.row)
    return {layer: found[site.key][rows] for layer, site in sites.items()}
