"""How well dB of each cell of the ablations tracks the change of output-level scores.

The pairs and the statistics are those of table 1, without intervals: a cell is compared with its
neighbours, hundreds of them, on the same observations.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from refbias.analysis.pairs import Pairing, observations
from refbias.errors import UserError
from refbias.metrics import is_undirected
from refbias.stats import above, pearson, roc_auc, undefined_reason

CELL = ["ablation", "cell", "n_anchors", "seed"]
ROW = ["benchmark", "model", "regime", "method"]
ABLATION_COLUMNS = [
    *CELL,
    *ROW,
    "threshold",
    "n",
    "n_positive",
    "pearson_r",
    "pearson_p",
    "roc_auc",
    "note",
]


def ablation_table(
    delta_b: pd.DataFrame, units: pd.DataFrame, pairing: Pairing, thresholds: Mapping[str, float]
) -> pd.DataFrame:
    """Compute r and AUC of every cell, benchmark, model, regime and method.

    Parameters
    ----------
    delta_b : DataFrame
        One row a cell (ablation, cell, n_anchors, seed), model, regime, checkpoint, group and method.
    units : DataFrame
        From `refbias.analysis.unit_scores`, of at least the models and regimes in ``delta_b``.
    pairing : mapping
        Benchmark to unit to group ids, see `refbias.analysis.unit_groups`.
    thresholds : mapping of str to float
        Change of score above which a unit counts as more biased, by benchmark.

    Returns
    -------
    DataFrame
        `ABLATION_COLUMNS`, cells in the order of ``delta_b``; what cannot be computed is missing and the
        note says why.

    Raises
    ------
    UserError
        As `refbias.analysis.observations`, naming the cell; and if a benchmark has no threshold.
    """
    absent = [column for column in CELL if column not in delta_b.columns]
    if absent:
        raise UserError(f"delta_b: column {', '.join(absent)} absent; run the stage ablate again")
    covered = set(map(tuple, delta_b[["model", "regime"]].drop_duplicates().to_numpy()))
    in_both = [key in covered for key in zip(units["model"], units["regime"], strict=True)]
    chosen = units[in_both]
    rows: list[dict[str, object]] = []
    for key, cell in delta_b.groupby(CELL, sort=False, dropna=False):
        named = dict(zip(CELL, key, strict=True))
        try:
            pairs = observations(chosen, cell, pairing)
        except UserError as error:
            raise UserError(f"ablation {named['ablation']}, cell {named['cell']}: {error}") from error
        # one scorer a benchmark: `observations` refuses differences between two
        for values, frame in pairs.groupby(ROW, sort=False):
            head = {name: str(value) for name, value in zip(ROW, values, strict=True)}
            if head["benchmark"] not in thresholds:
                raise UserError(f"thresholds: none for benchmark {head['benchmark']}; name one in the config")
            threshold = float(thresholds[head["benchmark"]])
            rows.append({**named, **head, **_numbers(frame, threshold, head["method"])})
    table = pd.DataFrame(rows, columns=ABLATION_COLUMNS)
    return table.assign(seed=pd.to_numeric(table["seed"]).astype("Int64"))


def _numbers(frame: pd.DataFrame, threshold: float, method: str) -> dict[str, object]:
    pairs = frame.dropna(subset=["delta_score", "delta_b"])
    undirected = is_undirected(method)
    notes = ["undirected: |r|, max(AUC, 1 - AUC)"] if undirected else []
    for column, name in (("delta_score", "change of score"), ("delta_b", "dB")):
        gone = int(frame[column].isna().sum())
        if gone:
            notes.append(f"{gone} of {len(frame)} observations dropped: no {name}")
    if pairs.empty:
        return {"threshold": threshold, "n": 0, "n_positive": 0, "note": "; ".join(notes)}
    x, y = pairs["delta_b"].to_numpy(np.float64), pairs["delta_score"].to_numpy(np.float64)
    label = above(y, threshold)
    reason = undefined_reason(x, y, "dB", "change of score")
    if reason:
        notes.append(f"no correlation: {reason}")
    if label.all() or not label.any():
        notes.append(f"no AUC: one class only, {'every' if label.all() else 'no'} unit above {threshold:g}")
    correlation, area = pearson(x, y), roc_auc(-x, label)
    return {
        "threshold": threshold,
        "n": len(pairs),
        "n_positive": int(label.sum()),
        "pearson_r": abs(correlation.r) if undirected else correlation.r,
        "pearson_p": correlation.p,
        "roc_auc": max(area, 1 - area) if undirected else area,
        "note": "; ".join(notes),
    }
