"""What the figures need to know beside the tables that they draw."""

from pydantic import Field

from refbias.config.base import Strict


class FigureStage(Strict):
    """Slice of the configuration that the stage `figures` sees."""

    models: list[str] = Field(min_length=1)
    regimes: list[str] = Field(min_length=1)
    thresholds: dict[str, float]
    groups_file: str | None = None
