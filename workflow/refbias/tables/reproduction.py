"""What this run shows of the paper: one row a claim, table and figure, with the conditions under which it was had."""

from collections.abc import Mapping

import pandas as pd

from refbias.config.models import GgufPackageSource, HubSource, LocalSource
from refbias.config.pictures import PICTURES, TableStage
from refbias.tables.cells import TextTable
from refbias.tables.claims import CLAIMS, NOT_RUN, Evidence
from refbias.tables.labels import BENCHMARK_LABELS, benchmark_label, ordered, scorer_label
from refbias.tables.printed import printed

MADE = "made"
REPRODUCTION_COLUMNS = [
    "kind",
    "name",
    "paper_source",
    "paper",
    "criterion",
    "verdict",
    "shown",
    "models",
    "sentences",
    "data",
    "scorers",
]
REPRODUCTION_CAPTION = (
    "What this run shows of the paper. Verdicts follow from the criterion in the same row and from this run's tables; "
    "a claim whose rows are absent, or whose models stand for none of the paper's, is not run. The authors' sentences "
    "are not available: no verdict rests on them unless the run names files of them."
)


def model_name(source: HubSource | LocalSource | GgufPackageSource) -> str:
    """Say briefly where a model comes from."""
    if isinstance(source, HubSource):
        return f"{source.id}@{source.revision}"
    return source.path if isinstance(source, LocalSource) else source.package


def sentence_sets(settings: TableStage) -> str:
    """Say which sentences were embedded."""
    chosen = settings.stimuli
    kinds = ("targets", "attributes", "anchors", "control")
    parts = [f"{getattr(chosen, kind)} {kind} ({getattr(chosen, f'{kind}_file') or 'shipped'})" for kind in kinds]
    return ", ".join(parts)


def data_sets(settings: TableStage) -> str:
    """Say which prompts and fine-tuning data were used."""
    names = ordered(settings.prompts, BENCHMARK_LABELS)
    prompts = [f"{benchmark_label(name)}: {settings.prompts[name] or 'shipped own text'}" for name in names]
    splits = [f"{name} split: {file or 'shipped own text'}" for name, file in settings.splits.items()]
    return "; ".join([*prompts, *splits])


def reproduction(settings: TableStage, evidence: Evidence) -> pd.DataFrame:
    """Judge every claim and account for every table and figure.

    Parameters
    ----------
    settings
        What the run was.
    evidence
        Its tables.

    Returns
    -------
    DataFrame
        `REPRODUCTION_COLUMNS`; ``kind`` is ``claim``, ``table`` or ``figure``, ``verdict`` of a claim ``reproduced``,
        ``not reproduced`` or ``not run``, of a table or figure ``made`` or ``not run``.
    """
    sentences, data = sentence_sets(settings), data_sets(settings)
    used = [(key, settings.scorers[key]) for key in ordered(settings.scorers, BENCHMARK_LABELS)]
    scorers = ", ".join(f"{benchmark_label(key)}: {scorer_label(name)}" for key, name in used)
    names = {model: f"{model} ({model_name(settings.sources[model])})" for model in settings.models}
    rows = []
    for claim in CLAIMS:
        found = claim.judge(evidence)
        models = ", ".join(names[model] for model in settings.models if model in found.models)
        conditions = [models, sentences, data, scorers]
        place = ["claim", claim.name, claim.source, claim.paper, claim.criterion]
        rows.append([*place, found.verdict, found.shown, *conditions])
    every = ", ".join(names.values())
    for name, picture in PICTURES.items():
        kind, reason = name.partition("_")[0], settings.lacks[name]
        place = [kind, name, name.replace("_", " "), picture.title, ""]
        rows.append([*place, NOT_RUN if reason else MADE, reason, "" if reason else every, sentences, data, scorers])
    return pd.DataFrame(rows, columns=REPRODUCTION_COLUMNS)


def reproduction_text(frame: pd.DataFrame) -> TextTable:
    """Format the account of the claims, tables and figures."""
    headers: Mapping[str, str] = {
        "kind": "Kind",
        "paper_source": "In the paper",
        "paper": "What it says or shows",
        "criterion": "Criterion",
        "verdict": "This run",
        "shown": "Shown",
        "models": "Models",
    }
    return printed(frame, headers)
