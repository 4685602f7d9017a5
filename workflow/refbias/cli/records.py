"""Collect manifests and training losses, so that pictures outlive models, generations and embeddings."""

import argparse
import csv
from pathlib import Path

from refbias.artifacts import Stage, read_json, write_json, write_rows
from refbias.errors import UserError

LOSS_COLUMNS = ["model", "regime", "split", "step", "loss"]


def named_path(text: str, option: str) -> tuple[str, Path]:
    """Split ``NAME=PATH``.

    Raises
    ------
    UserError
        If there is no name or no path.
    """
    name, _, path = text.partition("=")
    if not name or not path:
        raise UserError(f"{option} {text!r}: expected NAME=PATH")
    return name, Path(path)


def loss_rows(name: str, path: Path) -> list[list[str]]:
    """Return the rows of one training's history, in `LOSS_COLUMNS`.

    Raises
    ------
    UserError
        If the name has other than three parts, the file is missing or lacks a column.
    """
    place = name.split("/")
    if len(place) != 3:
        raise UserError(f"--losses {name}: expected MODEL/REGIME/SPLIT=PATH")
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            return [[*place, row["step"], row["loss"]] for row in csv.DictReader(handle)]
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: run the stage finetune again") from None
    except KeyError as error:
        raise UserError(f"{path}:1: column {error} is missing: run the stage finetune again") from None


def main(argv: list[str]) -> None:
    """Write ``manifests.json`` (role -> manifest) and ``losses.csv``."""
    parser = argparse.ArgumentParser(prog="refbias records", description=__doc__)
    parser.add_argument("--manifests", nargs="*", action="extend", default=[], metavar="ROLE=PATH")
    parser.add_argument("--losses", nargs="*", action="extend", default=[], metavar="MODEL/REGIME/SPLIT=PATH")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(argv)
    manifests = dict(named_path(text, "--manifests") for text in options.manifests)
    losses = dict(named_path(text, "--losses") for text in options.losses)
    with Stage("records", {}, options.output) as stage:
        found = {role: read_json(path) for role, path in manifests.items()}
        for role, content in found.items():
            if not isinstance(content, dict):
                raise UserError(f"{manifests[role]}: a manifest must hold a JSON object: run the stage again")
        write_json(options.output / "manifests.json", found)
        rows = [row for name, path in losses.items() for row in loss_rows(name, path)]
        write_rows(options.output / "losses.csv", LOSS_COLUMNS, rows)
        stage.record(n_manifests=len(found), n_losses=len(losses))
