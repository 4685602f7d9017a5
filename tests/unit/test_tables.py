import json
import math
import os
from pathlib import Path

import pandas as pd
import pytest

from refbias.errors import UserError
from refbias.resources import data_path
from refbias.tables import (
    TABLE1_COLUMNS,
    TextTable,
    group_names,
    latex,
    latex_escape,
    markdown,
    read_csv,
    table1_latex,
    table1_markdown,
)
from refbias.tables import table1 as cells_of
from refbias.tables.formats import (
    correlation,
    count,
    duration,
    interval,
    memory,
    number,
    p_statement,
    p_value,
    percent,
    score,
    shift,
    stars,
    threshold,
)
from refbias.tables.labels import is_stand_in, ordered, plain_name, scorer_label
from tests.unit import picture_data

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.125, 2, "0.12"),
        (-0.678, 2, "−0.68"),
        (-0.001, 2, "0.00"),
        (0.0, 2, "0.00"),
        (1.0, 2, "1.00"),
        (168.0, 0, "168"),
        (NAN, 2, "–"),
        (None, 2, "–"),
        (math.inf, 2, "–"),
    ],
)
def test_number(value: float | None, digits: int, text: str) -> None:
    assert number(value, digits) == text


def test_each_kind_of_number_has_its_decimals() -> None:
    assert (correlation(-0.8444), score(0.12345), shift(-0.051234), count(63)) == ("−0.84", "0.123", "−0.0512", "63")
    assert (threshold(0.03), threshold(1e-5), percent(0.254), memory(8123.4)) == (
        "0.03",
        "1e−05",
        "25\u00a0%",
        "8,123 MB",
    )
    assert [threshold(NAN), percent(NAN), memory(None), duration(None)] == ["–"] * 4


@pytest.mark.parametrize(
    ("p", "mark", "text"),
    [
        (0.0009, "***", "< 0.001"),
        (0.001, "**", "0.001"),
        (0.0099, "**", "0.010"),
        (0.01, "*", "0.010"),
        (0.049, "*", "0.049"),
        (0.05, "", "0.050"),
        (0.14, "", "0.140"),
        (NAN, "", "–"),
    ],
)
def test_p_and_stars(p: float, mark: str, text: str) -> None:
    assert (stars(p), p_value(p)) == (mark, text)


def test_p_statement() -> None:
    assert (p_statement(0.0001), p_statement(0.25)) == ("p < 0.001", "p = 0.250")


def test_interval_needs_both_sides() -> None:
    assert interval(-0.6, 0.154, 2) == "[−0.60, 0.15]"
    assert interval(NAN, 0.1, 2) == interval(0.1, None, 2) == "–"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (245, "4 min 05 s"), (7380, "2 h 03 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_table1_cells_hold_every_number() -> None:
    frame = picture_data.table1(picture_data.observations(picture_data.delta_b()))
    table = cells_of(frame)
    assert len(table.rows) == len(frame) == 12
    first, cells = frame.iloc[0], dict(zip(table.columns, table.rows[0], strict=True))
    assert cells["Benchmark"] == "WildGuardMix"
    assert cells["Scorer"] == "standin_valence (stand-in)"
    assert cells["n"] == "63"
    assert cells["Pearson r"] == correlation(first["pearson_r"]) + stars(first["pearson_p"])
    assert cells["95 % CI of r"] == interval(first["pearson_ci_low"], first["pearson_ci_high"], 2)
    assert cells["MAE out-of-bag"] == "0.136"
    assert cells["At floor"] == "25\u00a0%"


def test_missing_values_are_dashes_and_the_note_says_why() -> None:
    frame = picture_data.table1(picture_data.observations(picture_data.delta_b()))
    table = cells_of(frame)
    cells = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    gone = [row for row in cells if row["Benchmark"] == "ToxiGen" and row["Regime"] == "LoRA"]
    assert len(gone) == 2
    for row in gone:
        assert row["ROC AUC"] == row["95 % CI of AUC"] == row["Pearson r"] == "–"
        assert "one class only" in row["Note"]
    assert "| – |" in table1_markdown(frame)


def test_share_columns_may_be_left_out() -> None:
    frame = picture_data.table1(picture_data.observations(picture_data.delta_b()))[TABLE1_COLUMNS]
    assert all(row[-3:-1] == ("–", "–") for row in cells_of(frame).rows)


def test_markdown_escapes_pipes_and_keeps_the_width() -> None:
    text = markdown(TextTable(("a|b", "n"), (False, True), (("x|y\nz", "1"), ("*bold* <b>", "2"))))
    lines = text.splitlines()
    assert lines[1] == "| --- | ---: |"
    assert lines[2] == r"| x\|y z | 1 |"
    assert lines[3] == r"| \*bold\* \<b> | 2 |"


def test_latex_escapes() -> None:
    assert latex_escape("50 % & a_b #1 $x$ {y} ~ ^ \\") == (
        r"50 \% \& a\_b \#1 \$x\$ \{y\} \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
    assert latex_escape("−0.5 – < 0.001") == r"$-$0.5 -- \textless{} 0.001"
    text = latex(TextTable(("a_b", "n"), (False, True), (("x & y", "−1"),)), "50 %", "tab:x")
    assert r"a\_b & n \\" in text
    assert r"x \& y & $-$1 \\" in text
    assert r"\caption{50 \%}" in text
    assert r"\begin{tabular}{lr}" in text


def test_table1_names_the_stand_in() -> None:
    frame = picture_data.table1(picture_data.observations(picture_data.delta_b()))
    assert "stand-in" in table1_markdown(frame)
    tex = table1_latex(frame)
    assert r"standin\_valence (stand-in)" in tex
    assert tex.count(r"\\") == len(frame) + 1
    honest = frame[frame["scorer"] == "agreement_rule"]
    assert "stand-in" not in table1_markdown(honest) + table1_latex(honest)


def test_labels() -> None:
    assert (plain_name("physical_disability"), plain_name("lgbtq")) == ("Physical disability", "LGBTQ")
    assert is_stand_in("standin_valence")
    assert scorer_label("agreement_rule") == "agreement_rule"
    assert ordered(["seat", "new", "rr", "rr", "a"], ["rr", "seat"]) == ["rr", "seat", "a", "new"]


def test_group_names(tmp_path: Path) -> None:
    shipped = group_names()
    assert len(shipped) == 24
    assert shipped["able_bodied_people"].name == "Able-bodied people"
    assert shipped["jews"].topic == "Religion"
    own = tmp_path / "groups.tsv"
    own.write_text("id\tname\nx\tX people\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"groups\.tsv:1: column 'topic' is missing"):
        group_names(own)
    with pytest.raises(UserError, match="no such file"):
        group_names(tmp_path / "none.tsv")


def test_read_csv_keeps_names_as_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("model,unit,note,delta_b\n1e5,NA,,\n007,null,why,0.5\n", encoding="utf-8")
    frame = read_csv(path, ["model", "delta_b"])
    assert frame["model"].tolist() == ["1e5", "007"]
    assert frame["unit"].tolist() == ["NA", "null"]
    assert frame["note"].tolist() == ["", "why"]
    assert pd.isna(frame["delta_b"].iloc[0])
    with pytest.raises(UserError, match=r"t\.csv:1: column 'r' is missing"):
        read_csv(path, ["r"])
    with pytest.raises(UserError, match="no such file"):
        read_csv(tmp_path / "none.csv", [])
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UserError, match="not a CSV table"):
        read_csv(tmp_path / "empty.csv", [])


def test_paper_values_are_those_printed() -> None:
    root = os.environ.get("REFBIAS_TESTDATA")
    if not root:
        pytest.skip("REFBIAS_TESTDATA is not set")
    printed = Path(root).parent / "paper_tables.json"
    if not printed.is_file():
        pytest.skip(f"no paper_tables.json beside {root}")
    shipped = json.loads(data_path("paper", "tables.json").read_text(encoding="utf-8"))
    assert shipped == json.loads(printed.read_text(encoding="utf-8"))


def test_paper_values_ship_whole() -> None:
    shipped = json.loads(data_path("paper", "tables.json").read_text(encoding="utf-8"))
    assert len(shipped["table1"]) == 18
    assert shipped["thresholds"] == picture_data.THRESHOLDS
