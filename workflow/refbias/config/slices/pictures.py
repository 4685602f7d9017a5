"""Slices of the statistics, tables, figures, report and record of a run."""

from collections.abc import Collection

import yaml

from refbias.config.analysis import AnalyseStage
from refbias.config.figures import FigureStage
from refbias.config.pictures import FIGURES, TableStage, lacking
from refbias.config.provenance import ProvenanceStage
from refbias.config.report import BenchmarkFacts, ReportStage
from refbias.config.root import Config
from refbias.config.slices.base import as_json


def analyse_slice(config: Config) -> str:
    """Return the JSON slice of stage `analyse`."""
    enabled = config.benchmarks.enabled()
    return as_json(
        AnalyseStage(
            analysis=config.analysis,
            thresholds={name: settings.threshold for name, settings in enabled.items()},
            seed=config.seed,
            groups_file=config.stimuli.groups_file,
            families=config.families(),
        )
    )


def tables_slice(config: Config, ablations: Collection[str] = ()) -> str:
    """Return the JSON slice of stage `tables`, given the ablations that run."""
    enabled = config.benchmarks.enabled()
    return as_json(
        TableStage(
            models=list(config.models),
            families=config.families(),
            regimes=list(config.regime_slugs()),
            thresholds={name: settings.threshold for name, settings in enabled.items()},
            scorers={name: settings.scorer for name, settings in enabled.items()},
            lacks=config.lacks(ablations),
            sources={slug: model.source for slug, model in config.models.items()},
            stimuli=config.stimuli,
            splits={name: config.split_file(name) for name in ("unharmful", "harmful")},
            prompts=config.prompt_files(),
            variants_dir=config.ablations.variants_dir if config.ablations else None,
        )
    )


def figures_slice(config: Config, ablations: Collection[str] = ()) -> str:
    """Return the JSON slice of stage `figures`, given the ablations that run."""
    enabled = config.benchmarks.enabled()
    return as_json(
        FigureStage(
            models=list(config.models),
            regimes=list(config.regime_slugs()),
            thresholds={name: settings.threshold for name, settings in enabled.items()},
            groups_file=config.stimuli.groups_file,
            lacks=lacking(FIGURES, config.regime_slugs(), enabled, ablations),
        )
    )


def report_slice(config: Config, ablations: Collection[str] = ()) -> str:
    """Return the JSON slice of stage `report`: what the report prints about the run, given the ablations that run."""
    prompts = config.prompt_files()
    facts = {
        name: BenchmarkFacts.model_validate(
            {**settings.model_dump(include=set(BenchmarkFacts.model_fields)), "prompts": prompts[name]}
        )
        for name, settings in config.benchmarks.enabled().items()
    }
    return as_json(
        ReportStage(
            run=config.run,
            title=config.title,
            note=config.note,
            seed=config.seed,
            models={slug: model.source for slug, model in config.models.items()},
            regimes=list(config.regime_slugs()),
            weights=config.spectrum.weights,
            splits={name: config.split_file(name) for name in ("unharmful", "harmful")},
            stimuli=config.stimuli,
            compute=config.compute,
            benchmarks=facts,
            lacks=config.lacks(ablations),
            analysis_resamples=config.analysis.n_resamples,
            shift_resamples=config.shift.n_resamples,
            config_text=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        )
    )


def provenance_slice(config: Config, config_file: str, ablations: Collection[str] = ()) -> str:
    """Return the JSON slice of stage `provenance`: the whole configuration and the file that holds it."""
    return as_json(
        ProvenanceStage(
            run=config.run,
            seed=config.seed,
            models=list(config.models),
            config=config.model_dump(mode="json"),
            config_file=config_file,
            lacks=config.lacks(ablations),
        )
    )
