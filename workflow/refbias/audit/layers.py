"""dB of relative representations at every layer: where in the model a shift sits."""

from collections.abc import Mapping, Sequence

import numpy as np

from refbias.audit.embed import Array, Layer, States
from refbias.audit.stimuli import split
from refbias.config.audit_result import LayerMean, LayerResult
from refbias.metrics.nested import bias_of_distances, fast_unit_rows, prefix_distances
from refbias.stimuli import Sentence


def layer_biases(states: States, sentences: Sequence[Sentence]) -> dict[Layer, dict[str, float]]:
    """Return B of every group, the control among them, at every layer, in the order of the layers.

    Parameters
    ----------
    states
        Layer -> (n, d).
    sentences
        The n sentences.

    Raises
    ------
    ValueError
        If a state is zero or not finite.
    """
    order = sorted(states, key=lambda layer: np.inf if layer == "final" else layer)
    return {layer: _biases(states[layer], sentences, str(layer)) for layer in order}


def _biases(matrix: Array, sentences: Sequence[Sentence], name: str) -> dict[str, float]:
    unit = fast_unit_rows(matrix, f"layer {name}")
    sets = split(unit, sentences)
    groups = {group: np.asarray(rows) for group, rows in sets.targets.items()}
    anchors = np.asarray(sets.anchors)
    targets = np.concatenate(list(groups.values())) @ anchors.T
    attributes = np.concatenate([np.asarray(sets.positive), np.asarray(sets.negative)]) @ anchors.T
    ends = np.cumsum([len(rows) for rows in groups.values()])
    rows = {group: np.arange(end - len(groups[group]), end) for group, end in zip(groups, ends, strict=True)}
    (distances,) = prefix_distances(targets, attributes, [anchors.shape[0]])
    return bias_of_distances(distances, len(np.asarray(sets.positive)), rows)


def layer_results(
    reference: Mapping[Layer, Mapping[str, float]], audited: Mapping[Layer, Mapping[str, float]]
) -> tuple[list[LayerResult], list[LayerMean]]:
    """Return dB by layer and group (the control is one), and its mean over the decoder's blocks.

    Parameters
    ----------
    reference, audited
        Of `layer_biases`, with the same layers.
    """
    found = [
        LayerResult(layer=layer, group=group, delta_b=audited[layer][group] - before)
        for layer, biases in reference.items()
        for group, before in biases.items()
    ]
    by_group: dict[str, list[float]] = {}
    for row in found:
        # neither the embeddings nor the last output a second time, after its norm
        if row.layer not in (0, "final") and row.delta_b is not None:
            by_group.setdefault(row.group, []).append(row.delta_b)
    means = [LayerMean(group=group, delta_b=float(np.mean(values))) for group, values in by_group.items()]
    return found, means
