"""Which of the paper's tables and figures a run makes, and what the others lack.

The answer follows from the configuration alone, so that the workflow, the stages that make the pictures and the table
that accounts for them all say the same.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from refbias.config.base import Strict
from refbias.config.models import Family, Source
from refbias.config.stimuli import StimuliSettings

REGIME_NAMES = {"full": "full fine-tuning", "lora": "LoRA"}
BENCHMARK_NAMES = {"wildguardmix": "WildGuardMix", "decodingtrust": "DecodingTrust", "toxigen": "ToxiGen"}
ABLATION_NAMES = {
    "attributes": "the attribute variants",
    "targets": "the target variants",
    "anchors": "the anchor sources",
    "pooling": "the pooling variants",
    "training_seeds": "the training seeds",
}


@dataclass(frozen=True)
class Picture:
    """One table or figure of the paper.

    Attributes
    ----------
    name
        Target in the workflow, such as ``table_5``.
    stem
        File name without extension; figure 2 comes once a model and regime, which are put behind the stem.
    title
        What it shows.
    regime
        The only regime it shows, None if it takes all.
    benchmarks
        Benchmarks of which at least one must be part of the run, empty if none is needed.
    ablations
        Ablations of which at least one must be part of the run, empty if none is needed.
    """

    name: str
    stem: str
    title: str
    regime: Literal["full", "lora"] | None = None
    benchmarks: tuple[str, ...] = ()
    ablations: tuple[str, ...] = ()

    def lacks(self, regimes: Collection[str], benchmarks: Collection[str], ablations: Collection[str]) -> str:
        """Return what a run lacks for this picture, an empty text if nothing."""
        absent = []
        if self.regime and self.regime not in regimes:
            absent.append(REGIME_NAMES[self.regime])
        if self.benchmarks and not set(self.benchmarks) & set(benchmarks):
            absent.append(" and ".join(BENCHMARK_NAMES[name] for name in self.benchmarks))
        if self.ablations and not set(self.ablations) & set(ablations):
            absent.append(" and ".join(ABLATION_NAMES[name] for name in self.ablations))
        return f"not part of this run: {', '.join(absent)}" if absent else ""


_PAIR = ("wildguardmix", "decodingtrust")
_VARIANTS = ("attributes", "targets")
TABLES = (
    Picture("table_1", "table1", "dB against the change of score"),
    Picture("table_2", "table2", "Target groups and their topics"),
    Picture("table_3", "table3", "Cost in minutes"),
    Picture("table_4", "table4", "Sentence variants", "full", ablations=_VARIANTS),
    Picture("table_5", "table5", "AUC under sentence variants", "full", ablations=_VARIANTS),
    Picture("table_6", "table6", "AUC under poolings", "full", ablations=("pooling",)),
    Picture("table_7", "table7", "Four methods", "full", _PAIR),
)


def _by_model(number: int, benchmark: str, regime: Literal["full", "lora"]) -> Picture:
    title = f"{BENCHMARK_NAMES[benchmark]}, {REGIME_NAMES[regime]}: every model"
    return Picture(f"figure_{number}", f"figure{number}_{benchmark}_{regime}", title, regime, (benchmark,))


def _labelled(number: int, benchmark: str, regime: Literal["full", "lora"]) -> Picture:
    title = f"{BENCHMARK_NAMES[benchmark]}, {REGIME_NAMES[regime]}: units by number"
    return Picture(f"figure_{number}", f"figure{number}_{benchmark}_{regime}_labelled", title, regime, (benchmark,))


FIGURES = (
    Picture("figure_2", "figure2", "dB against the change of score"),
    Picture("figure_3", "figure3_auc_threshold", "AUC against the threshold, all methods", "full"),
    Picture("figure_4", "figure4_anchors", "AUC against the number of anchors", "full", ablations=("anchors",)),
    Picture("figure_5", "figure5_training_seeds", "dB per group over training seeds", ablations=("training_seeds",)),
    Picture("figure_6", "figure6_methods", "Scatters of all methods", "full", _PAIR),
    _by_model(7, "wildguardmix", "full"),
    _by_model(8, "decodingtrust", "full"),
    _labelled(9, "decodingtrust", "full"),
    _labelled(10, "wildguardmix", "full"),
    _by_model(11, "wildguardmix", "lora"),
    _by_model(12, "decodingtrust", "lora"),
    _labelled(13, "decodingtrust", "lora"),
    _labelled(14, "wildguardmix", "lora"),
    _by_model(15, "toxigen", "full"),
    _by_model(16, "toxigen", "lora"),
)
PICTURES = {picture.name: picture for picture in (*TABLES, *FIGURES)}


def lacking(
    pictures: Iterable[Picture], regimes: Collection[str], benchmarks: Collection[str], ablations: Collection[str]
) -> dict[str, str]:
    """Return, for each of some pictures, what a run lacks for it; an empty text if nothing.

    Parameters
    ----------
    pictures
        From `TABLES` and `FIGURES`.
    regimes, benchmarks
        Those that run.
    ablations
        Those that run; ``training_seeds`` is one of them.
    """
    return {picture.name: picture.lacks(regimes, benchmarks, ablations) for picture in pictures}


class TableStage(Strict):
    """Slice of the configuration that the stage `tables` sees.

    `models` are in the order of the configuration; `families` maps a model to the row of the paper's tables it is
    compared with; `lacks` maps every table and figure of the paper to what the run lacks for it; `splits` and
    `prompts` hold files, None for the shipped ones, as does `variants_dir` a folder.
    """

    models: list[str] = Field(min_length=1)
    families: dict[str, Family | None] = Field(min_length=1)
    regimes: list[str]
    thresholds: dict[str, float]
    scorers: dict[str, str]
    lacks: dict[str, str]
    sources: dict[str, Source]
    stimuli: StimuliSettings
    splits: dict[str, str | None]
    prompts: dict[str, str | None]
    variants_dir: str | None = None
