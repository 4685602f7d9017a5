"""One run of all variants through a decoder's layers."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from refbias.config.represent import RepresentSettings
from refbias.embed import Tokenised, batches, first_position, pool
from refbias.errors import UserError
from refbias.fast import Tried, fused_forward
from refbias.lanes import Lanes, lanes_on
from refbias.models.heap import return_freed_memory
from refbias.progress import Bar, token_bar
from refbias.stream.activations import Activations
from refbias.stream.blocks import Call, enter, leave, run_block, same_call
from refbias.stream.reading import Held, LayerReader, Slot
from refbias.stream.skeleton import Skeleton
from refbias.stream.variants import Sources, Variant

Layer = int | Literal["final"]
Layers = Sequence[int] | Literal["final", "all"]
Array = npt.NDArray[np.float32]
_TRIM_SECONDS = 10.0


class LayerPass:
    """Sentences and checkpoints on their way through the layers.

    Parameters
    ----------
    sources, skeleton
        The open checkpoints, and the decoder that their tensors are put into.
    sentences, settings, bos, name
        As in `refbias.stream.forward.stream_embeddings`.
    """

    def __init__(
        self,
        sources: Sources,
        skeleton: Skeleton,
        sentences: Tokenised,
        settings: RepresentSettings,
        bos: int | None,
        name: str,
    ) -> None:
        self.sources, self.skeleton, self.sentences, self.settings = sources, skeleton, sentences, settings
        self.bos, self.name = bos, name
        self.plan = batches([len(ids) for ids in sentences.ids], settings.token_budget)
        self.ids = [
            torch.tensor([sentences.ids[index] for index in members], device=skeleton.device) for members in self.plan
        ]
        self.seconds = dict.fromkeys(("read", "wait", "merge", "compute", "spill"), 0.0)
        self.found: dict[str, dict[Layer, Array]] = {variant.name: {} for variant in sources.variants}
        self.peak_activation_mb = 0.0
        # a batch's calls, the same for all variants unless something in them depends on the weights
        self._calls: dict[tuple[int, int], list[Call]] = {}
        self._tried = Tried()
        self._target = Slot()
        self._done = 0.0
        self._lock = threading.Lock()
        self._trimmed = time.perf_counter()

    def run(self, layers: Layers, memory_mb: int | None, spill_dir: Path | None, read_ahead: bool) -> None:
        """Go through the layers as far as the wanted ones need, and fill `found`."""
        skeleton, variants = self.skeleton, self.sources.variants
        sites = wanted_layers(layers, self.settings, skeleton.n_layers, self.name)
        wanted = set(sites.values())
        n_layers = max(skeleton.n_layers if layer == "final" else layer for layer in wanted)
        label = f"embed {self.name}" + (f", {len(variants)} checkpoints" if len(variants) > 1 else "")
        shapes = [(int(ids.shape[0]), int(ids.shape[1])) for ids in self.ids]
        with (
            LayerReader(self.sources.weights, skeleton.layers[:n_layers], skeleton.device, read_ahead) as reader,
            token_bar(label, len(variants) * self.sentences.n_tokens, "tokens") as bar,
            Lanes(lanes_on(skeleton.device)) as lanes,
        ):
            outer = self._outer()
            width, dtype = self._first_width(outer)
            with Activations(len(variants), shapes, width, dtype, skeleton.device, memory_mb, spill_dir) as states:
                self.peak_activation_mb = states.memory_mb
                for number, variant in enumerate(variants):
                    self._enter(number, variant, outer[variant.name], states, 0 in wanted)
                for layer in range(1, n_layers + 1):
                    held = reader.take()
                    for number, variant in enumerate(variants):
                        self._block(layer, number, variant, held, states, layer in wanted, lanes)
                        self._advance(bar, n_layers)
                    self._trim()
                if "final" in wanted:
                    for number, variant in enumerate(variants):
                        self._leave(number, variant, outer[variant.name], states)
                self.seconds |= {"spill": states.seconds, "read": reader.seconds, "wait": reader.waited}
        self.found = {
            name: {key: by_layer[layer] for key, layer in sites.items()} for name, by_layer in self.found.items()
        }

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start

    def _advance(self, bar: Bar, n_layers: int) -> None:
        before = int(self._done)
        self._done += self.sentences.n_tokens / n_layers
        bar.advance(round(self._done) - before, round(self._done) - before)

    def _trim(self) -> None:
        # batches of many sizes leave gaps between them, which add up over a large model's layers
        if time.perf_counter() - self._trimmed > _TRIM_SECONDS:
            return_freed_memory()
            self._trimmed = time.perf_counter()

    def _outer(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return each variant's tensors outside the blocks; of the embedding only the rows of tokens that occur."""
        skeleton, key = self.skeleton, self.skeleton.embedding_key
        used = sorted({token for ids in self.sentences.ids for token in ids})
        n_rows = skeleton.shapes[key][0]
        if used[-1] >= n_rows:
            pairs = zip(self.sentences.texts, self.sentences.ids, strict=True)
            text = next(text for text, ids in pairs if max(ids) == used[-1])
            raise UserError(
                f"{self.name}: token id {used[-1]} of sentence {text!r} lies beyond the model's {n_rows} embeddings: "
                "use the model's own tokenizer"
            )
        skeleton.set_rows(used)
        held: dict[Path, dict[str, torch.Tensor]] = {}
        for directory, weights in self.sources.weights.items():
            held[directory] = {name: weights.read(name).to(skeleton.device) for name in skeleton.outer}
            held[directory][key] = weights.read_rows(key, used).to(skeleton.device)
        return {
            variant.name: self._tensors(variant, held, [*skeleton.outer, key], None)
            for variant in self.sources.variants
        }

    def _tensors(self, variant: Variant, held: Held, keys: Sequence[str], slot: Slot | None) -> dict[str, torch.Tensor]:
        """Return a variant's tensors to compute with: those that no file holds as they are, blended into `slot`."""
        dtype, device = self.skeleton.dtype, self.skeleton.device
        result = {key: self.sources.stored(variant, held, key) for key in keys}
        blended = [key for key in keys if not self.sources.plain(variant, key, dtype)]
        if not blended:
            return result
        with self._timed("merge"):
            shapes = [result[key].shape for key in blended]
            views = (slot or Slot()).cut([shape.numel() * dtype.itemsize for shape in shapes], device)
            for key, shape, view in zip(blended, shapes, views, strict=True):
                result[key] = view.view(dtype).view(shape)
                self.sources.blend(variant, held, key, result[key])
        return result

    def _first_width(self, outer: Mapping[str, Mapping[str, torch.Tensor]]) -> tuple[int, torch.dtype]:
        """Return width and number type of the states that enter the first block."""
        with self.skeleton.filled(next(iter(outer.values()))):
            states, _ = enter(self.skeleton.model, self.skeleton.blocks, self.ids[0][:1])
        return int(states.shape[-1]), states.dtype

    def _enter(
        self, number: int, variant: Variant, tensors: Mapping[str, torch.Tensor], states: Activations, wanted: bool
    ) -> None:
        skeleton = self.skeleton
        with self._timed("compute"), skeleton.filled(tensors):
            for batch, ids in enumerate(self.ids):
                first, calls = enter(skeleton.model, skeleton.blocks, ids)
                known = self._calls.get((0, batch))
                shared = known is not None and all(map(same_call, known, calls))
                self._calls[number, batch] = known if known is not None and shared else calls
                self._keep(0, number, variant, batch, first, states, wanted)

    def _block(
        self,
        layer: int,
        number: int,
        variant: Variant,
        held: Held,
        states: Activations,
        wanted: bool,
        lanes: Lanes,
    ) -> None:
        skeleton = self.skeleton
        block = skeleton.blocks.modules[layer - 1]
        tensors = self._tensors(variant, held, skeleton.layers[layer - 1], self._target)

        def through(batch: int) -> None:
            call = self._calls[number, batch][layer - 1]
            output = run_block(block, states.get(number, batch), call)
            self._keep(layer, number, variant, batch, output, states, wanted)

        with self._timed("compute"), skeleton.filled(tensors), fused_forward(block, self._tried):
            lanes.map(through, [ids.numel() for ids in self.ids])

    def _leave(self, number: int, variant: Variant, tensors: Mapping[str, torch.Tensor], states: Activations) -> None:
        skeleton = self.skeleton
        with self._timed("compute"), skeleton.filled(tensors):
            for batch, ids in enumerate(self.ids):
                output = leave(skeleton.model, skeleton.blocks, ids, states.get(number, batch))
                self._check(output, variant, batch, "the final norm")
                self._pool("final", variant, batch, output)

    def _keep(
        self,
        layer: int,
        number: int,
        variant: Variant,
        batch: int,
        output: torch.Tensor,
        states: Activations,
        wanted: bool,
    ) -> None:
        self._check(output, variant, batch, f"layer {layer}" if layer else "layer 0 (token embeddings)")
        if wanted:
            self._pool(layer, variant, batch, output)
        states.put(number, batch, output)

    def _check(self, output: torch.Tensor, variant: Variant, batch: int, label: str) -> None:
        # one pass: any NaN or infinity makes the sum one
        if bool(torch.isfinite(output.sum())) or bool(torch.isfinite(output).all()):
            return
        bad = int((~torch.isfinite(output)).flatten(1).any(dim=1).nonzero()[0])
        raise UserError(
            f"{self._called(variant)}: {label} gives a non-finite state for sentence "
            f"{self.sentences.texts[self.plan[batch][bad]]!r}: check the weights, or use dtype float32"
        )

    def _called(self, variant: Variant) -> str:
        return self.name if len(self.sources.variants) == 1 else f"{self.name}/{variant.name}"

    def _pool(self, layer: Layer, variant: Variant, batch: int, output: torch.Tensor) -> None:
        members, by_layer = self.plan[batch], self.found[variant.name]
        first = first_position(
            self.ids[batch], self.bos, self.settings.exclude_bos, [self.sentences.texts[index] for index in members]
        )
        vectors = pool(output.float(), first, self.settings.pooling).cpu().numpy()
        # several batches may come at once
        with self._lock:
            if layer not in by_layer:
                by_layer[layer] = np.empty((len(self.sentences.ids), vectors.shape[1]), np.float32)
        by_layer[layer][members] = vectors


def wanted_layers(layers: Layers, settings: RepresentSettings, n_layers: int, name: str) -> dict[Layer, Layer]:
    """Return what each wanted layer is called -> the layer; ``final`` is what comes after the final norm.

    Raises
    ------
    UserError
        If one does not exist.
    """
    last: Layer = "final" if settings.final_norm else n_layers
    if layers == "final":
        sites: dict[Layer, Layer] = {settings.layer: last if settings.layer == "final" else settings.layer}
    elif layers == "all":
        sites = {**{layer: layer for layer in range(n_layers + 1)}, "final": last}
    else:
        sites = {layer: layer for layer in layers}
    for layer in sites.values():
        if layer != "final" and not 0 <= layer <= n_layers:
            raise UserError(f"key 'represent.layer': {layer}: {name} has blocks 1 to {n_layers}, 0 = token embeddings")
    if not sites:
        raise UserError("layers: none asked for: name at least one")
    return sites
