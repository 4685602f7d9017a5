"""Seconds of an audit's statistics at the full numbers of sentences, against the time that they may take."""

import time

import numpy as np

from bench.measure import Result
from refbias.config.evidence import EvidenceSettings
from refbias.evidence import gather_evidence, verdict
from refbias.metrics import Embeddings

GROUPS, TEMPLATES, CONTROL, ATTRIBUTES, ANCHORS = 24, 50, 50, 100, 1000
# width of the embeddings -> seconds that may pass
LIMITS = {640: 10.0, 4096: 60.0}


def models(width: int, groups: int = GROUPS, anchors: int = ANCHORS) -> tuple[Embeddings, Embeddings]:
    """Return two models, by default of the paper's numbers of sentences, as single-precision embeddings."""
    generator = np.random.default_rng(17)
    # sentences of a language model point one way: most of a cosine is common to all of them
    common = 2 * generator.standard_normal(width, np.float32)

    def rows(count: int) -> np.ndarray:
        return common + generator.standard_normal((count, width), np.float32)

    targets = {f"g{number:02d}": rows(TEMPLATES) for number in range(groups)} | {"control": rows(CONTROL)}
    reference = Embeddings(targets, rows(ATTRIBUTES), rows(ATTRIBUTES), rows(anchors))

    def moved(values: object) -> np.ndarray:
        matrix = np.asarray(values)
        return matrix + 0.2 * generator.standard_normal(matrix.shape, np.float32)

    audited = Embeddings(
        {group: moved(values) for group, values in targets.items()},
        moved(reference.positive),
        moved(reference.negative),
        moved(reference.anchors),
    )
    return reference, audited


def run() -> list[Result]:
    """Measure the statistics of one audited model at either width; making the embeddings does not count."""
    settings = EvidenceSettings()
    results = []
    for width, limit in LIMITS.items():
        reference, audited = models(width)
        start = time.perf_counter()
        verdict(gather_evidence(reference, audited, settings))
        spent = time.perf_counter() - start
        note = (
            f"{GROUPS} groups x {TEMPLATES} targets, {2 * ATTRIBUTES} attributes, {ANCHORS} anchors; "
            f"{settings.n_resamples} resamples, {settings.n_permutations} permutations, {settings.n_null} null draws, "
            f"{settings.n_jackknife} halves"
        )
        results.append(Result(f"evidence: statistics at d {width}", spent, limit, "s", limit / spent, "> 1", note))
    return results
