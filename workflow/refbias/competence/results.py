"""The result files of a subject as checked tables: which columns they need, and what their words mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from refbias.artifacts import read_json
from refbias.errors import UserError

KEY = ("attribute_id", "with_occupation", "occupation", "question_id")
SCORE_COLUMNS = (*KEY, "E", "E_normalised")
BEHAVIOUR_COLUMNS = (*KEY, "sample", "fkgl", "dcrs", "reading_level", "words", "sentences")
RANDOM_COLUMNS = ("attribute_id", "with_occupation", "direction", "kind", "E")
HIRING_COLUMNS = ("resume_id", "quality", "role", "name", "group", "arm", "yes_logit_minus_no", "p_yes", "parsed", "E")
STEERING_COLUMNS = ("alpha", "direction", "reading_level", "yes_logit", "perplexity", "n")
ARMS = ("none", "plus", "minus")
REFERENCE = "reference"
_NAMES = frozenset(
    {
        *("attribute_id", "occupation", "question_id", "contrast_id", "family", "measure", "kind", "direction"),
        *("resume_id", "quality", "role", "name", "group", "arm", "parsed", "benchmark"),
        *("model", "subject", "task", "outcome", "representation", "behaviour", "equivalent"),
    }
)
_TRUTH = {"true": True, "false": False}


def read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read a result table; only an empty cell is missing, and names stay text.

    Raises
    ------
    UserError
        If the file or a column is missing, a number is none, or a truth value neither true nor false.
    """
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: run the stage that writes it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): name a CSV file") from None
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a CSV table: {str(error).strip()}") from None
    if missing := [column for column in columns if column not in frame.columns]:
        raise UserError(f"{path}:1: column {missing[0]!r} is missing: make the table again")
    for column in columns:
        if column == "with_occupation":
            frame[column] = _truth(frame[column], path)
        elif column not in _NAMES:
            frame[column] = _numbers(frame[column], path)
    return frame


def _truth(column: "pd.Series[str]", path: Path) -> "pd.Series[bool]":
    found = column.str.lower().map(_TRUTH)
    if found.isna().any():
        at = int(np.argmax(found.isna()))
        raise UserError(f"{path}:{at + 2}: {column.name} {column.iloc[at]!r}: must be true or false")
    return found.astype(bool)


def _numbers(column: "pd.Series[str]", path: Path) -> "pd.Series[float]":
    found = pd.to_numeric(column.where(column != "", None), errors="coerce").astype(float)
    wrong = found.isna() & (column != "") | np.isinf(found)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise UserError(f"{path}:{at + 2}: {column.name} {column.iloc[at]!r}: not a number: make the table again")
    return found


EFFECT_COLUMNS = (
    *("contrast_id", "family", "role", "measure", "n", "n_missing", "mean", "d_z", "ci_low", "ci_high"),
    *("p", "p_holm", "bound", "p_equivalence", "equivalent", "random_percentile"),
    *("n_decided", "yes_first", "yes_second", "only_first", "only_second", "mcnemar_p", "mcnemar_p_holm"),
    *("n_clusters", "p_equivalence_holm", "n_names"),
)
OCCUPATION_COLUMNS = ("contrast_id", "family", "role", "measure", "occupation", "mean")
ATTRIBUTE_COLUMNS = ("attribute_id", "with_occupation", "measure", "n", "mean", "ci_low", "ci_high")
ARM_COLUMNS = (
    *("arm", "group", "n", "yes_logit_minus_no", "p_yes", "n_readable", "yes_share", "yes_low", "yes_high"),
    *("to_yes", "to_no", "mcnemar_p"),
)
MITIGATION_COLUMNS = (
    *("arm", "perplexity", "reading_level", "yes_logit", "layer", "contrast_id", "family", "role"),
    *("mean_E", "mean_E_normalised"),
)
AXIS_COLUMNS = ("alpha", "benchmark", "group", "score", "n", "n_missing", "perplexity")


@dataclass(frozen=True)
class Subject:
    """One model or checkpoint of the competence lens, as its analysis left it; what was not run is None.

    Attributes
    ----------
    model, subject
        Slugs; `subject` is ``reference`` or ``<regime>-<checkpoint>``.
    effects, occupations, attributes, arms
        Tables of `refbias.competence.analysis`.
    verdicts
        ``verdicts.json``.
    steering, mitigation, axis
        Tables of those names.
    direction
        ``direction.json``.
    """

    model: str
    subject: str
    effects: pd.DataFrame
    occupations: pd.DataFrame
    attributes: pd.DataFrame
    verdicts: Mapping[str, Any]
    arms: pd.DataFrame | None = None
    steering: pd.DataFrame | None = None
    mitigation: pd.DataFrame | None = None
    direction: Mapping[str, Any] | None = None
    axis: pd.DataFrame | None = None

    @property
    def level(self) -> float:
        """Coverage of the subject's intervals; 1 - level is the error of its tests."""
        return float(self.verdicts["criteria"]["level"])

    @property
    def slug(self) -> str:
        """Name of the subject's own files."""
        return f"{self.model}_{self.subject}"


def load_subject(folder: Path) -> Subject:
    """Read one subject's analysed folder, ``.../<model>/<subject>``.

    Raises
    ------
    UserError
        If a file that the analysis writes is missing or broken.
    """
    verdicts = read_json(folder / "verdicts.json")
    if not isinstance(verdicts, dict) or not isinstance(verdicts.get("verdicts"), list):
        raise UserError(f"{folder / 'verdicts.json'}: holds no list of verdicts: run refbias competence analyse")
    if not isinstance(verdicts.get("criteria"), dict) or not isinstance(verdicts["criteria"].get("level"), float):
        raise UserError(f"{folder / 'verdicts.json'}: holds no level of its tests: run refbias competence analyse")
    direction = folder / "direction.json"
    return Subject(
        folder.parent.name,
        folder.name,
        read_table(folder / "effects.csv", EFFECT_COLUMNS),
        read_table(folder / "occupations.csv", OCCUPATION_COLUMNS),
        read_table(folder / "attributes.csv", ATTRIBUTE_COLUMNS),
        verdicts,
        _optional(folder / "hiring_arms.csv", ARM_COLUMNS),
        _optional(folder / "steering.csv", STEERING_COLUMNS),
        _optional(folder / "mitigation.csv", MITIGATION_COLUMNS),
        read_json(direction) if direction.is_file() else None,
        _optional(folder / "axis.csv", AXIS_COLUMNS),
    )


def load_subjects(folder: Path) -> list[Subject]:
    """Read every analysed subject below ``results/<run>/competence``, the reference of a model first.

    Raises
    ------
    UserError
        If there is none.
    """
    found = sorted({path.parent for path in folder.glob("*/*/verdicts.json")})
    if not found:
        raise UserError(f"{folder}: holds no <model>/<subject>/verdicts.json: run refbias competence analyse first")
    return [
        load_subject(path) for path in sorted(found, key=lambda at: (at.parent.name, at.name != REFERENCE, at.name))
    ]


def _optional(path: Path, columns: Sequence[str]) -> pd.DataFrame | None:
    return read_table(path, columns) if path.is_file() else None
