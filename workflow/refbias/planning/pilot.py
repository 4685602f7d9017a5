"""The pilot: the cheapest model, regime and benchmark of a run, to be run before the whole."""

from typing import Any

from refbias.config.root import Config, from_mapping
from refbias.planning.estimate import plan, total
from refbias.planning.facts import CARDS


def sliced(config: Config, model: str, regime: str, benchmark: str) -> Config:
    """Return the run that is left of `config` with one model, one regime, one benchmark and their data."""
    data: dict[str, Any] = config.model_dump(mode="json")
    # the splits come from WildGuardMix whatever the benchmark
    kept = {"wildguardmix", benchmark}
    data["data"] = {name: value if name in kept else None for name, value in data["data"].items()}
    data["models"] = {model: data["models"][model]}
    data["regimes"] = {name: value if name == regime else None for name, value in data["regimes"].items()}
    data["benchmarks"] = {name: value if name == benchmark else None for name, value in data["benchmarks"].items()}
    # they vary what the pilot does not run
    data["training_seeds"] = data["ablations"] = None
    # the further lenses are targets of their own
    del data["metamorphic"], data["competence"]
    return from_mapping(data, "pilot slice")


def pilot_slice(config: Config) -> tuple[str, str, str]:
    """Return the model, regime and benchmark that cost the fewest GPU-hours (first card of the table)."""
    first = next(iter(CARDS))
    choices = [
        (model, regime, benchmark)
        for model in config.models
        for regime in config.regime_slugs()
        for benchmark in config.benchmarks.enabled()
    ]
    return min(choices, key=lambda choice: total(plan(sliced(config, *choice))).seconds[first])
