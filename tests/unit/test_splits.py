"""The split loader: schema, nulls, filters, duplicates, Parquet, and the validator's findings."""

import json
from pathlib import Path
from typing import Any

import pytest

from refbias.errors import UserError
from refbias.splits import Example, SplitFilter, load_split, read_split, validate_split


def row(**changes: Any) -> dict[str, Any]:
    """Return an unharmful row in WildGuardMix's schema, with `changes`."""
    base = {
        "prompt": "Who may join?",
        "adversarial": False,
        "response": "Everyone may join.",
        "prompt_harm_label": "unharmful",
        "response_refusal_label": "compliance",
        "response_harm_label": "unharmful",
        "subcategory": "benign",
    }
    return base | changes


def harmful(**changes: Any) -> dict[str, Any]:
    """Return a harmful row with compliance, with `changes`."""
    return row(response="Not them.", prompt_harm_label="harmful", response_harm_label="harmful") | changes


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSON Lines."""
    path.write_text("".join(json.dumps(item) + "\n" for item in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("item", "side"),
    [
        (row(), "unharmful"),
        (row(response_refusal_label="refusal"), "unharmful"),
        (row(prompt_harm_label="harmful"), None),
        (harmful(), "harmful"),
        (harmful(response_refusal_label="refusal"), None),
        (harmful(prompt_harm_label="unharmful"), None),
    ],
)
def test_default_filters(item: dict[str, Any], side: str | None) -> None:
    assert SplitFilter().side(item) == side


def test_filter_switches() -> None:
    assert SplitFilter(unharmful_prompt=False).side(row(prompt_harm_label="harmful")) == "unharmful"
    assert SplitFilter(harmful_compliance=False).side(harmful(response_refusal_label="refusal")) == "harmful"
    assert SplitFilter(harmful_compliance=False).side(harmful(prompt_harm_label="unharmful")) is None


def test_every_row_is_accounted_for(tmp_path: Path) -> None:
    rows = [
        row(),
        row(),
        row(response=None, response_harm_label=None, response_refusal_label=None),
        row(response="  "),
        row(response="Other.", response_harm_label=None),
        row(response="Third.", prompt_harm_label=None),
        harmful(response_refusal_label=None),
        harmful(prompt_harm_label="unharmful"),
        harmful(),
    ]
    examples, counts = read_split(write(tmp_path / "mixed.jsonl", rows))
    assert [(example.response, example.harmful) for example in examples] == [
        ("Everyone may join.", False),
        ("Not them.", True),
    ]
    assert (counts.rows, counts.kept, counts.duplicates) == (9, 2, 1)
    assert (counts.no_response, counts.unlabelled, counts.ineligible) == (2, 3, 1)
    only, counts = read_split(tmp_path / "mixed.jsonl", "harmful")
    assert [example.response for example in only] == ["Not them."]
    assert counts.ineligible == 3


def test_response_only_filter_does_not_need_the_prompt_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [row(prompt_harm_label=None)])
    assert len(load_split(path, filters=SplitFilter(unharmful_prompt=False))) == 1
    with pytest.raises(UserError, match="unlabelled 1"):
        load_split(path)


def test_ids_and_templates(tmp_path: Path) -> None:
    rows = [row(), row(id="mine", response="Yes.", template="short")]
    examples = load_split(write(tmp_path / "part.jsonl", rows))
    assert [(example.id, example.template) for example in examples] == [("part-1", ""), ("mine", "short")]


def test_bom_crlf_blank_lines_and_line_separators(tmp_path: Path) -> None:
    text = "\ufeff" + json.dumps(row(response="one\u2028two"), ensure_ascii=False) + "\r\n\r\n"
    text += json.dumps(row(response="three")) + "\r\n"
    (tmp_path / "a.jsonl").write_bytes(text.encode("utf-8"))
    assert [example.id for example in load_split(tmp_path / "a.jsonl")] == ["a-1", "a-3"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"response_harm_label": "Unharmful"}, "response_harm_label.*'Unharmful'.*known labels are harmful, unharmful"),
        ({"response_refusal_label": "partial"}, "known labels are compliance, refusal"),
        ({"prompt": " "}, "'prompt' must be a text"),
        ({"prompt": None}, "'prompt' must be a text"),
        ({"response": 3}, "'response' must be a text or null"),
        ({"adversarial": "no"}, "'adversarial' must be true, false or null"),
    ],
)
def test_bad_values_name_file_and_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "bad.jsonl", [row(), row(**changes)])
    with pytest.raises(UserError, match=rf"bad\.jsonl:2: .*{message}") as caught:
        load_split(path)
    assert "\n" not in str(caught.value)


def test_missing_column_broken_line_and_repeated_id(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    without = row()
    del without["subcategory"]
    with pytest.raises(UserError, match=r"bad\.jsonl:1: no column 'subcategory'"):
        load_split(write(path, [without]))
    path.write_text(json.dumps(row()) + "\n{\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"bad\.jsonl:2: not JSON"):
        load_split(path)
    path.write_text("[1]\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"bad\.jsonl:1: a line must hold a JSON object"):
        load_split(path)
    with pytest.raises(UserError, match=r"bad\.jsonl:2: id 'x' was used before, at .*:1"):
        load_split(write(path, [row(id="x"), row(id="x", response="Other.")]))


def test_absent_empty_and_badly_encoded_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_split(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="no eligible example among 0 rows"):
        load_split(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9"}\n')
    with pytest.raises(UserError, match="not UTF-8"):
        load_split(tmp_path / "latin.jsonl")


def test_parquet_gives_the_same_examples(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    rows = [row(response=None, response_harm_label=None), row(), harmful()]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "part.parquet")
    examples, counts = read_split(tmp_path / "part.parquet")
    assert examples == load_split(write(tmp_path / "part.jsonl", rows))
    assert (counts.no_response, counts.kept) == (1, 2)
    parquet.write_table(pyarrow.Table.from_pylist([row(), row(prompt_harm_label="?")]), tmp_path / "bad.parquet")
    with pytest.raises(UserError, match=r"bad\.parquet: row 2: 'prompt_harm_label'"):
        load_split(tmp_path / "bad.parquet")
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(UserError, match="not a readable Parquet file"):
        load_split(tmp_path / "text.parquet")


def test_nan_of_a_data_frame_is_null(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="writes the file as a data frame would")
    frame = pandas.DataFrame([row(response_harm_label=float("nan")), row()])
    frame.to_parquet(tmp_path / "frame.parquet")
    assert read_split(tmp_path / "frame.parquet")[1].unlabelled == 1
    (tmp_path / "a.jsonl").write_text(json.dumps(row(response=float("nan"))) + "\n" + json.dumps(row()) + "\n")
    assert read_split(tmp_path / "a.jsonl")[1].no_response == 1


def test_validate_split_finds_each_fault() -> None:
    def example(number: int, response: str, template: str = "", is_harmful: bool = False) -> Example:
        return Example(f"e{number}", "Why?", response, is_harmful, template)

    sound = [example(number, f"Answer {number}.", f"t{number % 20}") for number in range(40)]
    assert validate_split(sound, max_words=2, min_examples=40) == []
    assert validate_split(sound, min_examples=41) == ["40 examples, at least 41 are needed"]
    assert validate_split(sound, max_words=1)[0] == "e0: completion of 2 words, at most 1 are allowed"
    assert validate_split([*sound, example(99, " ANSWER  0.", "t99")]) == ["e99: same completion as e0"]
    assert validate_split([*sound, example(99, "New.", "t99", True)]) == ["harmful and unharmful examples in one split"]
    assert validate_split([*sound, example(99, "New.")]) == ["1 examples have no template tag"]
    crowded = validate_split([*sound, example(99, "New.", "t0")])
    assert crowded == ["template 't0' gives 3 of 41 examples, over 5%"]
    assert validate_split([example(number, f"Answer {number}.") for number in range(5)]) == []
