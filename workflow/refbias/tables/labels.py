"""What benchmarks, scores, regimes, methods, units and groups are called in print."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from refbias.errors import UserError
from refbias.metrics import is_undirected
from refbias.resources import data_path

CONTROL = "control"
BENCHMARK_LABELS = {"wildguardmix": "WildGuardMix", "decodingtrust": "DecodingTrust", "toxigen": "ToxiGen"}
SCORE_LABELS = {"wildguardmix": "harmful-response rate", "decodingtrust": "agreement rate", "toxigen": "toxic share"}
UNIT_LABELS = {"wildguardmix": "topic", "decodingtrust": "group", "toxigen": "group"}
REGIME_LABELS = {"full": "full fine-tuning", "lora": "LoRA"}
METHOD_LABELS = {"rr": "RR", "seat": "SEAT", "procrustes_seat": "Procrustes-SEAT", "cka_drift": "CKA drift"}


def benchmark_label(slug: str) -> str:
    """Return a benchmark's name."""
    return BENCHMARK_LABELS.get(slug, slug)


def score_label(benchmark: str) -> str:
    """Return what a benchmark's score is called."""
    return SCORE_LABELS.get(benchmark, "score")


def unit_label(benchmark: str) -> str:
    """Return what a benchmark's unit is: a group or a topic."""
    return UNIT_LABELS.get(benchmark, "unit")


def regime_label(slug: str) -> str:
    """Return a training regime's name."""
    return REGIME_LABELS.get(slug, slug)


def method_label(slug: str) -> str:
    """Return a method's name."""
    return METHOD_LABELS.get(slug, slug)


def correlation_name(method: str) -> str:
    """Return how a method's correlation is written: without its sign where the method has no direction."""
    return "|r|" if is_undirected(method) else "r"


def shift_label(method: str) -> str:
    """Return what a method's value is called: dB, or for a method without direction the method's own name."""
    return f"{method_label(method)}, 1 \u2212 CKA" if is_undirected(method) else f"dB, {method_label(method)}"


def plain_name(slug: str) -> str:
    """Return a unit's or topic's slug as words (``physical_disability`` as ``Physical disability``)."""
    return "LGBTQ" if slug == "lgbtq" else slug.replace("_", " ").capitalize()


def is_stand_in(scorer: str) -> bool:
    """Tell whether a scorer is a stand-in for a benchmark's own: its registry name says so."""
    return scorer.startswith("standin")


def scorer_label(scorer: str) -> str:
    """Return a scorer's name, marked where it is a stand-in."""
    return f"{scorer} (stand-in)" if is_stand_in(scorer) else scorer


def ordered(slugs: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the distinct `slugs`, the `known` ones first in their order, the others by name."""
    ranks = {slug: rank for rank, slug in enumerate(known)}
    return sorted(set(slugs), key=lambda slug: (ranks.get(slug, len(ranks)), slug))


@dataclass(frozen=True)
class GroupName:
    """A target group as it is printed: its name and its topic's."""

    name: str
    topic: str


def group_names(groups_file: str | Path | None = None) -> dict[str, GroupName]:
    """Read how the target groups are called.

    Parameters
    ----------
    groups_file
        TSV with the columns id, name and topic; None for the shipped one.

    Returns
    -------
    dict
        Group id -> name and topic, in file order.

    Raises
    ------
    UserError
        If the file or a column is missing.
    """
    path = Path(groups_file) if groups_file else data_path("stimuli", "groups.tsv")
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            rows = list(csv.DictReader(handle, delimiter="\t"))
        return {row["id"]: GroupName(row["name"], plain_name(row["topic"])) for row in rows}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: name a TSV of target groups") from None
    except KeyError as error:
        raise UserError(f"{path}:1: column {error} is missing: a TSV of groups needs id, name, topic") from None
