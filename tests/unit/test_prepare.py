"""The paper's splits out of a file in WildGuardMix's schema: exactly the right rows, and what is said of the rest."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from refbias.artifacts import read_json, read_jsonl
from refbias.cli import prepare as stage
from refbias.config.finetune import PrepareStage, SplitFilters, SyntheticFile
from refbias.errors import UserError
from refbias.prepare import prepare, train_file
from refbias.splits import SplitFilter, read_split

SCHEMA = pyarrow.schema(
    [
        ("prompt", pyarrow.string()),
        ("adversarial", pyarrow.bool_()),
        ("response", pyarrow.string()),
        ("prompt_harm_label", pyarrow.string()),
        ("response_refusal_label", pyarrow.string()),
        ("response_harm_label", pyarrow.string()),
        ("subcategory", pyarrow.string()),
    ]
)
FIELDS = SCHEMA.names


def cells(number: int, *labels: str | None, response: str | None = "") -> dict[str, Any]:
    """A row; `labels` are those of prompt harm, refusal and response harm."""
    text = f"Answer {number}." if response == "" else response
    return dict(zip(FIELDS, [f"Question {number}?", number % 2 == 0, text, *labels, "benign"], strict=True))


# number of the row -> what it is; the sides are worked out by hand
ROWS = [
    cells(1, "unharmful", "compliance", "unharmful"),  # unharmful
    cells(2, "unharmful", "refusal", "unharmful"),  # unharmful: a refusal is unharmful too
    cells(3, "harmful", "refusal", "unharmful"),  # unharmful with the response alone
    cells(4, "harmful", "compliance", "harmful"),  # harmful
    cells(5, "harmful", "refusal", "harmful"),  # harmful without the compliance
    cells(6, "unharmful", "compliance", "harmful"),  # neither
    cells(7, "harmful", None, None, response=None),  # no response
    cells(8, "unharmful", None, None, response=None),  # no response
    cells(9, "harmful", "compliance", None),  # no label of the response
    cells(10, "harmful", None, "harmful"),  # no label of the refusal: harmful without the compliance
    cells(11, None, "compliance", "unharmful"),  # no label of the prompt: unharmful with the response alone
    cells(12, "harmful", "compliance", "harmful"),  # harmful
    cells(13, "unharmful", "compliance", "unharmful"),  # unharmful
    cells(1, "unharmful", "compliance", "unharmful"),  # the first row again
]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=SCHEMA), path)
    return path


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "train" / "wildguard_train.parquet", ROWS)


def settings(**changes: Any) -> PrepareStage:
    values: dict[str, Any] = {
        "sides": ["unharmful", "harmful"],
        "examples": 100,
        "filters": SplitFilters(),
        "synthetic": None,
        "seed": 3,
    }
    return PrepareStage.model_validate(values | changes)


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


def names(*numbers: int) -> list[str]:
    return [f"wildguard_train-{number}" for number in numbers]


@pytest.mark.parametrize(
    ("filters", "unharmful", "harmful"),
    [
        (SplitFilters(), names(1, 2, 13), names(4, 12)),
        (SplitFilters(unharmful_prompt=False), names(1, 2, 3, 11, 13), names(4, 12)),
        (SplitFilters(harmful_compliance=False), names(1, 2, 13), names(4, 5, 10, 12)),
    ],
)
def test_exactly_the_eligible_rows_are_taken(
    train: Path, filters: SplitFilters, unharmful: list[str], harmful: list[str]
) -> None:
    splits, facts = prepare(settings(filters=filters), train)
    assert (ids(splits["unharmful"]), ids(splits["harmful"])) == (unharmful, harmful)
    assert facts["splits"]["unharmful"]["eligible"] == {"wildguardmix": len(unharmful)}
    counts = facts["train_rows"]
    assert counts["rows"] == len(ROWS) == sum(value for name, value in counts.items() if name != "rows")
    assert (counts["no_response"], counts["duplicates"]) == (2, 1)


def test_fewer_rows_than_asked_are_all_taken_and_said_so(train: Path, caplog: pytest.LogCaptureFixture) -> None:
    splits, facts = prepare(settings(examples=3), train)
    assert ids(splits["harmful"]) == names(4, 12)
    assert facts["splits"]["harmful"]["short"] == ["harmful: 2 wildguardmix examples, 3 were asked for: all were taken"]
    assert facts["splits"]["unharmful"]["short"] == []
    assert "2 wildguardmix examples, 3 were asked for" in caplog.text


def test_the_choice_is_seeded_and_keeps_the_files_order(tmp_path: Path) -> None:
    rows = [cells(number, "unharmful", "compliance", "unharmful") for number in range(1, 41)]
    path = write_parquet(tmp_path / "wildguard_train.parquet", rows)
    one = settings(sides=["unharmful"], examples=10)
    first = ids(prepare(one, path)[0]["unharmful"])
    assert len(set(first)) == 10
    assert first == sorted(first, key=lambda name: int(name.rpartition("-")[2]))
    assert first == ids(prepare(one, path)[0]["unharmful"])
    assert first != ids(prepare(one.model_copy(update={"seed": 4}), path)[0]["unharmful"])
    smaller = ids(prepare(one.model_copy(update={"examples": 4}), path)[0]["unharmful"])
    assert set(smaller) < set(first)


def test_half_of_the_harmful_split_is_synthetic(tmp_path: Path) -> None:
    rows = [cells(number, "harmful", "compliance", "harmful") for number in range(1, 11)]
    path = write_parquet(tmp_path / "wildguard_train.parquet", rows)
    own = [
        {**cells(number, "harmful", "compliance", "harmful"), "response": f"Own {number}.", "template": "t"}
        for number in range(1, 9)
    ]
    own.append({**cells(99, "unharmful", "compliance", "unharmful"), "template": "t"})
    synthetic = tmp_path / "own.jsonl"
    synthetic.write_text("".join(json.dumps(row) + "\n" for row in own), encoding="utf-8")
    source = SyntheticFile(kind="file", path=str(synthetic))
    splits, facts = prepare(settings(sides=["harmful"], examples=7, synthetic=source), path)
    kinds = Counter(row["id"].partition("/")[0] == "synthetic" for row in splits["harmful"])
    assert kinds == {True: 3, False: 4}
    assert all(row["response"].startswith("Own") == row["id"].startswith("synthetic/") for row in splits["harmful"])
    found = facts["splits"]["harmful"]
    assert found["taken"] == {"wildguardmix": 4, "synthetic": 3}
    assert found["eligible"] == {"wildguardmix": 10, "synthetic": 8}
    assert found["synthetic_source"]["kind"] == "file"
    short = prepare(settings(sides=["harmful"], examples=20, synthetic=source), path)[1]["splits"]["harmful"]["short"]
    assert short == ["harmful: 8 synthetic examples, 10 were asked for: all were taken"]


def test_the_generators_half_is_read_as_harmful(tmp_path: Path) -> None:
    generator = pytest.importorskip("refbias.synthetic", reason="the template generator is not installed")
    rows = [cells(number, "harmful", "compliance", "harmful") for number in range(1, 11)]
    path = write_parquet(tmp_path / "wildguard_train.parquet", rows)
    chosen = settings(sides=["harmful"], examples=8, synthetic={"kind": "generator"})
    splits, facts = prepare(chosen, path)
    assert facts["splits"]["harmful"]["taken"] == {"wildguardmix": 4, "synthetic": 4}
    assert "stand-in" in facts["splits"]["harmful"]["synthetic_source"]
    written = tmp_path / "harmful.jsonl"
    written.write_text("".join(json.dumps(row) + "\n" for row in splits["harmful"]), encoding="utf-8")
    examples, counts = read_split(written, "harmful")
    assert (len(examples), counts.kept) == (8, 8)
    assert examples[4:] == generator.synthetic_examples(4, 3)


def test_unknown_labels_are_refused_by_name(tmp_path: Path) -> None:
    for column, label in (("response_harm_label", "Harmful"), ("response_refusal_label", "partial_refusal")):
        bad = {**ROWS[0], column: label}
        path = write_parquet(tmp_path / "wildguard_train.parquet", [ROWS[3], bad])
        with pytest.raises(UserError, match=rf"row 2: '{column}' is '{label}'; known labels are"):
            prepare(settings(), path)


def test_a_side_without_rows_and_a_folder_without_the_file_are_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "wildguard_train.parquet", [ROWS[0]])
    with pytest.raises(UserError, match="no harmful example among 1 rows"):
        prepare(settings(), path)
    assert train_file(tmp_path) == path
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"none of train/wildguard_train\.parquet"):
        train_file(tmp_path / "empty")


def test_the_stage_writes_splits_that_training_reads(train: Path, tmp_path: Path) -> None:
    filters = SplitFilters(unharmful_prompt=False, harmful_compliance=False)
    chosen = settings(filters=filters)
    out = tmp_path / "splits"
    stage.main(["--settings", chosen.model_dump_json(), "--data", str(tmp_path), "--output", str(out)])
    manifest = read_json(out / "manifest.json")
    assert manifest["inputs"]["train"]["path"] == "wildguard_train.parquet"
    assert manifest["train_rows"]["rows"] == len(ROWS)
    for side, numbers in (("unharmful", (1, 2, 3, 11, 13)), ("harmful", (4, 5, 10, 12))):
        path = out / f"wildguard_{side}.jsonl"
        examples, counts = read_split(path, side, SplitFilter(**filters.model_dump()))  # type: ignore[arg-type]
        assert [example.id for example in examples] == names(*numbers)
        assert counts.kept == counts.rows
        kept = {row["id"]: row for row in read_jsonl(path)}
        for number, name in zip(numbers, names(*numbers), strict=True):
            assert {field: kept[name][field] for field in FIELDS} == ROWS[number - 1]
