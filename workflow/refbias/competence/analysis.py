"""From a subject's result files to effects, means by occupation and attribute, hiring decisions and verdicts.

Every number is a paired difference: per (occupation, question) between two attributes, per résumé and name between two
groups of names or two arms of steering. Samples of one question are averaged first: they are no further questions.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from refbias.competence.hiring_analysis import HiringEffects, hiring_effects
from refbias.competence.records import Contrast
from refbias.competence.results import (
    BEHAVIOUR_COLUMNS,
    EFFECT_COLUMNS,
    HIRING_COLUMNS,
    KEY,
    RANDOM_COLUMNS,
    SCORE_COLUMNS,
    read_table,
)
from refbias.competence.statistics import (
    Effect,
    EffectSettings,
    Named,
    adjusted,
    cluster_means,
    effects,
    equivalence_bound,
    random_percentile,
)
from refbias.competence.verdict import Check, Criteria, Verdict, refusals, relevance, verdicts
from refbias.errors import UserError
from refbias.stats.paired import paired_effects
from refbias.stats.vectors import FloatArray

LEAST_RANDOM_DIRECTIONS = 200
# measure -> column of its file; E is judged, the others stand beside it
SCORES = {"E": "E", "E_normalised": "E_normalised"}
ANSWERS = {"L": "reading_level", "fkgl": "fkgl", "dcrs": "dcrs"}
UNIT = ["occupation", "question_id"]


@dataclass(frozen=True)
class AnalysisSettings:
    """How a subject is analysed.

    Attributes
    ----------
    effects
        Of the tests.
    criteria
        Of verdicts on answers.
    hiring_bound
        Difference of logits that counts as none in the hiring task.
    """

    effects: EffectSettings = field(default_factory=EffectSettings)
    criteria: Criteria = field(default_factory=Criteria)
    hiring_bound: float = 0.1


@dataclass(frozen=True)
class Analysis:
    """What the analysis of a subject leaves.

    Attributes
    ----------
    effects
        One row a contrast and measure.
    occupations
        contrast_id, family, role, measure, occupation, mean.
    attributes
        attribute_id, with_occupation, measure, n, mean, ci_low, ci_high.
    arms
        Hiring by arm and group of names; empty without the hiring task.
    verdicts
        The contents of ``verdicts.json``.
    """

    effects: pd.DataFrame
    occupations: pd.DataFrame
    attributes: pd.DataFrame
    arms: pd.DataFrame
    verdicts: dict[str, Any]


def _wide(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return one row a (occupation, question), one column an (attribute, occupation named)."""
    grouped = frame.groupby(list(KEY), sort=True)[column].mean()  # the mean passes over missing samples
    wide: pd.DataFrame = grouped.unstack(["attribute_id", "with_occupation"])
    return wide


def _differences(wide: pd.DataFrame, contrasts: Sequence[Contrast]) -> FloatArray:
    found = [
        wide[contrast.cells[0]].to_numpy(float) - wide[contrast.cells[1]].to_numpy(float) for contrast in contrasts
    ]
    return np.column_stack(found)


def _measured(
    frame: pd.DataFrame, contrasts: Iterable[Contrast], name: str
) -> tuple[list[Contrast], list[tuple[Contrast, str]]]:
    """Return the contrasts whose both sides were measured, and the others with what the file `name` lacks."""
    cells = set(zip(frame["attribute_id"], frame["with_occupation"], strict=True))
    inside, outside = [], []
    for contrast in contrasts:
        lacking = " and ".join(
            f"{attribute} {'with' if named else 'without'} occupation"
            for attribute, named in contrast.cells
            if (attribute, named) not in cells
        )
        if lacking:
            outside.append((contrast, f"{name}: {contrast.id} was not measured: no row of {lacking}"))
        else:
            inside.append(contrast)
    return inside, outside


def _along_random(frame: pd.DataFrame, contrasts: Sequence[Contrast], path: Path) -> dict[str, dict[str, FloatArray]]:
    """Return contrast -> kind of random direction -> mean difference along each direction."""
    index = ["kind", "direction", "attribute_id", "with_occupation"]
    if frame.duplicated(index).any():
        raise UserError(f"{path}: a direction has two rows for one attribute: make the table again")
    wide = frame.set_index(index)["E"].unstack(["attribute_id", "with_occupation"])
    for kind, rows in wide.groupby(level="kind"):
        if len(rows) < LEAST_RANDOM_DIRECTIONS:
            raise UserError(f"{path}: {len(rows)} {kind} directions: at least {LEAST_RANDOM_DIRECTIONS} are needed")
    found: dict[str, dict[str, FloatArray]] = {}
    for contrast in contrasts:
        if not set(contrast.cells) <= set(wide.columns):
            raise UserError(f"{path}: no rows for contrast {contrast.id}: make the table again")
        along = wide[contrast.cells[0]] - wide[contrast.cells[1]]
        if along.isna().any():
            raise UserError(f"{path}: contrast {contrast.id} lacks some directions: make the table again")
        found[contrast.id] = {str(kind): rows.to_numpy(float) for kind, rows in along.groupby(level="kind")}
    return found


def _by_attribute(wide: pd.DataFrame, measure: str, settings: EffectSettings) -> list[dict[str, Any]]:
    means = paired_effects(
        wide.to_numpy(float),
        wide.index.get_level_values("occupation"),
        level=settings.level,
        n_resamples=settings.n_resamples,
        n_permutations=1,  # a mean has no test here
        seed=settings.seed,
    )
    return [
        {
            "attribute_id": cell[0],
            "with_occupation": cell[1],
            "measure": measure,
            "n": int(means.n[at]),
            "mean": means.mean[at],
            "ci_low": means.low[at],
            "ci_high": means.high[at],
        }
        for at, cell in enumerate(wide.columns)
    ]


@dataclass(frozen=True)
class _Measured:
    effects: list[Effect]
    occupations: list[dict[str, Any]]
    attributes: list[dict[str, Any]]


def _measure(
    frame: pd.DataFrame, column: str, measure: str, contrasts: Sequence[Contrast], settings: AnalysisSettings
) -> _Measured:
    wide = _wide(frame, column)
    names = [Named(contrast.id, contrast.family, contrast.role) for contrast in contrasts]
    differences = _differences(wide, contrasts)
    cluster = wide.index.get_level_values("occupation")
    bound = settings.criteria.bound if measure in ANSWERS else None
    found = effects(names, differences, cluster, measure, settings.effects, bound)
    if measure in SCORES and (bound := equivalence_bound(found, settings.criteria.representation_share)):
        found = effects(names, differences, cluster, measure, settings.effects, bound)
    occupations, means = cluster_means(differences, cluster)
    rows = [
        {**asdict(name), "measure": measure, "occupation": occupation, "mean": means[row, at]}
        for at, name in enumerate(names)
        for row, occupation in enumerate(occupations)
    ]
    return _Measured(adjusted(found, settings.effects.level), rows, _by_attribute(wide, measure, settings.effects))


def analyse(folder: Path, contrasts: Sequence[Contrast], settings: AnalysisSettings) -> Analysis:
    """Analyse one subject.

    Parameters
    ----------
    folder
        Holds scores.csv, random_directions.csv, behaviour.csv and, where the hiring task was run, hiring.csv.
    contrasts
        What to compare.
    settings
        Of tests and verdicts.

    Raises
    ------
    UserError
        If a file, a column or all of the contrasts are missing.
    """
    scores, answers = (
        read_table(folder / "scores.csv", SCORE_COLUMNS),
        read_table(folder / "behaviour.csv", BEHAVIOUR_COLUMNS),
    )
    random = read_table(folder / "random_directions.csv", RANDOM_COLUMNS)
    parts: dict[str, _Measured] = {}
    notes: list[str] = []
    unmeasured: list[Check] = []
    for frame, measures, name in ((scores, SCORES, "scores.csv"), (answers, ANSWERS, "behaviour.csv")):
        inside, missing = _measured(frame, contrasts, name)
        if not inside:
            raise UserError(f"{folder / name}: holds both sides of no contrast: name the contrasts that were run")
        # E has to pass every check: one that cannot be made is more than a note
        blocks = {contrast.id for contrast, _ in missing if name == "scores.csv" and contrast.role == "relevant"}
        unmeasured += [Check(contrast.id, "E", False, why, False) for contrast, why in missing if contrast.id in blocks]
        notes += [why for contrast, why in missing if contrast.id not in blocks]
        for measure, column in measures.items():
            parts[measure] = _measure(frame, column, measure, inside, settings)
        if name == "scores.csv":
            along = _along_random(random, inside, folder / "random_directions.csv")
    parts["E"] = replace(parts["E"], effects=[_beside_random(effect, along) for effect in parts["E"].effects])
    hiring_file = folder / "hiring.csv"
    hiring = None
    if hiring_file.exists():
        hiring = hiring_effects(
            read_table(hiring_file, HIRING_COLUMNS),
            settings.effects,
            settings.hiring_bound,
            settings.criteria.representation_share,
        )
        notes += hiring.notes
    every = [effect for part in parts.values() for effect in part.effects] + (hiring.effects if hiring else [])
    return Analysis(
        pd.DataFrame([asdict(effect) for effect in every], columns=list(EFFECT_COLUMNS)),
        pd.DataFrame(list(itertools.chain(*(part.occupations for part in parts.values())))),
        pd.DataFrame(list(itertools.chain(*(part.attributes for part in parts.values())))),
        hiring.arms if hiring else pd.DataFrame(),
        _judged(parts, unmeasured, hiring, settings, random["direction"].nunique(), notes),
    )


def _beside_random(effect: Effect, along: dict[str, dict[str, FloatArray]]) -> Effect:
    if effect.mean is None:
        return effect
    # of several kinds of random directions the hardest counts
    shares = [random_percentile(effect.mean, values) for values in along[effect.contrast_id].values()]
    return replace(effect, random_percentile=min(shares))


def _judged(
    parts: Mapping[str, _Measured],
    unmeasured: Sequence[Check],
    hiring: HiringEffects | None,
    settings: AnalysisSettings,
    n_random: int,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the contents of ``verdicts.json``."""
    tasks = {"answers": (parts["E"].effects, parts["L"].effects, settings.criteria)}
    absent: dict[str, Sequence[Check]] = {"answers": unmeasured}
    if hiring:
        criteria = replace(settings.criteria, bound=settings.hiring_bound)
        tasks["hiring"] = (hiring.of("hiring_E"), hiring.of("hiring"), criteria)
    checks, refused, found = [], {}, list[Verdict]()
    for task, (inside, outside, criteria) in tasks.items():
        both = [*relevance(inside, criteria), *absent.get(task, ())], relevance(outside, criteria)
        refused[task] = list(refusals(*both))
        checks += [{"task": task, **asdict(check)} for check in itertools.chain(*both)]
        found += verdicts(inside, outside, task, criteria, refused[task])
    return {
        "schema_version": 1,
        "criteria": {
            **asdict(settings.criteria),
            "hiring_bound": settings.hiring_bound,
            **asdict(settings.effects),
            "n_random_directions": n_random,
        },
        "relevance": checks,
        "refused": refused,
        "verdicts": [asdict(verdict) for verdict in found],
        "notes": list(notes),
    }
