"""One of the processes that share a fine-tuning; torchrun starts it, see `refbias.finetune.launch`.

The first process leaves the facts for the manifest in the answers folder; one that meets a mistake
of the user's leaves the line there and ends with exit code 2, upon which torchrun ends the others.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from refbias.artifacts import write_json, write_text
from refbias.config.base import parse_json
from refbias.config.finetune import FinetuneStage
from refbias.errors import UserError
from refbias.finetune.launch import FACTS, MISTAKE
from refbias.finetune.run import finetune
from refbias.splits import SplitFilter, read_split


def main(argv: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    parser = argparse.ArgumentParser(prog="refbias.finetune.worker", description=__doc__)
    for name in ("settings", "split", "reference", "output", "work", "answers"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args(argv)
    answers = Path(args.answers)
    try:
        settings = parse_json(FinetuneStage, args.settings, "--settings")
        examples, _ = read_split(args.split, settings.split, SplitFilter(**settings.filters.model_dump()))
        facts = finetune(settings, examples, args.reference, Path(args.output), Path(args.work))
    except UserError as error:
        write_text(answers / MISTAKE, str(error))
        return 2
    if os.environ["RANK"] == "0":
        write_json(answers / FACTS, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
