"""What must hold for every set of embeddings: identities and invariances of the bias shift."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

from refbias.metrics import (
    DIRECTIONS,
    METHODS,
    Embeddings,
    bias,
    relative_representation,
    rr_association,
    seat_association,
)

SEEDS = st.integers(0, 2**32 - 1)
SIGNED = {name: method for name, method in METHODS.items() if DIRECTIONS[name] == "signed"}
PROFILE = settings(max_examples=40, deadline=None)


@st.composite
def models(draw: st.DrawFn, count: int = 1, least_width: int = 2) -> list[Embeddings]:
    """Models that embed the same sentences: one set of sizes, off-centre as hidden states are."""
    sizes = [draw(st.integers(1, 6)) for _ in range(5)]
    width = draw(st.integers(least_width, 24))
    generator = np.random.default_rng(draw(SEEDS))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    offset = draw(st.sampled_from([0.0, 1.0, 30.0]))

    def rows(n: int) -> np.ndarray:
        return (generator.normal(size=(n, width)) + offset * np.linspace(-1, 1, width)).astype(dtype)

    return [
        Embeddings({"a": rows(sizes[0]), "control": rows(sizes[1])}, rows(sizes[2]), rows(sizes[3]), rows(sizes[4]))
        for _ in range(count)
    ]


def changed(model: Embeddings, change) -> Embeddings:
    return Embeddings(
        {group: change(matrix) for group, matrix in model.targets.items()},
        change(model.positive),
        change(model.negative),
        change(model.anchors),
    )


@PROFILE
@given(models())
def test_identical_weights_give_exactly_zero(found):
    (model,) = found
    copy = changed(model, lambda matrix: np.array(matrix, copy=True))
    for name, shift in METHODS.items():
        for group, result in shift(model, copy).items():
            if name == "cka_drift":
                # one sentence has no similarity to another one that could change
                assert math.isnan(result.delta_b) if len(model.targets[group]) == 1 else result.delta_b == 0.0
                continue
            assert result.delta_b == 0.0, (name, group)
            assert not result.s_plus.any(), (name, group)
            assert not result.s_minus.any(), (name, group)


@PROFILE
@given(models(), SEEDS)
def test_rotation_of_the_audited_model_gives_zero(found, seed):
    (model,) = found
    width = np.shape(model.positive)[1]
    rotation = ortho_group.rvs(width, random_state=seed)
    rotated = changed(model, lambda matrix: np.asarray(matrix, dtype=np.float64) @ rotation)
    for name in ("rr", "seat"):
        for result in METHODS[name](model, rotated).values():
            assert abs(result.delta_b) < 1e-9


@PROFILE
@given(models(), st.lists(st.floats(1e-3, 1e3), min_size=40, max_size=40))
def test_scaling_embeddings_changes_nothing(found, factors):
    (model,) = found

    def scale(matrix):
        return np.asarray(matrix, dtype=np.float64) * np.asarray(factors)[: len(matrix), None]

    # the map of Procrustes and the kernels of CKA weigh a sentence by its length: these know a common factor only
    for name in ("rr", "seat"):
        for result in METHODS[name](model, changed(model, scale)).values():
            assert abs(result.delta_b) < 1e-10
    scaled = changed(model, lambda matrix: np.asarray(matrix, dtype=np.float64) * factors[0])
    for result in METHODS["cka_drift"](model, scaled).values():
        assert not abs(result.delta_b) > 1e-10


@PROFILE
@given(models(count=2), SEEDS)
def test_order_of_anchors_and_attributes_changes_nothing(found, seed):
    generator = np.random.default_rng(seed)
    orders = {name: generator.permutation(len(getattr(found[0], name))) for name in ("positive", "negative", "anchors")}
    permuted = [
        Embeddings(
            m.targets, m.positive[orders["positive"]], m.negative[orders["negative"]], m.anchors[orders["anchors"]]
        )
        for m in found
    ]
    # the map of Procrustes turns rounding into a turn where its few anchors hardly reach: see its own tests
    for name in ("rr", "seat", "cka_drift"):
        before, after = METHODS[name](*found), METHODS[name](*permuted)
        for group in before:
            assert after[group].delta_b == pytest.approx(before[group].delta_b, abs=1e-11, nan_ok=True)


@PROFILE
@given(models(count=2))
def test_swapping_attribute_sets_flips_the_sign(found):
    swapped = [Embeddings(m.targets, m.negative, m.positive, m.anchors) for m in found]
    for shift in SIGNED.values():
        before, after = shift(*found), shift(*swapped)
        for group in before:
            assert after[group].delta_b == pytest.approx(-before[group].delta_b, abs=1e-12)
            np.testing.assert_allclose(after[group].s_plus, before[group].s_minus, rtol=0, atol=1e-12)


@PROFILE
@given(models(count=2))
def test_exchanging_the_models_flips_the_sign(found):
    for name in ("rr", "seat"):
        forth, back = METHODS[name](*found), METHODS[name](*reversed(found))
        for group in forth:
            assert back[group].delta_b == -forth[group].delta_b
    forth, back = METHODS["cka_drift"](*found), METHODS["cka_drift"](*reversed(found))
    for group in forth:
        assert back[group].delta_b == pytest.approx(forth[group].delta_b, abs=1e-15, nan_ok=True)


def _loop_cosine(a: list[float], b: list[float]) -> float:
    dot = math.fsum(p * q for p, q in zip(a, b, strict=True))
    return dot / math.sqrt(math.fsum(p * p for p in a) * math.fsum(q * q for q in b))


def _lists(matrix) -> list[list[float]]:
    return [[float(value) for value in row] for row in matrix]


@PROFILE
@given(models())
def test_relative_representations_equal_plain_loops(found):
    (model,) = found
    anchors = _lists(model.anchors)
    represented = {
        name: [[_loop_cosine(x, a) for a in anchors] for x in _lists(rows)]
        for name, rows in (("targets", model.targets["a"]), ("positive", model.positive), ("negative", model.negative))
    }
    np.testing.assert_allclose(
        relative_representation(model.targets["a"], model.anchors), represented["targets"], rtol=0, atol=1e-10
    )
    expected = [
        [-sum(math.dist(r, p) for p in represented[name]) / len(represented[name]) for r in represented["targets"]]
        for name in ("positive", "negative")
    ]
    s_plus, s_minus = rr_association(model.targets["a"], model.positive, model.negative, model.anchors)
    # At a distance of almost 0 the square root turns an error of 1e-16 in the cosines into one of about 1e-16 still,
    # because differences are taken before squares.
    np.testing.assert_allclose(s_plus, expected[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(s_minus, expected[1], rtol=0, atol=1e-10)
    brute = sum(p - q for p, q in zip(*expected, strict=True)) / len(expected[0])
    assert bias(s_plus, s_minus) == pytest.approx(brute, abs=1e-10)


@PROFILE
@given(models())
def test_seat_equals_plain_loops(found):
    (model,) = found
    s_plus, s_minus = seat_association(model.targets["a"], model.positive, model.negative)
    for values, attributes in ((s_plus, _lists(model.positive)), (s_minus, _lists(model.negative))):
        expected = [sum(_loop_cosine(x, a) for a in attributes) / len(attributes) for x in _lists(model.targets["a"])]
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-10)


@PROFILE
@given(models())
def test_associations_stay_in_range(found):
    (model,) = found
    m = len(model.anchors)
    for values in rr_association(model.targets["a"], model.positive, model.negative, model.anchors):
        assert (values <= 0).all()
        assert (values >= -2 * math.sqrt(m) - 1e-12).all()
    for values in seat_association(model.targets["a"], model.positive, model.negative):
        assert (np.abs(values) <= 1 + 1e-12).all()
