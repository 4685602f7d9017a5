"""The cluster profiles: what is asked of Slurm, retries, groups; the rest as far as no cluster is needed."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from envs import sync

from tests.workflow.conftest import Checkout, make_checkout

COMMANDS = ("sbatch", "srun", "sacct", "sacctmgr", "squeue", "scancel", "sinfo")
GPU_RULES = {"finetune", "finetune_seed", "represent", "represent_seed", "represent_ablations", "generate"}
GROUP = {"shift", "analyse", "records", "tables", "figures", "provenance", "report"}
TOY = """
import os

rule all:
    default_target: True
    input: "out/cpu.txt", "out/gpu.txt"

rule cpu:
    output: "out/cpu.txt"
    resources: mem_mb=100, runtime=5
    shell: "echo $TMPDIR > {output}"

rule represent:
    output: "out/gpu.txt"
    threads: 64
    resources: gpu=1, mem_mb=100, runtime=5
    shell: "echo {resources.gpu} {resources.mem_mb} > {output}"
"""


def needs(*modules: str) -> pytest.MarkDecorator:
    absent = [name.replace("_", "-") for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(absent), reason=f"{', '.join(absent)} not installed: pip install 'refbias[cluster]'")


needs_slurm = needs("snakemake_executor_plugin_slurm")
needs_kubernetes = needs("snakemake_executor_plugin_kubernetes", "snakemake_storage_plugin_fs")


@dataclass(frozen=True)
class Cluster:
    """A checkout beside the stand-ins of Slurm's commands."""

    checkout: Path
    home: Path
    commands: Path

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "FAKE_SLURM": str(self.home), "HF_HUB_OFFLINE": "1"}
        environment["PATH"] = os.pathsep.join([str(self.commands), environment["PATH"]])
        for name in [name for name in environment if name.startswith("SLURM_") or name == "PYTHONPATH"]:
            del environment[name]
        command = [sys.executable, "-m", "snakemake", "--profile", "workflow/profiles/slurm"]
        command += ["--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "5", *arguments]
        return subprocess.run(
            command, cwd=self.checkout, env=environment, capture_output=True, text=True, check=False, timeout=240
        )

    def calls(self, command: str) -> list[dict[str, Any]]:
        path = self.home / "calls.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if call["command"] == command]

    def stand_in(self) -> dict[str, list[str]]:
        """Let submitted jobs leave their files at once, and take those of local rules for done; rule -> files."""
        outputs = outputs_by_rule(Checkout(self.checkout))
        submitted = rules_of(self.checkout)
        for name in [name for rule, names in outputs.items() if rule not in submitted for name in names]:
            path = self.checkout / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("made by a stand-in\n", encoding="utf-8")
        chosen = {rule: names for rule, names in outputs.items() if rule in submitted}
        self.put("outputs.json", chosen)
        return chosen

    def put(self, name: str, content: object) -> None:
        (self.home / name).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def cluster(root: Path, tmp_path: Path) -> Cluster:
    commands, home = tmp_path / "bin", tmp_path / "slurm"
    commands.mkdir()
    home.mkdir()
    text = (root / "tests" / "workflow" / "fake_slurm.py").read_text(encoding="utf-8")
    for name in COMMANDS:
        (commands / name).write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
        (commands / name).chmod(0o755)
    checkout = make_checkout(root, tmp_path / "checkout")
    checkout.edit("workflow/profiles/slurm/profile.v9+.yaml", "# slurm_account: my_account", "slurm_account: lab")
    return Cluster(checkout.path, home, commands)


def value(arguments: list[str], flag: str) -> str:
    """Value of an option in a command line of sbatch, as ``-p gpu`` or ``--gpus=1``; empty where it is absent."""
    for at, part in enumerate(arguments):
        if part == flag:
            return arguments[at + 1]
        if part.startswith(f"{flag}="):
            return part.split("=", 1)[1]
    return ""


def rules_of(checkout: Path) -> set[str]:
    """Rules that the run submits: all of the rule files but the local ones."""
    found: set[str] = set()
    local: set[str] = set()
    for path in sorted((checkout / "workflow" / "rules").glob("*.smk")):
        text = path.read_text(encoding="utf-8")
        # a rule that is named by an expression ends the one before it, too
        for block in re.split(r"^\s*rule\b", text, flags=re.MULTILINE)[1:]:
            name = re.match(r" (\w+):", block)
            if name and "localrule: True" not in block:
                found.add(name[1])
        for block in re.findall(r"^localrules:\n((?:\s+\w+,?\n)+)", text, re.MULTILINE):
            local |= set(re.findall(r"\w+", block))
    return found - local


def outputs_by_rule(checkout: Checkout) -> dict[str, list[str]]:
    """Files that Snakemake waits for after each rule's jobs, its benchmarks among them, from a dry run."""
    done = checkout.snakemake("--dry-run")
    found: dict[str, list[str]] = {}
    for rule, block in re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)+)", done.stdout + done.stderr, re.MULTILINE):
        for line in re.findall(r"^    (?:output|benchmark): (.+)$", block, re.MULTILINE):
            found.setdefault(rule, []).extend(line.split(", "))
    assert "report" in found, "the dry run reads otherwise than it did"
    return found


@needs_slurm
def test_a_whole_run_asks_slurm_for_what_each_rule_needs_and_a_third_try_succeeds(cluster: Cluster) -> None:
    tiny = cluster.checkout / "config" / "tiny.yaml"
    # jobs on a CPU ask for no GPU
    tiny.write_text(tiny.read_text(encoding="utf-8").replace("device: cpu", "device: cuda"), encoding="utf-8")
    outputs = cluster.stand_in()
    cluster.put("failing.json", {"represent": 2})
    done = cluster.snakemake("--configfile", "config/tiny.yaml")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    for name in [name for names in outputs.values() for name in names if not name.endswith("model.safetensors")]:
        assert (cluster.checkout / name).exists(), name
    calls = cluster.calls("sbatch")
    assert set().union(*(call["rules"] for call in calls)) == set(outputs)
    for call in calls:
        arguments, rules = call["arguments"], set(call["rules"])
        assert value(arguments, "-A") == "lab"
        assert int(value(arguments, "--mem")) >= 1000, rules
        assert int(value(arguments, "-t")) >= 5, rules
        assert 1 <= int(value(arguments, "--cpus-per-task")) <= 16, rules
        assert "--requeue" in arguments
        if rules <= GPU_RULES:
            assert value(arguments, "--gpus") == "1", rules
            assert value(arguments, "-p") == "gpu", rules
        else:
            assert not rules & GPU_RULES
            assert not [part for part in arguments if part.startswith(("--gpus", "--gres"))], rules
            assert value(arguments, "-p") == "cpu", rules
    tries = [call for call in calls if call["rules"] == ["represent"]]
    by_job: dict[str, list[int]] = {}
    for call in tries:
        by_job.setdefault(value(call["arguments"], "--comment"), []).append(call["attempt"])
    assert set(map(tuple, by_job.values())) == {(1, 2, 3)}
    for flag in ("--mem", "-t"):
        asked = {call["attempt"]: int(value(call["arguments"], flag)) for call in tries}
        assert asked[2] == 2 * asked[1], flag
        assert asked[3] == 3 * asked[1], flag
    # short jobs that follow each other, one submission
    (together,) = (set(call["rules"]) for call in calls if set(call["rules"]) & GROUP)
    assert together >= GROUP
    again = cluster.snakemake("--configfile", "config/tiny.yaml", "--dry-run")
    assert "Nothing to be done" in again.stdout + again.stderr


@needs_slurm
def test_a_job_that_fails_too_often_stops_the_run(cluster: Cluster) -> None:
    cluster.stand_in()
    cluster.put("failing.json", {"represent": 9})
    done = cluster.snakemake("--configfile", "config/tiny.yaml", "--retries", "1")
    assert done.returncode != 0
    attempts = [call["attempt"] for call in cluster.calls("sbatch") if call["rules"] == ["represent"]]
    assert max(attempts) == 2
    assert not any("report" in call["rules"] for call in cluster.calls("sbatch"))


@needs_slurm
def test_a_submitted_command_runs_on_the_node_and_leaves_its_result(cluster: Cluster) -> None:
    toy = cluster.checkout / "Toy"
    toy.write_text(TOY, encoding="utf-8")
    done = cluster.snakemake("--snakefile", "Toy")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert (cluster.checkout / "out/gpu.txt").read_text().split() == ["1", "80000"]
    assert {value(call["arguments"], "--cpus-per-task") for call in cluster.calls("sbatch")} == {"1", "16"}
    # temporary files lie where the node says, not where the submitting host does
    assert (cluster.checkout / "out/cpu.txt").read_text().strip() == str(cluster.home / "node-scratch")
    steps = {value(call["arguments"], "--gpus") for call in cluster.calls("srun")}
    assert steps == {"", "1"}


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_a_profile_gives_every_rule_memory_and_time_that_grow(root: Path, name: str) -> None:
    folder = root / "workflow" / "profiles" / name
    profile = yaml.safe_load((folder / "profile.v9+.yaml").read_text(encoding="utf-8"))
    assert profile["executor"] == name
    assert profile["retries"] >= 2
    for resources in (profile["default-resources"], *profile["set-resources"].values()):
        assert "attempt" in str(resources["mem_mb"])
        assert "attempt" in str(resources["runtime"])
    absent = rules_of(root) - set(profile["set-resources"])
    assert not absent, f"set-resources of workflow/profiles/{name} lacks {', '.join(sorted(absent))}"


@needs_kubernetes
def test_kubernetes_profile_dry_runs(root: Path, tmp_path: Path) -> None:
    checkout = make_checkout(root, tmp_path / "checkout")
    local = checkout.would_run()
    remote = checkout.would_run("--profile", "workflow/profiles/kubernetes")
    assert remote == local


def test_conda_definition_parses_and_holds_the_lock(root: Path) -> None:
    definition = yaml.safe_load((root / "envs" / "core.yaml").read_text(encoding="utf-8"))
    *packages, pip = definition["dependencies"]
    assert packages == ["python =3.11", "pip"]
    assert pip["pip"] == sync.pins()
    named = {
        (path.parent / line.strip().strip('"')).resolve()
        for path in (root / "workflow" / "rules").glob("*.smk")
        for line in re.findall(r'^ENVIRONMENT = ("[^"]+")$', path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named == {root / "envs" / "core.yaml"}


def test_apptainer_recipe_names_files_that_are_there(root: Path) -> None:
    text = (root / "envs" / "refbias.def").read_text(encoding="utf-8")
    block = text.split("%files\n", 1)[1].split("\n%", 1)[0]
    sources = [line.split()[0] for line in block.splitlines() if line.strip()]
    assert {"envs/core.lock", "pyproject.toml", "workflow", "data"} <= set(sources)
    assert all((root / source).exists() for source in sources)
    assert "core.lock" in text.split("%post", 1)[1]
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    assert "apptainer build --force envs/refbias.sif envs/refbias.def" in makefile
