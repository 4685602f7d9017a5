"""The forward pass of many checkpoints at once, one decoder layer in memory at a time.

All sentences go through a layer before the next one is put in place, and all variants (the points
of a spectrum) while its endpoints' tensors are there; meanwhile a thread reads the next layer. So a
model needs the memory of two of its layers, every file is read once, and no merged weights are
ever written. Sentences of equal length form a batch: nothing is padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from refbias.config.represent import RepresentSettings
from refbias.embed import Tokenised
from refbias.errors import UserError
from refbias.models.load import resolve_device
from refbias.stream.passes import Array, Layer, LayerPass, Layers
from refbias.stream.shards import open_weights
from refbias.stream.skeleton import Skeleton
from refbias.stream.variants import Sources, Variant


@dataclass
class StreamResult:
    """What a streamed pass found and what it cost.

    Parameters
    ----------
    embeddings
        Variant -> layer -> array (n, d) of the n given sentences.
    bytes_read
        Directory -> bytes of weights read.
    seconds
        `read` (in the thread, beside the rest), `wait` for it, `merge`, `compute`, `spill`.
    tokens
        Tokens of the distinct sentences.
    peak_activation_mb
        States between two layers that were kept in memory, in MB.
    """

    embeddings: dict[str, dict[Layer, Array]]
    bytes_read: dict[str, int]
    seconds: dict[str, float]
    tokens: int
    peak_activation_mb: float


def can_stream(directory: Path | str) -> str | None:
    """Return None where a checkpoint's decoder can be streamed, else the reason.

    Raises
    ------
    UserError
        If the directory holds no readable checkpoint.
    """
    with open_weights(directory) as weights:
        if "quantization_config" in weights.config:
            return "its weights are quantised"
        return Skeleton(weights, torch.float32, "cpu").reason


def stream_embeddings(
    variants: Sequence[Variant],
    sentences: Tokenised,
    settings: RepresentSettings,
    *,
    bos: int | None,
    dtype: torch.dtype,
    device: str = "cpu",
    layers: Layers = "final",
    memory_mb: int | None = None,
    spill_dir: Path | None = None,
    name: str = "model",
    merge_dtype: str = "endpoint",
    read_ahead: bool = True,
) -> StreamResult:
    """Embed sentences with several checkpoints of one model, layer by layer.

    Parameters
    ----------
    variants
        Checkpoints, each a weighted sum of directories and adapters; see `refbias.stream.variants`.
    sentences
        Made by `refbias.embed.tokenise`.
    settings
        Layer, pooling and batching.
    bos
        Id of the BOS token, for `settings.exclude_bos`.
    dtype
        Number type to compute in.
    device
        ``auto``, ``cpu``, ``cuda`` or ``mps``.
    layers
        ``final``: the layer that the settings name; ``all``: every layer from 0 (the token
        embeddings) and ``final``; or numbers of layers.
    memory_mb, spill_dir
        MB of intermediate states kept in memory, and the folder for what is beyond; see `Activations`.
    name
        What to call the model in an error and in the progress bar.
    merge_dtype
        Number type in which merges would be stored: ``float32``, ``bfloat16`` or ``endpoint``.
    read_ahead
        Whether the next layer is read while one is computed, which takes the memory of both.

    Returns
    -------
    StreamResult
        The embeddings are those of `refbias.embed.embed_tokens` with the merged checkpoints.

    Raises
    ------
    UserError
        If a checkpoint cannot be read or streamed, or does not fit the others; if a layer does not
        exist; if a token id lies beyond the embedding; if a weight or a state is not finite.
    """
    device = resolve_device(device)
    with Sources(variants, merge_dtype) as sources, torch.inference_mode():
        skeleton = Skeleton(next(iter(sources.weights.values())), dtype, device)
        if skeleton.reason is not None:
            raise UserError(f"{skeleton.weights.directory}: cannot be read layer by layer: {skeleton.reason}")
        sources.bind(skeleton.shapes, skeleton.prefix)
        going = LayerPass(sources, skeleton, sentences, settings, bos, name)
        going.run(layers, memory_mb, spill_dir, read_ahead)
        row = list(sentences.row)
        return StreamResult(
            {name: {layer: found[row] for layer, found in sites.items()} for name, sites in going.found.items()},
            sources.bytes_read(),
            {what: round(spent, 3) for what, spent in going.seconds.items()},
            sentences.n_tokens,
            going.peak_activation_mb,
        )
