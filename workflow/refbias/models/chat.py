"""The one place where a conversation becomes token ids, for training and for generation alike.

Two formats: the tokenizer's own chat template, or for a base model without one the plain text

    Question: {user}
    Answer: {assistant}

A system turn stands before the user's text, a blank line between. Ids are built once and handed
on as ids, so that nothing adds a second BOS; a template that would insert today's date gets a
fixed one; text that spells a special token is broken up, so that it stays text.
"""

import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from refbias.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROLES = ("system", "user", "assistant")
FROZEN_DATE = datetime.datetime(2024, 7, 26, tzinfo=datetime.UTC)
_MARK = "refbias"


class Turn(Protocol):
    """One turn of a conversation."""

    @property
    def role(self) -> str:
        """``system``, ``user`` or ``assistant``."""

    @property
    def content(self) -> str:
        """The text."""


def resolve_format(tokenizer: "PreTrainedTokenizerBase", chat_format: str) -> str:
    """Return ``template`` or ``plain`` for a configured ``auto``, ``template`` or ``plain``.

    Raises
    ------
    UserError
        If a template is asked for and the tokenizer has none.
    """
    if chat_format == "auto":
        return "template" if tokenizer.chat_template else "plain"
    if chat_format == "template" and not tokenizer.chat_template:
        raise UserError("key 'chat_format': template, but the model's tokenizer has none: use 'auto' or 'plain'")
    return chat_format


def prompt_ids(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Turn], chat_format: str = "auto") -> list[int]:
    """Return the token ids after which the model answers.

    Parameters
    ----------
    tokenizer
        The model's tokenizer.
    messages
        Turns, the last one the user's.
    chat_format
        ``auto``, ``template`` or ``plain``.

    Returns
    -------
    list of int
        Ids with exactly one BOS where the model uses one.

    Raises
    ------
    UserError
        If the turns are not a conversation that the format can express; names the turn.
    """
    turns = _checked(tokenizer, messages)
    return encode(tokenizer, _render(tokenizer, turns, resolve_format(tokenizer, chat_format)))


def completion_ids(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Turn], response: str, chat_format: str = "auto"
) -> list[int]:
    """Return the token ids that training continues `prompt_ids` with, the end of the turn included.

    Parameters
    ----------
    tokenizer
        The model's tokenizer.
    messages
        Turns, the last one the user's.
    response
        The assistant's text.
    chat_format
        ``auto``, ``template`` or ``plain``.

    Returns
    -------
    list of int
        Ids that end in one of `stop_ids`.
    """
    turns = _checked(tokenizer, messages)
    form = resolve_format(tokenizer, chat_format)
    prompt = _render(tokenizer, turns, form)
    text = as_text(tokenizer, response)
    whole = f"{prompt} {text.strip()}" if form == "plain" else _render_answer(tokenizer, turns, text, prompt)
    before = encode(tokenizer, prompt)
    together = encode(tokenizer, whole.rstrip())
    # the prompt's own ids must stay as generation sees them, even where the boundary would merge
    if together[: len(before)] == before:
        ids = together[len(before) :]
    else:
        ids = tokenizer(whole[len(prompt) :].rstrip(), add_special_tokens=False)["input_ids"]
    if not ids or ids[-1] not in stop_ids(tokenizer, form):
        ids = [*ids, tokenizer.eos_token_id]
    return list(ids)


def stop_ids(tokenizer: "PreTrainedTokenizerBase", chat_format: str = "auto") -> list[int]:
    """Return the ids that end an answer: EOS, and the template's end of turn where it has its own."""
    stops = [tokenizer.eos_token_id]
    if resolve_format(tokenizer, chat_format) == "template":
        turns = [{"role": "user", "content": _MARK}]
        prompt = _render(tokenizer, turns, "template")
        tail = _render_answer(tokenizer, turns, _MARK, prompt).rpartition(_MARK)[2]
        special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
        ids = tokenizer(tail.strip(), add_special_tokens=False)["input_ids"]
        stops += [token for token in ids[:1] if token in special and token not in stops]
    return stops


def _checked(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Turn]) -> list[dict[str, str]]:
    for number, turn in enumerate(messages, start=1):
        if turn.role not in ROLES:
            raise UserError(f"turn {number}: role {turn.role!r}: must be one of {', '.join(ROLES)}")
        if turn.role == "system" and number > 1:
            raise UserError(f"turn {number}: a system turn must come first")
    if not messages or messages[-1].role != "user":
        raise UserError(f"turn {len(messages)}: a prompt must end in a user turn")
    return [{"role": turn.role, "content": as_text(tokenizer, turn.content)} for turn in messages]


def as_text(tokenizer: "PreTrainedTokenizerBase", text: str) -> str:
    """Break up whatever in `text` would be read as a special token: ``<eos>`` becomes ``< eos>``."""
    contents, firsts = _special_texts(tokenizer, len(tokenizer))
    # a vocabulary may hold thousands of them, and nearly no text one
    if firsts.isdisjoint(text):
        return text
    for content in contents:
        text = text.replace(content, f"{content[0]} {content[1:]}")
    return text


@functools.lru_cache(maxsize=8)
def _special_texts(tokenizer: "PreTrainedTokenizerBase", size: int) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return what spells a special token, and with which characters that begins; `size` tells of tokens added later."""
    tokens = tokenizer.added_tokens_decoder.values()
    contents = tuple(token.content for token in tokens if token.special and len(token.content) > 1)
    return contents, frozenset(content[0] for content in contents)


def _fold_system(turns: list[dict[str, str]]) -> list[dict[str, str]]:
    """Put a leading system turn before the first user text, one blank line between."""
    if turns[0]["role"] != "system":
        return turns
    first, second, *rest = turns
    return [{"role": second["role"], "content": f"{first['content']}\n\n{second['content']}"}, *rest]


def _render(tokenizer: "PreTrainedTokenizerBase", turns: list[dict[str, str]], form: str) -> str:
    if form == "plain":
        folded = _fold_system(turns)
        parts = [
            f"Question: {turn['content']}\nAnswer:" if turn["role"] == "user" else f" {turn['content'].strip()}\n\n"
            for turn in folded
        ]
        return "".join(parts)
    return _apply(tokenizer, _template_turns(tokenizer, turns), generation=True)


def _render_answer(tokenizer: "PreTrainedTokenizerBase", turns: list[dict[str, str]], answer: str, prompt: str) -> str:
    turns = [*_template_turns(tokenizer, turns), {"role": "assistant", "content": answer}]
    whole = _apply(tokenizer, turns, generation=False)
    if whole.startswith(prompt):
        return whole
    # a template may open an answer otherwise than it opens generation; what generation sees counts
    return prompt + answer.strip() + whole.rpartition(answer.strip())[2]


def _template_turns(tokenizer: "PreTrainedTokenizerBase", turns: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the turns as the template can express them: a system turn it refuses or drops is folded."""
    if turns[0]["role"] != "system":
        return turns
    try:
        kept = turns[0]["content"].strip() in _apply(tokenizer, turns, generation=True)
    except UserError:
        kept = False
    return turns if kept else _fold_system(turns)


def _apply(tokenizer: "PreTrainedTokenizerBase", turns: list[dict[str, str]], generation: bool) -> str:
    import jinja2

    options: Mapping[str, Any] = {
        "date_string": FROZEN_DATE.strftime("%d %b %Y"),
        "strftime_now": FROZEN_DATE.strftime,
    }
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=generation, **options)
    except jinja2.TemplateError as error:
        roles = ", ".join(turn["role"] for turn in turns)
        raise UserError(
            f"chat template of {tokenizer.name_or_path}: refuses the turns ({roles}): {error}: use chat_format 'plain'"
        ) from None
    return str(text)


def encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Tokenize rendered text with exactly one BOS if template or tokenizer want one."""
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    bos = tokenizer.bos_token_id
    if bos is None:
        return ids
    start = next((place for place, token in enumerate(ids) if token != bos), len(ids))
    wanted = start > 0 or bos in tokenizer("", add_special_tokens=True)["input_ids"]
    return [bos, *ids[start:]] if wanted else ids
