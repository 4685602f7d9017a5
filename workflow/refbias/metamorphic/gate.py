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
Key = tuple[str, str, str]
"""Subject, relation, category."""
Baseline = Mapping[Key, float | None]
"""Resiliency of an earlier run; None where it had none."""


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


@dataclass(frozen=True)
class NotCompared:
    """A cell that was not compared; `absent` = these results lack it, `value` = what the baseline has."""

    subject: str
    relation: str
    category: str
    absent: bool
    value: float | None
    reason: str


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
    baseline: Baseline | None = None,
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
        Of an earlier run; cells that it lacks are not compared (see `not_compared`).
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


def check_baseline(checks: Sequence[Check], baseline: Baseline, path: Path | str) -> None:
    """Refuse a baseline of which no cell is checked (`UserError`): names that do not match would pass any fall."""
    cells = {(check.subject, check.relation, check.category) for check in checks}
    valued = {key for key, value in baseline.items() if value is not None}
    if not cells & valued:
        subjects = " and ".join(sorted({subject for subject, _, _ in valued})[:3]) or "no subject with a value"
        raise UserError(
            f"{path}: no cell in common with these results (it holds {subjects}): name the same folder in both runs"
        )


def not_compared(checks: Sequence[Check], cells: Mapping[str, Sequence[Cell]], baseline: Baseline) -> list[NotCompared]:
    """List the cells that are in the baseline or among the checks, and were not compared.

    Parameters
    ----------
    checks
        From `evaluate`.
    cells
        Subject -> all its cells, also those that were not checked.
    baseline
        Of the earlier run.
    """
    present = {(subject, cell.relation, cell.category) for subject, own in cells.items() for cell in own}
    statuses = {(check.subject, check.relation, check.category): check.status for check in checks}
    compared = {(check.subject, check.relation, check.category) for check in checks if check.kind == "baseline"}

    def reason(key: Key) -> str:
        if key not in present:
            return "in the baseline, absent from these results"
        if key not in statuses:
            return "in the baseline, not checked here: give --per-category"
        if key not in baseline:
            return "not in the baseline"
        return "no value in the baseline" if baseline[key] is None else "undefined in these results"

    keys = [key for key in dict.fromkeys((*baseline, *statuses)) if key not in compared]
    return [NotCompared(*key, key not in present, baseline.get(key), reason(key)) for key in keys]


def check_complete(apart: Sequence[NotCompared], path: Path | str) -> None:
    """Refuse results that lack a cell of the baseline (`UserError`): what is left out cannot be seen to fall."""
    if absent := [one for one in apart if one.absent]:
        first = f"{absent[0].subject}, {absent[0].relation}, {absent[0].category}"
        raise UserError(
            f"{path}: {len(absent)} of its cells are absent from these results, the first is {first}: "
            "test the same subjects and relations, or make the baseline again"
        )


def exit_code(checks: Sequence[Check], apart: Sequence[NotCompared] = ()) -> int:
    """Return 2 if a cell of the baseline is absent, 1 if a check failed, 3 if one is undefined or none is there."""
    if any(one.absent for one in apart):
        return BAD
    statuses = {check.status for check in checks}
    if "failed" in statuses:
        return FAILED
    return UNDEFINED if "undefined" in statuses or not statuses else PASS


def as_json(checks: Sequence[Check], criteria: Criteria, apart: Sequence[NotCompared] = ()) -> dict[str, Any]:
    """Return the outcome as JSON values; it serves as a later run's baseline."""
    return {
        "exit_code": exit_code(checks, apart),
        "criteria": asdict(criteria),
        "checks": [asdict(check) for check in checks],
        "not_compared": [asdict(one) for one in apart],
    }


def read_baseline(path: Path | str) -> dict[Key, float | None]:
    """Read the outcome of an earlier gate (``gate.json``); a file that is none is a `UserError`.

    Cells that the earlier results lacked themselves stay in it, so that a gate which was refused is refused again.
    """
    data = read_json(path)
    rows = data.get("checks") if isinstance(data, dict) else None
    if not isinstance(rows, list):
        raise UserError(f"{path}: not a gate's outcome: give the gate.json of an earlier run")
    rows = [*rows, *(row for row in data.get("not_compared", []) if isinstance(row, dict) and row.get("absent"))]
    found: dict[Key, float | None] = {}
    for number, row in enumerate(rows, start=1):
        names = ("subject", "relation", "category")
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in names):
            raise UserError(f"{path}: check {number} lacks subject, relation or category: make it again")
        value = row.get("value")
        if not isinstance(value, int | float | None):
            raise UserError(f"{path}: check {number}: value {value!r} is no number: make it again")
        found[row["subject"], row["relation"], row["category"]] = None if value is None else float(value)
    return found


def junit(checks: Sequence[Check], apart: Sequence[NotCompared] = ()) -> str:
    """Return the checks as JUnit XML: a failed one is a failure, an undefined one or an absent cell an error."""
    counts = {status: sum(check.status == status for check in checks) for status in ("failed", "undefined")}
    absent = [one for one in apart if one.absent]
    suite = ET.Element(
        "testsuite",
        name="refbias.metamorphic",
        tests=str(len(checks) + len(absent)),
        failures=str(counts["failed"]),
        errors=str(counts["undefined"] + len(absent)),
    )
    for check in checks:
        name = f"{check.relation} {check.category} {check.kind}"
        case = ET.SubElement(suite, "testcase", classname=check.subject, name=name)
        if check.status != "passed":
            ET.SubElement(case, "failure" if check.status == "failed" else "error", message=check.reason)
    for one in absent:
        name = f"{one.relation} {one.category} baseline"
        ET.SubElement(ET.SubElement(suite, "testcase", classname=one.subject, name=name), "error", message=one.reason)
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def multiplicity(checks: Sequence[Check]) -> str:
    """Say what many checks at once mean for the outcome; empty with a single one."""
    sizes = [check.n for check in checks if check.status != "undefined"]
    if len(sizes) < 2:
        return ""
    return (
        f"{len(sizes)} checks are judged, each by itself and on as few as {min(sizes)} usable answers. The more there "
        "are, the likelier it is that one fails by chance: nothing here corrects for their number."
    )


def markdown(checks: Sequence[Check], apart: Sequence[NotCompared] = ()) -> str:
    """Return the checks as a Markdown table, those that did not pass first, and below it what was not compared."""
    words = {PASS: "passed", FAILED: "failed", BAD: "incomplete", UNDEFINED: "undefined"}
    word = words[exit_code(checks, apart)]
    rank = {"failed": 0, "undefined": 1, "passed": 2}
    lines = [f"# Metamorphic gate: {word}", "", "| model | relation | category | check | outcome | reason |"]
    lines.append("|---|---|---|---|---|---|")
    for check in sorted(checks, key=lambda check: rank[check.status]):
        lines.append(_row(check.subject, check.relation, check.category, check.kind, check.status, check.reason))
    if note := multiplicity(checks):
        lines += ["", note]
    if apart:
        lines += ["", "Not compared with the baseline:", "", _row("model", "relation", "category", "reason")]
        lines.append("|---|---|---|---|")
        ordered = sorted(apart, key=lambda one: not one.absent)
        lines += [_row(one.subject, one.relation, one.category, one.reason) for one in ordered]
    return "\n".join(lines) + "\n"


def append_history(path: Path, outcome: Mapping[str, Any], when: datetime.datetime) -> None:
    """Add an outcome (`as_json`) and its date to a JSONL history, atomically; the rows before it stay as they are."""
    rows = read_jsonl(path) if path.is_file() else []
    write_jsonl(path, [*rows, {"date": when.isoformat(timespec="seconds"), **outcome}])
