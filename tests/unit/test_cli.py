"""The command line's contract: exit codes, one-line errors, the log, a light import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from refbias.cli.main import main


def refbias(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root / "workflow")}
    command = [sys.executable, "-m", "refbias", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=cwd, check=False)


def test_a_users_mistake_is_one_line_and_exit_2(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "x.log"
    done = refbias(
        "shift",
        "--log",
        str(log),
        "--settings",
        "{}",
        "--embeddings",
        "e",
        "--models",
        "m",
        "--regimes",
        "--output",
        str(tmp_path / "o"),
    )
    assert done.returncode == 2
    assert done.stderr.strip().split("\n")[-1] == "refbias: error: --settings: key 'shift' is missing"
    assert "Traceback" not in done.stderr
    assert "key 'shift' is missing" in log.read_text()
    assert not (tmp_path / "o").exists()


def test_an_unknown_stage_is_named() -> None:
    done = refbias("represnt")
    assert done.returncode == 2
    assert "unknown stage 'represnt'" in done.stderr


def test_help_lists_every_stage() -> None:
    from refbias.cli.main import STAGES

    done = refbias("--help")
    assert done.returncode == 0
    assert all(stage in done.stdout for stage in STAGES)


def test_every_stage_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    from refbias.cli.main import STAGES

    # one process for all: a process for each would spend a minute on imports
    for stage in STAGES:
        with pytest.raises(SystemExit) as stopped:
            main([stage, "--help"])
        assert stopped.value.code == 0, stage
        assert f"refbias {stage}" in capsys.readouterr().out


def test_records_numbers_and_pictures_work_without_torch(tmp_path: Path) -> None:
    for name in ("torch", "transformers", "trl", "peft", "mergekit"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('blocked')\n")
    root = Path(__file__).resolve().parents[2]
    code = (
        "import refbias, refbias.metrics, refbias.stats, refbias.analysis, refbias.tables, refbias.figures,"
        " refbias.report, refbias.config.root, refbias.stimuli, refbias.splits,"
        " refbias.synthetic, refbias.prepare, refbias.acquisition.fetch, refbias.planning.pilot,"
        " refbias.ablations.compute, refbias.ablations.sentences, refbias.cli.ablate"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root / 'workflow'}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_workflow_is_read_without_pandas_or_scipy() -> None:
    """Every start of Snakemake, and every job, executes the imports of the rule files."""
    root = Path(__file__).resolve().parents[2]
    files = [root / "Snakefile", *sorted((root / "workflow" / "rules").rglob("*.smk"))]
    lines = [line for path in files for line in path.read_text().splitlines() if line.startswith("from refbias")]
    assert len(lines) > 5
    check = "import sys; found = {'numpy', 'pandas', 'scipy', 'torch'} & set(sys.modules); assert not found, found"
    command = [sys.executable, "-c", "\n".join([*lines, check])]
    environment = {**os.environ, "PYTHONPATH": str(root / "workflow")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_stages_that_load_models_do_without_sklearn(tmp_path: Path) -> None:
    from refbias.cli.main import WITH_TRANSFORMERS

    assert "represent" in WITH_TRANSFORMERS
    code = (
        "import sys; from refbias.cli.main import main\n"
        "try: main(['represent', '--help'])\n"
        "except SystemExit as stopped: assert not stopped.code\n"
        "from transformers import AutoModelForCausalLM; from transformers.generation import candidate_generator\n"
        "assert 'sklearn' not in sys.modules\n"
        "import sklearn.linear_model"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "workflow")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_unlock_removes_a_stale_lock_and_spares_a_living_process(tmp_path: Path) -> None:
    locks = tmp_path / ".snakemake" / "locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("x")
    code = "import time; print('up', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code, "snakemake"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as living:
        assert living.stdout is not None
        living.stdout.readline()
        done = refbias("unlock", cwd=tmp_path)
        assert done.returncode == 2
        assert f"process {living.pid}" in done.stderr
        assert locks.exists()
        living.kill()
    assert refbias("unlock", cwd=tmp_path).returncode == 0
    assert not locks.exists()
