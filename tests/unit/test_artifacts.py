"""Atomic writes, hashes and manifests."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from refbias import artifacts
from refbias.errors import UserError


def test_a_failing_block_leaves_the_old_file_and_no_leftovers(tmp_path: Path) -> None:
    target = tmp_path / "table.csv"
    artifacts.write_text(target, "old\n")

    def fail_halfway() -> None:
        with artifacts.atomic_path(target) as part:
            part.write_text("half")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail_halfway()
    assert target.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_a_directory_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "weights"
    for content in ("first", "second"):
        with artifacts.atomic_path(target) as part:
            part.mkdir()
            (part / content).write_text(content)
    assert os.listdir(target) == ["second"]


def test_sigkill_in_the_middle_of_a_write_leaves_no_half_file(tmp_path: Path) -> None:
    target = tmp_path / "rows.jsonl"
    code = (
        "import sys, time\nfrom refbias import artifacts\n"
        "with artifacts.atomic_path(sys.argv[1]) as part:\n"
        "    with part.open('w') as handle:\n"
        "        handle.write('half'); handle.flush(); print('writing', flush=True); time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(artifacts.__file__).parent.parent)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
    assert not target.exists()
    # what the dead process left does not stand in the next one's way
    artifacts.write_jsonl(target, [{"a": 1}])
    assert artifacts.read_jsonl(target) == [{"a": 1}]


def test_csv_is_written_with_lf_and_ten_digits(tmp_path: Path) -> None:
    artifacts.write_csv(tmp_path / "t.csv", pd.DataFrame({"x": [1 / 3, None], "y": ["a", "b"]}))
    assert (tmp_path / "t.csv").read_bytes() == b"x,y\n0.3333333333,a\n,b\n"


def test_nan_is_refused_in_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        artifacts.write_json(tmp_path / "x.json", {"r": float("nan")})
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": \n', ":2: not JSON"),
        (b"[1]\n", ":1: a line must hold a JSON object"),
        (b"\xff\xfe\n", "not UTF-8"),
    ],
)
def test_a_broken_jsonl_line_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        artifacts.read_jsonl(path)


def test_jsonl_survives_line_separators_inside_strings(tmp_path: Path) -> None:
    rows = [{"text": "a\u2028b\x85c\nd"}]
    artifacts.write_jsonl(tmp_path / "r.jsonl", rows)
    assert artifacts.read_jsonl(tmp_path / "r.jsonl") == rows


def test_tree_hash_sees_names_and_contents_but_not_times(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    first = artifacts.sha256_tree(tmp_path)
    os.utime(tmp_path / "a", (0, 0))
    assert artifacts.sha256_tree(tmp_path) == first
    (tmp_path / "a").rename(tmp_path / "c")
    assert artifacts.sha256_tree(tmp_path) != first


def test_stage_writes_its_manifest_last_and_only_on_success(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("x")
    out = tmp_path / "out"
    with artifacts.Stage("shift", {"seed": 1}, out, {"in": source}) as stage:
        stage.record(n_rows=3)
        assert not (out / "manifest.json").exists()
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["inputs"]["in"]["sha256"] == artifacts.sha256_file(source)
    assert (manifest["n_rows"], manifest["settings"]) == (3, {"seed": 1})
    assert manifest["seconds"] >= 0
    with pytest.raises(RuntimeError), artifacts.Stage("shift", {}, out):
        raise RuntimeError("failed")
    assert not (out / "manifest.json").exists(), "a failed rerun must not leave the old manifest"


def test_a_second_process_waits_for_the_first(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom refbias.artifacts import Stage\n"
        "with Stage('x', {}, sys.argv[1]):\n    print('in', flush=True); time.sleep(1.0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(artifacts.__file__).parent.parent)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "o")], stdout=subprocess.PIPE, env=environment
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"in\n"
        start = time.monotonic()
        with artifacts.Stage("x", {}, tmp_path / "o"):
            assert time.monotonic() - start > 0.3
    assert (tmp_path / "o" / "manifest.json").exists()
