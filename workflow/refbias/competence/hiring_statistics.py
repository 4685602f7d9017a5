"""Effects in the hiring task: groups of names, each pair of names on every résumé, and the decisions as written.

Names and résumés are crossed. What a comparison of groups of names is about are the names, so its tests take a pair of
names with all its résumés as one observation, and its interval draws both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from refbias.competence.statistics import NAN, Effect, EffectSettings, Named, cluster_means, effects, known_or_none
from refbias.stats import cluster_bootstrap
from refbias.stats.multiple import holm
from refbias.stats.paired import LEAST_PAIRS
from refbias.stats.proportions import mcnemar_exact
from refbias.stats.vectors import FloatArray


def crossed_effect(
    name: Named,
    differences: npt.ArrayLike,
    cluster: npt.ArrayLike,
    names: npt.ArrayLike,
    measure: str,
    settings: EffectSettings,
    bound: float | None = None,
) -> Effect:
    """Test a comparison of groups of names, each pair of which was put on several résumés.

    Parameters
    ----------
    name
        The comparison.
    differences : array_like, shape (n,)
        Paired differences; NaN where a side is missing.
    cluster, names : array_like, shape (n,)
        Résumé and pair of names of each difference.
    measure, settings, bound
        As for `effects`.

    Returns
    -------
    Effect
        `mean` over all differences; tests over pairs of names, each the mean over its résumés; an interval that draws
        pairs of names and résumés (the two-way bootstrap of `refbias.stats.cluster_bootstrap`), missing with one of
        either.
    """
    values = np.asarray(differences, dtype=np.float64)
    pairs, means = cluster_means(values[:, np.newaxis], names)
    (found,) = effects([name], means, pairs, measure, settings, bound)
    known = ~np.isnan(values)
    resumes, of_names = (np.asarray(of).astype(np.str_)[known] for of in (cluster, names))
    kept = values[known]

    def interval(level: float) -> tuple[float, float]:
        if not kept.size:
            return NAN, NAN
        ends = cluster_bootstrap(
            lambda weights: _weighted_mean(kept, weights),
            resumes,
            of_names,
            settings.n_resamples,
            settings.seed,
            level,
        )
        return ends.low, ends.high

    low, high = interval(settings.level)
    equivalent = found.equivalent
    if bound and equivalent is not None:
        # the interval that belongs to two one-sided tests, as in `effects`
        inner = interval(max(2 * settings.level - 1, 1e-6))
        equivalent = equivalent and -bound < inner[0] and inner[1] < bound
    n_names = np.unique(of_names).size
    return replace(
        found,
        # the spread of two or three pairs of names says nothing
        d_z=found.d_z if n_names >= LEAST_PAIRS else None,
        n=int(known.sum()),
        n_missing=int((~known).sum()),
        mean=float(kept.mean()) if kept.size else None,
        ci_low=known_or_none(low),
        ci_high=known_or_none(high),
        equivalent=equivalent,
        n_clusters=np.unique(resumes).size,
        n_names=n_names,
    )


def _weighted_mean(values: FloatArray, weights: FloatArray) -> FloatArray:
    total = weights.sum(axis=1)
    means: FloatArray = np.divide(weights @ values, total, out=np.full(total.shape, np.nan), where=total > 0)
    return means


@dataclass(frozen=True)
class Decisions:
    """Paired decisions of one comparison: pairs with both answers readable, and McNemar's exact p.

    `gained` are No under the second condition and Yes under the first, `lost` the reverse.
    """

    n: int
    yes_first: int
    yes_second: int
    gained: int
    lost: int
    p: float | None


def decisions(first: Sequence[str], second: Sequence[str]) -> Decisions:
    """Compare parsed answers (``yes``, ``no``, empty), pair by pair.

    Raises
    ------
    ValueError
        If the lengths differ.
    """
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a in ("yes", "no") and b in ("yes", "no")]
    gained, lost = pairs.count(("yes", "no")), pairs.count(("no", "yes"))
    return Decisions(
        len(pairs),
        sum(a == "yes" for a, _ in pairs),
        sum(b == "yes" for _, b in pairs),
        gained,
        lost,
        mcnemar_exact(gained, lost) if pairs else None,
    )


def with_decisions(found: Sequence[Effect], decided: Sequence[Decisions]) -> list[Effect]:
    """Return effects on the logits with the written decisions of the same pairs beside them, Holm's correction too.

    Raises
    ------
    ValueError
        If the lengths differ.
    """
    corrected = holm(np.array([NAN if decision.p is None else decision.p for decision in decided]))
    return [
        replace(
            effect,
            n_decided=decision.n,
            yes_first=decision.yes_first,
            yes_second=decision.yes_second,
            only_first=decision.gained,
            only_second=decision.lost,
            mcnemar_p=decision.p,
            mcnemar_p_holm=known_or_none(float(p)),
        )
        for effect, decision, p in zip(found, decided, corrected, strict=True)
    ]
