"""The hash of the code that a stage uses."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refbias import codehash

STAGES = [
    *("preflight", "fetch", "prepare"),
    "acquire",
    "finetune",
    "merge",
    "represent",
    "shift",
    "audit",
    "seeds",
    "generate",
    "topics",
    "score",
    "judge",
    "analyse",
    "records",
    "tables",
    "figures",
    "provenance",
    "report",
    "export",
    *("ablation_sentences", "represent_ablations", "ablate", "analyse_ablations"),
]
READERS_OF_METHODS = ("analyse", "analyse_ablations", "tables", "figures", "report")
"""Stages that ask the package of the metrics whether a method's dB has a direction."""


@pytest.fixture
def copy(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package that may be edited, with the hash pointed at it."""
    shutil.copytree(root / "workflow" / "refbias", tmp_path / "refbias", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(codehash, "_ROOT", tmp_path)
    return tmp_path / "refbias"


def hashes() -> dict[str, str]:
    return {stage: codehash.code_hash(f"refbias.cli.{stage}") for stage in STAGES}


def changed(before: dict[str, str]) -> set[str]:
    after = hashes()
    return {stage for stage in STAGES if after[stage] != before[stage]}


@pytest.mark.parametrize(
    ("module", "stages"),
    [
        ("metrics/rr.py", {"audit", "shift", "seeds", "ablate", *READERS_OF_METHODS}),
        ("cli/seeds.py", {"seeds"}),
        ("embed.py", {"audit", "represent", "represent_ablations"}),
        ("embed_sites.py", {"audit", "represent_ablations"}),
        ("ablations/compute.py", {"ablate"}),
        ("ablations/instructions.py", {"ablation_sentences"}),
        ("ablations/cells.py", {"ablate"}),
        ("scorers/standin.py", {"score", "judge", "preflight"}),
        ("scorers/classifier.py", {"judge"}),
        ("scorers/wildguard.py", {"judge"}),
        ("generation/hf.py", {"generate", "judge"}),
        ("generation/completion.py", {"generate", "judge"}),
        ("topics/rules.py", {"topics"}),
        ("report.py", {"audit", "report"}),
        ("cli/main.py", set()),
        ("cli/analyse.py", {"analyse", "analyse_ablations"}),
        ("finetune.py", {"finetune"}),
        ("artifacts.py", set(STAGES)),
    ],
)
def test_an_edit_changes_the_hash_of_the_stages_that_use_it(copy: Path, module: str, stages: set[str]) -> None:
    before = hashes()
    path = copy / module
    if not path.exists():
        path = copy / module.removesuffix(".py") / "__init__.py"
    path.write_text(path.read_text() + "\nADDED = 1\n")
    assert changed(before) == stages


def test_comments_docstrings_and_layout_change_nothing(copy: Path) -> None:
    before = hashes()
    for path in (copy / "metrics" / "rr.py", copy / "artifacts.py"):
        tree = ast.parse(path.read_text())
        text = path.read_text().replace('"""', '"""Another docstring. ', 1)
        assert ast.dump(ast.parse(text)) != ast.dump(tree)
        path.write_text("# a comment\n\n\n" + text + "\n# the end\n")
    assert changed(before) == set()


@pytest.fixture(scope="module")
def loaded(root: Path) -> dict[str, set[str]]:
    """The package's modules that each stage really loads, from a process of its own.

    The processes are forks of one that has loaded other packages before and has forgotten this one: to import torch
    and the like takes far longer than to import the stages.
    """
    code = """
import importlib, json, os, sys
stages = sys.argv[1:]
for stage in stages:
    importlib.import_module(f"refbias.cli.{stage}")
for name in [name for name in sys.modules if name.split(".")[0] == "refbias"]:
    del sys.modules[name]
sys.stdout.flush()
for stage in stages:
    if os.fork() == 0:
        importlib.import_module(f"refbias.cli.{stage}")
        print(json.dumps([stage, [name for name in sys.modules if name.split(".")[0] == "refbias"]]), flush=True)
        os._exit(0)
    _, status = os.wait()
    assert status == 0, stage
"""
    environment = {"PYTHONPATH": str(root / "workflow"), "PATH": ""}
    command = [sys.executable, "-c", code, *STAGES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {stage: set(names) for stage, names in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("stage", STAGES)
def test_the_closure_holds_every_module_that_the_stage_really_loads(loaded: dict[str, set[str]], stage: str) -> None:
    assert f"refbias.cli.{stage}" in loaded[stage]
    assert loaded[stage] <= set(codehash.closure(f"refbias.cli.{stage}"))


def test_only_the_dispatchers_import_by_a_computed_name(root: Path) -> None:
    found = set()
    for path in (root / "workflow" / "refbias").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name in ("__import__", "importlib.import_module", "import_module", "exec", "eval"):
                found.add(path.relative_to(root / "workflow" / "refbias").as_posix())
    # the closure is found by reading imports: a computed one would escape it. The packaged model is no code of ours.
    assert found == {"cli/main.py", "cli/competence.py", "cli/metamorphic.py", "models/acquire.py"}


def test_an_unknown_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="entry"):
        codehash.closure("refbias.nowhere")
