"""Occupational competence: the expertise direction, its score, steering, behaviour, verdicts and their pictures."""

import importlib

from refbias.errors import UserError

# sub-command -> module and function; imported when asked for, since some need torch and others must not
_COMMANDS = {
    "represent": "refbias.cli.competence_represent:represent",
    "steer": "refbias.cli.competence_steer:steer",
    "answer": "refbias.cli.competence_answer:answer",
    "hire": "refbias.cli.competence_hire:hire",
    "axis": "refbias.cli.competence_axis:axis",
    "analyse": "refbias.cli.competence_analyse:analyse",
    "tables": "refbias.cli.competence_pictures:tables",
    "figures": "refbias.cli.competence_pictures:figures",
    "report": "refbias.cli.competence_pictures:report",
}


def main(argv: list[str]) -> int:
    """Run a sub-command."""
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: refbias competence {{{','.join(_COMMANDS)}}} [options]\n\n{__doc__}")
        raise SystemExit(0)
    if not argv or argv[0] not in _COMMANDS:
        named = f"unknown command {argv[0]!r}" if argv else "no command"
        raise UserError(f"competence: {named}: name one of {', '.join(_COMMANDS)}")
    module, _, function = _COMMANDS[argv[0]].partition(":")
    return getattr(importlib.import_module(module), function)(argv[1:]) or 0
