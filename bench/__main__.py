"""Run all measurements, print them as one table, and write ``bench.csv``, ``costs.csv`` and a plot."""

import argparse
import contextlib
import dataclasses
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench import ablating, auditing, costs, embedding, evidence, generating, picture, streaming, vllm
from bench.costs import Cost
from bench.measure import Result
from refbias.artifacts import write_rows
from refbias.config.generation import INTERPRETERS
from refbias.config.models import GgufPackageSource
from refbias.config.stimuli import StimuliSettings
from refbias.environment import find_interpreter
from refbias.models import acquire, load_lm, load_tokenizer
from refbias.models.heap import keep_freed_memory
from refbias.stimuli import load_stimuli

# the quickstart's sentences
SENTENCES = StimuliSettings(targets=10, attributes=40, anchors=250, control=50)
PARTS = ("streaming", "audit", "embedding", "generation", "ablations", "evidence", "costs")
"""What a bench measures, in this order; vLLM's part needs an environment of its own and is asked for by name."""


def packaged_model(folder: Path) -> Path:
    """De-quantise the packaged model into `folder`, once."""
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        print(f"bench: converting the packaged model into {folder} (once, about a minute)")
        acquire(GgufPackageSource(kind="packaged_gguf"), folder, "float32")
    return folder


def shown(value: float | None) -> str:
    """Return a number as the table shows it: whole from 100 on, else three digits."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def show(results: list[Result]) -> None:
    """Print the table."""
    table = Table(title=f"refbias bench: {torch.get_num_threads()} threads, {platform.machine()}")
    for column in ("measure", "refbias", "baseline", "unit", "ratio", "wanted", "note"):
        table.add_column(column, overflow="fold")
    for row in results:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.measure, shown(row.ours), shown(row.baseline), row.unit, ratio, row.wanted, row.note)
    # a log has no width of its own
    Console(width=None if Console().is_terminal else 160).print(table)


def write(folder: Path, results: list[Result], grown: list[Cost]) -> None:
    """Write the tables and the plot, and say where."""
    for name, kind, rows in (("bench.csv", Result, results), ("costs.csv", Cost, grown)):
        names = [field.name for field in dataclasses.fields(kind)]
        # costs that were not measured leave those of an earlier run alone
        if rows:
            table = [["" if value is None else value for value in dataclasses.astuple(row)] for row in rows]
            write_rows(folder / name, names, table)
            print(f"bench: written to {folder / name}")
    for path in picture.draw(results, grown, folder / "bench"):
        print(f"bench: written to {path}")


class Bench:
    """The parts of a bench; the packaged model is loaded when the first part needs it.

    Parameters
    ----------
    args
        Options of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.costs: list[Cost] = []
        self._loaded: tuple[Any, Any] | None = None
        self.parts: dict[str, Callable[[], list[Result]]] = {
            "streaming": self._streaming,
            "audit": self._audit,
            "embedding": self._embedding,
            "generation": self._generation,
            "ablations": ablating.run,
            "evidence": evidence.run,
            "costs": self._costs,
            "vllm": self._vllm,
        }

    def _model(self) -> tuple[Any, Any]:
        if self._loaded is None:
            folder = packaged_model(self.args.model)
            self._loaded = load_tokenizer(folder), load_lm(folder, dtype=torch.float32)
        return self._loaded

    def _turns(self) -> int:
        """Return the turns of what takes long."""
        return max(1, self.args.repeats - 2)

    def _streaming(self) -> list[Result]:
        # the full sets take a minute a turn: by name
        chosen = StimuliSettings() if self.args.only else SENTENCES
        texts = [sentence.text for sentence in load_stimuli(chosen)]
        folder = self.args.output / f"random-8b-{self.args.layers}-layers"
        return streaming.run(folder, texts, self.args.layers, max(1, self.args.repeats // 2), self.args.token_budget)

    def _audit(self) -> list[Result]:
        return auditing.run(packaged_model(self.args.model), self.args.threads, max(1, self.args.repeats // 2))

    def _embedding(self) -> list[Result]:
        tokenizer, model = self._model()
        texts = [sentence.text for sentence in load_stimuli(SENTENCES)]
        budget, repeats = self.args.token_budget, self.args.repeats
        return embedding.run(model.base_model, tokenizer, self.args.model, texts, budget, repeats)

    def _generation(self) -> list[Result]:
        tokenizer, model = self._model()
        return generating.run(model, tokenizer, self._turns())

    def _costs(self) -> list[Result]:
        self.costs = costs.run(self._turns())
        return costs.fitted(self.costs)

    def _vllm(self) -> list[Result]:
        tokenizer, model = self._model()
        python = find_interpreter(self.args.vllm_python)
        return vllm.run(model, tokenizer, self.args.model, python, self.args.threads, self._turns())


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("results/bench/model"), help="Folder of the packaged model.")
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="Folder for tables and plot.")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads.")
    parser.add_argument("--token-budget", type=int, help="Tokens a batch holds at most; the configuration's default.")
    parser.add_argument("--repeats", type=int, default=5, help="Turns; the median counts.")
    parser.add_argument("--layers", type=int, default=2, help="Layers of the random 8B checkpoint (part streaming).")
    parser.add_argument("--only", choices=[*PARTS, "vllm"], help="Measure one part.")
    parser.add_argument(
        "--vllm-python", default=INTERPRETERS["vllm"], help="Interpreter of the vLLM environment (part vllm)."
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    bench = Bench(args)
    results: list[Result] = []
    # what was measured is kept, whatever ends the rest
    try:
        with contextlib.suppress(KeyboardInterrupt):
            for name in [args.only] if args.only else PARTS:
                start = time.perf_counter()
                results += bench.parts[name]()
                print(f"bench: {name} measured in {time.perf_counter() - start:.0f} s", flush=True)
    finally:
        show(results)
        write(args.output, results, bench.costs)


if __name__ == "__main__":
    main()
