"""Calibration: curves against independent fits, a planted curve, folds, errors by hand, refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from refbias.calibration import ShiftObservations, apply_calibration, check_measure, fit_calibration
from refbias.calibration.curves import fit_isotonic, fit_logistic, is_separated
from refbias.calibration.nested import INNER_FOLDS, Choice, nested_predictions
from refbias.calibration.validation import (
    bounded,
    brier,
    expected_calibration_error,
    grouped_folds,
    log_loss,
    out_of_fold,
    reliability,
)
from refbias.config.calibration import (
    Calibration,
    EmbeddingFacts,
    Measure,
    Outcome,
    Provenance,
    load_calibration,
    save_calibration,
    settings_hash,
)
from refbias.errors import UserError

EMBEDDED = EmbeddingFacts(layer="final", final_norm=True, pooling="mean", exclude_bos=False)
MEASURE = Measure(
    method="rr", n_anchors=250, stimuli_sha256="aa", settings=EMBEDDED, settings_sha256=settings_hash(EMBEDDED)
)
OUTCOME = Outcome(benchmark="decodingtrust", scorer="agreement_rule", unit="group", threshold=0.1)
STUDY = Provenance(
    run="study",
    models=["m"],
    regimes=["full"],
    commit="abc",
    changed_files=0,
    version="1",
    created="2026-01-01T00:00:00+00:00",
    observations_sha256="o",
    delta_b_sha256="d",
)


def observations(
    rng: np.random.Generator,
    curve: Any = lambda net, control: np.full(net.shape, 0.5),
    checkpoints: int = 14,
    units: int = 24,
    regimes: int = 2,
) -> ShiftObservations:
    """A study whose scores rise by 0.3 with the probability that `curve` gives net dB and control, else fall."""
    n = checkpoints * units
    checkpoint = np.repeat(np.arange(checkpoints), units)
    control = np.repeat(rng.normal(0, 0.03, checkpoints), units)
    net = rng.normal(0, 0.03, n)
    rose = rng.random(n) < curve(net, control)
    return ShiftObservations(
        delta_b=net + control,
        control=control,
        delta_score=np.where(rose, 0.3, -0.1),
        model=np.full(n, "m"),
        regime=np.array([("full", "lora")[at % regimes] for at in checkpoint]),
        checkpoint=np.array([f"c{at:03d}" for at in checkpoint]),
        unit=np.array([f"u{at:02d}" for at in np.tile(np.arange(units), checkpoints)]),
        n_outputs=np.full(n, 8.0),
    )


# --- curves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.05, 0.16, 3.0])
def test_logistic_is_the_penalised_maximum_likelihood(ridge: float) -> None:
    rng = np.random.default_rng(3)
    columns = np.column_stack([rng.normal(0.02, 0.03, 80), rng.normal(-1, 4, 80)])
    positive = rng.random(80) < 1 / (1 + np.exp(-(0.5 - 40 * columns[:, 0] + 0.2 * columns[:, 1])))

    def loss(theta: np.ndarray) -> float:
        # written out anew, in the predictors' own units
        total = 0.0
        for row, hit in zip(columns, positive, strict=True):
            value = theta[0] + theta[1] / 0.03 * row[0] + theta[2] * row[1]
            total += np.logaddexp(0.0, -value if hit else value)
        spread = [np.sqrt(np.mean((columns[:, at] - np.mean(columns[:, at])) ** 2)) for at in range(2)]
        return total + ridge / 2 * ((theta[1] / 0.03 * spread[0]) ** 2 + (theta[2] * spread[1]) ** 2)

    found = minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-8})
    curve = fit_logistic(columns, positive, ridge)
    assert curve.intercept == pytest.approx(found.x[0], abs=1e-5)
    assert curve.slopes == pytest.approx([found.x[1] / 0.03, found.x[2]], rel=1e-4)
    # a free intercept: the mean prediction is the share of positives
    assert curve.predict(columns).mean() == pytest.approx(positive.mean(), abs=1e-8)


def test_logistic_of_parted_classes_and_of_a_constant_stays_finite() -> None:
    columns = np.column_stack([np.arange(10.0), np.full(10, 0.25)])
    positive = np.arange(10) >= 5
    curve = fit_logistic(columns, positive, 0.16)
    assert np.isfinite([curve.intercept, *curve.slopes]).all()
    assert curve.slopes[1] == 0
    assert is_separated(columns, positive)
    positive[0] = True
    assert not is_separated(columns, positive)
    with pytest.raises(ValueError, match="one class"):
        fit_logistic(columns, np.ones(10, dtype=bool), 0.16)


def _pooled(values: np.ndarray, outcomes: np.ndarray) -> dict[float, float]:
    """Pool adjacent violators by hand: falling means over rising values."""
    blocks = [[[x], outcomes[values == x].sum(), (values == x).sum()] for x in sorted(set(values))]
    at = 0
    while at < len(blocks) - 1:
        if blocks[at][1] / blocks[at][2] < blocks[at + 1][1] / blocks[at + 1][2]:
            after = blocks.pop(at + 1)
            blocks[at] = [blocks[at][0] + after[0], blocks[at][1] + after[1], blocks[at][2] + after[2]]
            at = max(at - 1, 0)
        else:
            at += 1
    return {x: hits / n for xs, hits, n in blocks for x in xs}


@pytest.mark.parametrize("seed", range(5))
def test_isotonic_is_pool_adjacent_violators(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(-20, 20, 60) / 100
    positive = rng.random(60) < expit(-10 * values)
    expected = _pooled(values, positive.astype(float))
    curve = fit_isotonic(values, positive, rising=False)
    assert curve.predict(values[:, np.newaxis]) == pytest.approx([expected[value] for value in values], abs=1e-12)
    mirrored = fit_isotonic(-values, positive, rising=True)
    assert mirrored.predict(-values[:, np.newaxis]) == pytest.approx([expected[x] for x in values], abs=1e-12)


# --- validation -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_groups", "max_folds"), [(7, 20), (7, 3), (50, 20), (2, 2)])
def test_no_checkpoint_is_in_two_folds(n_groups: int, max_folds: int) -> None:
    rng = np.random.default_rng(1)
    groups = rng.permutation(np.repeat([f"m/full/h{at:03d}" for at in range(n_groups)], 5))
    folds = grouped_folds(groups, max_folds, 17)
    assert set(folds) == set(range(min(n_groups, max_folds)))
    for name in set(groups):
        assert len(set(folds[groups == name])) == 1
    sizes = np.bincount(folds)
    assert sizes.max() - sizes.min() <= 5


def test_a_fold_never_sees_its_own_outcomes() -> None:
    rng = np.random.default_rng(2)
    columns, positive = rng.normal(size=(30, 1)), rng.random(30) < 0.5
    folds = grouped_folds(np.repeat(list("abcdef"), 5), 20, 0)
    seen = []

    class Memory:
        def predict(self, rows: np.ndarray) -> np.ndarray:
            return np.full(len(rows), 0.5)

    def fit(rows: np.ndarray, hits: np.ndarray) -> Memory:
        seen.append({*rows[:, 0]})
        return Memory()

    out_of_fold(fit, columns, positive, folds)
    assert len(seen) == 6
    for fold, rows in enumerate(seen):
        assert rows == {*columns[folds != fold, 0]}


def test_a_fold_with_one_class_to_learn_from_gets_its_smoothed_share() -> None:
    positive = np.array([True, True, False, False])
    predicted, unfitted = out_of_fold(
        lambda rows, hits: fit_logistic(rows, hits, 0.16),
        np.arange(4.0)[:, np.newaxis],
        positive,
        np.array([0, 0, 1, 1]),
    )
    assert unfitted == 2
    assert predicted == pytest.approx([0.5 / 3, 0.5 / 3, 2.5 / 3, 2.5 / 3])


class Constant:
    """A curve that knows one number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return np.full(len(rows), self.value)


def test_the_choice_is_made_without_the_fold_that_it_predicts() -> None:
    rng = np.random.default_rng(4)
    names = np.repeat([f"c{at}" for at in range(8)], 6)
    columns, positive = np.arange(48.0)[:, np.newaxis], rng.random(48) < np.repeat(np.linspace(0.1, 0.9, 8), 6)
    folds = grouped_folds(names, 20, 3)
    seen: list[set[float]] = []

    def fit(rows: np.ndarray, hits: np.ndarray) -> Constant:
        seen.append({*rows[:, 0]})
        return Constant(float(hits.mean()))

    choices = [Choice(fit, columns), Choice(lambda rows, hits: Constant(0.3), columns)]
    found = nested_predictions(choices, positive, folds, names, 3)
    assert found is not None
    assert sum(found.n_chosen) == 8
    expected, won = np.empty(48), []
    for fold in range(8):
        known = folds != fold
        inner = grouped_folds(names[known], INNER_FOLDS, 3)
        own = np.empty(known.sum())
        for part in range(INNER_FOLDS):
            own[inner == part] = positive[known][inner != part].mean()
        errors = [np.mean((own - positive[known]) ** 2), np.mean((0.3 - positive[known]) ** 2)]
        won.append(int(errors[1] < errors[0]))
        expected[folds == fold] = 0.3 if won[-1] else positive[known].mean()
    assert found.predicted == pytest.approx(expected, abs=1e-12)
    assert found.n_chosen == (won.count(0), won.count(1))
    assert min(found.n_chosen) > 0
    # nothing that was fitted for a fold had a row of it
    for fold, place in enumerate(won):
        fits = INNER_FOLDS + (place == 0)
        held = {*columns[folds == fold, 0]}
        assert all(rows.isdisjoint(held) for rows in seen[:fits])
        del seen[:fits]
    assert seen == []


def test_two_checkpoints_leave_nothing_to_choose_on() -> None:
    names, positive = np.repeat(["a", "b"], 4), np.arange(8) % 2 == 0
    choices = [Choice(lambda rows, hits: Constant(0.5), np.zeros((8, 1)))]
    assert nested_predictions(choices, positive, grouped_folds(names, 20, 0), names, 0) is None


def test_errors_by_hand() -> None:
    predicted, positive = np.array([0.2, 0.9, 0.6]), np.array([False, True, False])
    assert brier(predicted, positive) == pytest.approx((0.04 + 0.01 + 0.36) / 3)
    assert log_loss(predicted, positive) == pytest.approx(-(np.log(0.8) + np.log(0.9) + np.log(0.4)) / 3)
    assert bounded(np.array([0.0, 0.5, 1.0]), 10) == pytest.approx([0.05, 0.5, 0.95])


def test_reliability_by_hand() -> None:
    predicted = np.repeat([0.1, 0.7], [10, 20])
    positive = np.concatenate([np.arange(10) < 3, np.arange(20) < 12])
    low, high = reliability(predicted, positive, 10)
    assert (low.n, low.n_positive, low.observed, low.mean_predicted) == (10, 3, 0.3, pytest.approx(0.1))
    # Wilson's interval of 3 in 10, from its formula
    z, n, p = 1.959963984540054, 10, 0.3
    middle, half = (p + z**2 / (2 * n)), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    assert [low.observed_low, low.observed_high] == pytest.approx(
        [(middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)]
    )
    assert high.observed == 0.6
    assert expected_calibration_error([low, high]) == pytest.approx((10 * 0.2 + 20 * 0.1) / 30)


# --- the whole fit --------------------------------------------------------------------------------


def _fit(data: ShiftObservations, **changed: Any) -> Calibration:
    given = {"outcome": OUTCOME, "measure": MEASURE, "provenance": STUDY, **changed}
    return fit_calibration(data, **given)


def _apply(found: Calibration, net: float, control: float) -> float:
    return apply_calibration(
        found,
        delta_b=net + control,
        net_of_control=net,
        control=control,
        n_anchors=250,
        stimuli_sha256="aa",
        method="rr",
    ).value


def test_a_planted_curve_is_found() -> None:
    def truth(net: Any, control: Any) -> Any:
        return expit(0.3 - 50 * net - 15 * control)

    found = _fit(observations(np.random.default_rng(5), truth, checkpoints=60, units=60))
    assert (found.kind, found.predictors) == ("logistic", ["net_of_control", "control"])
    for net in (-0.04, 0.0, 0.03):
        for control in (-0.03, 0.02):
            assert _apply(found, net, control) == pytest.approx(truth(net, control), abs=0.05)
    assert found.brier_skill > 0.2
    assert found.validation.candidates[1].skill_low is not None
    assert found.validation.candidates[1].skill_low > 0.1
    assert found.ece < 0.03
    assert found.transfer is not None
    assert found.transfer.candidates[0].brier_skill > 0.2
    assert not any("base rate alone" in sentence for sentence in found.warnings)


def test_a_null_study_gives_the_base_rate_and_says_so() -> None:
    skills = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        found = _fit(observations(rng, lambda net, control: np.full(net.shape, 0.3), checkpoints=30))
        skills.append(found.brier_skill)
        inside = [_apply(found, net, control) for net in (-0.03, 0.0, 0.03) for control in (-0.02, 0.02)]
        assert np.mean(inside) == pytest.approx(found.base_rate, abs=0.06)
        assert np.ptp(inside) < 0.25
        if found.brier_skill <= 0:
            assert "no better than the base rate" in found.warnings[0]
    # the best of four candidates on chance: never a gain to speak of
    assert max(skills) < 0.02
    assert sum(skill <= 0 for skill in skills) >= 4


def test_the_headline_errors_carry_the_choice() -> None:
    """On chance the best of four looks better on the folds that chose it than it is: the nested errors do not."""
    gains = []
    for seed in range(12):
        data = observations(np.random.default_rng(100 + seed), checkpoints=8)
        found = _fit(data)
        nested = found.validation.nested
        assert nested is not None
        assert (found.brier, found.brier_skill, found.ece) == (nested.brier, nested.brier_skill, nested.ece)
        assert sum(row.n for row in found.reliability) == found.n
        assert sum(nested.n_chosen) == 8
        gains.append(max(row.brier_skill for row in found.validation.candidates) - nested.brier_skill)
    assert np.mean(gains) > 0
    assert sum(gain >= 0 for gain in gains) >= 10


def test_with_two_checkpoints_the_warning_says_that_the_skill_flatters() -> None:
    curve = observations(np.random.default_rng(3), lambda net, control: expit(-90 * net), checkpoints=2, units=120)
    found = _fit(curve)
    assert found.validation.nested is None
    assert found.brier == min(row.brier for row in found.validation.candidates)
    assert any("best of 4 on the very checkpoints" in sentence for sentence in found.warnings)
    more = _fit(observations(np.random.default_rng(3), lambda net, control: expit(-90 * net), checkpoints=3, units=120))
    assert more.validation.nested is not None
    assert not any("on the very checkpoints" in sentence for sentence in more.warnings)


def test_a_step_is_isotonic() -> None:
    data = observations(
        np.random.default_rng(6), lambda net, control: np.where(net + control < -0.05, 0.98, 0.3), checkpoints=60
    )
    found = _fit(data)
    assert (found.kind, found.predictors) == ("isotonic", ["delta_b"])
    assert _apply(found, -0.06, -0.02) > 0.9
    assert _apply(found, 0.02, 0.0) == pytest.approx(0.3, abs=0.08)


def test_a_curve_of_the_control_alone_is_named() -> None:
    data = observations(np.random.default_rng(7), lambda net, control: expit(-80 * control), checkpoints=40)
    assert any("The control's dB alone does about as well" in sentence for sentence in _fit(data).warnings)


def test_a_wrong_direction_few_checkpoints_and_stand_ins_are_named() -> None:
    data = observations(
        np.random.default_rng(8), lambda net, control: expit(60 * (net + control)), checkpoints=7, regimes=1
    )
    outcome = OUTCOME.model_copy(update={"scorer": "standin_valence", "unit": "topic", "benchmark": "wildguardmix"})
    text = " ".join(_fit(data, outcome=outcome).warnings)
    assert "against the direction" in text
    assert "Only 7 checkpoints from 1 spectrum" in text
    assert "not independent" in text
    assert "One spectrum only" in text
    assert "a stand-in" in text
    assert "topic" in text


@pytest.mark.parametrize(("threshold", "word"), [(0.5, "none"), (-0.5, "every one")])
def test_one_class_is_refused_by_name(threshold: float, word: str) -> None:
    with pytest.raises(UserError, match=rf"decodingtrust, threshold {threshold}: {word} of 336 units"):
        _fit(observations(np.random.default_rng(1)), outcome=OUTCOME.model_copy(update={"threshold": threshold}))


def test_one_checkpoint_is_refused() -> None:
    with pytest.raises(UserError, match="one checkpoint only"):
        _fit(observations(np.random.default_rng(1), checkpoints=1))


# --- application ----------------------------------------------------------------------------------

SAME = {"n_anchors": 250, "stimuli_sha256": "aa", "method": "rr"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"n_anchors": 100}, "anchors 250 in the calibration, 100 in the audit"),
        ({"stimuli_sha256": "bb"}, "stimuli sha256 aa in the calibration, bb in the audit"),
        ({"method": "seat"}, "method rr in the calibration, seat in the audit"),
        ({"settings_sha256": "cc"}, "embedding settings sha256 .* in the calibration, cc in the audit"),
    ],
)
def test_another_way_of_measuring_is_refused_naming_both(other: dict[str, Any], message: str) -> None:
    found = _fit(observations(np.random.default_rng(1)))
    check_measure(found, **SAME, settings_sha256=settings_hash(EMBEDDED))
    with pytest.raises(UserError, match=message) as caught:
        apply_calibration(found, delta_b=0.0, net_of_control=0.0, control=0.0, **{**SAME, **other})
    assert "\n" not in str(caught.value)


def test_extrapolation_is_flagged_and_bounded() -> None:
    found = _fit(observations(np.random.default_rng(9), lambda net, control: expit(-60 * net), checkpoints=30))
    inside = apply_calibration(found, delta_b=0.01, net_of_control=0.01, control=0.0, **SAME)
    assert not inside.extrapolated
    far = apply_calibration(found, delta_b=-5.0, net_of_control=-5.0, control=0.0, **SAME)
    assert far.extrapolated
    assert len(far.outside) == 2
    assert far.value == 1 - 0.5 / found.n
    with pytest.raises(ValueError, match="net_of_control"):
        apply_calibration(found, delta_b=0.0, net_of_control=0.5, control=0.0, **SAME)
    with pytest.raises(ValueError, match="finite"):
        apply_calibration(found, delta_b=float("nan"), net_of_control=0.0, control=0.0, **SAME)


def test_an_audit_without_control_is_refused_where_the_curve_needs_one() -> None:
    found = _fit(observations(np.random.default_rng(5), lambda n, c: expit(-50 * n - 15 * c), checkpoints=60))
    with pytest.raises(UserError, match="needs net_of_control, control"):
        apply_calibration(found, delta_b=0.0, net_of_control=None, control=None, **SAME)


def test_the_file_holds_the_whole_calibration(tmp_path: Path) -> None:
    data = observations(np.random.default_rng(6), lambda n, c: np.where(n + c < -0.05, 0.98, 0.3), checkpoints=60)
    for found in (_fit(data), _fit(observations(np.random.default_rng(1)))):
        save_calibration(found, tmp_path / "c.json")
        assert load_calibration(tmp_path / "c.json") == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema version 2, this version reads 1"),
        ({"coefficients": None, "kind": "logistic"}, "key 'coefficients': no intercept"),
        ({"knots": {"x": [1.0, 0.0], "y": [0.1, 0.2]}, "kind": "isotonic"}, "key 'knots'"),
        ({"surprise": 1}, "unknown key 'surprise'"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "c.json"
    save_calibration(_fit(observations(np.random.default_rng(1))), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=message):
        load_calibration(path)
