"""Calibrate dB on a finished study: the probability that a score rose beyond a threshold.

The study's folder holds what is needed: tables/observations.csv, shift/delta_b.csv, records/manifests.json and
manifest.json; each can be named apart.
"""

import argparse
import logging
import math
from datetime import UTC, datetime
from pathlib import Path

from refbias import __version__
from refbias.analysis.controls import Selection, with_control
from refbias.artifacts import read_json, sha256_file
from refbias.calibration import fit_calibration
from refbias.cli.study import (
    TOPIC_BENCHMARKS,
    beside,
    measure_of,
    needed,
    read_manifests,
    read_observations,
    read_shift,
    study_threshold,
)
from refbias.config.base import parse
from refbias.config.calibration import (
    Calibration,
    Candidate,
    FitSettings,
    Nested,
    Outcome,
    Provenance,
    save_calibration,
)
from refbias.errors import UserError
from refbias.metrics import METHODS

log = logging.getLogger("refbias")


def provenance(
    observations: Path, shift: Path, study: Path | None, models: list[str], regimes: list[str]
) -> Provenance:
    """Return where a calibration comes from; commit and version are the study's, where its manifest says them."""
    facts = read_json(study) if study else {}
    code = facts.get("code", {})
    return Provenance(
        run=str(facts.get("settings", {}).get("config", {}).get("run") or observations.absolute().parent.parent.name),
        models=models,
        regimes=regimes,
        commit=code.get("commit"),
        changed_files=code.get("changed_files"),
        version=str(code.get("version", __version__)),
        created=datetime.now(UTC).replace(microsecond=0).isoformat(),
        observations_sha256=sha256_file(observations),
        delta_b_sha256=sha256_file(shift),
    )


def summary(found: Calibration) -> list[str]:
    """Return the result in lines for the terminal."""
    outcome, check = found.outcome, found.validation
    lines = [
        f"P({outcome.benchmark} score of a {outcome.unit} rises by more than {outcome.threshold:g}), from "
        f"{found.measure.method} with {found.measure.n_anchors} anchors: {found.n} units, {found.n_positive} risen, "
        f"{found.n_checkpoints} checkpoints",
        f"left out: a {check.left_out} ({check.n_folds} folds); base rate {found.base_rate:.3f}, "
        f"Brier {check.base_brier:.4f}, log-loss {check.base_log_loss:.4f}",
    ]
    for row in (*check.candidates, check.control_only):
        chosen = "*" if (row.kind, row.predictors) == (found.kind, found.predictors) else " "
        lines.append(f"{chosen} {row.kind} of {' and '.join(row.predictors)}: {_judged(row)}")
    if check.nested:
        lines.append(f"with the choice made without the {check.left_out} left out: {_judged(check.nested)}")
    if found.transfer:
        lines.append(f"a whole spectrum left out: {_judged(found.transfer.nested or found.transfer.candidates[0])}")
    return [*lines, *(f"warning: {sentence}" for sentence in found.warnings)]


def _judged(row: Candidate | Nested) -> str:
    span = "no interval" if row.skill_low is None else f"[{row.skill_low:.2f}, {row.skill_high:.2f}]"
    return (
        f"Brier {row.brier:.4f}, skill {row.brier_skill:.2f} {span}, log-loss {row.log_loss:.4f}, calibration error "
        f"{row.ece:.3f}"
    )


def main(argv: list[str]) -> None:
    """Write the calibration."""
    parser = argparse.ArgumentParser(prog="refbias calibrate", description=__doc__)
    parser.add_argument("--observations", type=Path, required=True, help="observations.csv of the study")
    parser.add_argument("--delta-b", type=Path, help="delta_b.csv, for the control and the anchors")
    parser.add_argument("--manifests", type=Path, help="records/manifests.json, for stimuli and settings")
    parser.add_argument("--study", type=Path, help="manifest.json of the study, for commit and version")
    parser.add_argument("--benchmark", help="needed where the study has several")
    parser.add_argument("--scorer", help="needed where a benchmark has several")
    parser.add_argument("--regime", nargs="+", default=[], help="all by default")
    parser.add_argument("--model", nargs="+", default=[], help="all by default")
    parser.add_argument("--threshold", type=float, help="change of score; the study's own by default")
    parser.add_argument("--method", choices=list(METHODS), default="rr", help="of dB")
    parser.add_argument("--ridge", type=float, default=FitSettings().ridge, help="penalty of the logistic slopes")
    parser.add_argument("--seed", type=int, default=FitSettings().seed, help="of folds and bootstrap")
    parser.add_argument("--output", type=Path, required=True, help="calibration.json")
    options = parser.parse_args(argv)
    fit = parse(FitSettings, {"ridge": options.ridge, "seed": options.seed}, "refbias calibrate")
    if options.threshold is not None and not math.isfinite(options.threshold):
        raise UserError(f"--threshold {options.threshold}: must be a finite number")
    shift = needed(
        beside(options.observations, options.delta_b, "shift", "delta_b.csv"), "--delta-b", "the study's delta_b.csv"
    )
    records = needed(
        beside(options.observations, options.manifests, "records", "manifests.json"),
        "--manifests",
        "the study's records/manifests.json",
    )
    study = beside(options.observations, options.study, "manifest.json")
    shifts = read_shift(shift)
    chosen = Selection(options.method, options.benchmark, options.scorer, tuple(options.regime), tuple(options.model))
    found = with_control(read_observations(options.observations), chosen, shifts)
    data = found.data
    spectra = sorted({(str(model), str(regime)) for model, regime in zip(data.model, data.regime, strict=True)})
    outcome = Outcome(
        benchmark=found.benchmark,
        scorer=found.scorer,
        unit="topic" if found.benchmark in TOPIC_BENCHMARKS else "group",
        threshold=study_threshold(options.observations, options.threshold, found.benchmark),
    )
    models, regimes = sorted({model for model, _ in spectra}), sorted({regime for _, regime in spectra})
    calibration = fit_calibration(
        data,
        outcome,
        measure_of(read_manifests(records), shifts, spectra, options.method),
        provenance(options.observations, shift, study, models, regimes),
        fit,
        found.n_dropped,
    )
    save_calibration(calibration, options.output)
    print("\n".join(summary(calibration)))
