"""What the tables of the competence lens share: the record of a table, and the rows of several subjects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from refbias.competence.results import Subject
from refbias.tables.cells import TextTable
from refbias.tables.competence.labels import contrast_label, subject_label


@dataclass(frozen=True)
class CompetenceTable:
    """A table of the lens: its name (a file stem), its rows, its cells in print, its caption."""

    name: str
    frame: pd.DataFrame
    text: TextTable
    caption: str


def of_all(subjects: Sequence[Subject], rows: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Put tables of subjects below each other, named by model and subject."""
    frames = []
    for subject in subjects:
        frame = rows[subject.slug].copy()
        frame.insert(0, "model", subject.model)
        frame.insert(1, "subject", subject.subject)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def in_words(frame: pd.DataFrame) -> pd.DataFrame:
    """Put the names of subjects and contrasts in words."""
    shown = frame.assign(subject=[subject_label(str(name)) for name in frame["subject"]])
    if "contrast_id" in frame.columns:
        shown = shown.assign(contrast_id=[contrast_label(str(name)) for name in frame["contrast_id"]])
    return shown


SUBJECT_HEADERS = {"model": "Model", "subject": "Subject"}


def at_level(text: str, subjects: Sequence[Subject]) -> str:
    """Put the level of the subjects' intervals where a text says 95 %."""
    levels = " and ".join(f"{100 * level:g}" for level in sorted({subject.level for subject in subjects}))
    return text.replace("95 %", f"{levels} %")
