"""The collected sentences as rows of the embeddings: which row each sentence of each set is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from refbias.errors import UserError

IntArray = npt.NDArray[np.int64]
COLUMNS = ("set", "id", "kind", "group", "mentions", "text")
BASE = "base"
"""Name of the set of the run's own sentences."""
WHOLE = "embeddings"
"""Key of the site at which all sentences are embedded: the run's own."""


@dataclass(frozen=True)
class SentenceTable:
    """Rows of the embeddings, by set.

    Attributes
    ----------
    texts
        Every text, in the order of the file; the base's come first and differ from one another.
    n_base
        Number of base sentences: they are the rows 0 to ``n_base - 1``.
    targets
        Set (``base`` or ``targets_<cell>``) -> group -> rows; the control is one group of the base.
    positive, negative
        Set (``base`` or ``attributes_<cell>``) -> rows.
    anchors
        Source (``neutral``, ``words``, ``alpaca``, ``tulu``, ``masked``) -> rows.
    anchor_groups, anchor_mentions
        Of each neutral anchor: the group that it was written for, and the groups it names.
    """

    texts: tuple[str, ...]
    n_base: int
    targets: Mapping[str, Mapping[str, IntArray]]
    positive: Mapping[str, IntArray]
    negative: Mapping[str, IntArray]
    anchors: Mapping[str, IntArray]
    anchor_groups: tuple[str, ...]
    anchor_mentions: tuple[frozenset[str], ...]


def read_sentences(path: Path) -> SentenceTable:
    """Read ``sentences.tsv`` of the stage `ablation_sentences`.

    Raises
    ------
    UserError
        If the file is missing or has other columns.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file: run the stage ablation_sentences again")
    header, *lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    if tuple(header.split("\t")) != COLUMNS:
        raise UserError(f"{path}:1: expected the columns {', '.join(COLUMNS)}: run the stage ablation_sentences again")
    rows = [dict(zip(COLUMNS, line.split("\t"), strict=True)) for line in lines]
    row_of = {text: number for number, text in enumerate(dict.fromkeys(row["text"] for row in rows))}
    base = [row for row in rows if row["set"] == BASE]
    members: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        kind = "target" if row["kind"] == "control" else row["kind"]
        members.setdefault((row["set"], kind, row["group"] if kind == "target" else ""), []).append(row_of[row["text"]])
    targets: dict[str, dict[str, IntArray]] = {}
    flat: dict[str, dict[str, IntArray]] = {"positive": {}, "negative": {}, "anchor": {}}
    for (name, kind, group), at in members.items():
        found = np.array(at, dtype=np.int64)
        if kind == "target":
            targets.setdefault(name, {})[group] = found
        else:
            flat[kind]["neutral" if (name, kind) == (BASE, "anchor") else name.removeprefix("anchors_")] = found
    anchors = [row for row in base if row["kind"] == "anchor"]
    return SentenceTable(
        texts=tuple(row["text"] for row in rows),
        n_base=len(base),
        targets=targets,
        positive=flat["positive"],
        negative=flat["negative"],
        anchors=flat["anchor"],
        anchor_groups=tuple(row["group"] for row in anchors),
        anchor_mentions=tuple(frozenset(row["mentions"].split("|")) - {""} for row in anchors),
    )
