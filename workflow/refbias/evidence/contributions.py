"""Which templates and which attribute sentences dB comes from."""

import numpy as np

from refbias.evidence.pairs import pair_matrices
from refbias.evidence.records import Contributions, Method
from refbias.metrics.shift import Embeddings
from refbias.metrics.vectors import FloatArray


def contributions(
    reference: Embeddings, audited: Embeddings, *, control: str | None = "control", method: Method = "rr"
) -> Contributions:
    """Divide the mean dB over the groups among templates, and among attribute sentences.

    Template t contributes its dB over the number of templates; the positive attribute a contributes
    ``(m_a - m) / p`` and the negative one ``-(m_a - m) / q``, with ``m_a`` its mean change and m the mean of both sets'
    means: a change that all attributes share is no part of dB and appears in none of them.

    Parameters
    ----------
    reference, audited : Embeddings
        The same sentences in both models.
    control : str or None
        Left out of the mean; None if there is none.
    method : str
        ``rr`` or ``seat``.

    Returns
    -------
    Contributions
        Each of the two divisions sums to the mean dB.

    Raises
    ------
    ValueError
        Naming model and argument, or where no group is left.
    """
    pairs = pair_matrices(reference, audited, method)
    groups = {group: pairs.change[rows] for group, rows in pairs.groups.items() if group != control}
    if not groups:
        raise ValueError("targets: no group beside the control")
    changes = np.mean([change.mean(axis=0) for change in groups.values()], axis=0)
    plus, minus = changes[: pairs.n_positive], changes[pairs.n_positive :]
    middle = (plus.mean() + minus.mean()) / 2
    templates: FloatArray | None = None
    if len({len(change) for change in groups.values()}) == 1:
        mean = np.mean(list(groups.values()), axis=0)
        templates = (mean[:, : pairs.n_positive].mean(axis=1) - mean[:, pairs.n_positive :].mean(axis=1)) / len(mean)
    return Contributions(
        delta_b=float(plus.mean() - minus.mean()),
        templates=templates,
        positive=(plus - middle) / plus.size,
        negative=-(minus - middle) / minus.size,
    )
