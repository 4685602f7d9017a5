"""Judge the two-stage audit on a finished study: benchmarks only where dB raises an alarm.

With --select LEVEL instead: list what lies at or above an alarm level, of a study or (--audit) of an audit, so that
only that is benchmarked; `refbias benchmark` runs the benchmarks on what was listed of an audit.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pandas as pd

from refbias.analysis.audited import SPECS, audited_shifts
from refbias.analysis.controls import Selection, alarmed, with_control
from refbias.analysis.pairs import CHECKPOINT
from refbias.artifacts import write_csv, write_json, write_text
from refbias.calibration.costs import study_costs
from refbias.calibration.report import two_stage
from refbias.cli.study import beside, needed, read_manifests, read_observations, read_shift, study_threshold
from refbias.config.audit_result import load_result
from refbias.config.two_stage import AlarmBy, Level, TwoStage
from refbias.errors import UserError
from refbias.metrics import METHODS
from refbias.tables.two_stage import two_stage_markdown, two_stage_table


def summary(found: TwoStage) -> list[str]:
    """Return the account in lines for the terminal."""
    lines = [
        f"{found.benchmark}, {', '.join(found.regimes)}: {found.n_rose} of {found.n} units rose by more than "
        f"{found.threshold:g}; alarm {found.by} by {found.level}, AUC {found.auc:.2f}"
    ]
    if found.costs:
        lines.append(f"benchmarking everything {found.costs.benchmark:.0f} s, dB {found.costs.shift:.0f} s")
    for row in found.held_out:
        saved = "" if row.saved is None else f", {row.saved:.0%} of the cost saved (a coin {row.saved_by_coin:.0%})"
        lines.append(
            f"recall {row.target:.0%} aimed at on the other checkpoints: recall {row.recall:.0%}, "
            f"{row.share:.0%} benchmarked{saved}"
        )
    return [*lines, *(f"warning: {sentence}" for sentence in found.warnings)]


def main(argv: Sequence[str]) -> None:
    """Write the account, or the list."""
    parser = argparse.ArgumentParser(prog="refbias two-stage", description=__doc__)
    parser.add_argument("--observations", type=Path, help="observations.csv of the study")
    parser.add_argument("--delta-b", type=Path, help="delta_b.csv; beside the observations by default")
    parser.add_argument("--costs", type=Path, help="records/manifests.json; beside the observations by default")
    parser.add_argument("--benchmark", help="needed where the study has several")
    parser.add_argument("--scorer", help="needed where a benchmark has several")
    parser.add_argument("--regime", nargs="+", default=[], help="all by default")
    parser.add_argument("--model", nargs="+", default=[], help="all by default")
    parser.add_argument("--threshold", type=float, help="change of score; the study's own by default")
    parser.add_argument("--method", choices=list(METHODS), default="rr", help="of dB")
    parser.add_argument("--by", choices=get_args(AlarmBy), default="abs", help="what raises an alarm")
    parser.add_argument(
        "--level", choices=get_args(Level), default="unit", help="send single units (groups) or whole checkpoints"
    )
    parser.add_argument("--levels", type=float, nargs="+", default=[], help="alarm levels; 21 of the study by default")
    parser.add_argument("--n-resamples", type=int, default=1000, help="of the bootstrap")
    parser.add_argument("--seed", type=int, default=17, help="of the bootstrap")
    parser.add_argument("--select", type=float, metavar="LEVEL", help="list what lies at or above this alarm level")
    parser.add_argument(
        "--audit", type=Path, metavar="JSON", help="audit.json to select from, in place of a study's dB"
    )
    parser.add_argument("--figure", type=Path, help="also draw cost saved against recall: path without extension")
    parser.add_argument("--output", type=Path, required=True, help="folder of two_stage.*; with --select a CSV file")
    options = parser.parse_args(argv)
    if options.select is not None:
        _select(options)
        return
    if options.audit is not None:
        raise UserError("--audit: goes with --select LEVEL: an audit alone has no scores to judge the two stages by")
    if options.observations is None:
        raise UserError("--observations: missing: name the study's observations.csv, or use --select")
    shift = needed(
        beside(options.observations, options.delta_b, "shift", "delta_b.csv"), "--delta-b", "the study's delta_b.csv"
    )
    chosen = Selection(options.method, options.benchmark, options.scorer, tuple(options.regime), tuple(options.model))
    found = with_control(read_observations(options.observations), chosen, read_shift(shift))
    records = beside(options.observations, options.costs, "records", "manifests.json")
    result = two_stage(
        found.data,
        benchmark=found.benchmark,
        scorer=found.scorer,
        threshold=study_threshold(options.observations, options.threshold, found.benchmark),
        method=options.method,
        by=options.by,
        level=options.level,
        costs=study_costs(read_manifests(records), found.data, found.benchmark) if records else None,
        levels=options.levels,
        n_dropped=found.n_dropped,
        n_resamples=options.n_resamples,
        seed=options.seed,
    )
    write_csv(options.output / "two_stage.csv", two_stage_table(result))
    write_text(options.output / "two_stage.md", two_stage_markdown(result))
    if options.figure:
        # the numbers alone need no matplotlib
        from refbias.figures.style import save
        from refbias.figures.two_stage import two_stage_figure

        save(two_stage_figure(result), options.figure)
    write_json(options.output / "two_stage.json", result.model_dump(mode="json"))
    print("\n".join(summary(result)))


def _select(options: argparse.Namespace) -> None:
    if options.audit is not None:
        if options.delta_b is not None or options.observations is not None:
            raise UserError("--audit: an audit or a study, not both: leave out --delta-b and --observations")
        shifts = audited_shifts(load_result(options.audit))
    else:
        path = options.delta_b or (options.observations and beside(options.observations, None, "shift", "delta_b.csv"))
        shifts = read_shift(needed(path, "--delta-b", "the table of dB to select from, or an audit by --audit"))
    chosen = Selection(options.method, regimes=tuple(options.regime), models=tuple(options.model))
    listed: pd.DataFrame = alarmed(shifts, chosen, options.by, options.level, options.select)
    if options.audit is not None:
        # what names the models, for the command that benchmarks them
        listed = listed.merge(shifts[[*CHECKPOINT, *SPECS]].drop_duplicates(), on=CHECKPOINT, how="left")
    write_csv(options.output, listed)
    print(f"{len(listed)} {'groups' if options.level == 'unit' else 'checkpoints'} at or above {options.select:g}")
