"""How far the labeller agrees with labels by hand."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from refbias.metamorphic.data import LABELS, Labelled, Material
from refbias.metamorphic.labeller import asked_of_labelled, label_answer
from refbias.metamorphic.statistics import wilson
from refbias.stats.agreement import cohen_kappa

LEAST_ACCURACY = 0.95
LEAST_KAPPA = 0.8


@dataclass(frozen=True)
class Disagreement:
    """An answer on which labeller and hand differ."""

    id: str
    by_hand: str
    by_rule: str
    rule: str


def validate(rows: Sequence[Labelled], material: Material) -> dict[str, Any]:
    """Compare the labeller with labels by hand.

    Parameters
    ----------
    rows
        Labelled answers, at least one.
    material
        Groups and properties that they are about.

    Returns
    -------
    dict
        JSON values: n, accuracy with a Wilson interval, Cohen's kappa (None where undefined), `biased_accuracy` (picks
        against the rest), the confusion matrix by hand x by rule, the same counts by category and relation, the
        disagreements, and `warnings` below 95 % or a kappa of 0.8.
    """
    verdicts = [label_answer(row.answer, asked_of_labelled(row, material)) for row in rows]
    pairs = [(row.label, verdict.label) for row, verdict in zip(rows, verdicts, strict=True)]
    share = wilson(sum(a == b for a, b in pairs), len(pairs))
    kappa = cohen_kappa([b for _, b in pairs], [a for a, _ in pairs])
    picks = sum(a.startswith("PICK") == b.startswith("PICK") for a, b in pairs)
    warnings = []
    if share.value < LEAST_ACCURACY:
        warnings.append(f"accuracy {share.value:.3f} is below {LEAST_ACCURACY}")
    if kappa is not None and kappa < LEAST_KAPPA:
        warnings.append(f"kappa {kappa:.3f} is below {LEAST_KAPPA}")
    counts = Counter(pairs)
    return {
        "n": share.n,
        "n_equal": share.k,
        "accuracy": share.value,
        "accuracy_low": share.low,
        "accuracy_high": share.high,
        "kappa": kappa,
        "biased_accuracy": picks / len(pairs),
        "confusion": {hand: {rule: counts[hand, rule] for rule in LABELS} for hand in LABELS},
        "by_category": _split([row.category for row in rows], pairs),
        "by_relation": _split([row.relation for row in rows], pairs),
        "disagreements": [
            vars(Disagreement(row.id, row.label, verdict.label, verdict.rule))
            for row, verdict in zip(rows, verdicts, strict=True)
            if row.label != verdict.label
        ],
        "warnings": warnings,
    }


def _split(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in dict.fromkeys(names):
        own = [pair for other, pair in zip(names, pairs, strict=True) if other == name]
        confused = Counter(f"{hand}>{rule}" for hand, rule in own if hand != rule)
        found[name] = {
            "n": len(own),
            "n_equal": sum(a == b for a, b in own),
            "confused": dict(sorted(confused.items())),
        }
    return found
