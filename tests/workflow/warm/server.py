"""Runs the programs of a test's workflow in forks of a process that has imported the packages which they use.

Each job of a workflow is a new process, and three quarters of a tiny job's time go into importing torch, transformers
and the like. A fork of this process has those modules; the project's own code it imports itself, from the path that
the program would have had, in the program's folder and environment, under its standard streams. What is run, in which
order, with which files and exit codes is unchanged; `tests/workflow/test_kill.py` runs without this.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys

LIGHT = (
    *("snakemake.cli", "snakemake.persistence", "snakemake.report.html_reporter", "requests", "smart_open"),
    *("numpy", "pandas", "scipy.stats", "scipy.optimize", "scipy.spatial.distance", "scipy.sparse", "pydantic", "yaml"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_pdf", "jinja2"),
    *("sklearn.linear_model", "sklearn.isotonic", "sklearn.feature_extraction.text"),
)
HEAVY = (
    *("torch", "torch.distributed.tensor", "safetensors.torch", "datasets", "peft", "transformers.trainer"),
    *("transformers.models.auto.modeling_auto", "transformers.models.gemma3.modeling_gemma3"),
    *("trl.trainer.sft_trainer", "trl.trainer.sft_config"),
)
WITHOUT_TORCH = {
    *("acquire", "analyse", "analyse_ablations", "ablate", "ablation_sentences", "calibrate", "fetch", "figures"),
    *("preflight", "prepare", "provenance", "records", "report", "score", "seeds", "shift", "tables", "two-stage"),
}


def load(names: tuple[str, ...]) -> None:
    for name in names:
        importlib.import_module(name)
    # the forks share these objects' memory as long as nobody collects them
    gc.freeze()


def receive(line: socket.socket) -> tuple[list[int], dict]:
    _, streams, _, _ = socket.recv_fds(line, 1, 3)
    with line.makefile("rb") as handle:
        return streams, json.loads(handle.read())


def become(streams: list[int], asked: dict, path: list[str]) -> None:
    """Take the program's streams, environment, folder and path, and run it."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    named = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = [asked["folder"], *named, *path]
    importlib.invalidate_caches()
    sys.argv = [asked["module"], *asked["arguments"]]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


def serve(address: str) -> None:
    load(LIGHT)
    heavy_is_loaded = False
    path = list(sys.path)
    jobs: dict[int, socket.socket] = {}

    def answer(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                with jobs.pop(ended[0]) as line, contextlib.suppress(BrokenPipeError):
                    # a shell's way of saying that a signal ended the program
                    line.sendall(str(code if code >= 0 else 128 - code).encode())

    signal.signal(signal.SIGCHLD, answer)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(16)
        print("ready", flush=True)
        while True:
            line, _ = listener.accept()
            streams, asked = receive(line)
            if not heavy_is_loaded and asked["module"] == "refbias" and asked["arguments"][0] not in WITHOUT_TORCH:
                load(HEAVY)
                heavy_is_loaded = True
            # a job that ends at once must be known by then
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
            job = os.fork()
            if not job:
                break
            jobs[job] = line
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            for stream in streams:
                os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for other in [line, *jobs.values()]:
        other.close()
    become(streams, asked, path)


if __name__ == "__main__":
    serve(sys.argv[1])
