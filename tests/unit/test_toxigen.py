"""ToxiGen: decoding prompt lines, the first statement, and the real files."""

import os
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from refbias.benchmarks.toxigen import BENCHMARK, UNITS, decode_prompt, first_statement, is_list_prompt
from refbias.errors import UserError
from refbias.resources import data_path

DATA = os.environ.get("REFBIAS_TESTDATA")
needs_data = pytest.mark.skipif(not DATA, reason="REFBIAS_TESTDATA is not set: no real benchmark files")
ARCHIVE = Path(DATA or ".", "toxigen", "toxigen_prompts_9groups.tar.xz")


@dataclass
class Settings:
    prompts: str | None = None
    prompts_per_unit: int | None = None


LINE = r"- one\n- two\n-"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for unit in UNITS:
        lines = [rf"- {unit} {number}\n- some more\n-" for number in range(20)]
        (tmp_path / f"hate_{unit}_1k.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


# --- decoding -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (LINE, "- one\n- two\n-"),
        ("- one\\\\\\n- two\\n-", "- one\n- two\n-"),
        ("- one\\\\n\\n- two\\n-", "- one\n- two\n-"),
        ("- one \\n- two\\n-\n", "- one \n- two\n-"),
        ("- one\\n- two\\n-\r\n", "- one\n- two\n-"),
        ("- “curly” – dash’s\\n-", "- “curly” – dash’s\n-"),
        ("- a\u2028b\\n-", "- a\u2028b\n-"),
        ("- none of it\\n-", "- none of it\n-"),
    ],
)
def test_decode(line: str, text: str) -> None:
    assert decode_prompt(line) == text
    assert is_list_prompt(text)


@pytest.mark.parametrize("text", ["", "-", "- one", "- one\n- ", "one\n-", "- one\n-two\n-"])
def test_other_shapes_are_told_apart(text: str) -> None:
    assert not is_list_prompt(text)


@needs_data
def test_all_18000_real_lines_decode() -> None:
    lines = 0
    backslashes: Counter[str] = Counter()
    repeated = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            if not member.name.endswith("_1k.txt"):
                continue
            content = archive.extractfile(member)
            assert content is not None
            texts = content.read().decode("utf-8").removesuffix("\n").split("\n")
            name = Path(member.name).name.removesuffix("_1k.txt")
            repeated[name] = len(texts) - len(set(texts))
            for line in texts:
                decoded = decode_prompt(line)
                assert is_list_prompt(decoded), (member.name, line[:40])
                assert decoded.count("\n") == (5 if name == "neutral_latino" else 6)
                assert "\\n" not in decoded
                assert not {"â", "\x80"} & set(decoded)
                lines += 1
            backslashes[name] += sum("\\\\\\n" in line for line in texts)
    assert lines == 18_000
    assert len(repeated) == 18
    assert backslashes["hate_black"] > 0
    assert (repeated["hate_latino"], repeated["hate_jewish"], repeated["hate_asian"]) == (444, 103, 102)


@needs_data
def test_folder_archive_and_single_file_give_the_same_prompts(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    packed = BENCHMARK.load(Settings(str(ARCHIVE), prompts_per_unit=100), 0)
    assert BENCHMARK.load(Settings(str(tmp_path), prompts_per_unit=100), 0).prompts == packed.prompts
    assert BENCHMARK.load(Settings(str(tmp_path / "prompts"), prompts_per_unit=100), 0).prompts == packed.prompts
    assert packed.notes["prompts_by_unit"] == dict.fromkeys(UNITS, 100)
    assert packed.notes["prompts_in_file"] == dict.fromkeys(UNITS, 1000)
    raw = Path(str(DATA), "toxigen", "prompts", "hate_women_1k.txt")
    alone = BENCHMARK.load_prompts(Settings(str(raw), prompts_per_unit=100), 0)
    assert alone == [prompt for prompt in packed.prompts if prompt.unit == "women"]


@needs_data
def test_repeated_lines_stay_apart_by_line_number() -> None:
    prompts = BENCHMARK.load_prompts(Settings(str(ARCHIVE)), 0)
    assert len(prompts) == len({prompt.id for prompt in prompts}) == 9000
    latino = [prompt.messages[0].content for prompt in prompts if prompt.unit == "latino"]
    assert len(set(latino)) < len(latino) == 1000


# --- the first statement --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        (" they like tea\n- they like coffee", "they like tea"),
        ("- they like tea\n- more", "they like tea"),
        ("-they like tea", "they like tea"),
        ("\n\n  * they like tea", "they like tea"),
        ("1. they like tea", "they like tea"),
        ("(2) they like tea", "they like tea"),
        ("3) they like tea", "they like tea"),
        ("- \"they like tea\"", "they like tea"),
        ("“they like tea.”", "they like tea."),
        ("'they don't like tea'", "they don't like tea"),
        ("'one' and 'two'", "'one' and 'two'"),
        ("\"one\" and \"two\"", "\"one\" and \"two\""),
        ("\"an opening quote that never closes", "an opening quote that never closes"),
        ("'twas a quiet day", "'twas a quiet day"),
        ("- 1. \"- nested\"", "nested"),
        ("-\n-\n- \"\"\n- they like tea", "they like tea"),
        ("---\nthey like tea", "they like tea"),
        ("1.5 million people like tea", "1.5 million people like tea"),
        ("-5 degrees", "-5 degrees"),
        ("**bold** words", "**bold** words"),
        ("• they like tea\r\nmore", "they like tea"),
        ("– they like tea", "they like tea"),
        ("2024 was a year", "2024 was a year"),
        ("", ""),
        ("\n \n\t", ""),
        ("- \n\"\"\n1.", ""),
    ],
)  # fmt: skip
def test_first_statement(text: str, statement: str) -> None:
    assert first_statement(text) == statement


def test_missing_output_is_not_an_empty_one() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        first_statement(None)  # type: ignore[arg-type]


# --- loading --------------------------------------------------------------------------------------


def test_ids_units_and_turns(folder: Path) -> None:
    prompts = BENCHMARK.load_prompts(Settings(str(folder)), 0)
    assert len(prompts) == 180
    assert (prompts[0].id, prompts[0].unit) == ("hate_asian_1k/1", "asian")
    assert [(m.role, m.content) for m in prompts[0].messages] == [("user", "- asian 0\n- some more\n-")]


def test_choice_is_seeded_nested_and_in_file_order(folder: Path) -> None:
    def ids(count: int, seed: int) -> list[str]:
        return [p.id for p in BENCHMARK.load_prompts(Settings(str(folder), count), seed) if p.unit == "women"]

    assert ids(8, 1) == ids(8, 1)
    assert ids(8, 1) != ids(8, 2)
    assert set(ids(4, 1)) < set(ids(8, 1))
    numbers = [int(identity.split("/")[1]) for identity in ids(8, 1)]
    assert numbers == sorted(numbers)
    assert len(numbers) == 8


def test_too_few_prompts_are_all_taken_and_said(folder: Path) -> None:
    loaded = BENCHMARK.load(Settings(str(folder), prompts_per_unit=50), 0)
    assert len(loaded.prompts) == 180
    assert loaded.notes["units_with_fewer_than_asked"] == list(UNITS)


def test_line_number_counts_blank_lines_and_crlf(folder: Path) -> None:
    path = folder / "hate_women_1k.txt"
    path.write_bytes(b"\xef\xbb\xbf" + f"{LINE}\r\n\r\n{LINE}\r\n".encode())
    prompts = BENCHMARK.load_prompts(Settings(str(path)), 0)
    assert [p.id for p in prompts] == ["hate_women_1k/1", "hate_women_1k/3"]
    assert prompts[0].messages == prompts[1].messages


def test_wrong_shape_names_file_and_line(folder: Path) -> None:
    path = folder / "hate_women_1k.txt"
    path.write_text(f"{LINE}\nno list at all\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"hate_women_1k.txt:2: not a list"):
        BENCHMARK.load(Settings(str(folder)), 0)


def test_missing_files_and_groups_are_named(folder: Path) -> None:
    (folder / "hate_latino_1k.txt").unlink()
    with pytest.raises(UserError, match=r"no hate_latino_1k.txt"):
        BENCHMARK.load(Settings(str(folder)), 0)
    (folder / "hate_immigrant_1k.txt").write_text(LINE, encoding="utf-8")
    with pytest.raises(UserError, match=r"expected hate_<group>_1k.txt of asian"):
        BENCHMARK.load(Settings(str(folder / "hate_immigrant_1k.txt")), 0)
    with pytest.raises(UserError, match="no such file"):
        BENCHMARK.load(Settings(str(folder / "prompts.tar.xz")), 0)
    (folder / "prompts.tar.xz").write_bytes(b"not an archive")
    with pytest.raises(UserError, match="not a readable tar archive"):
        BENCHMARK.load(Settings(str(folder / "prompts.tar.xz")), 0)
    (folder / "hate_women_1k.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(UserError, match="holds no prompt"):
        BENCHMARK.load(Settings(str(folder / "hate_women_1k.txt")), 0)


def test_quickstart_prompts_cover_every_unit() -> None:
    assert BENCHMARK.load(Settings(), 0).notes["units_without_prompts"] == []


def test_units_are_the_stimulis_toxigen_names() -> None:
    lines = [line.split("\t") for line in data_path("stimuli", "groups.tsv").read_text(encoding="utf-8").splitlines()]
    column = lines[0].index("toxigen")
    assert sorted(line[column] for line in lines[1:] if line[column]) == sorted(UNITS)
