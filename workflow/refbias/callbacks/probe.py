"""Embed a fixed set of sentences with a model that is being trained, and leave it as it was found.

The sentences are tokenised once; each measurement is one pass over the distinct ones, equal lengths
together, through the decoder without its output layer.
"""

import contextlib
import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from refbias.config.represent import RepresentSettings
from refbias.embed import Tokenised, embed_tokens, tokenise
from refbias.errors import UserError
from refbias.metrics import Embeddings, rr_shift
from refbias.models import load_base, load_tokenizer
from refbias.stimuli import Sentence
from refbias.stimuli.table import nearest

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Matrix = npt.NDArray[np.float32]
TARGETS = ("target", "control")
BASES = ("positive", "negative", "anchor")


def choose_sentences(sentences: Sequence[Sentence], groups: Sequence[str] | None) -> list[Sentence]:
    """Return the targets of the chosen groups, all attributes and anchors.

    Parameters
    ----------
    sentences
        Of all groups.
    groups
        Ids of target groups, or ``control``; None or empty = all.

    Raises
    ------
    UserError
        If a group is unknown, or attributes or anchors are missing.
    """
    known = dict.fromkeys(row.group for row in sentences if row.kind in TARGETS)
    for group in groups or ():
        if group not in known:
            raise UserError(f"groups: unknown group {group!r}{nearest(group, known)}: use {', '.join(known)}")
    for kind in BASES:
        if not any(row.kind == kind for row in sentences):
            raise UserError(f"sentences: none of kind {kind!r}: dB needs targets, both attribute sets and anchors")
    if not known:
        raise UserError("sentences: none of kind 'target': dB needs at least one group")
    wanted = set(groups or known)
    return [row for row in sentences if row.kind in BASES or row.group in wanted]


@dataclass(frozen=True)
class Probe:
    """The sentences of a watched training, ready for its model.

    Parameters
    ----------
    sentences
        n sentences of all kinds.
    tokens
        The same, tokenised.
    bos
        Id of the BOS token.
    settings
        Layer, pooling, batching.
    autocast
        Number type in which matrix products are computed, or None for that of the weights.
    """

    sentences: tuple[Sentence, ...]
    tokens: Tokenised
    bos: int | None
    settings: RepresentSettings
    autocast: torch.dtype | None

    @property
    def groups(self) -> list[str]:
        """The groups that are measured, in the order of their sentences."""
        return list(dict.fromkeys(row.group for row in self.sentences if row.kind in TARGETS))

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that two embeddings must share to be compared."""
        rows = [(row.id, row.kind, row.group, row.text) for row in self.sentences]
        # how many tokens a batch holds changes no embedding
        settings = self.settings.model_dump(mode="json", exclude={"token_budget"})
        content = [rows, self.tokens.ids, settings, str(self.autocast)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def embed(self, model: "PreTrainedModel", name: str, *, adapter: bool = True) -> Matrix:
        """Embed the sentences, shape (n, d), with a model in training.

        Parameters
        ----------
        model
            A transformers or PEFT model; nothing of it is changed when this returns.
        name
            What to call it in an error.
        adapter
            False: with the adapters of a PEFT model switched off.

        Raises
        ------
        UserError
            If the model has no decoder of its own, or a state is not finite (names layer and sentence).
        """
        off = contextlib.nullcontext() if adapter else model.disable_adapter()
        with left_as_found(model), off:
            return self._embed(decoder_of(model), name)

    def embed_directory(self, directory: Path, like: "PreTrainedModel") -> Matrix:
        """Embed the sentences with the checkpoint in `directory`, in number type and on the device of `like`.

        Raises
        ------
        UserError
            If its tokenizer gives other tokens.
        """
        own = tokenise(load_tokenizer(directory), [row.text for row in self.sentences])
        if own.ids != self.tokens.ids:
            raise UserError(f"{directory}: its tokenizer gives other tokens than the trained model's: name its base")
        first = next(decoder_of(like).parameters())
        return self._embed(load_base(directory, dtype=first.dtype).to(first.device), str(directory))

    def _embed(self, decoder: "PreTrainedModel", name: str) -> Matrix:
        kind = next(decoder.parameters()).device.type
        with torch.autocast(kind, dtype=self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            return embed_tokens(decoder, self.tokens, self.settings, bos=self.bos, name=name)

    def sets(self, matrix: Matrix) -> Embeddings:
        """Sort embeddings (n, d) into targets by group, attributes and anchors."""
        wide = matrix.astype(np.float64)
        rows: dict[str, list[int]] = {}
        for index, row in enumerate(self.sentences):
            rows.setdefault(row.group if row.kind in TARGETS else f".{row.kind}", []).append(index)
        base = [wide[rows[f".{kind}"]] for kind in BASES]
        return Embeddings({group: wide[rows[group]] for group in self.groups}, *base)

    def shift(self, reference: Matrix, audited: Matrix, name: str) -> dict[str, float]:
        """Return dB (eq. 7, relative representations) of every group.

        Raises
        ------
        UserError
            If an embedding is zero or not finite, so that no association exists; names it.
        """
        try:
            found = rr_shift(self.sets(reference), self.sets(audited))
        except ValueError as error:
            raise UserError(f"{name}: dB is not defined: {error}: check the training's loss and number type") from None
        return {group: result.delta_b for group, result in found.items()}


def make_probe(
    sentences: Sequence[Sentence],
    groups: Sequence[str] | None,
    tokenizer: "PreTrainedTokenizerBase",
    settings: RepresentSettings,
    autocast: torch.dtype | None,
) -> Probe:
    """Choose and tokenise the sentences."""
    chosen = tuple(choose_sentences(sentences, groups))
    tokens = tokenise(tokenizer, [row.text for row in chosen])
    return Probe(chosen, tokens, tokenizer.bos_token_id, settings, autocast)


def is_peft(model: Any) -> bool:
    """Tell whether `model` is wrapped by PEFT, so that its adapters can be switched off."""
    return hasattr(model, "get_base_model") and hasattr(model, "disable_adapter")


def decoder_of(model: Any) -> "PreTrainedModel":
    """Return the decoder without its output layer; of a multimodal model the language tower.

    Raises
    ------
    UserError
        If there is none, or an adapter acts through the prompt instead of the weights.
    """
    if is_peft(model):
        for name, config in model.peft_config.items():
            if config.is_prompt_learning or config.is_adaption_prompt:
                raise UserError(f"adapter {name!r}: a learned prompt changes no sentence's embedding: dB needs weights")
        model = model.get_base_model()
    find = getattr(model, "get_decoder", None)
    decoder: PreTrainedModel | None = find() if find else None
    if decoder is None:
        raise UserError(f"{type(model).__name__}: no decoder is found in it: dB is defined for decoders only")
    return decoder


@contextlib.contextmanager
def left_as_found(model: torch.nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode for the length of a block, then everything back as it was.

    Restored are each module's mode, each parameter's need of a gradient and place in memory (fused
    steps join the weights of neighbours), and the state of the random generators of Python, NumPy
    and torch.
    """
    modes = [(module, module.training) for module in model.modules()]
    parameters = [(parameter, parameter.requires_grad, parameter.data) for parameter in model.parameters()]
    python, legacy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            model.eval()
            yield
        finally:
            for parameter, needs_gradient, data in parameters:
                if parameter.data_ptr() != data.data_ptr():
                    parameter.data = data
                parameter.requires_grad_(needs_gradient)
            for module, mode in modes:
                module.training = mode
            random.setstate(python)
            np.random.set_state(legacy)
