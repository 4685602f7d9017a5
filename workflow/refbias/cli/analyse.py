"""Relate dB to the change of behaviour: units, observations, table 1 and the AUC curves."""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from refbias import analysis
from refbias.artifacts import Stage, write_csv, write_text
from refbias.benchmarks import BENCHMARKS
from refbias.config.analysis import AnalyseStage
from refbias.config.base import parse_json
from refbias.errors import UserError
from refbias.resources import data_path
from refbias.tables import table1_beside_paper, table1_latex, table1_markdown

# thresholds of the AUC curve: finer than the paper's operating points, coarser than 1 / n_outputs
CURVE_THRESHOLDS = np.round(np.arange(0.0, 0.5001, 0.01), 2)


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV or TSV file of this pipeline.

    Raises
    ------
    UserError
        If it is missing, empty or broken.
    """
    separator = "\t" if path.suffix == ".tsv" else ","
    try:
        return pd.read_csv(path, sep=separator, keep_default_na=False, na_values=[""])
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): name a table") from None
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path}: cannot be read as a table: {' '.join(str(error).split())}") from None


def main(argv: list[str]) -> None:
    """Write the tables and their manifest."""
    parser = argparse.ArgumentParser(prog="refbias analyse", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--shift", type=Path, required=True, help="delta_b.csv")
    parser.add_argument("--scores", type=Path, nargs="+", required=True, help="outputs.csv of every model and source")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(argv)
    settings = parse_json(AnalyseStage, options.settings, "--settings")
    inputs = {"delta_b": options.shift, **{f"scores_{at}": path for at, path in enumerate(options.scores)}}
    groups = read_table(Path(settings.groups_file) if settings.groups_file else data_path("stimuli", "groups.tsv"))
    pairing = analysis.unit_groups(groups)
    resamples, seed = settings.analysis.n_resamples, settings.seed
    with Stage("analyse", settings.model_dump(mode="json"), options.output, inputs) as stage:
        outputs = pd.concat([read_table(path) for path in options.scores], ignore_index=True)
        expected = {benchmark: list(pairing[benchmark]) for benchmark in settings.thresholds}
        sources = {name: benchmark.source for name, benchmark in BENCHMARKS.items()}
        units = analysis.unit_scores(outputs, resamples, seed, expected, sources)
        write_csv(options.output / "units.csv", units)
        pairs = analysis.observations(units, read_table(options.shift), pairing)
        write_csv(options.output / "observations.csv", pairs)
        # read back, so that table 1 follows from the file that a reader has, digit by digit
        observations = read_table(options.output / "observations.csv")
        table = analysis.table1(observations, settings.thresholds, resamples, seed, units)
        table = table1_beside_paper(table, settings.families)
        write_csv(options.output / "table1.csv", table)
        write_csv(options.output / "auc_threshold.csv", analysis.auc_curve(observations, list(CURVE_THRESHOLDS)))
        write_text(options.output / "table1.md", table1_markdown(table))
        write_text(options.output / "table1.tex", table1_latex(table))
        stage.record(n_observations=len(observations), n_units=len(units))
