"""Paired statistics against scipy, brute force and simulated data with known truth."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats as scipy_stats

from refbias.competence.hiring_statistics import crossed_effect, decisions
from refbias.competence.statistics import (
    Effect,
    EffectSettings,
    Named,
    adjusted,
    cluster_means,
    effects,
    random_percentile,
)
from refbias.stats.paired import LEAST_PAIRS, paired_effects, sign_flip, tost

OCCUPATIONS = np.repeat([f"o{index}" for index in range(8)], 8)
FAST = {"n_resamples": 400, "n_permutations": 999}


def normal(seed: int, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=shape)


def test_mean_and_effect_size_are_those_of_the_t_test() -> None:
    values = normal(1, (64, 3)) + np.array([0.0, 0.3, 1.0])
    found = paired_effects(values, OCCUPATIONS, **FAST)
    t = scipy_stats.ttest_1samp(values, 0.0).statistic
    np.testing.assert_allclose(found.mean, values.mean(axis=0))
    np.testing.assert_allclose(found.d_z * np.sqrt(64), t)
    assert found.n.tolist() == [64] * 3
    assert (found.low < found.inner_low).all()
    assert (found.inner_high < found.high).all()


def test_small_samples_are_tested_exactly() -> None:
    values = np.array([[0.5, 2.0], [1.0, -1.0], [-0.25, 3.0], [2.0, 0.5], [0.75, 4.0]])
    found = paired_effects(values, list("abcde"), **FAST)
    for column in range(2):
        sums = [
            abs(sum(sign * value for sign, value in zip(signs, values[:, column], strict=True)))
            for signs in itertools.product((1, -1), repeat=5)
        ]
        expected = np.mean([value >= abs(values[:, column].sum()) - 1e-9 for value in sums])
        assert found.p[column] == pytest.approx(expected)


def test_sign_flip_agrees_with_scipy_for_larger_samples() -> None:
    values = normal(5, (40, 1)) + 0.35
    found = paired_effects(values, np.repeat(list("abcd"), 10), n_permutations=20_000, n_resamples=10)
    other = scipy_stats.permutation_test(
        (values[:, 0],), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(0)
    )
    assert found.p[0] == pytest.approx(other.pvalue, abs=0.01)


def test_a_missing_pair_leaves_its_column_only() -> None:
    values = normal(2, (64, 2))
    holed = values.copy()
    holed[[3, 40], 0] = np.nan
    found, whole = paired_effects(holed, OCCUPATIONS, **FAST), paired_effects(values, OCCUPATIONS, **FAST)
    assert found.n.tolist() == [62, 64]
    assert found.n_missing.tolist() == [2, 0]
    assert found.mean[0] == pytest.approx(np.nanmean(holed[:, 0]))
    assert (found.mean[1], found.p[1], found.low[1]) == (whole.mean[1], whole.p[1], whole.low[1])


def test_nothing_measured_is_nothing_not_zero() -> None:
    found = paired_effects(np.full((16, 1), np.nan), np.repeat(list("ab"), 8), **FAST)
    assert found.n.tolist() == [0]
    for values in (found.mean, found.d_z, found.low, found.high, found.p):
        assert np.isnan(values).all()
    (effect,) = effects(
        [Named("a", "f", "irrelevant")], np.full((16, 1), np.nan), ["x"] * 16, "L", EffectSettings(), 0.25
    )
    assert (effect.mean, effect.p, effect.equivalent, effect.p_equivalence) == (None, None, None, None)


def test_a_constant_difference_has_no_effect_size_but_a_p() -> None:
    found = paired_effects(np.full((20, 1), 0.5), np.repeat(list("ab"), 10), **FAST)
    assert np.isnan(found.d_z).all()
    assert found.mean.tolist() == [0.5]
    assert found.p[0] < 0.01
    assert (found.low[0], found.high[0]) == (0.5, 0.5)


def test_interval_covers_a_mean_over_occupations_that_differ() -> None:
    # occupations have effects of their own: an interval over questions alone would be far too narrow
    generator = np.random.default_rng(11)
    covered = narrow = 0
    for seed in range(300):
        values = np.repeat(generator.normal(0, 1, size=12), 8)[:, np.newaxis] + generator.normal(0, 0.5, size=(96, 1))
        found = paired_effects(values, np.repeat(np.arange(12), 8), n_resamples=300, n_permutations=1, seed=seed)
        covered += found.low[0] <= 0 <= found.high[0]
        half = 1.96 * values.std(ddof=1) / np.sqrt(96)
        narrow += abs(values.mean()) <= half
    assert covered / 300 > 0.87
    assert narrow / 300 < 0.7


def test_one_occupation_gives_no_interval_over_occupations() -> None:
    found = paired_effects(normal(0, (20, 1)), ["only"] * 20, **FAST)
    assert np.isnan(found.low).all()
    assert not np.isnan(found.p).any()


def test_a_contrast_known_in_one_occupation_alone_has_no_interval_over_occupations() -> None:
    # 8 occupations in the rows, the first contrast was measured in one of them
    values = normal(0, (64, 2)) + 2
    values[OCCUPATIONS != "o3", 0] = np.nan
    found = paired_effects(values, OCCUPATIONS, **FAST)
    assert found.n.tolist() == [8, 64]
    for bounds in (found.low, found.high, found.inner_low, found.inner_high):
        assert np.isnan(bounds).tolist() == [True, False]
    # two of them are drawn apart
    values[(OCCUPATIONS == "o4"), 0] = 1.0
    assert not np.isnan(paired_effects(values, OCCUPATIONS, **FAST).low).any()


@pytest.mark.parametrize("n", [1, 5, 9, 20])
def test_one_vector_is_flipped_as_a_column_is(n: int) -> None:
    values = normal(n, (n,)) + 0.4
    counted = [abs(np.dot(signs, values)) for signs in itertools.product((1, -1), repeat=min(n, 10))] if n < 10 else []
    p = sign_flip([*values, np.nan], n_permutations=20_000)
    if counted:
        assert p == pytest.approx(np.mean(np.array(counted) >= abs(values.sum()) - 1e-9))
    else:
        other = scipy_stats.permutation_test(
            (values,), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(0)
        )
        assert p == pytest.approx(other.pvalue, abs=0.01)
    assert np.isnan(sign_flip([np.nan]))
    with pytest.raises(ValueError, match="values"):
        sign_flip(np.zeros((2, 2)))


def test_null_data_are_rejected_at_the_level() -> None:
    # 2000 contrasts without effect, with heavy tails and unequal spread of occupations: only symmetry is assumed
    generator = np.random.default_rng(7)
    scale = np.repeat(generator.uniform(0.2, 3.0, size=8), 8)[:, np.newaxis]
    values = generator.standard_t(3, size=(64, 2000)) * scale
    found = paired_effects(values, OCCUPATIONS, n_resamples=2, n_permutations=1999)
    assert (found.p <= 0.05).mean() == pytest.approx(0.05, abs=0.013)
    assert scipy_stats.kstest(found.p, "uniform").pvalue > 0.01


def test_holm_over_null_contrasts_keeps_the_family_error_and_leaves_placebos_out() -> None:
    generator = np.random.default_rng(3)
    names = [Named(f"c{index}", "f", "placebo" if index > 7 else "irrelevant") for index in range(10)]
    settings = EffectSettings(n_resamples=2, n_permutations=499)
    false = 0
    for _ in range(300):
        found = adjusted(effects(names, generator.normal(size=(20, 10)), np.repeat(list("abcd"), 5), "L", settings))
        false += any(effect.p_holm is not None and effect.p_holm <= 0.05 for effect in found[:8])
        assert all(effect.p_holm == effect.p for effect in found[8:])
        assert min(e.p_holm or 0 for e in found[:8]) == pytest.approx(min(1, 8 * min(e.p or 0 for e in found[:8])))
    assert false / 300 < 0.085


def test_tost_is_the_larger_of_two_one_sided_t_tests() -> None:
    values = normal(9, (64, 4)) * 0.5 + np.array([0.0, 0.2, -0.25, 1.0])
    for column in range(4):
        above = scipy_stats.ttest_1samp(values[:, column], -0.25, alternative="greater").pvalue
        below = scipy_stats.ttest_1samp(values[:, column], 0.25, alternative="less").pvalue
        assert tost(values, 0.25)[column] == pytest.approx(max(above, below))


def test_a_handful_of_equal_pairs_shows_no_equivalence() -> None:
    assert np.isnan(tost(np.zeros((2, 1)), 0.25)).all()
    assert np.isnan(tost(np.zeros((LEAST_PAIRS - 1, 1)), 0.25)).all()
    assert tost(np.zeros((LEAST_PAIRS, 1)), 0.25).tolist() == [0.0]


def test_one_occupation_alone_is_never_equivalent() -> None:
    (effect,) = effects(
        [Named("a", "f", "irrelevant")], 0.01 * normal(1, (20, 1)), ["only"] * 20, "L", EffectSettings(), bound=0.25
    )
    assert effect.p_equivalence is not None
    assert effect.p_equivalence < 1e-6
    assert effect.ci_low is None
    assert effect.equivalent is False


def test_equivalence_is_corrected_over_the_irrelevant_contrasts() -> None:
    # each passes by itself at 0.05, none after Holm over three; relevant ones and placebos are no part of the family
    values = normal(8, (64, 5))
    values = (values - values.mean(axis=0)) / values.std(axis=0, ddof=1) * 0.4 + 0.16
    roles = ("irrelevant", "irrelevant", "irrelevant", "relevant", "placebo")
    names = [Named(f"c{at}", "f", role) for at, role in enumerate(roles)]
    found = effects(names, values, OCCUPATIONS, "L", EffectSettings(), bound=0.25)
    alone = scipy_stats.ttest_1samp(values[:, 0], 0.25, alternative="less").pvalue
    assert 0.05 / 3 < alone < 0.05
    assert [effect.p_equivalence for effect in found] == pytest.approx([alone] * 5)
    corrected = adjusted(found)
    assert [effect.p_equivalence_holm for effect in corrected] == pytest.approx([3 * alone] * 3 + [alone] * 2)
    assert not any(effect.equivalent for effect in corrected[:3])
    assert [effect.equivalent for effect in corrected[3:]] == [effect.equivalent for effect in found[3:]]


def _crossed(values: npt.NDArray[np.float64], settings: EffectSettings, bound: float | None = None) -> Effect:
    """Differences of shape (pairs of names, resumes), tested."""
    names, resumes = (of.ravel() for of in np.indices(values.shape))
    named = Named("names_a_b", "race", "irrelevant")
    return crossed_effect(named, values.ravel(), resumes, names, "hiring", settings, bound)


def test_names_on_many_resumes_are_as_many_observations_as_there_are_names() -> None:
    # two pairs of names that differ by what they are, on 6 resumes each: all 12 differences have one sign
    few = _crossed(0.3 + 0.01 * normal(0, (2, 6)), EffectSettings(), 0.1)
    assert (few.n, few.n_names, few.n_clusters, few.p) == (12, 2, 6, 0.5)
    assert (few.p_equivalence, few.equivalent, few.d_z) == (None, None, None)
    values = 0.3 + 0.1 * normal(3, (8, 1)) + 0.01 * normal(4, (8, 6))
    effect = _crossed(values, EffectSettings(), 0.1)
    assert effect.mean == pytest.approx(values.mean())
    sums = [abs(np.dot(signs, values.mean(axis=1))) for signs in itertools.product((1, -1), repeat=8)]
    assert effect.p == pytest.approx(np.mean(np.array(sums) >= abs(values.mean(axis=1).sum()) - 1e-9))
    assert effect.ci_low is not None
    assert effect.ci_high is not None
    # about that of the eight means, not of 48 values
    half = 1.96 * values.mean(axis=1).std(ddof=1) / np.sqrt(8)
    assert (effect.ci_high - effect.ci_low) / 2 == pytest.approx(half, rel=0.25)


def test_names_that_do_nothing_rarely_move_anything() -> None:
    # every name has an effect of its own, no group has one: a test of names times resumes would find "differences"
    generator = np.random.default_rng(2)
    settings = EffectSettings(n_resamples=20, n_permutations=199)
    moved = naive = 0
    for _ in range(400):
        values = generator.normal(size=(8, 1)) + 0.1 * generator.normal(size=(8, 6))
        moved += (_crossed(values, settings).p or 0) <= 0.05
        naive += paired_effects(values.reshape(-1, 1), np.tile(np.arange(6), 8), **FAST).p[0] <= 0.05
    assert moved / 400 == pytest.approx(0.05, abs=0.03)
    assert naive / 400 > 0.3


def test_tost_errs_at_most_at_the_level_on_the_bound() -> None:
    values = normal(21, (64, 2000)) + 0.25
    assert (tost(values, 0.25) <= 0.05).mean() == pytest.approx(0.05, abs=0.015)


def test_equivalence_needs_whole_occupations_too() -> None:
    # the mean over questions is 0 to two decimals, but occupations pull in opposite ways by more than the bound
    values = np.repeat([3.0, -3.0, 3.0, -3.0], 50)[:, np.newaxis] + 0.05 * normal(4, (200, 1))
    (effect,) = effects(
        [Named("a", "f", "irrelevant")], values, np.repeat(list("abcd"), 50), "L", EffectSettings(), bound=0.7
    )
    assert effect.p_equivalence is not None
    assert effect.p_equivalence < 0.01
    assert effect.equivalent is False


def test_means_by_occupation_are_plain_means() -> None:
    values = normal(3, (64, 2))
    values[0, 0] = np.nan
    names, found = cluster_means(values, OCCUPATIONS)
    assert names == [f"o{index}" for index in range(8)]
    for row, name in enumerate(names):
        np.testing.assert_allclose(found[row], np.nanmean(values[name == OCCUPATIONS], axis=0))


def test_random_percentile_counts_sizes_not_signs() -> None:
    assert random_percentile(-3.0, [1.0, -2.0, 4.0, -5.0]) == 0.5
    with pytest.raises(ValueError, match="along_random"):
        random_percentile(1.0, [])


def test_decisions_are_mcnemars() -> None:
    first = ["yes"] * 9 + ["no"] * 3 + ["yes", "", "no"]
    second = ["no"] * 9 + ["yes"] * 3 + ["yes", "no", ""]
    found = decisions(first, second)
    assert (found.n, found.yes_first, found.yes_second, found.gained, found.lost) == (13, 10, 4, 9, 3)
    assert found.p == pytest.approx(scipy_stats.binomtest(3, 12).pvalue)
    assert decisions(["", "yes"], ["no", ""]).p is None
    assert decisions(["yes"], ["yes"]).p == 1.0


@pytest.mark.parametrize(
    ("differences", "cluster", "message"),
    [
        (np.zeros(3), list("abc"), "matrix"),
        (np.zeros((3, 1)), list("ab"), "cluster"),
        ([[np.inf]], ["a"], "differences"),
    ],
)
def test_malformed_input_is_named(differences: npt.ArrayLike, cluster: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_effects(differences, cluster)
