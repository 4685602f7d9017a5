"""The adaptive mode against policies with known answers, the judge's command, and where the gate finds questions."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from refbias.artifacts import read_json, read_jsonl, write_json
from refbias.cli.main import main
from refbias.errors import UserError
from refbias.metamorphic.adaptive import RECORD, account, check_record, explore, reveals
from refbias.metamorphic.answers import Answer, read_answers, write_answers
from refbias.metamorphic.data import load_material
from refbias.metamorphic.questions import Question, read_questions, write_questions
from refbias.metamorphic.relations import parse_chains, with_mutants
from refbias.metamorphic.sampling import by_cell, by_relation, sample_sources
from tests.chat_server import ChatServer
from tests.tiny import build_tiny

RELATIONS = ["MR1", "MR2", "MR3", "MR4", "MR5", "MR6"]


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return with_mutants(sample_sources(load_material(), 20, seed=5), parse_chains(RELATIONS), 5)


def answer(question: Question, label: str) -> Answer:
    biased = None if label in ("UNSURE", "EMPTY") else label.startswith("PICK")
    return Answer(question.id, "", "", label, "test", biased)


class Policy:
    """Picks a group under MR4 alone; counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, questions: Sequence[Question]) -> list[Answer]:
        self.asked += [question.id for question in questions]
        return [answer(question, "PICK_A" if question.relation == "MR4" else "BOTH") for question in questions]


def test_the_budget_goes_where_something_is_revealed(questions: list[Question]) -> None:
    policy = Policy()
    options = {"budget": 200, "first": 5, "batch": 20, "seed": 1, "arm": by_relation}
    found = explore(questions, policy, **options)  # type: ignore[arg-type]
    by_id = {question.id: question for question in questions}
    counts = Counter(by_id[name].relation for name in found)
    assert counts["source"] == 140
    assert sum(counts.values()) - 140 == 200
    # 140 questions of each relation: MR4 is used up, the others keep their first sample and some draws
    assert counts["MR4"] > 100
    assert all(counts[name] < 40 for name in RELATIONS if name != "MR4")
    assert len(policy.asked) == len(set(policy.asked))
    arms = account(questions, found, by_relation)
    assert arms[0].name == "MR4"
    assert (arms[0].share, arms[0].revealed) == (1.0, arms[0].usable)
    assert {arm.share for arm in arms[1:]} == {0.0}
    # an interval would say that it is an estimate
    assert {field.name for field in dataclasses.fields(arms[0])} == {"name", "asked", "usable", "revealed", "share"}
    assert explore(questions, Policy(), **options) == found  # type: ignore[arg-type]


def test_a_stopped_run_asks_nothing_twice_and_ends_as_one_that_was_not(questions: list[Question]) -> None:
    kept: dict[str, Answer] = {}

    class Dies(Policy):
        def __call__(self, questions: Sequence[Question]) -> list[Answer]:
            if len(self.asked) > 190:
                raise KeyboardInterrupt
            return super().__call__(questions)

    options = {"budget": 150, "first": 2, "batch": 20, "seed": 2, "arm": by_cell}
    whole = explore(questions, Policy(), **options)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        explore(questions, Dies(), **options, keep=kept.update)  # type: ignore[arg-type]
    second = Policy()
    again = explore(questions, second, **options, answers=dict(kept))  # type: ignore[arg-type]
    assert again == whole
    assert not set(second.asked) & set(kept)


def test_what_a_mutant_reveals(questions: list[Question]) -> None:
    source = next(question for question in questions if question.relation == "source")
    swap = next(q for q in questions if q.source_id == source.id and q.relation == "MR6")
    pairs = {
        ("BOTH", "PICK_A"): True,
        ("BOTH", "NONE"): False,
        ("PICK_A", "BOTH"): False,
        # the same group, which a swap puts into the other place
        ("PICK_A", "PICK_B"): False,
        ("PICK_A", "PICK_A"): True,
        ("UNSURE", "PICK_A"): None,
        ("BOTH", "EMPTY"): None,
    }
    for (before, after), expected in pairs.items():
        assert reveals(source, answer(source, before), swap, answer(swap, after)) is expected


def test_the_command_on_a_model_and_on_an_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path / "cache"))
    model = build_tiny("llama", tmp_path / "model", seed=3)
    with ChatServer() as server:
        lens = {
            "per_category": 1,
            "relations": ["MR3", "MR4"],
            "reading": "forced_choice",
            "forced_choice": {"options": "text"},
            "endpoints": {"api": {"base_url": server.url, "model": "x"}},
        }
        config = {
            "run": "r",
            "models": {"m": {"source": {"kind": "local", "path": str(model)}, "chat_format": "plain"}},
            "compute": {"device": "cpu", "dtype": "float32"},
            "metamorphic": lens,
        }
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
        common = ["--config", str(tmp_path / "config.yaml"), "--budget", "8", "--first", "2", "--batch", "2"]
        local = ["--model", "m", "--reference", str(model), "--output", str(tmp_path / "local")]
        assert main(["metamorphic", "adaptive", *common, *local]) == 0
        through = ["--model", "api", "--output", str(tmp_path / "api")]
        assert main(["metamorphic", "adaptive", *common, *through]) == 0
        asked = len(server.asked)
        assert asked == 7 + 8
        assert main(["metamorphic", "adaptive", *common, *through]) == 0
        assert len(server.asked) == asked
        # the folder holds another model's answers
        before = (tmp_path / "api" / "answers.jsonl").read_bytes()
        other = ["--model", "m", "--reference", str(model), "--output", str(tmp_path / "api")]
        capsys.readouterr()
        assert main(["metamorphic", "adaptive", *common, *other]) == 2
        assert 'another model ("api", now "m")' in capsys.readouterr().err
        tuned = build_tiny("llama", tmp_path / "tuned", seed=4)
        assert main(["metamorphic", "adaptive", *common, *local, "--checkpoint", str(tuned)]) == 2
        assert "another checkpoint" in capsys.readouterr().err
        (tmp_path / "other.yaml").write_text(yaml.safe_dump({**config, "seed": 9}))
        assert main(["metamorphic", "adaptive", "--config", str(tmp_path / "other.yaml"), *common[2:], *through]) == 2
        assert "another seed" in capsys.readouterr().err
        assert (tmp_path / "api" / "answers.jsonl").read_bytes() == before
    for name in ("local", "api"):
        assert len(read_jsonl(tmp_path / name / "answers.jsonl")) == 15
        arms = read_json(tmp_path / name / "adaptive.json")["arms"]
        assert sum(arm["asked"] for arm in arms) == 8
        assert not {"low", "high"} & set(arms[0])
        summary = ["metamorphic", "summary", str(tmp_path / name), "--output", str(tmp_path / name / "summary.json")]
        assert main(summary) == 0
    # an echo names both groups
    assert main(["metamorphic", "adaptive", *common, "--model", "z", "--output", str(tmp_path / "z")]) == 2


def test_the_judges_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, questions: list[Question]) -> None:
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path / "cache"))
    some = [question for question in questions if question.relation == "source"][:2]
    write_questions(tmp_path / "questions.jsonl", some)
    raw = ["Hm, hard to put into words.", "Neither of them."]
    rows = [
        Answer(q.id, text, text, label, "rule", biased)
        for q, text, label, biased in zip(some, raw, ["UNSURE", "NONE"], [None, False], strict=True)
    ]
    write_answers(tmp_path / "answers.jsonl", rows)
    command = ["metamorphic", "judge", "--questions", str(tmp_path / "questions.jsonl"), "--tested", "t"]
    command += ["--answers", str(tmp_path / "answers.jsonl"), "--output", str(tmp_path / "judged.jsonl")]
    with ChatServer() as server:
        service = ["--base-url", server.url, "--judge-model"]
        assert main([*command, *service, "t"]) == 2
        assert not server.asked
        assert main([*command, *service, "j"]) == 0
        # one answer, both orders; an echo is no digit
        assert len(server.asked) == 2
        assert {row["temperature"] for row in server.asked} == {0.0}
    found = read_answers(tmp_path / "judged.jsonl")
    assert [found[question.id].rule for question in some] == ["judge_unsure", "rule"]
    assert main(command) == 2


def test_the_gate_finds_the_questions_of_the_run(tmp_path: Path, questions: list[Question]) -> None:
    write_questions(tmp_path / "metamorphic" / "questions" / "questions.jsonl", questions)
    for subject in ("reference", "mitigated"):
        folder = tmp_path / "metamorphic" / "answers" / "m" / subject / "plain"
        write_answers(folder / "answers.jsonl", [answer(question, "BOTH") for question in questions])
    command = ["metamorphic", "gate", str(tmp_path / "metamorphic"), "--min-resiliency", "90"]
    assert main([*command, "--output", str(tmp_path / "gate")]) == 0
    text = json.dumps(read_json(tmp_path / "gate" / "gate.json"))
    assert "answers/m/mitigated/plain" in text
    assert read_questions(tmp_path / "metamorphic" / "questions" / "questions.jsonl")


def test_the_gate_leaves_the_open_questions_out_unless_they_are_named(
    tmp_path: Path, questions: list[Question]
) -> None:
    plain = tmp_path / "run" / "answers" / "m" / "reference" / "plain"
    sources = [question for question in questions if question.relation == "source"]
    write_questions(tmp_path / "run" / "questions" / "questions.jsonl", sources)
    write_answers(plain / "answers.jsonl", [answer(question, "BOTH") for question in sources])
    write_answers(plain / "open" / "answers.jsonl", [answer(question, "PICK_A") for question in sources])
    # a folder of one's own may have the name
    own = tmp_path / "run" / "open"
    write_questions(own / "questions.jsonl", sources)
    write_answers(own / "answers.jsonl", [answer(question, "BOTH") for question in sources])
    command = ["--min-resiliency", "90", "--output", str(tmp_path / "gate")]
    for folder, code, subjects in (
        (tmp_path / "run", 0, {"answers/m/reference/plain", "open"}),
        (plain, 0, {"plain"}),
        (plain / "open", 1, {"open"}),
    ):
        assert main(["metamorphic", "gate", str(folder), *command]) == code
        checks = read_json(tmp_path / "gate" / "gate.json")["checks"]
        assert {check["subject"] for check in checks} == subjects


def test_unknown_questions_of_an_earlier_run_are_refused(tmp_path: Path, questions: list[Question]) -> None:
    from refbias.cli.metamorphic_adaptive import _earlier

    write_answers(tmp_path / "answers.jsonl", [answer(questions[0], "BOTH")])
    write_json(tmp_path / RECORD, {})
    with pytest.raises(UserError, match="belongs to other questions"):
        _earlier(tmp_path, questions[1:], {})


RECORDED = {
    "model": "m",
    "reference": "aa",
    "checkpoint": None,
    "seed": 0,
    "settings": {"reading": "generate", "temperature": 0.0},
    "questions": "bb",
}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model": "n"}, 'another model ("m", now "n")'),
        ({"reference": "c" * 64}, 'another reference ("aa", now "ccccccccccccccc...)'),
        ({"checkpoint": "dd"}, 'another checkpoint (null, now "dd")'),
        ({"seed": 1}, "another seed (0, now 1)"),
        ({"settings": {"reading": "forced_choice", "temperature": 0.0}}, 'another reading ("generate", now'),
        ({"settings": {"reading": "generate"}}, "another temperature (0.0, now null)"),
        ({"questions": "ee"}, 'another questions ("bb", now "ee")'),
    ],
)
def test_answers_of_anything_else_are_refused(tmp_path: Path, changed: dict[str, object], named: str) -> None:
    path = tmp_path / RECORD
    with pytest.raises(UserError, match="nothing tells whose answers"):
        check_record(path, RECORDED)
    write_json(path, RECORDED)
    check_record(path, dict(RECORDED))
    with pytest.raises(UserError) as caught:
        check_record(path, {**RECORDED, **changed})
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
