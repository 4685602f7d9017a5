"""Write the run's HTML report from its stored tables, figures and manifests."""

import argparse
from pathlib import Path

from refbias.artifacts import write_text
from refbias.config.base import parse_json
from refbias.config.report import ReportStage
from refbias.report import competence, load, metamorphic, render


def main(argv: list[str]) -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(prog="refbias report", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--figures", type=Path, required=True, help="folder of the figures")
    parser.add_argument("--shift", type=Path, required=True, help="folder of delta_b.csv")
    parser.add_argument("--records", type=Path, required=True, help="folder of the collected manifests and losses")
    parser.add_argument("--metamorphic", type=Path, help="folder of the metamorphic lens, with tables/ and figures/")
    parser.add_argument("--competence", type=Path, help="folder of the competence lens, with figures/")
    parser.add_argument("--output", type=Path, required=True, help="HTML file")
    options = parser.parse_args(argv)
    settings = parse_json(ReportStage, options.settings, "--settings")
    inputs = load(options.tables, options.figures, options.shift, options.records, options.output)
    sections = [metamorphic.section(options.metamorphic)] if options.metamorphic else []
    sections += [competence.section(options.competence)] if options.competence else []
    write_text(options.output, render(settings, inputs, sections))
