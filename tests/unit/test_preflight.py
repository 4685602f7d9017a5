"""The preflight's table: what is open, shut, missing, too small; and that it ends in exit 2 within seconds."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from refbias.acquisition.fetch import fetch
from refbias.artifacts import read_json
from refbias.cli import preflight as stage
from refbias.config.data import HubFiles
from refbias.config.root import Config, from_mapping, from_yaml
from refbias.errors import UserError
from refbias.preflight import check, machine
from refbias.preflight.local import local_rows
from refbias.preflight.rows import MISSING, NOTE, OK, Row
from tests.hub_server import COMMIT, HubServer, ask_only, sha256

GATED = ("meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mistral-7B-Instruct-v0.3", "google/gemma-3-4b-it")
DATA = "owner/data"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    import huggingface_hub

    with HubServer() as running:
        ask_only(running, tmp_path, monkeypatch)
        monkeypatch.chdir(tmp_path)
        yield running
        huggingface_hub.close_session()


def config(**sections: Any) -> Config:
    base: dict[str, Any] = {
        "run": "r",
        "models": {"m": {"source": {"kind": "packaged_gguf"}}},
        "compute": {"device": "cpu", "dtype": "float32"},
        "regimes": {"full": {"device": "cpu"}, "lora": {"device": "cpu"}},
    }
    return from_mapping(base | sections)


def hub_data(revision: str = COMMIT) -> dict[str, Any]:
    return {"kind": "hub", "id": DATA, "revision": revision, "files": ["a.csv"]}


def with_data(source: dict[str, Any]) -> Config:
    return config(data={"alpaca": {"source": source}})


def row(rows: list[Row], name: str) -> Row:
    (found,) = [one for one in rows if one.name == name]
    return found


def test_a_gated_repository_is_opened_by_the_right_token_alone(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repos[DATA] = {"a.csv": b"x"}
    server.gated[DATA] = "right"
    shut = check(with_data(hub_data()))
    assert (row(shut, DATA).status, row(shut, DATA).found) == (MISSING, "gated, no token is set")
    assert f"accept the licence at https://huggingface.co/datasets/{DATA} and set HF_TOKEN" in row(shut, DATA).mend
    assert "`data.alpaca.source: {kind: local, path: ...}`" in row(shut, DATA).mend
    assert row(shut, "HF_TOKEN").status == MISSING
    monkeypatch.setenv("HF_TOKEN", "wrong")
    assert row(check(with_data(hub_data())), DATA).found == "gated, the token in HF_TOKEN does not open it"
    monkeypatch.setenv("HF_TOKEN", "right")
    opened = check(with_data(hub_data()))
    assert (row(opened, DATA).status, row(opened, "HF_TOKEN").found) == (OK, "set")
    assert row(opened, DATA).facts["commit"] == COMMIT
    assert "right" not in json.dumps([one.as_json() for one in opened if one.kind == "token"])
    # asked for, never fetched
    assert not [path for method, path in server.requests if method == "GET" and "/resolve/" in path]


def test_a_branch_is_noted_with_its_commit_and_an_absent_revision_is_missing(server: HubServer) -> None:
    server.repos[DATA] = {"a.csv": b"x"}
    branch = row(check(with_data(hub_data("main"))), DATA)
    assert branch.status == NOTE
    assert COMMIT in branch.found
    assert f"data.alpaca.source.revision: {COMMIT}" in branch.mend
    absent = row(check(with_data(hub_data("f" * 40))), DATA)
    assert (absent.status, absent.found) == (MISSING, f"has no revision {'f' * 40}")
    server.repos.clear()
    assert row(check(with_data(hub_data())), DATA).found == "not found, or private"


def test_what_is_in_the_cache_needs_no_network(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repos[DATA] = {"a.csv": b"x"}
    fetch(HubFiles.model_validate(hub_data()), tmp_path / "out")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    server.requests.clear()
    rows = check(with_data(hub_data()))
    assert (row(rows, DATA).status, row(rows, DATA).found) == (OK, "in the cache")
    assert server.requests == []
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path / "empty"))
    offline = row(check(with_data(hub_data())), DATA)
    assert offline.status == MISSING
    assert "offline, not asked" in offline.found


def test_addresses_are_asked_by_their_head(server: HubServer) -> None:
    server.plain["/d/a.csv"] = b"x"
    files = {"a.csv": sha256(b"x"), "b.csv": sha256(b"y")}
    rows = check(with_data({"kind": "url", "url": f"{server.address}/d", "files": files}))
    assert row(rows, "a.csv").status == OK
    assert (row(rows, "b.csv").status, row(rows, "b.csv").found) == (MISSING, "the server answers 404 (Not Found)")
    assert server.bodies() == 0


def test_the_papers_run_without_network_names_all_that_is_gated(root: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {
        "PYTHONPATH": str(root / "workflow"),
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path / "hf"),
        "REFBIAS_CACHE": str(tmp_path / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-m", "refbias", "preflight", "--config", str(root / "config" / "paper.yaml")]
    command += ["--output", str(tmp_path / "preflight.json")]
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
    seconds = time.perf_counter() - start
    assert done.returncode == 2, done.stderr
    for name in (*GATED, "allenai/wildguardmix"):
        assert name in done.stdout
        assert f"huggingface.co/{'datasets/' if name.endswith('mix') else ''}{name}" in done.stdout
        assert name in done.stderr
    for text in ("HF_TOKEN", "kind: local", "cannot be checked: no network", "no CUDA device", "user_prompts.csv"):
        assert text in done.stdout, text
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("refbias: error: preflight: ")
    assert seconds < 60, "a busy machine; alone it takes a few seconds"
    table = read_json(tmp_path / "preflight.json")
    assert table["ok"] is False
    assert {entry["name"] for entry in table["rows"] if entry["kind"] == "hub"} >= {*GATED, "allenai/wildguardmix"}


def test_a_run_of_shipped_parts_passes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stage.main(["--config", str(root / "config" / "quickstart.yaml"), "--output", "table.json"])
    assert "checks passed" in capsys.readouterr().out
    table = read_json("table.json")
    assert table["ok"] is True
    assert {entry["kind"] for entry in table["rows"]} == {"path", "disk"}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"models": {"m": {"source": {"kind": "local", "path": "gone"}}}}, "gone: no such directory"),
        ({"splits": {"unharmful": {"file": "bad.jsonl"}}}, r"bad.jsonl:1: no column 'prompt'"),
        ({"stimuli": {"anchors_file": "none.tsv"}}, "none.tsv"),
        ({"benchmarks": {"toxigen": {"prompts": "nowhere"}}}, "nowhere"),
        ({"benchmarks": {"wildguardmix": {"prompts": "bad.jsonl"}}}, "bad.jsonl:1: no column"),
        ({"data": {"wildguardmix": {"source": {"kind": "local", "path": "t.parquet"}}}}, "no column adversarial"),
        ({"data": {"tulu": {"source": {"kind": "local", "path": "t.parquet"}}}}, "no column messages"),
        ({"data": {"decodingtrust": {"source": {"kind": "local", "path": "here"}}}}, "user_prompts.csv: no such file"),
    ],
)
def test_local_paths_and_their_schemas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], message: str
) -> None:
    import pyarrow
    import pyarrow.parquet

    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text('{"text": "x"}\n')
    Path("here").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["x"]}), "t.parquet")
    missing = [one for one in check(config(**sections)) if one.status == MISSING and one.kind == "path"]
    assert any(message in one.found for one in missing), [one.found for one in missing]
    assert all(one.mend for one in missing)


def test_judges_and_what_a_key_hides_are_looked_at(tmp_path: Path) -> None:
    """Folders of judges are checkpoints, and the two paths whose keys do not end as others' do are there."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
        (folder / "config.json").write_text('{"architectures": ["Bert"]}')
        (folder / "tokenizer.json").write_text("{}")
    (whole / "model.safetensors").write_bytes(b"")

    def rows(folder: Path, questions: str) -> dict[str, Row]:
        source = {"kind": "local", "path": str(folder)}
        chosen = config(
            scorers={"toxigen_roberta": {"model": source}},
            topics={"mapper": "llm", "model": source},
            metamorphic={"judge": {"which": "unsure", "directory": str(folder)}},
            competence={"data": {"questions": questions}},
            audit={"reference": "a", "audited": ["b"], "calibration": str(folder / "config.json")},
        )
        return {found.key: found for found in local_rows(chosen)}

    keys = ("scorers.toxigen_roberta.model.path", "topics.model.path", "metamorphic.judge.directory")
    good, bad = rows(whole, str(whole)), rows(broken, str(tmp_path / "none.tsv"))
    for key in keys:
        assert (good[key].status, good[key].found) == (OK, "a checkpoint of Bert")
        assert bad[key].status == MISSING
        assert "no model.safetensors" in bad[key].found
    assert good["competence.data.questions"].status == good["audit.calibration"].status == OK
    assert bad["competence.data.questions"].status == MISSING


def test_local_data_in_the_right_schema_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    monkeypatch.chdir(tmp_path)
    pyarrow.parquet.write_table(pyarrow.table({"instruction": ["x"], "output": ["y"]}), "alpaca.parquet")
    toxigen = str(root / "data" / "quickstart" / "toxigen")
    data = {
        "alpaca": {"source": {"kind": "local", "path": "alpaca.parquet"}},
        "toxigen": {"source": {"kind": "local", "path": toxigen}},
    }
    rows = [one for one in check(config(data=data)) if one.kind == "path"]
    assert {one.status for one in rows} == {OK}
    assert row(rows, toxigen).found.endswith("prompts")


def test_free_disk_is_held_against_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "needed_gb", lambda _: (30.0, 12.0))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=41e9))
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path / "cache"))
    (short,) = machine.disk_rows(config())
    assert (short.status, short.found) == (MISSING, "41 GB free, about 42 GB needed")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=43e9))
    (enough,) = machine.disk_rows(config())
    assert enough.status == OK


def test_a_card_is_held_against_need(root: Path) -> None:
    paper = from_yaml(root / "config" / "paper.yaml")
    by_size = {size: {one.name: one.status for one in machine.memory_rows(paper, size)} for size in (10, 40, 1000)}
    assert set(by_size[10].values()) == {MISSING}
    assert by_size[40]["inference (bf16 weights)"] == OK
    assert set(by_size[1000].values()) == {OK}


def test_a_missing_gpu_stops_only_a_run_that_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [one.status for one in machine.gpu_rows(config(compute={"device": "cuda"}))] == [MISSING]
    assert [one.status for one in machine.gpu_rows(config(compute={"device": "auto"}))] == [NOTE]
    assert machine.gpu_rows(config()) == []


def test_a_card_without_bfloat16_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    card = SimpleNamespace(name="Old card", total_memory=80e9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    for works, status in ((True, OK), (False, MISSING)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, works=works: works)
        rows = machine.gpu_rows(config(compute={"device": "cuda", "dtype": "bfloat16"}))
        assert (row(rows, "bfloat16").status, row(rows, "CUDA").found) == (status, "Old card (80 GB)")


def test_the_workflows_settings_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from refbias.config.slices import preflight_slice

    monkeypatch.chdir(tmp_path)
    broken = config(models={"m": {"source": {"kind": "local", "path": "gone"}}})
    with pytest.raises(UserError, match=r"preflight: 1 of \d+ checks fail \(gone\)"):
        stage.main(["--settings", preflight_slice(broken), "--without-gpu", "--output", str(tmp_path / "p.json")])
    assert read_json(tmp_path / "p.json")["ok"] is False


def test_software_beside_the_environment(tmp_path: Path) -> None:
    text = tmp_path / "format.txt"
    text.write_text("<|user|> {prompt} {response} <|assistant|>")
    guard = {"wildguard": {"prompt_file": str(text)}}
    benchmarks = {"wildguardmix": {"scorer": "wildguard"}}
    generation = {"backend": "vllm", "interpreter": str(tmp_path / "python")}
    chosen = config(scorers=guard, benchmarks=benchmarks, generation=generation)
    rows = {one.name: one for one in check(chosen) if one.kind == "software"}
    assert rows["vLLM"].status == MISSING
    assert "make env-vllm" in rows["vLLM"].found
    assert rows[str(text)].status == OK
    # a guard alone asks for the interpreter too
    for backend, found in (("hf", set()), ("vllm", {"vLLM"})):
        judged = config(scorers={"wildguard": {**guard["wildguard"], "backend": backend}}, benchmarks=benchmarks)
        assert {one.name for one in check(judged) if one.kind == "software"} == {str(text), *found}
    # the node that fetches does not generate
    assert "vLLM" not in {one.name for one in check(chosen, gpu=False)}
    (tmp_path / "python").symlink_to(sys.executable)
    text.unlink()
    rows = {one.name: one for one in check(chosen) if one.kind == "software"}
    assert (rows["vLLM"].status, rows[str(text)].status) == (OK, MISSING)
