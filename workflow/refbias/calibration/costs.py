"""What the two ways of an audit cost, from the manifests of a study's stages.

Benchmarking costs the loading of a checkpoint for generation, and per output the seconds of generation and scoring; dB
costs the embedding of every checkpoint and of the reference, and the statistics. The reference's own outputs are needed
as soon as one unit is benchmarked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refbias.calibration.data import ShiftObservations, StrArray
from refbias.errors import UserError
from refbias.stats.vectors import BoolArray, FloatArray

Manifests = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Costs:
    """Seconds of a study's parts.

    Attributes
    ----------
    unit
        Generation and scoring of each observation, shape (n,).
    cluster
        Checkpoint of each observation, shape (n,).
    loading
        Checkpoint -> seconds of generation beside the outputs: loading the model.
    reference
        Outputs of the reference models, loading included.
    shift
        Embeddings and statistics of dB, reference included.
    """

    unit: FloatArray
    cluster: StrArray
    loading: Mapping[str, float]
    reference: float
    shift: float

    @property
    def benchmark(self) -> float:
        """Seconds of benchmarking every unit of every checkpoint."""
        return self._benchmark(np.ones(self.unit.size, dtype=np.bool_))

    def two_stage(self, benchmarked: BoolArray) -> float:
        """Seconds of dB everywhere and the benchmarks of some units, shape (n,)."""
        return self.shift + self._benchmark(benchmarked)

    def saved(self, benchmarked: BoolArray) -> float:
        """Share of the seconds of benchmarking everything that the two stages spare; below 0 where they cost more."""
        return 1 - self.two_stage(benchmarked) / self.benchmark

    def saved_by_coin(self, share: float, *, whole_checkpoints: bool) -> float:
        """Share spared, on average, by benchmarking a random share and computing no dB.

        Parameters
        ----------
        share
            Chance of a unit, or of a checkpoint, to be benchmarked: also the expected recall.
        whole_checkpoints
            Whether the coin is tossed once a checkpoint.
        """
        seconds = share * float(self.unit.sum())
        names, counts = np.unique(self.cluster, return_counts=True)
        missed = (1 - share) ** (np.ones(names.size) if whole_checkpoints else counts)
        seconds += sum(self.loading[str(name)] * (1 - none) for name, none in zip(names, missed, strict=True))
        seconds += self.reference * (1 - float(np.prod(missed)))
        return float(1 - seconds / self.benchmark)

    def break_even(self, benchmarked: BoolArray) -> float | None:
        """Factor on all outputs at which two stages cost as much as benchmarking everything; None if none is spared.

        At most 0 where the loading that is spared pays for dB by itself.
        """
        spared = float(self.unit[~benchmarked].sum()) + (0.0 if benchmarked.any() else self.reference)
        if spared <= 0:
            return None
        kept = {str(name) for name in np.unique(self.cluster[benchmarked])}
        loading = sum(seconds for name, seconds in self.loading.items() if name not in kept)
        return (self.shift - loading) / spared

    def _benchmark(self, chosen: BoolArray) -> float:
        if not chosen.any():
            return 0.0
        loading = sum(self.loading[name] for name in np.unique(self.cluster[chosen]))
        return float(self.unit[chosen].sum()) + loading + self.reference


def study_costs(manifests: Manifests, data: ShiftObservations, benchmark: str) -> Costs:
    """Collect the seconds of a benchmark and of dB.

    A checkpoint's seconds of generation and scoring are shared out over its units by their number of outputs. The
    statistics of dB are those of all its methods and intervals, shared out over the checkpoints of a model.

    Parameters
    ----------
    manifests : mapping
        Role -> manifest, of ``generate``, ``score``, ``represent`` and ``shift``.
    data : ShiftObservations
        The observations.
    benchmark : str
        Which.

    Returns
    -------
    Costs
        In seconds.

    Raises
    ------
    UserError
        If a manifest or a clock is missing, naming it.
    """
    unit, loading, reference, shift = np.zeros(data.delta_b.size), {}, 0.0, 0.0
    for model in np.unique(data.model):
        reference += sum(_generated(manifests, f"generate/{model}/reference/reference", benchmark))
        reference += _scored(manifests, f"score/{model}/reference", "reference", benchmark)
        shift += _seconds(manifests, f"represent/{model}/reference")
        n_all = sum(
            len(manifest["checkpoints"])
            for role, manifest in manifests.items()
            if role.startswith(f"represent/{model}/") and role != f"represent/{model}/reference"
        )
        here = data.model == model
        clock = manifests.get("shift", {}).get("model_seconds", {}).get(model)
        if clock is None:
            raise UserError(f"manifests: shift: no seconds of model {model}; run the stage shift again")
        shift += float(clock) * np.unique(data.cluster[here]).size / n_all
        for regime in np.unique(data.regime[here]):
            role = f"represent/{model}/{regime}"
            inside = here & (data.regime == regime)
            names = np.unique(data.checkpoint[inside])
            shift += _seconds(manifests, role) * names.size / len(manifests[role]["checkpoints"])
            for checkpoint in names:
                loads, outputs = _generated(manifests, f"generate/{model}/{regime}/{checkpoint}", benchmark)
                outputs += _scored(manifests, f"score/{model}/{regime}", str(checkpoint), benchmark)
                rows = inside & (data.checkpoint == checkpoint)
                unit[rows] = outputs * data.n_outputs[rows] / data.n_outputs[rows].sum()
                loading[f"{model}/{regime}/{checkpoint}"] = loads
    return Costs(unit, data.cluster, loading, reference, shift)


def _manifest(manifests: Manifests, role: str) -> Mapping[str, Any]:
    if role not in manifests:
        raise UserError(f"manifests: no {role}; run the stage records on the whole study")
    return manifests[role]


def _seconds(manifests: Manifests, role: str) -> float:
    return float(_manifest(manifests, role)["seconds"])


def _generated(manifests: Manifests, role: str, benchmark: str) -> tuple[float, float]:
    """Return seconds of loading, and of the benchmark's outputs."""
    manifest = _manifest(manifests, role)
    clocks = {name: float(entry["seconds"]) for name, entry in manifest["benchmarks"].items()}
    if benchmark not in clocks:
        raise UserError(f"manifests: {role}: no benchmark {benchmark}")
    # a resumed job's own clock does not cover the outputs that it found
    return max(0.0, float(manifest["seconds"]) - sum(clocks.values())), clocks[benchmark]


def _scored(manifests: Manifests, role: str, checkpoint: str, benchmark: str) -> float:
    entry = _manifest(manifests, role).get("outputs", {}).get(checkpoint, {}).get(benchmark, {})
    if "seconds" not in entry:
        raise UserError(f"manifests: {role}: no seconds of {benchmark} at {checkpoint}; run the stage score again")
    return float(entry["seconds"])
