"""Effects of the contrasts: paired differences per (occupation, question) or per résumé and name, tested together."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from refbias.stats.multiple import holm
from refbias.stats.paired import checked_differences, paired_effects, tost
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
        Largest difference that counts as none, p of the two one-sided tests, and whether both they
        (`p_equivalence_holm` once that is known) and the interval of whole clusters keep within the bound; without an
        interval they do not.
    random_percentile
        Share of random directions along which the same contrast moves less; of measure ``E`` only.
    n_decided, yes_first, yes_second, only_first, only_second
        Of measure ``hiring`` only: pairs whose both written answers can be read, Yes on either side, and Yes on one
        side alone.
    mcnemar_p, mcnemar_p_holm
        McNemar's exact test of the last two, and after Holm. It takes pairs as independent: it knows no clusters.
    n_clusters
        Clusters with a pair that is used.
    p_equivalence_holm
        The tests of equivalence after Holm over the irrelevant contrasts of the measure; of others as they are.
    n_names
        Of comparisons of groups of names only: pairs of names, the observations of `p`, `p_equivalence` and `d_z`.
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
    p_equivalence_holm: float | None = None
    n_names: int | None = None


def known_or_none(value: float) -> float | None:
    """Return a number, None for NaN."""
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
            # a single cluster has no interval (NaN, which is within nothing): its units alone show nothing of others
            inside = -bound < found.inner_low[index] and found.inner_high[index] < bound
            within = bool(equivalence[index] <= 1 - settings.level and inside)
        result.append(
            Effect(
                contrast_id=name.contrast_id,
                family=name.family,
                role=name.role,
                measure=measure,
                n=int(found.n[index]),
                n_missing=int(found.n_missing[index]),
                mean=known_or_none(found.mean[index]),
                d_z=known_or_none(found.d_z[index]),
                ci_low=known_or_none(found.low[index]),
                ci_high=known_or_none(found.high[index]),
                p=known_or_none(found.p[index]),
                p_holm=None,
                bound=bound,
                p_equivalence=known_or_none(equivalence[index]),
                equivalent=within,
                n_clusters=np.unique(of[~np.isnan(matrix[:, index])]).size,
            )
        )
    return result


def adjusted(found: Sequence[Effect], level: float = 0.95) -> list[Effect]:
    """Return the effects of one measure with Holm's correction of both their tests.

    That of a movement is over all but the placebos', which are a control; that of equivalence over the irrelevant
    contrasts, the only ones of which it is claimed.

    Parameters
    ----------
    found
        Effects of one measure.
    level
        1 - level is the error of the tests.
    """
    tested = np.array([NAN if effect.p is None or effect.role == "placebo" else effect.p for effect in found])
    claimed = [NAN if e.p_equivalence is None or e.role != "irrelevant" else e.p_equivalence for e in found]
    result = []
    for effect, p, still in zip(found, holm(tested), holm(np.array(claimed)), strict=True):
        p_still = known_or_none(float(still)) if effect.role == "irrelevant" else effect.p_equivalence
        equivalent = effect.equivalent
        if equivalent is not None and p_still is not None:
            equivalent = equivalent and p_still <= 1 - level
        result.append(
            replace(
                effect,
                p_holm=effect.p if effect.role == "placebo" else known_or_none(float(p)),
                p_equivalence_holm=p_still,
                equivalent=equivalent,
            )
        )
    return result


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
