"""The metamorphic lens in print: which columns are shown, under which name, and what a reader must know."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from refbias.metamorphic.account import COLUMNS as RELATION_COLUMNS
from refbias.metamorphic.beside_db import COLUMNS as BESIDE_COLUMNS
from refbias.metamorphic.beside_db import SUMMARY_COLUMNS
from refbias.metamorphic.remedy import COLUMNS as REMEDY_COLUMNS
from refbias.metamorphic.remedy import SIDE_COLUMNS
from refbias.tables.cells import TextTable
from refbias.tables.formats import DASH, count, interval, p_value, percent
from refbias.tables.labels import plain_name, regime_label
from refbias.tables.printed import Formatter, digits, printed

SOURCE, ALL = "source", "all"
RELATION_LABELS = {
    ALL: "all questions",
    SOURCE: "source",
    "MR1": "MR1 hypothetical",
    "MR2": "MR2 discussion",
    "MR3": "MR3 equality",
    "MR4": "MR4 similarity",
    "MR5": "MR5 property flip",
    "MR6": "MR6 group swap",
}
READING_LABELS = {"plain": "", "few_shot": "few-shot"}
SCOPE_LABELS = {
    ALL: "all questions",
    "held_out_keys": "held-out pair-property keys",
    "held_out_relation": "held-out relation",
    "held_out_both": "both held out",
    "trained": "trained questions",
    "not_trained": "training side, not trained",
}
METHOD_LABELS = {
    "few_shot": "few-shot",
    "fine_tuning": "fine-tuning",
    "fine_tuning_after_few_shot": "fine-tuning after few-shot",
}
AXIS_LABELS = {
    "mean_delta_b": "mean dB",
    "net_delta_b": "mean dB net of the control",
    "mean_abs_delta_b": "mean |dB|",
    "change": "change of resiliency",
    "resiliency": "resiliency",
}
CAPTIONS = {
    "model_relation": (
        "Bias resiliency, (1 - biased/answers) x 100, by model and relation, with Wilson 95 % CI; of all questions, "
        "where a question stands in several wordings, the interval draws whole source questions. Unsure: share of "
        "answers that could not be read; they count neither way. Hidden: source unbiased, rewording biased; vanished: "
        "the other way; flipped: biased both times, but for the other group. Under MR5 opposite groups for opposite "
        "poles are a coherent stereotype, the same group for both is incoherent (columns coherent and incoherent of "
        "the CSV). McNemar's exact test is the apt one, since source and rewording are paired; chi-square (without and "
        "with Yates' correction) takes them as independent. Holm and BH over the relations of a row's subject. A "
        "mitigated model: held-out pair-property keys only."
    ),
    "category_relation": (
        "Bias resiliency by category and relation, with Wilson 95 % CI; of all questions the interval draws "
        "whole source questions. Holm and BH over all cells of a subject. Few questions a cell mean "
        "wide intervals: a p above 0.05 says little."
    ),
    "mitigation": (
        "Resiliency before and after on the same questions, with 95 % CI; change in points over pairs readable both "
        "times, with its interval and the sign-flip test, after Holm too. All of these draw or flip whole source "
        "questions with all their wordings; McNemar's exact test takes the wordings of a question as independent, so "
        "its p is too small where there are several. Held-out pair-property keys "
        "(this pair of groups with this property) were in no training example in any wording, though pair and property "
        "may each have been, in other company; the held-out relation was trained on no key. Trained questions show "
        "what was learnt and prove nothing."
    ),
    "side_effects": (
        "What stands beside resiliency. Accuracy and over-refusal on neutral questions that no training held (yes-no "
        "and choice have a right answer; of why-questions only a refusal is told). Diversity of unbiased answers in "
        "the model's own words, groups and property taken out: different words and pairs of words of all, over equal "
        "numbers of answers, and the share of the commonest form."
    ),
    "beside_db": (
        "Resiliency by category beside dB of the target groups of its topic, every checkpoint against the reference. "
        "The lenses agree where dB and resiliency moved the same way. Clear: the change is told from 0 over source "
        "questions (its 95 % CI, and the sign-flip test of whole questions after Holm over the rows of a model and "
        "regime), and mean dB is larger than the group-free control's, which compares two numbers and is no test. "
        "Fewer than six source questions that changed can never be told from 0."
    ),
    "beside_db_summary": (
        "dB and resiliency over categories and checkpoints: correlations with two-way bootstrap 95 % CI over "
        "categories and checkpoints, and how often both moved the same way (Wilson 95 % CI, exact binomial p against "
        "one half). Checkpoints of a spectrum are mixtures of two fine-tunings, and the categories of a checkpoint "
        "share its control: p-values and Wilson intervals that take them as independent are too small and too narrow."
    ),
}


@dataclass(frozen=True)
class Printed:
    """A table under its file name: all columns, the printed ones, the caption."""

    stem: str
    frame: pd.DataFrame
    text: TextTable
    caption: str


def relation_label(relation: str) -> str:
    """Return a relation's name; chains stay as they are written."""
    return RELATION_LABELS.get(relation, relation)


def subject_label(subject: str, reading: str) -> str:
    """Return what a subject is called: ``reference, few-shot``."""
    parts = [plain_name(subject) if subject in ("reference", "mitigated") else subject]
    named = READING_LABELS.get(reading, reading)
    return ", ".join([*parts, *([named] if named else [])])


def bounds(row: "pd.Series[Any]") -> tuple[float, float]:
    """Return the interval of a row's resiliency: over source questions where these stand in several wordings."""
    name = "cluster" if row["relation"] == ALL else "ci"
    return float(row[f"{name}_low"]), float(row[f"{name}_high"])


def _ci(frame: pd.DataFrame, low: str, high: str, places: int) -> list[str]:
    return [_unbroken(row[low], row[high], places) for _, row in frame.iterrows()]


def _unbroken(low: float, high: float, places: int) -> str:
    # in a table of many columns an interval must not break into two lines
    return interval(low, high, places).replace(" ", "\u00a0")


def _relation_text(frame: pd.DataFrame, with_category: bool) -> TextTable:
    shown = frame.assign(
        subject=[subject_label(str(row["subject"]), str(row["reading"])) for _, row in frame.iterrows()],
        relation=[relation_label(str(name)) for name in frame["relation"]],
        ci=[_unbroken(*bounds(row), 1) for _, row in frame.iterrows()],
        category=[plain_name(str(name)) for name in frame["category"]],
    )
    headers = {"model": "Model", "subject": "Subject", **({"category": "Category"} if with_category else {})}
    headers |= {
        "relation": "Relation",
        "resiliency": "Resiliency",
        "ci": "95 % CI",
        "n_biased": "Biased",
        "n": "N",
        "unusable_share": "Unsure",
        "hidden": "Hidden",
        "vanished": "Vanished",
        "flipped": "Flipped",
        "mcnemar_p": "p McNemar",
        "mcnemar_holm": "Holm",
        "mcnemar_bh": "BH",
        "chi2_p": "p chi-square",
        "chi2_yates_p": "with Yates",
        "fisher_p": "p Fisher",
        "cramers_v": "Cramer's V",
    }
    formats: dict[str, Formatter] = {"resiliency": digits(1), "cramers_v": digits(2), "unusable_share": percent}
    tests = ("mcnemar_p", "mcnemar_holm", "mcnemar_bh", "chi2_p", "chi2_yates_p", "fisher_p")
    formats |= dict.fromkeys(tests, p_value)
    formats |= dict.fromkeys(("n_biased", "n", "hidden", "vanished", "flipped"), count)
    return printed(shown, headers, formats)


def remedy_text(frame: pd.DataFrame) -> TextTable:
    """Return the rows over all categories as they are printed, those that tell nothing left out."""
    rows = frame[(frame["category"] == ALL) & (frame["scope"] != "not_trained")]
    shown = rows.assign(
        method=[METHOD_LABELS.get(str(name), str(name)) for name in rows["method"]],
        scope=[SCOPE_LABELS.get(str(name), str(name)) for name in rows["scope"]],
        before_ci=_ci(rows, "before_low", "before_high", 1),
        after_ci=_ci(rows, "after_low", "after_high", 1),
        change_ci=_ci(rows, "change_low", "change_high", 1),
    )
    headers = {
        "model": "Model",
        "method": "Method",
        "scope": "Questions",
        "before": "Before",
        "before_ci": "95 % CI",
        "after": "After",
        "after_ci": "95 % CI",
        "n_pairs": "Pairs",
        "change": "Change",
        "change_ci": "95 % CI",
        "change_p": "p",
        "change_holm": "Holm",
        "mended": "Mended",
        "worsened": "Worsened",
        "mcnemar_p": "p McNemar",
    }
    formats: dict[str, Formatter] = {name: digits(1) for name in ("before", "after", "change")}
    formats |= dict.fromkeys(("n_pairs", "mended", "worsened"), count)
    formats |= dict.fromkeys(("change_p", "change_holm", "mcnemar_p"), p_value)
    return printed(shown, headers, formats)


def side_text(frame: pd.DataFrame) -> TextTable:
    """Return the side effects as they are printed."""
    shown = frame.assign(
        subject=[subject_label(str(row["subject"]), str(row["reading"])) for _, row in frame.iterrows()],
        accuracy_ci=_ci(frame, "accuracy_low", "accuracy_high", 2),
        refusal_ci=_ci(frame, "over_refusal_low", "over_refusal_high", 2),
    )
    headers = {
        "model": "Model",
        "subject": "Subject",
        "neutral_accuracy": "Neutral accuracy",
        "accuracy_ci": "95 % CI",
        "n_scored": "N",
        "accuracy_mcnemar_p": "p McNemar",
        "over_refusal": "Over-refusal",
        "refusal_ci": "95 % CI",
        "n_neutral": "N",
        "n_unread": "Unread",
        "n_compared": "Unbiased answers compared",
        "distinct_1": "Distinct-1",
        "distinct_2": "Distinct-2",
        "n_forms": "Forms",
        "commonest_share": "Commonest form",
        "note": "Note",
    }
    formats: dict[str, Formatter] = {
        name: digits(2) for name in ("neutral_accuracy", "over_refusal", "distinct_1", "distinct_2")
    }
    formats |= dict.fromkeys(("n_scored", "n_neutral", "n_unread", "n_compared", "n_forms"), count)
    formats |= {"commonest_share": percent, "accuracy_mcnemar_p": p_value}
    return printed(shown, headers, formats)


def beside_text(frame: pd.DataFrame) -> TextTable:
    """Return the rows of two lenses as they are printed."""
    shown = frame.assign(
        regime=[regime_label(str(name)) for name in frame["regime"]],
        category=[plain_name(str(name)) for name in frame["category"]],
        topics=[", ".join(map(plain_name, str(names).split())) or DASH for names in frame["topics"].fillna("")],
        change_ci=_ci(frame, "change_low", "change_high", 1),
        clear=["yes" if value else "no" for value in frame["clear"]],
    )
    headers = {
        "model": "Model",
        "regime": "Regime",
        "checkpoint": "Checkpoint",
        "category": "Category",
        "topics": "Topics of dB",
        "n_groups": "Groups",
        "mean_delta_b": "Mean dB",
        "mean_abs_delta_b": "Mean |dB|",
        "control_delta_b": "Control dB",
        "net_delta_b": "Net of it",
        "reference_resiliency": "Resiliency before",
        "resiliency": "after",
        "change": "Change",
        "change_ci": "95 % CI",
        "change_p": "p",
        "change_holm": "Holm",
        "lenses": "Lenses",
        "clear": "Clear",
    }
    formats: dict[str, Formatter] = {
        name: digits(4) for name in ("mean_delta_b", "mean_abs_delta_b", "control_delta_b")
    }
    formats |= {name: digits(1) for name in ("reference_resiliency", "resiliency", "change")}
    formats |= {"change_p": p_value, "change_holm": p_value, "n_groups": count}
    return printed(shown, headers, formats)


def summary_text(frame: pd.DataFrame) -> TextTable:
    """Return the correlations of two lenses as they are printed."""
    shown = frame.assign(
        regime=[regime_label(str(name)) for name in frame["regime"]],
        x=[AXIS_LABELS.get(str(name), str(name)) for name in frame["x"]],
        y=[AXIS_LABELS.get(str(name), str(name)) for name in frame["y"]],
        pearson_ci=_ci(frame, "pearson_ci_low", "pearson_ci_high", 2),
        spearman_ci=_ci(frame, "spearman_ci_low", "spearman_ci_high", 2),
        agree_ci=_ci(frame, "agree_low", "agree_high", 2),
        signs=[
            DASH if pd.isna(total) else f"{agree:.0f} of {total:.0f}"
            for agree, total in zip(frame["n_agree"], frame["n_signs"], strict=True)
        ],
    )
    headers = {
        "model": "Model",
        "regime": "Regime",
        "x": "dB",
        "y": "Answers",
        "n": "n",
        "pearson_r": "Pearson r",
        "pearson_ci": "95 % CI",
        "spearman_r": "Spearman r",
        "spearman_ci": "95 % CI",
        "signs": "Same sign",
        "agree_ci": "95 % CI",
        "agree_p": "p",
        "note": "Note",
    }
    formats: dict[str, Formatter] = {"n": count, "pearson_r": digits(2), "spearman_r": digits(2), "agree_p": p_value}
    return printed(shown, headers, formats)


def tables(
    model_relation: pd.DataFrame,
    category_relation: pd.DataFrame,
    mitigation: pd.DataFrame,
    side_effects: pd.DataFrame,
    beside_db: pd.DataFrame,
    beside_db_summary: pd.DataFrame,
) -> list[Printed]:
    """Return all tables of the lens; one without rows has its header."""
    texts = {
        "model_relation": (model_relation, _relation_text(model_relation, False)),
        "category_relation": (category_relation, _relation_text(category_relation, True)),
        "mitigation": (mitigation, remedy_text(mitigation)),
        "side_effects": (side_effects, side_text(side_effects)),
        "beside_db": (beside_db, beside_text(beside_db)),
        "beside_db_summary": (beside_db_summary, summary_text(beside_db_summary)),
    }
    return [Printed(stem, frame, text, CAPTIONS[stem]) for stem, (frame, text) in texts.items()]


FILES = {
    "model_relation": RELATION_COLUMNS,
    "category_relation": RELATION_COLUMNS,
    "mitigation": REMEDY_COLUMNS,
    "side_effects": SIDE_COLUMNS,
    "beside_db": BESIDE_COLUMNS,
    "beside_db_summary": SUMMARY_COLUMNS,
}
"""File name without extension -> columns; the names are `refbias.config.metamorphic.TABLES`."""
