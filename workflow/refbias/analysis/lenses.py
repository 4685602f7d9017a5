"""Three lenses on one model, on shared demographic axes: dB, bias resiliency, competence contrasts.

They measure different things, and none is a yardstick for another: dB how far sentences about a group moved towards
negative or positive ones, resiliency how often answers pick no group, competence whether an attribute of the user moves
an expertise score or the answer. An axis only says that they speak of the same trait of people. Which topic, category
and family stands on which axis is written down here; what has no counterpart is named, not filled in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from refbias.stats import cluster_bootstrap, pearson, spearman, undefined_reason, weighted_pearson
from refbias.stats.proportions import wilson

CONTROL = "control"
# relation of the cells that hold source questions and all their rewordings together
POOLED = "all"
LENSES = ("dB", "resiliency", "competence")
# draws from two clusters vary too little for an interval
LEAST_CLUSTERS = 3


@dataclass(frozen=True)
class Axis:
    """A trait of people, and where each lens speaks of it: topics of dB, categories of questions, families of users."""

    name: str
    topics: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    note: str = ""


AXES = (
    Axis("gender", ("gender",), ("gender",), ("gender",)),
    Axis("race and ethnicity", ("race", "ethnicity"), ("race",), ("race",)),
    Axis("income and status", ("socioeconomic_status",), (), ("income",)),
    Axis("age", ("age",), ("age",), (), "adult against child is a relevance check of the competence lens, not a bias"),
    Axis("religion", ("religion",), ("religion",)),
    Axis("disability", ("disability",), ("ability",)),
    Axis("sexual orientation", ("sexual_orientation",)),
    Axis("nationality", ("nationality",)),
    Axis("body", (), ("body",)),
    Axis("profession", (), ("profession",)),
)
COLUMNS = (
    "axis",
    "n_groups",
    "mean_delta_b",
    "mean_abs_delta_b",
    "control_delta_b",
    "mean_abs_net_delta_b",
    "largest_group",
    "largest_delta_b",
    "n_answers",
    "n_unusable",
    "resiliency",
    "resiliency_low",
    "resiliency_high",
    "n_contrasts",
    "mean_abs_E",
    "contrast_id",
    "E",
    "E_low",
    "E_high",
    "E_p_holm",
    "L",
    "L_low",
    "L_high",
    "outcome",
    "note",
)
"""Columns of `side_by_side`.

mean_delta_b, mean_abs_delta_b, mean_abs_net_delta_b
    Means over the groups of the axis: of dB, of its size, and of the size of dB less that of the group-free control
    (`control_delta_b`; missing without it).
resiliency
    Per cent over source questions and rewordings together, with bounds that draw whole source questions; these are
    missing where the summary of the answers does not hold them.
n_contrasts, mean_abs_E
    Irrelevant contrasts of the axis, and the mean size of their differences of E: no contrast is picked.
contrast_id, E to E_p_holm
    The contrast with the largest of them. Its interval is not adjusted for that choice; its p is, over all contrasts of
    the measure (Holm).
L to outcome
    Of the same contrast.
"""
# what is related over a spectrum: two columns of the rows, each growing with what its lens calls bias or movement
PAIRS = (
    ("mean_abs_delta_b", "biased_share"),
    ("mean_abs_net_delta_b", "biased_share"),
    ("mean_abs_delta_b", "mean_abs_E"),
    ("mean_abs_net_delta_b", "mean_abs_E"),
    ("biased_share", "mean_abs_E"),
)


@dataclass(frozen=True)
class Lenses:
    """What the lenses say of one subject; None where a lens was not held to it.

    Attributes
    ----------
    shifts
        Columns group, topic, delta_b; the group-free control among them as ``control``.
    cells
        Rows of the metamorphic ``summary.json``.
    effects, verdicts
        Of the competence lens: ``effects.csv`` and the rows of ``verdicts.json``.
    """

    shifts: pd.DataFrame | None = None
    cells: Sequence[Mapping[str, Any]] | None = None
    effects: pd.DataFrame | None = None
    verdicts: Sequence[Mapping[str, Any]] = ()

    @property
    def any(self) -> bool:
        """Whether any lens was held to the subject."""
        return self.shifts is not None or self.cells is not None or self.effects is not None


def _shift(shifts: pd.DataFrame | None, axis: Axis) -> dict[str, Any]:
    if shifts is None:
        return {}
    rows = shifts[shifts["topic"].isin(axis.topics) & (shifts["group"] != CONTROL)].dropna(subset=["delta_b"])
    if rows.empty:
        return {}
    largest = rows.iloc[int(rows["delta_b"].abs().to_numpy().argmax())]
    control = shifts.loc[shifts["group"] == CONTROL, "delta_b"].dropna()
    net: dict[str, float] = {}
    if len(control):
        free = float(control.iloc[0])
        net = {"control_delta_b": free, "mean_abs_net_delta_b": float((rows["delta_b"] - free).abs().mean())}
    return {
        "n_groups": len(rows),
        "mean_delta_b": float(rows["delta_b"].mean()),
        "mean_abs_delta_b": float(rows["delta_b"].abs().mean()),
        **net,
        "largest_group": str(largest["group"]),
        "largest_delta_b": float(largest["delta_b"]),
    }


def _resiliency(cells: Sequence[Mapping[str, Any]] | None, axis: Axis) -> dict[str, Any]:
    own = [cell for cell in cells or () if cell["category"] in axis.categories]
    whole = [cell["resiliency"] for cell in own if cell["relation"] == POOLED]
    parts = [cell["resiliency"] for cell in own if cell["relation"] != POOLED]
    if not parts:
        return {}
    n, biased, unusable = (sum(int(part[key]) for part in parts) for key in ("n", "n_biased", "n_unusable"))
    counts: dict[str, Any] = {"n_answers": n, "n_unusable": unusable}
    if not n:
        return counts
    counts |= {"resiliency": 100 * (n - biased) / n}
    # the wordings of a question are no further questions: relations cannot be pooled from their counts alone
    if len(whole) == 1:
        counts |= {"resiliency_low": whole[0]["cluster_low"], "resiliency_high": whole[0]["cluster_high"]}
    return counts


def _competence(effects: pd.DataFrame | None, verdicts: Sequence[Mapping[str, Any]], axis: Axis) -> dict[str, Any]:
    if effects is None:
        return {}
    own = effects[effects["family"].isin(axis.families) & (effects["role"] == "irrelevant")]
    scores = own[own["measure"] == "E_normalised"].dropna(subset=["mean"])
    if scores.empty:
        return {}
    score = scores.iloc[int(scores["mean"].abs().to_numpy().argmax())]
    name = str(score["contrast_id"])
    found = {
        "n_contrasts": len(scores),
        "mean_abs_E": float(scores["mean"].abs().mean()),
        "contrast_id": name,
        "E": score["mean"],
        "E_low": score["ci_low"],
        "E_high": score["ci_high"],
        "E_p_holm": score["p_holm"],
    }
    for _, row in own[(own["measure"] == "L") & (own["contrast_id"] == name)].iterrows():
        found |= {"L": row["mean"], "L_low": row["ci_low"], "L_high": row["ci_high"]}
    outcome = next((str(row["outcome"]) for row in verdicts if row["contrast_id"] == name), None)
    return {**found, "outcome": outcome}


def side_by_side(lenses: Lenses, axes: Sequence[Axis] = AXES) -> pd.DataFrame:
    """Return one row an axis with the columns of `COLUMNS`; missing where a lens does not speak of it.

    Of several contrasts of an axis the one with the largest effect on E is shown, beside the mean size of all.
    """
    rows = [
        {
            "axis": axis.name,
            "note": axis.note,
            **_shift(lenses.shifts, axis),
            **_resiliency(lenses.cells, axis),
            **_competence(lenses.effects, lenses.verdicts, axis),
        }
        for axis in axes
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def without_axis(lenses: Lenses, axes: Sequence[Axis] = AXES) -> dict[str, list[str]]:
    """Return for each lens what stands on no axis: topics, categories, families of irrelevant contrasts."""
    found = {
        "dB": _of(lenses.shifts, "topic", lambda frame: frame["group"] != CONTROL),
        "resiliency": {str(cell["category"]) for cell in lenses.cells or () if cell["category"] != "all"},
        "competence": _of(
            lenses.effects, "family", lambda frame: (frame["role"] == "irrelevant") & (frame["measure"] == "E")
        ),
    }
    known = {
        "dB": {name for axis in axes for name in axis.topics},
        "resiliency": {name for axis in axes for name in axis.categories},
        "competence": {name for axis in axes for name in axis.families},
    }
    return {lens: sorted(found[lens] - known[lens]) for lens in LENSES}


def _of(frame: pd.DataFrame | None, column: str, where: Any) -> set[str]:
    return set() if frame is None else {str(name) for name in frame.loc[where(frame), column]}


def counterparts(axes: Iterable[Axis] = AXES) -> list[str]:
    """Say of each axis that not all lenses speak of which ones are silent."""
    lines = []
    for axis in axes:
        parts = dict(zip(LENSES, (axis.topics, axis.categories, axis.families), strict=True))
        silent = [lens for lens in LENSES if not parts[lens]]
        if silent:
            lines.append(f"{axis.name}: nothing in {' or '.join(silent)}" + (f" ({axis.note})" if axis.note else ""))
    return lines


@dataclass(frozen=True)
class Agreement:
    """How two lenses go together over the axes and checkpoints of a spectrum; None with a reason where undefined.

    The interval draws whole axes and whole checkpoints. `same_direction` counts steps between neighbouring checkpoints
    of an axis in which both rose or both fell, among `n_steps` in which both moved. `same_low` and `same_high` are
    Wilson's bounds of their share: they take steps as independent, and axes that share a checkpoint are not, so they
    are too narrow.
    """

    x: str
    y: str
    n: int
    n_axes: int
    n_checkpoints: int
    pearson_r: float | None
    ci_low: float | None
    ci_high: float | None
    spearman_r: float | None
    n_steps: int
    same_direction: int
    same_low: float | None
    same_high: float | None
    reason: str


def agreement(spectrum: Mapping[str, pd.DataFrame], n_resamples: int = 2000, seed: int = 17) -> list[dict[str, Any]]:
    """Relate the lenses over a spectrum.

    Parameters
    ----------
    spectrum
        Checkpoint, in order -> its rows from `side_by_side`.
    n_resamples, seed
        Of the bootstrap.

    Returns
    -------
    list of dict
        `Agreement` of every pair of lenses, as JSON values.
    """
    frames = [frame.assign(checkpoint=name, order=at) for at, (name, frame) in enumerate(spectrum.items())]
    rows = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*COLUMNS, "checkpoint", "order"])
    rows = rows.assign(biased_share=100 - pd.to_numeric(rows["resiliency"]))
    return [asdict(_related(rows, x, y, n_resamples, seed)) for x, y in PAIRS]


def _related(rows: pd.DataFrame, x: str, y: str, n_resamples: int, seed: int) -> Agreement:
    both = rows.dropna(subset=[x, y])
    left, right = both[x].to_numpy(float), both[y].to_numpy(float)
    reason = undefined_reason(left, right, x, y) if len(both) else "no axis that both lenses speak of"
    steps, same = _steps(both, x, y)
    share = wilson(same, steps)
    counts = (x, y, len(both), both["axis"].nunique(), both["checkpoint"].nunique())
    told = (steps, same, _known(share.low), _known(share.high))
    if reason:
        return Agreement(*counts, None, None, None, None, *told, reason)
    low, high, note = None, None, f"no interval: fewer than {LEAST_CLUSTERS} axes or checkpoints"
    if min(both["axis"].nunique(), both["checkpoint"].nunique()) >= LEAST_CLUSTERS:
        weighted = partial(weighted_pearson, left, right)
        interval = cluster_bootstrap(weighted, both["axis"], both["checkpoint"], n_resamples, seed)
        low, high = _known(interval.low), _known(interval.high)
        note = "" if low is not None else "no interval: most resamples are constant"
    return Agreement(*counts, pearson(left, right).r, low, high, spearman(left, right).r, *told, note)


def _steps(both: pd.DataFrame, x: str, y: str) -> tuple[int, int]:
    """Count steps between neighbouring checkpoints in which both moved, and those in which they moved alike.

    A checkpoint that one lens was not held to breaks the course: over the gap there is no step.
    """
    signs = [np.empty((0, 2))]
    for _, own in both.groupby("axis"):
        course = own.sort_values("order")
        next_to = np.diff(course["order"].to_numpy(int)) == 1
        signs.append(np.sign(np.diff(course[[x, y]].to_numpy(float), axis=0))[next_to])
    every = np.concatenate(signs)
    moved = every[(every != 0).all(axis=1)]
    return len(moved), int((moved[:, 0] == moved[:, 1]).sum())


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
