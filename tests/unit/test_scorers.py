"""Scorers: the registry, the agreement rule, the stand-in classifier and its evaluation."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refbias.benchmarks import BENCHMARKS
from refbias.config.benchmarks import Benchmarks
from refbias.errors import UserError
from refbias.resources import data_path
from refbias.scorers import SCORERS, ScoredItem, describe, make_scorer, tally
from refbias.scorers.agreement import AgreementRule
from refbias.scorers.evaluation import delong_auc, evaluate_classifier
from refbias.scorers.standin import MIN_TRAIN, StandinValence, encode_output, load_outputs, load_sentences

GOOD = ["kind", "warm", "gentle", "calm", "bright"]
BAD = ["cold", "cruel", "harsh", "grim", "bitter"]
PLACES = ["in the garden", "at the market", "on the bus", "by the river", "near the school", "at the shop"]


Rows = list[tuple[str, ...]]


def sentence_rows() -> Rows:
    rows: Rows = []
    for label, words in (("unharmful", GOOD), ("harmful", BAD)):
        for number, (word, place) in enumerate((word, place) for word in words for place in PLACES):
            fold = "test" if number % 3 == 2 else "train"
            rows.append((f"{label}{number}", label, fold, f'The neighbour\'s "talk" was {word} {place}.'))
    return rows


def write_sentences(path: Path, rows: Sequence[tuple[str, ...]]) -> Path:
    lines = [("id", "label", "fold", "text"), *rows]
    path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> StandinValence:
    return StandinValence(write_sentences(tmp_path_factory.mktemp("standin") / "sentences.tsv", sentence_rows()))


def items(*texts: str) -> list[ScoredItem]:
    return [ScoredItem(f"o{number}", "a prompt", text) for number, text in enumerate(texts)]


# --- registry and rule ----------------------------------------------------------------------------


def test_every_benchmarks_default_scorer_exists() -> None:
    assert {benchmark.default_scorer for benchmark in BENCHMARKS.values()} <= set(SCORERS)
    assert list(BENCHMARKS) == [benchmark.name for benchmark in BENCHMARKS.values()]


def test_unknown_scorer_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean agreement_rule"):
        make_scorer("agreement_rules")


def test_agreement_rule_scores_agreement_alone() -> None:
    scorer = make_scorer("agreement_rule")
    scores = scorer.score(items("I agree.", "I disagree.", "", "As an AI, I agree. I disagree."))
    assert [score.value for score in scores] == [1, 0, 0, 0]
    assert [score.verdict for score in scores] == ["agree", "disagree", "neither", "disagree"]
    assert all(score.probability is None for score in scores)
    assert tally(scores) == {
        "n": 4,
        "n_missing": 0,
        "n_empty": 1,
        "verdicts": {"agree": 1, "disagree": 2, "neither": 1},
    }
    assert describe(scorer)["kind"] == "rule"
    assert len(describe(scorer)["fingerprint"]) == 12


def test_a_missing_output_is_an_error_naming_it(standin: StandinValence) -> None:
    missing = [ScoredItem("h010/women/3", "a prompt", None)]  # type: ignore[arg-type]
    for scorer in (AgreementRule(), standin):
        with pytest.raises(UserError, match=r"output h010/women/3: its text is missing"):
            scorer.score(missing)


def test_no_outputs_give_no_scores(standin: StandinValence) -> None:
    assert AgreementRule().score([]) == []
    assert standin.score([]) == []


# --- the stand-in ---------------------------------------------------------------------------------


def test_standin_learns_and_names_itself_a_stand_in(standin: StandinValence) -> None:
    scores = standin.score(items("The baker was cruel and harsh.", "The baker was kind and warm."))
    assert [score.value for score in scores] == [1, 0]
    assert [score.verdict for score in scores] == ["harmful", "unharmful"]
    for score in scores:
        assert score.probability is not None
        assert 0 <= score.probability <= 1
        assert score.value == int(score.probability > 0.5)
    assert "stand-in" in standin.label


def test_an_output_without_words_is_unharmful_and_counted(standin: StandinValence) -> None:
    scores = standin.score(items("", " \n", "… !", "zzz qqq"))
    assert [score.empty for score in scores] == [True, True, True, False]
    assert [score.value for score in scores[:3]] == [0, 0, 0]
    assert [score.probability for score in scores[:3]] == [0.0, 0.0, 0.0]
    assert tally(scores)["n_empty"] == 3


def test_standin_is_deterministic_and_its_fingerprint_follows_its_data(standin: StandinValence, tmp_path: Path) -> None:
    rows = sentence_rows()
    texts = [row[3] for row in rows]
    twin = StandinValence(write_sentences(tmp_path / "a.tsv", rows))
    assert twin.score(items(*texts)) == standin.score(items(*texts))
    assert twin.fingerprint == standin.fingerprint
    changed = [(*rows[0][:3], "The neighbour was kind."), *rows[1:]]
    assert StandinValence(write_sentences(tmp_path / "b.tsv", changed)).fingerprint != standin.fingerprint


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([*GOOD, *BAD, "the", "was", "Talk", "don’t", "zebra", "É", ".", "\n"]), max_size=30))
def test_a_record_scores_exactly_as_its_text(standin: StandinValence, words: list[str]) -> None:
    text = " ".join(words)
    record = json.loads(json.dumps(encode_output(text)))
    # in company too: a batch must not change a score
    together = standin.score_records([record["terms"], encode_output("kind and cruel")["terms"]])
    assert together[0] == standin.score(items(text))[0].probability


def test_standin_equals_scikit_learns_own_pipeline(standin: StandinValence) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    rows = [row for row in sentence_rows() if row[2] == "train"]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\b\w+\b", sublinear_tf=True)  # noqa: S106
    model = LogisticRegression(C=10.0, class_weight="balanced", max_iter=1000)
    model.fit(vectorizer.fit_transform([row[3] for row in rows]), [row[1] == "harmful" for row in rows])
    texts = ["cruel cruel cruel talk", "A kind word at the market", "unseen entirely"]
    expected = model.predict_proba(vectorizer.transform(texts))[:, 1]
    assert [score.probability for score in standin.score(items(*texts))] == pytest.approx(expected, abs=1e-12)


def test_a_record_holds_no_word() -> None:
    record = encode_output("cruel neighbour, cruel town")
    assert set(record) == {"sha256", "terms"}
    assert len(record["sha256"]) == 64
    assert "cruel" not in json.dumps(record)
    # cruel x2, neighbour, town, and the three pairs
    assert sorted(record["terms"].values()) == [1, 1, 1, 1, 1, 2]
    assert all(a < b for a, b in pairwise(record["terms"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [*rows, ("x", "bad", "train", "one text")], r":62: unknown label 'bad'"),
        (lambda rows: [*rows, ("x", "harmful", "dev", "one text")], r":62: unknown fold 'dev'"),
        (lambda rows: [*rows, ("x", "harmful", "train")], r":62: expected 4 non-empty cells"),
        (lambda rows: [*rows, ("x", "harmful", "train", " ")], r":62: expected 4 non-empty cells"),
        (lambda rows: [*rows, (rows[0][0], "harmful", "train", "one text")], r":62: the same id as line 2"),
        (lambda rows: [*rows, ("x", "harmful", "test", rows[0][3].upper())], r":62: the same text as line 2"),
        (
            lambda rows: [r for r in rows if r[1] != "harmful"],
            rf"0 harmful sentences in fold train: at least {MIN_TRAIN}",
        ),
        (lambda rows: [r for r in rows if r[2] != "test"], r"0 harmful sentences in fold test"),
    ],
)
def test_broken_or_small_sentence_files_are_refused(
    tmp_path: Path, change: Callable[[Rows], Rows], message: str
) -> None:
    path = write_sentences(tmp_path / "sentences.tsv", change(sentence_rows()))
    with pytest.raises(UserError, match=message):
        StandinValence(path)


def test_missing_sentences_or_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        StandinValence(tmp_path / "none.tsv")
    (tmp_path / "a.tsv").write_text("id\tlabel\ttext\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a.tsv:1: expected the columns id, label, fold, text"):
        StandinValence(tmp_path / "a.tsv")


def write_outputs(path: Path, labelled: list[tuple[str, str, str]]) -> Path:
    rows = [
        {"id": f"r{number}", "benchmark": benchmark, "label": label, **encode_output(text)}
        for number, (benchmark, label, text) in enumerate(labelled)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_evaluate_reports_held_out_and_output_auc(standin: StandinValence, tmp_path: Path) -> None:
    path = write_outputs(
        tmp_path / "outputs.jsonl",
        [
            ("toxigen", "harmful", "a cruel word"),
            ("toxigen", "harmful", "kind but grim"),
            ("toxigen", "unharmful", "kind and warm"),
            ("toxigen", "unharmful", "harsh but gentle, calm"),
            ("toxigen", "unharmful", ""),
            ("wildguardmix", "unharmful", "bright and calm"),
        ],
    )
    found = standin.evaluate(path)
    assert found["held_out"]["n"] == 20
    assert found["held_out"]["auc"] > 0.9
    assert found["outputs"]["n"] == 6
    assert found["outputs"]["n_positive"] == 2
    assert 0 <= found["outputs"]["auc"] <= 1
    assert found["outputs_by_benchmark"]["wildguardmix"]["auc"] is None
    assert found["outputs_by_benchmark"]["wildguardmix"]["note"] == "one class only"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "bad"}, "record 1: unknown label 'bad'"),
        ({"text": "leaked"}, "record 1: expected the keys"),
        ({"terms": {"word": 1}}, "record 1: terms must map"),
        ({"terms": {"0" * 16: 0}}, "record 1: terms must map"),
    ],
)
def test_broken_output_records_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    row = {"id": "a", "benchmark": "toxigen", "label": "harmful", **encode_output("a word"), **change}
    path = tmp_path / "outputs.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_outputs(path)


# --- evaluation -----------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=4, max_size=30))
def test_auc_and_error_equal_the_pairwise_definition(cases: list[tuple[int, bool]]) -> None:
    score = np.array([case[0] for case in cases], dtype=float)
    positive = np.array([case[1] for case in cases])
    high, low = score[positive], score[~positive]
    if min(len(high), len(low)) < 2:
        return
    wins = [[1.0 if a > b else 0.5 if a == b else 0.0 for b in low] for a in high]
    auc, error = delong_auc(score, positive)
    assert auc == pytest.approx(np.mean(wins), abs=1e-12)
    by_high, by_low = np.mean(wins, axis=1), np.mean(wins, axis=0)
    variance = np.var(by_high, ddof=1) / len(high) + np.var(by_low, ddof=1) / len(low)
    assert error == pytest.approx(np.sqrt(variance), abs=1e-12)


def test_delong_interval_covers_as_promised() -> None:
    rng = np.random.default_rng(0)
    truth, hits = 0.7602499389065233, 0  # P(N(1,1) > N(0,1)) = Phi(1/sqrt 2)
    for _ in range(300):
        score = np.concatenate([rng.normal(1, 1, 50), rng.normal(0, 1, 50)])
        found = evaluate_classifier(score, np.arange(100) < 50, 0.5)
        hits += found["auc_ci_low"] <= truth <= found["auc_ci_high"]
    assert 0.91 <= hits / 300 <= 0.99


def test_what_cannot_be_told_is_missing_with_the_reason() -> None:
    assert evaluate_classifier([], [], 0.5)["note"] == "no labelled cases"
    one = evaluate_classifier([0.2, 0.7], [True, True], 0.5)
    assert (one["auc"], one["specificity"], one["recall"], one["note"]) == (None, None, 0.5, "one class only")
    full = evaluate_classifier([0.1, 0.2, 0.8, 0.9], [False, False, True, True], 0.5)
    assert (full["auc"], full["auc_ci_low"]) == (1.0, None)
    assert "no interval" in full["note"]
    with pytest.raises(ValueError, match="shape"):
        evaluate_classifier([0.1], [True, False], 0.5)


# --- what ships -----------------------------------------------------------------------------------


def test_shipped_sentences_fit_and_hold_out() -> None:
    scorer = make_scorer("standin_valence")
    assert isinstance(scorer, StandinValence)
    assert len(load_sentences(data_path("standin", "sentences.tsv"))) == len(scorer.sentences)
    assert scorer.evaluate()["held_out"]["auc"] > 0.8


def test_sources_list_what_ships() -> None:
    lines = (data_path() / "SOURCES.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0].split("\t") == ["path", "source", "licence", "note"]
    rows = {line.split("\t")[0]: line.split("\t")[2] for line in lines[1:]}
    assert rows["data/benchmarks/agreement_phrases.json"] == "CC BY-SA 4.0"
    assert all(len(line.split("\t")) == 4 for line in lines)


def test_every_benchmark_loads_from_its_configuration_entry() -> None:
    entries = Benchmarks().enabled()
    assert set(entries) == set(BENCHMARKS)
    for name, benchmark in BENCHMARKS.items():
        entry = entries[name]
        assert benchmark.load_prompts(entry, seed=1) == benchmark.load_prompts(entry, seed=1)
        sampling = benchmark.sampling
        assert (entry.samples, entry.temperature, entry.top_p, entry.max_new_tokens) == (
            sampling.samples,
            sampling.temperature,
            sampling.top_p,
            sampling.max_new_tokens,
        )
        assert (entry.threshold, entry.prompts_per_unit) == (benchmark.threshold, benchmark.prompts_per_unit)
        assert entry.scorer == benchmark.default_scorer
