"""Tables, figures and the page of the competence lens, from the analysed folders alone."""

import argparse
from pathlib import Path

from refbias.artifacts import Stage, write_text
from refbias.competence.results import load_subjects
from refbias.tables.competence import tables as make_tables
from refbias.tables.printed import write_table


def _parser(name: str, what: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"refbias competence {name}", description=what)
    parser.add_argument("--results", type=Path, required=True, help="folder of <model>/<subject>/")
    return parser


def _inputs(folder: Path) -> dict[str, Path]:
    files = sorted(folder.glob("*/*/verdicts.json")) + sorted(folder.glob("*/*/effects.csv"))
    return {f"{path.parent.parent.name}/{path.parent.name}/{path.name}": path for path in files}


def tables(argv: list[str]) -> None:
    """Write every table as CSV, Markdown and LaTeX."""
    parser = _parser("tables", "Write the tables of the competence lens.")
    parser.add_argument("--stand-in", nargs="*", default=[], help="models that are the packaged 270M stand-in")
    parser.add_argument("--output", type=Path, required=True, help="folder of the tables")
    options = parser.parse_args(argv)
    subjects = load_subjects(options.results)
    with Stage("competence tables", {}, options.output, _inputs(options.results)) as stage:
        found = make_tables(subjects)
        for table in found:
            write_table(options.output / table.name, table.frame, table.text, table.caption)
        stage.record(tables=[table.name for table in found], stand_in=options.stand_in)


def figures(argv: list[str]) -> None:
    """Draw every figure as PDF and PNG."""
    # the tables alone need no matplotlib
    from refbias.figures.competence import draw
    from refbias.figures.style import save

    parser = _parser("figures", "Draw the figures of the competence lens.")
    parser.add_argument("--output", type=Path, required=True, help="folder of the figures")
    options = parser.parse_args(argv)
    subjects = load_subjects(options.results)
    with Stage("competence figures", {}, options.output, _inputs(options.results)) as stage:
        names = []
        for name, figure in draw(subjects):
            save(figure, options.output / name)
            names.append(name)
        stage.record(figures=names)


def report(argv: list[str]) -> None:
    """Write the lens as a page of its own."""
    from refbias.report.competence import page

    parser = _parser("report", "Write the page of the competence lens.")
    parser.add_argument("--figures", type=Path, help="folder of the figures; below the results by default")
    parser.add_argument("--output", type=Path, required=True, help="HTML file")
    options = parser.parse_args(argv)
    write_text(options.output, page(options.results, options.figures))
