"""The gathered evidence on planted embeddings: what moved is found, what only shrank is named, nothing is nothing."""

import dataclasses
import math

import numpy as np
import pytest

from refbias.config.evidence import EvidenceSettings
from refbias.evidence import (
    CollapseMeasures,
    confirmed_groups,
    gather_evidence,
    moved_groups,
    scale_change,
    verdict,
)
from refbias.evidence.caution import Facts, warnings_for
from refbias.metrics import METHODS, Embeddings

SETTINGS = EvidenceSettings(n_resamples=400, n_permutations=2000, n_null=200, n_jackknife=6)
WIDTH = 64
PLANTED = ("g03", "g09", "g17")


def world(seed: int, n_targets: int = 20, n_groups: int = 24) -> tuple[Embeddings, np.ndarray, np.random.Generator]:
    """Sentences with a common part, groups of their own, and positive and negative attributes along one direction."""
    generator = np.random.default_rng(seed)
    valence = np.zeros(WIDTH)
    valence[0] = 1.5
    common = np.r_[0.0, np.full(WIDTH - 1, 1.5)]

    def rows(count: int) -> np.ndarray:
        return common + generator.normal(size=(count, WIDTH))

    def group() -> np.ndarray:
        lean = generator.normal(scale=0.4) * valence
        return rows(n_targets) + generator.normal(scale=0.5, size=WIDTH) + lean

    targets = {f"g{i:02d}": group() for i in range(n_groups)} | {"control": rows(25)}
    attributes = rows(40) + valence, rows(40) - valence
    # anchors that lean either way, as sentences do: without any, no description would see valence
    anchors = rows(250) + generator.normal(size=(250, 1)) * valence
    return Embeddings(targets, *attributes, anchors), valence, generator


def change(one: Embeddings, everywhere, of_group=lambda group, rows: rows) -> Embeddings:
    return Embeddings(
        {group: everywhere(of_group(group, np.asarray(rows))) for group, rows in one.targets.items()},
        everywhere(np.asarray(one.positive)),
        everywhere(np.asarray(one.negative)),
        everywhere(np.asarray(one.anchors)),
    )


def jitter(generator: np.random.Generator, size: float = 0.15):
    return lambda rows: rows + generator.normal(scale=size, size=rows.shape)


def centre(one: Embeddings) -> np.ndarray:
    return np.concatenate([*one.targets.values(), one.positive, one.negative, one.anchors]).mean(axis=0)


def codes(evidence) -> set[str]:
    return {warning.code for warning in evidence.warnings}


@pytest.mark.parametrize("method", ["rr", "seat"])
def test_identical_weights_are_nothing(method: str):
    reference, _, _ = world(1)
    copy = change(reference, np.array)
    evidence = gather_evidence(reference, copy, SETTINGS, method=method)
    assert evidence.warnings == ()
    for group in (*evidence.groups, evidence.control):
        assert (group.delta_b, group.p_value, group.p_holm, group.p_beyond_scale) == (0.0, 1.0, 1.0, 1.0)
        assert (group.ci_low, group.ci_high, group.effect_size, group.null_percentile) == (0.0, 0.0, 0.0, 0.0)
        assert group.b_audited == group.b_reference
    assert all((g.net_of_control, g.net_ci_low, g.net_ci_high) == (0.0, 0.0, 0.0) for g in evidence.groups)
    assert all((g.net_joint_low, g.net_joint_high) == (0.0, 0.0) for g in evidence.groups)
    measures = evidence.collapse
    assert (measures.distance_ratio, measures.centroid_ratio, measures.slope) == (1.0, 1.0, 1.0)
    assert verdict(evidence).level == "none"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("method", ["rr", "seat"])
def test_three_planted_groups_are_found_and_no_others(method: str, seed: int):
    reference, valence, generator = world(seed)
    audited = change(
        reference, jitter(generator), lambda group, rows: rows - 1.2 * valence if group in PLANTED else rows
    )
    evidence = gather_evidence(reference, audited, SETTINGS, method=method)
    assert tuple(g.group for g in evidence.groups if g.p_holm <= 0.05) == PLANTED
    assert tuple(g.group for g in moved_groups(evidence)) == PLANTED
    assert tuple(g.group for g in confirmed_groups(evidence)) == PLANTED
    assert codes(evidence) == set()
    found = verdict(evidence)
    assert found.level == "clear"
    assert found.sentence.startswith("3 of 24 groups moved towards the negative attributes, beyond chance and control")
    assert all(group in found.sentence for group in PLANTED)
    assert "95 % interval" in found.uncertainty
    for group in evidence.groups:
        if group.group in PLANTED:
            assert group.delta_b < 0
            assert group.ci_high < 0
            assert group.effect_size < -0.5
            if method == "rr":
                assert group.jackknife_low <= group.jackknife_high < 0
            else:
                assert math.isnan(group.jackknife_low)
    quarter = max(group.delta_b for group in evidence.groups if group.group in PLANTED) / 4
    assert tuple(group.group for group in evidence.groups if group.net_ci_high < quarter) == PLANTED


@pytest.mark.parametrize("method", ["rr", "seat"])
def test_every_number_is_that_of_the_metrics(method: str):
    reference, _, generator = world(4, n_groups=3)
    audited = change(reference, jitter(generator, 0.5))
    evidence = gather_evidence(reference, audited, SETTINGS, method=method)
    results = METHODS[method](reference, audited)
    for group in (*evidence.groups, evidence.control):
        result = results[group.group]
        assert group.delta_b == pytest.approx(result.delta_b, abs=1e-10)
        assert group.b_reference == pytest.approx(result.b_reference, abs=1e-10)
        assert group.b_audited == pytest.approx(result.b_audited, abs=1e-10)
        assert group.s_plus == pytest.approx(result.s_plus.mean(), abs=1e-10)
        assert group.s_minus == pytest.approx(result.s_minus.mean(), abs=1e-10)
        assert group.n_targets == len(result.s_plus)
        assert group.ci_low < group.delta_b < group.ci_high
    for group in evidence.groups:
        net = results[group.group].delta_b - results["control"].delta_b
        assert group.net_of_control == pytest.approx(net, abs=1e-10)
        assert group.net_joint_low < group.net_ci_low < net < group.net_ci_high < group.net_joint_high
    mean = np.mean([results[g.group].delta_b for g in evidence.groups])
    assert evidence.overall.delta_b == pytest.approx(mean, abs=1e-10)
    assert evidence.overall.ci_low < mean < evidence.overall.ci_high
    assert math.isnan(evidence.control.net_of_control)
    assert evidence.n_anchors == (250 if method == "rr" else 0)


def test_effect_size_is_dbs_share_of_the_spread_of_attributes():
    reference, _, generator = world(5, n_groups=2)
    audited = change(reference, jitter(generator, 0.5))
    cosines = []
    for one in (reference, audited):
        unit = [np.asarray(rows) for rows in (one.targets["g01"], one.positive, one.negative)]
        unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in unit]
        cosines.append(unit[0] @ np.concatenate(unit[1:]).T)
    means = (cosines[1] - cosines[0]).mean(axis=0)
    expected = (means[:40].mean() - means[40:].mean()) / means.std(ddof=1)
    evidence = gather_evidence(reference, audited, SETTINGS, method="seat")
    assert evidence.groups[1].effect_size == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("method", ["rr", "seat"])
@pytest.mark.parametrize("kind", ["towards_the_mean", "one_direction_grows", "valence_fades"])
def test_collapse_without_direction_is_named_and_is_no_bias(kind: str, method: str):
    reference, valence, generator = world(6)
    middle, along = centre(reference), valence / np.linalg.norm(valence)
    grown = np.full(WIDTH, 4.0)
    collapses = {
        "towards_the_mean": lambda rows: middle + 0.4 * (rows - middle),
        "one_direction_grows": lambda rows: rows + grown,
        "valence_fades": lambda rows: rows - 0.7 * np.outer((rows - middle) @ along, along),
    }
    noise = jitter(generator, 0.05)
    audited = change(reference, lambda rows: noise(collapses[kind](rows)))
    evidence = gather_evidence(reference, audited, SETTINGS, method=method)
    # the trap: taken as it stands, dB is significant in several groups
    assert sum(group.p_holm <= 0.05 for group in evidence.groups) >= 2
    assert "collapse" in codes(evidence)
    assert confirmed_groups(evidence) == ()
    found = verdict(evidence)
    assert found.level == "collapse"
    assert "drew together as a whole" in found.sentence
    assert "no sign of bias" in found.sentence


def test_a_shift_beside_a_collapse_is_still_found():
    reference, valence, generator = world(7)
    middle, noise = centre(reference), jitter(generator, 0.05)
    audited = change(
        reference,
        lambda rows: noise(middle + 0.6 * (rows - middle)),
        lambda group, rows: rows - 2.5 * valence if group in PLANTED else rows,
    )
    evidence = gather_evidence(reference, audited, SETTINGS, method="seat")
    assert "collapse" in codes(evidence)
    assert {group.group for group in confirmed_groups(evidence)} == set(PLANTED)
    assert verdict(evidence).level == "clear"


def test_a_shift_that_the_control_shares_is_not_about_groups():
    reference, valence, generator = world(8)
    noise = jitter(generator)
    audited = change(reference, noise, lambda _, rows: rows - 0.8 * valence)
    evidence = gather_evidence(reference, audited, SETTINGS, method="seat")
    assert "control_moved" in codes(evidence)
    # the trap: group by group, two lie beyond the control by chance
    assert sum(not group.net_ci_low <= 0 <= group.net_ci_high for group in moved_groups(evidence)) >= 1
    assert confirmed_groups(evidence) == ()
    found = verdict(evidence)
    assert found.level == "control"
    assert found.sentence.endswith("but so did the group-free control: the groups' shift is not told from it.")
    groups_only = change(reference, noise, lambda group, rows: rows - 0.8 * valence * (group != "control"))
    specific = gather_evidence(reference, groups_only, SETTINGS, method="seat")
    assert "control_moved" not in codes(specific)
    assert len(confirmed_groups(specific)) == 24


def test_one_group_needs_no_correction_against_the_control():
    reference, _, generator = world(16, n_groups=1)
    evidence = gather_evidence(reference, change(reference, jitter(generator, 0.5)), SETTINGS)
    (group,) = evidence.groups
    assert (group.net_joint_low, group.net_joint_high) == (group.net_ci_low, group.net_ci_high)


def test_a_smaller_bias_is_no_move_where_all_biases_shrank():
    """All sentences lose a fifth of what tells the attributes apart, too little for a warning, and one group regains
    part of it: its dB is significant on one side, what is beyond the change of scale on the other."""
    reference, valence, _ = world(17, n_groups=6)
    targets = {**reference.targets, "g05": np.asarray(reference.targets["g00"]) + 2.0 * valence}
    reference = Embeddings(targets, reference.positive, reference.negative, reference.anchors)
    middle, along = centre(reference), valence / np.linalg.norm(valence)
    noise = jitter(np.random.default_rng(1), 0.01)
    audited = change(
        reference,
        lambda rows: noise(rows - 0.2 * np.outer((rows - middle) @ along, along)),
        lambda group, rows: rows + 1.1 * valence * (group == "g05"),
    )
    evidence = gather_evidence(reference, audited, SETTINGS, method="seat")
    assert scale_change(evidence.collapse) is None
    (group,) = (one for one in evidence.groups if one.group == "g05")
    assert max(group.p_holm, group.p_beyond_scale) <= 0.05
    assert group.b_reference > 0 > group.delta_b
    assert group.beyond_scale == 0
    assert group not in moved_groups(evidence)


def test_a_collapse_with_groups_that_moved_beyond_it_names_them():
    reference, valence, generator = world(7)
    middle, noise = centre(reference), jitter(generator, 0.05)
    audited = change(
        reference,
        lambda rows: noise(middle + 0.6 * (rows - middle)),
        lambda group, rows: rows - 2.5 * valence if group in (*PLANTED, "control") else rows,
    )
    evidence = gather_evidence(reference, audited, SETTINGS, method="seat")
    moved = {group.group for group in moved_groups(evidence)}
    assert moved >= set(PLANTED)
    assert confirmed_groups(evidence) == ()
    found = verdict(evidence)
    assert found.level == "collapse"
    assert "drew together as a whole" in found.sentence
    assert "no sign of bias" not in found.sentence
    assert f"{len(moved)} of 24 groups moved" in found.sentence
    assert "not every check confirms it" in found.sentence
    assert all(group in found.sentence for group in PLANTED)


def test_a_clear_verdict_without_random_attribute_sets_says_so():
    reference, valence, generator = world(3)
    few = Embeddings(reference.targets, reference.positive, reference.negative, reference.anchors[:70])
    for one, missing in ((few, True), (reference, False)):
        audited = change(one, jitter(generator), lambda group, rows: rows - 1.2 * valence if group in PLANTED else rows)
        evidence = gather_evidence(one, audited, SETTINGS)
        assert verdict(evidence).level == "clear"
        assert ("few_anchors" in codes(evidence)) == missing
        assert ("not held against random attribute sets" in verdict(evidence).uncertainty) == missing


def test_the_mirror_image_has_the_opposite_sign():
    reference, valence, generator = world(9, n_groups=4)
    audited = change(reference, jitter(generator), lambda group, rows: rows + valence * (group == "g02"))
    swapped = [Embeddings(one.targets, one.negative, one.positive, one.anchors) for one in (reference, audited)]
    one = gather_evidence(reference, audited, SETTINGS)
    other = gather_evidence(*swapped, SETTINGS)
    for left, right in zip(one.groups, other.groups, strict=True):
        assert left.delta_b == pytest.approx(-right.delta_b, abs=1e-12)
        assert left.effect_size == pytest.approx(-right.effect_size, abs=1e-9)
        assert left.jackknife_low == pytest.approx(-right.jackknife_high, abs=1e-12)
    assert "towards the positive attributes" in verdict(one).sentence
    assert "towards the negative attributes" in verdict(other).sentence


def test_models_of_different_width_are_compared():
    reference, valence, generator = world(10, n_groups=4)
    lift = np.linalg.qr(generator.normal(size=(80, WIDTH)))[0].T
    moved = change(reference, jitter(generator), lambda group, rows: rows - 1.5 * valence * (group == "g01"))
    audited = change(moved, lambda rows: rows @ lift)
    for method in ("rr", "seat"):
        plain = gather_evidence(reference, moved, SETTINGS, method=method)
        wide = gather_evidence(reference, audited, SETTINGS, method=method, tokenizers_differ=True)
        for left, right in zip(plain.groups, wide.groups, strict=True):
            assert left.delta_b == pytest.approx(right.delta_b, abs=1e-10)
            assert left.p_holm == right.p_holm
        assert codes(wide) == {*codes(plain), "tokenizers_differ"}


def test_same_seed_same_numbers_and_single_precision_is_enough():
    reference, _, generator = world(11, n_groups=3)
    audited = change(reference, jitter(generator))
    first = gather_evidence(reference, audited, SETTINGS)
    assert gather_evidence(reference, audited, SETTINGS) == first
    other = gather_evidence(reference, audited, SETTINGS.model_copy(update={"seed": 5}))
    assert other.groups[0].ci_low != first.groups[0].ci_low
    narrow = [change(one, lambda rows: rows.astype(np.float32)) for one in (reference, audited)]
    assert gather_evidence(*narrow, SETTINGS).groups[0].delta_b == pytest.approx(first.groups[0].delta_b, abs=1e-5)


def test_too_few_sentences_are_said_and_give_no_verdict():
    reference, _, generator = world(12, n_targets=5, n_groups=3)
    few = Embeddings(reference.targets, reference.positive[:3], reference.negative[:3], reference.anchors[:4])
    audited = change(few, jitter(generator))
    evidence = gather_evidence(few, audited, SETTINGS)
    assert codes(evidence) >= {"few_sentences", "few_anchors"}
    assert "no group can reach significance" in next(w.sentence for w in evidence.warnings if w.code == "few_sentences")
    assert math.isnan(evidence.groups[0].null_percentile)
    assert verdict(evidence).level == "undefined"
    single = Embeddings(
        {group: rows[:1] for group, rows in reference.targets.items()},
        reference.positive,
        reference.negative,
        reference.anchors,
    )
    evidence = gather_evidence(single, change(single, jitter(generator)), SETTINGS)
    assert math.isnan(evidence.groups[0].ci_low)
    assert math.isnan(evidence.overall.ci_low)
    assert math.isfinite(evidence.groups[0].p_value)
    assert verdict(evidence).level == "undefined"


def test_without_a_control_there_is_no_net():
    reference, _, generator = world(13, n_groups=3)
    groups = {group: rows for group, rows in reference.targets.items() if group != "control"}
    alone = Embeddings(groups, reference.positive, reference.negative, reference.anchors)
    audited = change(alone, jitter(generator))
    with pytest.raises(ValueError, match="control: 'control' is not among the targets"):
        gather_evidence(alone, audited, SETTINGS)
    evidence = gather_evidence(alone, audited, SETTINGS, control=None)
    assert evidence.control is None
    assert math.isnan(evidence.groups[0].net_of_control)
    assert math.isnan(evidence.groups[0].net_ci_low)
    assert math.isnan(evidence.groups[0].net_joint_low)
    only = Embeddings({"control": groups["g00"]}, alone.positive, alone.negative, alone.anchors)
    with pytest.raises(ValueError, match="no group beside the control"):
        gather_evidence(only, only, SETTINGS)


def test_groups_of_unequal_size_have_an_overall_interval():
    reference, _, generator = world(14, n_groups=3)
    uneven = Embeddings(
        {**reference.targets, "g01": reference.targets["g01"][:7]},
        reference.positive,
        reference.negative,
        reference.anchors,
    )
    evidence = gather_evidence(uneven, change(uneven, jitter(generator, 0.5)), SETTINGS)
    assert evidence.overall.ci_low < evidence.overall.delta_b < evidence.overall.ci_high
    assert evidence.overall.delta_b == pytest.approx(np.mean([g.delta_b for g in evidence.groups]), abs=1e-12)


def test_halves_of_the_anchors_that_disagree_are_told():
    reference, valence, generator = world(15, n_groups=4)
    audited = change(reference, jitter(generator), lambda group, rows: rows - 1.5 * valence * (group == "g01"))
    evidence = gather_evidence(reference, audited, SETTINGS)
    assert "anchors_disagree" not in codes(evidence)
    torn = tuple(
        dataclasses.replace(group, jackknife_high=0.01) if group.group == "g01" else group for group in evidence.groups
    )
    found = warnings_for(dataclasses.replace(evidence, groups=torn), Facts(False, 250))
    assert [warning.code for warning in found] == ["anchors_disagree"]
    assert "1 of 4 groups (g01)" in found[0].sentence


@pytest.mark.parametrize(
    ("distance", "centroid", "expected"),
    [(1, 1, None), (0.7, 1, "collapse"), (1.2, 0.5, "collapse"), (1.5, 1, "expansion"), (0.9, float("nan"), None)],
)
def test_scale_change_by_its_thresholds(distance: float, centroid: float, expected: str | None):
    assert scale_change(CollapseMeasures(distance, centroid, 1.0, 0.5, 0.5)) == expected
