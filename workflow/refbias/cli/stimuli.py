"""Validate sentence sets: the shipped ones, or a user's own files."""

import argparse
from pathlib import Path

from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError
from refbias.stimuli import check_quality, read_stimuli, validate_stimuli


def main(argv: list[str]) -> None:
    """Run ``refbias stimuli validate``.

    Raises
    ------
    UserError
        On a broken file, or under ``--strict`` when a quality finding stands.
    """
    parser = argparse.ArgumentParser(prog="refbias stimuli", description=__doc__)
    parser.add_argument("action", choices=["validate"])
    for name in ("groups", "targets", "attributes", "anchors", "control"):
        parser.add_argument(f"--{name}", type=Path, help=f"TSV of {name}; shipped where left out")
    parser.add_argument("--strict", action="store_true", help="treat quality findings as errors")
    options = parser.parse_args(argv)
    files = {
        f"{name}_file": getattr(options, name) for name in ("groups", "targets", "attributes", "anchors", "control")
    }
    settings = StimuliSettings(**{key: str(path) for key, path in files.items() if path})
    for name, count in validate_stimuli(settings).items():
        print(f"{name}: {count}")
    findings = check_quality(read_stimuli(settings))
    for finding in findings:
        print(finding)
    if findings and options.strict:
        raise UserError(f"{len(findings)} quality findings, listed above")
