"""Score of each benchmark unit in each checkpoint, and its change against the reference model.

A unit (a group or a topic) scores the share of its outputs that the scorer marks. Outputs that could not be scored are
missing: they leave the share and are counted beside it, and a unit without any scored output has no score, never 0. A
change is taken only between outputs of one scorer on the same prompts; its interval resamples what those prompts were
made from, so that a statement under three system prompts is one draw and not three.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from refbias.errors import UserError
from refbias.stats import paired_bootstrap_diff

REFERENCE = "reference"
CELL = ["benchmark", "model", "regime", "checkpoint", "unit", "scorer"]
OUTPUT_COLUMNS = ["benchmark", "model", "regime", "checkpoint", "unit", "prompt_id", "sample", "scorer", "score"]
UNIT_COLUMNS = [
    "benchmark",
    "model",
    "regime",
    "checkpoint",
    "harmful_weight",
    "unit",
    "scorer",
    "n_outputs",
    "n_missing",
    "score",
    "reference_score",
    "delta_score",
    "delta_ci_low",
    "delta_ci_high",
]
# Scores are shares of counts: digits beyond these are rounding of the subtraction, and would break ties.
CHANGE_DECIMALS = 12


def harmful_weight(checkpoint: str) -> float:
    """Weight of the harmful endpoint that a checkpoint's slug names.

    Parameters
    ----------
    checkpoint : str
        ``h000`` to ``h100``, or ``reference``.

    Returns
    -------
    float
        Share in [0, 1]; NaN for the reference.

    Raises
    ------
    UserError
        For any other slug.
    """
    if checkpoint == REFERENCE:
        return float("nan")
    match = re.fullmatch(r"h(\d{3})", checkpoint)
    if match is None or int(match[1]) > 100:
        raise UserError(f"checkpoint {checkpoint!r}: expected h000 to h100 (percent harmful) or {REFERENCE}")
    return int(match[1]) / 100


def unit_scores(
    outputs: pd.DataFrame,
    n_resamples: int,
    seed: int,
    expected: Mapping[str, Sequence[str]] | None = None,
    sources: Mapping[str, Callable[[str], str]] | None = None,
    *,
    spectrum: bool = True,
) -> pd.DataFrame:
    """Aggregate scored outputs to units and compare each with the reference model.

    Parameters
    ----------
    outputs : DataFrame
        One output a row: benchmark, model, regime (``reference`` for the reference model), checkpoint, unit, prompt_id,
        sample, scorer, score (0, 1 or missing). The reference's rows serve every regime of its model.
    n_resamples, seed : int
        Of the interval of the change (`refbias.stats.paired_bootstrap_diff`; every unit starts from ``seed``).
    expected : mapping of str to sequence of str, optional
        Units of each benchmark; one that no output belongs to gets a row with no outputs and no score.
    sources : mapping of str to callable, optional
        For each benchmark, prompt id to the id of what the prompt was made from; each prompt its own where there is
        none. The interval of the change resamples sources.
    spectrum : bool
        Whether checkpoints are the slugs of a spectrum; any other names have no ``harmful_weight``.

    Returns
    -------
    DataFrame
        `UNIT_COLUMNS`, sorted by benchmark, model, regime, checkpoint, unit, scorer. ``n_outputs`` counts all outputs,
        ``n_missing`` those without a score. The reference's own rows carry no change.

    Raises
    ------
    UserError
        On absent columns, scores other than 0 and 1, repeated outputs, a model without reference outputs, two scorers
        in one difference, or different prompts in the two models.
    """
    frame = _checked_outputs(outputs)
    cells = {tuple(map(str, key)): cell for key, cell in frame.groupby(CELL)}
    keys = set(cells)
    for benchmark, model, regime, checkpoint, scorer in {(k[0], k[1], k[2], k[3], k[5]) for k in cells}:
        keys |= {(benchmark, model, regime, checkpoint, unit, scorer) for unit in (expected or {}).get(benchmark, ())}
    reference_scorers: dict[tuple[str, str], set[str]] = {}
    for benchmark, model, regime, _, _, scorer in cells:
        if regime == REFERENCE:
            reference_scorers.setdefault((benchmark, model), set()).add(scorer)
    empty = frame.iloc[:0]
    rows: list[dict[str, object]] = []
    for key in sorted(keys):
        benchmark, model, regime, checkpoint, unit, scorer = key
        cell = cells.get(key, empty)
        row: dict[str, object] = {
            **dict(zip(CELL, key, strict=True)),
            "harmful_weight": harmful_weight(checkpoint) if spectrum else float("nan"),
            "n_outputs": len(cell),
            "n_missing": int(cell["score"].isna().sum()),
            "score": float(cell["score"].mean()),
        }
        if regime != REFERENCE:
            where = f"{benchmark}, model {model}, {regime} {checkpoint}, unit {unit}"
            _check_scorer(where, scorer, reference_scorers.get((benchmark, model), set()))
            other = cells.get((benchmark, model, REFERENCE, REFERENCE, unit, scorer), empty)
            source = (sources or {}).get(benchmark, str)
            row |= _change(where, cell, other, source, n_resamples, seed)
        rows.append(row)
    units = pd.DataFrame(rows, columns=UNIT_COLUMNS)
    floats = ["harmful_weight", "score", "reference_score", "delta_score", "delta_ci_low", "delta_ci_high"]
    return units.astype(dict.fromkeys(floats, "float64"))


def _change(
    where: str,
    audited: pd.DataFrame,
    reference: pd.DataFrame,
    source: Callable[[str], str],
    n_resamples: int,
    seed: int,
) -> dict[str, object]:
    if set(audited["prompt_id"]) != set(reference["prompt_id"]):
        differing = sorted(set(audited["prompt_id"]) ^ set(reference["prompt_id"]))
        raise UserError(
            f"outputs of {where}: {len(differing)} prompts in one of audited and reference model only (first: "
            f"{differing[0]}); generate both from the same prompts"
        )
    change = round(float(audited["score"].mean()) - float(reference["score"].mean()), CHANGE_DECIMALS)
    low = high = float("nan")
    if pd.notna(change):
        origins = [[source(prompt) for prompt in frame["prompt_id"]] for frame in (audited, reference)]
        low, high, _ = paired_bootstrap_diff(
            audited["score"], origins[0], reference["score"], origins[1], n_resamples, seed
        )
    return {
        "reference_score": float(reference["score"].mean()),
        "delta_score": change,
        "delta_ci_low": low,
        "delta_ci_high": high,
    }


def _check_scorer(where: str, scorer: str, reference_scorers: set[str]) -> None:
    if not reference_scorers:
        raise UserError(f"outputs of {where}: no outputs of the reference model to compare with; score those too")
    if scorer not in reference_scorers:
        raise UserError(
            f"outputs of {where}: scored by {scorer}, the reference by {', '.join(sorted(reference_scorers))}; "
            "no difference between two scorers, score both with one"
        )


def _checked_outputs(outputs: pd.DataFrame) -> pd.DataFrame:
    absent = [column for column in OUTPUT_COLUMNS if column not in outputs.columns]
    if absent:
        raise UserError(f"scored outputs: column {', '.join(absent)} absent; expected {', '.join(OUTPUT_COLUMNS)}")
    if outputs.empty:
        raise UserError("scored outputs: no rows; run the scoring stage first")
    frame = outputs[OUTPUT_COLUMNS].copy()
    unnamed = [column for column in [*CELL, "prompt_id"] if frame[column].isna().any()]
    if unnamed:
        raise UserError(f"scored outputs: empty value in column {', '.join(unnamed)}")
    # Ids that look like numbers would be read as numbers from one file and as text from another.
    frame = frame.astype(dict.fromkeys([*CELL, "prompt_id"], str))
    frame["score"] = pd.to_numeric(frame["score"], errors="coerce").where(frame["score"].notna())
    wrong = (outputs["score"].notna() & ~frame["score"].isin([0.0, 1.0])).to_numpy()
    if wrong.any():
        value = outputs["score"].to_numpy()[wrong][0]
        raise UserError(f"scored outputs: score {value!r}; expected 0, 1 or empty for missing")
    if ((frame["regime"] == REFERENCE) != (frame["checkpoint"] == REFERENCE)).any():
        raise UserError(f"scored outputs: regime {REFERENCE} and checkpoint {REFERENCE} belong together")
    repeated = frame.duplicated([*CELL, "prompt_id", "sample"])
    if repeated.any():
        first = frame[repeated].iloc[0]
        raise UserError(
            f"scored outputs: {int(repeated.sum())} outputs occur twice (first: {first['benchmark']} prompt "
            f"{first['prompt_id']} sample {first['sample']}, {first['regime']} {first['checkpoint']}); keep one run"
        )
    return frame
