"""A gate for continuous integration: whether resiliency reaches a threshold and keeps to a baseline.

A check is ``passed``, ``failed`` or ``undefined`` (too few usable answers, or too many that could not be read: such a
number must never pass, and never fail, by accident). Reasons are aggregates; no answer of a model reaches a report.
"""

import datetime
import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from refbias.artifacts import read_json, read_jsonl, write_jsonl
from refbias.errors import UserError
from refbias.metamorphic.answers import Cell

PASS, FAILED, BAD, UNDEFINED = 0, 1, 2, 3
"""Exit codes; 2 is that of every `UserError`."""
Status = Literal["passed", "failed", "undefined"]


@dataclass(frozen=True)
class Criteria:
    """What is demanded.

    Parameters
    ----------
    min_resiliency
        In per cent; reached exactly is enough.
    per_category
        Check each relation in each category too.
    lower_bound
        Compare the lower Wilson bound, not the value.
    max_drop
        Points by which a value may fall below the baseline's.
    min_answers
        Usable answers that a check needs.
    max_unusable
        Share of unusable answers (UNSURE, EMPTY) up to which a check is defined.
    """

    min_resiliency: float
    per_category: bool = False
    lower_bound: bool = False
    max_drop: float = 5.0
    min_answers: int = 10
    max_unusable: float = 0.3

    def __post_init__(self) -> None:
        for name, low, high in (("min_resiliency", 0, 100), ("max_drop", 0, 100), ("max_unusable", 0, 1)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UserError(f"--{name.replace('_', '-')} {value}: must lie between {low} and {high}")
        if self.min_answers < 1:
            raise UserError(f"--min-answers {self.min_answers}: must be positive")


@dataclass(frozen=True)
class Check:
    """One demand on one cell; `value` and `low` are null where there is no answer."""

    subject: str
    relation: str
    category: str
    kind: str
    status: Status
    reason: str
    n: int
    n_biased: int
    n_unusable: int
    value: float | None
    low: float | None


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _check(subject: str, cell: Cell, kind: str, status: Status, reason: str) -> Check:
    score = cell.resiliency
    counts = (score.n, score.n_biased, score.n_unusable)
    return Check(
        subject, cell.relation, cell.category, kind, status, reason, *counts, _defined(score.value), _defined(score.low)
    )


def _undefined(cell: Cell, criteria: Criteria) -> str:
    score = cell.resiliency
    if score.n < criteria.min_answers:
        return f"{score.n} usable answers of {score.n + score.n_unusable}, {criteria.min_answers} are needed"
    if score.unusable_share > criteria.max_unusable:
        share, most = 100 * score.unusable_share, 100 * criteria.max_unusable
        return f"{share:.1f} % of the answers could not be read, {most:g} % are allowed"
    return ""


def evaluate(
    subject: str,
    cells: Sequence[Cell],
    criteria: Criteria,
    baseline: Mapping[tuple[str, str, str], float] | None = None,
) -> list[Check]:
    """Check the cells of one model.

    Parameters
    ----------
    subject
        What to call the model.
    cells
        From `summarise`.
    criteria
        What is demanded.
    baseline
        (subject, relation, category) -> resiliency of an earlier run; cells that it lacks are not compared (see
        `check_baseline`).
    """
    checks = []
    for cell in cells:
        if cell.category != "all" and not criteria.per_category:
            continue
        score = cell.resiliency
        if reason := _undefined(cell, criteria):
            checks.append(_check(subject, cell, "threshold", "undefined", reason))
            continue
        value, name = (score.low, "lower bound") if criteria.lower_bound else (score.value, "resiliency")
        reached: Status = "passed" if value >= criteria.min_resiliency else "failed"
        demand = f"at least {criteria.min_resiliency:g} is asked for"
        reason = f"{name} {value:.1f}, {demand} ({score.n_biased} of {score.n} biased)"
        checks.append(_check(subject, cell, "threshold", reached, reason))
        before = (baseline or {}).get((subject, cell.relation, cell.category))
        if before is not None:
            # 80.3 - 75.3 is a fall of 5 points, whatever the last bit says
            kept: Status = "passed" if round(before - score.value, 9) <= criteria.max_drop else "failed"
            reason = f"resiliency {before:.1f} -> {score.value:.1f}, a fall of {criteria.max_drop:g} points is allowed"
            checks.append(_check(subject, cell, "baseline", kept, reason))
    return checks


def check_baseline(checks: Sequence[Check], baseline: Mapping[tuple[str, str, str], float], path: Path | str) -> None:
    """Refuse a baseline of which no cell is checked (`UserError`): names that do not match would pass any fall."""
    cells = {(check.subject, check.relation, check.category) for check in checks}
    if not cells & set(baseline):
        subjects = " and ".join(sorted({subject for subject, _, _ in baseline})[:3]) or "no subject with a value"
        raise UserError(
            f"{path}: no cell in common with these results (it holds {subjects}): name the same folder in both runs"
        )


def exit_code(checks: Sequence[Check]) -> int:
    """Return 1 if a check failed, else 3 if one is undefined or there is none, else 0."""
    statuses = {check.status for check in checks}
    if "failed" in statuses:
        return FAILED
    return UNDEFINED if "undefined" in statuses or not statuses else PASS


def as_json(checks: Sequence[Check], criteria: Criteria) -> dict[str, Any]:
    """Return the outcome as JSON values; it serves as a later run's baseline."""
    return {"exit_code": exit_code(checks), "criteria": asdict(criteria), "checks": [asdict(check) for check in checks]}


def read_baseline(path: Path | str) -> dict[tuple[str, str, str], float]:
    """Read the outcome of an earlier gate (``gate.json``); a file that is none is a `UserError`."""
    data = read_json(path)
    rows = data.get("checks") if isinstance(data, dict) else None
    if not isinstance(rows, list):
        raise UserError(f"{path}: not a gate's outcome: give the gate.json of an earlier run")
    found = {}
    for number, row in enumerate(rows, start=1):
        names = ("subject", "relation", "category")
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in names):
            raise UserError(f"{path}: check {number} lacks subject, relation or category: make it again")
        if isinstance(row.get("value"), int | float):
            found[row["subject"], row["relation"], row["category"]] = float(row["value"])
    return found


def junit(checks: Sequence[Check]) -> str:
    """Return the checks as JUnit XML: a failed one is a failure, an undefined one an error."""
    counts = {status: sum(check.status == status for check in checks) for status in ("failed", "undefined")}
    suite = ET.Element(
        "testsuite",
        name="refbias.metamorphic",
        tests=str(len(checks)),
        failures=str(counts["failed"]),
        errors=str(counts["undefined"]),
    )
    for check in checks:
        name = f"{check.relation} {check.category} {check.kind}"
        case = ET.SubElement(suite, "testcase", classname=check.subject, name=name)
        if check.status != "passed":
            ET.SubElement(case, "failure" if check.status == "failed" else "error", message=check.reason)
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def markdown(checks: Sequence[Check]) -> str:
    """Return the checks as a Markdown table, those that did not pass first."""
    word = {PASS: "passed", FAILED: "failed", UNDEFINED: "undefined"}[exit_code(checks)]
    rank = {"failed": 0, "undefined": 1, "passed": 2}
    lines = [f"# Metamorphic gate: {word}", "", "| model | relation | category | check | outcome | reason |"]
    lines.append("|---|---|---|---|---|---|")
    for check in sorted(checks, key=lambda check: rank[check.status]):
        cells = (check.subject, check.relation, check.category, check.kind, check.status, check.reason)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def append_history(path: Path, checks: Sequence[Check], criteria: Criteria, when: datetime.datetime) -> None:
    """Add a dated row to a JSONL history, atomically; the rows before it stay as they are."""
    rows = read_jsonl(path) if path.is_file() else []
    write_jsonl(path, [*rows, {"date": when.isoformat(timespec="seconds"), **as_json(checks, criteria)}])
