"""Where, in a prompt's token ids, a part of the user's own text ends."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from refbias.errors import UserError
from refbias.models.chat import Turn, _checked, _render, as_text, encode, resolve_format

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def end_of_part(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Turn], part: str, chat_format: str = "auto"
) -> tuple[tuple[int, ...], int]:
    """Return the ids of `refbias.models.prompt_ids`, and the index of the token that ends `part`.

    The end is found in the rendered text, at the last place where `part` stands. Where one token holds the part's last
    character and text behind it, that token is the end.

    Parameters
    ----------
    tokenizer, messages, chat_format
        As of `refbias.models.prompt_ids`.
    part
        Text that stands in a turn.

    Raises
    ------
    UserError
        If the turns are no conversation, or the template changes the part.
    """
    text = _render(tokenizer, _checked(tokenizer, messages), resolve_format(tokenizer, chat_format))
    wanted = as_text(tokenizer, part)
    at = text.rfind(wanted)
    if at < 0:
        raise UserError(
            f"chat template of {tokenizer.name_or_path}: does not hold the context {part!r} as it is: "
            "use chat_format 'plain'"
        )
    whole = encode(tokenizer, text)
    before = encode(tokenizer, text[: at + len(wanted)])
    same = next((n for n, (a, b) in enumerate(zip(whole, before, strict=False)) if a != b), len(before))
    return tuple(whole), min(same, len(before) - 1)
