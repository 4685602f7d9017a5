"""Association and shift against values worked out by hand and plain loops."""

import math
import time

import numpy as np
import pytest

from refbias.metrics import (
    DIRECTIONS,
    METHODS,
    Embeddings,
    ShiftResult,
    bias,
    delta_b,
    relative_representation,
    rr_association,
    seat_association,
    shift_rows,
)


def _cosine(a: list[float], b: list[float]) -> float:
    dot = math.fsum(p * q for p, q in zip(a, b, strict=True))
    return dot / math.sqrt(math.fsum(p * p for p in a)) / math.sqrt(math.fsum(q * q for q in b))


def _model(seed: int, groups: int = 3, n: int = 5, d: int = 16, anchors: int = 12) -> Embeddings:
    generator = np.random.default_rng(seed)
    return Embeddings(
        targets={f"g{i}": generator.normal(size=(n, d)) + 0.5 for i in range(groups)},
        positive=generator.normal(size=(7, d)) + 0.5,
        negative=generator.normal(size=(9, d)) + 0.5,
        anchors=generator.normal(size=(anchors, d)) + 0.5,
    )


def test_relative_representation_by_hand():
    x = [[3.0, 4.0], [0.0, 2.0]]
    anchors = [[1.0, 0.0], [0.0, 5.0], [-1.0, 0.0]]
    np.testing.assert_allclose(relative_representation(x, anchors), [[0.6, 0.8, -0.6], [0, 1, 0]], atol=1e-15)


def test_rr_association_by_hand():
    # r(target) = (1, 0), r(positive) = (1, 0), r(negative) = (0, 1), so the distances are 0 and sqrt 2.
    s_plus, s_minus = rr_association([[2.0, 0.0]], [[5.0, 0.0]], [[0.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]])
    assert s_plus[0] == 0.0
    assert s_minus[0] == pytest.approx(-math.sqrt(2), abs=1e-15)
    assert bias(s_plus, s_minus) == pytest.approx(math.sqrt(2), abs=1e-15)


def test_seat_association_by_hand():
    s_plus, s_minus = seat_association([[3.0, 4.0]], [[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0]])
    assert s_plus[0] == pytest.approx(0.7, abs=1e-15)
    assert s_minus[0] == pytest.approx(-0.6, abs=1e-15)


def test_bias_is_mean_difference():
    assert bias([1.0, 2.0, 3.0], [0.5, 0.5, 0.5]) == 1.5


def test_shift_equals_loops_over_groups():
    reference, audited = _model(0), _model(1)
    for group, result in METHODS["seat"](reference, audited).items():
        expected = []
        for model in (reference, audited):
            positive = [
                [_cosine(s, p) for p in np.asarray(model.positive).tolist()]
                for s in np.asarray(model.targets[group]).tolist()
            ]
            negative = [
                [_cosine(s, p) for p in np.asarray(model.negative).tolist()]
                for s in np.asarray(model.targets[group]).tolist()
            ]
            expected.append(
                sum(sum(p) / len(p) - sum(q) / len(q) for p, q in zip(positive, negative, strict=True)) / len(positive)
            )
        assert result.b_reference == pytest.approx(expected[0], abs=1e-12)
        assert result.b_audited == pytest.approx(expected[1], abs=1e-12)
        assert result.delta_b == pytest.approx(expected[1] - expected[0], abs=1e-12)
        assert np.mean(result.s_plus - result.s_minus) == pytest.approx(result.delta_b, abs=1e-12)


def test_group_value_does_not_depend_on_other_groups():
    reference, audited = _model(0), _model(1)
    for shift in METHODS.values():
        whole = shift(reference, audited)["g1"].delta_b
        alone = shift(
            Embeddings({"g1": reference.targets["g1"]}, reference.positive, reference.negative, reference.anchors),
            Embeddings({"g1": audited.targets["g1"]}, audited.positive, audited.negative, audited.anchors),
        )["g1"].delta_b
        assert whole == pytest.approx(alone, abs=1e-12)


@pytest.mark.parametrize("method", [name for name, direction in DIRECTIONS.items() if direction == "signed"])
def test_move_towards_negative_attributes_is_negative_and_grows(method: str):
    reference = _model(5, d=32)
    direction = np.asarray(reference.negative).mean(axis=0) - np.asarray(reference.positive).mean(axis=0)
    values = []
    for step in (-0.5, 0.0, 0.5, 1.0):
        moved = {group: np.asarray(matrix) + step * direction for group, matrix in reference.targets.items()}
        audited = Embeddings(moved, reference.positive, reference.negative, reference.anchors)
        values.append(np.mean([result.delta_b for result in METHODS[method](reference, audited).values()]))
    assert values[0] > 0 == values[1]
    assert values[1] > values[2] > values[3]


def test_rr_allows_models_of_different_width():
    narrow, wide = _model(0, d=8), _model(1, d=24)
    assert set(METHODS["rr"](narrow, wide)) == set(narrow.targets)


def test_interval_equals_loop_over_sentences():
    result = METHODS["rr"](_model(0), _model(1))["g0"]
    change = (result.s_plus - result.s_minus).tolist()
    draws = np.random.default_rng(11).integers(0, 5, size=(300, 5)).tolist()
    means = [sum(change[i] for i in row) / 5 for row in draws]
    interval = delta_b(result, n_resamples=300, seed=11)
    assert interval.value == result.delta_b
    assert interval.low == pytest.approx(np.percentile(means, 2.5), abs=1e-13)
    assert interval.high == pytest.approx(np.percentile(means, 97.5), abs=1e-13)
    assert interval == delta_b(result, n_resamples=300, seed=11)
    assert interval != delta_b(result, n_resamples=300, seed=12)


def test_interval_of_one_sentence_is_missing():
    result = METHODS["seat"](_model(0, n=1), _model(1, n=1))["g0"]
    interval = delta_b(result, 100, 0)
    assert math.isfinite(interval.value)
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


def test_interval_of_a_method_that_is_no_mean_over_sentences():
    values = np.array([1.0, 4.0, 9.0])
    result = ShiftResult(
        s_plus=np.full(3, np.nan),
        s_minus=np.full(3, np.nan),
        b_reference=0.0,
        b_audited=4.0,
        redraw=lambda draws: np.median(values[draws], axis=1),
    )
    interval = delta_b(result, 500, 0)
    assert (interval.value, interval.low, interval.high) == (4.0, 1.0, 9.0)


def test_rows_carry_all_groups_methods_and_anchor_counts():
    rows = shift_rows(_model(0), _model(1), METHODS, n_resamples=50, seed=0)
    assert [(row["method"], row["group"]) for row in rows] == [(m, f"g{i}") for m in METHODS for i in range(3)]
    assert {(row["method"], row["n_anchors"]) for row in rows} == {
        ("rr", 12),
        ("seat", 0),
        ("procrustes_seat", 12),
        ("cka_drift", 0),
    }
    for row in rows:
        if row["method"] == "cka_drift":
            assert all(math.isnan(row[name]) for name in ("s_plus", "s_minus", "b_reference", "b_audited"))
            assert 0 < row["delta_b"] < 1
            continue
        assert row["delta_b"] == row["b_audited"] - row["b_reference"]
        assert row["s_plus"] - row["s_minus"] == pytest.approx(row["delta_b"], abs=1e-12)
        assert row["ci_low"] <= row["delta_b"] <= row["ci_high"]


GOOD = np.eye(3)
BAD = {
    "zero vector": np.array([[1.0, 0, 0], [0, 0, 0]]),
    "NaN": np.array([[1.0, np.nan, 0]]),
    "infinite": np.array([[1.0, np.inf, 0]]),
    "empty": np.empty((0, 3)),
    "expected a matrix": np.ones(3),
    "not a matrix of numbers": [["a", "b", "c"]],
    "width": np.ones((2, 4)),
}


@pytest.mark.parametrize("reason", BAD)
@pytest.mark.parametrize("argument", ["targets", "positive", "negative", "anchors"])
def test_bad_input_names_the_argument(argument: str, reason: str):
    inputs = {"targets": GOOD, "positive": GOOD, "negative": GOOD, "anchors": GOOD} | {argument: BAD[reason]}
    with pytest.raises(ValueError, match=argument) as raised:
        rr_association(**inputs)
    assert reason.split()[0].lower() in str(raised.value).lower()
    if argument != "anchors":
        inputs.pop("anchors")
        with pytest.raises(ValueError, match=argument):
            seat_association(**inputs)


def test_relative_representation_names_its_arguments():
    with pytest.raises(ValueError, match=r"^x: zero vector in row 1"):
        relative_representation(BAD["zero vector"], GOOD)
    with pytest.raises(ValueError, match=r"^anchors: NaN"):
        relative_representation(GOOD, BAD["NaN"])


@pytest.mark.parametrize(
    ("plus", "minus", "name"),
    [([], [], "s_plus"), ([1.0], [1.0, 2.0], "s_minus"), ([np.nan], [1.0], "s_plus"), ([1.0], [np.inf], "s_minus")],
)
def test_bias_names_its_arguments(plus: list[float], minus: list[float], name: str):
    with pytest.raises(ValueError, match=name):
        bias(plus, minus)


def test_models_with_different_sentences_are_refused():
    reference = _model(0)
    other_groups = Embeddings({"g0": GOOD}, reference.positive, reference.negative, reference.anchors)
    with pytest.raises(ValueError, match="one model only: g1, g2"):
        METHODS["rr"](reference, other_groups)
    fewer = _model(1, n=4)
    with pytest.raises(ValueError, match=r"targets\[g0\]"):
        METHODS["seat"](reference, fewer)
    with pytest.raises(ValueError, match="anchors"):
        METHODS["rr"](reference, _model(1, anchors=11))
    with pytest.raises(ValueError, match="targets: no group"):
        METHODS["rr"](Embeddings({}, GOOD, GOOD, GOOD), Embeddings({}, GOOD, GOOD, GOOD))


def test_errors_name_model_and_group():
    audited = _model(1)
    targets = dict(audited.targets)
    targets["g2"] = np.asarray(targets["g2"]) * np.array([1, 1, 0, 1, 1])[:, None]
    with pytest.raises(ValueError, match=r"^audited targets\[g2\]: zero vector in row 2"):
        METHODS["rr"](_model(0), Embeddings(targets, audited.positive, audited.negative, audited.anchors))
    with pytest.raises(ValueError, match="anchors: absent"):
        METHODS["rr"](_model(0), Embeddings(audited.targets, audited.positive, audited.negative))


@pytest.mark.parametrize(("n_resamples", "level", "name"), [(0, 0.95, "n_resamples"), (10, 1.0, "level")])
def test_interval_settings_are_checked(n_resamples: int, level: float, name: str):
    result = METHODS["seat"](_model(0), _model(1))["g0"]
    with pytest.raises(ValueError, match=name):
        delta_b(result, n_resamples, 0, level)


def test_very_long_and_very_short_vectors():
    x = np.array([[3e200, 4e200], [3e-200, 4e-200]])
    np.testing.assert_allclose(relative_representation(x, [[1.0, 0.0]]), [[0.6], [0.6]], rtol=1e-12)


def test_paper_size_takes_seconds():
    generator = np.random.default_rng(0)

    def rows(n: int) -> np.ndarray:
        return generator.normal(size=(n, 4096)).astype(np.float32)

    targets, positive, negative, anchors = rows(1200), rows(100), rows(100), rows(1000)
    start = time.perf_counter()
    rr_association(targets, positive, negative, anchors)
    assert time.perf_counter() - start < 10
