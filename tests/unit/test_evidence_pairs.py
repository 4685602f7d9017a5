"""Pair matrices against loops over pairs, and the sums over them against the metrics."""

import math

import numpy as np
import pytest
from scipy.stats import ortho_group

from refbias.evidence import anchor_shifts, contributions, pair_matrices
from refbias.evidence.anchors import half_shifts
from refbias.evidence.null import neutral_changes, null_draws, percentile_of
from refbias.metrics import METHODS, Embeddings


def model(seed: int, width: int = 12, groups: tuple[int, ...] = (4, 4, 5), anchors: int = 30) -> Embeddings:
    generator = np.random.default_rng(seed)

    def rows(count: int) -> np.ndarray:
        return generator.normal(size=(count, width)) + 0.7

    names = [f"g{i}" for i in range(len(groups) - 1)] + ["control"]
    return Embeddings({n: rows(k) for n, k in zip(names, groups, strict=True)}, rows(5), rows(7), rows(anchors))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.dist(a, 0 * a) / math.dist(b, 0 * b)


def association(one: Embeddings, x: np.ndarray, y: np.ndarray, method: str, keep: list[int] | None = None) -> float:
    if method == "seat":
        return cosine(x, y)
    anchors = np.asarray(one.anchors) if keep is None else np.asarray(one.anchors)[keep]
    return -math.dist([cosine(x, a) for a in anchors], [cosine(y, a) for a in anchors])


def attributes(one: Embeddings) -> np.ndarray:
    return np.concatenate([np.asarray(one.positive), np.asarray(one.negative)])


@pytest.mark.parametrize("method", ["rr", "seat"])
@pytest.mark.parametrize("width", [12, 9])
def test_every_cell_is_the_change_of_association(method: str, width: int):
    reference, audited = model(1), model(2, width)
    pairs = pair_matrices(reference, audited, method)
    for group, rows in pairs.groups.items():
        for t in range(rows.stop - rows.start):
            for a in range(12):
                before, after = (
                    association(one, np.asarray(one.targets[group])[t], attributes(one)[a], method)
                    for one in (reference, audited)
                )
                assert pairs.change[rows][t, a] == pytest.approx(after - before, abs=1e-12)
                assert pairs.reference[rows][t, a] == pytest.approx(before, abs=1e-12)


@pytest.mark.parametrize("method", ["rr", "seat"])
def test_delta_b_of_the_matrix_is_that_of_the_metrics(method: str):
    reference, audited = model(3, 40, (700, 30, 20)), model(4, 56, (700, 30, 20))
    pairs = pair_matrices(reference, audited, method)
    for group, result in METHODS[method](reference, audited).items():
        change = pairs.change[pairs.groups[group]]
        assert change[:, :5].mean() - change[:, 5:].mean() == pytest.approx(result.delta_b, abs=1e-10)
        np.testing.assert_allclose(change[:, :5].mean(axis=1), result.s_plus, atol=1e-10)


@pytest.mark.parametrize("method", ["rr", "seat"])
def test_equal_or_turned_models_have_exactly_no_change(method: str):
    reference = model(5)
    again = Embeddings(
        {group: np.array(rows) for group, rows in reference.targets.items()},
        np.array(reference.positive),
        np.array(reference.negative),
        np.array(reference.anchors),
    )
    turn = 3 * ortho_group.rvs(12, random_state=1)
    turned = Embeddings(
        {group: rows @ turn for group, rows in reference.targets.items()},
        reference.positive @ turn,
        reference.negative @ turn,
        reference.anchors @ turn,
    )
    for audited in (again, turned):
        assert not pair_matrices(reference, audited, method).change.any()


def test_bad_input_is_named():
    reference = model(1)
    with pytest.raises(ValueError, match=r"method: 'cka_drift' has no pair matrix"):
        pair_matrices(reference, reference, "cka_drift")
    with pytest.raises(ValueError, match=r"reference anchors: absent|anchors: absent"):
        pair_matrices(Embeddings(reference.targets, reference.positive, reference.negative), reference)
    broken = np.array(reference.targets["g1"])
    broken[2, 3] = np.nan
    audited = Embeddings({**reference.targets, "g1": broken}, reference.positive, reference.negative, reference.anchors)
    with pytest.raises(ValueError, match=r"audited targets\[g1\]: NaN or infinite value in row 2"):
        pair_matrices(reference, audited)
    wide = Embeddings(reference.targets, reference.positive, reference.negative, np.ones((30, 5)))
    with pytest.raises(ValueError, match="anchors: width 5"):
        pair_matrices(reference, wide)
    narrow = Embeddings(
        {group: rows[:, :7] for group, rows in reference.targets.items()},
        reference.positive,
        reference.negative,
        reference.anchors,
    )
    for method in ("rr", "seat"):
        with pytest.raises(ValueError, match=r"audited targets.*width 7"):
            pair_matrices(reference, narrow, method)


@pytest.mark.parametrize("method", ["rr", "seat"])
def test_random_attributes_are_disjoint_neutral_sentences(method: str):
    reference, audited = model(6), model(7)
    pairs = pair_matrices(reference, audited, method)
    changes = neutral_changes(pairs)
    for number, group in enumerate(reference.targets):
        for a in (0, 17, 29):
            after, before = (
                np.mean([association(one, t, one.anchors[a], method) for t in one.targets[group]])
                for one in (audited, reference)
            )
            assert changes[number, a] == pytest.approx(after - before, abs=1e-12)
    # with changes that are powers of two, a draw's dB names the sentences that it took
    coded = 2.0 ** np.arange(12)[np.newaxis]
    draws = null_draws(coded, 1, 1, 300, seed=0)
    differences = {2.0**i - 2.0**j for i in range(12) for j in range(12) if i != j}
    assert set(draws[:, 0]) <= differences
    assert len(set(draws[:, 0])) > 100
    assert null_draws(coded, 7, 6, 300, seed=0) is None
    all_used = null_draws(coded, 6, 6, 300, seed=0)
    totals = 6 * all_used[:, 0]
    # both sets together are everything: positive sum is (total + difference) / 2, a sum of six different powers
    sums = (coded.sum() + totals) / 2
    assert all(bin(round(value)).count("1") == 6 for value in sums)


def test_percentile_counts_smaller_draws():
    draws = np.array([[-3.0], [1.0], [2.0], [0.5]])
    assert percentile_of([1.5], draws) == [50.0]
    assert percentile_of([-4.0], draws) == [100.0]
    assert percentile_of([0.0], np.zeros((4, 1))) == [0.0]


def test_half_of_the_anchors_by_loops():
    reference, audited = model(8), model(9)
    pairs = pair_matrices(reference, audited)
    found = half_shifts(pairs, 3, seed=4)
    generator = np.random.default_rng([4, 5])
    for number in range(3):
        keep = sorted(generator.permutation(30)[:15].tolist())
        for column, group in enumerate(reference.targets):
            biases = []
            for one in (reference, audited):
                each = [
                    np.mean([association(one, t, a, "rr", keep) for a in one.positive])
                    - np.mean([association(one, t, a, "rr", keep) for a in one.negative])
                    for t in one.targets[group]
                ]
                biases.append(np.mean(each))
            assert found[number, column] == pytest.approx(math.sqrt(2) * (biases[1] - biases[0]), abs=1e-12)
    assert half_shifts(pair_matrices(reference, audited, "seat"), 3, seed=4) is None


@pytest.mark.parametrize("method", ["rr", "seat"])
def test_contributions_sum_to_the_mean_shift_of_the_groups(method: str):
    reference, audited = model(10), model(11)
    parts = contributions(reference, audited, method=method)
    results = METHODS[method](reference, audited)
    mean = np.mean([results[group].delta_b for group in ("g0", "g1")])
    assert parts.delta_b == pytest.approx(mean, abs=1e-12)
    assert parts.templates.sum() == pytest.approx(mean, abs=1e-12)
    assert parts.positive.sum() + parts.negative.sum() == pytest.approx(mean, abs=1e-12)
    each = np.mean([results[group].s_plus - results[group].s_minus for group in ("g0", "g1")], axis=0)
    np.testing.assert_allclose(parts.templates, each / 4, atol=1e-12)
    uneven = contributions(model(10, groups=(4, 3, 5)), model(11, groups=(4, 3, 5)), method=method)
    assert uneven.templates is None


def test_the_one_attribute_that_moved_contributes_all():
    reference = model(12)
    positive = np.array(reference.positive)
    positive[3] *= -1
    audited = Embeddings(reference.targets, positive, reference.negative, reference.anchors)
    parts = contributions(reference, audited, control="control", method="seat")
    assert np.argmax(np.abs(parts.positive)) == 3
    assert np.sign(parts.positive[3]) == np.sign(parts.delta_b)


def test_the_anchor_that_moved_comes_first():
    reference = model(13)
    anchors = np.array(reference.anchors)
    anchors[11] = -anchors[11]
    audited = Embeddings(reference.targets, reference.positive, reference.negative, anchors)
    found = anchor_shifts(reference, audited, n_most=2)
    assert set(found) == {"g0", "g1", "control"}
    for group, (first, second) in found.items():
        mean = np.mean([cosine(t, reference.anchors[11]) for t in reference.targets[group]])
        assert first.index == 11
        assert first.change == pytest.approx(-2 * mean, abs=1e-12)
        assert first.reference == pytest.approx(mean, abs=1e-12)
        assert second.change == pytest.approx(0, abs=1e-12)
    short = Embeddings(reference.targets, reference.positive, reference.negative, anchors[:9])
    with pytest.raises(ValueError, match="anchors: 9 in the audited model, 30"):
        anchor_shifts(reference, short)
