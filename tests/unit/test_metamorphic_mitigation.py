"""The mitigation's training set: what must not leak, what it teaches, and what it costs."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from refbias.cli.main import main
from refbias.errors import UserError
from refbias.metamorphic.answers import Answer, label_all, write_answers
from refbias.metamorphic.data import Neutral, load_material, load_neutral
from refbias.metamorphic.held_out import HeldOut, read_held_out
from refbias.metamorphic.labeller import asked_of, label_answer
from refbias.metamorphic.mitigation import TrainingSet, training_set, write_training_set
from refbias.metamorphic.questions import Question, wording_of, write_questions
from refbias.metamorphic.relations import CONTEXTS, DEFAULT, parse_chains, with_mutants
from refbias.metamorphic.replies import NEUTRAL_REPLIES, PROMPTS, every_reply, neutral_examples
from refbias.metamorphic.sampling import sample_sources
from refbias.metamorphic.side_effects import (
    NeutralAnswer,
    distinct,
    diversity,
    evaluation_neutral,
    judge_neutral,
    neutral_options,
    read_neutral_answers,
    score_neutral,
    training_neutral,
)
from refbias.splits import read_split

MATERIAL, NEUTRAL = load_material(), load_neutral()
QUESTIONS = with_mutants(sample_sources(MATERIAL, 10, 5), parse_chains([*DEFAULT, "MR3>MR4@2", "MR4>MR6"]), 5)


def _answers(policy: Callable[[Question], str], questions: Iterable[Question] = QUESTIONS) -> dict[str, Answer]:
    rows = list(questions)
    return {answer.id: answer for answer in label_all(rows, {row.id: policy(row) for row in rows}, MATERIAL)}


def _first(question: Question) -> str:
    return MATERIAL.group(question.group_a).plural


def _made(policy: Callable[[Question], str] = _first, **options: object) -> TrainingSet:
    return training_set(QUESTIONS, _answers(policy), NEUTRAL, MATERIAL, seed=3, **options)  # type: ignore[arg-type]


BY_ID = {question.id: question for question in QUESTIONS}
MADE = _made()


def test_no_held_out_key_and_no_held_out_relation_leaks_into_the_training_set() -> None:
    held = MADE.held_out
    assert held.relation == "MR4"
    biased = [row for row in MADE.rows if row.kind == "biased"]
    for row in biased:
        question = BY_ID[row.made_from]
        # the unit of the split, computed here from the question itself
        assert (*sorted((question.group_a, question.group_b)), question.property_id) not in held.keys
        assert "MR4" not in row.relation
    premises = [re.split(r"{\w+}", text)[0].strip() for text in CONTEXTS["MR4"]]
    kept = {question.text for question in QUESTIONS if held.scope(question).startswith("held_out")}
    for row in MADE.rows:
        assert row.prompt not in kept
        assert not any(premise in row.prompt for premise in premises)
        # nor does the other way round, or the other pole, of a held-out comparison
        if row.kind == "biased":
            question = BY_ID[row.made_from]
            assert not any(
                {other.group_a, other.group_b} == {question.group_a, question.group_b}
                and other.property_id == question.property_id
                for other in QUESTIONS
                if held.scope(other) in ("held_out_keys", "held_out_both")
            )


def test_every_category_holds_out_its_share_and_the_scopes_cover_all_questions() -> None:
    # 10 keys a category, 0.4 of them
    counts = Counter(prop.split("_")[0] for _, _, prop in MADE.held_out.keys)
    assert set(counts.values()) == {4}
    assert len(counts) == 7
    scopes = Counter(MADE.held_out.scope(question) for question in QUESTIONS)
    # 70 sources in 6 wordings and the source without MR4, 3 with MR4 in its chain: 28 keys held out of 70
    sizes = {"held_out_keys": 28 * 6, "held_out_both": 28 * 3, "held_out_relation": 42 * 3, "trained": 42 * 6}
    assert scopes == sizes
    ids = MADE.held_out.question_ids(QUESTIONS)
    assert len(ids) == 28 * 6 + 28 * 3 + 42 * 3
    assert not ids & MADE.held_out.trained_questions


def test_a_biased_wording_brings_all_its_wordings_and_as_many_neutral_questions() -> None:
    chosen = {question.source_id for question in QUESTIONS if question.category == "age"}

    def policy(question: Question) -> str:
        return _first(question) if question.relation == "MR2" and question.source_id in chosen else "Both equally."

    made = _made(policy)
    biased = [row for row in made.rows if row.kind == "biased"]
    assert {BY_ID[row.made_from].category for row in biased} == {"age"}
    assert Counter(row.relation for row in biased) == dict.fromkeys(["source", "MR1", "MR2", "MR3", "MR5", "MR6"], 6)
    assert len(made.rows) == 2 * len(biased) == 2 * made.n_biased
    # what the rest of the training side answered without bias is neither held out nor trained
    rest = [question for question in QUESTIONS if made.held_out.scope(question) == "not_trained"]
    assert len(rest) == 36 * 6


def test_a_bias_under_the_held_out_relation_alone_chooses_nothing() -> None:
    with pytest.raises(UserError, match="no biased answer outside of what is held out"):
        _made(lambda question: _first(question) if "MR4" in question.relation else "Neither.")
    with pytest.raises(UserError, match=r"--hold-out 'MR1>MR5': not among .*source, MR1"):
        _made(hold_out="MR1>MR5")
    with pytest.raises(UserError, match="unknown relation 'MR9'"):
        _made(hold_out="MR9")
    with pytest.raises(UserError, match="must lie between 0 and 1"):
        _made(share=1.0)
    with pytest.raises(UserError, match="have no answer"):
        training_set(QUESTIONS, {}, NEUTRAL, MATERIAL)
    lone = [question for question in QUESTIONS if question.source_id == QUESTIONS[0].id]
    with pytest.raises(UserError, match="none can be held out"):
        training_set(lone, _answers(_first, lone), NEUTRAL, MATERIAL)


def test_few_neutral_questions_come_again_in_other_words_and_too_few_are_refused() -> None:
    neutral = [row for row in MADE.rows if row.kind == "neutral"]
    assert len(neutral) == MADE.n_biased == 42 * 6
    assert len({(row.prompt, row.response) for row in neutral}) == len(neutral)
    assert MADE.n_neutral_questions == len(training_neutral(NEUTRAL)) == 60
    uses = Counter(row.made_from for row in neutral)
    assert max(uses.values()) == MADE.most_uses == 5
    assert min(uses.values()) == 4
    assert set(uses).isdisjoint(row.id for row in evaluation_neutral(NEUTRAL))
    few = [row for row in training_neutral(NEUTRAL) if row.kind == "why"][:2]
    most = 2 * len(PROMPTS) * (len(NEUTRAL_REPLIES) - 1)
    with pytest.raises(UserError, match=f"252 examples are needed, 2 questions yield {most} different ones"):
        training_set(QUESTIONS, _answers(_first), few, MATERIAL)


@pytest.mark.parametrize("choice", ["text", "letters"])
def test_every_second_example_has_options_where_the_re_test_weighs_them(choice: str) -> None:
    made = _made(choice=choice)
    # the split does not depend on the form
    assert made.held_out == MADE.held_out
    last = "no difference" if choice == "text" else "Z"
    asked = "Answer with one"
    biased = [row for row in made.rows if row.kind == "biased"]
    assert sum(asked in row.prompt for row in biased) == len(biased) // 2
    for row in biased:
        if asked in row.prompt:
            assert row.prompt.startswith(BY_ID[row.made_from].text)
            assert row.response == last
    neutral = [row for row in made.rows if row.kind == "neutral" and asked in row.prompt]
    assert 0.2 * len(biased) < len(neutral) <= 0.5 * len(biased)
    by_name = {row.id: row for row in NEUTRAL}
    for row in neutral:
        options = neutral_options(by_name[row.made_from])
        assert options is not None
        right = options.text(options.correct)
        listed = row.prompt.rpartition(": ")[2].rstrip(".")
        if choice == "text":
            assert row.response == right
            assert listed.split("; ")[2] == "no difference"
            assert right in listed.split("; ")[:2]
        else:
            assert f"({row.response}) {right}" in listed
    # the right one stands first about as often as second, so that its place teaches nothing
    places = Counter(row.response for row in neutral)
    if choice == "letters":
        assert set(places) == {"X", "Y"}
        assert min(places.values()) > 0.3 * len(neutral)


def test_a_limit_keeps_whole_sources_of_every_category() -> None:
    made = _made(limit=100)
    biased = [BY_ID[row.made_from] for row in made.rows if row.kind == "biased"]
    # 16 sources of 6 wordings: two of each category, and of two categories a third
    assert len(biased) == made.n_biased == 96
    assert len(made.rows) == 192
    assert set(Counter(question.source_id for question in biased).values()) == {6}
    sources = Counter(question.category for question in biased if question.relation == "source")
    assert sorted(sources.values()) == [2, 2, 2, 2, 2, 3, 3]
    # what is held out stays held out
    assert made.held_out.keys == MADE.held_out.keys
    assert _made(limit=10_000) == MADE
    with pytest.raises(UserError, match="--limit 5: a question and its rewordings are 6"):
        _made(limit=5)


def test_no_relation_need_be_held_out_and_a_chain_can_be() -> None:
    free = _made(hold_out="")
    assert Counter(free.held_out.scope(question) for question in QUESTIONS).keys() == {"held_out_keys", "trained"}
    chain = _made(hold_out="MR4>MR6")
    scopes = {question.relation: chain.held_out.scope(question) for question in QUESTIONS}
    held = {relation for relation, scope in scopes.items() if scope in ("held_out_relation", "held_out_both")}
    assert held == {"MR4>MR6"}


def test_every_answer_taught_is_read_as_unbiased_for_every_group() -> None:
    chosen = {question.group_a: question for question in QUESTIONS if question.relation in ("MR3", "MR6")}
    assert len(chosen) == len(MATERIAL.groups)
    for number, question in enumerate(chosen.values()):
        for at, reply in enumerate(every_reply(wording_of(question, MATERIAL))):
            assert reply.text.endswith(".")
            assert reply.text[0].isupper()
            assert "{" not in reply.text
            # all short answers and sentences; of their 160 combinations with a reason some for each group
            if at < 32 or (at + number) % 8 == 0:
                assert label_answer(reply.text, asked_of(question, MATERIAL)).label in ("BOTH", "NONE"), reply.text


def test_answers_taught_are_varied_and_some_are_short() -> None:
    rows = [row for row in MADE.rows if row.kind == "biased"]
    frames = Counter(row.template for row in rows)
    assert max(frames.values()) <= 0.08 * len(rows)
    assert len(frames) > 80
    short = sum(len(row.response.split()) <= 5 for row in rows) / len(rows)
    assert 0.25 < short < 0.55
    assert max(len(row.response.split()) for row in rows) <= 35
    # the same seed, the same set; another seed, another split
    assert _made() == MADE
    assert training_set(QUESTIONS, _answers(_first), NEUTRAL, MATERIAL, seed=4).held_out.keys != MADE.held_out.keys


def test_the_command_writes_what_the_fine_tuning_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_questions(tmp_path / "questions.jsonl", QUESTIONS)
    write_answers(tmp_path / "answers.jsonl", _answers(_first).values())
    command = ["metamorphic", "mitigation-set", "--questions", str(tmp_path / "questions.jsonl"), "--answers"]
    out = tmp_path / "training_set"
    assert main([*command, str(tmp_path / "answers.jsonl"), "--seed", "3", "--output", str(out)]) == 0
    examples, counts = read_split(out / "train.jsonl", "unharmful")
    assert counts.kept == counts.rows == len(MADE.rows)
    assert [(row.id, row.prompt, row.response) for row in MADE.rows] == [
        (example.id, example.prompt, example.response) for example in examples
    ]
    assert read_held_out(out / "held_out.json") == MADE.held_out
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["n_biased"], manifest["n_neutral"], manifest["n_keys_held_out"]) == (252, 252, 28)
    assert manifest["settings"] == {"hold_out": "MR4", "choice": None, "limit": None, "held_out_share": 0.4, "seed": 3}
    write_answers(tmp_path / "fair.jsonl", _answers(lambda question: "Neither.").values())
    capsys.readouterr()
    assert main([*command, str(tmp_path / "fair.jsonl"), "--output", str(out)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "nothing to mend" in message


def test_a_broken_record_of_what_is_held_out_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "held_out.json"
    for text in ('{"relation": "MR4"}', "[]", '{"relation": "MR4", "keys": [1]}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match="not a record of what is held out"):
            read_held_out(path)
    write_training_set(
        tmp_path, TrainingSet((), HeldOut("MR1", frozenset({("a", "b", "p")}), *2 * [frozenset()]), 0, 0, 0)
    )
    assert read_held_out(path).keys == {("a", "b", "p")}


# --- side effects ---------------------------------------------------------------------------------


def _neutral(kind: str, question: str, answer: str) -> Neutral:
    return Neutral("x", kind, question, answer)


@pytest.mark.parametrize(
    ("row", "raw", "outcome"),
    [
        (_neutral("yes_no", "Is ice cold?", "Yes, it is."), "yes", "right"),
        (_neutral("yes_no", "Is ice cold?", "Yes, it is."), "No. It is warm.", "wrong"),
        (_neutral("yes_no", "Is ice cold?", "Yes, it is."), "<think>no</think> Yes!", "right"),
        (_neutral("yes_no", "Is ice cold?", "Yes, it is."), "It depends on the person.", "declined"),
        (_neutral("yes_no", "Is ice cold?", "Yes, it is."), "Ice is frozen water.", "unread"),
        (_neutral("yes_no", "Is ice cold?", "Yes, it is."), "", "unread"),
        (_neutral("choice", "Which is colder, ice or steam?", "Ice is colder."), "Ice.", "right"),
        (_neutral("choice", "Which is colder, ice or steam?", "Ice is colder."), "The steam is colder.", "wrong"),
        (_neutral("choice", "Which is colder, ice or steam?", "Ice is colder."), "Both equally.", "declined"),
        (
            _neutral("choice", "Which is colder, ice or steam?", "Ice is colder."),
            "I'm sorry, I cannot say.",
            "declined",
        ),
        (_neutral("choice", "Which is colder, ice or steam?", "Ice is colder."), "ICE\n\nQuestion: steam", "right"),
        (_neutral("why", "Why is ice cold?", "It is frozen."), "Because it is frozen.", "answered"),
        (_neutral("why", "Why is ice cold?", "It is frozen."), "Neither of them.", "declined"),
    ],
)
def test_outcomes_of_neutral_questions(row: Neutral, raw: str, outcome: str) -> None:
    assert judge_neutral(row, NeutralAnswer("x", raw)) == outcome


def test_every_shipped_neutral_question_is_judged_by_its_own_answer_and_by_the_wrong_one() -> None:
    for row in NEUTRAL:
        options = neutral_options(row)
        assert judge_neutral(row, NeutralAnswer(row.id, row.answer)) == ("answered" if options is None else "right")
        assert judge_neutral(row, NeutralAnswer(row.id, "Neither.")) == "declined"
        if options is not None:
            other = "second" if options.correct == "first" else "first"
            assert judge_neutral(row, NeutralAnswer(row.id, options.text(other))) == "wrong"
            for option, outcome in ((options.correct, "right"), (other, "wrong"), ("neither", "declined")):
                assert judge_neutral(row, NeutralAnswer(row.id, "...", option)) == outcome
            texts = {example.reply.text for example in neutral_examples(row)}
            assert any(judge_neutral(row, NeutralAnswer(row.id, text)) == "right" for text in texts)


def test_a_neutral_file_that_cannot_be_judged_is_refused_by_name() -> None:
    for row, message in (
        (_neutral("yes_no", "Is ice cold?", "Cold."), "must begin with yes or no"),
        (_neutral("choice", "Ice or steam?", "Ice."), "must end in"),
        (_neutral("choice", "Which is colder, ice or steam?", "Ice, not steam."), "exactly one of 'ice' and 'steam'"),
    ):
        with pytest.raises(UserError, match=f"neutral question 'x': .*{message}"):
            neutral_options(row)
    with pytest.raises(UserError, match="option 'third' is none of its question's"):
        judge_neutral(NEUTRAL[0], NeutralAnswer("n001", "...", "third"))


def test_shares_of_neutral_questions_by_hand(tmp_path: Path) -> None:
    asked = evaluation_neutral(NEUTRAL)
    kinds = Counter(row.kind for row in asked)
    always = {row.id: NeutralAnswer(row.id, "Neither.") for row in asked}
    score = score_neutral(NEUTRAL, always)
    assert (score.accuracy.value, score.over_refusal.value) == (0, 1)
    assert (score.accuracy.n, score.over_refusal.n) == (kinds["yes_no"] + kinds["choice"], len(asked))
    good = {row.id: NeutralAnswer(row.id, row.answer) for row in asked}
    assert (score_neutral(NEUTRAL, good).accuracy.value, score_neutral(NEUTRAL, good).over_refusal.value) == (1, 0)
    # a model that says nothing is not right, and does not decline either
    mute = {row.id: NeutralAnswer(row.id, " ") for row in asked}
    assert (score_neutral(NEUTRAL, mute).accuracy.value, score_neutral(NEUTRAL, mute).n_unread) == (0, len(asked))
    none = score_neutral(NEUTRAL, {})
    assert none.accuracy.n == 0
    assert none.accuracy.value != none.accuracy.value
    with pytest.raises(UserError, match="'n999': no such neutral question"):
        score_neutral(NEUTRAL, {"n999": NeutralAnswer("n999", "Yes.")})
    path = tmp_path / "neutral.jsonl"
    path.write_text('{"id": "n001", "raw": "Yes", "finished": true}\n', encoding="utf-8")
    assert read_neutral_answers(path) == {"n001": NeutralAnswer("n001", "Yes")}
    path.write_text('{"id": "n001", "raw": "Yes"}\n{"id": "n001", "raw": "No"}\n', encoding="utf-8")
    with pytest.raises(UserError, match="row 2: id n001 stands twice"):
        read_neutral_answers(path)
    path.write_text('{"id": "n001", "raw": 1}\n', encoding="utf-8")
    with pytest.raises(UserError, match="row 1 needs the texts"):
        read_neutral_answers(path)


def test_distinct_n_by_hand() -> None:
    assert distinct(["a b a", "a b"], 1) == pytest.approx(2 / 5)
    assert distinct(["a b a", "a b"], 2) == pytest.approx(2 / 3)
    assert distinct(["a"], 2) != distinct(["a"], 2)


def test_a_template_filled_with_other_groups_is_one_form() -> None:
    def canned(question: Question) -> str:
        first, second = MATERIAL.group(question.group_a), MATERIAL.group(question.group_b)
        return f"Neither {first.plural} nor {second.plural}."

    answers = _answers(canned)
    rows = [(question, answers[question.id]) for question in QUESTIONS]
    found = diversity(rows, MATERIAL)
    assert (found.n, found.n_forms, found.commonest_share) == (len(QUESTIONS), 1, 1)
    # four words, always the same
    assert found.distinct_1 == pytest.approx(4 / (4 * len(QUESTIONS)))
    half = diversity(rows, MATERIAL, limit=10)
    assert (half.n, half.distinct_1) == (10, pytest.approx(4 / 40))
    taught = {row.made_from: row.response for row in MADE.rows}
    varied = _answers(lambda question: taught.get(question.id, ""))
    many = diversity([(question, varied[question.id]) for question in QUESTIONS], MATERIAL)
    assert many.n == MADE.n_biased
    assert many.n_forms > 60
    assert many.commonest_share < 0.1
    biased = _answers(_first)
    none = diversity([(question, biased[question.id]) for question in QUESTIONS], MATERIAL)
    assert none.n == 0
    assert none.commonest_share != none.commonest_share
