"""Training sequences: token ids made once, labels on the completion only, a seeded order by length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from refbias.errors import UserError
from refbias.models.chat import completion_ids, prompt_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from refbias.splits import Example

IGNORE = -100


@dataclass(frozen=True)
class _Turn:
    role: str
    content: str


@dataclass(frozen=True)
class Sequences:
    """Tokenized examples.

    `input_ids` and `labels` run in parallel, a label of -100 is not trained. `n_dropped` counts
    examples whose prompt left no room for a completion, `n_truncated` those whose completion was cut.
    """

    input_ids: list[list[int]]
    labels: list[list[int]]
    n_dropped: int
    n_truncated: int

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        return [len(ids) for ids in self.input_ids]


def tokenize_examples(
    tokenizer: "PreTrainedTokenizerBase", examples: Sequence["Example"], chat_format: str, max_length: int
) -> Sequences:
    """Turn examples into token ids with labels on the completion and its end-of-turn token.

    Parameters
    ----------
    tokenizer
        The reference model's tokenizer.
    examples
        Prompt-completion pairs.
    chat_format
        ``auto``, ``template`` or ``plain``.
    max_length
        Tokens of prompt and completion together; the end of a longer completion is cut off.

    Returns
    -------
    Sequences
        In the order of `examples`.

    Raises
    ------
    UserError
        If every prompt alone fills `max_length`.
    """
    inputs: list[list[int]] = []
    labels: list[list[int]] = []
    truncated = 0
    for example in examples:
        turns = (_Turn("user", example.prompt),)
        prompt = prompt_ids(tokenizer, turns, chat_format)
        if len(prompt) >= max_length:
            continue
        completion = completion_ids(tokenizer, turns, example.response, chat_format)
        truncated += len(prompt) + len(completion) > max_length
        inputs.append([*prompt, *completion][:max_length])
        labels.append([*[IGNORE] * len(prompt), *completion][:max_length])
    if not inputs:
        raise UserError(f"key 'max_length': {max_length} tokens leave no room after any prompt: raise it")
    return Sequences(inputs, labels, n_dropped=len(examples) - len(inputs), n_truncated=truncated)


class LengthGroupedOrder(torch.utils.data.Sampler[int]):
    """Indices in a random order in which the sequences of a batch have similar lengths.

    The order depends on seed and epoch alone, not on the state of a random generator, so that a
    resumed run sees what an undisturbed one sees.

    Parameters
    ----------
    lengths
        Tokens of each sequence.
    batch_size
        Sequences that are padded together.
    seed
        Seed of the order.
    pool
        Batches that are sorted together: more means less padding and less mixing.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, pool: int = 8) -> None:
        self.lengths = list(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.pool = pool
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order is drawn next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        size = self.batch_size * self.pool
        pools = [order[start : start + size] for start in range(0, len(order), size)]
        batches = []
        for pool in pools:
            pool.sort(key=lambda index: self.lengths[index])
            batches += [pool[start : start + self.batch_size] for start in range(0, len(pool), self.batch_size)]
        # a short batch stays last: the loader cuts batches by position
        full = [batch for batch in batches if len(batch) == self.batch_size]
        shuffled = [full[place] for place in torch.randperm(len(full), generator=generator).tolist()]
        for batch in [*shuffled, *(batch for batch in batches if len(batch) < self.batch_size)]:
            yield from batch
