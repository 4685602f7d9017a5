"""The paper's configuration through the workflow: job counts without GPU, token or network; fetching by rule."""

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from refbias.config import root as settings
from refbias.config import slices
from tests.hub_server import COMMIT, HubServer
from tests.unit.test_prepare import ROWS, SCHEMA
from tests.workflow.conftest import Checkout, make_checkout

NO_NETWORK = {
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "CUDA_VISIBLE_DEVICES": "",
}
MODELS, REGIMES = ("llama", "mistral", "gemma"), ("full", "lora")
INNER = ("h010", "h030", "h050", "h070", "h090")
ALL = ("h000", *INNER, "h100")
SIDES = ("unharmful", "harmful")


def snakemake(checkout: Checkout, *arguments: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHONPATH"))}
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
    done = subprocess.run(
        command, cwd=checkout.path, env={**environment, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout + done.stderr


def job_counts(output: str) -> dict[str, int]:
    table = output.split("Job stats:", 1)[1].split("total", 1)[0]
    return {name: int(count) for name, count in re.findall(r"^(\w+)\s+(\d+)\s*$", table, re.MULTILINE)}


@pytest.fixture(scope="module")
def fresh(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return make_checkout(root, tmp_path_factory.mktemp("paper"))


def test_the_papers_run_is_planned_without_gpu_token_or_network(fresh: Checkout) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = snakemake(fresh, "--configfile", "config/paper.yaml", "--dry-run", **NO_NETWORK)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # processor time: the clock on the wall also counts what else the machine does
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10
    counts = job_counts(output)
    assert counts["finetune"] == 12
    assert counts["generate"] == 45
    assert (counts["merge_full"], counts["merge_lora"]) == (15, 3)
    assert (counts["represent"], counts["score"]) == (9, 9)
    assert (counts["preflight"], counts["prepare"], counts["fetch"]) == (1, 1, 5)


def test_every_checkpoint_is_made_represented_generated_from_and_scored(fresh: Checkout) -> None:
    summary = snakemake(fresh, "--configfile", "config/paper.yaml", "--summary", **NO_NETWORK)
    outputs = {line.partition("\t")[0] for line in summary.splitlines()}
    at = "results/paper"
    merges = {f"{at}/spectrum/{m}/{r}/{c}/manifest.json" for m in MODELS for r in REGIMES for c in INNER}
    trained = {f"{at}/training/{m}/{r}/{s}/manifest.json" for m in MODELS for r in REGIMES for s in SIDES}
    places = {(m, "reference", "reference") for m in MODELS} | {(m, r, c) for m in MODELS for r in REGIMES for c in ALL}
    assert (len(merges), len(trained), len(places)) == (30, 12, 45)
    assert merges | trained <= outputs
    benchmarks = ("wildguardmix", "decodingtrust", "toxigen")
    generated = {f"{at}/generations/{'/'.join(place)}/{b}.jsonl" for place in places for b in benchmarks}
    found = {name for name in outputs if re.fullmatch(rf"{at}/generations/.*/({'|'.join(benchmarks)})\.jsonl", name)}
    assert found == generated
    # one job embeds, and one scores, all checkpoints of a source
    sources = {f"{model}/{source}" for model, source, _ in places}
    assert {f"{at}/embeddings/{source}/manifest.json" for source in sources} <= outputs
    assert {f"{at}/scores/{source}/outputs.csv" for source in sources} <= outputs
    config = settings.from_yaml(fresh.path / "config" / "paper.yaml")
    embedded = 0
    for model in MODELS:
        for source in ("reference", *REGIMES):
            weights = json.loads(slices.represent_slice(config, model, source))["weights"]
            embedded += 1 if source == "reference" else len(weights)
    assert embedded == 45


def test_data_are_fetched_checked_and_split_by_rule(root: Path, tmp_path: Path) -> None:
    checkout = make_checkout(root, tmp_path / "run")
    train = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS, schema=SCHEMA), train)
    config = yaml.safe_load((checkout.path / "config" / "tiny.yaml").read_text(encoding="utf-8"))
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({**ROWS[3], "response": "Own text."}) + "\n", encoding="utf-8")
    name = "train/wildguard_train.parquet"
    source = {"kind": "hub", "id": "allenai/wildguardmix", "revision": COMMIT, "files": [name]}
    config["data"] = {"wildguardmix": {"source": source}}
    config["splits"] = {"examples": 4, "harmful": {"synthetic": {"kind": "file", "path": str(own)}}}
    # the run's model is of no use here, and its folder is not there; full fine-tuning asks for some disk
    config["models"] = {"m": {"source": {"kind": "packaged_gguf"}}}
    config["regimes"]["full"] = None
    (checkout.path / "config" / "data.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with HubServer() as server:
        server.repos["allenai/wildguardmix"] = {name: train.read_bytes()}
        server.gated["allenai/wildguardmix"] = "token"
        variables = {
            "HF_ENDPOINT": server.address,
            "HF_TOKEN": "token",
            "REFBIAS_CACHE": str(tmp_path / "cache"),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        splits = "results/tiny/splits/manifest.json"
        configured = ("--configfile", "config/data.yaml")
        snakemake(checkout, splits, *configured, **variables)
        results = checkout.path / "results" / "tiny"
        lines = (results / "splits" / "wildguard_harmful.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["response"] for line in lines] == ["Answer 4.", "Answer 12.", "Own text."]
        assert json.loads((results / "preflight.json").read_text(encoding="utf-8"))["ok"] is True
        assert "Nothing to be done" in snakemake(checkout, splits, "--dry-run", *configured, **variables)
        # a newer preflight does not fetch again
        checkout.edit("workflow/refbias/preflight/machine.py", "GIGA = 1e9", "GIGA = 1e9\nADDED = 1")
        targets = (splits, "results/tiny/preflight.json")
        again = snakemake(checkout, *targets, "--dry-run", *configured, **variables)
        assert job_counts(again) == {"preflight": 1}
        server.requests.clear()
        for folder in ("data", "splits"):
            for path in sorted((results / folder).rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
        snakemake(checkout, splits, *configured, **variables, HF_HUB_OFFLINE="1")
        assert server.requests == [], "a full cache works offline"
