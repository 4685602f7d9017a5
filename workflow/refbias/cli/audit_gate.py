"""Hold a finished audit's groups against conditions: a gate for CI that computes nothing anew.

exit codes: 0 no group meets a condition; 1 one does; 2 a mistake that you can mend.
"""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from refbias.artifacts import write_json
from refbias.audit.verdicts import exceeded, met_lines
from refbias.config.audit import parse_condition
from refbias.config.audit_result import load_result

LOG = logging.getLogger(__name__)
EXCEEDED = 1


def main(argv: Sequence[str]) -> int:
    """Say which groups meet a condition.

    Returns
    -------
    int
        0, or 1 where a group meets one.

    Raises
    ------
    UserError
        If the result cannot be read, or a condition asks for what was not computed.
    """
    head, _, tail = (__doc__ or "").rpartition("\nexit codes:")
    parser = argparse.ArgumentParser(prog="refbias audit-gate", description=head, epilog=f"exit codes:{tail}")
    parser.add_argument("result", metavar="AUDIT_JSON", type=Path, help="audit.json of a finished audit")
    parser.add_argument(
        "--fail-on", action="append", required=True, metavar="CONDITION", help="as of refbias audit; may be repeated"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write conditions and groups that meet them as JSON"
    )
    args = parser.parse_args(argv)
    for text in args.fail_on:
        parse_condition(text)
    found = exceeded(load_result(args.result), args.fail_on)
    if args.output is not None:
        write_json(args.output, {"conditions": args.fail_on, "exceeded": [list(row) for row in found]})
    for line in met_lines(found):
        LOG.error("%s", line)
    return EXCEEDED if found else 0
