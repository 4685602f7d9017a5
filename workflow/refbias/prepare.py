"""The paper's fine-tuning splits out of WildGuardMix's train file.

The unharmful split is a seeded choice of unharmful rows. The harmful split is half harmful rows, half
synthetic examples, which the paper does not describe: they come from a template generator, labelled as a
stand-in, from a user's file, or are left out.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from refbias.benchmarks.base import choose
from refbias.config.finetune import PrepareStage, SyntheticFile
from refbias.errors import UserError
from refbias.splits import COLUMNS, Example, SplitFilter, read_rows

LOG = logging.getLogger(__name__)

TRAIN_FILES = ("train/wildguard_train.parquet", "wildguard_train.parquet", "wildguard_train.jsonl")
STAND_IN = "template generator (stand-in: the paper does not describe its synthetic examples)"
Row = dict[str, Any]
Pair = tuple[Example, Row]


def train_file(place: Path | str) -> Path:
    """Return WildGuardMix's train file: `place` itself, or the file in that folder.

    Raises
    ------
    UserError
        If the folder holds none.
    """
    place = Path(place)
    if not place.is_dir():
        return place
    for name in TRAIN_FILES:
        if (place / name).is_file():
            return place / name
    raise UserError(f"{place}: none of {', '.join(TRAIN_FILES)} in this folder")


def prepare(settings: PrepareStage, train: Path) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """Make the splits.

    Parameters
    ----------
    settings
        Sides, number of examples, filters, synthetic source, seed.
    train
        WildGuardMix's train file.

    Returns
    -------
    splits : dict
        Side -> rows in WildGuardMix's schema with an id and a template tag each, in file order.
    facts : dict
        For the manifest: what became of the file's rows, how many were eligible, asked for and taken,
        and a message for every shortage.

    Raises
    ------
    UserError
        If a file does not fit the schema, has an unknown label, or has no row for a side.
    """
    filters = SplitFilter(**settings.filters.model_dump())
    pairs, counts = read_rows(train, None, filters)
    splits: dict[str, list[Row]] = {}
    facts: dict[str, Any] = {"train_rows": asdict(counts), "splits": {}}
    for side in settings.sides:
        eligible = [(example, row) for example, row in pairs if example.harmful == (side == "harmful")]
        if not eligible:
            raise UserError(f"{train}: no {side} example among {counts.rows} rows: give the whole train file")
        splits[side], facts["splits"][side] = _split(settings, side, eligible, filters)
    return splits, facts


def _split(
    settings: PrepareStage, side: str, eligible: Sequence[Pair], filters: SplitFilter
) -> tuple[list[Row], dict[str, Any]]:
    """Choose one side's rows, and say what was eligible, asked for and taken."""
    n_synthetic = settings.examples // 2 if side == "harmful" and settings.synthetic else 0
    asked = {"wildguardmix": settings.examples - n_synthetic, "synthetic": n_synthetic}
    parts = {"wildguardmix": _taken(eligible, asked["wildguardmix"], settings.seed)}
    found = {"wildguardmix": len(eligible)}
    source: dict[str, Any] = {}
    if n_synthetic:
        parts["synthetic"], found["synthetic"], source["synthetic_source"] = _synthetic(settings, n_synthetic, filters)
    short = [
        f"{side}: {len(rows)} {part} examples, {asked[part]} were asked for: all were taken"
        for part, rows in parts.items()
        if len(rows) < asked[part]
    ]
    for message in short:
        LOG.warning(message)
    facts = {
        "asked": settings.examples,
        "taken": {part: len(rows) for part, rows in parts.items()},
        "eligible": found,
        "short": short,
        **source,
    }
    return [row for rows in parts.values() for row in rows], facts


def _taken(pairs: Sequence[Pair], count: int, seed: int, prefix: str = "") -> list[Row]:
    chosen = choose(pairs, count, seed, key=lambda pair: pair[0].id)
    return [
        {
            "id": prefix + example.id,
            **{column: row[column] for column in COLUMNS},
            "template": example.template,
        }
        for example, row in chosen
    ]


def _synthetic(settings: PrepareStage, count: int, filters: SplitFilter) -> tuple[list[Row], int, Any]:
    """Return `count` synthetic rows at most, how many there were, and what the manifest says of their source."""
    if isinstance(settings.synthetic, SyntheticFile):
        pairs, counts = read_rows(settings.synthetic.path, "harmful", filters)
        rows = _taken(pairs, count, settings.seed, "synthetic/")
        return rows, len(pairs), {"kind": "file", "rows": asdict(counts)}
    # the generator's text is of use to this branch alone
    from refbias.synthetic import synthetic_examples

    examples = synthetic_examples(count, settings.seed)
    return [_labelled(example) for example in examples], len(examples), STAND_IN


def _labelled(example: Example) -> Row:
    return {
        "id": example.id,
        "prompt": example.prompt,
        "adversarial": False,
        "response": example.response,
        "prompt_harm_label": "harmful",
        "response_refusal_label": "compliance",
        "response_harm_label": "harmful",
        "subcategory": None,
        "template": example.template,
    }
