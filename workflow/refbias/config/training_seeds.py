"""Repeats of the fine-tuning with other seeds (figure 5 of the paper)."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from refbias.config.base import Slug, Strict
from refbias.config.models import ModelSettings
from refbias.config.shift import ShiftSettings
from refbias.errors import UserError

Regime = Literal["full", "lora"]


class TrainingSeeds(Strict):
    """Fine-tunings that differ from the run's own in nothing but the seed."""

    seeds: list[int] = Field(min_length=1, description="Seeds beside the run's own, each from 0 on.")
    models: list[Slug] = Field(default=[], description="Models by slug; empty = the first model.")
    regimes: list[Regime] = Field(default=["full"], min_length=1, description="Regimes that are repeated.")

    def model_slugs(self, models: Mapping[str, ModelSettings]) -> list[str]:
        """Return the models that are trained again."""
        return self.models or list(models)[:1]


class SeedsStage(Strict):
    """Slice of the configuration that the stage `seeds` sees."""

    shift: ShiftSettings
    seed: int
    seeds: list[int]


def check_training_seeds(
    chosen: TrainingSeeds, seed: int, models: Mapping[str, ModelSettings], regimes: Sequence[str], where: str
) -> None:
    """Refuse repeats that are no repeats, or that the rest of the configuration has no base for.

    Raises
    ------
    UserError
        Naming the key.
    """
    key = f"{where}: key 'training_seeds"
    if seed in chosen.seeds or len(set(chosen.seeds)) < len(chosen.seeds) or min(chosen.seeds) < 0:
        raise UserError(f"{key}.seeds': {chosen.seeds}: must be distinct, not negative, and not the run's own {seed}")
    for slug in chosen.model_slugs(models):
        if slug not in models:
            raise UserError(f"{key}.models': {slug!r} is not one of the run's models ({', '.join(models)})")
    for regime in chosen.regimes:
        if regime not in regimes:
            raise UserError(f"{key}.regimes': {regime!r} is not run: set 'regimes.{regime}'")
        for slug in chosen.model_slugs(models):
            if getattr(models[slug].endpoints, regime):
                raise UserError(f"{key}.models': {slug!r} has ready-made {regime} endpoints, which are not trained")
