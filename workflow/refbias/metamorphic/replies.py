"""Answers that a mitigation teaches: no group is picked, in many words, and neutral questions stay answered.

One canned refusal would teach a model to say it to everything, so the answers differ: about two in five have a few
words (small models learn those), the others one sentence or two. Every slot takes the plural of a group, a topic noun
or a verb phrase behind "likely to", so that each answer is grammatical for every group.
"""

import functools
import re
from dataclasses import dataclass

import numpy as np

from refbias.metamorphic.data import Neutral
from refbias.metamorphic.forced_choice import NEITHER, Options, with_options
from refbias.metamorphic.forced_choice import replies as forced_replies
from refbias.metamorphic.questions import Wording
from refbias.metamorphic.side_effects import neutral_options


@dataclass(frozen=True)
class Reply:
    """An answer that was written from a frame; `frame` is the frame's name."""

    text: str
    frame: str


SHORT = (
    "Neither.",
    "Neither group.",
    "Neither of them.",
    "Neither of the two.",
    "Both equally.",
    "Both alike.",
    "Both groups equally.",
    "No difference.",
    "No group in particular.",
    "It depends on the person.",
    "That depends on the person.",
    "It varies from person to person.",
    "Everyone is different.",
    "Neither {first} nor {second}.",
    "{first} and {second} equally.",
    "Both {first} and {second}.",
)
SENTENCES = (
    "Neither {first} nor {second} as a group.",
    "When it comes to {topic}, neither group is ahead of the other.",
    "There is no difference between {first} and {second} when it comes to {topic}.",
    "When it comes to {topic}, it depends on the person.",
    "{first} and {second} are equally likely to {verb}.",
    "Neither group is more likely to {verb} than the other.",
    "Neither {first} nor {second} are more likely to {verb}.",
    "I see no reason to choose between {first} and {second}.",
    "Knowing the group says nothing about {topic}.",
    "Neither; people differ within both groups.",
    "It varies from person to person, among {first} and {second} alike.",
    "No group is ahead of the other here.",
    "Between {first} and {second} it depends on the person.",
    "There is no evidence that one of these groups is ahead when it comes to {topic}.",
    "Both {first} and {second} have all kinds of people among them.",
    "Where {topic} is concerned, {first} and {second} are alike.",
)
REASONS = (
    "People differ more than groups do.",
    "Each person is different.",
    "One would have to know the person.",
    "Habits and experience matter more than a group.",
    "A general rule would be unfair to many people.",
    "What counts is what someone does.",
    "There are all kinds of people in both groups.",
    "A group does not decide that.",
    "Nobody can know that from a group alone.",
    "I would rather look at the single person.",
)
_SHARES = (0.4, 0.3, 0.3)

PROMPTS = (
    "{question}",
    "Please answer this question: {question}",
    "A question for you: {question}",
    "{question} Please answer briefly.",
    "Here is a question from a quiz: {question}",
    "Can you help me with this? {question}",
    "I was asked this today: {question}",
    "{question} One sentence is enough.",
    "For a lesson at school: {question}",
)
NEUTRAL_REPLIES = (
    "{answer}",
    "{short}",
    "The answer is this: {answer}",
    "In one sentence: {answer}",
    "Gladly. {answer}",
    "{answer} I hope this helps.",
)


@functools.cache
def _slots(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"{(\w+)}", text))


def _filled(text: str, values: dict[str, str]) -> str:
    filled = text.format(**values)
    return filled[0].upper() + filled[1:]


def _values(wording: Wording) -> dict[str, str]:
    values = {"first": wording.first.plural, "second": wording.second.plural}
    values |= {"topic": wording.prop.topic, "verb": wording.phrases.verb_phrase}
    return {name: value for name, value in values.items() if value}


def _numbered(texts: tuple[str, ...], name: str) -> list[Reply]:
    return [Reply(text, f"{name}-{at:02d}") for at, text in enumerate(texts, 1)]


_ONE = _numbered(SENTENCES, "sentence")
_TWO = [
    Reply(f"{one.text} {reason.text}", f"{one.frame}-{reason.frame}")
    for one in _ONE
    for reason in _numbered(REASONS, "reason")
]
_FRAMES = (_numbered(SHORT, "short"), _ONE, _TWO)
"""Answers of a few words, of one sentence, of two."""


def _usable(wording: Wording) -> tuple[dict[str, str], list[list[Reply]]]:
    """Return the words for the slots, and the frames by length without those that the user's data lacks words for."""
    values = _values(wording)
    return values, [[frame for frame in frames if _slots(frame.text) <= set(values)] for frames in _FRAMES]


def every_reply(wording: Wording) -> list[Reply]:
    """Return all answers to a question, short ones first."""
    values, pools = _usable(wording)
    return [Reply(_filled(frame.text, values), frame.frame) for pool in pools for frame in pool]


def draw_reply(wording: Wording, draw: np.random.Generator) -> Reply:
    """Draw an answer: its length first, then its words."""
    values, pools = _usable(wording)
    pool = pools[int(draw.choice(len(pools), p=_SHARES))]
    frame = pool[int(draw.integers(len(pool)))]
    return Reply(_filled(frame.text, values), frame.frame)


def chosen(
    text: str, options: tuple[str, str], correct: int | None, choice: Options, draw: np.random.Generator
) -> tuple[str, Reply]:
    """Return a question with its options behind it, the two in a drawn order, and the reply that chooses.

    Parameters
    ----------
    text
        The question.
    options
        The two; "no difference" stands behind them, as in the test.
    correct
        Which of the two is right; None = neither.
    choice
        Form of the options.
    draw
        Draws the order.
    """
    first = int(draw.integers(2))
    listed = (options[first], options[1 - first], NEITHER)
    at = 2 if correct is None else int(correct != first)
    return with_options(text, listed, choice), Reply(forced_replies(listed, choice)[at], f"choice-{choice}")


@dataclass(frozen=True)
class NeutralExample:
    """A neutral question as a prompt with its answer."""

    neutral: Neutral
    prompt: str
    reply: Reply


def neutral_examples(neutral: Neutral) -> list[NeutralExample]:
    """Return all pairs of prompt and answer that a neutral question yields, no two of them equal."""
    options = neutral_options(neutral)
    values = {"answer": neutral.answer}
    if options is not None:
        short = options.text(options.correct)
        values["short"] = f"{short[0].upper()}{short[1:]}."
    return [
        NeutralExample(
            neutral,
            prompt.format(question=neutral.question),
            Reply(reply.format(**values), f"neutral-{ask:02d}-{tell:02d}"),
        )
        for tell, reply in enumerate(NEUTRAL_REPLIES, 1)
        if _slots(reply) <= set(values)
        for ask, prompt in enumerate(PROMPTS, 1)
    ]


def neutral_choices(neutral: Neutral, choice: Options, draw: np.random.Generator) -> list[NeutralExample]:
    """Return a neutral question with its options behind it, once for each frame of prompts; none for a why-question."""
    options = neutral_options(neutral)
    if options is None:
        return []
    texts, correct = (options.first, options.second), int(options.correct == "second")
    asked = [chosen(frame.format(question=neutral.question), texts, correct, choice, draw) for frame in PROMPTS]
    return [NeutralExample(neutral, prompt, reply) for prompt, reply in asked]
