"""A made-up run of the metamorphic lens on disk: a model with planted answers, its mitigation and its spectrum."""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd

from refbias.metamorphic.answers import label_all, write_answers
from refbias.metamorphic.data import load_material, load_neutral
from refbias.metamorphic.held_out import HeldOut, read_held_out
from refbias.metamorphic.mitigation import training_set, write_training_set
from refbias.metamorphic.questions import Question, wording_of, write_questions
from refbias.metamorphic.relations import DEFAULT, parse_chains, with_mutants
from refbias.metamorphic.replies import every_reply
from refbias.metamorphic.sampling import sample_sources
from refbias.stimuli import load_groups

MATERIAL, NEUTRAL = load_material(), load_neutral()
QUESTIONS = with_mutants(sample_sources(MATERIAL, 10, 5), parse_chains(DEFAULT), 5)
WEIGHTS = (0.0, 0.3, 0.7, 1.0)
Policy = Callable[[Question], str]


def first(question: Question) -> str:
    return f"{MATERIAL.group(question.group_a).plural}."


def lot(*parts: str) -> float:
    """A number in [0, 1) that depends on the words alone."""
    return int(hashlib.sha256("|".join(parts).encode()).hexdigest()[:8], 16) / 2**32


def leaning(share: Callable[[Question], float], name: str = "") -> Policy:
    """Answers the first group in a share of the questions, else something unbiased in one of many words."""

    def policy(question: Question) -> str:
        if lot(name, question.id) < share(question):
            return first(question)
        replies = every_reply(wording_of(question, MATERIAL))
        return replies[int(lot("reply", name, question.id) * len(replies))].text

    return policy


def write_subject(
    folder: Path, policy: Policy, questions: Iterable[Question], neutral: Callable[[str, str], str] | None = None
) -> None:
    rows = list(questions)
    answers = label_all(rows, {row.id: policy(row) for row in rows}, MATERIAL)
    write_answers(folder / "answers.jsonl", answers)
    raw = "".join(json.dumps({"id": row.id, "raw": row.raw, "finished": True}) + "\n" for row in answers)
    (folder / "raw.jsonl").write_text(raw, encoding="utf-8")
    if neutral is not None:
        (folder / "neutral").mkdir()
        lines = [json.dumps({"id": row.id, "raw": neutral(row.id, row.answer), "finished": True}) for row in NEUTRAL]
        (folder / "neutral" / "raw.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_mitigation(root: Path, model: str = "tiny") -> HeldOut:
    from refbias.metamorphic.answers import read_answers

    answers = read_answers(root / "answers" / model / "reference" / "plain" / "answers.jsonl")
    folder = root / "mitigation" / model / "training_set"
    folder.mkdir(parents=True)
    write_training_set(folder, training_set(QUESTIONS, answers, NEUTRAL, MATERIAL, seed=3))
    return read_held_out(folder / "held_out.json")


def write_run(root: Path, model: str = "tiny") -> None:
    """Write questions, reference, few-shot, mitigation and a spectrum of four checkpoints."""
    write_questions(root / "questions" / "questions.jsonl", QUESTIONS)
    answers = root / "answers" / model
    harder = {"source": 0.35, "MR4": 0.65}
    write_subject(
        answers / "reference" / "plain",
        leaning(lambda question: harder.get(question.relation, 0.45)),
        QUESTIONS,
        lambda name, answer: answer if lot("neutral", name) < 0.8 else "Perhaps.",
    )
    write_subject(
        answers / "reference" / "few_shot",
        leaning(lambda question: 0.3, "few"),
        QUESTIONS,
        lambda name, answer: answer if lot("few", name) < 0.75 else "Neither.",
    )
    held = write_mitigation(root, model)
    write_subject(
        answers / "mitigated" / "plain",
        leaning(lambda question: 0.5 if "relation" in held.scope(question) else 0.08, "mitigated"),
        [question for question in QUESTIONS if held.scope(question) != "not_trained"],
        lambda name, answer: "Neither group." if lot("tuned", name) < 0.3 else answer,
    )
    categories = list(dict.fromkeys(question.category for question in QUESTIONS))
    for weight in WEIGHTS:
        write_subject(
            answers / f"full-h{round(100 * weight):03d}" / "plain",
            leaning(lambda question, w=weight: 0.4 + w * (categories.index(question.category) - 2) / 8, f"h{weight}"),
            [question for question in QUESTIONS if question.relation in ("source", "MR1", "MR4")],
        )


def delta_b(model: str = "tiny") -> pd.DataFrame:
    """dB of every group that falls with the weight, in some topics more than in others."""
    slopes = {"disability": 0.2, "age": 0.05, "gender": -0.1, "race": -0.2, "ethnicity": -0.3, "religion": -0.4}
    rows = []
    for weight in WEIGHTS:
        for method, scale in (("rr", 1.0), ("seat", 0.1)):
            for anchors in (0,) if method == "seat" else (100, 250):
                groups = [(group.id, slopes.get(group.topic, 0.0)) for group in load_groups()]
                for group, slope in [*groups, ("control", 0.02)]:
                    value = scale * (slope * weight + 0.05 * (lot(group, str(weight)) - 0.5)) * (1 + anchors / 1000)
                    rows.append(
                        {
                            "model": model,
                            "regime": "full",
                            "checkpoint": f"h{round(100 * weight):03d}",
                            "harmful_weight": weight,
                            "group": group,
                            "method": method,
                            "n_anchors": anchors,
                            "delta_b": value,
                        }
                    )
    return pd.DataFrame(rows)
