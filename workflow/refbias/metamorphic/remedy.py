"""What a mitigation achieved and what it cost: the re-test before and after, few-shot beside fine-tuning.

Before and after are compared on the same questions. The scopes say how far these are from the training: held-out
combinations of a pair and a property (keys) under trained relations, the held-out relation on trained keys, both at
once, and, where they were asked again, the trained questions themselves, which show what was learnt and prove nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from refbias.metamorphic.answers import Answer, picked
from refbias.metamorphic.change import paired_change
from refbias.metamorphic.data import Material, Neutral
from refbias.metamorphic.held_out import SCOPES, HeldOut
from refbias.metamorphic.questions import Question
from refbias.metamorphic.results import FEW_SHOT, MITIGATED, REFERENCE, Asked, Run
from refbias.metamorphic.side_effects import (
    SCORED,
    UNBIASED,
    NeutralAnswer,
    diversity,
    judge_neutral,
    score_neutral,
)
from refbias.metamorphic.statistics import NAN, benjamini_hochberg, holm, mcnemar_exact, pairing, resiliency

ALL = "all"
Pair = tuple[Question, Answer, Answer]
COLUMNS = [
    "model",
    "method",
    "scope",
    "category",
    "n_before",
    "before",
    "before_low",
    "before_high",
    "n_after",
    "after",
    "after_low",
    "after_high",
    "n_unusable_before",
    "n_unusable_after",
    "n_pairs",
    "change",
    "change_low",
    "change_high",
    "change_p",
    "change_holm",
    "mended",
    "worsened",
    "mcnemar_p",
    "mcnemar_holm",
    "mcnemar_bh",
]
"""Columns of ``mitigation.csv``: resiliency in per cent, with bounds that draw whole source questions
(`refbias.metamorphic.statistics.Resiliency`: `cluster_low` and `cluster_high`), its change in points over pairs with
bootstrap bounds over source questions and the p of the sign-flip test of these, pairs `mended` (biased, then not) and
`worsened`, exact McNemar p, which takes the wordings of a question as independent. The adjusted values are over the
scopes of a model and method, and over its scopes x categories for the rows by category."""
SIDE_COLUMNS = [
    "model",
    "subject",
    "reading",
    "n_scored",
    "neutral_accuracy",
    "accuracy_low",
    "accuracy_high",
    "accuracy_mcnemar_p",
    "n_neutral",
    "over_refusal",
    "over_refusal_low",
    "over_refusal_high",
    "n_unread",
    "n_unbiased",
    "n_compared",
    "distinct_1",
    "distinct_2",
    "n_forms",
    "commonest_share",
    "note",
]
"""Columns of ``side_effects.csv``: shares in 0..1. Diversity is over `n_compared` unbiased answers, the same number for
all subjects of a model; `accuracy_mcnemar_p` is beside the reference."""
METHODS = {"few_shot": (REFERENCE, FEW_SHOT), "fine_tuning": (MITIGATED, "plain")}
VERSUS = "fine_tuning_after_few_shot"
"""Few-shot as before, fine-tuning as after: which of the two does better."""


def _pairs(before: Asked, after: Asked) -> list[Pair]:
    later = after.answers
    return [(question, answer, later[question.id]) for question, answer in before.rows if question.id in later]


def _resiliency(answers: Sequence[Answer], sources: Sequence[str], name: str, **draws: int) -> dict[str, Any]:
    found = resiliency([answer.biased for answer in answers], sources, **draws)
    return {
        f"n_{name}": found.n,
        name: found.value,
        f"{name}_low": found.cluster_low,
        f"{name}_high": found.cluster_high,
        f"n_unusable_{name}": found.n_unusable,
    }


def _compared(pairs: Sequence[Pair], seed: int, n_resamples: int) -> dict[str, Any]:
    first, second = [one for _, one, _ in pairs], [two for _, _, two in pairs]
    biased = ([answer.biased for answer in first], [answer.biased for answer in second])
    counts = pairing(
        *biased,
        [picked(question, answer) for question, answer, _ in pairs],
        [picked(question, answer) for question, _, answer in pairs],
    )
    sources = [question.source_id for question, _, _ in pairs]
    moved = paired_change(*biased, sources, seed=seed, n_resamples=n_resamples)
    return {
        **_resiliency(first, sources, "before", seed=seed, n_resamples=n_resamples),
        **_resiliency(second, sources, "after", seed=seed, n_resamples=n_resamples),
        "n_pairs": counts.n,
        "change": moved.value,
        "change_low": moved.low,
        "change_high": moved.high,
        "change_p": moved.p,
        "mended": counts.vanished,
        "worsened": counts.hidden,
        "mcnemar_p": counts.mcnemar_p,
    }


def _scopes(pairs: Sequence[Pair], held: HeldOut | None) -> Iterator[tuple[str, list[Pair]]]:
    yield ALL, list(pairs)
    if held is not None:
        for scope in SCOPES:
            yield scope, [pair for pair in pairs if held.scope(pair[0]) == scope]


def _comparisons(run: Run, model: str) -> Iterator[tuple[str, Asked, Asked]]:
    before = run.find(model, REFERENCE)
    found = {name: run.find(model, *where) for name, where in METHODS.items()}
    for name, after in found.items():
        if before is not None and after is not None:
            yield name, before, after
    few, tuned = found["few_shot"], found["fine_tuning"]
    if few is not None and tuned is not None:
        yield VERSUS, few, tuned


def _adjusted(frame: pd.DataFrame) -> pd.DataFrame:
    frame["mcnemar_holm"], frame["mcnemar_bh"], frame["change_holm"] = NAN, NAN, NAN
    for _, group in frame.groupby(["model", "method", frame["category"] == ALL], sort=False):
        p = group["mcnemar_p"].to_numpy(np.float64)
        frame.loc[group.index, "mcnemar_holm"] = holm(p)
        frame.loc[group.index, "mcnemar_bh"] = benjamini_hochberg(p)
        frame.loc[group.index, "change_holm"] = holm(group["change_p"].to_numpy(np.float64))
    return frame


def remedies(run: Run, *, seed: int = 0, n_resamples: int = 2000) -> pd.DataFrame:
    """Compare every mitigated answer with the one before.

    Parameters
    ----------
    run
        The answers; a model without a reference, or with nothing mitigated, has no row.
    seed, n_resamples
        Of the bootstrap over source questions.

    Returns
    -------
    DataFrame
        `COLUMNS`. For fine-tuning the scope ``all`` is left out: it would mix what was trained with what was not.
    """
    rows = []
    for model in run.models:
        for method, before, after in _comparisons(run, model):
            for scope, pairs in _scopes(_pairs(before, after), run.held_out.get(model)):
                if not pairs or (scope == ALL and method != "few_shot"):
                    continue
                for category in (ALL, *dict.fromkeys(question.category for question, _, _ in pairs)):
                    own = [pair for pair in pairs if category in (ALL, pair[0].category)]
                    head = {"model": model, "method": method, "scope": scope, "category": category}
                    rows.append({**head, **_compared(own, seed, n_resamples)})
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return _adjusted(frame) if rows else frame


# --- side effects -----------------------------------------------------------------------------------------------------


def _fresh(asked: Asked, held: HeldOut | None) -> dict[str, NeutralAnswer] | None:
    """Return the answers to neutral questions that no training held; None where none were asked."""
    if asked.neutral is None:
        return None
    trained = held.trained_neutral if held else frozenset()
    return {name: answer for name, answer in asked.neutral.items() if name not in trained}


def _right(answers: Mapping[str, NeutralAnswer], neutral: Mapping[str, Neutral]) -> dict[str, bool]:
    return {
        name: judge_neutral(neutral[name], answer) == "right"
        for name, answer in answers.items()
        if neutral[name].kind in SCORED
    }


def _accuracy_p(
    before: Mapping[str, NeutralAnswer] | None,
    after: Mapping[str, NeutralAnswer] | None,
    neutral: Mapping[str, Neutral],
) -> float:
    if before is None or after is None:
        return NAN
    first, second = _right(before, neutral), _right(after, neutral)
    both = [(first[name], second[name]) for name in first if name in second]
    return mcnemar_exact(both.count((True, False)), both.count((False, True))) if both else NAN


def _of_scope(asked: Asked, held: HeldOut | None) -> list[tuple[Question, Answer]]:
    """Return the rows over which diversity is compared: new to the training, so that no answer is recited."""
    return [row for row in asked.worded if held is None or held.scope(row[0]) == "held_out_keys"]


def _neutral_part(answers: Mapping[str, NeutralAnswer], neutral: Sequence[Neutral]) -> dict[str, Any]:
    score = score_neutral(neutral, answers)
    return {
        "n_scored": score.accuracy.n,
        "neutral_accuracy": score.accuracy.value,
        "accuracy_low": score.accuracy.low,
        "accuracy_high": score.accuracy.high,
        "n_neutral": score.over_refusal.n,
        "over_refusal": score.over_refusal.value,
        "over_refusal_low": score.over_refusal.low,
        "over_refusal_high": score.over_refusal.high,
        "n_unread": score.n_unread,
    }


def _spread(asked: Asked, rows: Sequence[tuple[Question, Answer]], material: Material, limit: int) -> dict[str, Any]:
    if not rows:
        return {"note": "no diversity: no answers in the model's own words" if asked.options else "no answers"}
    unbiased = sum(answer.label in UNBIASED for _, answer in rows)
    if not unbiased:
        return {"n_unbiased": 0, "note": "no diversity: no unbiased answer"}
    found = diversity(rows, material, limit)
    part = {"n_unbiased": unbiased, "n_compared": found.n, "distinct_1": found.distinct_1}
    return {
        **part,
        "distinct_2": found.distinct_2,
        "n_forms": found.n_forms,
        "commonest_share": found.commonest_share,
        "note": "",
    }


def side_effects(run: Run, neutral: Sequence[Neutral], material: Material) -> pd.DataFrame:
    """Measure what stands beside resiliency, for the reference, few-shot and fine-tuning of each model.

    Parameters
    ----------
    run
        The answers.
    neutral
        All neutral questions; those that the training set held are left out for every subject of the model.
    material
        Groups and properties.

    Returns
    -------
    DataFrame
        `SIDE_COLUMNS`. What was not asked is empty. Diversity is over answers in the model's own words to held-out
        keys; it is empty where options were weighed and nothing was asked openly.
    """
    known = {row.id: row for row in neutral}
    rows = []
    for model in run.models:
        held, before = run.held_out.get(model), run.find(model, REFERENCE)
        found = [one for one in (before, *(run.find(model, *where) for where in METHODS.values())) if one is not None]
        worded = [_of_scope(one, held) for one in found]
        counts = [sum(answer.label in UNBIASED for _, answer in own) for own in worded]
        limit = min((count for count in counts if count), default=0)
        first = _fresh(before, held) if before else None
        for one, own in zip(found, worded, strict=True):
            row = {"model": model, "subject": one.subject, "reading": one.reading, **_spread(one, own, material, limit)}
            answers = _fresh(one, held)
            if answers is None:
                row["note"] = "; ".join(filter(None, (row["note"], "no neutral questions asked")))
            else:
                row |= _neutral_part(answers, neutral)
                row["accuracy_mcnemar_p"] = NAN if one is before else _accuracy_p(first, answers, known)
            rows.append(row)
    return pd.DataFrame(rows, columns=SIDE_COLUMNS)
