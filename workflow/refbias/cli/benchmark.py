"""Run the output benchmarks on the checkpoints that an audit's dB raised an alarm for, and on their reference.

The list comes from `refbias two-stage --audit audit.json --select LEVEL`. Benchmarks, scorers, generation, number type
and seed are a configuration's; its models and regimes are not used. Whole checkpoints are benchmarked, every unit.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pandas as pd

from refbias import analysis
from refbias.analysis.audited import CHANGE_COLUMNS, checked_selection, score_changes
from refbias.analysis.units import REFERENCE
from refbias.artifacts import write_csv
from refbias.benchmarks import BENCHMARKS
from refbias.cli.analyse import read_table
from refbias.config.models import ChatFormat
from refbias.config.root import Config, from_yaml, used_scorers
from refbias.config.slices import prompts_slice, score_slice
from refbias.errors import UserError
from refbias.report.audit.words import clean
from refbias.resources import data_path
from refbias.tables import read_csv

SOURCE = "audited"


@dataclass(frozen=True)
class Selected:
    """A checkpoint to benchmark: its name in the audit, a name for its folders, and where its weights lie."""

    name: str
    slug: str
    folder: Path


def resolve(selected: pd.DataFrame, dtype: str) -> tuple[Path, list[Selected]]:
    """Return the reference's folder and the selected checkpoints.

    Raises
    ------
    UserError
        If a model is no longer there, or is a weighted sum, which lies in no folder.
    """
    from refbias.audit.sources import Source, resolve_audited, resolve_reference

    def folder(source: Source) -> Path:
        if len(source.parts) > 1:
            raise UserError(
                f"{source.spec}: a weighted sum lies in no folder that could generate: write it as a checkpoint of its "
                "own, audit that and select it"
            )
        return source.parts[0].adapter or source.directory

    reference = resolve_reference(str(selected["reference"].iloc[0]), dtype)
    if reference.adapters:
        raise UserError(
            f"{reference.spec}: an adapter as reference generates nothing by itself: merge it into its base"
        )
    found = []
    for number, (name, spec) in enumerate(
        selected[["checkpoint", "spec"]].drop_duplicates().itertuples(index=False), start=1
    ):
        # a training run's folder names all of its checkpoints, the last save by the folder itself
        sources = [
            source for source in resolve_audited(spec, reference, dtype, any_base=True) if source.spec == spec.strip()
        ]
        if not sources:
            raise UserError(f"{spec}: no longer the checkpoint that was audited: audit it again")
        slug = f"{number:03d}-{re.sub(r'[^A-Za-z0-9._-]+', '-', str(name))[:60]}"
        found.append(Selected(str(name), slug, folder(sources[0])))
    return folder(reference), found


def run_benchmarks(
    config: Config, options: argparse.Namespace, model: str, reference: Path, found: Sequence[Selected]
) -> pd.DataFrame:
    """Generate and score; return the scored outputs of the reference and of every checkpoint, by its name.

    Parameters
    ----------
    config
        Benchmarks, scorers, generation, number type and seed.
    options
        Of the command line: chat format, scorers' models, output.
    model, reference
        Name and folder of the reference.
    found
        Checkpoints.
    """
    from refbias.cli import generate, judge, score

    settings, output = prompts_slice(config, options.chat_format), options.output
    for one in (None, *found):
        slug = REFERENCE if one is None else one.slug
        generate.main(
            [
                *("--settings", settings, "--reference", str(reference), "--name", slug),
                *(() if one is None else ("--checkpoint", str(one.folder))),
                *("--output", str(output / "generations" / slug), "--work", str(output / "work" / slug)),
            ]
        )
    stage = judge.main if used_scorers(config) else score.main
    stage(
        [
            *("--settings", score_slice(config), "--generations", str(output / "generations")),
            *("--model", model, "--source", SOURCE),
            *("--checkpoints", REFERENCE, *(one.slug for one in found)),
            *(() if options.guards is None else ("--guards", str(options.guards))),
            *("--output", str(output / "scores")),
        ]
    )
    outputs = read_csv(output / "scores" / "outputs.csv", score.COLUMNS)
    return outputs.assign(checkpoint=outputs["checkpoint"].replace({one.slug: one.name for one in found}))


def summary(changes: pd.DataFrame) -> list[str]:
    """Return a line a benchmark and checkpoint for the terminal."""
    lines = []
    for (benchmark, checkpoint), rows in changes.groupby(["benchmark", "checkpoint"], sort=False):
        most = rows.iloc[0]
        change = (
            "none has a score" if pd.isna(most["delta_score"]) else f"most {most['unit']} {most['delta_score']:+.3f}"
        )
        lines.append(
            clean(
                f"{checkpoint}, {benchmark}: {int(rows['rose'].sum())} of {len(rows)} units rose by more than "
                f"{most['threshold']:g}; {change}"
            )
        )
    return lines


def main(argv: Sequence[str]) -> None:
    """Write generations, scores and ``changes.csv``."""
    parser = argparse.ArgumentParser(prog="refbias benchmark", description=__doc__)
    parser.add_argument("--selected", type=Path, required=True, help="CSV of `refbias two-stage --audit --select`")
    parser.add_argument("--config", required=True, help="configuration with benchmarks, scorers and generation")
    parser.add_argument("--chat-format", choices=get_args(ChatFormat), default="auto", help="as models.*.chat_format")
    parser.add_argument("--guards", type=Path, help="folder SCORER/ of the scorers' models, where scorers run models")
    parser.add_argument("--output", type=Path, required=True, help="folder for generations, scores and changes.csv")
    options = parser.parse_args(argv)
    config = from_yaml(options.config)
    if not config.benchmarks.enabled():
        raise UserError(f"{options.config}: key 'benchmarks': none is enabled, so there is nothing to run")
    selected = checked_selection(read_csv(options.selected, []), str(options.selected))
    if used_scorers(config) and options.guards is None:
        raise UserError(
            f"--guards: needed, {', '.join(used_scorers(config))} runs a model: name the folder that holds it"
        )
    pairing = analysis.unit_groups(
        read_table(
            Path(config.stimuli.groups_file) if config.stimuli.groups_file else data_path("stimuli", "groups.tsv")
        )
    )
    # a de-quantised model is written in one of two number types
    reference, found = resolve(selected, "bfloat16" if config.compute.dtype == "bfloat16" else "float32")
    outputs = run_benchmarks(config, options, str(selected["model"].iloc[0]), reference, found)
    changes = score_changes(
        outputs,
        selected,
        {name: entry.threshold for name, entry in config.benchmarks.enabled().items()},
        pairing,
        config.analysis.n_resamples,
        config.seed,
        {name: benchmark.source for name, benchmark in BENCHMARKS.items()},
    )
    write_csv(options.output / "changes.csv", changes[CHANGE_COLUMNS])
    print("\n".join([*summary(changes), f"written to {options.output}"]))
