"""Tokens of the sentences in each model, and whether the models' vocabularies agree."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from refbias.audit.sources import Source
from refbias.embed import Tokenised, tokenise
from refbias.errors import UserError
from refbias.models import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Tokens:
    """The sentences as a model sees them; `bos` is the id of its BOS token."""

    sentences: Tokenised
    bos: int | None

    def part(self, rows: Sequence[int]) -> "Tokens":
        """Return the tokens of some of the given sentences, in the order of `rows`."""
        old = [self.sentences.row[row] for row in rows]
        index = {number: place for place, number in enumerate(dict.fromkeys(old))}
        texts = tuple(self.sentences.texts[number] for number in index)
        ids = tuple(self.sentences.ids[number] for number in index)
        return Tokens(Tokenised(texts, ids, tuple(index[number] for number in old)), self.bos)

    def same_ids(self, other: "Tokens") -> bool:
        """Whether every sentence has the same ids, whatever is called BOS."""
        return (self.sentences.ids, self.sentences.row) == (other.sentences.ids, other.sentences.row)

    @property
    def sha256(self) -> str:
        """Hash of every sentence's ids, and of the BOS that may be left out."""
        content = [self.sentences.ids, self.sentences.row, self.bos]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """Load a tokenizer.

    Raises
    ------
    UserError
        If its files cannot be read.
    """
    try:
        return load_tokenizer(folder)
    except (ValueError, KeyError, OSError, TypeError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{folder}: its tokenizer cannot be read ({type(error).__name__}: {reason})") from None


def tokens_of(
    texts: Sequence[str], reference: Source, audited: Sequence[Source], cross_family: bool, exclude_bos: bool = False
) -> tuple[Tokens, list[Tokens]]:
    """Return the tokens of all texts in the reference and in each audited model.

    A vocabulary that only adds tokens (a padding token, a chat's turns) counts as the same, as long as
    the sentences have the same ids.

    Parameters
    ----------
    texts
        The sentences.
    reference, audited
        The models.
    cross_family
        Allow other vocabularies.
    exclude_bos
        Whether BOS is left out, so that what a model calls BOS counts as well.

    Returns
    -------
    tuple
        The reference's tokens, and those of each audited model; the same object for models that get the same ids
        (and, with `exclude_bos`, have the same BOS), so that they go through their layers together.

    Raises
    ------
    UserError
        If an audited model's tokenizer is not the reference's and `cross_family` is not set.
    """
    first = read_tokenizer(reference.tokenizer)
    own = Tokens(tokenise(first, texts), first.bos_token_id)
    vocabulary = first.get_vocab()
    known: dict[Path, Tokens] = {reference.tokenizer.resolve(): own}
    result = []
    for source in audited:
        folder = source.tokenizer.resolve()
        if folder not in known:
            other = read_tokenizer(folder)
            tokens = Tokens(tokenise(other, texts), other.bos_token_id)
            if not cross_family:
                _refuse_other(source, vocabulary, other.get_vocab(), own.sentences, tokens.sentences)
            alike = (
                found
                for found in (own, *known.values())
                if found.same_ids(tokens) and (found.bos == tokens.bos or not exclude_bos)
            )
            known[folder] = next(alike, tokens)
        result.append(known[folder])
    return own, result


def _refuse_other(
    source: Source, first: dict[str, int], second: dict[str, int], own: Tokenised, other: Tokenised
) -> None:
    mend = "audit a model of the reference's family, or say --cross-family (RR and CKA alone)"
    moved = sorted(token for token in first.keys() & second.keys() if first[token] != second[token])
    if moved or not (first.keys() <= second.keys() or second.keys() <= first.keys()):
        token = (moved or sorted(first.keys() ^ second.keys()))[0]
        raise UserError(
            f"{source.spec}: another vocabulary than the reference's (token {token!r} is {second.get(token)}, there "
            f"{first.get(token)}; {len(second)} tokens, there {len(first)}): {mend}"
        )
    for text, a, b in zip(own.texts, own.ids, other.ids, strict=True):
        if a != b:
            raise UserError(f"{source.spec}: its tokenizer splits {text!r} otherwise than the reference's: {mend}")
