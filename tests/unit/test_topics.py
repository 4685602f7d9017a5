"""Topics: rules on words, a model's likeliest label, the frozen file, agreement with labels by hand."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from refbias.artifacts import read_json
from refbias.benchmarks import wildguardmix as wg
from refbias.cli import topics as stage
from refbias.config.root import from_mapping
from refbias.config.slices import topics_slice
from refbias.config.topics import TopicSettings
from refbias.errors import UserError
from refbias.models import completion_ids, load_lm, load_tokenizer, prompt_ids, torch_dtype
from refbias.resources import data_path
from refbias.stats.agreement import agreement, cohen_kappa
from refbias.stimuli.groups import load_groups
from refbias.topics import llm
from refbias.topics.names import LABELS, NO_TOPIC, TOPICS
from refbias.topics.rules import TopicRules, read_words
from refbias.topics.table import MappedPrompt, prompt_hash, read_map, write_map
from tests.tiny import build_tiny, make_roomy

# words that hold a word of a topic, or share its first letters
TRAPS = (
    "language", "manager", "embrace", "manage", "message", "image", "passage", "package", "page", "sausage",
    "village", "voyage", "garbage", "engage", "stage", "wages", "average", "damage", "storage", "courage",
    "marriage", "carriage", "bandage", "cottage", "luggage", "trace", "grace", "bracelet", "terrace", "brace",
    "Horace", "racer", "racing", "comment", "moment", "document", "mention", "manual", "mandate", "romance",
    "manner", "human", "humane", "womb", "omen", "specimen", "regimen", "aroma", "cold", "gold", "hold",
    "told", "sold", "fold", "bold", "household", "scaffold", "golden", "threshold", "gayly", "nosegay",
    "ostrich", "enrich", "richly", "poorly", "ladybird", "girlish", "boycott", "cowboyish", "arable",
    "hand", "than", "ethanol", "thaw", "canteen", "fifteen", "kidney", "skidded", "dada", "maximum",
    "minimum", "momentum", "announce", "pronoun", "churchyard", "slavery", "slave", "maleficent", "transport",
    "transfer", "deafening", "blinds", "blinders", "caucus", "jewel", "jewellery", "blackboard", "whiteboard",
    "whitewash", "seniority", "youthful", "danger", "sedan", "finish", "finally", "indiana", "indigo",
    "polished", "chinaware", "germane", "christen", "christening", "muslin", "hinder",
    "disablement", "motherboard", "fatherland", "sonar", "dormant", "foreignness", "immigrate", "nationalise",
    "agenda", "agency", "seldom",
)  # fmt: skip


@pytest.fixture(scope="module")
def rules() -> TopicRules:
    return TopicRules()


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", TRAPS)
def test_a_word_inside_another_word_matches_nothing(rules: TopicRules, word: str) -> None:
    for text in (word, word.capitalize(), f"What about the {word}?", f"a {word}, or two", f"{word}s of the {word}"):
        assert rules.find(text) == [], text
        assert rules.assign(text).topic == NO_TOPIC


def test_no_word_matches_with_a_letter_before_or_behind(rules: TopicRules) -> None:
    for word in read_words().meanings:
        assert rules.find(f"x{word}") == [] or " " in word or "-" in word
        assert not any(found.text.endswith(word) for found in rules.find(f"{word}xq"))


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("Is a Black woman a good boss?", "race"),
        ("Are women good bosses?", "gender"),
        ("My kitchen is black.", NO_TOPIC),
        ("Why are the poor so loud?", "socioeconomic_status"),
        ("The poor weather ruined the fair.", NO_TOPIC),
        ("He is blind.", "disability"),
        ("Are they really old?", "age"),
        ("an old and faded photograph", NO_TOPIC),
        ("African\u2011American neighbours", "race"),
        ("African American neighbours", "race"),
        ("AFRICAN-AMERICAN NEIGHBOURS", "race"),
        ("Native Americans and their songs", "ethnicity"),
        ("They polish shoes.", NO_TOPIC),
        ("a Polish baker", "nationality"),
        ("Down\u2019s syndrome", "disability"),
        ("people over sixty", "age"),
        ("a room over sixty metres", NO_TOPIC),
        ("a twenty-year-old", "age"),
        ("Muslim and Jewish women from Canada", "religion"),
        ("non-disabled people", "disability"),
        ("", NO_TOPIC),
    ],
)
def test_a_word_counts_where_it_means_people(rules: TopicRules, text: str, topic: str) -> None:
    assert rules.assign(text.replace("\u2011", "-")).topic == topic


def test_every_group_of_the_stimuli_has_its_topic(rules: TopicRules) -> None:
    for group in load_groups():
        assert rules.assign(f"Why are {group.subject} so loud?").topic == group.topic
        assert rules.assign(f"Would you trust one {group.singular_person}?").topic == group.topic


def test_the_words_that_decided_are_named(rules: TopicRules) -> None:
    found = rules.assign("A Muslim and a Jewish baker meet a Canadian, a Muslim too.")
    assert (found.topic, found.matched) == ("religion", "Muslim; Jewish")
    assert rules.assign("A Canadian meets a Muslim.").topic == "nationality", "the first of equals"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("politics\tproperty\tvote", r"w.tsv:3: unknown topic 'politics'"),
        ("race\tphrase\tx", r"w.tsv:3: unknown use 'phrase' for topic race"),
        ("none\tproperty\tx", r"w.tsv:3: unknown use 'property' for topic none"),
        ("race\tproperty\ta||b", r"w.tsv:3: an empty word"),
        ("race\tproperty\tHINDU", r"w.tsv:3: 'HINDU' is also property of religion"),
    ],
)
def test_a_broken_table_of_words_is_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "w.tsv"
    path.write_text(f"topic\tuse\twords\nreligion\tproperty\tHindu\n{line}\nnone\tperson\tpeople\n", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        TopicRules(path)
    path.write_text("topic\tuse\twords\nreligion\tproperty\tHindu\n", encoding="utf-8")
    with pytest.raises(UserError, match="adjectives need words for people"):
        TopicRules(path)


# --- agreement ------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), min_size=1, max_size=30))
def test_kappa_is_scikit_learns(pairs: list[tuple[str, str]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found = cohen_kappa(first, second)
    if len(set(first) | set(second)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(cohen_kappa_score(first, second), abs=1e-12)


def test_kappa_of_an_example_by_hand() -> None:
    # 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: p_o 0.7, p_e 0.5
    first = ["y"] * 25 + ["n"] * 25
    second = ["y"] * 20 + ["n"] * 5 + ["y"] * 10 + ["n"] * 15
    assert cohen_kappa(first, second) == pytest.approx(0.4)
    assert cohen_kappa([], []) is None
    with pytest.raises(ValueError, match="2 and 1"):
        cohen_kappa(["a", "b"], ["a"])


def test_agreement_of_the_rules_with_the_labels_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    labelled = stage.labelled_prompts()
    assert len(labelled) >= 60
    assert len({row.prompt for row in labelled}) == len(labelled)
    assert {row.topic for row in labelled} == set(LABELS)
    assert {row.kind for row in labelled} == {"named", "implied", "several", "no_group", "trap"}
    rules = TopicRules()
    mapped = [rules.assign(row.prompt).topic for row in labelled]
    kappa = cohen_kappa_score(mapped, [row.topic for row in labelled])
    stage.main(["agreement"])
    printed = capsys.readouterr().out
    assert f"Cohen's kappa {kappa:.3f}" in printed
    # what the folder's README says is what comes out
    text = (data_path("topics") / "README.md").read_text(encoding="utf-8")
    stated = re.search(r"kappa of the shipped rules on them is ([0-9.]+) \((\d+) of (\d+)", text)
    assert stated is not None
    equal = sum(a == row.topic for a, row in zip(mapped, labelled, strict=True))
    assert stated.groups() == (f"{kappa:.3f}", str(equal), str(len(labelled)))


def test_agreement_counts_by_label() -> None:
    found = agreement(["race", "age", "none"], ["race", "race", "none"], LABELS)
    assert (found["n"], found["n_equal"]) == (3, 2)
    assert found["by_label"]["race"] == {"labelled": 2, "mapped": 1, "both": 1}
    assert agreement([], [], LABELS)["accuracy"] is None


# --- the frozen file ------------------------------------------------------------------------------


def write_prompts(path: Path, prompts: list[str], **changes: Any) -> Path:
    cells = {
        "adversarial": False,
        "response": None,
        "prompt_harm_label": "unharmful",
        "response_refusal_label": None,
        "response_harm_label": None,
        "subcategory": wg.SUBCATEGORY,
        **changes,
    }
    rows = [{"prompt": prompt, **cells} for prompt in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


PROMPTS = ["Are Hindus loud?", "Which language is hard?", 'Are women late?\nAlways, "always"?', "Are Hindus loud?"]


class Settings:
    def __init__(self, prompts: Path, topics_file: Path | None) -> None:
        self.prompts, self.topics_file, self.prompts_per_unit = prompts, topics_file, None


def stage_settings(prompts: Path, **topics: Any) -> str:
    data = {
        "run": "r",
        "models": {"m": {"source": {"kind": "packaged_gguf"}}},
        "compute": {"device": "cpu", "dtype": "float32"},
        "benchmarks": {"wildguardmix": {"prompts": str(prompts)}},
        "topics": topics,
    }
    return topics_slice(from_mapping(data))


def test_the_stage_freezes_topics_that_the_benchmark_reads(tmp_path: Path) -> None:
    path = write_prompts(tmp_path / "a.jsonl", PROMPTS)
    assert not wg.has_topics(path)
    stage.main(["make", "--settings", stage_settings(path), "--output", str(tmp_path / "topics")])
    file = tmp_path / "topics" / "topics.csv"
    rows = list(csv.DictReader(file.open(encoding="utf-8", newline="")))
    assert [row["prompt_id"] for row in rows] == ["a/1", "a/2", "a/3", "a/4"]
    assert [row["topic"] for row in rows] == ["religion", "none", "gender", "religion"]
    assert [row["matched"] for row in rows] == ["Hindus", "", "women", "Hindus"]
    assert rows[0]["prompt_sha256"] == rows[3]["prompt_sha256"]
    manifest = read_json(tmp_path / "topics" / "manifest.json")
    assert (manifest["n_prompts"], manifest["n_without_topic"]) == (4, 1)
    assert manifest["agreement_with_own_labels"]["n"] >= 60

    found = wg.BENCHMARK.load(Settings(path, file), 1)
    assert [(prompt.id, prompt.unit) for prompt in found.prompts] == [
        ("a/1", "religion"),
        ("a/4", "religion"),
        ("a/3", "gender"),
    ]
    assert found.notes["rows_without_topic"] == 1
    assert found.notes["topics_from"].startswith("map ")


def test_a_prompt_that_is_not_in_the_map_is_named(tmp_path: Path) -> None:
    path = write_prompts(tmp_path / "a.jsonl", PROMPTS)
    write_map(tmp_path / "t.csv", [MappedPrompt(prompt_hash(PROMPTS[0]), "a/1", "religion", "")])
    with pytest.raises(UserError, match=r"a.jsonl:2: its text is not in the topic map .*t.csv: make the map again"):
        wg.BENCHMARK.load(Settings(path, tmp_path / "t.csv"), 1)


def test_the_map_goes_before_the_files_own_column(tmp_path: Path) -> None:
    path = write_prompts(tmp_path / "a.jsonl", PROMPTS[:1], topic="age")
    assert wg.has_topics(path)
    assert wg.BENCHMARK.load(Settings(path, None), 1).prompts[0].unit == "age"
    write_map(tmp_path / "t.csv", [MappedPrompt(prompt_hash(PROMPTS[0]), "x", "religion", "")])
    assert wg.BENCHMARK.load(Settings(path, tmp_path / "t.csv"), 1).prompts[0].unit == "religion"


def test_topics_are_looked_for_in_every_kind_of_file(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    assert wg.has_topics(None), "the shipped prompts have theirs"
    assert not wg.has_topics(tmp_path / "not-yet-there.parquet")
    assert not wg.has_topics(tmp_path)
    for name, columns in (("with", {"topic": ["age"]}), ("without", {"prompt": ["a"]})):
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
    assert wg.has_topics(tmp_path / "with.parquet")
    assert not wg.has_topics(tmp_path / "without.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR0")
    (tmp_path / "broken.jsonl").write_text("{", encoding="utf-8")
    assert not wg.has_topics(tmp_path / "broken.parquet")
    assert not wg.has_topics(tmp_path / "broken.jsonl")


HASH = "a" * 64


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("prompt_sha256,prompt_id,topic\n", r"t.csv:1: no column matched"),
        (f"prompt_sha256,prompt_id,topic,matched\n{HASH},p,politics,\n", r"t.csv:2: unknown topic 'politics'"),
        ("prompt_sha256,prompt_id,topic,matched\nxyz,p,age,\n", r"t.csv:2: prompt_sha256 'xyz' is no SHA-256"),
        (f"prompt_sha256,prompt_id,topic,matched\n{HASH},p,age\n", r"t.csv:2: expected 4 cells"),
        (
            f"prompt_sha256,prompt_id,topic,matched\n{HASH},p,age,\n{HASH},q,race,\n",
            r"t.csv:3: topic race, but line 2 gives the same text age",
        ),
        (
            f"prompt_sha256,prompt_id,topic,matched,prompt,label\n{HASH},p,age,,text,ages\n",
            r"t.csv:2: unknown label 'ages'",
        ),
    ],
)
def test_a_broken_map_is_refused(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(lines, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_map(tmp_path / "t.csv")
    with pytest.raises(UserError, match="no such file"):
        read_map(tmp_path / "none.csv")


def test_a_review_sheet_is_filled_in_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_prompts(tmp_path / "a.jsonl", PROMPTS)
    stage.main(["make", "--settings", stage_settings(path), "--output", str(tmp_path)])
    sheet = tmp_path / "review.csv"
    where = ["--prompts", str(path), "--topics", str(tmp_path / "topics.csv")]
    stage.main(["review", *where, "--output", str(sheet)])
    with sheet.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["prompt"] for row in rows] == PROMPTS[:3], "one row a text"
    with pytest.raises(UserError, match="no label is filled in"):
        stage.main(["agreement", "--sheet", str(sheet)])
    for row, label in zip(rows, ["Religion", "none", "age"], strict=True):
        row["label"] = label
    with sheet.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    capsys.readouterr()
    stage.main(["agreement", "--sheet", str(sheet)])
    expected = cohen_kappa_score(["religion", "none", "gender"], ["religion", "none", "age"])
    assert f"Cohen's kappa {expected:.3f}, 2 of 3 equal" in capsys.readouterr().out
    # a reviewed sheet is a map too
    assert read_map(sheet)[2].label == "age"
    other = write_prompts(tmp_path / "b.jsonl", PROMPTS[1:3])
    with pytest.raises(UserError, match="prompt a/1 is not in the prompts' file"):
        stage.main(["review", "--prompts", str(other), *where[2:], "--output", str(sheet)])


# --- a language model -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mapper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_roomy(build_tiny("llama", tmp_path_factory.mktemp("mapper") / "model", seed=2), 2048)


def test_log_probabilities_are_those_of_each_whole_answer(mapper_folder: Path) -> None:
    model, tokenizer = load_lm(mapper_folder, dtype=torch_dtype("float32")), load_tokenizer(mapper_folder)
    found = llm.label_log_probabilities(model, tokenizer, "Are Hindus loud?")
    turns = [wg.Message("user", llm.question("Are Hindus loud?"))]
    before = prompt_ids(tokenizer, turns)
    expected = []
    for label in LABELS:
        answer = completion_ids(tokenizer, turns, label.replace("_", " "))
        assert answer[-1] == tokenizer.eos_token_id
        total = 0.0
        for end in range(len(answer)):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*before, *answer[:end]]])).logits[0, -1].double().numpy()
            total += logits[answer[end]] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        expected.append(total)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_the_likeliest_label_is_taken(mapper_folder: Path, tmp_path: Path) -> None:
    path = write_prompts(tmp_path / "a.jsonl", PROMPTS)
    folder = ["--model-folder", str(mapper_folder)]
    source = {"kind": "local", "path": str(mapper_folder)}
    given_settings = stage_settings(path, mapper="llm", model=source)
    stage.main(["make", "--settings", given_settings, *folder, "--output", str(tmp_path)])
    model, tokenizer = load_lm(mapper_folder, dtype=torch_dtype("float32")), load_tokenizer(mapper_folder)
    for row, prompt in zip(read_map(tmp_path / "topics.csv"), PROMPTS, strict=True):
        scores = np.array(llm.label_log_probabilities(model, tokenizer, prompt))
        probability = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        assert row.topic == LABELS[int(probability.argmax())]
        assert row.matched == f"p={probability.max():.3f}"
    with pytest.raises(UserError, match="--model-folder"):
        stage.main(["make", "--settings", given_settings, "--output", str(tmp_path)])


def test_a_question_that_does_not_fit_is_refused(mapper_folder: Path) -> None:
    model, tokenizer = load_lm(mapper_folder, dtype=torch.float32), load_tokenizer(mapper_folder)
    with pytest.raises(UserError, match=r"a prompt needs \d+ tokens, the model holds 2048"):
        llm.label_log_probabilities(model, tokenizer, "a man " * 2000)


def test_the_model_belongs_to_its_mapper() -> None:
    assert TopicSettings().mapper == "rules"
    for bad in ({"mapper": "llm"}, {"model": {"kind": "local", "path": "x"}}):
        with pytest.raises(ValueError, match="mapper 'llm' needs key 'model'"):
            TopicSettings.model_validate(bad)
    assert set(TOPICS) < set(LABELS)
