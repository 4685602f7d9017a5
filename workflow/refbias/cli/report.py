"""Write the run's HTML report from its stored tables, figures and manifests."""

import argparse
from pathlib import Path

from refbias.artifacts import write_text
from refbias.config.base import parse_json
from refbias.config.report import ReportStage
from refbias.errors import UserError
from refbias.report import load, render


def named_manifest(text: str) -> tuple[str, Path]:
    """Split ``ROLE=PATH``.

    Raises
    ------
    UserError
        If there is no role or no path.
    """
    role, _, path = text.partition("=")
    if not role or not path:
        raise UserError(f"--manifests {text!r}: expected ROLE=PATH")
    return role, Path(path)


def main(argv: list[str]) -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(prog="refbias report", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--figures", type=Path, required=True, help="folder of the figures")
    parser.add_argument("--shift", type=Path, required=True, help="folder of delta_b.csv")
    parser.add_argument("--manifests", nargs="*", action="extend", default=[], metavar="ROLE=PATH")
    parser.add_argument("--output", type=Path, required=True, help="HTML file")
    options = parser.parse_args(argv)
    settings = parse_json(ReportStage, options.settings, "--settings")
    manifests = dict(map(named_manifest, options.manifests))
    inputs = load(options.tables, options.figures, options.shift, manifests, options.output)
    write_text(options.output, render(settings, inputs))
