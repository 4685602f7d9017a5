"""How far two labellings of the same items agree: Cohen's kappa."""

from collections import Counter
from collections.abc import Sequence
from typing import Any


def cohen_kappa(first: Sequence[str], second: Sequence[str]) -> float | None:
    """Return Cohen's kappa, (p_o - p_e) / (1 - p_e).

    p_o is the share of items with equal labels, p_e the share expected if both labelled at random
    with their own frequencies (Cohen 1960).

    Parameters
    ----------
    first, second
        Labels of the same n items, in one order.

    Returns
    -------
    float or None
        1 for full agreement, 0 for chance; None where it is undefined: no item, or one label only.

    Raises
    ------
    ValueError
        If the lengths differ.
    """
    if len(first) != len(second):
        raise ValueError(f"two labellings of {len(first)} and {len(second)} items")
    n = len(first)
    if not n:
        return None
    ours, theirs = Counter(first), Counter(second)
    # in whole numbers, so that "one label only" is met exactly
    agreed = sum(a == b for a, b in zip(first, second, strict=True))
    by_chance = sum(count * theirs[label] for label, count in ours.items())
    if by_chance == n * n:
        return None
    return (agreed * n - by_chance) / (n * n - by_chance)


def agreement(mapped: Sequence[str], labelled: Sequence[str], order: Sequence[str]) -> dict[str, Any]:
    """Return kappa, the share of equal labels, and counts by label.

    Parameters
    ----------
    mapped, labelled
        Labels of a map and labels by hand of the same n items.
    order
        The labels, in the order of the result.

    Returns
    -------
    dict
        n, n_equal, accuracy, kappa (None where undefined), and `by_label`: label -> labelled by hand,
        mapped, and both.
    """
    pairs = list(zip(mapped, labelled, strict=True))
    equal = sum(a == b for a, b in pairs)
    return {
        "n": len(pairs),
        "n_equal": equal,
        "accuracy": equal / len(pairs) if pairs else None,
        "kappa": cohen_kappa(mapped, labelled),
        "by_label": {
            label: {
                "labelled": sum(b == label for _, b in pairs),
                "mapped": sum(a == label for a, _ in pairs),
                "both": sum(a == b == label for a, b in pairs),
            }
            for label in order
        },
    }
