"""The numbers of a run as tidy tables: model x relation, category x relation.

One row is one relation of one subject, over all categories or within one; relation ``all`` pools the source questions
and all their rewordings. A mitigated model is judged on combinations of a pair and a property (keys) that its
training did not hold. What cannot be had is empty, never 0.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from refbias.metamorphic.answers import ALL, Answer, Cell, pooled, summarise
from refbias.metamorphic.held_out import holds, key_of
from refbias.metamorphic.questions import Question
from refbias.metamorphic.relations import FLIP
from refbias.metamorphic.results import MITIGATED, Asked, Run
from refbias.metamorphic.statistics import Resiliency

Rows = Sequence[tuple[Question, Answer]]
SUBJECT = ("model", "subject", "reading")
COLUMNS = [
    *SUBJECT,
    "questions",
    "category",
    "relation",
    "n",
    "n_biased",
    "n_unusable",
    "unusable_share",
    "resiliency",
    "ci_low",
    "ci_high",
    "cluster_low",
    "cluster_high",
    "n_pairs",
    "hidden",
    "vanished",
    "both_biased",
    "flipped",
    "incoherent",
    "coherent",
    "mcnemar_p",
    "mcnemar_holm",
    "mcnemar_bh",
    "chi2",
    "chi2_p",
    "chi2_yates",
    "chi2_yates_p",
    "fisher_p",
    "apt_test",
    "apt_p",
    "apt_holm",
    "cramers_v",
    "note",
]
"""Columns of ``model_relation.csv`` and ``category_relation.csv``.

n
    Usable answers.
n_unusable
    Answers labelled UNSURE or EMPTY: they leave numerator and denominator of `resiliency`.
resiliency
    Per cent; `ci_low` and `ci_high` are Wilson bounds, which take answers as independent; `cluster_low` and
    `cluster_high` draw whole source questions. Of the relation ``all``, where a question stands in several wordings,
    the latter are the apt ones, and the ones in print.
n_pairs to flipped
    Pairs of source and rewording usable on both sides: hidden bias (unbiased, then biased), vanished, biased both
    times, and of these the ones that pick the other group.
incoherent, coherent
    Under MR5, alone or in a chain, what `both_biased` falls into: the same group for both poles of the property
    (incoherent), opposite groups (a coherent stereotype, the pairs `flipped`). Empty for other relations.
mcnemar_p
    Exact; `mcnemar_holm` and `mcnemar_bh` are adjusted over the relations of a subject (over its relations and
    categories in the table by category).
chi2 to apt_p
    The two-by-two table with and without Yates' correction, Fisher's exact test, and which of the two the counts allow.
"""


def settled(asked: Asked, run: Run) -> tuple[str, Rows]:
    """Return on which questions a subject is judged, in a word and as rows.

    A mitigated model only on held-out combinations of a pair and a property; every subject only on sources that it was
    asked, with their rewordings.
    """
    rows, word = list(asked.rows), ALL
    held = run.held_out.get(asked.model)
    if asked.subject == MITIGATED and held is not None:
        rows, word = [row for row in rows if key_of(row[0]) in held.keys], "held_out_keys"
    present = {question.id for question, _ in rows}
    return word, [row for row in rows if row[0].source_id in present]


def _score(score: Resiliency) -> dict[str, Any]:
    return {
        "n": score.n,
        "n_biased": score.n_biased,
        "n_unusable": score.n_unusable,
        "unusable_share": score.unusable_share,
        "resiliency": score.value,
        "ci_low": score.low,
        "ci_high": score.high,
        "cluster_low": score.cluster_low,
        "cluster_high": score.cluster_high,
    }


def _cell(cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {"category": cell.category, "relation": cell.relation, **_score(cell.resiliency), "note": ""}
    if cell.pairs is not None and cell.test is not None:
        pairs, test = cell.pairs, cell.test
        row |= {name: getattr(pairs, name) for name in ("hidden", "vanished", "both_biased", "flipped", "mcnemar_p")}
        if holds(cell.relation, FLIP):
            row |= {"incoherent": pairs.both_biased - pairs.flipped, "coherent": pairs.flipped}
        row |= {"n_pairs": pairs.n, "mcnemar_holm": cell.mcnemar_holm, "mcnemar_bh": cell.mcnemar_bh}
        row |= {"chi2": test.chi2, "chi2_p": test.p, "chi2_yates": test.chi2_yates, "chi2_yates_p": test.p_yates}
        row |= {"fisher_p": test.fisher_p, "apt_test": test.apt, "apt_p": test.apt_p, "apt_holm": cell.chi2_holm}
        row |= {"cramers_v": test.cramers_v, "note": f"no test: {test.reason}" if test.reason else ""}
    return row


def _subject(asked: Asked, run: Run, seed: int, n_resamples: int) -> list[dict[str, Any]]:
    word, rows = settled(asked, run)
    if not rows:
        return []
    head = {"model": asked.model, "subject": asked.subject, "reading": asked.reading, "questions": word}
    questions = [question for question, _ in rows]
    cells = [
        cell
        for sum_up in (pooled, summarise)
        for cell in sum_up(questions, asked.answers, seed=seed, n_resamples=n_resamples)
    ]
    return [{**head, **_cell(cell)} for cell in cells]


def relations(run: Run, *, seed: int = 0, n_resamples: int = 2000) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compute both tables.

    Parameters
    ----------
    run
        The answers.
    seed, n_resamples
        Of the bootstrap over source questions.

    Returns
    -------
    model_relation, category_relation
        `COLUMNS`; the first has the rows with category ``all``.
    """
    rows = [row for asked in run.asked for row in _subject(asked, run, seed, n_resamples)]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    whole = frame["category"] == ALL
    return frame[whole].reset_index(drop=True), frame[~whole].reset_index(drop=True)
