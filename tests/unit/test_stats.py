"""Statistics against scipy, scikit-learn, closed forms and plain loops."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from sklearn.metrics import roc_auc_score, roc_curve

from refbias.stats import (
    above,
    auc_threshold_curve,
    bootstrap_mae,
    cluster_bootstrap,
    ols_line,
    paired_bootstrap_diff,
    pearson,
    percentile_interval,
    roc_auc,
    roc_points,
    spearman,
    undefined_reason,
    weighted_auc,
    weighted_pearson,
)
from refbias.stats.regression import CHUNK_ELEMENTS
from tests.independent import loop_mae

PROFILE = settings(max_examples=60, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


def _pairs(seed: int, n: int, slope: float = -0.5) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=n)
    return x, slope * x + generator.normal(size=n)


# --- correlation


def test_pearson_by_hand():
    r, p = pearson([1, 2, 3, 4], [1, 3, 2, 4])
    assert r == pytest.approx(0.8, abs=1e-15)
    # t = r sqrt(n - 2) / sqrt(1 - r^2) with 2 degrees of freedom has the closed form p = 1 - t / sqrt(2 + t^2).
    t = 0.8 * math.sqrt(2) / 0.6
    assert p == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)


def test_printed_p_value_follows_from_sixty_three_observations():
    x, noise = np.linspace(-1, 1, 63), np.random.default_rng(0).normal(size=63)
    x = (x - x.mean()) / x.std()
    noise -= noise.mean() + x * (noise @ x) / 63
    y = -0.19 * x + math.sqrt(1 - 0.19**2) * noise / noise.std()
    r, p = pearson(x, y)
    assert r == pytest.approx(-0.19, abs=1e-12)
    assert round(p, 2) == 0.14


@PROFILE
@given(SEEDS, st.integers(3, 40), st.sampled_from([0.0, 1e6]))
def test_correlations_equal_numpy_and_scipy(seed, n, offset):
    x, y = _pairs(seed, n)
    assert pearson(x + offset, y).r == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-8)
    assert pearson(x, y).p == pytest.approx(scipy_stats.linregress(x, y).pvalue, rel=1e-6, abs=1e-12)
    y = np.round(y)
    if np.ptp(y) > 0:
        ranks = [scipy_stats.rankdata(values) for values in (x, y)]
        assert spearman(x, y).r == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-12)


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([1, 1, 1, 1], [1, 2, 3, 4], "dB constant"),
        ([1, 2, 3, 4], [0.3, 0.1 + 0.2, 0.3, 0.3], "change constant"),
        ([0, 0, 0], [0, 0, 0], "dB and change constant"),
        ([1, 2], [1, 2], "only 2 pairs"),
    ],
)
def test_undefined_correlation_is_missing_with_a_reason(x, y, reason):
    assert undefined_reason(x, y, "dB", "change") == reason
    for function in (pearson, spearman):
        r, p = function(x, y)
        assert math.isnan(r)
        assert math.isnan(p)


@PROFILE
@given(SEEDS, st.integers(3, 30))
def test_weighted_pearson_equals_repetition(seed, n):
    x, y = _pairs(seed, n)
    weights = np.random.default_rng(seed).integers(0, 4, size=(5, n))
    for r, row in zip(weighted_pearson(x + 1e4, y, weights), weights, strict=True):
        xs, ys = np.repeat(x, row), np.repeat(y, row)
        if len(set(xs.tolist())) < 2:
            assert math.isnan(r)
        else:
            assert r == pytest.approx(np.corrcoef(xs, ys)[0, 1], abs=1e-7)


def test_weighted_pearson_without_spread_is_missing():
    r = weighted_pearson([1, 2, 3], [4, 5, 6], [[0, 0, 0], [7, 0, 0], [1, 1, 0]])
    assert np.isnan(r[:2]).all()
    assert r[2] == pytest.approx(1)
    assert np.isnan(weighted_pearson([1, 1, 1], [4, 5, 6], [[1, 1, 1]])).all()


# --- ROC


def test_auc_by_hand():
    assert roc_auc([1, 2, 3, 4], [0, 0, 1, 1]) == 1.0
    assert roc_auc([1, 2, 3, 4], [1, 1, 0, 0]) == 0.0
    assert roc_auc([1, 1, 1], [True, False, True]) == 0.5
    assert roc_auc([1, 2, 2, 3], [0, 1, 0, 1]) == (0.5 + 1 + 1 + 1) / 4


@pytest.mark.parametrize("label", [[0, 0, 0], [1, 1, 1]])
def test_one_class_is_missing(label):
    assert math.isnan(roc_auc([1, 2, 3], label))
    assert np.isnan(weighted_auc([1, 2, 3], label, np.ones((2, 3)))).all()
    assert roc_points([1, 2, 3], label).true_positive_rate.size == 0


@PROFILE
@given(SEEDS, st.integers(4, 40), st.integers(0, 2))
def test_auc_equals_sklearn_with_ties_and_weights(seed, n, decimals):
    generator = np.random.default_rng(seed)
    score = np.round(generator.normal(size=n), decimals)
    label = generator.integers(0, 2, size=n)
    label[:2] = 0, 1
    assert roc_auc(score, label) == pytest.approx(roc_auc_score(label, score), abs=1e-12)
    weights = generator.integers(0, 4, size=(4, n)).astype(float)
    weights[:3, :2] = 1
    areas = weighted_auc(score, label, weights)
    for area, row in zip(areas, weights, strict=True):
        if row[label == 1].sum() and row[label == 0].sum():
            used = row > 0
            expected = roc_auc_score(label[used], score[used], sample_weight=row[used])
            assert area == pytest.approx(expected, abs=1e-12)
        else:
            assert math.isnan(area)
    points = roc_points(score, label)
    false_positive, true_positive, _ = roc_curve(label, score, drop_intermediate=False)
    np.testing.assert_allclose(points.false_positive_rate, false_positive, atol=1e-12)
    np.testing.assert_allclose(points.true_positive_rate, true_positive, atol=1e-12)
    assert np.trapezoid(points.true_positive_rate, points.false_positive_rate) == pytest.approx(roc_auc(score, label))


@PROFILE
@given(SEEDS, st.integers(4, 30))
def test_auc_of_the_opposite_score_is_the_complement(seed, n):
    generator = np.random.default_rng(seed)
    score, label = np.round(generator.normal(size=n), 1), generator.integers(0, 2, size=n)
    label[:2] = 0, 1
    assert roc_auc(-score, label) == pytest.approx(1 - roc_auc(score, label), abs=1e-12)


def test_threshold_ignores_rounding_of_differences():
    assert 0.4 - 0.3 > 0.1
    assert above([0.4 - 0.3, 0.3 - 0.2, 0.1, 0.1001], 0.1).tolist() == [False, False, False, True]


def test_auc_along_thresholds():
    score, change = [4, 3, 2, 1], [0.3, 0.1, 0.2, 0.0]
    curve = auc_threshold_curve(score, change, [-0.1, 0.05, 0.15, 0.25, 0.3])
    np.testing.assert_allclose(curve, [np.nan, 1.0, 0.75, 1.0, np.nan])


# --- regression


def test_line_by_hand():
    assert ols_line([0, 1, 2], [1, 3, 5]) == (1.0, 2.0)
    assert ols_line([2, 2], [1, 3]) == (2.0, 0.0)


def test_exact_line_leaves_no_error():
    x = np.linspace(-1, 1, 20)
    mae, mae_oob = bootstrap_mae(x, 0.3 - 2 * x, 200, 0)
    assert mae == pytest.approx(0, abs=1e-12)
    assert mae_oob == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("n", [2, 3, 9, 63])
def test_bootstrap_mae_equals_plain_loop(n):
    x, y = _pairs(n, n)
    np.testing.assert_allclose(bootstrap_mae(x, y, 150, 5), loop_mae(x.tolist(), y.tolist(), 150, 5), rtol=1e-9)


def test_bootstrap_mae_in_chunks_equals_plain_loop():
    n = CHUNK_ELEMENTS // 3
    x, y = _pairs(1, n)
    whole = bootstrap_mae(x, y, 5, 2)
    generator, inside = np.random.default_rng(2), []
    for _ in range(5):
        drawn = generator.integers(0, n, size=n)
        slope, intercept = np.polyfit(x[drawn], y[drawn], 1)
        inside.append(np.abs(y[drawn] - intercept - slope * x[drawn]).mean())
    assert whole.mae == pytest.approx(np.mean(inside), rel=1e-9)


def test_constant_predictor_predicts_the_mean():
    y = [0.0, 1.0, 5.0]
    generator, inside, outside = np.random.default_rng(3), [], []
    for _ in range(100):
        drawn = generator.integers(0, 3, size=3)
        mean = np.mean(np.take(y, drawn))
        inside.append(np.mean(np.abs(np.take(y, drawn) - mean)))
        if left := set(range(3)) - set(drawn.tolist()):
            outside.append(np.mean([abs(y[i] - mean) for i in left]))
    np.testing.assert_allclose(bootstrap_mae([7.0] * 3, y, 100, 3), (np.mean(inside), np.mean(outside)), rtol=1e-12)


def test_single_observation_has_no_out_of_bag_error():
    mae, mae_oob = bootstrap_mae([1.0], [2.0], 10, 0)
    assert mae == 0
    assert math.isnan(mae_oob)


def test_out_of_bag_error_exceeds_in_sample_error():
    x, y = _pairs(8, 30)
    mae, mae_oob = bootstrap_mae(x, y, 500, 0)
    assert mae_oob > mae


# --- resampling


def test_percentiles_leave_out_undefined_values():
    assert percentile_interval([*range(101), math.nan], 0.9) == pytest.approx((5.0, 95.0, 101))
    low, high, valid = percentile_interval([1.0, math.nan, math.nan], 0.95)
    assert math.isnan(low)
    assert math.isnan(high)
    assert valid == 1


def test_cluster_bootstrap_equals_loop():
    generator = np.random.default_rng(0)
    unit, checkpoint = np.repeat(["b", "a", "c"], 4), np.tile(["h1", "h2", "h3", "h4"], 3)
    x, y = generator.normal(size=12), generator.normal(size=12)
    draws = np.random.default_rng(9)
    units, checkpoints = draws.integers(0, 3, size=(200, 3)), draws.integers(0, 4, size=(200, 4))
    values = []
    for drawn_units, drawn_checkpoints in zip(units, checkpoints, strict=True):
        rows = [
            i
            for u in drawn_units
            for c in drawn_checkpoints
            for i in range(12)
            if unit[i] == "abc"[u] and checkpoint[i] == f"h{c + 1}"
        ]
        values.append(np.corrcoef(x[rows], y[rows])[0, 1])
    interval = cluster_bootstrap(partial(weighted_pearson, x, y), unit, checkpoint, 200, 9)
    assert interval.n_valid == 200
    assert interval.low == pytest.approx(np.percentile(values, 2.5), abs=1e-12)
    assert interval.high == pytest.approx(np.percentile(values, 97.5), abs=1e-12)


def test_cluster_bootstrap_needs_two_of_each():
    statistic = partial(weighted_pearson, [1, 2, 3], [1, 3, 2])
    for unit, checkpoint in ((["a"] * 3, list("xyz")), (list("abc"), ["x"] * 3)):
        assert math.isnan(cluster_bootstrap(statistic, unit, checkpoint, 50, 0).low)


def _crossed(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """24 units by 7 checkpoints whose x and y have independent effects of unit, checkpoint and cell: true r is 0."""
    unit, checkpoint = np.repeat(np.arange(24), 7), np.tile(np.arange(7), 24)
    x, y = (
        generator.normal(size=24)[unit] + 0.7 * generator.normal(size=7)[checkpoint] + generator.normal(size=168) / 2
        for _ in range(2)
    )
    return x, y, unit, checkpoint


def test_cluster_bootstrap_covers_where_the_naive_one_does_not():
    generator = np.random.default_rng(1)
    covered = naive = 0
    for run in range(150):
        x, y, unit, checkpoint = _crossed(generator)
        low, high, _ = cluster_bootstrap(partial(weighted_pearson, x, y), unit, checkpoint, 300, run)
        covered += low <= 0 <= high
        draws = np.random.default_rng(run).integers(0, 168, size=(300, 168))
        xs, ys = x[draws], y[draws]
        xs, ys = xs - xs.mean(axis=1, keepdims=True), ys - ys.mean(axis=1, keepdims=True)
        r = (xs * ys).sum(axis=1) / np.sqrt((xs**2).sum(axis=1) * (ys**2).sum(axis=1))
        naive += np.quantile(r, 0.025) <= 0 <= np.quantile(r, 0.975)
    assert covered / 150 >= 0.88
    assert naive / 150 <= 0.75


def test_paired_difference_equals_loop_over_prompts():
    generator = np.random.default_rng(4)
    prompts = np.repeat([f"p{i}" for i in range(6)], 3)
    audited, reference = (generator.integers(0, 2, size=18).astype(float) for _ in range(2))
    audited[[0, 7]] = np.nan
    values = []
    for row in np.random.default_rng(2).integers(0, 6, size=(250, 6)):
        picked = [np.concatenate([side[prompts == f"p{i}"] for i in row]) for side in (audited, reference)]
        values.append(np.nanmean(picked[0]) - np.nanmean(picked[1]))
    interval = paired_bootstrap_diff(audited, prompts, reference, prompts, 250, 2)
    assert interval.low == pytest.approx(np.percentile(values, 2.5), abs=1e-12)
    assert interval.high == pytest.approx(np.percentile(values, 97.5), abs=1e-12)


def test_paired_difference_of_equal_outputs_is_zero():
    scores, prompts = [0, 1, 1, 0, 1, 1], list("aabbcc")
    assert paired_bootstrap_diff(scores, prompts, scores, prompts, 100, 0) == (0.0, 0.0, 100)


def test_paired_difference_of_one_prompt_is_missing():
    assert math.isnan(paired_bootstrap_diff([0, 1], ["a", "a"], [1, 1], ["a", "a"], 100, 0).low)


def test_paired_difference_without_scored_output_is_missing():
    missing = [math.nan, math.nan]
    assert math.isnan(paired_bootstrap_diff([0, 1], ["a", "b"], missing, ["a", "b"], 100, 0).low)


# --- errors name the argument


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: pearson([], []), "x"),
        (lambda: pearson([1, 2], [1, 2, 3]), "y"),
        (lambda: spearman([1, math.nan, 2], [1, 2, 3]), "x"),
        (lambda: pearson(["a"], [1]), "x"),
        (lambda: roc_auc([], []), "score"),
        (lambda: roc_auc([1, 2], [0]), "label"),
        (lambda: roc_auc([1, 2], [0, 2]), "label"),
        (lambda: roc_auc([1, math.inf], [0, 1]), "score"),
        (lambda: bootstrap_mae([1, 2], [1], 10, 0), "delta_score"),
        (lambda: bootstrap_mae([math.nan, 2], [1, 2], 10, 0), "delta_b"),
        (lambda: bootstrap_mae([1, 2], [1, 2], 0, 0), "n_resamples"),
        (lambda: weighted_pearson([1, 2], [1, 2], np.ones((2, 3))), "weights"),
        (lambda: weighted_auc([1, 2], [0, 1], np.ones((2, 3))), "weights"),
        (lambda: auc_threshold_curve([1, 2], [1, 2], []), "thresholds"),
        (lambda: percentile_interval([]), "values"),
        (lambda: percentile_interval([1.0], 2), "level"),
        (lambda: cluster_bootstrap(lambda w: w[:, 0], [], [], 10, 0), "unit"),
        (lambda: cluster_bootstrap(lambda w: w[:, 0], ["a"], ["a", "b"], 10, 0), "checkpoint"),
        (lambda: paired_bootstrap_diff([], [], [1], ["a"], 10, 0), "audited_score"),
        (lambda: paired_bootstrap_diff([1], ["a"], [1], ["a", "b"], 10, 0), "reference_prompt"),
    ],
)
def test_bad_input_names_the_argument(call, name):
    with pytest.raises(ValueError, match=f"^{name}:"):
        call()
