"""Random-attribute null: dB with respect to sets of sentences that have no valence.

Pseudo-positive and pseudo-negative sets of the attributes' sizes are drawn without overlap from the neutral sentences
(the anchors). Their dB says how large a shift comes out when nothing but the general movement of the sentence space
tells two sets apart. The neutral sentences mention groups, so that a drawn pair of sets may differ in the groups that
it mentions: the null is rather wide than narrow. In relative representations a neutral sentence is also one of the
coordinates; this holds for both sets alike.
"""

import numpy as np
import numpy.typing as npt

from refbias.evidence.pairs import Pairs, associations, settled
from refbias.metrics.vectors import FloatArray


def neutral_changes(pairs: Pairs) -> FloatArray | None:
    """Mean change of every group's association with every neutral sentence.

    Parameters
    ----------
    pairs : Pairs
        Both models.

    Returns
    -------
    ndarray, shape (groups, m), or None
        In the order of ``pairs.groups``; None without neutral sentences.
    """
    means = []
    largest = []
    for model in pairs.models:
        if model.neutral is None:
            return None
        found = associations(pairs.method, model.targets, model.neutral)
        largest.append(found.max(axis=0) - found.min(axis=0))
        means.append(np.stack([found[rows].mean(axis=0) for rows in pairs.groups.values()]))
        if pairs.models[1] is pairs.models[0]:
            return np.zeros_like(means[0])
    return settled(means[1] - means[0], largest[0])


def null_draws(changes: FloatArray, n_positive: int, n_negative: int, n_null: int, seed: int) -> FloatArray | None:
    """Shifts of every group with respect to random neutral sets.

    Parameters
    ----------
    changes : ndarray, shape (groups, m)
        Of `neutral_changes`.
    n_positive, n_negative : int
        Sizes of the sets.
    n_null, seed : int
        Draws and their seed.

    Returns
    -------
    ndarray, shape (n_null, groups), or None
        dB of each draw; None where both sets together exceed the neutral sentences.
    """
    n_neutral = changes.shape[1]
    if n_positive + n_negative > n_neutral:
        return None
    generator = np.random.default_rng([seed, 4])
    order = generator.permuted(np.tile(np.arange(n_neutral), (n_null, 1)), axis=1)
    weights = np.zeros((n_null, n_neutral))
    np.put_along_axis(weights, order[:, :n_positive], 1 / n_positive, axis=1)
    np.put_along_axis(weights, order[:, n_positive : n_positive + n_negative], -1 / n_negative, axis=1)
    shifts: FloatArray = weights @ changes.T
    return shifts


def percentile_of(delta_b: npt.ArrayLike, draws: FloatArray) -> FloatArray:
    """Percentage of the draws whose ``|dB|`` is smaller than the group's.

    Parameters
    ----------
    delta_b : array_like, shape (groups,)
        dB with respect to the real attributes.
    draws : ndarray, shape (n_null, groups)
        Of `null_draws`.

    Returns
    -------
    ndarray, shape (groups,)
        From 0 to 100; 0 where nothing changed.
    """
    smaller = np.abs(draws) < np.abs(np.asarray(delta_b, dtype=np.float64))
    percentage: FloatArray = 100.0 * smaller.mean(axis=0)
    return percentage
