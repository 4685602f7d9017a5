"""WildGuardMix: the schema, the folded subcategory, labels, topics."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from refbias.benchmarks import wildguardmix as wg
from refbias.benchmarks.base import Message
from refbias.errors import UserError
from refbias.resources import data_path


@dataclass
class Settings:
    prompts: str | None = None
    prompts_per_unit: int | None = None


def row(**changes: Any) -> dict[str, Any]:
    return {
        "prompt": "Tell me about the weather.",
        "adversarial": False,
        "response": None,
        "prompt_harm_label": "unharmful",
        "response_refusal_label": None,
        "response_harm_label": None,
        "subcategory": wg.SUBCATEGORY,
        "prompt_harm_agreement": "three_agree",
        "response_refusal_agreement": None,
        "response_harm_agreement": None,
        "topic": "religion",
        **changes,
    }


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


ROWS = [
    row(),
    row(subcategory="benign"),
    row(subcategory="Social Stereotypes and Unfair Discrimination", topic="Socioeconomic status"),
    row(
        subcategory=" social-stereotypes_and  unfair discrimination ",
        topic="age",
        response="No.",
        response_refusal_label="refusal",
        response_harm_label="unharmful",
    ),
    row(topic="none"),
    row(subcategory=None, topic=None, prompt_harm_label=None),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_selects_the_folded_subcategory_and_counts(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"wildguard_test.{kind}"
    (write_jsonl if kind == "jsonl" else write_parquet)(path, ROWS)
    loaded = wg.BENCHMARK.load(Settings(str(path)), 0)
    assert {(p.id, p.unit) for p in loaded.prompts} == {
        ("wildguard_test/1", "religion"),
        ("wildguard_test/3", "socioeconomic_status"),
        ("wildguard_test/4", "age"),
    }
    assert loaded.prompts[0].messages == (Message("user", "Tell me about the weather."),)
    assert loaded.notes["rows_in_file"] == 6
    assert loaded.notes["rows_of_subcategory"] == 4
    assert loaded.notes["rows_without_topic"] == 1
    assert "gender" in loaded.notes["units_without_prompts"]


def test_a_folder_finds_the_hubs_layout(tmp_path: Path) -> None:
    write_parquet(tmp_path / "test" / "wildguard_test.parquet", ROWS)
    assert len(wg.BENCHMARK.load_prompts(Settings(str(tmp_path)), 0)) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"wildguard_test\.parquet"):
        wg.BENCHMARK.load(Settings(str(tmp_path / "empty")), 0)


def test_zero_rows_of_the_subcategory_fail(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [row(subcategory="benign")])
    with pytest.raises(UserError, match=r"0 of 1 rows have the subcategory social_stereotypes"):
        wg.BENCHMARK.load(Settings(str(path)), 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"response_harm_label": "harmfull"}, r"a.jsonl:3: unknown response_harm_label 'harmfull': one of harmful, "),
        ({"prompt_harm_label": "Harmful"}, r"unknown prompt_harm_label 'Harmful'"),
        ({"response_refusal_label": "partial"}, r"unknown response_refusal_label 'partial'"),
        ({"topic": "politics"}, r":3: unknown topic 'politics'"),
        ({"topic": None}, r":3: no topic"),
        ({"prompt": None}, r":3: prompt must be non-empty"),
        ({"prompt": "  "}, r":3: prompt must be non-empty"),
        ({"response": 3}, r":3: response must be text or null"),
        ({"adversarial": "no"}, r":3: adversarial must be true or false"),
    ],
)
def test_bad_cells_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    # the blank line holds the place of line 2
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row()) + "\n\n" + json.dumps(row(**changes)) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        wg.BENCHMARK.load(Settings(str(path)), 0)


def test_an_unknown_label_is_refused_even_outside_the_subcategory(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [row(), row(subcategory="benign", response_harm_label="maybe")])
    with pytest.raises(UserError, match="'maybe'"):
        wg.BENCHMARK.load(Settings(str(path)), 0)


def test_missing_column_is_named_with_what_stands_there_instead(tmp_path: Path) -> None:
    renamed = {("sub_category" if key == "subcategory" else key): value for key, value in row().items()}
    path = write_jsonl(tmp_path / "a.jsonl", [renamed])
    with pytest.raises(UserError, match=r"a.jsonl:1: no column subcategory; unknown: sub_category"):
        wg.BENCHMARK.load(Settings(str(path)), 0)
    without_topic = {key: value for key, value in row().items() if key != "topic"}
    with pytest.raises(UserError, match="add a topic column"):
        wg.BENCHMARK.load(Settings(str(write_jsonl(path, [without_topic]))), 0)


def test_extra_columns_are_told(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [row(__index_level_0__=4)])
    assert wg.BENCHMARK.load(Settings(str(path)), 0).notes["ignored_columns"] == ["__index_level_0__"]


def test_choice_within_a_topic_is_seeded(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [row(topic=topic) for _ in range(10) for topic in wg.TOPICS])
    first = wg.BENCHMARK.load(Settings(str(path), prompts_per_unit=3), 1)
    assert first == wg.BENCHMARK.load(Settings(str(path), prompts_per_unit=3), 1)
    assert first.notes["prompts_by_unit"] == dict.fromkeys(wg.TOPICS, 3)
    assert first.prompts != wg.BENCHMARK.load(Settings(str(path), prompts_per_unit=3), 2).prompts


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.parquet"):
        with pytest.raises(UserError, match="no such file"):
            wg.BENCHMARK.load(Settings(str(tmp_path / name)), 0)
    (tmp_path / "a.parquet").write_bytes(b"PAR0")
    with pytest.raises(UserError, match="not a readable Parquet file"):
        wg.BENCHMARK.load(Settings(str(tmp_path / "a.parquet")), 0)
    with pytest.raises(UserError, match=r"give a \.parquet or \.jsonl file"):
        wg.BENCHMARK.load(Settings(str(tmp_path / "a.csv")), 0)
    (tmp_path / "b.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(UserError, match="no rows"):
        wg.BENCHMARK.load(Settings(str(tmp_path / "b.jsonl")), 0)


def test_all_prompts_without_topic_is_an_error_not_an_empty_run(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [row(topic="none")])
    with pytest.raises(UserError, match="no prompts left"):
        wg.BENCHMARK.load(Settings(str(path)), 0)


def test_the_training_schema_is_read_too(tmp_path: Path) -> None:
    cells = {key: row()[key] for key in wg.COLUMNS}
    rows, ignored = wg.read_rows(write_jsonl(tmp_path / "train.jsonl", [cells]))
    assert ignored == []
    assert (rows[0].response, rows[0].prompt_harm, rows[0].topic) == (None, "unharmful", None)


def test_quickstart_prompts_cover_every_topic() -> None:
    assert wg.BENCHMARK.load(Settings(), 0).notes["units_without_prompts"] == []


def test_topics_are_those_of_the_stimuli() -> None:
    lines = [line.split("\t") for line in data_path("stimuli", "groups.tsv").read_text(encoding="utf-8").splitlines()]
    column = lines[0].index("topic")
    assert {line[column] for line in lines[1:]} == set(wg.TOPICS)
