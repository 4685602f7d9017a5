"""Stand-ins for the commands of Slurm, for the tests of the cluster profile: one program under several names.

``FAKE_SLURM`` names a folder: ``calls.jsonl`` gets every command line, ``states`` a file a job with its state. With
``outputs.json`` in it (rule -> files), a submitted job makes its rule's files and is done at once; without, the wrapped
command really runs. A rule named in ``failing.json`` (rule -> number) fails that many times first.
"""

import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

HOME = Path(os.environ["FAKE_SLURM"])


def record(name: str, arguments: list[str], **facts: object) -> int:
    """Append a command line; return how many there were before."""
    path = HOME / "calls.jsonl"
    with path.open("a+", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.seek(0)
        before = sum(1 for _ in handle)
        handle.write(json.dumps({"command": name, "arguments": arguments, **facts}) + "\n")
    return before


def content(name: str) -> dict:
    path = HOME / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def sbatch(arguments: list[str]) -> None:
    wrapped = next(part for part in arguments if part.startswith("--wrap=")).removeprefix("--wrap=")
    words = shlex.split(wrapped)
    after = words[words.index("--allowed-rules") + 1 :]
    rules = after[: next(at for at, word in enumerate(after) if word.startswith("-"))]
    attempt = int(words[words.index("--attempt") + 1])
    jobid = 1000 + record("sbatch", arguments, rules=rules, attempt=attempt)
    failing = any(attempt <= content("failing.json").get(rule, 0) for rule in rules)
    state = HOME / "states" / str(jobid)
    state.parent.mkdir(exist_ok=True)
    print(jobid)
    sys.stdout.flush()
    if (HOME / "outputs.json").exists():
        if not failing:
            outputs = content("outputs.json")
            # in the order of the run: no file may be older than those that it is made of
            for rule in sorted(rules, key=list(outputs).index):
                for name in outputs[rule]:
                    path = Path(name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if not path.exists():
                        path.write_text("made by a stand-in\n", encoding="utf-8")
        state.write_text("FAILED" if failing else "COMPLETED", encoding="utf-8")
        return
    state.write_text("RUNNING", encoding="utf-8")
    log = next(arguments[at + 1] for at, part in enumerate(arguments) if part == "--output")
    if os.fork():
        return
    os.setsid()
    environment = {**os.environ, "SLURM_JOB_ID": str(jobid), "TMPDIR": str(HOME / "node-scratch")}
    (HOME / "node-scratch").mkdir(exist_ok=True)
    with Path(log.replace("%j", str(jobid))).open("w", encoding="utf-8") as handle:
        done = subprocess.run(
            ["sh", "-c", wrapped], stdin=subprocess.DEVNULL, stdout=handle, stderr=handle, env=environment
        )
    state.write_text("FAILED" if done.returncode else "COMPLETED", encoding="utf-8")


def states() -> list[tuple[str, str]]:
    return [(path.name, path.read_text(encoding="utf-8")) for path in sorted((HOME / "states").glob("*"))]


def main() -> None:
    name, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    if name == "sbatch":
        sbatch(arguments)
    elif name == "srun":
        record(name, arguments)
        program = next(at for at, part in enumerate(arguments) if not part.startswith("-"))
        os.execvp(arguments[program], arguments[program:])  # noqa: S606 srun becomes the program
    elif name in ("sacct", "squeue"):
        if any(part.startswith("--format=JobIdRaw") or part.startswith("--format=%i") for part in arguments):
            print("\n".join(f"{job}|{state}" for job, state in states()))
    elif name == "sinfo":
        print("PARTITION\ncpu*\ngpu")
    elif name == "sacctmgr":
        print("lab")
    elif name == "scancel":
        record(name, arguments)
        for job in arguments:
            if re.fullmatch(r"\d+", job):
                (HOME / "states" / job).write_text("CANCELLED", encoding="utf-8")
    else:
        raise SystemExit(f"{name}: no such stand-in")


if __name__ == "__main__":
    main()
