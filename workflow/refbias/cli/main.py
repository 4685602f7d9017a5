"""Entry point: finds the stage, keeps its log, turns a user's mistake into one line and exit code 2."""

import errno
import importlib
import logging
import os
import signal
import sys
import traceback
from pathlib import Path

from refbias import gpu
from refbias.environment import become
from refbias.errors import UserError

STAGES = {
    "plan": "estimate GPU-hours, disk and download of a run",
    "preflight": "check models, data, licences, disk and GPU before a run",
    "fetch": "fetch the files of a data set",
    "prepare": "make the fine-tuning splits from WildGuardMix",
    "acquire": "fetch or convert a reference model",
    "finetune": "fine-tune a reference model on one split",
    "finetune_watched": "fine-tune a reference model and measure dB on the way",
    "merge": "merge two endpoints linearly",
    "export": "put trained weights back into a whole (multimodal) model",
    "represent": "embed the sentences with a reference model or a whole spectrum",
    "ablation_sentences": "collect the sentences of all ablations",
    "represent_ablations": "embed the sentences of all ablations, at several sites of a model",
    "ablate": "compute dB in every cell of the ablations",
    "shift": "compute the shift dB per target group",
    "seeds": "compute the shift dB under several training seeds",
    "generate": "generate responses to the benchmark prompts",
    "topics": "give each WildGuardMix prompt its topic, or compare topics with labels by hand",
    "score": "score generated responses by rule",
    "judge": "score generated responses with models as scorers",
    "analyse_ablations": "relate dB of every ablation's cells to the change of behaviour",
    "analyse": "relate dB to the change of behaviour: observations and table 1",
    "calibrate": "fit the probability that a score rose, given dB, on a finished study",
    "two-stage": "weigh benchmarks only where dB raises an alarm: what is found, what is saved",
    "benchmark": "run the output benchmarks on what an audit's dB raised an alarm for",
    "metamorphic": "metamorphic tests of bias: questions, labels, statistics, a gate for CI",
    "competence": "occupational competence: direction, scores, steering, behaviour, verdicts, pictures",
    "lenses": "one page: dB, metamorphic resiliency and competence contrasts on shared axes",
    "records": "collect the stages' manifests and the training losses",
    "tables": "make tables 2 to 7 and the account of what is reproduced",
    "figures": "draw the figures",
    "provenance": "say where the run's numbers come from",
    "report": "write the HTML report",
    "config": "validate a configuration, print its schema or its documentation",
    "audit": "hold checkpoints against a reference: dB per group with its evidence",
    "audit-gate": "hold a finished audit's groups against conditions: a gate for CI",
    "cache": "list or remove what audits keep: embeddings, de-quantised models, hashes",
    "stimuli": "validate sentence sets and packs of them, write an example pack",
    "null-scale": "measure dB of fine-tunings that have nothing to do with any group",
    "unlock": "remove the lock that a killed snakemake left behind",
}
WITH_TRANSFORMERS = ("finetune", "finetune_watched", "represent", "represent_ablations", "generate", "null-scale")
"""Stages that load models and do without scikit-learn."""
RESUMED = ("finetune", "generate", "metamorphic", "null-scale")
"""Stages that keep finished parts and go on from them."""
EXIT_USER_ERROR = 2
EXIT_INTERNAL = 70
"""``EX_SOFTWARE`` of sysexits.h: no code that a stage means anything by."""
EXIT_INTERRUPTED = 130


def _usage() -> str:
    width = max(map(len, STAGES))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, text in STAGES.items())
    head = "usage: refbias STAGE [--log FILE] [--gpu N] [--python FILE] [options]"
    return f"{head}\n\nstages:\n{rows}\n\nrefbias STAGE --help lists a stage's options."


def _take(argv: list[str], option: str) -> str | None:
    """Remove ``option VALUE`` from `argv` and return the value."""
    if option not in argv:
        return None
    at = argv.index(option)
    if at + 1 >= len(argv):
        raise UserError(f"{option} needs a value")
    value = argv[at + 1]
    del argv[at : at + 2]
    return value


def _start_log(path: str | None, command: list[str]) -> None:
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, encoding="utf-8"))
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s", handlers=handlers
    )
    logging.getLogger("refbias").setLevel(logging.INFO)
    if path:
        logging.getLogger("refbias").info("start: %s", command[0])


def _spare_sklearn() -> None:
    """Let transformers take scikit-learn for absent, before it looks.

    It imports it, with pandas and scipy.stats, for a kind of assisted decoding that no stage uses: about two seconds of
    every job. `None` marks a module that cannot be imported, and transformers keeps the first answer.
    """
    if "sklearn" in sys.modules:
        return
    sys.modules["sklearn"] = None  # type: ignore[assignment]
    try:
        from transformers.utils import is_sklearn_available

        is_sklearn_available()
    finally:
        del sys.modules["sklearn"]


def main(argv: list[str] | None = None) -> int:
    """Run one stage.

    Parameters
    ----------
    argv
        Stage name and options; the process's own arguments by default.

    Returns
    -------
    int
        0 success; 1 a condition that the user set is met (``refbias audit --fail-on``) or a gate failed; 2 a mistake
        that the user can mend (one line on stderr); 3 a gate that is undefined; 70 an error of the program, with its
        traceback: a crash must not look like a condition that is met; 130 interrupted.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage())
        return 0 if argv else EXIT_USER_ERROR
    # a scheduler's SIGTERM must unwind like Ctrl-C, so that temporary files go away
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    log_path = None
    try:
        if argv[0] not in STAGES:
            raise UserError(f"unknown stage {argv[0]!r}: choose one of {', '.join(STAGES)}")
        python, command = _take(argv, "--python"), list(argv)
        log_path, gpus = _take(argv, "--log"), _take(argv, "--gpu")
        if python:
            # before anything heavy is imported; the log is begun over there
            become(python, command)
        if gpus == "0":
            # Snakemake's `--resources gpu=0` is the switch to the CPU
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        _start_log(log_path, argv)
        if gpus and gpus != "0":
            _claim(gpus)
        if argv[0] in WITH_TRANSFORMERS:
            _spare_sklearn()
        # a stage may end with a code of its own, such as an audit whose condition is met
        code = importlib.import_module(f"refbias.cli.{argv[0].replace('-', '_')}").main(argv[1:]) or 0
    except UserError as error:
        return _fail(f"refbias: error: {error}", log_path, EXIT_USER_ERROR)
    except KeyboardInterrupt:
        left = "finished parts are kept, start again to go on" if argv[0] in RESUMED else "nothing half-done is left"
        return _fail(f"refbias: interrupted; {left}", log_path, EXIT_INTERRUPTED)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            line = f"refbias: error: no space left on the disk that holds {error.filename or 'the output'}"
            return _fail(line, log_path, EXIT_USER_ERROR)
        line = f"{traceback.format_exc()}refbias: stopped by an error that it does not know"
        return _fail(line, log_path, EXIT_INTERNAL)
    return int(code)


def _claim(gpus: str) -> None:
    if not gpus.isdecimal():
        raise UserError(f"--gpu {gpus!r}: expected a whole number of GPUs")
    if taken := gpu.claim(int(gpus)):
        logging.getLogger("refbias").info("GPU %s taken for this job", ", ".join(map(str, taken)))


def _fail(line: str, log_path: str | None, code: int) -> int:
    print(line, file=sys.stderr)
    if log_path:
        with Path(log_path).open("a", encoding="utf-8") as handle:
            handle.write(line + "\n")
    return code
