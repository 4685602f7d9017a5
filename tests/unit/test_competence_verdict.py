"""The analysis of a subject: the four planted verdicts, null data, relevance checks that refuse, controls."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from refbias.cli.main import main
from refbias.competence.analysis import AnalysisSettings, analyse
from refbias.competence.data import load_contrasts
from refbias.competence.hiring_analysis import group_contrasts, hiring_effects
from refbias.competence.results import HIRING_COLUMNS, load_subject, read_table
from refbias.competence.statistics import Effect, EffectSettings
from refbias.competence.verdict import Criteria, finding
from refbias.errors import UserError
from tests.unit.competence_example import ATTRIBUTES, RELEVANT, Plant, write_hiring, write_subject

CONTRASTS = load_contrasts(ATTRIBUTES)
FAST = AnalysisSettings(EffectSettings(n_resamples=300, n_permutations=1999))
OUTCOMES = {
    "representation only": (0.6, 0.0),
    "behaviour only": (0.0, 1.2),
    "both": (0.6, 1.2),
    "neither": (0.0, 0.0),
}


def outcomes(found: dict[str, Any], task: str = "answers") -> dict[str, str]:
    return {row["contrast_id"]: row["outcome"] for row in found["verdicts"] if row["task"] == task}


@pytest.mark.parametrize("planted", OUTCOMES)
def test_each_planted_case_gets_its_verdict(tmp_path: Path, planted: str) -> None:
    inside, outside = OUTCOMES[planted]
    plant = Plant(E={**RELEVANT, "woman": inside}, L={**RELEVANT, "woman": outside})
    found = analyse(write_subject(tmp_path, plant), CONTRASTS, FAST).verdicts
    assert found["refused"] == {"answers": [], "hiring": []}
    judged = outcomes(found)
    assert judged.pop("woman_man") == planted
    # nothing else was planted
    assert set(judged.values()) == {"neither"}
    assert all(check["passed"] for check in found["relevance"])


def test_effects_are_the_planted_ones_in_every_measure(tmp_path: Path) -> None:
    plant = Plant(E={**RELEVANT, "black": -0.5}, L={**RELEVANT, "black": 0.9})
    found = analyse(write_subject(tmp_path, plant), CONTRASTS, FAST)
    means = found.effects.set_index(["contrast_id", "measure"])["mean"]
    assert means["black_white", "E"] == pytest.approx(-0.5, abs=0.08)
    assert means["black_white", "E_normalised"] == pytest.approx(means["black_white", "E"] / 4)
    assert means["black_white", "L"] == pytest.approx(0.9, abs=0.1)
    assert means["occupation_none", "E"] == pytest.approx(1.0, abs=0.08)
    by_occupation = found.occupations.query("contrast_id == 'black_white' and measure == 'E'")
    assert len(by_occupation) == 8
    assert by_occupation["mean"].mean() == pytest.approx(means["black_white", "E"])
    named = found.attributes.query("measure == 'E' and attribute_id == 'none'").set_index("with_occupation")["mean"]
    assert named[True] - named[False] == pytest.approx(means["occupation_none", "E"])


def test_an_effect_in_either_half_alone_stays_undecided_where_the_other_is_noisy(tmp_path: Path) -> None:
    # reading levels scatter so widely that neither a movement nor its absence can be shown
    plant = Plant(E={**RELEVANT, "woman": 0.6}, L={key: 5 * value for key, value in RELEVANT.items()}, noise=(0.1, 3.0))
    found = analyse(write_subject(tmp_path, plant), CONTRASTS, FAST).verdicts
    (row,) = (row for row in found["verdicts"] if row["contrast_id"] == "woman_man" and row["task"] == "answers")
    assert (row["representation"], row["behaviour"], row["outcome"]) == ("moves", "undecided", "undecided")


def test_null_data_rarely_move_anything() -> None:
    # 250 null subjects with 5 irrelevant contrasts each, tested as the analysis tests them
    from refbias.competence.statistics import Named, adjusted, effects

    generator = np.random.default_rng(5)
    names = [Named(f"c{at}", "f", "irrelevant") for at in range(5)] + [Named("p", "f", "placebo")]
    cluster = np.repeat(list("abcdefgh"), 4)
    moved = raw = 0
    settings = EffectSettings(n_resamples=200, n_permutations=499)
    for _ in range(250):
        found = adjusted(effects(names, generator.normal(size=(32, 6)), cluster, "L", settings, 0.05))
        raw += sum((effect.p or 1) <= 0.05 for effect in found[:5])
        moved += any(finding(effect, found[5], Criteria())[0] == "moves" for effect in found[:5])
    assert raw / 1250 == pytest.approx(0.05, abs=0.02)
    assert moved / 250 <= 0.07


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"E": {"college": 0.8, "no_college": -0.8}}, "E does not answer to what is relevant (adult_child)"),
        ({"E": {**RELEVANT, "adult": -0.8, "child": 0.8}}, "(adult_child)"),
        ({"occupation": (0.0, 0.5)}, "(occupation_none)"),
        ({"L": {}, "occupation": (1.0, 0.0)}, "L answers to none of what is relevant"),
    ],
)
def test_failed_relevance_checks_refuse_every_verdict_in_words(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    plant = replace(Plant(E={**RELEVANT, "woman": 0.6}), **change)
    found = analyse(write_subject(tmp_path, plant, hiring=False), CONTRASTS, FAST).verdicts
    assert set(outcomes(found).values()) == {"refused"}
    assert any(reason in text for text in found["refused"]["answers"]), found["refused"]
    assert all(reason in row["sentence"] for row in found["verdicts"])
    # the findings themselves are still told
    assert {row["representation"] for row in found["verdicts"]} <= {"moves", "still", "undecided"}


def test_an_effect_as_large_along_random_directions_is_none(tmp_path: Path) -> None:
    folder = write_subject(tmp_path, Plant(E={**RELEVANT, "woman": 0.6}))
    random = pd.read_csv(folder / "random_directions.csv")
    at = (random["attribute_id"] == "woman") & (random["kind"] == "sign_flip")
    random.loc[at, "E"] += np.random.default_rng(0).normal(0, 2, size=int(at.sum()))
    random.to_csv(folder / "random_directions.csv", index=False)
    found = analyse(folder, CONTRASTS, FAST)
    (row,) = (
        row for row in found.verdicts["verdicts"] if row["contrast_id"] == "woman_man" and row["task"] == "answers"
    )
    assert row["representation"] == "undecided"
    assert "random directions" in row["sentence"]


def test_an_effect_no_larger_than_a_placebos_is_none(tmp_path: Path) -> None:
    plant = Plant(E={**RELEVANT, "woman": 0.5, "tea": -0.6})
    found = analyse(write_subject(tmp_path, plant), CONTRASTS, FAST).verdicts
    (row,) = (row for row in found["verdicts"] if row["contrast_id"] == "woman_man" and row["task"] == "answers")
    assert (row["representation"], row["outcome"]) == ("undecided", "undecided")
    assert "no larger than the placebo tea_coffee" in row["sentence"]


def test_a_tiny_but_certain_effect_counts_as_none() -> None:
    effect = Effect("a", "f", "irrelevant", "L", 64, 0, 0.05, 2.0, 0.04, 0.06, 1e-4, 1e-3, 0.25, 1e-6, True)
    state, reason = finding(effect, None, Criteria())
    assert state == "still"
    assert "although it is told from 0" in reason


def test_a_movement_names_only_the_controls_that_it_was_held_to() -> None:
    effect = Effect("a", "f", "irrelevant", "E", 64, 0, 1.0, 2.0, 0.8, 1.2, 1e-4, 1e-3)
    placebo = replace(effect, contrast_id="p", role="placebo", mean=0.1)
    beyond = replace(effect, random_percentile=0.99)
    alone = "there is no placebo to hold it against"
    directions = "larger than along 99 % of random directions"
    assert finding(effect, None, Criteria()) == ("moves", f"told from 0, {alone}")
    assert finding(beyond, None, Criteria()) == ("moves", f"told from 0, {directions}, {alone}")
    assert finding(beyond, placebo, Criteria()) == ("moves", f"told from 0, {directions}, larger than the placebo p")
    # a placebo is not held against itself
    assert finding(replace(effect, role="placebo"), None, Criteria()) == ("moves", "told from 0")


@pytest.mark.parametrize(
    ("change", "over"),
    [
        ({"measure": "L"}, "these questions, but not over occupations"),
        ({"measure": "hiring", "role": "relevant"}, "these pairs, but not over roles"),
        ({"measure": "hiring", "n_names": 8}, "these pairs of names, but not over names and r\u00e9sum\u00e9s"),
    ],
)
def test_what_an_interval_draws_is_named_by_the_task(change: dict[str, Any], over: str) -> None:
    effect = Effect("a", "f", "irrelevant", "L", 64, 0, 1.0, 2.0, -0.1, 2.1, 1e-4, 1e-3)
    assert finding(replace(effect, **change), None, Criteria()) == ("undecided", f"told from 0 in {over}")


def test_hiring_gets_verdicts_of_its_own(tmp_path: Path) -> None:
    plant = Plant(hiring={"black_women": -0.5, "black_men": -0.5}, n_names=4)
    found = analyse(write_subject(tmp_path, plant), CONTRASTS, FAST)
    assert found.verdicts["notes"] == []
    judged = outcomes(found.verdicts, "hiring")
    assert judged == {"names_black_white": "behaviour only", "names_men_women": "neither"}
    means = found.effects.set_index(["contrast_id", "measure"])["mean"]
    assert means["names_black_white", "hiring"] == pytest.approx(-0.5, abs=0.05)
    assert means["strong_weak", "hiring"] == pytest.approx(2.0, abs=0.05)
    assert means["arm_plus", "hiring"] == pytest.approx(0.6, abs=0.03)
    # E where it was steered is what steering put there
    assert not [key for key in means.index if key[1] == "hiring_E" and key[0].startswith("arm_")]


def test_few_names_on_many_resumes_decide_nothing(tmp_path: Path) -> None:
    # the shipped two names a group are four pairs of names: each differs from its match, on all nine resumes
    plant = Plant(hiring={"black_women": -0.5, "black_men": -0.5})
    found = analyse(write_subject(tmp_path, plant), CONTRASTS, FAST)
    rows = [row for row in found.verdicts["verdicts"] if row["task"] == "hiring"]
    assert {row["contrast_id"]: row["outcome"] for row in rows} == {
        "names_black_white": "undecided",
        "names_men_women": "undecided",
    }
    assert all("4 pairs of names stand for the groups, 6 are needed" in row["sentence"] for row in rows)
    effects = found.effects.set_index(["contrast_id", "measure"])
    assert effects.loc[("names_black_white", "hiring"), "p"] == 0.125
    assert effects.loc[("names_black_white", "hiring"), "n"] == 36


def test_hiring_arms_count_readable_answers_and_changes(tmp_path: Path) -> None:
    write_hiring(tmp_path, Plant(), np.random.default_rng(1))
    frame = read_table(tmp_path / "hiring.csv", HIRING_COLUMNS)
    arms = hiring_effects(frame, FAST.effects, 0.1, 0.2).arms.set_index(["arm", "group"])
    for (arm, group), row in arms.iterrows():
        rows = frame[(frame["arm"] == arm) & ((frame["group"] == group) | (group == "all"))]
        assert row["n"] == len(rows)
        assert row["n_readable"] == (rows["parsed"] != "").sum()
        assert row["yes_share"] == pytest.approx((rows["parsed"] == "yes").sum() / row["n_readable"])
        base = frame[frame["arm"] == "none"].set_index(["resume_id", "name"])["parsed"]
        pairs = [(a, base[r, n]) for a, r, n in zip(rows["parsed"], rows["resume_id"], rows["name"], strict=True)]
        if arm != "none":
            assert row["to_yes"] == pairs.count(("yes", "no"))
            assert row["to_no"] == pairs.count(("no", "yes"))


def test_written_decisions_are_paired_between_groups_of_names_on_the_same_resume(tmp_path: Path) -> None:
    write_hiring(tmp_path, Plant(hiring={"black_women": -1.2, "black_men": -1.2}), np.random.default_rng(2))
    frame = read_table(tmp_path / "hiring.csv", HIRING_COLUMNS)
    found = {e.contrast_id: e for e in hiring_effects(frame, FAST.effects, 0.1, 0.2).effects if e.measure == "hiring"}
    said = {
        (row["resume_id"], *row["name"].rpartition("_")[::2], row["group"]): row["parsed"]
        for _, row in frame[frame["arm"] == "none"].iterrows()
    }
    for first, second in (("black", "white"), ("men", "women")):
        pairs = [
            (answer, said[resume, stem.replace(first, second), place.replace(f"{first} ", f"{second} "), other])
            for (resume, stem, place, group), answer in said.items()
            if first in group.split("_")
            for other in [group.replace(first, second)]
        ]
        effect = found[f"names_{first}_{second}"]
        readable = [pair for pair in pairs if "" not in pair]
        only = readable.count(("yes", "no")), readable.count(("no", "yes"))
        assert effect.n == len(pairs) == 36
        assert effect.n_decided == len(readable) == 30
        assert (effect.only_first, effect.only_second) == only
        assert (effect.yes_first, effect.yes_second) == tuple(
            sum(pair[side] == "yes" for pair in readable) for side in (0, 1)
        )
        oracle = binomtest(only[0], sum(only)).pvalue if sum(only) else 1.0
        assert effect.mcnemar_p == pytest.approx(oracle)
        assert effect.mcnemar_p_holm is not None
        assert effect.mcnemar_p_holm >= oracle
    # every black applicant with a strong resume is turned down, every white one is not
    black = found["names_black_white"]
    assert black.only_first == 0
    assert black.only_second is not None
    assert black.only_second >= 12
    changed = found["arm_plus"]
    assert changed.n_decided == 60


def _hiring(folder: Path, plant: Plant) -> pd.DataFrame:
    write_hiring(folder, plant, np.random.default_rng(4))
    return read_table(folder / "hiring.csv", HIRING_COLUMNS)


def test_what_the_hiring_task_leaves_out_stands_in_the_notes(tmp_path: Path) -> None:
    folder = write_subject(tmp_path, Plant())
    frame = pd.read_csv(folder / "hiring.csv", keep_default_na=False)
    frame[frame["resume_id"] != "kitchen_weak"].to_csv(folder / "hiring.csv", index=False)
    (note,) = analyse(folder, CONTRASTS, FAST).verdicts["notes"]
    assert "strong_weak leaves out kitchen_strong" in note


def test_names_without_a_counterpart_are_named_and_left_out(tmp_path: Path) -> None:
    frame = _hiring(tmp_path, Plant(hiring={"black_women": -0.5, "black_men": -0.5}))
    full = hiring_effects(frame, FAST.effects, 0.1, 0.2)
    assert full.notes == ()
    found = hiring_effects(frame[frame["name"] != "white_women 1"], FAST.effects, 0.1, 0.2)
    assert found.notes == (
        "hiring.csv: names_black_white leaves out black_women 1: the name has no counterpart on the other side",
        "hiring.csv: names_men_women leaves out white_men 1: the name has no counterpart on the other side",
    )
    # 9 resumes: 4 pairs of names on each before, 3 now
    sizes = {(e.contrast_id, e.measure): e.n for e in found.effects}
    assert sizes["names_black_white", "hiring"] == 27
    (black,) = (e for e in found.effects if (e.contrast_id, e.measure) == ("names_black_white", "hiring"))
    assert black.mean == pytest.approx(-0.5, abs=0.06)
    assert (black.n_clusters, black.n_names) == (9, 3)


def test_a_second_strong_resume_for_a_role_multiplies_no_pairs(tmp_path: Path) -> None:
    frame = _hiring(tmp_path, Plant())
    more = frame[frame["resume_id"] == "office_strong"].assign(resume_id="office_best", yes_logit_minus_no=99.0)
    plain = hiring_effects(frame, FAST.effects, 0.1, 0.2)
    found = hiring_effects(pd.concat([frame, more], ignore_index=True), FAST.effects, 0.1, 0.2)
    before, after = (
        next(e for e in each.effects if (e.contrast_id, e.measure) == ("strong_weak", "hiring"))
        for each in (plain, found)
    )
    assert (after.n, after.mean, after.n_clusters) == (24, before.mean, 3)
    assert found.notes == (
        "hiring.csv: strong_weak leaves out office_best: the r\u00e9sum\u00e9 has no counterpart on the other side",
    )
    # with a second weak one the second strong one has its match
    weak = frame[frame["resume_id"] == "office_weak"].assign(resume_id="office_worst", yes_logit_minus_no=-99.0)
    both = hiring_effects(pd.concat([frame, more, weak], ignore_index=True), FAST.effects, 0.1, 0.2)
    paired = next(e for e in both.effects if (e.contrast_id, e.measure) == ("strong_weak", "hiring"))
    assert paired.n == 32
    assert before.mean is not None
    assert paired.mean == pytest.approx((24 * before.mean + 8 * 198) / 32)
    assert both.notes == ()


def test_groups_of_names_are_compared_feature_by_feature_or_pair_by_pair() -> None:
    crossed = group_contrasts(["black_men", "black_women", "white_men", "white_women"])
    assert [(family, first, second) for family, first, second, _ in crossed] == [
        ("race", "black", "white"),
        ("gender", "men", "women"),
    ]
    assert crossed[0][3]["black_men"] == ("black", "men")
    single = group_contrasts(["north", "south", "east"])
    assert [(first, second) for _, first, second, _ in single] == [
        ("east", "north"),
        ("east", "south"),
        ("north", "south"),
    ]
    # not every combination is there: no feature can be held
    assert len(group_contrasts(["black_men", "black_women", "white_men"])) == 3


def test_the_command_writes_the_tables_and_says_the_verdicts(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_subject(tmp_path, Plant(missing=0.1))
    args = ["competence", "analyse", "--results", str(folder), "--n-resamples", "100", "--n-permutations", "199"]
    assert main(args) == 0
    assert "woman_man moves neither the representation nor the behaviour" in capsys.readouterr().out
    for name in ("effects.csv", "occupations.csv", "attributes.csv", "hiring_arms.csv", "analyse.manifest.json"):
        assert (folder / name).stat().st_size
    verdicts = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
    assert verdicts["criteria"]["n_random_directions"] == 200
    effects = pd.read_csv(folder / "effects.csv")
    assert {"E", "E_normalised", "L", "fkgl", "dcrs", "hiring", "hiring_E"} == set(effects["measure"])
    # the rule promises what the command writes, no more and no less
    inputs = {"scores.csv", "random_directions.csv", "behaviour.csv", "hiring.csv", "steering.csv", ".lock"}
    rules = (root / "workflow" / "rules" / "competence.smk").read_text(encoding="utf-8")
    (rule,) = re.findall(r"^rule competence_analyse:\n.*?output:\n(.*?)    log:", rules, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r'/([\w.]+)",', rule)) == {path.name for path in folder.iterdir()} - inputs
    # the same seed, the same bytes
    first = (folder / "effects.csv").read_bytes()
    assert main(args) == 0
    assert (folder / "effects.csv").read_bytes() == first
    # what an earlier analysis said of hiring goes with its data
    (folder / "hiring.csv").unlink()
    assert main(args) == 0
    assert not (folder / "hiring_arms.csv").exists()
    assert load_subject(folder).arms is None


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("scores.csv", lambda f: f.drop(columns="E"), r"scores.csv:1: column 'E' is missing"),
        ("scores.csv", lambda f: f.assign(with_occupation="often"), r"scores.csv:2: with_occupation 'often': must be"),
        ("behaviour.csv", lambda f: f.assign(reading_level="high"), r"behaviour.csv:2: reading_level 'high': not a n"),
        ("behaviour.csv", lambda f: f[f["attribute_id"] == "tea"], r"holds both sides of no contrast"),
        (
            "random_directions.csv",
            lambda f: f[f["direction"].astype(int) < 100],
            r"100 gaussian directions: at least 200",
        ),
        ("random_directions.csv", lambda f: f[f["attribute_id"] != "tea"], r"no rows for contrast tea_coffee"),
        ("hiring.csv", lambda f: f.assign(arm="up"), r"hiring.csv:2: arm 'up': one of none, plus, minus"),
        ("hiring.csv", lambda f: f[:0], r"hiring.csv: holds no decision"),
        ("hiring.csv", lambda f: pd.concat([f, f]), r"two rows for one name and arm"),
    ],
)
def test_broken_files_are_refused_by_name(tmp_path: Path, name: str, edit: Any, message: str) -> None:
    folder = write_subject(tmp_path, Plant(n_occupations=2, n_questions=2, samples=1))
    edit(pd.read_csv(folder / name, dtype=str, keep_default_na=False)).to_csv(folder / name, index=False)
    with pytest.raises(UserError, match=message):
        analyse(folder, CONTRASTS, FAST)


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ("college", "scores.csv: college_none was not measured: no row of college with occupation"),
        ("child", "scores.csv: adult_child was not measured: no row of child with occupation"),
    ],
)
def test_a_relevance_check_that_was_not_run_refuses_every_verdict(tmp_path: Path, lost: str, reason: str) -> None:
    folder = write_subject(tmp_path, Plant(), hiring=False)
    scores = pd.read_csv(folder / "scores.csv")
    scores[scores["attribute_id"] != lost].to_csv(folder / "scores.csv", index=False)
    found = analyse(folder, CONTRASTS, FAST).verdicts
    assert f"a relevance check is missing: {reason}" in found["refused"]["answers"]
    # what was measured passes, and is not said to fail
    assert not any("does not answer" in text for text in found["refused"]["answers"])
    assert set(outcomes(found).values()) == {"refused"}
    assert reason not in found["notes"]
    assert [check["passed"] for check in found["relevance"] if not check["measured"]] == [False] * (
        len(found["refused"]["answers"])
    )


def test_a_relevance_check_that_the_answers_lack_is_a_note_while_another_passes(tmp_path: Path) -> None:
    folder = write_subject(tmp_path, Plant(), hiring=False)
    answers = pd.read_csv(folder / "behaviour.csv")
    answers[answers["attribute_id"] != "child"].to_csv(folder / "behaviour.csv", index=False)
    found = analyse(folder, CONTRASTS, FAST).verdicts
    assert found["refused"] == {"answers": []}
    assert found["notes"] == ["behaviour.csv: adult_child was not measured: no row of child with occupation"]


def test_a_contrast_that_was_not_run_is_named(tmp_path: Path) -> None:
    folder = write_subject(tmp_path, Plant())
    scores = pd.read_csv(folder / "scores.csv")
    scores[scores["attribute_id"] != "asian"].to_csv(folder / "scores.csv", index=False)
    found = analyse(folder, CONTRASTS, FAST).verdicts
    assert found["notes"] == ["scores.csv: asian_white was not measured: no row of asian with occupation"]
    assert "asian_white" not in outcomes(found)
