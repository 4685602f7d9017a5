"""Tables, figures and the page of the metamorphic lens, from stored answers alone."""

import argparse
from pathlib import Path

import pandas as pd

from refbias.artifacts import Stage, write_text
from refbias.errors import UserError
from refbias.metamorphic.account import relations
from refbias.metamorphic.beside_db import SHIFT_COLUMNS, beside_db, summary
from refbias.metamorphic.biasasker import read_material
from refbias.metamorphic.data import load_neutral
from refbias.metamorphic.remedy import remedies, side_effects
from refbias.metamorphic.results import Run, read_run
from refbias.stimuli import load_groups
from refbias.tables.cells import read_csv
from refbias.tables.metamorphic import FILES, tables
from refbias.tables.printed import write_table


def _parser(command: str, text: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"refbias metamorphic {command}", description=text)


def _besides(run: Run, options: argparse.Namespace) -> tuple[pd.DataFrame, pd.DataFrame]:
    shift = read_csv(options.shift, SHIFT_COLUMNS) if options.shift else pd.DataFrame(columns=SHIFT_COLUMNS)
    topics = {group.id: group.topic for group in load_groups(options.target_groups)}
    found = beside_db(run, shift, topics, method=options.method, seed=options.seed, n_resamples=options.n_resamples)
    return found, summary(found, seed=options.seed, n_resamples=min(options.n_resamples, 1000))


def make_tables(argv: list[str]) -> int:
    """Write all tables as CSV, Markdown and LaTeX, and the manifest last."""
    parser = _parser("tables", "Make the tables of the metamorphic lens.")
    parser.add_argument("--results", type=Path, required=True, help="folder with questions/ and answers/")
    parser.add_argument("--groups", type=Path, help="TSV of groups, or CSV of a BiasAsker copy; shipped by default")
    parser.add_argument("--properties", type=Path, help="TSV of properties, or CSV of a BiasAsker copy")
    parser.add_argument("--neutral", type=Path, help="TSV of neutral questions; shipped by default")
    parser.add_argument("--shift", type=Path, help="delta_b.csv of the run; without it nothing stands beside dB")
    parser.add_argument("--target-groups", type=Path, help="TSV of the target groups of dB; shipped by default")
    parser.add_argument("--method", default="rr", help="of dB")
    parser.add_argument("--stand-in", nargs="*", default=[], help="models that are the packaged 270M stand-in")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstraps")
    parser.add_argument("--n-resamples", type=int, default=2000, help="of the bootstraps over source questions")
    parser.add_argument("--output", type=Path, required=True, help="folder of the tables")
    options = parser.parse_args(argv)
    if options.n_resamples < 1 or options.seed < 0:
        raise UserError("--n-resamples and --seed: at least one resample, and no negative seed")
    settings = {"method": options.method, "seed": options.seed, "n_resamples": options.n_resamples}
    named = ("groups", "properties", "neutral", "shift", "target_groups")
    inputs = {name: path for name in named if (path := getattr(options, name))}
    run = read_run(options.results)
    answers = sorted(options.results.glob("answers/*/*/*/answers.jsonl"))
    inputs |= {"/".join(path.parts[-4:-1]): path for path in answers}
    with Stage("metamorphic_tables", settings, options.output, inputs) as stage:
        frames = (
            *relations(run, seed=options.seed, n_resamples=options.n_resamples),
            remedies(run, seed=options.seed, n_resamples=options.n_resamples),
            side_effects(run, load_neutral(options.neutral), read_material(options.groups, options.properties)),
            *_besides(run, options),
        )
        made = tables(*frames)
        for one in made:
            write_table(options.output / one.stem, one.frame, one.text, one.caption)
        stage.record(
            tables=[one.stem for one in made],
            held_out={model: held.relation for model, held in run.held_out.items()},
            stand_in=options.stand_in,
            chosen_among_options=sorted({asked.model for asked in run.asked if asked.options}),
        )
    return 0


def _read(folder: Path) -> dict[str, pd.DataFrame]:
    return {stem: read_csv(folder / f"{stem}.csv", columns) for stem, columns in FILES.items()}


def make_figures(argv: list[str]) -> int:
    """Draw the figures as PDF and PNG, and write the manifest last."""
    from refbias.figures import save
    from refbias.figures.metamorphic import draw_all

    parser = _parser("figures", "Draw the figures of the metamorphic lens from its tables.")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--output", type=Path, required=True, help="folder of the figures")
    options = parser.parse_args(argv)
    inputs = {stem: options.tables / f"{stem}.csv" for stem in FILES}
    frames = _read(options.tables)
    with Stage("metamorphic_figures", {}, options.output, inputs) as stage:
        names = []
        for name, figure in draw_all(frames):
            save(figure, options.output / name)
            names.append(name)
        stage.record(figures=names)
    return 0


def make_report(argv: list[str]) -> int:
    """Write the stand-alone page of the lens."""
    from refbias.report.metamorphic import page

    parser = _parser("report", "Write the page of the metamorphic lens: aggregates and figures, no model's text.")
    parser.add_argument("--results", type=Path, required=True, help="folder with tables/ and figures/")
    parser.add_argument("--output", type=Path, required=True, help="HTML file")
    options = parser.parse_args(argv)
    write_text(options.output, page(options.results))
    return 0
