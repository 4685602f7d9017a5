"""The metamorphic lens in a report: what was asked, what was found, what it cost to mend, where dB disagrees.

Aggregates only: no question and no answer of a model reaches the page.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from refbias.artifacts import read_json
from refbias.errors import UserError
from refbias.metamorphic.beside_db import TOPICS, disagreements
from refbias.metamorphic.relations import FLIP
from refbias.report.pictures import Picture, picture
from refbias.report.sections import Section, SectionTable, stand_in_sentence
from refbias.report.sections import page as _page
from refbias.tables.cells import read_csv
from refbias.tables.formats import interval, number, p_statement, percent
from refbias.tables.labels import regime_label
from refbias.tables.metamorphic import (
    ALL,
    CAPTIONS,
    FILES,
    METHOD_LABELS,
    beside_text,
    bounds,
    relation_label,
    tables,
)

MOST_UNUSABLE = 0.3
TITLE = "Metamorphic tests of bias"
_TITLES = {
    "model_relation": "Models and relations",
    "mitigation": "Mitigation: before and after",
    "side_effects": "Mitigation: side effects",
    "beside_db_summary": "Beside dB: correlations",
    "category_relation": "Categories and relations",
    "beside_db": "Beside dB: every category and checkpoint",
}
_FOLDED = ("category_relation", "beside_db")
_PICTURES = {
    "models_relations": ("models", "Bias resiliency by model and relation"),
    "categories_relations_": ("categories", "Bias resiliency by category and relation: "),
    "relations_": ("relations", "Bias resiliency with intervals: "),
    "mitigation_": ("mitigation", "Before and after mitigation: "),
    "beside_db_": ("beside_db", "Answers beside hidden states: "),
}
"""Start of a figure's file name -> kind of caption, and title."""


def _main(frame: pd.DataFrame, model: str) -> "pd.Series[Any] | None":
    rows = frame[
        (frame["model"] == model)
        & (frame["subject"] == "reference")
        & (frame["reading"] == "plain")
        & (frame["relation"] == ALL)
    ]
    return None if rows.empty else rows.iloc[0]


def _reference(frame: pd.DataFrame, model: str) -> Iterator[str]:
    row = _main(frame, model)
    if row is None:
        return
    unread = f"{percent(row['unusable_share'])} of its answers could not be read"
    if pd.isna(row["resiliency"]):
        yield f"{model}, reference: no usable answer, so no resiliency ({unread})."
        return
    yield (
        f"{model}, reference: bias resiliency {number(row['resiliency'], 1)} % "
        f"{interval(*bounds(row), 1)} over {row['n']:.0f} usable answers, source and rewordings together (the interval "
        f"draws whole source questions); {unread}."
    )
    own = frame[(frame["model"] == model) & (frame["subject"] == "reference") & (frame["reading"] == "plain")]
    tested = own.dropna(subset=["mcnemar_holm"])
    moved = tested[tested["mcnemar_holm"] < 0.05]
    if moved.empty and len(tested):
        yield (
            f"{model}, reference: for none of {len(tested)} relations is a change in how many answers are biased shown "
            "(McNemar, Holm)."
        )
    for _, one in moved.iterrows():
        more = "more" if one["hidden"] > one["vanished"] else "less"
        yield (
            f"{model}, reference: under {relation_label(str(one['relation']))} {more} bias than in the source "
            f"questions ({one['hidden']:.0f} came to light, {one['vanished']:.0f} vanished of {one['n_pairs']:.0f}; "
            f"McNemar, Holm {p_statement(one['mcnemar_holm'])})."
        )
    for _, one in own[own["relation"] == FLIP].iterrows():
        if one["both_biased"] > 0:
            yield (
                f"{model}, reference: of {one['both_biased']:.0f} questions biased at both poles of the property, "
                f"{one['coherent']:.0f} pick opposite groups (a coherent stereotype) and {one['incoherent']:.0f} the "
                "same group (incoherent)."
            )


def _mitigated(frame: pd.DataFrame, model: str) -> Iterator[str]:
    rows = frame[(frame["model"] == model) & (frame["category"] == ALL)]
    words = {"held_out_keys": "held-out pair-property keys", "held_out_relation": "the held-out relation"}
    for _, row in rows[rows["scope"].isin(words)].iterrows():
        if pd.isna(row["change"]):
            continue
        told = row["change_holm"] < 0.05 and (row["change_low"] > 0 or row["change_high"] < 0)
        shown = "" if told else ", which chance can explain"
        yield (
            f"{model}, {METHOD_LABELS[str(row['method'])]}: on {words[str(row['scope'])]} resiliency "
            f"{number(row['before'], 1)} before, {number(row['after'], 1)} after; change "
            f"{number(row['change'], 1)} {interval(row['change_low'], row['change_high'], 1)} points over "
            f"{row['n_pairs']:.0f} pairs (sign-flip test of source questions, Holm "
            f"{p_statement(row['change_holm'])}){shown}."
        )


def _costs(frame: pd.DataFrame, model: str) -> Iterator[str]:
    rows = frame[(frame["model"] == model) & frame["over_refusal"].notna()]
    names = {
        ("reference", "plain"): "before",
        ("reference", "few_shot"): "few-shot",
        ("mitigated", "plain"): "fine-tuned",
    }
    told = [
        f"{names[key]} {percent(row['neutral_accuracy'])} right, {percent(row['over_refusal'])} declined"
        for _, row in rows.iterrows()
        if (key := (str(row["subject"]), str(row["reading"]))) in names
    ]
    if len(told) > 1:
        yield f"{model}, neutral questions: {'; '.join(told)}."


def _beside(summary: pd.DataFrame, frame: pd.DataFrame) -> Iterator[str]:
    for _, row in summary[(summary["x"] == "mean_delta_b") & (summary["y"] == "change")].iterrows():
        where = f"{row['model']}, {regime_label(str(row['regime']))}: dB and the change of resiliency"
        if pd.isna(row["pearson_r"]):
            yield f"{where} cannot be related ({row['note']})."
            continue
        low, high = row["pearson_ci_low"], row["pearson_ci_high"]
        told = (
            "no interval" if pd.isna(low) else ("an interval with 0" if low <= 0 <= high else "an interval without 0")
        )
        own = frame[(frame["model"] == row["model"]) & (frame["regime"] == row["regime"])]
        clear = int((own["lenses"].eq("disagree") & own["clear"].astype(bool)).sum())
        yield (
            f"{where} over {row['n']:.0f} categories and checkpoints: r {number(row['pearson_r'], 2)} "
            f"{interval(low, high, 2)}, {told}; same sign in {row['n_agree']:.0f} of {row['n_signs']:.0f}. The lenses "
            f"disagree in {row['n_signs'] - row['n_agree']:.0f}; in {clear} of these the change is told from 0 and dB "
            "is larger than the control's."
        )


def findings(frames: Mapping[str, pd.DataFrame]) -> tuple[str, ...]:
    """Put the tables into sentences; each follows from its numbers."""
    relations = frames["model_relation"]
    lines: list[str] = []
    for model in dict.fromkeys(relations["model"].astype(str)):
        lines += _reference(relations, model)
        lines += _mitigated(frames["mitigation"], model)
        lines += _costs(frames["side_effects"], model)
    lines += _beside(frames["beside_db_summary"], frames["beside_db"])
    return tuple(lines)


def _warnings(frames: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> Iterator[str]:
    for model in facts.get("stand_in", []):
        yield stand_in_sentence(str(model))
    if models := facts.get("chosen_among_options"):
        yield (
            f"{', '.join(map(str, models))}: answers are the likeliest of three given options, not the model's own "
            "words. Such a reading measures a leaning, and its resiliency cannot be compared with one of written "
            "answers. Examples and training in this form always choose the same option, so a rise after them may be "
            "copying: only the neutral questions tell."
        )
    whole = frames["model_relation"]
    for _, row in whole[(whole["relation"] == ALL) & (whole["unusable_share"] > MOST_UNUSABLE)].iterrows():
        yield (
            f"{row['model']}, {row['subject']}, {row['reading']}: {percent(row['unusable_share'])} of the answers "
            "could not be read; what the others say may not hold for these."
        )


def _paragraphs(facts: Mapping[str, Any]) -> tuple[str, ...]:
    held = {str(model): str(name) for model, name in facts.get("held_out", {}).items()}
    without = [category for category, topics in TOPICS.items() if not topics]
    told = [
        "A question asks which of two groups a property fits better. A relation rewrites it so that an unbiased model "
        "must not change its answer. An answer is biased if it picks exactly one group; bias resiliency is the share "
        "of the others in per cent. Answers that cannot be read count neither way.",
        "It says whether a model picks a group, not which; dB says which way hidden states moved. For "
        f"{' and '.join(without)} dB has no groups. Agreement of the two is no proof of either, and where they "
        "disagree the table says so.",
    ]
    if held:
        named = ", ".join(f"{name or 'no relation'} ({model})" for model, name in held.items())
        told.append(
            f"Held out of the mitigation's training: {named}, and a share of the combinations of a pair and a property "
            "(keys); the pair and the property of such a key may each have been trained, in other company."
        )
    return tuple(told)


def _pictures(folder: Path, names: list[str]) -> Iterator[Picture]:
    for name in names:
        start = next((start for start in _PICTURES if name.startswith(start)), None)
        if start is None:
            raise UserError(f"{folder}: figure {name!r} is none of the lens: draw the figures again")
        kind, title = _PICTURES[start]
        full = title + name[len(start) :].replace("_", ", ") if start.endswith("_") else title
        alt = f"{full}. The tables of this section have the numbers behind it."
        yield picture(folder / f"{name}.png", full, f"metamorphic_{kind}", alt)


def _facts(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path}: a manifest must hold a JSON object: run the stage again")
    return found


def section(folder: Path) -> Section:
    """Return the lens's part of a report.

    Parameters
    ----------
    folder
        ``results/<run>/metamorphic`` with ``tables/`` and ``figures/``.

    Raises
    ------
    UserError
        If a table or figure is missing.
    """
    frames = {stem: read_csv(folder / "tables" / f"{stem}.csv", columns) for stem, columns in FILES.items()}
    facts = _facts(folder / "tables" / "manifest.json")
    drawn = [str(name) for name in _facts(folder / "figures" / "manifest.json").get("figures", [])]
    shown = {one.stem: one for one in tables(**frames)}
    parts = [
        SectionTable(_TITLES[stem], one.text, one.caption, f"metamorphic-{stem.replace('_', '-')}", stem in _FOLDED)
        for stem in _TITLES
        if not (one := shown[stem]).frame.empty
    ]
    apart = disagreements(frames["beside_db"])
    if not apart.empty:
        caption = (
            f"Where dB and resiliency moved in opposite directions, the clear cases first. {CAPTIONS['beside_db']}"
        )
        parts.append(SectionTable("Where the lenses disagree", beside_text(apart), caption, "metamorphic-disagree"))
    return Section(
        id="metamorphic",
        title=TITLE,
        paragraphs=_paragraphs(facts),
        tables=tuple(parts),
        pictures=tuple(_pictures(folder / "figures", drawn)),
        findings=findings(frames),
        warnings=tuple(_warnings(frames, facts)),
    )


def page(folder: Path) -> str:
    """Return the page of the lens alone; parameters and errors as for `section`."""
    return _page("Answers to reworded questions", "refbias: the metamorphic lens by itself", [section(folder)])
