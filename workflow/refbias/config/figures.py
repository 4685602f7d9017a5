"""What the figures need to know beside the tables that they draw."""

from pydantic import Field

from refbias.config.base import Strict


class FigureStage(Strict):
    """Slice of the configuration that the stage `figures` sees.

    `lacks` maps a figure of the paper to what the run lacks for it, an empty text for those that are drawn.
    """

    models: list[str] = Field(min_length=1)
    regimes: list[str]
    thresholds: dict[str, float]
    groups_file: str | None = None
    lacks: dict[str, str]
