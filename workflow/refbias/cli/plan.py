"""Estimate GPU-hours, disk and download of a run, before anything is started."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from refbias.config.root import Config, from_yaml
from refbias.errors import UserError
from refbias.planning import facts
from refbias.planning.estimate import Estimate, card_memory_gb, plan, total
from refbias.planning.pilot import pilot_slice, sliced

WIDE = 160
"""Columns where the output is no terminal."""


def assumptions(config: Config) -> list[str]:
    """Return what the estimate rests on, a sentence each."""
    steps = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in facts.STEP_OVERHEAD_S.items())
    slow = ", ".join(f"{name} x {factor:g}" for name, factor in facts.PLAN_SLOWDOWN.items())
    return [
        "A card works at a share of its printed bf16 peak: "
        f"training {facts.TRAINING_SHARE:.0%}, prompts and embedding {facts.PREFILL_SHARE:.0%}, decoding "
        f"{facts.DECODE_SHARE:.0%}; decoding reads all weights at {facts.BANDWIDTH_SHARE:.0%} of the bandwidth and has "
        f"an overhead a step ({steps}).",
        "Training takes 6 operations a weight and token (full) or 4 (LoRA); memory plans: " + slow + ".",
        f"An example has {facts.TOKENS_PER_EXAMPLE['unharmful']:.0f} (unharmful) or "
        f"{facts.TOKENS_PER_EXAMPLE['harmful']:.0f} (harmful) tokens in the mean, at most the run's max_length.",
        "Every response runs to its limit of new tokens: an upper bound.",
        f"A job starts in {facts.START_S:.0f} s and reads weights at {facts.DISK_GB_S:g} GB/s.",
        "Not counted: ablations, training seeds, CPU stages (merge, shift, tables, figures: minutes a model).",
        "Cards: "
        + "; ".join(
            f"{name} {card.tflops:g} TFLOP/s, {card.bandwidth_gb_s:g} GB/s" for name, card in facts.CARDS.items()
        )
        + ". Expect a factor of two either way; a run's own clocks are in its manifests.",
    ]


def _number(value: float) -> str:
    return "-" if value == 0 else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _row(table: Table, stage: Estimate, style: str = "") -> None:
    table.add_row(
        stage.stage,
        str(stage.jobs),
        *(_number(stage.hours(card)) for card in facts.CARDS),
        _number(stage.disk_gb),
        _number(stage.passing_gb),
        _number(stage.download_gb),
        style=style,
    )


def show(config: Config, console: Console) -> None:
    """Print the plan of a run, its memory needs, its assumptions and its pilot."""
    if not config.models:
        raise UserError(
            f"run {config.run!r} has no key 'models': an audit, or questions to interfaces, are not estimated; "
            "name the configuration of a run that trains"
        )
    stages = plan(config)
    table = Table(title=f"Plan of run {config.run!r}", title_justify="left")
    table.add_column("stage")
    for name in ("jobs", *(f"GPU-h {card}" for card in facts.CARDS), "disk GB", "passing GB", "download GB"):
        table.add_column(name, justify="right")
    for stage in stages:
        _row(table, stage)
    table.add_section()
    _row(table, total(stages), "bold")
    console.print(table)
    for need, gigabytes in card_memory_gb(config).items():
        cards = ", ".join(name for name, card in facts.CARDS.items() if card.memory_gb > gigabytes) or "no single card"
        console.print(f"Memory, {need}: {gigabytes:.0f} GB and activations: {cards}")
    console.print("\nAssumptions")
    for sentence in assumptions(config):
        console.print(f"- {sentence}", highlight=False)
    if config.benchmarks.enabled() and config.regime_slugs():
        model, regime, benchmark = pilot_slice(config)
        pilot = total(plan(sliced(config, model, regime, benchmark)))
        hours = ", ".join(f"{pilot.hours(card):.1f} h on {card}" for card in facts.CARDS)
        console.print(
            f"\nPilot: model {model}, regime {regime}, benchmark {benchmark}: {hours}; "
            f"{pilot.disk_gb + pilot.passing_gb:.0f} GB of disk, {pilot.download_gb:.0f} GB of download.",
            highlight=False,
        )


def main(argv: Sequence[str]) -> None:
    """Run ``refbias plan --config FILE``."""
    parser = argparse.ArgumentParser(prog="refbias plan", description=__doc__)
    parser.add_argument("--config", required=True, type=Path, help="Configuration file of the run.")
    args = parser.parse_args(argv)
    show(from_yaml(args.config), Console(width=None if sys.stdout.isatty() else WIDE))
