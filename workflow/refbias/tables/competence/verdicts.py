"""Tables of the competence lens's verdicts and of the relevance checks that they rest on."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from refbias.competence.results import Subject
from refbias.tables.competence.labels import MEASURE_LABELS
from refbias.tables.competence.rows import SUBJECT_HEADERS, CompetenceTable, in_words, of_all
from refbias.tables.printed import printed

VERDICTS_CAPTION = (
    "What each irrelevant attribute moves. Still needs a test of equivalence; where neither a movement nor its "
    "absence is shown, the verdict is undecided. A verdict is refused where the measures do not answer to what is "
    "relevant."
)
RELEVANCE_CAPTION = (
    "Relevance checks: what ought to raise the measure. The representation has to pass all of them, so one "
    "that was not measured refuses the verdict too; the behaviour has to pass one."
)


def verdict_table(subjects: Sequence[Subject]) -> CompetenceTable:
    """Return the verdicts, one a contrast and task."""
    columns = ("task", "contrast_id", "family", "role", "representation", "behaviour", "outcome", "sentence")
    frame = of_all(
        subjects, {s.slug: pd.DataFrame(_rows(s.verdicts["verdicts"], columns), columns=columns) for s in subjects}
    )
    headers = {
        **SUBJECT_HEADERS,
        "task": "Task",
        "contrast_id": "Contrast",
        "role": "Role",
        "representation": "Representation",
        "behaviour": "Behaviour",
        "outcome": "Verdict",
    }
    return CompetenceTable("competence_verdicts", frame, printed(in_words(frame), headers), VERDICTS_CAPTION)


def relevance_table(subjects: Sequence[Subject]) -> CompetenceTable:
    """Return the relevance checks with their reasons."""
    columns = ("task", "measure", "contrast_id", "passed", "sentence", "measured")
    frame = of_all(
        subjects, {s.slug: pd.DataFrame(_rows(s.verdicts["relevance"], columns), columns=columns) for s in subjects}
    )
    shown = in_words(frame).assign(
        passed=[
            "passes" if passed else "fails" if measured else "not measured"
            for passed, measured in zip(frame["passed"], frame["measured"], strict=True)
        ],
        measure=[MEASURE_LABELS.get(str(name), str(name)) for name in frame["measure"]],
        sentence=[str(text).partition(": ")[2] for text in frame["sentence"]],
    )
    headers = {
        **SUBJECT_HEADERS,
        "measure": "Measure",
        "contrast_id": "Check",
        "passed": "Outcome",
        "sentence": "What was seen",
    }
    return CompetenceTable("competence_relevance", frame, printed(shown, headers), RELEVANCE_CAPTION)


def _rows(values: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[dict[str, Any]]:
    return [{column: value.get(column) for column in columns} for value in values]
