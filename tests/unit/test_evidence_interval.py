"""The two-way interval against loops over resamples, and p-values against scipy and against closed tests."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from refbias.evidence import holm, label_draws, permutation_p
from refbias.evidence.interval import (
    Studentised,
    attribute_draws,
    interval,
    joint_intervals,
    redraw,
    studentised,
    target_draws,
)


def variance(blocks: list[tuple[float, np.ndarray]], p: int) -> float:
    """Variance of the weighted sum of dB by components, from the definitions."""
    targets = sum(w**2 * np.var(d[:, :p].mean(axis=1) - d[:, p:].mean(axis=1), ddof=1) / len(d) for w, d in blocks)
    sides, cells = 0.0, 0.0
    for part in (slice(None, p), slice(p, None)):
        means = sum(w * d[:, part].mean(axis=0) for w, d in blocks)
        sides += np.var(means, ddof=1) / means.size
        for w, d in blocks:
            x = d[:, part]
            left = x - x.mean(axis=1, keepdims=True) - x.mean(axis=0) + x.mean()
            n, m = x.shape
            # mean square of the interaction over the number of cells
            cells += w**2 * (left**2).sum() / ((n - 1) * (m - 1)) / (n * m)
    return max(targets + sides - cells, targets, sides)


def shift(d: np.ndarray, p: int) -> float:
    return d[:, :p].mean() - d[:, p:].mean()


def resampled(blocks: list[tuple[float, np.ndarray]], draws: list[np.ndarray], attributes, p: int) -> list[float]:
    """Distance from the data over the standard error, resample by resample."""
    value = sum(w * shift(d, p) for w, d in blocks)
    ratios = []
    for r in range(1, len(attributes.positive)):
        columns = [
            np.repeat(np.arange(weights.shape[1]), np.rint(weights[r] * weights.shape[1]).astype(int))
            for weights in (attributes.positive, attributes.negative)
        ]
        columns = np.concatenate([columns[0], p + columns[1]])
        drawn = []
        for (w, d), weights in zip(blocks, draws, strict=True):
            rows = np.repeat(np.arange(len(d)), np.rint(weights[r] * len(d)).astype(int))
            drawn.append((w, d[rows][:, columns]))
        ratios.append((sum(w * shift(d, p) for w, d in drawn) - value) / math.sqrt(variance(drawn, p)))
    return ratios


@pytest.mark.parametrize("net", [False, True])
def test_interval_by_loops_over_resamples(net: bool):
    generator = np.random.default_rng(1)
    p, q, level, k = 6, 5, 0.9, 150
    own = generator.normal(size=(7, p + q)) + generator.normal(size=(7, 1)) + generator.normal(size=p + q)
    control = generator.normal(size=(4, p + q))
    blocks = [(1.0, own), *([(-1.0, control)] if net else [])]
    attributes = attribute_draws(p, q, k, seed=3)
    draws = [target_draws(len(d), k, 3, stream=number) for number, (_, d) in enumerate(blocks)]
    redrawn = [(w, redraw(d, t, attributes)) for (w, d), t in zip(blocks, draws, strict=True)]
    found = interval(redrawn, attributes, level)
    value = sum(w * shift(d, p) for w, d in blocks)
    error = math.sqrt(variance(blocks, p))
    low, high = np.quantile(resampled(blocks, draws, attributes, p), [0.05, 0.95])
    assert found.value == pytest.approx(value, abs=1e-12)
    assert found.low == pytest.approx(value - high * error, rel=1e-7)
    assert found.high == pytest.approx(value - low * error, rel=1e-7)


def test_joint_intervals_by_loops_over_resamples():
    """Three groups less one control, two of them of one size and so on common draws."""
    generator = np.random.default_rng(4)
    p, q, level, k = 5, 6, 0.9, 120
    common = generator.normal(size=p + q)
    groups = [generator.normal(size=(n, p + q)) + common for n in (6, 6, 4)]
    control = generator.normal(size=(5, p + q)) + common
    attributes = attribute_draws(p, q, k, seed=3)
    against = target_draws(5, k, 3, stream=1)
    sums, ratios = [], []
    for group in groups:
        targets = target_draws(len(group), k, 3)
        blocks, draws = [(1.0, group), (-1.0, control)], [targets, against]
        redrawn = [(w, redraw(d, t, attributes)) for (w, d), t in zip(blocks, draws, strict=True)]
        sums.append(studentised(redrawn, attributes))
        ratios.append(resampled(blocks, draws, attributes, p))
    low = np.quantile([min(drawn) for drawn in zip(*ratios, strict=True)], 0.05)
    high = np.quantile([max(drawn) for drawn in zip(*ratios, strict=True)], 0.95)
    found = joint_intervals(sums, level)
    for group, one in zip(groups, found, strict=True):
        error = math.sqrt(variance([(1.0, group), (-1.0, control)], p))
        assert one.low == pytest.approx(one.value - high * error, rel=1e-7)
        assert one.high == pytest.approx(one.value - low * error, rel=1e-7)
    alone = [joint_intervals([one], level)[0] for one in sums]
    assert all(wide.low <= own.low and own.high <= wide.high for wide, own in zip(found, alone, strict=True))
    assert any(wide.low < own.low for wide, own in zip(found, alone, strict=True))


def test_a_sum_without_spread_takes_no_part_in_joint_intervals():
    generator = np.random.default_rng(6)
    ratios = generator.normal(size=(2, 400))
    plain = [Studentised(0.3, 0.1, ratios[0]), Studentised(-0.2, 0.05, ratios[1])]
    still, torn = Studentised(0.5, 0.0, np.full(400, math.nan)), Studentised(0.1, 1.0, np.full(400, math.nan))
    first, second, third, fourth = joint_intervals([plain[0], still, torn, plain[1]])
    assert [first, fourth] == joint_intervals(plain)
    assert second == (0.5, 0.5, 0.5)
    assert third.value == 0.1
    assert math.isnan(third.low)
    assert math.isnan(third.high)
    # a resample that one sum cannot use is still the others'
    torn = Studentised(0.1, 1.0, np.where(np.arange(400) < 150, math.nan, 0.0))
    assert not any(math.isnan(value) for one in joint_intervals([*plain, torn]) for value in one)
    assert joint_intervals([]) == []


def test_draws_keep_both_sets_of_attributes_and_share_templates():
    attributes = attribute_draws(4, 9, 50, seed=1)
    assert attributes.positive.shape == (51, 4)
    np.testing.assert_allclose(attributes.positive.sum(axis=1), 1)
    np.testing.assert_allclose(attributes.negative.sum(axis=1), 1)
    np.testing.assert_array_equal(target_draws(5, 50, 1), target_draws(5, 50, 1))
    assert (target_draws(5, 50, 1) != target_draws(5, 50, 1, stream=1)).any()


def test_no_change_or_an_even_one_leaves_no_width():
    attributes = attribute_draws(4, 4, 100, seed=0)
    targets = target_draws(5, 100, 0)
    for level in (0.0, 2.5):
        found = interval([(1.0, redraw(np.full((5, 8), level), targets, attributes))], attributes)
        assert found == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="level"):
        interval([(1.0, redraw(np.zeros((5, 8)), targets, attributes))], attributes, 1.5)


def tail(d: np.ndarray, p: int) -> float:
    """Two-sided tail of dB over its error, by the definitions."""
    n = len(d)
    parts = [(np.var(d[:, :p].mean(axis=1) - d[:, p:].mean(axis=1), ddof=1) / n, n - 1)]
    for x in (d[:, :p], d[:, p:]):
        m = x.shape[1]
        left = x - x.mean(axis=1, keepdims=True) - x.mean(axis=0) + x.mean()
        freedom = (n - 1) * (m - 1)
        parts += [(np.var(x.mean(axis=0), ddof=1) / m, m - 1), ((left**2).sum() / freedom / (n * m), freedom)]
    whole = variance([(1.0, d)], p)
    freedom = whole**2 / sum(part**2 / f for part, f in parts)
    return float(2 * stats.t.sf(abs(shift(d, p)) / math.sqrt(whole), freedom))


@pytest.mark.parametrize(("p", "q"), [(4, 4), (3, 5)])
def test_exact_p_by_loops_over_all_divisions(p: int, q: int):
    generator = np.random.default_rng(p)
    changes = [
        generator.normal(size=(n, p + q)) + generator.normal(size=p + q) + generator.normal(size=(n, 1)) + 5
        for n in (6, 6, 3)
    ]
    for number, change in enumerate(changes):
        change[:, :p] += number
    labels = label_draws(p, q, 10_000, seed=0)
    assert labels.exact
    assert len(labels.positive) == math.comb(p + q, p)
    found = permutation_p(changes, p, labels)
    for change, value in zip(changes, found, strict=True):
        least = tail(change, p)
        tails = []
        for chosen in itertools.combinations(range(p + q), p):
            rest = [a for a in range(p + q) if a not in chosen]
            tails.append(tail(change[:, [*chosen, *rest]], p))
        assert value == pytest.approx(np.mean(np.array(tails) <= least * (1 + 1e-9)), abs=1e-12)
    assert len(set(found)) > 1


def test_without_target_effects_p_is_that_of_scipys_permutation_test():
    """All targets alike: what is left is Welch's statistic on the attributes' changes."""
    column = np.random.default_rng(8).normal(size=12)
    column[:6] += 1.5

    def welch(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
        error = np.sqrt(x.var(axis=axis, ddof=1) / 6 + y.var(axis=axis, ddof=1) / 6)
        return np.abs(x.mean(axis=axis) - y.mean(axis=axis)) / error

    test = stats.permutation_test(
        (column[:6], column[6:]), welch, alternative="greater", n_resamples=np.inf, vectorized=True
    )
    found = permutation_p([np.tile(column, (5, 1))], 6, label_draws(6, 6, 1000, seed=0))
    # the tails order divisions by their degrees of freedom too, which differ little
    assert found[0] == pytest.approx(test.pvalue, rel=0.15)


def test_drawn_p_is_near_the_exact_one_and_never_zero():
    generator = np.random.default_rng(5)
    changes = [generator.normal(size=(4, 16)) + size * (np.arange(16) < 8) for size in np.linspace(0, 1.2, 8)]
    exact = permutation_p(changes, 8, label_draws(8, 8, 20_000, seed=0))
    labels = label_draws(8, 8, 12_000, seed=0)
    assert not labels.exact
    assert (labels.positive.sum(axis=1) == 8).all()
    drawn = permutation_p(changes, 8, labels)
    np.testing.assert_allclose(drawn, exact, atol=5 * np.sqrt(0.25 / 12_000))
    far = np.repeat([[1.0, 0.0]], 50, axis=1) + generator.normal(size=(9, 100)) / 100
    assert permutation_p([far], 50, label_draws(50, 50, 999, seed=0)) == pytest.approx([1 / 1000])


def test_ties_count_as_large_and_no_change_has_p_one():
    labels = label_draws(3, 3, 100, seed=0)
    # of 20 divisions, only the observed one and its mirror are as large
    sharp = np.tile([0.3, 0.3, 0.3, 0.1, 0.1, 0.1], (4, 1))
    assert permutation_p([sharp], 3, labels) == pytest.approx([0.1])
    even = [np.full((4, 6), 0.7), np.zeros((4, 6)), np.tile([[0.1], [0.2], [0.7], [1 / 3]], (1, 6))]
    assert permutation_p(even, 3, labels).tolist() == [1.0, 1.0, 1.0]


def test_single_targets_and_single_attributes_have_a_p():
    labels = label_draws(3, 3, 100, seed=0)
    assert permutation_p([[[0.3, 0.31, 0.29, 0.1, 0.11, 0.09]]], 3, labels) == pytest.approx([0.1])
    (lone,) = permutation_p([[[5.0, 0.1, 0.2, 0.3], [5.0, 0.2, 0.1, 0.3]]], 1, label_draws(1, 3, 100, seed=0))
    assert lone == pytest.approx(0.25)


def test_the_unit_and_a_common_offset_do_not_matter():
    generator = np.random.default_rng(2)
    changes = [generator.normal(size=(n, 60)) for n in (5, 5, 8)]
    for sizes in ((30, 30), (20, 40)):
        labels = label_draws(*sizes, 2000, seed=1)
        expected = permutation_p(changes, sizes[0], labels)
        np.testing.assert_array_equal(permutation_p([1e-9 * c for c in changes], sizes[0], labels), expected)
        offset = [c + 100 + np.arange(len(c))[:, np.newaxis] for c in changes]
        np.testing.assert_array_equal(permutation_p(offset, sizes[0], labels), expected)


def test_holm_is_the_closed_test_of_bonferroni():
    for seed in range(20):
        p = np.random.default_rng(seed).uniform(size=5) ** 3
        closed = [
            max(
                min(1.0, len(chosen) * min(p[list(chosen)]))
                for size in range(1, 6)
                for chosen in itertools.combinations(range(5), size)
                if i in chosen
            )
            for i in range(5)
        ]
        np.testing.assert_allclose(holm(p), closed)
    with pytest.raises(ValueError, match="p_values"):
        holm([0.1, float("nan")])


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="n_negative"):
        label_draws(3, 0, 100, seed=0)
    with pytest.raises(ValueError, match="does not fit the labels"):
        permutation_p([np.zeros((2, 7))], 3, label_draws(3, 3, 100, seed=0))
