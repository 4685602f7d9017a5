"""``python -m refbias`` and the console script ``refbias``."""

import sys

from refbias.cli.main import main


def run() -> None:
    """Run the command line and leave the process with its exit code."""
    sys.exit(main())


if __name__ == "__main__":
    run()
