"""What the report says about a run beside its results: sources, stand-ins and the settings themselves."""

from pydantic import Field

from refbias.config.base import Strict
from refbias.config.models import Compute, Source
from refbias.config.stimuli import StimuliSettings


class BenchmarkFacts(Strict):
    """What the report says about one benchmark; `prompts` is None for the shipped quickstart prompts."""

    scorer: str
    threshold: float
    prompts: str | None
    samples: int
    temperature: float
    top_p: float
    max_new_tokens: int


class ReportStage(Strict):
    """Slice of the configuration that the stage `report` sees.

    `splits` maps a split to its file, None for the shipped one; `lacks` maps every table and figure of
    the paper to what the run lacks for it; `config_text` is the whole
    configuration as it is printed at the end of the report.
    """

    run: str
    title: str
    note: str
    seed: int
    models: dict[str, Source] = Field(min_length=1)
    regimes: list[str]
    weights: list[float]
    splits: dict[str, str | None]
    stimuli: StimuliSettings
    compute: Compute
    benchmarks: dict[str, BenchmarkFacts]
    lacks: dict[str, str]
    analysis_resamples: int
    shift_resamples: int
    config_text: str
