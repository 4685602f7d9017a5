"""Analyse a subject of the competence lens: effects, means by occupation and attribute, hiring by arm, verdicts."""

import argparse
import math
from pathlib import Path

from refbias.artifacts import Stage, write_csv, write_json
from refbias.competence.analysis import AnalysisSettings
from refbias.competence.analysis import analyse as analyse_folder
from refbias.competence.data import load_attributes, load_contrasts
from refbias.competence.statistics import EffectSettings
from refbias.competence.verdict import Criteria
from refbias.errors import UserError

INPUTS = ("scores.csv", "random_directions.csv", "behaviour.csv", "hiring.csv")
MANIFEST = "analyse.manifest.json"


def analyse(argv: list[str]) -> None:
    """Write effects.csv, occupations.csv, attributes.csv, hiring_arms.csv and verdicts.json into the folder.

    Without hiring.csv there is no hiring_arms.csv either: one of an earlier analysis is removed.
    """
    parser = argparse.ArgumentParser(prog="refbias competence analyse", description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="folder of one subject, with its csv files")
    parser.add_argument("--attributes", type=Path, help="TSV of attributes; shipped by default")
    parser.add_argument("--contrasts", type=Path, help="TSV of contrasts; shipped by default")
    parser.add_argument("--level", type=float, default=0.95, help="of intervals and tests")
    parser.add_argument("--n-resamples", type=int, default=2000, help="of the bootstrap")
    parser.add_argument("--n-permutations", type=int, default=10_000, help="of the sign-flip test")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--bound", type=float, default=0.25, help="grades of reading level that count as no difference")
    parser.add_argument("--hiring-bound", type=float, default=0.1, help="logits that count as no difference")
    parser.add_argument(
        "--representation-share",
        type=float,
        default=0.2,
        help="share of the median relevance check on E that counts as no difference",
    )
    options = parser.parse_args(argv)
    _check(options)
    settings = AnalysisSettings(
        EffectSettings(options.level, options.n_resamples, options.n_permutations, options.seed),
        Criteria(options.level, options.bound, options.representation_share),
        options.hiring_bound,
    )
    contrasts = load_contrasts(load_attributes(options.attributes), options.contrasts)
    names = ("level", "n_resamples", "n_permutations", "seed", "bound", "hiring_bound", "representation_share")
    inputs = {name: options.results / name for name in INPUTS if (options.results / name).is_file()}
    stage = Stage(
        "competence analyse",
        {name: getattr(options, name) for name in names},
        options.results,
        inputs,
        options.results / MANIFEST,
    )
    with stage:
        found = analyse_folder(options.results, contrasts, settings)
        write_csv(options.results / "effects.csv", found.effects)
        write_csv(options.results / "occupations.csv", found.occupations)
        write_csv(options.results / "attributes.csv", found.attributes)
        arms = options.results / "hiring_arms.csv"
        if "hiring.csv" in inputs:
            write_csv(arms, found.arms)
        else:
            arms.unlink(missing_ok=True)
        write_json(options.results / "verdicts.json", found.verdicts)
        outcomes = [verdict["outcome"] for verdict in found.verdicts["verdicts"]]
        stage.record(outcomes={outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))})
    print("\n".join(verdict["sentence"] for verdict in found.verdicts["verdicts"]))


def _check(options: argparse.Namespace) -> None:
    if not options.results.is_dir():
        raise UserError(f"--results {options.results}: no such folder: name that of one subject")
    if not 0 < options.level < 1:
        raise UserError(f"--level {options.level}: must lie between 0 and 1")
    for name in ("n_resamples", "n_permutations", "bound", "hiring_bound", "representation_share"):
        if not 0 < getattr(options, name) < math.inf:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}: must be positive and finite")
    if options.seed < 0:
        raise UserError(f"--seed {options.seed}: must not be negative")
