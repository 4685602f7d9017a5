"""Score stored generations with scorers that run a model (and by rule, where a benchmark has a rule).

The stage is `score`; this is its entry where a model runs, so that scoring by rule neither loads
torch nor reruns when code of models changes.
"""

import argparse
from functools import partial
from pathlib import Path

from refbias.cli.score import by_rule, run
from refbias.config.scorers import ScoreStage
from refbias.errors import UserError
from refbias.models.heap import keep_freed_memory
from refbias.scorers import Scorer
from refbias.scorers.neural import make_neural_scorer


def make(name: str, settings: ScoreStage, guards: Path | None, python: str | None = None) -> Scorer:
    """Make any scorer; `python` is the interpreter of guards that vLLM runs.

    Raises
    ------
    UserError
        If the scorer's model is not at hand.
    """
    if name not in settings.settings:
        return by_rule(name, settings, guards)
    if guards is None:
        raise UserError(f"scorer {name} runs a model: name the folder of scorers' models by --guards")
    return make_neural_scorer(name, settings.settings[name], guards / name, settings.device or "auto", python)


def main(argv: list[str]) -> None:
    """Write ``outputs.csv`` (a row an output, no text), ``answers.jsonl`` (what guards wrote) and the manifest."""
    keep_freed_memory()
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--vllm-python", help="interpreter that has vLLM, for guards with that backend")
    run(argv, partial(make, python=own.parse_known_args(argv)[0].vllm_python), "judge", [own])
