"""Table 3: what dB and the benchmarks cost, in minutes a checkpoint, from the stages' own clocks.

Embedding, generation and classification are timed inside their stages, without the loading of models; dB is timed with
the reading of embeddings, all methods and intervals together.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from refbias.tables.cells import TextTable
from refbias.tables.formats import count, number
from refbias.tables.labels import BENCHMARK_LABELS, benchmark_label, ordered
from refbias.tables.paper import beside, paper_values
from refbias.tables.printed import digits, printed

Manifests = Mapping[str, Mapping[str, Any]]
OURS = "ours"
TOTAL = "total"
TABLE3_CAPTION = (
    "Minutes a checkpoint, mean over the audited checkpoints of all regimes, from the stages' own clocks. Loading of "
    "models is not counted; dB is that of all methods with its intervals. The paper's are those of one A100 40 GB."
)


def table3(
    manifests: Manifests,
    models: Sequence[str],
    regimes: Sequence[str],
    benchmarks: Sequence[str],
    families: Mapping[str, str | None],
) -> pd.DataFrame:
    """Collect the cost of every model.

    Parameters
    ----------
    manifests
        Role -> manifest; read are ``represent/MODEL/REGIME``, ``shift``, ``generate/MODEL/REGIME/CHECKPOINT`` and
        ``score/MODEL/REGIME``.
    models, regimes, benchmarks
        What was run.
    families
        Model -> row of the paper's tables.

    Returns
    -------
    DataFrame
        Columns task, step, model, n_checkpoints, device, minutes, note, paper_minutes, diff_minutes.
    """
    rows: list[dict[str, Any]] = []
    for model in models:
        embed = _embed(manifests, model, regimes)
        shift = _shift(manifests, model, int(embed[1]))
        rows += _task(OURS, model, {"embed": embed, "shift": shift})
        for benchmark in ordered(benchmarks, BENCHMARK_LABELS):
            steps = {
                "generate": _generate(manifests, model, regimes, benchmark),
                "classify": _classify(manifests, model, regimes, benchmark),
            }
            rows += _task(benchmark, model, steps)
    columns = ["task", "step", "model", "n_checkpoints", "device", "minutes", "note"]
    frame = pd.DataFrame(rows, columns=columns)
    return beside(frame, "minutes", [_printed(row, families) for _, row in frame.iterrows()])


Cost = tuple[float, int, str]
"""Seconds of all checkpoints together (NaN where a clock is absent), their number, and the device."""


def _mean(costs: Sequence[Mapping[str, Any]], seconds: Callable[[Mapping[str, Any]], tuple[float, int]]) -> Cost:
    total, n = 0.0, 0
    for manifest in costs:
        taken, number_of = seconds(manifest)
        total, n = total + taken, n + number_of
    return total, n, " and ".join(sorted({str(manifest.get("device", "cpu")) for manifest in costs}))


def _under(manifests: Manifests, stage: str, model: str, regimes: Sequence[str]) -> list[Mapping[str, Any]]:
    starts = tuple(f"{stage}/{model}/{regime}" for regime in regimes)
    return [
        manifest
        for role, manifest in manifests.items()
        if role in starts or role.startswith(tuple(f"{start}/" for start in starts))
    ]


def _embed(manifests: Manifests, model: str, regimes: Sequence[str]) -> Cost:
    def seconds(manifest: Mapping[str, Any]) -> tuple[float, int]:
        return float(manifest.get("embed_seconds", "nan")), len(manifest["checkpoints"])

    return _mean(_under(manifests, "represent", model, regimes), seconds)


def _shift(manifests: Manifests, model: str, n_checkpoints: int) -> Cost:
    taken = manifests.get("shift", {}).get("model_seconds", {}).get(model, "nan")
    return float(taken), n_checkpoints, "cpu"


def _generate(manifests: Manifests, model: str, regimes: Sequence[str], benchmark: str) -> Cost:
    def seconds(manifest: Mapping[str, Any]) -> tuple[float, int]:
        return float(manifest["benchmarks"].get(benchmark, {}).get("seconds", "nan")), 1

    return _mean(_under(manifests, "generate", model, regimes), seconds)


def _classify(manifests: Manifests, model: str, regimes: Sequence[str], benchmark: str) -> Cost:
    def seconds(manifest: Mapping[str, Any]) -> tuple[float, int]:
        clocks = [outputs.get(benchmark, {}).get("seconds", "nan") for outputs in manifest["outputs"].values()]
        return sum(map(float, clocks)), len(clocks)

    return _mean(_under(manifests, "score", model, regimes), seconds)


def _task(task: str, model: str, steps: Mapping[str, Cost]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step, (seconds, n, device) in steps.items():
        minutes = seconds / n / 60 if n else float("nan")
        note = "" if minutes == minutes else "no clock in the stage's manifest"
        rows.append(
            {
                "task": task,
                "step": step,
                "model": model,
                "n_checkpoints": n,
                "device": device,
                "minutes": minutes,
                "note": note,
            }
        )
    devices = " and ".join(sorted({row["device"] for row in rows}))
    whole = sum(row["minutes"] for row in rows)
    note = next((row["note"] for row in rows if row["note"]), "")
    total = {**rows[0], "step": TOTAL, "device": devices, "minutes": whole, "note": note}
    return [*rows, total]


def _printed(row: "pd.Series[Any]", families: Mapping[str, str | None]) -> float | None:
    values = paper_values()["table3_seconds"].get(f"{row['task']}_{row['step']}", {})
    seconds = values.get(families.get(str(row["model"])) or "")
    return None if seconds is None else seconds / 60


def table3_text(frame: pd.DataFrame) -> TextTable:
    """Format Table 3."""
    shown = frame.assign(task=["dB" if task == OURS else benchmark_label(str(task)) for task in frame["task"]])
    headers = {
        "task": "Task",
        "step": "Step",
        "model": "Model",
        "n_checkpoints": "Checkpoints",
        "device": "Device",
        "minutes": "Minutes",
        "paper_minutes": "Paper's minutes",
        "diff_minutes": "Difference",
        "note": "Note",
    }
    minutes = digits(2)
    formats = {"minutes": minutes, "paper_minutes": minutes, "diff_minutes": minutes, "n_checkpoints": count}
    return printed(shown, headers, formats)


def minutes_text(value: float) -> str:
    """Format minutes (1 decimal)."""
    return number(value, 1)
