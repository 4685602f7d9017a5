"""The plan of a run: for each stage jobs, GPU-hours by card, disk and download."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from refbias.config.external import hub_needs
from refbias.config.models import GgufPackageSource
from refbias.config.root import Config, Regime
from refbias.config.scorers import WildGuardSettings
from refbias.planning import workload
from refbias.planning.facts import (
    CARDS,
    CLASSIFIER_PARAMETERS,
    DATA_MB,
    GUARD_ANSWER_TOKENS,
    GUARD_PROMPT_TOKENS,
    KNOWN_SHAPES,
    PLAN_SLOWDOWN,
    SENTENCE_TOKENS,
    VLLM_BATCH,
    Card,
    Shape,
)
from refbias.planning.rates import (
    FULL_FLOPS,
    GIGA,
    LORA_FLOPS,
    decoding_seconds,
    forward_seconds,
    loading_seconds,
    training_seconds,
)
from refbias.planning.sizes import BF16, FP32, adapter_parameters, parameters, shape_of, training_bytes

ROW_BYTES = 400
"""Of a stored response, beside its text of about four bytes a token."""
TEXT_BYTES = 4
HOUR = 3600.0


@dataclass(frozen=True)
class Estimate:
    """One stage: number of jobs, seconds by card, GB that stay on disk, GB for a while, GB of download."""

    stage: str
    jobs: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CARDS, 0.0))
    disk_gb: float = 0.0
    passing_gb: float = 0.0
    download_gb: float = 0.0

    def hours(self, card: str) -> float:
        """Return GPU-hours on a card."""
        return self.seconds[card] / HOUR


def plan(config: Config) -> list[Estimate]:
    """Estimate every stage of a run.

    Parameters
    ----------
    config
        The run.

    Returns
    -------
    list of Estimate
        In the order of the stages; a stage that does not run is left out.

    Raises
    ------
    UserError
        If the size of a model is not known.
    """
    shapes = {slug: shape_of(model.source) for slug, model in config.models.items()}
    stages = [
        _acquire(config, shapes),
        _finetune(config, shapes, "full"),
        _finetune(config, shapes, "lora"),
        _merge(config, shapes),
        _represent(config, shapes),
        _generate(config, shapes),
        _score(config),
    ]
    return [stage for stage in stages if stage.jobs]


def total(stages: list[Estimate]) -> Estimate:
    """Return the sum of stages; what is on disk for a while counts at its largest."""
    return Estimate(
        "total",
        sum(stage.jobs for stage in stages),
        {card: sum(stage.seconds[card] for stage in stages) for card in CARDS},
        sum(stage.disk_gb for stage in stages),
        max((stage.passing_gb for stage in stages), default=0.0),
        sum(stage.download_gb for stage in stages),
    )


def needed_gb(config: Config) -> tuple[float, float]:
    """Return the GB that a run's folder and the download caches need, the largest passing files included."""
    everything = total(plan(config))
    return everything.disk_gb + everything.passing_gb, everything.download_gb


def card_memory_gb(config: Config) -> dict[str, float]:
    """Return what each kind of job needs of one card's memory in GB, activations left out."""
    shapes = [shape_of(model.source) for model in config.models.values()]
    largest = max(parameters(shape) for shape in shapes)
    needs = {"inference (bf16 weights)": largest * BF16 / GIGA}
    if config.regimes.full is not None and any(_trained(config, "full")):
        plan_name = getattr(config.regimes.full, "memory_plan", "single")
        needs[f"full fine-tuning (plan {plan_name})"] = largest * training_bytes(config.regimes.full) / GIGA
    if config.regimes.lora is not None and any(_trained(config, "lora")):
        adapter = max(adapter_parameters(shape, config.regimes.lora.rank) for shape in shapes)
        needs["LoRA (bf16 weights, fp32 adapter)"] = (largest * BF16 + adapter * 4 * FP32) / GIGA
    return needs


def _trained(config: Config, regime: Regime) -> Iterator[str]:
    return (slug for slug, model in config.models.items() if getattr(model.endpoints, regime) is None)


def _by_card(seconds: Callable[[Card], float]) -> dict[str, float]:
    return {name: seconds(card) for name, card in CARDS.items()}


def _bytes(shape: Shape) -> float:
    return parameters(shape) * BF16


def _acquire(config: Config, shapes: dict[str, Shape]) -> Estimate:
    download = 0.0
    for need in hub_needs(config):
        if need.type == "model" and need.id in KNOWN_SHAPES:
            shape = KNOWN_SHAPES[need.id]
            download += (parameters(shape) + shape.other) * BF16 / GIGA
        elif need.type == "model":
            download += CLASSIFIER_PARAMETERS * FP32 / GIGA
    download += sum(DATA_MB[name] for name in config.fetched()) / 1000
    # a run's folder links the cache's files; a packaged model is unpacked there
    unpacked = [slug for slug, model in config.models.items() if isinstance(model.source, GgufPackageSource)]
    disk = sum(_bytes(shapes[slug]) for slug in unpacked) / GIGA
    return Estimate("acquire", len(config.models) + len(config.fetched()), disk_gb=disk, download_gb=download)


def _finetune(config: Config, shapes: dict[str, Shape], regime: Regime) -> Estimate:
    settings = getattr(config.regimes, regime)
    trained = list(_trained(config, regime)) if settings is not None else []
    if not trained:
        return Estimate(f"finetune {regime}")
    sides: tuple[workload.Side, ...] = ("unharmful", "harmful")
    tokens = settings.epochs * sum(workload.split_tokens(config, side, settings.max_length) for side in sides)
    flops = FULL_FLOPS if regime == "full" else LORA_FLOPS
    slowdown = PLAN_SLOWDOWN[getattr(settings, "memory_plan", "single")] if regime == "full" else 1.0

    def seconds(card: Card) -> float:
        return sum(
            training_seconds(parameters(shapes[slug]), tokens, card, flops, slowdown)
            + len(sides) * loading_seconds(_bytes(shapes[slug]))
            for slug in trained
        )

    if regime == "full":
        kept = sum(_bytes(shapes[slug]) for slug in trained)
        # weights and two moments of the run that is under way, twice while a new state replaces the old
        passing = 2 * 3 * FP32 * max(parameters(shapes[slug]) for slug in trained)
    else:
        kept = sum(adapter_parameters(shapes[slug], settings.rank) * FP32 for slug in trained)
        passing = 0
    return Estimate(
        f"finetune {regime}",
        len(sides) * len(trained),
        _by_card(seconds),
        disk_gb=len(sides) * kept / GIGA,
        passing_gb=passing / GIGA,
    )


def _merge(config: Config, shapes: dict[str, Shape]) -> Estimate:
    inner = [weight for weight in config.spectrum.weights if weight not in (0, 1)]
    regimes = config.regime_slugs()
    adapters = 0.0
    if config.regimes.lora is not None:
        # the two endpoints stand side by side in a merged adapter
        rank = 2 * config.regimes.lora.rank
        adapters = sum(adapter_parameters(shape, rank) * FP32 for shape in shapes.values()) * len(inner)
    # merged full checkpoints of every model may be alive at once
    alive = min(config.spectrum.max_merged, len(inner)) * sum(_bytes(shape) for shape in shapes.values())
    return Estimate(
        "merge (CPU)",
        len(shapes) * len(inner) * len(regimes),
        disk_gb=adapters / GIGA,
        passing_gb=(alive if "full" in regimes else 0.0) / GIGA,
    )


def _checkpoints(config: Config) -> int:
    """Return the checkpoints of one model, its reference included."""
    return 1 + len(config.regime_slugs()) * len(config.spectrum.weights)


def _represent(config: Config, shapes: dict[str, Shape]) -> Estimate:
    count = _checkpoints(config)
    tokens = workload.sentence_tokens(config)
    sentences = tokens / SENTENCE_TOKENS

    # one process a source, which reads both endpoints for each checkpoint
    sources = 1 + len(config.regime_slugs())

    def seconds(card: Card) -> float:
        return sum(
            count * forward_seconds(parameters(shape), tokens, card)
            + sources * loading_seconds(count / sources * 2 * _bytes(shape))
            for shape in shapes.values()
        )

    disk = sum(count * sentences * shape.width * FP32 for shape in shapes.values()) / GIGA
    return Estimate("represent", count * len(shapes), _by_card(seconds), disk_gb=disk)


def _generate(config: Config, shapes: dict[str, Shape]) -> Estimate:
    names = list(config.benchmarks.enabled())
    if not names:
        return Estimate("generate")
    asked = [workload.responses(config, name) for name in names]
    backend = config.generation.backend
    batch = config.generation.batch_size if backend == "hf" else VLLM_BATCH
    count = _checkpoints(config)

    def seconds(card: Card) -> float:
        return sum(
            count
            * (
                loading_seconds(_bytes(shape))
                + sum(
                    forward_seconds(parameters(shape), one.outputs * one.prompt_tokens, card)
                    + decoding_seconds(parameters(shape), one.outputs, one.new_tokens, batch, card, backend)
                    for one in asked
                )
            )
            for shape in shapes.values()
        )

    stored = sum(one.outputs * (ROW_BYTES + TEXT_BYTES * one.new_tokens) for one in asked)
    disk = count * len(shapes) * stored / GIGA
    return Estimate("generate", count * len(shapes), _by_card(seconds), disk_gb=disk)


def _score(config: Config) -> Estimate:
    """Estimate the scoring by models; scorers by rule need no GPU."""
    judged = {name: entry.scorer for name, entry in config.benchmarks.enabled().items()}
    asked = {name: workload.responses(config, name) for name in judged}
    count = _checkpoints(config) * len(config.models)
    guard = parameters(KNOWN_SHAPES["allenai/wildguard"])
    chosen = config.scorers["wildguard"]
    backend = chosen.backend if isinstance(chosen, WildGuardSettings) else "hf"

    def seconds(card: Card) -> float:
        found = 0.0
        for name, scorer in judged.items():
            one = asked[name]
            tokens = one.outputs * (one.prompt_tokens + one.new_tokens)
            if scorer == "wildguard":
                tokens += one.outputs * GUARD_PROMPT_TOKENS
                found += count * forward_seconds(guard, tokens, card)
                found += count * decoding_seconds(
                    guard, one.outputs, GUARD_ANSWER_TOKENS, chosen.batch_size, card, backend
                )
                found += (1 + len(config.regime_slugs())) * len(config.models) * loading_seconds(guard * BF16)
            elif scorer == "toxigen_roberta":
                found += count * forward_seconds(CLASSIFIER_PARAMETERS, one.outputs * one.new_tokens, card)
        return found

    disk = count * sum(one.outputs for one in asked.values()) * 100 / GIGA
    return Estimate("score", count if judged else 0, _by_card(seconds), disk_gb=disk)
