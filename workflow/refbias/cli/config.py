"""Validate a configuration, or print its JSON schema or its documentation."""

import argparse
import json

from refbias.config.docs import markdown
from refbias.config.root import Config, from_yaml


def main(argv: list[str]) -> None:
    """Run ``refbias config validate FILE | schema | docs``."""
    parser = argparse.ArgumentParser(prog="refbias config", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    validate = actions.add_parser("validate", help="check a configuration file")
    validate.add_argument("file")
    actions.add_parser("schema", help="print the JSON schema")
    actions.add_parser("docs", help="print every key with unit and default, as Markdown")
    options = parser.parse_args(argv)
    if options.action == "validate":
        config = from_yaml(options.file)
        print(f"{options.file}: valid, run {config.run!r}")
    elif options.action == "schema":
        print(json.dumps(Config.model_json_schema(), indent=1, sort_keys=True))
    else:
        print(markdown())
