"""Where a finished study keeps what calibration and the two-stage audit need."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from refbias.artifacts import read_json
from refbias.config.base import parse
from refbias.config.calibration import EmbeddingFacts, Measure, settings_hash
from refbias.config.shift import Method
from refbias.errors import UserError
from refbias.tables import read_csv

OBSERVATION_COLUMNS = [
    "benchmark",
    "model",
    "regime",
    "checkpoint",
    "unit",
    "method",
    "n_outputs",
    "scorer",
    "delta_score",
    "delta_b",
]
SHIFT_COLUMNS = ["model", "regime", "checkpoint", "group", "method", "n_anchors", "delta_b"]
EMBEDDING_KEYS = tuple(EmbeddingFacts.model_fields)
# units of the benchmarks that are not groups
TOPIC_BENCHMARKS = ("wildguardmix",)


def beside(observations: Path, given: Path | None, *parts: str) -> Path | None:
    """Return a file that was named, or the one at its place in the study of ``STUDY/tables/observations.csv``."""
    if given is not None:
        return given
    found = observations.absolute().parent.parent.joinpath(*parts)
    return found if found.is_file() else None


def needed(path: Path | None, option: str, what: str) -> Path:
    """Return a path that must be there.

    Raises
    ------
    UserError
        Naming the option.
    """
    if path is None:
        raise UserError(f"{option}: not found beside the observations: name {what}")
    return path


def read_observations(path: Path) -> pd.DataFrame:
    """Read ``observations.csv``."""
    return read_csv(path, OBSERVATION_COLUMNS)


def read_shift(path: Path) -> pd.DataFrame:
    """Read ``delta_b.csv``."""
    return read_csv(path, SHIFT_COLUMNS)


def read_manifests(path: Path) -> dict[str, dict[str, Any]]:
    """Read ``records/manifests.json``: role -> manifest.

    Raises
    ------
    UserError
        If it is no mapping of manifests.
    """
    found = read_json(path)
    if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
        raise UserError(f"{path}: expected role -> manifest, as the stage records writes it")
    return found


def study_threshold(observations: Path, given: float | None, benchmark: str) -> float:
    """Return the threshold of a benchmark: the one given, or the study's own.

    Raises
    ------
    UserError
        If there is neither.
    """
    if given is not None:
        return given
    path = observations.parent / "manifest.json"
    if path.is_file():
        found = read_json(path).get("settings", {}).get("thresholds", {}).get(benchmark)
        if isinstance(found, int | float):
            return float(found)
    raise UserError(f"--threshold: {path} holds none for {benchmark}: name the change of score that counts as a rise")


def measure_of(
    manifests: Mapping[str, Mapping[str, Any]],
    shifts: pd.DataFrame,
    spectra: Sequence[tuple[str, str]],
    method: Method,
) -> Measure:
    """Return how dB of some spectra was measured.

    Parameters
    ----------
    manifests
        From `read_manifests`; read are ``represent/MODEL/REGIME``.
    shifts
        From `read_shift`, for the number of anchors.
    spectra
        Pairs of model and regime.
    method
        Of dB.

    Raises
    ------
    UserError
        If a manifest or a fact is missing, or the spectra were measured differently.
    """
    found: dict[tuple[str, str], Measure] = {}
    for model, regime in spectra:
        role = f"represent/{model}/{regime}"
        rows = shifts[(shifts["model"] == model) & (shifts["regime"] == regime) & (shifts["method"] == method)]
        anchors = sorted(set(rows["n_anchors"]))
        if len(anchors) != 1:
            raise UserError(f"delta_b: {model} {regime}, {method}: {len(anchors)} numbers of anchors, expected one")
        manifest = manifests.get(role)
        absent = [key for key in (*EMBEDDING_KEYS, "sentences_sha256") if manifest is None or key not in manifest]
        if manifest is None or absent:
            raise UserError(f"manifests: {role}: {', '.join(absent)} missing: run the stages represent and records")
        settings = parse(EmbeddingFacts, {key: manifest[key] for key in EMBEDDING_KEYS}, f"manifest {role}")
        found[model, regime] = Measure(
            method=method,
            n_anchors=int(anchors[0]),
            stimuli_sha256=str(manifest["sentences_sha256"]),
            settings=settings,
            settings_sha256=settings_hash(settings),
        )
    first, *others = found.items()
    for place, measure in others:
        if measure != first[1]:
            raise UserError(
                f"delta_b: {'/'.join(place)} and {'/'.join(first[0])} were measured with other anchors, sentences or "
                "settings: calibrate each alone, with --model and --regime"
            )
    return first[1]
