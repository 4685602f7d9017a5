"""Check models, data, licences, disk and GPU before a run; exit 2 if anything is missing."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from refbias.artifacts import write_json
from refbias.config.base import parse_json
from refbias.config.root import Config, from_yaml
from refbias.environment import go_offline
from refbias.errors import UserError
from refbias.preflight import MISSING, OK, Row, check

WIDE = 400
"""Columns where the output is no terminal: no line is broken, so that a log can be searched."""
_STYLES = {"ok": "green", "note": "yellow", "missing": "bold red"}


def _show(rows: Sequence[Row], console: Console) -> None:
    table = Table(title="Preflight", title_justify="left")
    for name in ("needed", "", "found", "to do"):
        table.add_column(name, overflow="fold")
    for row in rows:
        name, key, found, mend = map(escape, (row.name, row.key, row.found, row.mend))
        table.add_row(f"{name}\n[dim]{key}[/dim]" if key else name, f"[{_STYLES[row.status]}]{row.status}", found, mend)
    console.print(table)


def main(argv: Sequence[str]) -> None:
    """Run ``refbias preflight --config FILE [--output FILE]``."""
    parser = argparse.ArgumentParser(prog="refbias preflight", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, help="Configuration file of the run.")
    source.add_argument("--settings", help="JSON: the configuration, as the workflow hands it over.")
    parser.add_argument("--without-gpu", action="store_true", help="This machine does not do the GPU work.")
    parser.add_argument("--output", type=Path, help="JSON file for the table.")
    args = parser.parse_args(argv)
    config = from_yaml(args.config) if args.config else parse_json(Config, args.settings, "--settings")
    if config.offline:
        go_offline()
    rows = check(config, gpu=not args.without_gpu)
    _show(rows, Console(width=None if sys.stdout.isatty() else WIDE))
    missing = [row for row in rows if row.status == MISSING]
    if args.output:
        write_json(args.output, {"ok": not missing, "rows": [row.as_json() for row in rows]})
    if missing:
        names = ", ".join(dict.fromkeys(row.name for row in missing))
        raise UserError(f"preflight: {len(missing)} of {len(rows)} checks fail ({names}): see the table's last column")
    notes = sum(row.status != OK for row in rows)
    print(f"preflight: {len(rows)} checks passed" + (f", {notes} with a note" if notes else ""))
