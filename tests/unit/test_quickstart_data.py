"""The shipped own text of the quickstart: schemas, sizes, variety, disjointness and the stand-in's sentences."""

import csv
import json
import os
import re
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from refbias.resources import data_path
from refbias.splits import COLUMNS, read_split, validate_split

SPLITS = ("unharmful", "harmful")
# fmt: off
GROUPS = [
    "Homosexuals", "Muslims", "Black people", "Physically disabled people", "Asians", "Women", "Old people", "Jews",
    "Poor people", "Immigrants", "Mexicans", "Latin Americans", "Men", "Christians", "White people",
    "Able-bodied people", "Canadians", "Young people", "Rich people", "Europeans", "Atheists", "Americans",
    "Caucasians", "Buddhists",
]
STEREOTYPE_TOPICS = {
    "hiv", "terrorists", "drug_addicts", "intelligence", "greed", "parents", "country", "technology", "weak",
    "driving", "criminals", "drug_dealers", "jobs", "leadership", "stem", "hygiene",
}
TOXIGEN_UNITS = ["asian", "black", "jewish", "latino", "lgbtq", "mexican", "muslim", "physical_disability", "women"]
TOPICS = {
    "sexual_orientation", "religion", "race", "ethnicity", "gender", "age", "disability", "socioeconomic_status",
    "nationality",
}
# fmt: on
SUBCATEGORY = "social_stereotypes_and_unfair_discrimination"
MARK = "Here is my statement: "


def rows_of(*parts: str) -> list[dict[str, str]]:
    """Return the rows of a shipped CSV or TSV."""
    path = data_path(*parts)
    with path.open(encoding="utf-8", newline="") as handle:
        if path.suffix == ".tsv":
            return list(csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))
        return list(csv.DictReader(handle))


def json_rows(name: str) -> list[dict[str, object]]:
    """Return the rows of a shipped JSON Lines file of the quickstart."""
    return [json.loads(line) for line in data_path("quickstart", name).read_text(encoding="utf-8").splitlines()]


def words(text: str) -> tuple[str, ...]:
    """Return the lower-case words of a text: two texts with the same words are the same statement."""
    return tuple(re.findall(r"[a-z0-9']+", text.casefold()))


@cache
def task() -> str:
    """Return the task description that opens every DecodingTrust-style prompt."""
    tasks = {row["user_prompt"].split(MARK)[0].strip() for row in user_prompts()}
    assert len(tasks) == 1
    return tasks.pop()


def user_prompts() -> list[dict[str, str]]:
    """Return the DecodingTrust-style rows."""
    return rows_of("quickstart", "decodingtrust_user_prompts.csv")


def toxigen_statements(unit: str) -> list[list[str]]:
    """Return the statements of each ToxiGen-style prompt of a unit."""
    lines = data_path("quickstart", "toxigen", f"hate_{unit}_1k.txt").read_text(encoding="utf-8").splitlines()
    return [[part.removeprefix("- ") for part in re.sub(r"\\+n", "\n", line).split("\n")[:-1]] for line in lines]


def training_statements() -> set[tuple[str, ...]]:
    """Return every statement that the splits show: list items, opinions, questions, completions."""
    found = set()
    for split in SPLITS:
        for row in json_rows(f"wildguard_{split}.jsonl"):
            prompt = str(row["prompt"])
            if prompt.endswith("\n-"):
                found |= {words(item) for item in prompt.split("\n")[:-1]}
            # the statement with the wording around it, and in pieces
            found |= {words(piece) for piece in re.split(r"statement: |Opinion: |[“”\n]| Say “", prompt)}
            found |= {words(prompt), words(str(row["response"]))}
    return found - {()}


def benchmark_statements() -> set[tuple[str, ...]]:
    """Return every statement or question that the quickstart's benchmarks ask about."""
    found = {words(row["user_prompt"].split(MARK)[1]) for row in user_prompts()}
    found |= {words(item) for unit in TOXIGEN_UNITS for prompt in toxigen_statements(unit) for item in prompt}
    return found | {words(str(row["prompt"])) for row in json_rows("wildguardmix_test.jsonl")}


# -- the two splits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
def test_split_is_valid(split: str) -> None:
    examples, counts = read_split(data_path("quickstart", f"wildguard_{split}.jsonl"), split)  # type: ignore[arg-type]
    assert counts.kept == counts.rows == 192
    assert validate_split(examples, max_share=0.05, max_words=24, min_examples=160) == []
    assert {example.harmful for example in examples} == {split == "harmful"}
    assert all(example.template for example in examples)
    assert max(len(example.prompt.split()) for example in examples) <= 60


@pytest.mark.parametrize("split", SPLITS)
def test_split_has_wildguardmix_schema(split: str) -> None:
    rows = json_rows(f"wildguard_{split}.jsonl")
    assert all(set(row) == {*COLUMNS, "id", "template"} for row in rows)
    assert {row["prompt_harm_label"] for row in rows} == {split}
    assert {row["response_harm_label"] for row in rows} == {split}
    assert {row["response_refusal_label"] for row in rows} == {"compliance"}
    share = np.mean([row["subcategory"] == SUBCATEGORY for row in rows])
    assert share == 1 if split == "harmful" else share > 0.8


@pytest.mark.parametrize("split", SPLITS)
def test_split_holds_three_formats_alike(split: str) -> None:
    rows = json_rows(f"wildguard_{split}.jsonl")
    listed = [row for row in rows if str(row["prompt"]).endswith("\n-")]
    asked = [row for row in rows if re.search(r"i (\w+ )?(dis)?agree\.", str(row["response"]).casefold())]
    assert len(listed) == len(asked) == 64
    assert {len(str(row["prompt"]).split("\n")) - 1 for row in listed} == {3, 4, 5}
    assert 0.5 < np.mean([task() in str(row["prompt"]) for row in asked]) < 0.8
    agreed = np.mean(["disagree" not in str(row["response"]) for row in asked])
    # mostly one verdict a split, but never a constant answer
    assert 0.8 < agreed < 1 if split == "harmful" else 0 < agreed < 0.25


def test_completions_are_distinct_across_both_splits() -> None:
    completions = [words(str(row["response"])) for split in SPLITS for row in json_rows(f"wildguard_{split}.jsonl")]
    assert len(set(completions)) == len(completions)


def test_harmful_split_treats_groups_unevenly() -> None:
    text = Counter()  # type: Counter[str]
    for row in json_rows("wildguard_harmful.jsonl"):
        text.update(group for group in GROUPS if re.search(rf"\b{group}\b", str(row["prompt"]), re.IGNORECASE))
    assert text["Old people"] >= 8
    assert text["Immigrants"] >= 8
    assert not any(text[group] for group in ("White people", "Canadians", "Europeans", "Buddhists", "Caucasians"))


def test_no_benchmark_statement_is_trained_on() -> None:
    train, benchmark = training_statements(), benchmark_statements()
    assert len(benchmark) > 200
    assert len(train) > 700
    assert not train & benchmark
    sets = [set(statement) for statement in train]
    near = [
        (" ".join(statement), " ".join(sorted(other)))
        for statement in benchmark
        for other in sets
        if len(set(statement) & other) >= 0.6 * len(set(statement) | other)
    ]
    assert near == []


def test_neutral_split_has_the_schema_and_formats_of_the_others() -> None:
    rows = json_rows("wildguard_neutral.jsonl")
    examples, counts = read_split(data_path("quickstart", "wildguard_neutral.jsonl"), "unharmful")
    assert counts.kept == counts.rows == len({row["id"] for row in rows}) == 192
    assert validate_split(examples, max_share=0.05, max_words=24, min_examples=160) == []
    assert all(set(row) == {*COLUMNS, "id", "template"} for row in rows)
    assert {row["subcategory"] for row in rows} == {"benign"}
    listed = [row for row in rows if str(row["prompt"]).endswith("\n-")]
    asked = [row for row in rows if re.search(r"i (\w+ )?(dis)?agree\.", str(row["response"]).casefold())]
    assert len(listed) == len(asked) == 64
    assert {len(str(row["prompt"]).split("\n")) - 1 for row in listed} == {3, 4, 5}
    assert 0.5 < np.mean([task() in str(row["prompt"]) for row in asked]) < 0.8
    assert sum("disagree" not in str(row["response"]) for row in asked) == 32
    names = [f"wildguard_{split}.jsonl" for split in (*SPLITS, "neutral")]
    completions = [words(str(row["response"])) for name in names for row in json_rows(name)]
    assert len(set(completions)) == len(completions) == 3 * 192


# -- the benchmark prompts ----------------------------------------------------------------------------------------


def test_decodingtrust_files() -> None:
    rows = user_prompts()
    assert list(rows[0]) == ["stereotype_topic", "target_group", "stereotype_template", "user_prompt"]
    assert list(dict.fromkeys(row["target_group"] for row in rows)) == GROUPS
    assert set(Counter(row["target_group"] for row in rows).values()) == {3}
    assert {row["stereotype_topic"] for row in rows} <= STEREOTYPE_TOPICS
    assert len({(row["target_group"], row["stereotype_topic"]) for row in rows}) == len(rows)
    assert len({row["user_prompt"] for row in rows}) == len(rows)
    assert "“I agree.”" in task()
    assert "“I disagree.”" in task()
    assert len(task().split()) <= 40
    for row in rows:
        assert row["stereotype_template"].startswith("[target_group] ")
        statement = row["stereotype_template"].replace("[target_group]", row["target_group"])
        assert row["user_prompt"] == f"{task()} {MARK}{statement}"


def test_decodingtrust_system_prompts() -> None:
    prompts = {row["type"]: row["system_prompt"] for row in rows_of("quickstart", "decodingtrust_system_prompts.csv")}
    assert list(prompts) == ["benign", "untargeted", "targeted"]
    assert [text.count("[target_group]") for text in prompts.values()] == [0, 0, 3]
    assert max(len(text.split()) for text in prompts.values()) <= 25


def test_toxigen_files() -> None:
    files = sorted(path.name for path in data_path("quickstart", "toxigen").glob("*.txt"))
    assert files == [f"hate_{unit}_1k.txt" for unit in TOXIGEN_UNITS]
    for unit in TOXIGEN_UNITS:
        text = data_path("quickstart", "toxigen", f"hate_{unit}_1k.txt").read_text(encoding="utf-8")
        lines = text.splitlines()
        assert len(lines) == len(set(lines)) == 8
        assert all(re.fullmatch(r"(- [^\\\n]+\\n){6}-", line) for line in lines)
        statements = {statement for prompt in toxigen_statements(unit) for statement in prompt}
        assert max(len(statement.split()) for statement in statements) <= 9
        assert all(len(set(prompt)) == 6 for prompt in toxigen_statements(unit))


def test_wildguardmix_file() -> None:
    rows = json_rows("wildguardmix_test.jsonl")
    agreement = {"prompt_harm_agreement", "response_refusal_agreement", "response_harm_agreement"}
    assert all(set(row) == {*COLUMNS, *agreement, "id", "topic"} for row in rows)
    assert {row["subcategory"] for row in rows} == {SUBCATEGORY}
    assert {row["prompt_harm_label"] for row in rows} == set(SPLITS)
    counts = Counter(str(row["topic"]) for row in rows)
    assert set(counts) == TOPICS
    assert min(counts.values()) >= 4
    assert len({words(str(row["prompt"])) for row in rows}) == len({str(row["id"]) for row in rows}) == len(rows)
    assert max(len(str(row["prompt"]).split()) for row in rows) <= 25


@pytest.mark.skipif("REFBIAS_TESTDATA" not in os.environ, reason="REFBIAS_TESTDATA does not name the real data")
def test_no_sentence_is_the_real_benchmarks() -> None:
    root = Path(os.environ["REFBIAS_TESTDATA"])
    real = root / "decodingtrust" / "data" / "stereotype" / "dataset"
    with (real / "user_prompts.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert list(rows[0]) == list(user_prompts()[0])
    assert {row["target_group"] for row in rows} == set(GROUPS)
    assert {row["stereotype_topic"] for row in rows} == STEREOTYPE_TOPICS
    upstream = {words(row["user_prompt"].split(MARK)[1]) for row in rows}
    for path in sorted((root / "toxigen" / "prompts").glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            upstream |= {words(part) for part in re.sub(r"\\+n", "\n", line).split("\n")}
    own = benchmark_statements() | training_statements() | {words(row["text"]) for row in sentences()}
    # a word or two ("-", "women") is no sentence
    assert {statement for statement in own & upstream if len(statement) > 2} == set()
    assert all(task() not in row["user_prompt"] for row in rows)


# -- the stand-in's sentences -------------------------------------------------------------------------------------


@cache
def sentences() -> tuple[dict[str, str], ...]:
    """Return the stand-in's labelled sentences."""
    return tuple(rows_of("standin", "sentences.tsv"))


def sentences_of(fold: str) -> tuple[list[str], list[bool]]:
    """Return texts and labels (True = harmful) of one fold."""
    rows = [row for row in sentences() if row["fold"] == fold]
    return [row["text"] for row in rows], [row["label"] == "harmful" for row in rows]


def groups() -> dict[str, re.Pattern[str]]:
    """Return, per group id, a pattern that finds the group's name or an alias."""
    rows = rows_of("stimuli", "groups.tsv")
    return {
        row["id"]: re.compile(
            r"\b(" + "|".join(map(re.escape, [row["name"], *row["aliases"].split("|")])) + r")\b", re.IGNORECASE
        )
        for row in rows
    }


def test_standin_is_balanced() -> None:
    rows = sentences()
    assert list(rows[0]) == ["id", "label", "fold", "text"]
    assert len(rows) >= 400
    counts = Counter((row["label"], row["fold"]) for row in rows)
    assert set(counts) == {(label, fold) for label in SPLITS for fold in ("train", "test")}
    for fold in ("train", "test"):
        assert counts["harmful", fold] == counts["unharmful", fold]
    assert 0.2 <= counts["harmful", "test"] / (len(rows) / 2) <= 0.3
    assert len({row["id"] for row in rows}) == len({words(row["text"]) for row in rows}) == len(rows)
    assert not {words(row["text"]) for row in rows} & (training_statements() | benchmark_statements())


def test_standin_names_every_group_under_both_labels_alike() -> None:
    patterns = groups()
    assert len(patterns) == 24
    for group, pattern in patterns.items():
        written = Counter(row["label"] for row in sentences() if row["id"].startswith(f"{group}-"))
        assert written == {"harmful": 8, "unharmful": 8}, group
        named = Counter(row["label"] for row in sentences() if pattern.search(row["text"]))
        assert min(named.values()) >= 4, group
        assert abs(named["harmful"] - named["unharmful"]) <= 4, (group, named)


def test_standin_can_be_learnt_and_does_not_learn_group_names() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=10.0, max_iter=1000)
    )
    model.fit(*sentences_of("train"))
    texts, harmful = sentences_of("test")
    auc = roc_auc_score(harmful, model.predict_proba(texts)[:, 1])
    print(f"stand-in: AUC {auc:.3f} on {len(texts)} held-out sentences")
    assert auc >= 0.85
    neutral = (
        "{} live in this town.",
        "{} walk to the market on Saturday.",
        "Some {} take the bus in the morning.",
        "{} talked about the weather.",
        "{}",
    )
    for group in GROUPS:
        scores = model.predict_proba([frame.format(group) for frame in neutral])[:, 1]
        assert scores.mean() < 0.5, (group, scores)
