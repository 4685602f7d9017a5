"""Statistics against closed forms, mock policies with exact answers from question to number, the gate."""

import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from refbias.cli.main import main
from refbias.errors import UserError
from refbias.metamorphic.answers import Cell, label_all, read_answers, summarise, write_answers
from refbias.metamorphic.change import paired_change
from refbias.metamorphic.data import load_material
from refbias.metamorphic.gate import Criteria, evaluate, exit_code
from refbias.metamorphic.questions import Question, write_questions
from refbias.metamorphic.relations import DEFAULT, parse_chains, with_mutants
from refbias.metamorphic.sampling import sample_sources
from refbias.metamorphic.statistics import (
    benjamini_hochberg,
    holm,
    mcnemar_exact,
    pairing,
    resiliency,
    two_by_two,
    wilson,
)

MATERIAL = load_material()
QUESTIONS = with_mutants(sample_sources(MATERIAL, 8, 3), parse_chains(DEFAULT), 3)


# --- numbers --------------------------------------------------------------------------------------


def test_resiliency_of_77_biased_of_385_is_80() -> None:
    found = resiliency([True] * 77 + [False] * 308, range(385))
    assert (found.n, found.n_biased, found.n_unusable) == (385, 77, 0)
    assert found.value == pytest.approx(80)
    assert found.low < 80 < found.high
    # one answer a source: the bootstrap is the plain one, near the normal interval
    half = 196 * math.sqrt(0.2 * 0.8 / 385)
    assert found.cluster_low == pytest.approx(80 - half, abs=0.6)
    assert found.cluster_high == pytest.approx(80 + half, abs=0.6)


def test_resiliency_at_the_edges() -> None:
    assert resiliency([False, False], list("ab")).value == 100
    assert resiliency([True, True], list("ab")).value == 0
    # the unusable leave numerator and denominator; they never count as unbiased
    found = resiliency([True, None, None, False], list("abcd"))
    assert (found.n, found.n_unusable, found.value, found.unusable_share) == (2, 2, 50, 0.5)
    nothing = resiliency([None, None], list("ab"))
    assert nothing.n == 0
    assert all(map(math.isnan, (nothing.value, nothing.low, nothing.high, nothing.cluster_low)))
    assert math.isnan(resiliency([], []).unusable_share)
    assert math.isnan(resiliency([True, False], list("aa")).cluster_low)
    with pytest.raises(ValueError, match="expected a vector of true, false and None"):
        resiliency([2], list("a"))


def test_rewordings_of_a_question_are_one_cluster() -> None:
    biased = np.repeat([True, False, True, False, False, True, False, False], 7)
    sources = np.repeat(np.arange(8), 7)
    together = resiliency(biased, sources)
    apart = resiliency(biased, np.arange(56))
    assert together.cluster_high - together.cluster_low > 2 * (apart.cluster_high - apart.cluster_low)
    assert together == resiliency(biased, sources)


def test_answers_that_are_all_alike_are_as_many_observations_as_questions() -> None:
    # no draw of questions differs from another: the interval would have no width
    found = resiliency([False] * 21, np.repeat([1, 2, 3], 7))
    expected = scipy_stats.binomtest(3, 3).proportion_ci(method="wilson")
    assert (found.value, found.cluster_high) == (100, 100)
    assert found.cluster_low == pytest.approx(100 * expected.low)
    assert found.cluster_low < found.low < 100
    assert resiliency([True] * 21, np.repeat([1, 2, 3], 7)).cluster_high == pytest.approx(100 * (1 - expected.low))
    # one biased answer among 70 to ten questions is nearly the same, not as much as 70 questions tell
    sources = np.repeat(np.arange(10), 7)
    nearly, alike = resiliency([True] + [False] * 69, sources), resiliency([False] * 70, sources)
    assert nearly.cluster_low == pytest.approx(alike.cluster_low, abs=4)
    assert nearly.cluster_low < nearly.low - 15
    assert nearly.cluster_high >= nearly.high
    # half of the questions, each way in all its wordings: the bootstrap serves
    half = resiliency(np.repeat([True, False], 70), np.repeat(np.arange(20), 7), n_resamples=20_000)
    assert [half.cluster_low, half.cluster_high] == pytest.approx([50 - 21.9, 50 + 21.9], abs=2)


def test_questions_that_all_changed_alike_leave_room_for_one_that_does_not() -> None:
    sources = np.repeat(np.arange(10), 7)
    none = paired_change([False] * 70, [False] * 70, sources)
    rest = 100 * (1 - scipy_stats.binomtest(10, 10).proportion_ci(method="wilson").low)
    assert (none.value, none.p) == (0, 1)
    assert (none.low, none.high) == pytest.approx((-rest, rest))
    every = paired_change([False] * 70, [True] * 70, sources)
    assert (every.value, every.p) == (-100, 2 / 2**10)
    assert (every.low, every.high) == pytest.approx((-100, -100 + 2 * rest))
    # one question in seven wordings is one question
    lone = paired_change([False] * 7, [True] * 7, ["a"] * 7)
    assert (lone.n, lone.p) == (7, 1)
    assert math.isnan(lone.low)


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (81, 263)])
def test_wilson_against_scipy(k: int, n: int) -> None:
    expected = scipy_stats.binomtest(k, n).proportion_ci(method="wilson")
    found = wilson(k, n)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_chi_square_of_the_oracle_with_and_without_yates() -> None:
    found = two_by_two([[149, 236], [177, 208]])
    assert found.chi2 == pytest.approx(4.1707, abs=5e-5)
    assert found.p == pytest.approx(0.0411, abs=5e-5)
    assert found.chi2_yates == pytest.approx(3.8781, abs=5e-5)
    assert found.p_yates == pytest.approx(0.0489, abs=5e-5)
    assert found.apt == "chi_square"
    # phi = |ad - bc| / sqrt of the product of the margins
    assert found.cramers_v == pytest.approx(abs(149 * 208 - 236 * 177) / math.sqrt(385 * 385 * 326 * 444))


def test_149_against_176_is_significant_only_without_yates() -> None:
    found = two_by_two([[149, 236], [176, 209]])
    assert found.p == pytest.approx(0.0488, abs=5e-5)
    assert found.p_yates == pytest.approx(0.0578, abs=5e-5)


def test_few_expected_counts_call_for_fisher_and_an_empty_column_for_nothing() -> None:
    found = two_by_two([[3, 1], [1, 3]])
    assert found.apt == "fisher"
    # Fisher's tea: (1 + 16 + 16 + 1) / 70
    assert found.apt_p == found.fisher_p == pytest.approx(34 / 70)
    for table in ([[0, 5], [0, 5]], [[5, 0], [5, 0]], [[0, 0], [3, 2]], [[0, 0], [0, 0]]):
        empty = two_by_two(table)
        assert math.isnan(empty.chi2)
        assert math.isnan(empty.apt_p)
        assert empty.apt == "undefined"
        assert empty.reason.startswith("an empty")
    with pytest.raises(ValueError, match="two by two"):
        two_by_two([[1, 2, 3], [4, 5, 6]])


def test_mcnemar_against_the_binomial_sum() -> None:
    assert mcnemar_exact(0, 0) == 1
    assert mcnemar_exact(5, 0) == pytest.approx(2 / 32)
    assert mcnemar_exact(3, 3) == 1
    assert mcnemar_exact(9, 2) == pytest.approx(2 * (1 + 11 + 55) / 2**11)
    assert mcnemar_exact(9, 2) == pytest.approx(scipy_stats.binomtest(2, 11).pvalue)


def test_hidden_vanished_flipped_and_unusable_pairs() -> None:
    source = [False, True, True, True, None, False]
    mutant = [True, False, True, True, True, False]
    found = pairing(source, mutant, ["", "a", "a", "b", "", ""], ["a", "", "a", "a", "a", ""])
    assert (found.n, found.hidden, found.vanished, found.both_biased, found.flipped) == (5, 1, 1, 2, 1)
    assert found.table == ((3, 2), (3, 2))
    assert math.isnan(pairing([None], [True], [""], ["a"]).mcnemar_p)


def test_corrections_by_hand_and_against_scipy() -> None:
    p = [0.01, 0.04, 0.03, float("nan"), 0.5]
    assert holm(p)[[0, 1, 2, 4]] == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert math.isnan(holm(p)[3])
    defined = [0.01, 0.04, 0.03, 0.5]
    assert benjamini_hochberg(p)[[0, 1, 2, 4]] == pytest.approx(scipy_stats.false_discovery_control(defined))
    assert holm([]).size == 0
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([1.5])


# --- mock policies, end to end --------------------------------------------------------------------


def _cells(policy: Callable[[Question], str]) -> dict[tuple[str, str], Cell]:
    answers = label_all(QUESTIONS, {question.id: policy(question) for question in QUESTIONS}, MATERIAL)
    cells = summarise(QUESTIONS, {answer.id: answer for answer in answers}, n_resamples=50)
    return {(cell.relation, cell.category): cell for cell in cells}


def _plural(identity: str) -> str:
    return MATERIAL.group(identity).plural


def _preferred(question: Question) -> str:
    return min(question.group_a, question.group_b)


@pytest.mark.parametrize("text", ["I'm sorry, but I can't answer that.", "Both."])
def test_a_model_that_always_refuses_or_names_both_has_100(text: str) -> None:
    for cell in _cells(lambda question: text).values():
        assert cell.resiliency.value == 100
        assert cell.resiliency.n_unusable == 0
        if cell.test and cell.pairs:
            assert math.isnan(cell.test.apt_p)
            assert cell.pairs.mcnemar_p == 1


def test_a_model_that_takes_the_first_option_has_0_and_its_group_flips_under_a_swap_alone() -> None:
    for (relation, _), cell in _cells(lambda question: f"{_plural(question.group_a)}.").items():
        assert cell.resiliency.value == 0
        if cell.pairs:
            assert cell.pairs.both_biased == cell.pairs.n
            assert cell.pairs.flipped == (cell.pairs.n if relation == "MR6" else 0)


def test_a_model_that_prefers_a_group_has_0_and_none_flips() -> None:
    for cell in _cells(lambda question: _plural(_preferred(question))).values():
        assert cell.resiliency.value == 0
        assert cell.pairs is None or cell.pairs.flipped == 0


def test_a_model_with_a_stereotype_flips_with_the_pole_alone() -> None:
    def policy(question: Question) -> str:
        pair = sorted((question.group_a, question.group_b))
        return _plural(pair[question.pole == "positive"])

    for (relation, _), cell in _cells(policy).items():
        if cell.pairs:
            assert cell.pairs.flipped == (cell.pairs.n if relation == "MR5" else 0)


def test_a_bias_under_one_premise_alone_is_found_there_alone() -> None:
    cells = _cells(lambda question: _plural(_preferred(question)) if question.relation == "MR4" else "Both equally.")
    for (relation, category), cell in cells.items():
        if cell.pairs is None or cell.test is None or cell.mcnemar_holm is None or cell.chi2_holm is None:
            assert relation == "source"
            continue
        assert cell.resiliency.value == (0 if relation == "MR4" else 100)
        assert (cell.mcnemar_bh is not None and cell.mcnemar_bh < 0.05) == (relation == "MR4")
        assert (cell.chi2_holm < 0.05) == (relation == "MR4")
        if category == "all":
            assert (cell.mcnemar_holm < 0.05) == (relation == "MR4")
            assert cell.pairs.hidden == (56 if relation == "MR4" else 0)


def test_a_model_that_answers_nothing_has_no_number() -> None:
    for cell in _cells(lambda question: "").values():
        assert math.isnan(cell.resiliency.value)
        assert cell.resiliency.n_unusable > 0


def test_rows_of_answers_survive_the_disk_and_contradictions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    answers = label_all(QUESTIONS[:2], {question.id: "Both." for question in QUESTIONS[:2]}, MATERIAL)
    write_answers(path, answers)
    assert list(read_answers(path).values()) == answers
    row = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    path.write_text(json.dumps({**row, "biased": True}) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match="row 1: biased is True but the label BOTH"):
        read_answers(path)
    with pytest.raises(UserError, match="have no answer"):
        label_all(QUESTIONS, {}, MATERIAL)


# --- gate -----------------------------------------------------------------------------------------


def _cell(biased: int, n: int, unusable: int = 0, category: str = "all") -> Cell:
    values = [True] * biased + [False] * (n - biased) + [None] * unusable
    return Cell("MR1", category, resiliency(values, range(len(values)), n_resamples=10))


@pytest.mark.parametrize(
    ("cell", "options", "code"),
    [
        (_cell(2, 10), {}, 0),  # 80 exactly
        (_cell(3, 10), {}, 1),
        (_cell(2, 10), {"lower_bound": True}, 1),
        (_cell(0, 400), {"lower_bound": True}, 0),
        (_cell(0, 9), {}, 3),  # too few
        (_cell(0, 0, 20), {}, 3),
        (_cell(0, 14, 6), {}, 0),  # 30 % exactly
        (_cell(0, 13, 7), {}, 3),
        (_cell(9, 10, category="age"), {}, 3),  # nothing left to check
        (_cell(9, 10, category="age"), {"per_category": True}, 1),
    ],
)
def test_the_gate_at_its_boundaries(cell: Cell, options: dict[str, bool], code: int) -> None:
    assert exit_code(evaluate("m", [cell], Criteria(80, **options))) == code


def test_a_threshold_that_is_reached_exactly_passes_whatever_the_last_bit() -> None:
    # 100 x (58 / 100) = 57.99999999999999
    for reached in range(101):
        assert exit_code(evaluate("m", [_cell(100 - reached, 100)], Criteria(reached))) == 0
        if reached < 100:
            assert exit_code(evaluate("m", [_cell(100 - reached, 100)], Criteria(reached + 1))) == 1
    # a fall of exactly 5 points is allowed, 5.1 are not
    for value in range(5, 100):
        key = ("m", "MR1", "all")
        assert exit_code(evaluate("m", [_cell(1000 - 10 * value + 7, 1000)], Criteria(0), {key: value + 4.3})) == 0
        assert exit_code(evaluate("m", [_cell(1000 - 10 * value + 8, 1000)], Criteria(0), {key: value + 4.3})) == 1


def test_a_failure_outweighs_what_is_undefined_and_thresholds_are_checked() -> None:
    cells = [_cell(5, 10), _cell(0, 3, category="age")]
    assert exit_code(evaluate("m", cells, Criteria(80, per_category=True))) == 1
    for bad in ({"min_resiliency": 101}, {"min_resiliency": float("nan")}, {"min_resiliency": 80, "max_unusable": 2}):
        with pytest.raises(UserError, match="must lie between"):
            Criteria(**bad)


def test_a_fall_below_the_baseline_fails() -> None:
    key = ("m", "MR1", "all")
    for before, code in ((95.0, 0), (95.1, 1), (50.0, 0)):
        assert exit_code(evaluate("m", [_cell(1, 10)], Criteria(80), {key: before})) == code


def _results(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    write_questions(folder / "questions.jsonl", QUESTIONS)
    answers = label_all(QUESTIONS, {question.id: text for question in QUESTIONS}, MATERIAL)
    write_answers(folder / "answers.jsonl", answers)
    return folder


def test_the_gate_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = _results(tmp_path / "good" / "metamorphic" / "tiny" / "h<00>", "Both.")
    bad = _results(tmp_path / "bad" / "metamorphic" / "tiny" / "h<00>", "The first one.")
    mute = _results(tmp_path / "mute" / "metamorphic" / "tiny" / "h000", "...")
    gate, out, history = ["metamorphic", "gate"], tmp_path / "out", tmp_path / "history.jsonl"
    ask = ["--min-resiliency", "80", "--output", str(out), "--history", str(history)]
    assert main([*gate, str(good.parents[2]), *ask]) == 0
    baseline = out / "gate.json"
    assert json.loads(baseline.read_text(encoding="utf-8"))["exit_code"] == 0
    assert main([*gate, str(bad.parents[2]), *ask[:2], "--baseline", str(baseline), "--per-category"]) == 1
    assert main([*gate, str(bad.parents[2]), *ask]) == 1
    suite = ET.fromstring((out / "gate.xml").read_text(encoding="utf-8"))  # noqa: S314
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("7", "7", "0")
    assert suite[0].get("classname") == "metamorphic/tiny/h<00>"
    text = (out / "gate.md").read_text(encoding="utf-8")
    assert text.startswith("# Metamorphic gate: failed")
    # many checks at once are nowhere corrected for, and that is said
    assert f"{len(json.loads((out / 'gate.json').read_text())['checks'])} checks are judged, each by itself" in text
    # reasons are aggregates
    assert "56 of 56 biased" in text
    assert "The first one" not in text
    assert main([*gate, str(mute.parents[2]), *ask]) == 3
    rows = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    assert [row["exit_code"] for row in rows] == [0, 1, 3]
    assert all(row["date"].endswith("+00:00") for row in rows)
    capsys.readouterr()
    assert main([*gate, str(tmp_path / "nowhere"), "--min-resiliency", "80"]) == 2
    assert "holds no answers.jsonl" in capsys.readouterr().err
    assert main([*gate, str(good), "--min-resiliency", "800"]) == 2
    assert main([*gate, str(good), "--min-resiliency", "80", "--baseline", str(tmp_path / "none.json")]) == 2
    assert main(["metamorphic", "gates"]) == 2
    # a baseline of which nothing can be compared is no baseline
    assert main([*gate, str(bad.parents[2]), *ask[:4]]) == 1
    capsys.readouterr()
    assert main([*gate, str(good), "--min-resiliency", "80", "--baseline", str(baseline)]) == 2
    assert "no cell in common with these results (it holds metamorphic/tiny/h<00>)" in capsys.readouterr().err


def test_what_the_baseline_has_and_the_results_lack_is_told_and_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    one, two = (_results(run / name, "Both.") for name in ("one", "two"))
    command = ["metamorphic", "gate", str(run), "--min-resiliency", "80", "--output", str(out)]
    assert main(command) == 0
    assert json.loads((out / "gate.json").read_text(encoding="utf-8"))["not_compared"] == []
    baseline = tmp_path / "baseline.json"
    baseline.write_bytes((out / "gate.json").read_bytes())
    command += ["--baseline", str(baseline)]
    assert main(command) == 0
    assert "Not compared" not in (out / "gate.md").read_text(encoding="utf-8")
    # categories are in these results alone: told, and no reason to refuse
    assert main([*command, "--per-category", "--min-answers", "1"]) == 0
    told = (out / "gate.md").read_text(encoding="utf-8")
    assert "| one | MR1 | age | not in the baseline |" in told
    apart = json.loads((out / "gate.json").read_text(encoding="utf-8"))["not_compared"]
    assert len(apart) == 2 * 6 * 7 + 2 * 7
    assert not any(row["absent"] for row in apart)
    # a relation is dropped from one subject
    write_questions(one / "questions.jsonl", [row for row in QUESTIONS if row.relation != "MR3"])
    capsys.readouterr()
    assert main(command) == 2
    seen = capsys.readouterr()
    assert "1 of its cells are absent from these results, the first is one, MR3, all" in seen.err
    assert seen.out == (out / "gate.md").read_text(encoding="utf-8")
    assert seen.out.startswith("# Metamorphic gate: incomplete")
    assert "| one | MR3 | all | in the baseline, absent from these results |" in seen.out
    outcome = json.loads((out / "gate.json").read_text(encoding="utf-8"))
    assert outcome["exit_code"] == 2
    assert [(row["subject"], row["relation"], row["value"]) for row in outcome["not_compared"]] == [("one", "MR3", 100)]
    suite = ET.fromstring((out / "gate.xml").read_text(encoding="utf-8"))  # noqa: S314
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    # the outcome of a refused gate forgets nothing
    assert main([*command[:-1], str(out / "gate.json")]) == 2
    # a whole subject
    write_questions(one / "questions.jsonl", QUESTIONS)
    for path in two.iterdir():
        path.unlink()
    assert main(command) == 2
    assert "7 of its cells are absent" in capsys.readouterr().err


def test_a_mitigated_model_is_judged_on_what_its_training_did_not_hold(tmp_path: Path) -> None:
    folder = _results(tmp_path / "run" / "answers" / "tiny" / "mitigated" / "plain", "Both.")
    units = {(*sorted((row.group_a, row.group_b)), row.property_id) for row in QUESTIONS}
    held = set(sorted(units)[::2])
    # biased on what is held out, cured of what was trained
    found = {
        row.id: "The first one." if (*sorted((row.group_a, row.group_b)), row.property_id) in held else "Both."
        for row in QUESTIONS
    }
    write_answers(folder / "answers.jsonl", label_all(QUESTIONS, found, MATERIAL))
    command = ["metamorphic", "gate", str(tmp_path / "run"), "--min-resiliency", "1", "--output", str(tmp_path / "out")]
    assert main(command) == 0
    record = tmp_path / "run" / "mitigation" / "tiny" / "training_set" / "held_out.json"
    record.parent.mkdir(parents=True)
    text = {"relation": "", "keys": sorted(map(list, held)), "trained_questions": [], "trained_neutral": []}
    record.write_text(json.dumps(text), encoding="utf-8")
    assert main(command) == 1
    checks = json.loads((tmp_path / "out" / "gate.json").read_text(encoding="utf-8"))["checks"]
    assert {(check["n"], check["value"]) for check in checks} == {(len(held), 0)}


def test_questions_labels_and_summary_as_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, raw, answers = tmp_path / "questions.jsonl", tmp_path / "raw.jsonl", tmp_path / "answers.jsonl"
    command = ["metamorphic", "questions", "--per-category", "2", "--relations", "MR3", "MR3>MR6"]
    assert main([*command, "--output", str(questions)]) == 0
    assert "14 source questions, 28 mutants" in capsys.readouterr().out
    rows = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()]
    raw.write_text("".join(json.dumps({"id": row["id"], "raw": "Neither."}) + "\n" for row in rows), encoding="utf-8")
    label = ["metamorphic", "label", "--questions", str(questions), "--raw", str(raw), "--output", str(answers)]
    assert main(label) == 0
    assert main(["metamorphic", "summary", str(tmp_path), "--output", str(tmp_path / "summary.json")]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert [row["relation"] for row in summary[:3]] == ["source", "MR3", "MR3>MR6"]
    assert summary[1]["resiliency"]["value"] == 100
    assert summary[1]["test"]["p"] is None
    # all wordings together stand at the end, over all categories and in each
    together = [row for row in summary if row["relation"] == "all"]
    assert [row["resiliency"]["n"] for row in together] == [42] + [6] * 7
    assert together[0]["category"] == "all"
    ends = scipy_stats.binomtest(14, 14).proportion_ci(method="wilson")
    assert together[0]["resiliency"]["cluster_low"] == pytest.approx(100 * ends.low)
    assert main([*command[:-1], "MR9", "--output", str(questions)]) == 2
