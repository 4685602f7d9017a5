"""The fine-tuning set of the mitigation, and what is kept out of it for the re-test.

The unit of the split is (pair of groups, property): all wordings of one go to the same side, so that the re-test meets
no comparison again, whichever way round or under whichever premise it was trained. One relation is held out whole,
alone and in chains: immunity to the rewordings that were trained, and to no others, is how such a mitigation is known
to fail. A question enters the set where its source or one of its rewordings, the held-out relation aside, was answered
with a bias; then all its rewordings do. As many neutral questions stand beside them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np

from refbias.artifacts import write_json, write_jsonl
from refbias.errors import UserError
from refbias.metamorphic.answers import Answer
from refbias.metamorphic.data import Material, Neutral
from refbias.metamorphic.forced_choice import Options
from refbias.metamorphic.held_out import PARTS, HeldOut, Key, holds, key_of
from refbias.metamorphic.questions import Question, wording_of
from refbias.metamorphic.replies import NeutralExample, chosen, draw_reply, neutral_choices, neutral_examples
from refbias.metamorphic.sampling import generator
from refbias.metamorphic.side_effects import training_neutral


@dataclass(frozen=True)
class TrainingRow:
    """One example: prompt and response, and what it was made from."""

    id: str
    prompt: str
    response: str
    template: str
    kind: Literal["biased", "neutral"]
    made_from: str
    relation: str

    def as_split_row(self) -> dict[str, Any]:
        """Return the row in the schema of the fine-tuning splits, on their unharmful side."""
        labels = {"prompt_harm_label": "unharmful", "response_harm_label": "unharmful"}
        own = asdict(self)
        return {
            **{name: own.pop(name) for name in ("id", "prompt")},
            "adversarial": False,
            "response": own.pop("response"),
            **labels,
            "response_refusal_label": "compliance",
            "subcategory": f"metamorphic_{own.pop('kind')}",
            **own,
        }


@dataclass(frozen=True)
class TrainingSet:
    """The examples in their order, what is held out, and how often the most used neutral question stands in them."""

    rows: tuple[TrainingRow, ...]
    held_out: HeldOut
    n_biased: int
    n_neutral_questions: int
    most_uses: int


def split_keys(questions: Sequence[Question], share: float, seed: int) -> frozenset[Key]:
    """Draw the keys to hold out, the same share of each category; at least one of a category that has two.

    Raises
    ------
    UserError
        If the share is not between 0 and 1, or no category has two keys.
    """
    if not 0 < share < 1:
        raise UserError(f"--held-out-share {share}: must lie between 0 and 1")
    by_category: dict[str, dict[Key, None]] = {}
    for question in questions:
        by_category.setdefault(question.category, {})[key_of(question)] = None
    held: set[Key] = set()
    for category, found in by_category.items():
        keys = sorted(found)
        size = min(max(round(share * len(keys)), 1), len(keys) - 1)
        held.update(keys[at] for at in generator(seed, "held out", category).permutation(len(keys))[:size])
    if not held:
        raise UserError(
            "questions: no category has two combinations of a pair and a property, so none can be held out: ask more"
        )
    return frozenset(held)


def _biased(
    questions: Sequence[Question], answers: Mapping[str, Answer], held: frozenset[Key], relation: str
) -> list[Question]:
    """Return all trainable wordings of the sources of which one was answered with a bias."""
    usable = [row for row in questions if key_of(row) not in held and not holds(row.relation, relation)]
    found = {row.source_id for row in usable if answers[row.id].biased}
    return [row for row in usable if row.source_id in found]


def _limited(questions: list[Question], limit: int | None, seed: int) -> list[Question]:
    """Return sources with all their wordings, the categories in turn, until no further one fits."""
    if limit is None or len(questions) <= limit:
        return questions
    by_source: dict[str, list[Question]] = {}
    for question in questions:
        by_source.setdefault(question.source_id, []).append(question)
    by_category: dict[str, list[list[Question]]] = {}
    sources = list(by_source.values())
    for at in generator(seed, "limit").permutation(len(sources)):
        by_category.setdefault(sources[at][0].category, []).append(sources[at])
    kept: set[str] = set()
    left = limit
    for source in chain.from_iterable(zip_longest(*by_category.values())):
        if source is not None and len(source) <= left:
            left -= len(source)
            kept.add(source[0].source_id)
    if not kept:
        raise UserError(f"--limit {limit}: a question and its rewordings are {len(sources[0])}: raise it")
    return [question for question in questions if question.source_id in kept]


def _biased_rows(
    questions: Sequence[Question], material: Material, choice: Options | None, draw: np.random.Generator
) -> list[TrainingRow]:
    rows = []
    for number, question in enumerate(questions):
        wording = wording_of(question, material)
        prompt, reply = question.text, draw_reply(wording, draw)
        if choice is not None and number % 2:
            prompt, reply = chosen(question.text, (wording.first.plural, wording.second.plural), None, choice, draw)
        source = (question.id, question.relation)
        rows.append(TrainingRow(f"biased-{question.id}", prompt, reply.text, reply.frame, "biased", *source))
    return rows


def _neutral_examples(
    neutral: Sequence[Neutral], wanted: int, choice: Options | None, seed: int
) -> list[NeutralExample]:
    """Return the examples, every question as it stands before any comes again in another frame."""
    rows = training_neutral(neutral)
    draw = generator(seed, "neutral")
    pools = []
    for at in draw.permutation(len(rows)):
        first, *rest = neutral_examples(rows[at])
        pool = [first, *(rest[place] for place in draw.permutation(len(rest)))]
        with_choice = neutral_choices(rows[at], choice, draw) if choice is not None else []
        # one with options after each open one, as long as there are any
        pools.append([example for pair in zip_longest(pool, with_choice) for example in pair if example is not None])
    most = sum(map(len, pools))
    if most < wanted:
        raise UserError(
            f"neutral questions: {wanted} examples are needed, {len(rows)} questions yield {most} different ones: "
            "name a larger file with --neutral"
        )
    turns = chain.from_iterable(zip_longest(*pools))
    return [example for example in turns if example is not None][:wanted]


def _neutral_rows(examples: Sequence[NeutralExample]) -> list[TrainingRow]:
    uses: Counter[str] = Counter()
    rows = []
    for example in examples:
        name, reply = example.neutral.id, example.reply
        uses[name] += 1
        identity = f"neutral-{name}-{uses[name]:03d}"
        rows.append(TrainingRow(identity, example.prompt, reply.text, reply.frame, "neutral", name, ""))
    return rows


def training_set(
    questions: Sequence[Question],
    answers: Mapping[str, Answer],
    neutral: Sequence[Neutral],
    material: Material,
    *,
    hold_out: str = "MR4",
    choice: Options | None = None,
    limit: int | None = None,
    share: float = 0.4,
    seed: int = 0,
) -> TrainingSet:
    """Make the fine-tuning set.

    Parameters
    ----------
    questions
        Sources and mutants.
    answers
        Of the model before mitigation, by id; all must be there.
    neutral
        All neutral questions; the half for training is used. Where they are fewer than the biased ones, they come again
        in other frames, and a set that even then cannot be made of different examples is refused.
    material
        Groups and properties.
    hold_out
        The relation kept out, or a chain; empty = none.
    choice
        The form of the options where the re-test weighs options: every second example then has its options behind it.
    limit
        Biased questions at most, for a short training; a source stays with all its rewordings, the categories take
        turns. None = all.
    share
        Of the keys of each category that is held out.
    seed
        Of the split, the answers and the order.

    Raises
    ------
    UserError
        If an answer is missing, the relation is none of the questions', no biased answer is there to mend, or the
        neutral questions do not suffice.
    """
    if missing := [row.id for row in questions if row.id not in answers]:
        raise UserError(f"{len(missing)} of {len(questions)} questions have no answer, the first is {missing[0]}")
    relations = dict.fromkeys(row.relation for row in questions)
    if hold_out and not any(holds(relation, hold_out) for relation in relations):
        raise UserError(f"--hold-out {hold_out!r}: not among the questions' relations {', '.join(relations)}: name one")
    held = split_keys(questions, share, seed)
    biased = _limited(_biased(questions, answers, held, hold_out), limit, seed)
    if not biased:
        raise UserError(
            "answers: no biased answer outside of what is held out, so there is nothing to mend: ask more questions, "
            "or leave the mitigation out"
        )
    rows = _biased_rows(biased, material, choice, generator(seed, "replies"))
    examples = _neutral_examples(neutral, len(rows), choice, seed)
    uses = Counter(example.neutral.id for example in examples)
    rows += _neutral_rows(examples)
    order = generator(seed, "order").permutation(len(rows))
    held_out = HeldOut(hold_out, held, frozenset(row.id for row in biased), frozenset(uses))
    return TrainingSet(tuple(rows[at] for at in order), held_out, len(biased), len(uses), max(uses.values()))


def write_training_set(folder: Path, found: TrainingSet) -> None:
    """Write ``train.jsonl`` and ``held_out.json``, atomically."""
    held = found.held_out
    write_jsonl(folder / "train.jsonl", (row.as_split_row() for row in found.rows))
    write_json(
        folder / "held_out.json",
        {"relation": held.relation, **{name: sorted(getattr(held, name)) for name in PARTS}},
    )
