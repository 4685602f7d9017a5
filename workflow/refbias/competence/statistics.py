"""Effects of the contrasts: paired differences per (occupation, question) or per résumé and name, tested together."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from refbias.stats.multiple import holm
from refbias.stats.paired import checked_differences, paired_effects, tost
from refbias.stats.proportions import mcnemar_exact
from refbias.stats.vectors import FloatArray

NAN = float("nan")


@dataclass(frozen=True)
class Named:
    """What a contrast is called: `role` is relevant, irrelevant or placebo."""

    contrast_id: str
    family: str
    role: str


@dataclass(frozen=True)
class EffectSettings:
    """How effects are tested.

    Attributes
    ----------
    level
        Coverage of intervals; 1 - level is the error of every test.
    n_resamples, n_permutations, seed
        Of the bootstrap and of the sign-flip test.
    """

    level: float = 0.95
    n_resamples: int = 2000
    n_permutations: int = 10_000
    seed: int = 0


@dataclass(frozen=True)
class Effect:
    """The effect of one contrast on one measure; None where it cannot be had.

    Attributes
    ----------
    contrast_id, family, role, measure
        What was compared, on which measure (``E``, ``E_normalised``, ``L``, ``hiring``, ``hiring_E``).
    n, n_missing
        Pairs used and pairs with a side missing.
    mean, d_z, ci_low, ci_high
        Mean difference, first less second, its effect size and interval.
    p, p_holm
        Sign-flip test, and after Holm within the measure.
    bound, p_equivalence, equivalent
        Largest difference that counts as none, p of the two one-sided tests, and whether both they and the interval of
        whole clusters keep within the bound.
    random_percentile
        Share of random directions along which the same contrast moves less; of measure ``E`` only.
    n_decided, yes_first, yes_second, only_first, only_second
        Of measure ``hiring`` only: pairs whose both written answers can be read, Yes on either side, and Yes on one
        side alone.
    mcnemar_p, mcnemar_p_holm
        McNemar's exact test of the last two, and after Holm. It takes pairs as independent: it knows no clusters.
    n_clusters
        Clusters with a pair that is used.
    """

    contrast_id: str
    family: str
    role: str
    measure: str
    n: int
    n_missing: int
    mean: float | None
    d_z: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_holm: float | None
    bound: float | None = None
    p_equivalence: float | None = None
    equivalent: bool | None = None
    random_percentile: float | None = None
    n_decided: int | None = None
    yes_first: int | None = None
    yes_second: int | None = None
    only_first: int | None = None
    only_second: int | None = None
    mcnemar_p: float | None = None
    mcnemar_p_holm: float | None = None
    n_clusters: int | None = None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def effects(
    names: Sequence[Named],
    differences: npt.ArrayLike,
    cluster: npt.ArrayLike,
    measure: str,
    settings: EffectSettings,
    bound: float | None = None,
) -> list[Effect]:
    """Test all contrasts of one measure.

    Parameters
    ----------
    names
        k contrasts.
    differences : array_like, shape (n, k)
        Paired differences; NaN where a side is missing.
    cluster : array_like, shape (n,)
        Occupation or résumé of each pair.
    measure
        Its name.
    settings
        Of the tests.
    bound
        Of the test of equivalence; None for no such test.

    Returns
    -------
    list of Effect
        In the order of `names`; `p_holm` is left to `adjusted`.
    """
    matrix, of = checked_differences(differences, cluster)
    if matrix.shape[1] != len(names):
        raise ValueError(f"differences: {matrix.shape[1]} columns for {len(names)} contrasts")
    found = paired_effects(
        matrix,
        cluster,
        level=settings.level,
        n_resamples=settings.n_resamples,
        n_permutations=settings.n_permutations,
        seed=settings.seed,
    )
    equivalence = tost(matrix, bound) if bound else np.full(len(names), np.nan)
    result = []
    for index, name in enumerate(names):
        within = None
        if bound and not math.isnan(equivalence[index]):
            # a single cluster has no interval: then the tests alone decide
            low, high = found.inner_low[index], found.inner_high[index]
            inside = math.isnan(low) or (-bound < low and high < bound)
            within = bool(equivalence[index] <= 1 - settings.level and inside)
        result.append(
            Effect(
                contrast_id=name.contrast_id,
                family=name.family,
                role=name.role,
                measure=measure,
                n=int(found.n[index]),
                n_missing=int(found.n_missing[index]),
                mean=_known(found.mean[index]),
                d_z=_known(found.d_z[index]),
                ci_low=_known(found.low[index]),
                ci_high=_known(found.high[index]),
                p=_known(found.p[index]),
                p_holm=None,
                bound=bound,
                p_equivalence=_known(equivalence[index]),
                equivalent=within,
                n_clusters=np.unique(of[~np.isnan(matrix[:, index])]).size,
            )
        )
    return result


def adjusted(found: Sequence[Effect]) -> list[Effect]:
    """Return the effects of one measure with Holm's correction over all but the placebos', which are a control."""
    tested = np.array([NAN if effect.p is None or effect.role == "placebo" else effect.p for effect in found])
    return [
        replace(effect, p_holm=effect.p if effect.role == "placebo" else _known(float(p)))
        for effect, p in zip(found, holm(tested), strict=True)
    ]


def equivalence_bound(relevant: Iterable[Effect], share: float) -> float | None:
    """Return the bound of an effect on E: a share of the median size of the relevance checks; None without any."""
    sizes = [abs(effect.mean) for effect in relevant if effect.mean is not None and effect.role == "relevant"]
    bound = share * statistics.median(sizes) if sizes else 0.0
    return bound or None


def cluster_means(differences: npt.ArrayLike, cluster: npt.ArrayLike) -> tuple[list[str], FloatArray]:
    """Return the sorted clusters and the mean difference in each, shape (clusters, k); NaN where all are missing."""
    matrix, of = checked_differences(differences, cluster)
    names = [str(name) for name in np.unique(np.asarray(cluster).astype(np.str_))]
    known = ~np.isnan(matrix)
    total, count = np.zeros((len(names), matrix.shape[1])), np.zeros((len(names), matrix.shape[1]))
    np.add.at(total, of, np.where(known, matrix, 0.0))
    np.add.at(count, of, known.astype(np.float64))
    return names, np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def random_percentile(effect: float, along_random: npt.ArrayLike) -> float:
    """Return the share of random directions along which a contrast moves less than along the expertise direction.

    Parameters
    ----------
    effect
        Mean difference along the unit expertise direction.
    along_random : array_like, shape (r,)
        The same along unit random directions.
    """
    values = np.abs(np.asarray(along_random, dtype=np.float64))
    if values.ndim != 1 or not values.size or np.isnan(values).any():
        raise ValueError(f"along_random: expected a non-empty vector of numbers, got shape {values.shape}")
    return float((values < abs(effect)).mean())


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
            mcnemar_p_holm=_known(float(p)),
        )
        for effect, decision, p in zip(found, decided, corrected, strict=True)
    ]
