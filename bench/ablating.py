"""Seconds for every cell of the ablations of one spectrum of the paper's size, against two minutes."""

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bench.measure import Result
from refbias.ablations.cells import plan
from refbias.ablations.compute import model_biases, shifts
from refbias.ablations.table import BASE, WHOLE, SentenceTable
from refbias.config.ablations import AblationSettings

LIMIT = 120.0
GROUPS, TEMPLATES, CONTROL, ATTRIBUTES, ANCHORS = 24, 50, 50, 100, 1000
WIDTH, LAYERS, CHECKPOINTS = 4096, 32, 7
SOURCES = ("words", "alpaca", "tulu", "masked")


def sentence_table() -> tuple[SentenceTable, int]:
    """Return the table of the full sets, as numbers of rows, and the number of rows."""
    settings = AblationSettings()
    at = 0

    def rows(n: int) -> npt.NDArray[np.int64]:
        nonlocal at
        at += n
        return np.arange(at - n, at)

    groups = [f"g{number}" for number in range(GROUPS)]
    targets = {BASE: {**{group: rows(TEMPLATES) for group in groups}, "control": rows(CONTROL)}}
    positive, negative, anchors = {BASE: rows(ATTRIBUTES)}, {BASE: rows(ATTRIBUTES)}, {"neutral": rows(ANCHORS)}
    n_base = at
    for cell in settings.targets:
        targets[f"targets_{cell}"] = {group: rows(TEMPLATES) for group in groups}
    for cell in settings.attributes:
        positive[f"attributes_{cell}"], negative[f"attributes_{cell}"] = rows(ATTRIBUTES), rows(ATTRIBUTES)
    anchors |= {source: rows(ANCHORS) for source in SOURCES}
    owners = tuple(groups[number % GROUPS] for number in range(ANCHORS))
    mentions = tuple(frozenset({owner}) for owner in owners)
    return SentenceTable((), n_base, targets, positive, negative, anchors, owners, mentions), at


def site_cells() -> dict[str, str]:
    """Return the cells of a model of 32 blocks that change where embeddings are read."""
    return {
        "pooling/mean": WHOLE,
        "pooling/max": "norm.max",
        "pooling/last": "norm.last",
        "layer/final": WHOLE,
        "layer/before_norm": f"layer_{LAYERS:03d}",
        **{f"layer/layer_{layer:03d}": f"layer_{layer:03d}" for layer in range(LAYERS)},
        "bos/included": WHOLE,
        "bos/excluded": "no_bos",
    }


def run() -> list[Result]:
    """Measure the cells of seven checkpoints and their reference; making the matrices does not count."""
    table, n_rows = sentence_table()
    sites = site_cells()
    cells, _ = plan(table, AblationSettings(), sites)
    generator = np.random.default_rng(17)
    # sentences of a language model point one way: most of a cosine is common to all of them
    whole = generator.standard_normal((n_rows, WIDTH), np.float32)
    whole += 2 * generator.standard_normal(WIDTH, np.float32)
    spent = {"first": 0.0, "rest": 0.0}

    def matrices(checkpoint: int) -> Callable[[str], npt.NDArray[np.float32]]:
        return lambda site: np.roll(whole, checkpoint, axis=1) if site == WHOLE else whole[: table.n_base]

    parts = {"first": [c for c in cells if c.site == WHOLE], "rest": [c for c in cells if c.site != WHOLE]}
    for name, chosen in parts.items():
        reference = None
        for checkpoint in range(CHECKPOINTS + 1):
            read = matrices(checkpoint)
            start = time.perf_counter()
            found = model_biases(read, chosen, table, ("rr", "seat"))
            if reference is None:
                reference = found
            else:
                shifts(reference, found, chosen)
            spent[name] += time.perf_counter() - start
    total = sum(spent.values())
    note = (
        f"{len(cells)} cells, {CHECKPOINTS} checkpoints and a reference, width {WIDTH}: sentences and anchors "
        f"{spent['first']:.0f} s, {len(set(sites.values())) - 1} other sites {spent['rest']:.0f} s"
    )
    return [Result("ablations: all cells of a spectrum", total, LIMIT, "s", LIMIT / total, "> 1", note)]
