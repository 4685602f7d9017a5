"""Start the processes that share a fine-tuning, wait for them, and bring back what they say."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from refbias.artifacts import read_json
from refbias.config.finetune import FinetuneStage
from refbias.errors import UserError
from refbias.finetune.plans import Plan, check_library

FACTS, MISTAKE = "facts.json", "mistake.txt"


def launch(
    plan: Plan,
    settings: FinetuneStage,
    split: Path,
    reference: Path,
    out_dir: Path,
    work_dir: Path,
    device: str,
    lock: int | None = None,
) -> dict[str, Any]:
    """Run `refbias.finetune.finetune` in the processes of a plan, by torchrun on this host.

    Parameters
    ----------
    plan
        A plan that is launched.
    settings
        The stage's slice.
    split
        File of the examples.
    reference, out_dir, work_dir
        As in `finetune`.
    device
        ``cuda`` or ``cpu``.
    lock
        Descriptor of the lock on `out_dir`: the launcher holds it too, so that a job started in the
        place of one that was killed waits for processes that still run.

    Returns
    -------
    dict
        Facts for the manifest (JSON values).

    Raises
    ------
    UserError
        What a process reports, or that there are fewer GPUs than processes.
    """
    # imported here alone: torchrun starts it as a program of its own
    from refbias.finetune import worker

    check_library(plan)
    if device == "cuda" and torch.cuda.device_count() < plan.processes:
        visible = torch.cuda.device_count()
        raise UserError(f"key 'processes': {plan.processes} GPUs are asked for, {visible} are visible: lower it")
    answers = work_dir.parent / "answers"
    answers.mkdir(parents=True, exist_ok=True)
    for name in (FACTS, MISTAKE):
        (answers / name).unlink(missing_ok=True)
    options = {
        "settings": settings.model_dump_json(),
        "split": split,
        "reference": reference,
        "output": out_dir,
        "work": work_dir,
        "answers": answers,
    }
    command = [sys.executable, "-m", *plan.launcher(), "-m", worker.__name__]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    code = _run(command, _environment(plan, device), answers / MISTAKE, lock)
    if (answers / MISTAKE).is_file():
        raise UserError((answers / MISTAKE).read_text(encoding="utf-8"))
    if code or not (answers / FACTS).is_file():
        raise RuntimeError(f"a process of memory plan {plan.name!r} failed, its traceback is above (exit code {code})")
    facts: dict[str, Any] = read_json(answers / FACTS)
    return facts


def _environment(plan: Plan, device: str) -> dict[str, str]:
    environment = dict(os.environ)
    # the package as this process found it, installed or not
    source = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join([source, *environment.get("PYTHONPATH", "").split(os.pathsep)])
    if device == "cpu":
        environment["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // plan.processes))
    return environment


def _run(command: list[str], environment: dict[str, str], mistake: Path, lock: int | None) -> int:
    """Run the launcher; its messages go on to stderr, save those that follow a mistake of the user's."""
    process = subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        pass_fds=[] if lock is None else [lock],
    )
    try:
        for line in process.stderr or ():
            if not mistake.is_file():
                sys.stderr.write(line)
        return process.wait()
    finally:
        # interrupted: torchrun hands the signal on to its processes
        process.terminate()
        process.wait()
