"""Procrustes-SEAT and CKA drift against scipy, explicit matrices, plain loops and planted turns."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes
from scipy.stats import ortho_group

from refbias.metrics import METHODS, Embeddings, chosen_methods, cka, delta_b, orthogonal_map

SEEDS = st.integers(0, 2**32 - 1)
PROFILE = settings(max_examples=40, deadline=None)


def _model(generator: np.random.Generator, d: int, anchors: int, n: int = 6, offset: float = 0.5) -> Embeddings:
    def rows(count: int) -> np.ndarray:
        return generator.normal(size=(count, d)) + offset

    return Embeddings({"a": rows(n), "b": rows(n + 1), "control": rows(n)}, rows(7), rows(8), rows(anchors))


def _matrix(audited: np.ndarray, reference: np.ndarray) -> np.ndarray:
    return orthogonal_map(audited, reference).forward(np.eye(audited.shape[1]))


def _moved(model: Embeddings, change) -> Embeddings:
    return Embeddings(
        {group: change(np.asarray(rows)) for group, rows in model.targets.items()},
        change(np.asarray(model.positive)),
        change(np.asarray(model.negative)),
        change(np.asarray(model.anchors)),
    )


# --- Procrustes


@PROFILE
@given(SEEDS, st.integers(2, 16), st.integers(1, 24))
def test_map_is_orthogonal_and_fits_as_well_as_scipys(seed: int, d: int, m: int):
    generator = np.random.default_rng(seed)
    source, target = generator.normal(size=(2, m, d)) + 1.0
    found, expected = _matrix(source, target), orthogonal_procrustes(source, target)[0]
    np.testing.assert_allclose(found @ found.T, np.eye(d), atol=1e-12)
    loss, least = (float(np.linalg.norm(source @ matrix - target)) for matrix in (found, expected))
    assert loss == pytest.approx(least, rel=1e-9, abs=1e-9)
    # of the many maps that fit as well where the sentences are few, none is nearer to the identity than this one
    assert np.linalg.norm(found - np.eye(d)) <= np.linalg.norm(expected - np.eye(d)) + 1e-9


@PROFILE
@given(SEEDS, st.integers(2, 10), st.integers(0, 10))
def test_an_exact_rotation_is_recovered_from_more_anchors_than_dimensions(seed: int, d: int, more: int):
    generator = np.random.default_rng(seed)
    rotation = ortho_group.rvs(d, random_state=seed)
    source = generator.normal(size=(2 * d + more, d)) + 0.5
    np.testing.assert_allclose(_matrix(source, source @ rotation), rotation, atol=1e-9)
    np.testing.assert_allclose(_matrix(source, 3.7 * source @ rotation), rotation, atol=1e-9)


@PROFILE
@given(SEEDS, st.integers(6, 20))
def test_an_exact_rotation_is_recovered_from_fewer_anchors_where_they_reach(seed: int, d: int):
    generator = np.random.default_rng(seed)
    rotation = ortho_group.rvs(d, random_state=seed)
    m = d // 2
    anchors = generator.normal(size=(m, d))
    mapping = orthogonal_map(anchors, anchors @ rotation)
    inside = generator.normal(size=(4, m)) @ anchors
    np.testing.assert_allclose(mapping.forward(inside), inside @ rotation, atol=1e-7)


@PROFILE
@given(SEEDS, st.integers(5, 16))
def test_outside_of_the_joint_span_nothing_moves(seed: int, d: int):
    generator = np.random.default_rng(seed)
    source, target = generator.normal(size=(2, 2, d))
    stranger = generator.normal(size=(3, d))
    span = np.linalg.qr(np.concatenate([source, target]).T)[0]
    stranger -= (stranger @ span) @ span.T
    np.testing.assert_allclose(orthogonal_map(source, target).forward(stranger), stranger, atol=1e-12)


def test_a_rotation_of_the_audited_model_leaves_no_shift_for_m_below_and_above_d():
    generator = np.random.default_rng(0)
    rotation = ortho_group.rvs(12, random_state=3)
    plane = generator.normal(size=(5, 12))
    for anchors, embed in ((40, np.eye(12)), (8, plane)):
        width = len(embed)
        model = _moved(_model(generator, width, anchors), lambda rows, embed=embed: rows @ embed)
        turned = _moved(model, lambda rows: 2.5 * rows @ rotation)
        for fit in ("anchors", "all"):
            method = chosen_methods(["procrustes_seat"], procrustes_fit=fit)["procrustes_seat"]
            for result in method(model, turned).values():
                assert result.delta_b == pytest.approx(0, abs=1e-10)
                assert result.n_anchors == anchors


@PROFILE
@given(SEEDS, st.integers(3, 12), st.integers(1, 20), st.sampled_from(["anchors", "all"]))
def test_procrustes_shift_equals_mapping_the_targets_with_an_explicit_matrix(seed: int, d: int, m: int, fit: str):
    generator = np.random.default_rng(seed)
    reference, audited = _model(generator, d, m), _model(generator, d, m)
    results = chosen_methods(["procrustes_seat"], procrustes_fit=fit)["procrustes_seat"](reference, audited)
    stacked = [
        np.concatenate([x.anchors] if fit == "anchors" else [x.anchors, x.positive, x.negative, *x.targets.values()])
        for x in (audited, reference)
    ]
    matrix = _matrix(*stacked)
    for group, result in results.items():
        expected = {}
        for name, rows in (
            ("reference", np.asarray(reference.targets[group])),
            ("audited", np.asarray(audited.targets[group]) @ matrix),
        ):
            expected[name] = np.mean(
                [
                    np.mean([_loop_cosine(x, p) for p in reference.positive])
                    - np.mean([_loop_cosine(x, p) for p in reference.negative])
                    for x in rows
                ]
            )
        assert result.b_reference == pytest.approx(expected["reference"], abs=1e-10)
        assert result.b_audited == pytest.approx(expected["audited"], abs=1e-10)
        assert np.mean(result.s_plus - result.s_minus) == pytest.approx(result.delta_b, abs=1e-12)


def _loop_cosine(a: np.ndarray, b: np.ndarray) -> float:
    dot = math.fsum(p * q for p, q in zip(a, b, strict=True))
    return dot / math.sqrt(math.fsum(p * p for p in a) * math.fsum(q * q for q in b))


@PROFILE
@given(SEEDS, st.integers(2, 8), st.floats(1e-3, 1e3))
def test_order_and_a_common_scale_of_the_sentences_change_no_procrustes_shift(seed: int, d: int, factor: float):
    generator = np.random.default_rng(seed)
    models = [_model(generator, d, 6 * d), _model(generator, d, 6 * d)]
    before = METHODS["procrustes_seat"](*models)
    order = generator.permutation(6 * d)
    for found in (
        [Embeddings(x.targets, x.positive, x.negative, np.asarray(x.anchors)[order]) for x in models],
        [models[0], _moved(models[1], lambda rows: factor * rows)],
    ):
        for group, result in METHODS["procrustes_seat"](*found).items():
            assert result.delta_b == pytest.approx(before[group].delta_b, abs=1e-6)


@pytest.mark.parametrize(("d", "m"), [(300, 180), (96, 250)])
def test_equal_models_have_no_shift_to_the_last_bit_at_sizes_of_use(d: int, m: int):
    generator = np.random.default_rng(1)
    model = _moved(_model(generator, d, m, offset=4.0), lambda rows: rows.astype(np.float32))
    again = _moved(model, lambda rows: rows.copy())
    assert not orthogonal_map(model.anchors, again.anchors).change.any()
    for fit in ("anchors", "all"):
        for name, method in chosen_methods(METHODS, procrustes_fit=fit).items():
            assert {result.delta_b for result in method(model, again).values()} == {0.0}, name


def test_planted_move_relative_to_the_anchors_shows_whatever_the_turn():
    """Targets pushed towards the negative attributes in a turned copy: Procrustes sees the push, not the turn."""
    generator = np.random.default_rng(2)
    reference = _model(generator, 16, 60)
    rotation = ortho_group.rvs(16, random_state=5)
    push = np.mean(reference.negative, axis=0) - np.mean(reference.positive, axis=0)
    values = []
    for step in (-0.5, 0.0, 0.5, 1.0):
        targets = {group: (np.asarray(rows) + step * push) @ rotation for group, rows in reference.targets.items()}
        audited = Embeddings(targets, reference.positive, reference.negative, np.asarray(reference.anchors) @ rotation)
        values.append(METHODS["procrustes_seat"](reference, audited)["a"].delta_b)
    assert values[0] > 0.01
    assert values[1] == pytest.approx(0, abs=1e-10)
    assert values[1] > values[2] > values[3]


def test_procrustes_names_what_it_cannot_do():
    generator = np.random.default_rng(0)
    reference = _model(generator, 6, 4)
    with pytest.raises(ValueError, match="width 7 differs from the reference's 6"):
        METHODS["procrustes_seat"](reference, _model(generator, 7, 4))
    with pytest.raises(ValueError, match="anchors: absent"):
        METHODS["procrustes_seat"](reference, Embeddings(reference.targets, reference.positive, reference.negative))
    with pytest.raises(ValueError, match="differs from audited's"):
        orthogonal_map(np.ones((2, 3)), np.ones((3, 3)))
    broken = Embeddings(reference.targets, reference.positive, reference.negative, np.full((4, 6), np.nan))
    with pytest.raises(ValueError, match="audited anchors: NaN"):
        METHODS["procrustes_seat"](reference, broken)


# --- CKA


def _hsic(x: np.ndarray, y: np.ndarray, kernel: str) -> float:
    """tr(K H L H) by four loops, with kernels computed pair by pair."""
    grams = []
    for rows in (x, y):
        n = len(rows)
        distance = [[math.dist(a, b) for b in rows] for a in rows]
        apart = sorted(distance[i][j] for i in range(n) for j in range(i))
        half = len(apart) // 2
        width = apart[half] if len(apart) % 2 else (apart[half - 1] + apart[half]) / 2
        grams.append(
            [
                [
                    sum(p * q for p, q in zip(a, b, strict=True))
                    if kernel == "linear"
                    else math.exp(-(distance[i][j] ** 2) / (2 * width**2))
                    for j, b in enumerate(rows)
                ]
                for i, a in enumerate(rows)
            ]
        )
    n = len(x)
    total = 0.0
    for i in range(n):
        for j in range(n):
            for k in range(n):
                for m in range(n):
                    left = (i == j) - 1 / n
                    right = (k == m) - 1 / n
                    total += grams[0][m][i] * left * grams[1][j][k] * right
    return total


@settings(max_examples=12, deadline=None)
@given(SEEDS, st.integers(3, 7), st.sampled_from(["linear", "rbf"]))
def test_cka_equals_a_brute_force_hsic(seed: int, n: int, kernel: str):
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=(n, 5)) + 2, generator.normal(size=(n, 8)) - 1
    expected = _hsic(x, y, kernel) / math.sqrt(_hsic(x, x, kernel) * _hsic(y, y, kernel))
    assert cka(x, y, kernel) == pytest.approx(expected, abs=1e-9)


@PROFILE
@given(SEEDS, st.integers(3, 12), st.floats(1e-3, 1e3), st.sampled_from(["linear", "rbf"]))
def test_cka_of_a_turned_and_scaled_copy_is_one(seed: int, n: int, factor: float, kernel: str):
    x = np.random.default_rng(seed).normal(size=(n, 6)) + 3.0
    turned = factor * (x - 40.0) @ ortho_group.rvs(6, random_state=seed)
    assert cka(x, turned, kernel) == pytest.approx(1, abs=1e-10)
    assert cka(x, x.copy(), kernel) == 1.0


@PROFILE
@given(SEEDS, st.integers(2, 8), st.sampled_from(["linear", "rbf"]))
def test_cka_drift_is_symmetric_and_between_0_and_1(seed: int, n: int, kernel: str):
    generator = np.random.default_rng(seed)
    models = [_model(generator, 9, 3, n=n), _model(generator, 9, 3, n=n)]
    method = chosen_methods(["cka_drift"], cka_kernel=kernel)["cka_drift"]
    forth, back = method(*models), method(*reversed(models))
    for group in forth:
        assert 0 <= forth[group].delta_b <= 1
        assert forth[group].delta_b == pytest.approx(back[group].delta_b, abs=1e-14)


def test_planted_drift_grows_with_the_share_of_another_geometry():
    generator = np.random.default_rng(4)
    x, other = generator.normal(size=(2, 40, 20)) + 5
    drift = [1 - cka(x, (1 - share) * x + share * other) for share in (0, 0.1, 0.3, 0.6, 1.0)]
    assert drift[0] == 0
    assert all(a < b for a, b in itertools.pairwise(drift))


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_interval_of_the_drift_equals_a_loop_over_resamples(kernel: str):
    generator = np.random.default_rng(9)
    reference = _model(generator, 10, 3, n=8)
    audited = _moved(reference, lambda rows: rows + 0.4 * generator.normal(size=rows.shape))
    result = chosen_methods(["cka_drift"], cka_kernel=kernel)["cka_drift"](reference, audited)["a"]
    draws = np.random.default_rng(1).integers(0, 8, size=(200, 8))
    x, y = np.asarray(reference.targets["a"]), np.asarray(audited.targets["a"])
    grams = []
    for rows in (x, y):
        if kernel == "linear":
            grams.append(rows @ rows.T)
        else:
            apart = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(axis=2))
            grams.append(np.exp(-(apart**2) / (2 * np.median(apart[np.triu_indices(8, 1)]) ** 2)))
    expected = []
    centring = np.eye(8) - 1 / 8
    for drawn in draws:
        left, right = (centring @ matrix[np.ix_(drawn, drawn)] @ centring for matrix in grams)
        expected.append(1 - (left * right).sum() / math.sqrt((left**2).sum() * (right**2).sum()))
    np.testing.assert_allclose(result.redraw(draws), expected, atol=1e-10)
    interval = delta_b(result, 200, 1)
    assert interval.low == pytest.approx(np.percentile(expected, 2.5), abs=1e-10)
    assert interval.high == pytest.approx(np.percentile(expected, 97.5), abs=1e-10)


def test_drift_of_sentences_that_are_all_alike_is_missing():
    same = np.ones((4, 6)) / 3
    other = np.random.default_rng(0).normal(size=(4, 6))
    for kernel in ("linear", "rbf"):
        method = chosen_methods(["cka_drift"], cka_kernel=kernel)["cka_drift"]
        model = Embeddings({"g": same}, other, other)
        result = method(model, Embeddings({"g": other}, other, other))["g"]
        assert math.isnan(result.delta_b)
        assert all(map(math.isnan, delta_b(result, 100, 0)))
