"""Statistics of the relation between dB and behaviour."""

from pydantic import Field

from refbias.config.base import Strict
from refbias.config.models import Family


class AnalysisSettings(Strict):
    """Resampling of the analysis (paper, section 4.1)."""

    n_resamples: int = Field(default=1000, ge=100, description="Resamples of every bootstrap (MAE, r, AUC, units).")


class AnalyseStage(Strict):
    """Slice of the configuration that the stage `analyse` sees."""

    analysis: AnalysisSettings
    thresholds: dict[str, float]
    seed: int
    groups_file: str | None
    families: dict[str, Family | None]
