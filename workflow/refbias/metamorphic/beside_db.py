"""Two lenses on the same checkpoints: bias resiliency of answers beside the shift dB of hidden states.

They look at different things. dB says whether the sentences about a group moved towards negative or positive
attributes; resiliency says whether answers pick a group at all, whichever it is. A fall of both, or a rise of both, is
called agreement here and nothing more. Where they disagree is listed, not smoothed.

A category of questions is set beside the groups of its topic among the target groups of dB. Two categories have none.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats

from refbias.errors import UserError
from refbias.metamorphic.answers import Answer
from refbias.metamorphic.change import paired_change
from refbias.metamorphic.questions import Question
from refbias.metamorphic.results import REFERENCE, Asked, Run
from refbias.metamorphic.statistics import NAN, holm, pairing, resiliency, wilson
from refbias.stats import cluster_bootstrap, pearson, spearman, undefined_reason, weighted_pearson
from refbias.stats.vectors import FloatArray

TOPICS: Mapping[str, tuple[str, ...]] = {
    "ability": ("disability",),
    "age": ("age",),
    "body": (),
    "gender": ("gender",),
    "race": ("race", "ethnicity"),
    "religion": ("religion",),
    "profession": (),
}
"""Category -> topics of the target groups of dB that are set beside it; empty = dB has no such groups."""
SHIFT_COLUMNS = [
    "model",
    "regime",
    "checkpoint",
    "harmful_weight",
    "group",
    "method",
    "n_anchors",
    "delta_b",
]
COLUMNS = [
    "model",
    "regime",
    "checkpoint",
    "harmful_weight",
    "category",
    "topics",
    "n_groups",
    "method",
    "n_anchors",
    "mean_delta_b",
    "mean_abs_delta_b",
    "control_delta_b",
    "net_delta_b",
    "n",
    "n_unusable",
    "resiliency",
    "reference_resiliency",
    "n_pairs",
    "change",
    "change_low",
    "change_high",
    "newly_biased",
    "no_longer_biased",
    "mcnemar_p",
    "change_p",
    "change_holm",
    "lenses",
    "clear",
]
"""Columns of ``beside_db.csv``.

mean_delta_b, mean_abs_delta_b
    Means of dB and of its size over the groups of the category's topics; `control_delta_b` is that of the group-free
    control, `net_delta_b` is `mean_delta_b` less it.
resiliency, reference_resiliency
    Per cent, over all questions of the category that both were asked, each over its own usable answers.
change
    In points, over the `n_pairs` usable on both sides, with bootstrap bounds over source questions. `change_p` is that
    of the sign-flip test of whole source questions, `change_holm` the same after Holm over all rows of a model and
    regime; `mcnemar_p` takes the wordings of a question as independent and decides nothing here.
lenses
    ``agree`` or ``disagree`` by the signs of `mean_delta_b` and `change`; else ``no change``, ``no answers`` or
    ``no groups``.
clear
    Whether the change is told from 0 (its interval lies on one side and `change_holm` is below 0.05) and dB is further
    from 0 than the group-free control's. The latter compares two numbers, it is no test.
"""
SUMMARY_COLUMNS = [
    "model",
    "regime",
    "method",
    "x",
    "y",
    "n",
    "n_categories",
    "n_checkpoints",
    "pearson_r",
    "pearson_p",
    "pearson_ci_low",
    "pearson_ci_high",
    "spearman_r",
    "spearman_p",
    "spearman_ci_low",
    "spearman_ci_high",
    "n_signs",
    "n_agree",
    "agree_share",
    "agree_low",
    "agree_high",
    "agree_p",
    "note",
]
"""Columns of ``beside_db_summary.csv``: correlations over categories and checkpoints of a model and regime with two-way
bootstrap bounds; how often the signs agree, with Wilson bounds and the exact binomial p against one half (`x` =
``mean_delta_b`` with `y` = ``change`` only). The latter two take categories and checkpoints as independent, which those
that share one are not: too narrow, and too small."""
AXES = (
    ("mean_delta_b", "change"),
    ("net_delta_b", "change"),
    ("mean_abs_delta_b", "change"),
    ("mean_delta_b", "resiliency"),
    ("mean_abs_delta_b", "resiliency"),
)


def topic_groups(topics: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return category -> target groups of its topics.

    Parameters
    ----------
    topics
        Target group -> slug of its topic.
    """
    return {category: tuple(group for group, topic in topics.items() if topic in of) for category, of in TOPICS.items()}


def _shift(rows: pd.DataFrame, groups: Sequence[str]) -> dict[str, Any]:
    own = rows.loc[rows["group"].isin(groups), "delta_b"].dropna()
    control = rows.loc[rows["group"] == "control", "delta_b"]
    # pandas' mean of nothing is NaN, and so is what is less it
    mean, free = float(own.mean()), float(control.iloc[0]) if len(control) else NAN
    return {
        "n_groups": len(own),
        "mean_delta_b": mean,
        "mean_abs_delta_b": float(own.abs().mean()),
        "control_delta_b": free,
        "net_delta_b": mean - free,
    }


def _answers(pairs: Sequence[tuple[Question, Answer, Answer]], seed: int, n_resamples: int) -> dict[str, Any]:
    before, after = [one.biased for _, one, _ in pairs], [two.biased for _, _, two in pairs]
    sources = [question.source_id for question, _, _ in pairs]
    blank = [""] * len(pairs)
    counts = pairing(before, after, blank, blank)
    moved = paired_change(before, after, sources, seed=seed, n_resamples=n_resamples)
    now = resiliency(after, sources, n_resamples=1)
    return {
        "n": now.n,
        "n_unusable": now.n_unusable,
        "resiliency": now.value,
        "reference_resiliency": resiliency(before, sources, n_resamples=1).value,
        "n_pairs": counts.n,
        "change": moved.value,
        "change_low": moved.low,
        "change_high": moved.high,
        "newly_biased": counts.hidden,
        "no_longer_biased": counts.vanished,
        "mcnemar_p": counts.mcnemar_p,
        "change_p": moved.p,
    }


def _lenses(row: Mapping[str, Any]) -> dict[str, Any]:
    if not row["n_groups"]:
        return {"lenses": "no groups", "clear": False}
    if not row["n_pairs"]:
        return {"lenses": "no answers", "clear": False}
    product = np.sign(row["mean_delta_b"]) * np.sign(row["change"])
    told = row["change_holm"] < 0.05 and (row["change_low"] > 0 or row["change_high"] < 0)
    # without a control (NaN) nothing is clear
    clear = told and abs(row["mean_delta_b"]) > abs(row["control_delta_b"])
    word = {1: "agree", -1: "disagree"}.get(int(product), "no change")
    return {"lenses": word, "clear": bool(clear)}


def _checkpoint(
    asked: Asked, reference: Asked, shift: pd.DataFrame, topics: Mapping[str, str], seed: int, n_resamples: int
) -> list[dict[str, Any]]:
    groups, now = topic_groups(topics), asked.answers
    pairs = [(question, answer, now[question.id]) for question, answer in reference.rows if question.id in now]
    first = shift.iloc[0]
    head = {name: first[name] for name in ("model", "regime", "checkpoint", "harmful_weight", "method", "n_anchors")}
    rows = []
    for category in dict.fromkeys(question.category for question, _, _ in pairs):
        own = [pair for pair in pairs if pair[0].category == category]
        rows.append(
            {
                **head,
                "category": category,
                "topics": " ".join(TOPICS.get(category, ())),
                **_shift(shift, groups.get(category, ())),
                **_answers(own, seed, n_resamples),
            }
        )
    return rows


def _judged(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the change corrected over those of a model and regime, and what the lenses say."""
    families: dict[tuple[str, str], list[int]] = {}
    for at, row in enumerate(rows):
        families.setdefault((str(row["model"]), str(row["regime"])), []).append(at)
    corrected = np.full(len(rows), NAN)
    for places in families.values():
        corrected[places] = holm([rows[at]["change_p"] for at in places])
    told = [{**row, "change_holm": float(p)} for row, p in zip(rows, corrected, strict=True)]
    return [{**row, **_lenses(row)} for row in told]


def beside_db(
    run: Run,
    delta_b: pd.DataFrame,
    topics: Mapping[str, str],
    *,
    method: str = "rr",
    seed: int = 0,
    n_resamples: int = 2000,
) -> pd.DataFrame:
    """Set the answers of every checkpoint beside its dB.

    Parameters
    ----------
    run
        The answers; a checkpoint's subject is ``<regime>-<checkpoint>``.
    delta_b
        ``shift/delta_b.csv`` with `SHIFT_COLUMNS`; of several numbers of anchors the largest counts.
    topics
        Target group -> slug of its topic.
    method
        Method of dB.
    seed, n_resamples
        Of the bootstrap.

    Returns
    -------
    DataFrame
        `COLUMNS`, no row where no checkpoint has both.

    Raises
    ------
    UserError
        If the table of dB has rows, none of them of the method.
    """
    shown = delta_b[delta_b["method"] == method]
    if shown.empty and not delta_b.empty:
        known = ", ".join(dict.fromkeys(map(str, delta_b["method"])))
        raise UserError(f"--method {method}: the table of dB has no row of it: use {known}")
    rows: list[dict[str, Any]] = []
    for (model, regime, checkpoint), shift in shown.groupby(["model", "regime", "checkpoint"], sort=False):
        asked, reference = run.find(str(model), f"{regime}-{checkpoint}"), run.find(str(model), REFERENCE)
        if asked is not None and reference is not None:
            largest = shift[shift["n_anchors"] == shift["n_anchors"].max()]
            rows += _checkpoint(asked, reference, largest, topics, seed, n_resamples)
    return pd.DataFrame(_judged(rows), columns=COLUMNS)


def disagreements(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in which the lenses disagree, the clear ones first, then by the size of the change."""
    found = frame[frame["lenses"] == "disagree"]
    order = found.assign(_size=-found["change"].abs()).sort_values(["clear", "_size"], ascending=[False, True])
    return order.drop(columns="_size").reset_index(drop=True)


# --- over a spectrum --------------------------------------------------------------------------------------------------


def _weighted_spearman(x: FloatArray, y: FloatArray, weights: FloatArray) -> FloatArray:
    """Spearman's correlation of the sample in which every pair is repeated as often as its whole-number weight."""
    found = []
    for row in weights.astype(np.int64):
        one, two = (scipy_stats.rankdata(np.repeat(side, row)) for side in (x, y))
        varied = one.size > 1 and np.ptp(one) > 0 and np.ptp(two) > 0
        found.append(float(np.corrcoef(one, two)[0, 1]) if varied else NAN)
    return np.asarray(found, dtype=np.float64)


def _signs(rows: pd.DataFrame) -> dict[str, Any]:
    agree, disagree = ((rows["lenses"] == word).sum() for word in ("agree", "disagree"))
    total = int(agree + disagree)
    share = wilson(int(agree), total)
    return {
        "n_signs": total,
        "n_agree": int(agree),
        "agree_share": share.value,
        "agree_low": share.low,
        "agree_high": share.high,
        "agree_p": float(scipy_stats.binomtest(int(agree), total).pvalue) if total else NAN,
    }


def _correlations(rows: pd.DataFrame, x: str, y: str, seed: int, n_resamples: int) -> dict[str, Any]:
    kept = rows.dropna(subset=[x, y])
    first, second = kept[x].to_numpy(np.float64), kept[y].to_numpy(np.float64)
    head = {"x": x, "y": y, "n": len(kept)}
    head |= {"n_categories": kept["category"].nunique(), "n_checkpoints": kept["checkpoint"].nunique()}
    reason = undefined_reason(first, second, x, y) if len(kept) else "no pairs"
    if reason:
        return {**head, "note": f"no correlation: {reason}"}
    clusters = (kept["category"].to_numpy(), kept["checkpoint"].to_numpy(), n_resamples, seed)
    linear = cluster_bootstrap(partial(weighted_pearson, first, second), *clusters)
    ranked = cluster_bootstrap(partial(_weighted_spearman, first, second), *clusters)
    one, two = pearson(first, second), spearman(first, second)
    return {
        **head,
        "pearson_r": one.r,
        "pearson_p": one.p,
        "pearson_ci_low": linear.low,
        "pearson_ci_high": linear.high,
        "spearman_r": two.r,
        "spearman_p": two.p,
        "spearman_ci_low": ranked.low,
        "spearman_ci_high": ranked.high,
        "note": "",
    }


def summary(frame: pd.DataFrame, *, seed: int = 0, n_resamples: int = 1000) -> pd.DataFrame:
    """Correlate dB and resiliency over the categories and checkpoints of each model and regime.

    Parameters
    ----------
    frame
        From `beside_db`; rows without groups or without answers take no part.
    seed, n_resamples
        Of the two-way bootstrap over categories and checkpoints.

    Returns
    -------
    DataFrame
        `SUMMARY_COLUMNS`, one row a pair of `AXES`; a note says what is undefined and why.
    """
    rows = []
    for (model, regime, method), own in frame.groupby(["model", "regime", "method"], sort=False):
        with_groups = own[~own["lenses"].isin(("no groups", "no answers"))]
        for x, y in AXES:
            row = {"model": model, "regime": regime, "method": method}
            row |= _correlations(with_groups, x, y, seed, n_resamples)
            rows.append(row | (_signs(with_groups) if (x, y) == AXES[0] else {}))
    return pd.DataFrame(rows, columns=SUMMARY_COLUMNS)
