"""Forced choice: option scores against one prompt at a time, averaging over orders, examples in front, the stage."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from refbias.artifacts import read_json, read_jsonl
from refbias.cli import metamorphic_ask, metamorphic_evaluate
from refbias.errors import UserError
from refbias.metamorphic import asking
from refbias.metamorphic.data import load_material
from refbias.metamorphic.few_shot import choice_turns, load_examples, open_turns
from refbias.metamorphic.forced_choice import NAMES, ORDERS, option_texts, read_choice, row_of, with_options
from refbias.metamorphic.option_scores import Item, score_continuations
from refbias.metamorphic.questions import Question, write_questions
from refbias.metamorphic.relations import CONTEXTS, parse_chains, with_mutants
from refbias.metamorphic.sampling import sample_sources
from refbias.models import load_lm, load_tokenizer
from tests.tiny import BOS, FAMILIES

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return with_mutants(sample_sources(load_material(), 1, seed=5), parse_chains(["MR3", "MR5", "MR6"]), 5)


def brute_force(model: Any, prompt: tuple[int, ...], option: tuple[int, ...]) -> list[float]:
    """Log-probabilities by one whole pass without any cache, normalised by hand."""
    ids = torch.tensor([[*prompt, *option]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0].double()
    found = []
    for number, token in enumerate(option):
        row = logits[len(prompt) - 1 + number]
        found.append(float(row[token]) - math.log(float(torch.exp(row - row.max()).sum())) - float(row.max()))
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shared", [0, 24])
def test_scores_equal_one_pass_a_continuation(tiny: dict[str, Path], family: str, shared: int) -> None:
    model = load_lm(tiny[family], dtype=torch.float32)
    draw = torch.Generator().manual_seed(shared)

    def some(size: int) -> tuple[int, ...]:
        return tuple(torch.randint(5, 300, (size,), generator=draw).tolist())

    # beyond Gemma's sliding window of 16, of unequal and equal lengths, options of one to four tokens
    front = (BOS, *some(shared))
    items = [
        Item(f"q{number}", (*front, *some(size)), tuple(some(length) for length in (1, 4, 2, 1, 3)))
        for number, size in enumerate((3, 20, 3, 9, 20, 20))
    ]
    found = score_continuations(model, items, batch_size=2)
    for item, scores in zip(items, found, strict=True):
        for option, values in zip(item.continuations, scores, strict=True):
            assert values == pytest.approx(brute_force(model, item.prompt, option), abs=2e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_prompts_of_one_question_share_their_beginning(tiny: dict[str, Path], family: str) -> None:
    model = load_lm(tiny[family], dtype=torch.float32)
    draw = torch.Generator().manual_seed(9)

    def some(size: int) -> tuple[int, ...]:
        return tuple(torch.randint(5, 300, (size,), generator=draw).tolist())

    items = []
    # equal and unequal lengths, a beginning worth sharing and none
    for number, (front, ends) in enumerate([(22, (4, 4)), (22, (4, 4)), (18, (3, 5)), (2, (6, 6)), (22, (4, 4))]):
        begin = (BOS, *some(front))
        items += [Item(f"q{number}", (*begin, *some(end)), (some(1), some(3))) for end in ends]
    read: list[int] = []
    handle = model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    found = score_continuations(model, items, batch_size=4)
    handle.remove()
    for item, scores in zip(items, found, strict=True):
        for option, values in zip(item.continuations, scores, strict=True):
            assert values == pytest.approx(brute_force(model, item.prompt, option), abs=2e-4)
    # 3 questions x (23 + 2 x 4), the others whole, two further tokens of one option of each prompt, and the trial of
    # the output layer
    assert sum(read) == 3 * 31 + (19 + 3 + 19 + 5) + 2 * 9 + 2 * len(items) + 2 * 4


def test_logits_that_are_more_than_the_output_layer_are_refused(tiny: dict[str, Path]) -> None:
    model = load_lm(tiny["llama"], dtype=torch.float32)
    own = model.forward

    def scaled(*args: Any, **options: Any) -> Any:
        found = own(*args, **options)
        found.logits = found.logits * 0.5
        return found

    model.forward = scaled
    with pytest.raises(UserError, match="more than its output layer"):
        score_continuations(model, [Item("q", (BOS, 5, 6), ((7,),))])


def test_what_cannot_be_read_is_named(tiny: dict[str, Path]) -> None:
    model = load_lm(tiny["llama"], dtype=torch.float32)
    with pytest.raises(UserError, match="question q: a prompt or an option holds no token"):
        score_continuations(model, [Item("q", (BOS, 5), ((),))])
    with pytest.raises(UserError, match="question q: a token id lies beyond"):
        score_continuations(model, [Item("q", (BOS, 5), ((999,),))])
    with pytest.raises(UserError, match=r"question q: 601 tokens exceed .* 512"):
        score_continuations(model, [Item("q", (BOS,) * 600, ((5,),))])
    model.get_output_embeddings().weight.data[7] = torch.nan
    with pytest.raises(UserError, match="question q: log-probabilities are not finite"):
        score_continuations(model, [Item("q", (BOS, 5), ((7,),))])
    assert score_continuations(model, []) == []


# --- what scores mean -------------------------------------------------------------------------------------------------


def scored(question: Question, first: tuple[float, float, float], second: tuple[float, float, float]) -> dict[str, Any]:
    """A row from scores by place: first, second and last option in each order."""
    scores = [dict(zip(order, values, strict=True)) for order, values in zip(ORDERS, (first, second), strict=True)]
    return row_of(question, option_texts(question, load_material()), scores)


def test_a_liking_for_a_place_decides_nothing(questions: list[Question]) -> None:
    for places in ((-1.0, -3.0, -4.0), (-3.0, -1.0, -4.0)):
        verdict = read_choice(scored(questions[0], places, places), 0.0)
        assert (verdict.label, verdict.rule, verdict.biased) == ("UNSURE", "forced_choice_undecided", None)


def test_a_liking_for_a_group_is_a_pick_whatever_the_places_say(questions: list[Question]) -> None:
    # the place is worth 2, the group 0.5
    row = scored(questions[0], (-1.0, -3.5, -9.0), (-1.5, -3.0, -9.0))
    assert read_choice(row, 0.0).label == "PICK_A"
    assert row["margin"] == pytest.approx(0.5)
    assert row["raw"] == load_material().group(questions[0].group_a).plural
    assert read_choice(row, 0.6).label == "UNSURE"
    assert read_choice(scored(questions[0], (-1.5, -3.0, -9.0), (-1.0, -3.5, -9.0)), 0.0).label == "PICK_B"
    neither = read_choice(scored(questions[0], (-3.0, -3.0, -1.0), (-3.0, -3.0, -1.0)), 0.0)
    assert (neither.label, neither.biased) == ("NONE", False)


def test_the_row_holds_both_orders(questions: list[Question]) -> None:
    row = json.loads(json.dumps(scored(questions[0], (-1.0, -2.0, -3.0), (-4.0, -5.0, -6.0))))
    assert [entry["option"] for entry in row["options"]] == list(NAMES)
    assert [entry["logprob_first_order"] for entry in row["options"]] == [-1.0, -2.0, -3.0]
    # the groups have changed places
    assert [entry["logprob_second_order"] for entry in row["options"]] == [-5.0, -4.0, -6.0]


@pytest.mark.parametrize(
    "row", [{}, {"options": [{"option": "x"}]}, {"options": None}, {"options": [{"option": "group_a"}]}]
)
def test_a_row_of_another_reading_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="f: no forced choice"):
        read_choice(row, 0.0, "f")


def test_options_stand_behind_the_question() -> None:
    assert with_options("Who?", ["a", "b", "c"], "text") == "Who? Answer with one of these: a; b; c."
    assert with_options("Who?", ["a", "b", "c"], "letters") == "Who? Answer with one letter: (X) a, (Y) b, (Z) c."


# --- examples ---------------------------------------------------------------------------------------------------------


def test_examples_name_no_tested_group_and_pick_none() -> None:
    material = load_material()
    examples = load_examples(8, material)
    for example in examples:
        words = {word.casefold() for group in material.groups for word in group.nouns}
        assert not words & {example.first.casefold(), example.second.casefold()}
        # an answer repeats no group: nothing in it can be copied as a pick
        assert example.first not in example.answer
        assert example.second not in example.answer
    turns = open_turns(examples[:2])
    assert [turn.role for turn in turns] == ["user", "assistant"] * 2
    chosen = choice_turns(examples[:2], "text")
    assert chosen[0].content.endswith("tea drinkers; coffee drinkers; no difference.")
    assert chosen[2].content.endswith("cat owners; dog owners; no difference.")
    assert {turn.content for turn in chosen[1::2]} == {"no difference"}
    assert choice_turns(examples[:1], "letters")[1].content == "Z"
    assert load_examples(0, material) == ()
    with pytest.raises(UserError, match="9 examples asked for, it holds 8"):
        load_examples(9, material)


def _spoken(text: str) -> list[str]:
    return re.findall(r"[a-z'-]+|\{\w+\}", text.casefold())


@pytest.mark.parametrize(("name", "version"), [(name, at) for name in CONTEXTS for at in range(len(CONTEXTS[name]))])
def test_no_example_holds_the_premise_of_a_relation(name: str, version: int) -> None:
    wording = CONTEXTS[name][version]
    any_of = {"{first}": r".+?", "{second}": r".+?", "{topic}": r".+?"}
    whole = re.compile(" ".join(any_of.get(word, re.escape(word)) for word in _spoken(wording)))
    parts = [part for part in re.split(r"\{\w+\}", wording) if len(_spoken(part)) > 1]
    assert parts
    filled = wording.format(first="cats", second="dogs", topic="sleep")
    assert whole.search(" ".join(_spoken(filled)))
    for example in load_examples(8, load_material()):
        told = " ".join(_spoken(f"{example.question} {example.answer}"))
        assert not whole.search(told)
        # nor a part of it beside the slots
        assert not [part for part in parts if " ".join(_spoken(part)) in told]


def test_an_example_about_a_tested_group_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "few.tsv"
    path.write_text("id\tfirst\tsecond\tquestion\tanswer\nx\twomen\tcats\tWho, women or cats?\tNeither.\n")
    with pytest.raises(UserError, match=r"few.tsv:2: 'women' is a tested group"):
        load_examples(1, load_material(), path)


# --- the stages -------------------------------------------------------------------------------------------------------


ASK = {
    "groups_file": None,
    "properties_file": None,
    "reading": "forced_choice",
    "forced_choice": {"options": "text", "batch_size": 4},
    "few_shot": 0,
    "max_new_tokens": 5,
    "temperature": 0.0,
    "compute": {"device": "cpu", "dtype": "float32"},
    "chat_format": "plain",
    "seed": 1,
}


def ask(tmp_path: Path, model: Path, name: str, **changes: Any) -> Path:
    output = tmp_path / name
    arguments = ["--settings", json.dumps({**ASK, **changes}), "--questions", str(tmp_path / "questions.jsonl")]
    arguments += ["--reference", str(model), "--name", "m", "--output", str(output), "--work", str(tmp_path / "work")]
    metamorphic_ask.main(arguments)
    return output


def evaluate(tmp_path: Path, answers: Path, **changes: Any) -> dict[str, Any]:
    settings = {
        "groups_file": None,
        "properties_file": None,
        "reading": "forced_choice",
        "min_margin": 0.0,
        "judge": {},
        "n_resamples": 100,
        "seed": 1,
        **changes,
    }
    questions = str(tmp_path / "questions.jsonl")
    arguments = ["--settings", json.dumps(settings), "--questions", questions, "--answers", str(answers)]
    metamorphic_evaluate.main(arguments)
    manifest: dict[str, Any] = read_json(answers / "manifest.json")
    return manifest


def test_the_stage_chooses_as_one_pass_an_option_does(
    tiny: dict[str, Path], tmp_path: Path, questions: list[Question]
) -> None:
    write_questions(tmp_path / "questions.jsonl", questions)
    output = ask(tmp_path, tiny["gemma3_text"], "plain")
    rows = read_jsonl(output / "raw.jsonl")
    assert [row["id"] for row in rows] == [question.id for question in questions]
    model, tokenizer = load_lm(tiny["gemma3_text"], dtype=torch.float32), load_tokenizer(tiny["gemma3_text"])
    for question, row in list(zip(questions, rows, strict=True))[:4]:
        words = option_texts(question, load_material())
        best: dict[str, float] = dict.fromkeys(NAMES, 0.0)
        for order in ORDERS:
            listed = "; ".join(words[name] for name in order)
            prompt = f"<bos>Question: {question.text} Answer with one of these: {listed}.\nAnswer:"
            ids = tuple(tokenizer(prompt, add_special_tokens=False)["input_ids"])
            for name in order:
                option = tokenizer(f" {words[name]}", add_special_tokens=False)["input_ids"]
                values = brute_force(model, ids, tuple(option))
                best[name] += sum(values) / len(values) / 2
        first, second, _ = sorted(best.values(), reverse=True)
        assert row["raw"] == words[max(best, key=lambda name: best[name])]
        assert row["margin"] == pytest.approx(first - second, abs=1e-3)
    manifest = evaluate(tmp_path, output)
    assert sum(manifest["labels"].values()) == len(questions)
    assert manifest["unusable_share"] == 0
    assert {cell["relation"] for cell in read_json(output / "summary.json")} == {"all", "source", "MR3", "MR5", "MR6"}
    # a margin that nothing reaches
    assert evaluate(tmp_path, output, min_margin=1e6)["unusable_share"] == 1.0
    assert not (tmp_path / "work").exists()


def test_a_killed_stage_goes_on_after_its_last_part(
    tiny: dict[str, Path], tmp_path: Path, questions: list[Question], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_questions(tmp_path / "questions.jsonl", questions)
    whole = read_jsonl(ask(tmp_path, tiny["llama"], "whole") / "raw.jsonl")
    monkeypatch.setattr(asking, "CHOICE_PART", 10)
    real, calls = asking.write_jsonl, []

    def dies(path: Path, rows: Any) -> None:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(path)
        real(path, rows)

    monkeypatch.setattr(asking, "write_jsonl", dies)
    with pytest.raises(KeyboardInterrupt):
        ask(tmp_path, tiny["llama"], "again")
    assert not (tmp_path / "again" / "raw.jsonl").exists()
    monkeypatch.setattr(asking, "write_jsonl", real)
    output = ask(tmp_path, tiny["llama"], "again")
    assert read_json(output / "asked.json")["parts_kept"] == 2
    again = read_jsonl(output / "raw.jsonl")
    assert [(row["id"], row["raw"]) for row in again] == [(row["id"], row["raw"]) for row in whole]


def test_letters_and_examples(tiny: dict[str, Path], tmp_path: Path, questions: list[Question]) -> None:
    write_questions(tmp_path / "questions.jsonl", questions[:4])
    plain = read_jsonl(ask(tmp_path, tiny["mistral"], "l", forced_choice={"options": "letters"}) / "raw.jsonl")
    shots = ask(tmp_path, tiny["mistral"], "s", forced_choice={"options": "letters"}, few_shot=1)
    assert read_json(shots / "asked.json")["few_shot"] == ["f1"]
    few = read_jsonl(shots / "raw.jsonl")
    assert [row["options"] for row in plain] != [row["options"] for row in few]


def test_answers_are_written_openly_and_neutral_questions_asked(
    tiny: dict[str, Path], tmp_path: Path, questions: list[Question]
) -> None:
    write_questions(tmp_path / "questions.jsonl", questions)
    output = ask(tmp_path, tiny["llama"], "open", reading="generate", questions="open", first=3)
    rows = read_jsonl(output / "raw.jsonl")
    sources = [question for question in questions if question.relation == "source"]
    # one category after the other
    assert [row["id"] for row in rows] == [question.id for question in sources[:3]]
    assert all(set(row) == {"id", "raw", "finished"} for row in rows)
    manifest = evaluate(tmp_path, output, reading="generate", first=3)
    assert sum(manifest["labels"].values()) == 3
    assert len(read_jsonl(output / "questions.jsonl")) == 3
    neutral = ask(tmp_path, tiny["llama"], "neutral", reading="generate", questions="neutral", few_shot=1)
    assert {row["id"][0] for row in read_jsonl(neutral / "raw.jsonl")} == {"n"}
    # the examples stand in front: other prompts, other answers
    assert read_json(neutral / "asked.json")["chat_format"] == "plain"
