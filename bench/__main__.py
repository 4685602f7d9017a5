"""Run all measurements, print them as one table and write ``bench.csv``."""

import argparse
import contextlib
import dataclasses
import os
import platform
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from bench import ablating, embedding, evidence, generating, vllm
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


def packaged_model(folder: Path) -> Path:
    """De-quantise the packaged model into `folder`, once."""
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        print(f"bench: converting the packaged model into {folder} (once, about a minute)")
        acquire(GgufPackageSource(kind="packaged_gguf"), folder, "float32")
    return folder


def show(results: list[Result]) -> None:
    """Print the table."""
    table = Table(title=f"refbias bench: {torch.get_num_threads()} threads, {platform.machine()}, float32")
    for column in ("measure", "refbias", "baseline", "unit", "ratio", "wanted", "note"):
        table.add_column(column, overflow="fold")

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    for row in results:
        cells = [row.measure, number(row.ours, ".0f"), number(row.baseline, ".0f"), row.unit]
        table.add_row(*cells, number(row.ratio, ".2f"), row.wanted, row.note)
    # a log has no width of its own
    Console(width=None if Console().is_terminal else 160).print(table)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("results/bench/model"), help="Folder of the packaged model.")
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="Folder for bench.csv.")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads.")
    parser.add_argument("--token-budget", type=int, help="Tokens a batch holds at most; the configuration's default.")
    parser.add_argument("--repeats", type=int, default=5, help="Turns; the median counts.")
    parser.add_argument(
        "--only", choices=["embedding", "generation", "ablations", "evidence", "vllm"], help="Measure one part."
    )
    parser.add_argument(
        "--vllm-python", default=INTERPRETERS["vllm"], help="Interpreter of the vLLM environment (part vllm)."
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    results: list[Result] = []
    with contextlib.suppress(KeyboardInterrupt):
        if args.only not in ("ablations", "evidence"):
            folder = packaged_model(args.model)
            tokenizer, model = load_tokenizer(folder), load_lm(folder, dtype=torch.float32)
        if args.only in (None, "embedding"):
            texts = [sentence.text for sentence in load_stimuli(SENTENCES)]
            results += embedding.run(model.base_model, tokenizer, folder, texts, args.token_budget, args.repeats)
        if args.only in (None, "generation"):
            results += generating.run(model, tokenizer, max(1, args.repeats - 2))
        # by hand only: it needs an environment of its own
        if args.only == "vllm":
            python = find_interpreter(args.vllm_python)
            results += vllm.run(model, tokenizer, folder, python, args.threads, max(1, args.repeats - 2))
        if args.only in (None, "ablations"):
            results += ablating.run()
        if args.only in (None, "evidence"):
            results += evidence.run()
    show(results)
    names = [field.name for field in dataclasses.fields(Result)]
    rows = [["" if value is None else value for value in dataclasses.astuple(row)] for row in results]
    write_rows(args.output / "bench.csv", names, rows)
    print(f"bench: written to {args.output / 'bench.csv'}")


if __name__ == "__main__":
    main()
