"""The expertise direction: where the states of experts' sentences lie, seen from those of novices.

At each layer e = mean(R+) - mean(R-), from per-sentence means over tokens in fp32 without BOS (Fuentes and Mueller,
arXiv 2608.20347). BOS has a state of massive norm: pooled, it enters e with the difference in sentence length alone.
The layer is the one that separates held-out pairs best, or one that is set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refbias.artifacts import atomic_path, read_json, write_json
from refbias.errors import UserError

Array = npt.NDArray[np.floating[Any]]
_SPLITS = 100  # random halves of the pairs
_DRAWS = 200  # random directions to hold a direction against


@dataclass(frozen=True)
class Sides:
    """Pooled states of pairs at one layer, (n, d) each; row k of both is pair k."""

    expert: Array
    novice: Array

    @property
    def differences(self) -> npt.NDArray[np.float64]:
        """Expert minus novice, a row a pair."""
        return self.expert.astype(np.float64) - self.novice.astype(np.float64)


@dataclass(frozen=True)
class LayerFacts:
    """What is known of the direction at a layer.

    Attributes
    ----------
    layer
        Number of the block whose output it is.
    norm
        ||e||.
    concentration, coordinate
        Share of ||e||^2 in its largest coordinate, and which that is: near 1, e is that coordinate.
    gap_held_out
        Mean projection on e/||e|| of the held-out experts minus that of the novices.
    separation_held_out
        That gap over the standard deviation within both.
    auc_held_out
        Share of held-out (expert, novice) couples in which the expert projects higher.
    split_half_cosine
        Mean cosine of the directions from random halves of the pairs.
    random_cosine
        95 % of random directions have a smaller |cosine| with e.
    norm_percentile
        Share of random signs of the pairs' differences that give a shorter mean.
    """

    layer: int
    norm: float
    concentration: float
    coordinate: int
    gap_held_out: float
    separation_held_out: float
    auc_held_out: float
    split_half_cosine: float
    random_cosine: float
    norm_percentile: float


@dataclass(frozen=True)
class Direction:
    """The directions at all layers, and the layer that was chosen.

    Attributes
    ----------
    layer
        Chosen.
    vectors
        Layer -> e, (d,) float32.
    differences
        Expert minus novice of the fit pairs at the chosen layer, (n, d) float32.
    centre
        Mean projection on e/||e|| of all fit sentences at the chosen layer.
    facts
        By layer.
    notes
        Further JSON values: pairs, tokens, length gap.
    """

    layer: int
    vectors: Mapping[int, npt.NDArray[np.float32]]
    differences: npt.NDArray[np.float32]
    centre: float
    facts: tuple[LayerFacts, ...]
    notes: Mapping[str, Any]

    @property
    def vector(self) -> npt.NDArray[np.float32]:
        """E at the chosen layer."""
        return self.vectors[self.layer]

    @property
    def gap(self) -> float:
        """Held-out gap at the chosen layer, the unit of normalised scores."""
        return next(fact.gap_held_out for fact in self.facts if fact.layer == self.layer)


def unit(vector: npt.ArrayLike, what: str = "direction") -> npt.NDArray[np.float64]:
    """Return a vector of length 1, in float64.

    Raises
    ------
    UserError
        If it has no length.
    """
    vector = np.asarray(vector, dtype=np.float64)
    norm = np.linalg.norm(vector)
    if not np.isfinite(norm) or norm == 0:
        raise UserError(f"{what}: has no direction (norm {norm}): use pairs whose sentences differ")
    result: npt.NDArray[np.float64] = vector / norm
    return result


def mean_difference(sides: Sides) -> npt.NDArray[np.float64]:
    """Return e = mean(R+) - mean(R-)."""
    result: npt.NDArray[np.float64] = sides.expert.mean(0, dtype=np.float64) - sides.novice.mean(0, dtype=np.float64)
    return result


def auc(high: npt.ArrayLike, low: npt.ArrayLike) -> float:
    """Return the share of couples in which the first is higher; equal ones count half."""
    difference = np.asarray(high, dtype=np.float64)[:, None] - np.asarray(low, dtype=np.float64)[None]
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean())


def sign_flips(differences: npt.ArrayLike, n: int, seed: int) -> npt.NDArray[np.float64]:
    """Return `n` directions (n, d) from the pairs with expert and novice exchanged at random; none is e or -e.

    They lie where the differences lie, which a direction drawn from all of space does not: the harder comparison.
    """
    rows = np.asarray(differences, dtype=np.float64)
    generator = np.random.default_rng([seed, 1])
    signs = generator.choice((-1.0, 1.0), size=(n, len(rows)))
    alike = np.abs(signs.sum(1)) == len(rows)
    # turned around in one pair they are neither
    signs[alike, 0] *= -1
    result: npt.NDArray[np.float64] = signs @ rows / len(rows)
    return result


def gaussian(width: int, n: int, seed: int) -> npt.NDArray[np.float64]:
    """Return `n` directions (n, width), uniform over all of space, of length 1."""
    draws = np.random.default_rng([seed, 2]).standard_normal((n, width))
    result: npt.NDArray[np.float64] = draws / np.linalg.norm(draws, axis=1, keepdims=True)
    return result


def diagnose(layer: int, fit: Sides, held_out: Sides, seed: int = 0) -> LayerFacts:
    """Return the facts of a layer.

    Raises
    ------
    UserError
        If e has no length.
    """
    vector = mean_difference(fit)
    along = unit(vector, f"layer {layer}")
    high, low = held_out.expert.astype(np.float64) @ along, held_out.novice.astype(np.float64) @ along
    gap = float(high.mean() - low.mean())
    within = float(np.sqrt((high.var(ddof=1) + low.var(ddof=1)) / 2))
    squares = along**2
    differences = fit.differences
    generator = np.random.default_rng([seed, 0])
    halves = []
    for _ in range(_SPLITS):
        order = generator.permutation(len(differences))
        first, second = np.array_split(order, 2)
        a, b = differences[first].mean(0), differences[second].mean(0)
        halves.append(float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b))))
    flipped = np.linalg.norm(sign_flips(differences, _DRAWS, seed), axis=1)
    norm = float(np.linalg.norm(vector))
    return LayerFacts(
        layer=layer,
        norm=norm,
        concentration=float(squares.max()),
        coordinate=int(squares.argmax()),
        gap_held_out=gap,
        separation_held_out=gap / within if within else float(np.sign(gap)) * 1e9,
        auc_held_out=auc(high, low),
        split_half_cosine=float(np.mean(halves)),
        random_cosine=float(np.quantile(np.abs(gaussian(len(along), _DRAWS, seed) @ along), 0.95)),
        norm_percentile=float((flipped < norm).mean()),
    )


def candidates(n_layers: int, share: Sequence[float]) -> list[int]:
    """Return the blocks whose depth lies within two shares of the model's, such as 0.25 to 0.75; at least one."""
    low, high = share
    found = [layer for layer in range(1, n_layers + 1) if low * n_layers <= layer <= high * n_layers]
    return found or [max(1, round((low + high) / 2 * n_layers))]


def choose_layer(facts: Sequence[LayerFacts], layers: Sequence[int]) -> int:
    """Return the layer of the best held-out separation among `layers`; of equals the first."""
    best = max((fact for fact in facts if fact.layer in layers), key=lambda fact: fact.separation_held_out)
    return best.layer


def find_direction(
    fit: Mapping[int, Sides],
    held_out: Mapping[int, Sides],
    *,
    layer: int | None,
    share: Sequence[float] = (0.25, 0.75),
    seed: int = 0,
    notes: Mapping[str, Any] | None = None,
) -> Direction:
    """Find the direction at every layer and choose one.

    Parameters
    ----------
    fit, held_out
        Layer -> states of the pairs; the same layers, 1 to the number of blocks.
    layer
        The layer to use; None = the one that separates the held-out pairs best.
    share
        Depths between which that is looked for.
    seed
        Of the random halves and directions.
    notes
        Kept with the direction.

    Raises
    ------
    UserError
        If the layer does not exist, or experts and novices do not differ.
    """
    n_layers = max(fit)
    if layer is not None and layer not in fit:
        raise UserError(f"key 'competence.layer': {layer}: the model has blocks 1 to {n_layers}")
    facts = tuple(diagnose(number, fit[number], held_out[number], seed) for number in sorted(fit))
    chosen = choose_layer(facts, candidates(n_layers, share)) if layer is None else layer
    along = unit(mean_difference(fit[chosen]))
    both = np.concatenate([fit[chosen].expert, fit[chosen].novice]).astype(np.float64)
    return Direction(
        layer=chosen,
        vectors={number: mean_difference(sides).astype(np.float32) for number, sides in sorted(fit.items())},
        differences=fit[chosen].differences.astype(np.float32),
        centre=float((both @ along).mean()),
        facts=facts,
        notes=dict(notes or {}),
    )


def write_direction(folder: Path, direction: Direction) -> None:
    """Write ``direction.safetensors`` (e of every layer, the pairs' differences) and ``direction.json``."""
    from safetensors.numpy import save_file

    tensors = {f"layer_{layer:03d}": vector for layer, vector in direction.vectors.items()}
    with atomic_path(folder / "direction.safetensors") as path:
        save_file({**tensors, "differences": direction.differences}, path)
    write_json(
        folder / "direction.json",
        {
            "layer": direction.layer,
            "centre": direction.centre,
            "layers": [asdict(fact) for fact in direction.facts],
            **direction.notes,
        },
    )


def read_direction(folder: Path) -> Direction:
    """Read what `write_direction` wrote.

    Raises
    ------
    UserError
        If a file is missing or holds something else.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    data = read_json(folder / "direction.json")
    try:
        tensors = load_file(folder / "direction.safetensors")
        facts = tuple(LayerFacts(**row) for row in data.pop("layers"))
        layer, centre = int(data.pop("layer")), float(data.pop("centre"))
        differences = tensors.pop("differences")
        vectors = {int(name.removeprefix("layer_")): vector for name, vector in tensors.items()}
        if layer not in vectors or layer not in {fact.layer for fact in facts}:
            raise ValueError(f"layer {layer} is not among its layers")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder}: no direction ({error}): run refbias competence represent again") from None
    return Direction(layer, vectors, differences, centre, facts, data)
