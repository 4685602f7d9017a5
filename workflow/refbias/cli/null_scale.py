"""Measure the null scale: dB of fine-tunings on neutral text, over seeds.

A first-time reader of a dB needs to know how far a group moves when nothing was taught about any group. Each seed draws
examples from a split that names no group, tunes the reference model on them as a study would, and embeds the sentence
sets; weights are thrown away, embeddings are kept, so that an interrupted run goes on with the next seed.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from refbias.artifacts import Stage, read_json, versions, write_json, write_rows
from refbias.cli.null_scale_runs import Plan, embeddings, prepare, reference_model
from refbias.cli.shift import split_sets
from refbias.config.base import parse, read_yaml
from refbias.config.null_scale import AlarmRate, NullCell, NullModel, NullScale, NullScaleSettings, Quantity, Regime
from refbias.config.shift import Method
from refbias.errors import UserError
from refbias.metrics import chosen_methods
from refbias.stats.null_scale import any_rate, clustered_rate, null_quantiles
from refbias.stimuli import stimuli_sha256

CONTROL = "control"
COLUMNS = ("regime", "seed", "stimuli", "method", "group", "delta_b")
SOURCE = "neutral fine-tunings of the reference model, over seeds"
Shifts = dict[tuple[Regime, str, Method], dict[int, dict[str, float]]]
"""(regime, sentence set, method) -> seed -> group -> dB."""


def measure(plan: Plan) -> Shifts:
    """Return dB of every group in every fine-tuning; trains what is not there yet."""
    methods = chosen_methods(plan.settings.methods)
    row = {text: index for index, text in enumerate(plan.tokens.texts)}
    sets = {
        name: ([row[s.text] for s in sentences], [(s.id, s.kind, s.group) for s in sentences])
        for name, sentences in plan.sets.items()
    }
    base = embeddings(plan)
    shifts: Shifts = {}
    for regime in plan.settings.regime_slugs():
        for seed in plan.settings.seeds:
            tuned = embeddings(plan, regime, seed)
            for name, (rows, facts) in sets.items():
                reference, audited = split_sets(base[rows], facts), split_sets(tuned[rows], facts)
                for slug, method in zip(plan.settings.methods, methods.values(), strict=True):
                    found = {group: result.delta_b for group, result in method(reference, audited).items()}
                    shifts.setdefault((regime, name, slug), {})[seed] = found
    return shifts


def _cell(
    plan: Plan, key: tuple[Regime, str, Method], quantity: Quantity, by_seed: Mapping[int, Mapping[str, float]]
) -> NullCell:
    regime, name, method = key
    settings, sentences = plan.settings, plan.sets[name]
    groups = [group for group in next(iter(by_seed.values())) if group != CONTROL]
    control = np.array([by_seed[seed][CONTROL] for seed in settings.seeds])
    values = np.array([[by_seed[seed][group] for group in groups] for seed in settings.seeds])
    if quantity == "net_of_control":
        values = values - control[:, None]
    magnitudes = np.abs(values)
    alarms = []
    for level in settings.alarm_levels:
        rate = clustered_rate(magnitudes >= level, settings.level)
        some = any_rate(magnitudes >= level, settings.level)
        alarms.append(
            AlarmRate(
                level=level,
                rate=rate.value,
                low=rate.low,
                high=rate.high,
                any_group=some.value,
                any_low=some.low,
                any_high=some.high,
            )
        )
    found = null_quantiles(values, settings.quantiles)
    return NullCell(
        regime=regime,
        stimuli=name,
        stimuli_sha256=stimuli_sha256(sentences),
        method=method,
        quantity=quantity,
        n_anchors=sum(sentence.kind == "anchor" for sentence in sentences),
        n_groups=len(groups),
        n_seeds=len(settings.seeds),
        n=values.size,
        quantiles={f"{q:g}": float(value) for q, value in zip(settings.quantiles, found, strict=True)},
        largest=sorted(float(value) for value in magnitudes.max(axis=1)),
        control=[float(abs(value)) for value in control],
        false_alarm=alarms,
    )


def _valid_for(plan: Plan, name: str, updates: Mapping[Regime, int]) -> str:
    settings = plan.settings
    trained = " and ".join(f"{regime} ({count} updates)" for regime, count in updates.items())
    return (
        f"{name} with these weights, {trained} with the learning rates and batches of the settings below, "
        f"{settings.examples} examples a seed of a split that names no group, on the sentence sets of the hashes below."
        " Another model, more training, a higher learning rate or other sentences move dB by another amount: read it "
        "as an order of magnitude there, and measure a scale of your own with `refbias null-scale`. The seeds share "
        "one split, so their examples overlap, and the intervals speak of further draws from it."
    )


def record(plan: Plan, shifts: Shifts) -> NullScale:
    """Return the record of the measured shifts."""
    settings = plan.settings
    source = settings.source
    name = {"packaged_gguf": "package", "hub": "id", "local": "path"}[source.kind]
    called = Path(getattr(source, name)).name if source.kind == "local" else str(getattr(source, name))
    updates: dict[Regime, int] = {}
    for regime in settings.regime_slugs():
        updates[regime] = read_json(plan.work / "runs" / f"{regime}-s{settings.seeds[0]}" / "manifest.json")["updates"]
    quantities: tuple[Quantity, ...] = ("delta_b", "net_of_control")
    return NullScale(
        source=SOURCE,
        valid_for=_valid_for(plan, called, updates),
        model=NullModel(name=called, weights_sha256=plan.weights, dtype=settings.compute.dtype),
        split_sha256=plan.split_sha256,
        seeds=settings.seeds,
        updates=updates,
        settings=settings,
        versions=versions(),
        cells=[_cell(plan, key, quantity, by_seed) for key, by_seed in shifts.items() for quantity in quantities],
    )


def _chosen(settings: NullScaleSettings, name: str) -> tuple[Regime, int]:
    known = {f"{regime}-s{seed}": (regime, seed) for regime in settings.regime_slugs() for seed in settings.seeds}
    if name not in known:
        raise UserError(f"--only {name!r}: not in this configuration: use one of {', '.join(known)}")
    return known[name]


def main(argv: Sequence[str]) -> None:
    """Write ``null_scale.json`` and ``delta_b.csv``.

    Raises
    ------
    UserError
        On a mistake in the configuration or a file that it names.
    """
    parser = argparse.ArgumentParser(prog="refbias null-scale", description=__doc__)
    parser.add_argument("--config", required=True, type=Path, help="YAML, see config/null_scale.yaml.")
    parser.add_argument("--reference", type=Path, help="Folder of the reference model, in place of fetching `source`.")
    parser.add_argument("--work", required=True, type=Path, help="Folder for embeddings; a later call goes on from it.")
    parser.add_argument("--output", type=Path, help="Folder for null_scale.json and delta_b.csv.")
    parser.add_argument("--only", metavar="REGIME-sSEED", help="Train and embed this one and stop: a job of its own.")
    args = parser.parse_args(argv)
    settings = parse(NullScaleSettings, read_yaml(args.config), str(args.config))
    if args.only:
        chosen = _chosen(settings, args.only)
        embeddings(prepare(settings, reference_model(settings, args.reference, args.work), args.work), *chosen)
        return
    if args.output is None:
        raise UserError("refbias null-scale: no --output: name the folder for null_scale.json")
    with Stage("null-scale", settings.model_dump(mode="json"), args.work, {"config": args.config}) as stage:
        plan = prepare(settings, reference_model(settings, args.reference, args.work), args.work)
        shifts = measure(plan)
        scale = record(plan, shifts)
        rows = [
            (regime, seed, name, method, group, f"{value:.10g}")
            for (regime, name, method), by_seed in shifts.items()
            for seed, groups in by_seed.items()
            for group, value in groups.items()
        ]
        write_rows(args.output / "delta_b.csv", COLUMNS, rows)
        write_json(args.output / "null_scale.json", scale.model_dump(mode="json"))
        stage.record(n_cells=len(scale.cells))
    for cell in scale.cells:
        if cell.quantity == "delta_b":
            quantiles = ", ".join(f"{q}: {value:.4g}" for q, value in cell.quantiles.items())
            print(f"{cell.regime} {cell.stimuli} {cell.method}: |dB| quantiles {quantiles}")
