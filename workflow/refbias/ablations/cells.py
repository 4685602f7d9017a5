"""The cells of the ablations: which targets, attributes, anchors and site each of them takes.

A cell changes one choice and keeps the rest of the run's settings. Anchor subsets are nested: the
anchors of a source in a seeded order, of which a cell takes the first so many, the same ones in
every model. Where the anchors depend on the scored group, every group gets equally many, because dB
grows with the square root of their number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from refbias.ablations.table import BASE, WHOLE, IntArray, SentenceTable
from refbias.config.ablations import AblationSettings

ANCHOR_ABLATIONS = ("anchors", "circularity")


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes
    ----------
    ablation, cell, seed
        Its name; `seed` of the anchors' order, None where nothing is ordered.
    site
        Key of the embeddings.
    targets, attributes, source
        Names of the sets in the `SentenceTable`.
    n_anchors
        Anchors that each group is described by.
    order
        Positions in the source, of which the first `n_anchors` are taken; None = the file's order.
    by_group
        Group -> positions in the source, where they depend on the group; else None.
    """

    ablation: str
    cell: str
    site: str
    n_anchors: int
    targets: str = BASE
    attributes: str = BASE
    source: str = "neutral"
    seed: int | None = None
    order: IntArray | None = None
    by_group: Mapping[str, IntArray] | None = None

    def anchors(self, table: SentenceTable, group: str) -> IntArray:
        """Return the rows of the anchors that describe a group."""
        rows = table.anchors[self.source]
        positions = self.order if self.by_group is None else self.by_group[group]
        return rows[: self.n_anchors] if positions is None else rows[positions[: self.n_anchors]]

    def takes(self, method: str) -> bool:
        """Whether a method's dB is asked for: ablations of the anchors concern relative representations alone."""
        return method == "rr" or self.ablation not in ANCHOR_ABLATIONS


def plan(
    table: SentenceTable, settings: AblationSettings, sites: Mapping[str, str]
) -> tuple[list[Cell], dict[str, str]]:
    """Return every cell that the sentences allow, and why others are left out.

    Parameters
    ----------
    table
        The collected sentences.
    settings
        Which ablations run, with which counts and seeds.
    sites
        ``<ablation>/<cell>`` -> key of the embeddings, from the manifest of the embeddings.
    """
    left_out: dict[str, str] = {}
    n = len(table.anchors["neutral"])
    cells: list[Cell] = []
    if "attributes" in settings.run:
        cells += [
            Cell("attributes", cell, WHOLE, n, attributes=BASE if cell == BASE else f"attributes_{cell}")
            for cell in (BASE, *settings.attributes)
            if cell == BASE or f"attributes_{cell}" in table.positive
        ]
    if "targets" in settings.run:
        cells += [
            Cell("targets", cell, WHOLE, n, targets=BASE if cell == BASE else f"targets_{cell}")
            for cell in (BASE, *settings.targets)
            if cell == BASE or f"targets_{cell}" in table.targets
        ]
    if "anchors" in settings.run:
        cells += _anchor_cells(table, settings, left_out)
    if "circularity" in settings.run:
        cells += _circularity_cells(table, settings, left_out)
    for name, key in sites.items():
        ablation, _, cell = name.partition("/")
        if ablation in settings.run:
            cells.append(Cell(ablation, cell, key, n))
    return cells, left_out


def _anchor_cells(table: SentenceTable, settings: AblationSettings, left_out: dict[str, str]) -> list[Cell]:
    cells = []
    for source in settings.anchors:
        if source not in table.anchors:
            continue
        held = len(table.anchors[source])
        for seed in settings.anchor_seeds:
            order = np.random.default_rng(seed).permutation(held)
            for count in settings.anchor_counts:
                if count > held:
                    left_out[f"anchors/{source}/{count}"] = f"the source holds {held} sentences"
                else:
                    cells.append(Cell("anchors", source, WHOLE, count, source=source, seed=seed, order=order))
    return cells


def _circularity_cells(table: SentenceTable, settings: AblationSettings, left_out: dict[str, str]) -> list[Cell]:
    n = len(table.anchors["neutral"])
    cells = [Cell("circularity", BASE, WHOLE, n)]
    tests: dict[str, Callable[[int, str], bool]] = {
        "without_group": lambda at, group: group not in table.anchor_mentions[at],
        "leave_group_out": lambda at, group: group != table.anchor_groups[at],
    }
    for name in settings.circularity:
        if name == "masked":
            if "masked" in table.anchors:
                cells.append(Cell("circularity", name, WHOLE, len(table.anchors["masked"]), source="masked"))
            continue
        kept = {
            group: np.array([at for at in range(n) if tests[name](at, group)], dtype=np.int64)
            for group in table.targets[BASE]
        }
        count = min(map(len, kept.values()))
        if count:
            cells.append(Cell("circularity", name, WHOLE, count, by_group=kept))
        else:
            left_out[f"circularity/{name}"] = "no anchor is left for some group"
    return cells
