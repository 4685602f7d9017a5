"""Any table of observations and any manifest is used, or told in one line what to mend."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refbias.analysis import observations, unit_groups, unit_scores
from refbias.analysis.controls import Selection, with_control
from refbias.cli.analyse import read_table
from refbias.cli.study import read_manifests, read_observations, read_shift
from tests.fuzzing import MANY, edited, edits, result_or_line, trees

CELLS = ["", "x", "NaN", "inf", "-1e999", "1", "0.5", "h010", "h999", "reference", "control", "é", '"', "a,b", "9" * 40]
Table = list[dict[str, str]]


def _csv(rows: Table) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn, rows: Table) -> bytes:
    """A good table with cells replaced, columns renamed, rows repeated or lost, or bytes written over."""
    rows = [dict(row) for row in rows]
    for _ in range(draw(st.integers(0, 3))):
        at, column = draw(st.integers(0, len(rows) - 1)), draw(st.sampled_from(list(rows[0])))
        rows[at][column] = draw(st.one_of(st.sampled_from(CELLS), st.text(max_size=5)))
    kind = draw(st.sampled_from(["cells", "repeat", "lose", "column", "bytes", "noise"]))
    if kind == "repeat":
        rows.append(rows[draw(st.integers(0, len(rows) - 1))])
    elif kind == "lose":
        del rows[draw(st.integers(0, len(rows) - 2))]
    elif kind == "column":
        column, name = draw(st.sampled_from(list(rows[0]))), draw(st.sampled_from(["x", "unit", "model"]))
        rows = [{name if key == column else key: value for key, value in row.items()} for row in rows]
    elif kind == "noise":
        return draw(st.binary(max_size=80))
    content = _csv(rows)
    return edited(content, draw(edits)) if kind == "bytes" else content


GROUPS: Table = [
    {"id": name, "topic": topic, "toxigen": toxigen}
    for name, topic, toxigen in (("a", "t1", "x"), ("b", "t1", ""), ("c", "t2", "y"))
]
SUBJECTS = [("reference", "reference"), ("full", "h000"), ("full", "h100")]
OUTPUTS: Table = [
    {
        **{"benchmark": "decodingtrust", "model": "m", "regime": regime, "checkpoint": checkpoint, "unit": unit},
        **{"prompt_id": str(prompt), "sample": "0", "scorer": "s", "score": str((prompt + number) % 2)},
    }
    for number, (regime, checkpoint) in enumerate(SUBJECTS)
    for unit in ("a", "b")
    for prompt in range(2)
]
SHIFTS: Table = [
    {
        **{"model": "m", "regime": "full", "checkpoint": checkpoint, "group": group, "method": "rr"},
        **{"n_anchors": "250", "delta_b": f"{-0.01 * number}"},
    }
    for number, (checkpoint, group) in enumerate(
        (checkpoint, group) for checkpoint in ("h000", "h100") for group in ("a", "b", "c", "control")
    )
]
PAIRS: Table = [
    {
        **{"benchmark": "decodingtrust", "model": "m", "regime": "full", "checkpoint": checkpoint, "unit": unit},
        **{"method": "rr", "n_outputs": "2", "scorer": "s", "delta_score": "0.5", "delta_b": "-0.1"},
    }
    for checkpoint in ("h000", "h100")
    for unit in ("a", "b")
]


def _written(factory: pytest.TempPathFactory, name: str, content: bytes) -> Path:
    path = factory.getbasetemp() / name
    path.write_bytes(content)
    return path


def _analyse(groups: Path, outputs: Path, shifts: Path) -> int:
    pairing = unit_groups(read_table(groups))
    units = unit_scores(read_table(outputs), 10, 1)
    return len(observations(units, read_table(shifts), pairing))


def test_the_good_tables_are_analysed(tmp_path_factory: pytest.TempPathFactory) -> None:
    files = [
        _written(tmp_path_factory, name, _csv(rows))
        for name, rows in (("g.csv", GROUPS), ("o.csv", OUTPUTS), ("s.csv", SHIFTS))
    ]
    assert _analyse(*files) == 4
    pairs = _written(tmp_path_factory, "p.csv", _csv(PAIRS))
    assert with_control(read_observations(pairs), Selection(), read_shift(files[2])).data.delta_b.size == 4


@pytest.mark.parametrize("which", ["groups", "outputs", "shifts"])
@MANY
@given(data=st.data())
def test_damaged_tables_are_analysed_or_a_line(
    tmp_path_factory: pytest.TempPathFactory, which: str, data: st.DataObject
) -> None:
    tables = {"groups": GROUPS, "outputs": OUTPUTS, "shifts": SHIFTS}
    contents = {name: data.draw(damaged(rows)) if name == which else _csv(rows) for name, rows in tables.items()}
    files = [_written(tmp_path_factory, f"{name}.csv", content) for name, content in contents.items()]
    result_or_line(lambda: _analyse(*files))


@pytest.mark.parametrize("which", ["pairs", "shifts"])
@MANY
@given(data=st.data())
def test_damaged_observations_are_used_or_a_line(
    tmp_path_factory: pytest.TempPathFactory, which: str, data: st.DataObject
) -> None:
    contents = {
        name: data.draw(damaged(rows)) if name == which else _csv(rows)
        for name, rows in (("pairs", PAIRS), ("shifts", SHIFTS))
    }
    pairs, shifts = (_written(tmp_path_factory, f"{name}.csv", content) for name, content in contents.items())

    def load() -> None:
        found = with_control(read_observations(pairs), Selection(), read_shift(shifts)).data
        assert np.isfinite(found.delta_b).all()
        assert np.isfinite(found.control).all()

    result_or_line(load)


@MANY
@given(content=st.one_of(st.binary(max_size=40), trees(st.just("represent/m/full")).map(repr).map(str.encode)))
def test_any_manifests_are_read_or_a_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = _written(tmp_path_factory, "manifests.json", content)
    found = result_or_line(lambda: read_manifests(path))
    assert found is None or json.dumps(found)
