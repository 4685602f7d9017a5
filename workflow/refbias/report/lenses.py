"""One page of a model or checkpoint under three lenses: dB by group, resiliency by category, competence contrasts.

Aggregates only: no text of a model reaches the page.
"""

import base64
import io
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from refbias.analysis.lenses import AXES, CONTROL, POOLED, Lenses, agreement, counterparts, side_by_side, without_axis
from refbias.figures.lenses import course_figure, lenses_figure
from refbias.figures.style import PNG_DPI, style
from refbias.report.pictures import Picture
from refbias.report.sections import Section, SectionTable, page
from refbias.tables.cells import TextTable
from refbias.tables.competence.labels import contrast_label, family_label, subject_label
from refbias.tables.formats import DASH, count, interval, number, p_value, percent, shift
from refbias.tables.labels import GroupName, plain_name, regime_label
from refbias.tables.printed import digits, printed

NAMES = {
    "mean_abs_delta_b": "mean |dB|",
    "mean_abs_net_delta_b": "mean |dB net of the control|",
    "biased_share": "biased answers (%)",
    "mean_abs_E": "mean |difference of E|",
}
_READING = (
    "dB says how far sentences about a group moved towards negative (below 0) or positive attributes, against the "
    "reference. Bias resiliency is the share of answers that pick no group. The competence lens compares what users "
    "say of themselves: E is the expertise score in expert\u2013novice gaps, L the reading level of answers.",
    "The lenses share axes, not a scale: a trait on which one lens moves and another does not is a finding, not a "
    "contradiction. A dash means that a lens does not speak of the axis, or was not held to this model.",
)
_AGREEMENT = (
    "Over axes and checkpoints that both lenses speak of. The interval of r draws whole axes and whole checkpoints. "
    "Same direction: steps between neighbouring checkpoints in which both rose or both fell, of those in which both "
    "moved; by chance about half. Its Wilson interval takes the steps as independent, which those of axes that share a "
    "checkpoint are not: it is too narrow. Checkpoints of one spectrum are mixtures of the same two models: a high r "
    "over them is one finding, not many. What moves all groups alike is in |dB| and not in dB net of the control."
)
SCHEMA_VERSION = 1


def _embedded(figure: Figure, title: str, caption: str, alt: str) -> Picture:
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format="png", dpi=PNG_DPI, metadata={"Software": None})
    content = buffer.getvalue()
    width, height = struct.unpack(">II", content[16:24])
    data = base64.b64encode(content).decode("ascii")
    return Picture(title, caption, alt, f"data:image/png;base64,{data}", width, height)


def _axes_table(rows: pd.DataFrame, names: Mapping[str, GroupName]) -> TextTable:
    largest = [
        f"{names[group].name if group in names else plain_name(group)} {shift(value)}" if isinstance(group, str) else ""
        for group, value in zip(rows["largest_group"], rows["largest_delta_b"], strict=True)
    ]
    shown = rows.assign(
        largest=largest,
        res_ci=[interval(a, b, 1) for a, b in zip(rows["resiliency_low"], rows["resiliency_high"], strict=True)],
        contrast=[contrast_label(name) if isinstance(name, str) else "" for name in rows["contrast_id"]],
        e_ci=[interval(a, b, 2) for a, b in zip(rows["E_low"], rows["E_high"], strict=True)],
        l_ci=[interval(a, b, 2) for a, b in zip(rows["L_low"], rows["L_high"], strict=True)],
    )
    headers = {
        "axis": "Axis",
        "n_groups": "Groups",
        "mean_delta_b": "Mean dB",
        "mean_abs_delta_b": "Mean |dB|",
        "mean_abs_net_delta_b": "Mean |dB net of control|",
        "largest": "Largest dB",
        "n_answers": "Answers",
        "resiliency": "Resiliency (%)",
        "res_ci": "95 % CI",
        "n_contrasts": "Contrasts",
        "mean_abs_E": "Mean |E|",
        "contrast": "Largest",
        "E": "E",
        "e_ci": "95 % CI",
        "E_p_holm": "Holm p",
        "L": "L",
        "l_ci": "95 % CI",
        "outcome": "Verdict",
    }
    formats = {
        "n_groups": count,
        "mean_delta_b": shift,
        "mean_abs_delta_b": shift,
        "mean_abs_net_delta_b": shift,
        "n_contrasts": count,
        "mean_abs_E": digits(2),
        "E_p_holm": p_value,
        "n_answers": count,
        "resiliency": digits(1),
        "E": digits(2),
        "L": digits(2),
    }
    shown = shown.astype(dict.fromkeys(formats, "float64"))
    return printed(shown, {key: name for key, name in headers.items() if _any(shown[key])}, formats)


def _any(column: "pd.Series[Any]") -> bool:
    return bool((column.notna() & ~column.astype(str).isin(["", DASH])).any())


def _group_table(shifts: pd.DataFrame, names: Mapping[str, GroupName]) -> TextTable:
    ordered = shifts.sort_values("delta_b", kind="stable")
    shown = ordered.assign(
        group=[
            "Group-free control" if group == CONTROL else names[group].name if group in names else plain_name(group)
            for group in ordered["group"].astype(str)
        ],
        topic=[plain_name(str(topic)) if topic else "" for topic in ordered["topic"]],
        ci=[interval(low, high, 4) for low, high in zip(ordered["ci_low"], ordered["ci_high"], strict=True)],
    )
    return printed(shown, {"group": "Group", "topic": "Topic", "delta_b": "dB", "ci": "95 % CI"}, {"delta_b": shift})


def _category_table(cells: Sequence[Mapping[str, Any]]) -> TextTable:
    frame = pd.DataFrame(
        [
            {
                "category": plain_name(str(cell["category"])),
                "relation": "all wordings" if cell["relation"] == POOLED else str(cell["relation"]),
                "ci": interval(*_bounds(cell), 1),
                **{key: cell["resiliency"][key] for key in ("value", "n", "n_unusable")},
            }
            for cell in cells
        ]
    )
    headers = {
        "category": "Category",
        "relation": "Relation",
        "value": "Resiliency (%)",
        "ci": "95 % CI",
        "n": "Answers",
        "n_unusable": "Unreadable",
    }
    formats = {"value": digits(1), "n": count, "n_unusable": count}
    return printed(frame.astype(dict.fromkeys(formats, "float64")), headers, formats)


def _bounds(cell: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the interval that belongs to a cell: a question in several wordings is one observation."""
    start = "cluster_" if cell["relation"] == POOLED else ""
    return cell["resiliency"][f"{start}low"], cell["resiliency"][f"{start}high"]


def _contrast_table(lenses: Lenses) -> TextTable:
    effects = lenses.effects if lenses.effects is not None else pd.DataFrame()
    outcomes = {str(row["contrast_id"]): str(row["outcome"]) for row in lenses.verdicts}
    wide = effects[effects["measure"].isin(("E_normalised", "L", "hiring"))]
    shown = wide.assign(
        measure=wide["measure"].map({"E_normalised": "E", "L": "L", "hiring": "hiring logit"}),
        family=[family_label(str(family)) for family in wide["family"]],
        ci=[interval(low, high, 2) for low, high in zip(wide["ci_low"], wide["ci_high"], strict=True)],
        outcome=[outcomes.get(str(name), "") for name in wide["contrast_id"]],
        contrast=[contrast_label(str(name)) for name in wide["contrast_id"]],
    )
    headers = {
        "family": "Family",
        "contrast": "Contrast",
        "role": "Role",
        "measure": "Measure",
        "mean": "Difference",
        "ci": "95 % CI",
        "outcome": "Verdict",
    }
    return printed(shown, headers, {"mean": digits(2)})


def lens_section(
    model: str, subject: str, lenses: Lenses, names: Mapping[str, GroupName], notes: tuple[str, ...] = ()
) -> Section:
    """Return one subject's section."""
    rows = side_by_side(lenses)
    where = f"{model}, {subject_label(subject)}"
    tables = [
        SectionTable("On shared axes", _axes_table(rows, names), _axes_caption(lenses), "lenses-axes"),
    ]
    if lenses.shifts is not None:
        caption = "dB of every group against the reference, lowest first."
        tables.append(SectionTable("dB by group", _group_table(lenses.shifts, names), caption, "lenses-db", True))
    if lenses.cells is not None:
        caption = (
            "Bias resiliency by category and relation, with Wilson 95 % CI; of all wordings over source questions."
        )
        tables.append(SectionTable("Resiliency", _category_table(lenses.cells), caption, "lenses-resiliency", True))
    if lenses.effects is not None:
        caption = "All contrasts of the competence lens: first less second, with their verdicts."
        tables.append(SectionTable("Competence", _contrast_table(lenses), caption, "lenses-competence", True))
    alt = f"Mean |dB|, resiliency and difference of E by axis, {where}. The table on shared axes has the numbers."
    caption = "Each lens in its own unit, on the axes that it speaks of; lines are 95 % intervals."
    return Section(
        id="lenses",
        title=where,
        paragraphs=_READING,
        tables=tuple(tables),
        pictures=(_embedded(lenses_figure(rows, where), f"Three lenses: {where}", caption, alt),),
        findings=tuple(_findings(rows)),
        warnings=(*notes, *_absent(subject, lenses), *_unmapped(lenses)),
    )


def _axes_caption(lenses: Lenses) -> str:
    caption = (
        "What each lens says of a trait. Resiliency is over all wordings, its interval over source questions. Of "
        "several contrasts the one with the largest difference of E is shown beside the mean size of all: its interval "
        "is not adjusted for that choice, the p is, over all contrasts (Holm)."
    )
    if lenses.shifts is not None:
        control = lenses.shifts.loc[lenses.shifts["group"] == CONTROL, "delta_b"].dropna()
        if len(control):
            caption += f" The group-free control moved by {shift(float(control.iloc[0]))}."
    return f"{caption} No counterpart: {'; '.join(counterparts())}."


def _findings(rows: pd.DataFrame) -> list[str]:
    lines = []
    for column, words, text in (
        ("mean_abs_delta_b", "dB moved most on", shift),
        ("resiliency", "Answers are least resilient on", digits(1)),
        ("E", "E differs most on", digits(2)),
    ):
        known = rows.dropna(subset=[column])
        if known.empty:
            continue
        values = known[column].to_numpy(float)
        row = known.iloc[int(values.argmin() if column == "resiliency" else np.abs(values).argmax())]
        picked = ""
        if column == "E":
            picked = f", the largest of {row['n_contrasts']:.0f} contrasts there"
        elif column == "mean_abs_delta_b" and pd.notna(row["mean_abs_net_delta_b"]):
            picked = f" in size, {shift(float(row['mean_abs_net_delta_b']))} net of the group-free control"
        lines.append(f"{words} {row['axis']}: {text(float(row[column]))}{picked} ({len(known)} axes measured).")
    return lines


def _absent(subject: str, lenses: Lenses) -> list[str]:
    lines = []
    if lenses.shifts is None:
        own = subject == "reference"
        lines.append("dB: the reference has none against itself." if own else "dB was not measured for this model.")
    if lenses.cells is None:
        lines.append("Metamorphic questions were not asked of this model.")
    if lenses.effects is None:
        lines.append("The competence lens was not held to this model.")
    return lines


def _unmapped(lenses: Lenses) -> list[str]:
    return [
        f"{lens}: {', '.join(map(plain_name, found))} stand on no axis and are in the table of their lens only."
        for lens, found in without_axis(lenses).items()
        if found
    ]


def lens_page(
    model: str, subject: str, lenses: Lenses, names: Mapping[str, GroupName], notes: tuple[str, ...] = ()
) -> str:
    """Return the HTML of one subject under three lenses; `notes` stand before its own warnings."""
    return page(
        f"Three lenses: {model}, {subject_label(subject)}",
        "refbias: dB, bias resiliency and occupational competence on shared axes",
        [lens_section(model, subject, lenses, names, notes)],
    )


def lens_json(model: str, subject: str, lenses: Lenses) -> dict[str, Any]:
    """Return the same as JSON values, with the map of axes."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model,
        "subject": subject,
        "measured": {
            "dB": lenses.shifts is not None,
            "resiliency": lenses.cells is not None,
            "competence": lenses.effects is not None,
        },
        "axes": [_plain(row) for row in side_by_side(lenses).to_dict(orient="records")],
        "map": [
            {"axis": axis.name, "topics": axis.topics, "categories": axis.categories, "families": axis.families}
            for axis in AXES
        ],
        "without_counterpart": counterparts(),
        "without_axis": without_axis(lenses),
    }


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a row as JSON values: null for what is missing, counts as whole numbers."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        if value is None or (isinstance(value, float) and math.isnan(value)):
            found[str(key)] = None
        else:
            found[str(key)] = int(value) if str(key).startswith("n_") else value
    return found


Spectra = Mapping[str, Mapping[str, Lenses]]
"""Regime -> subject, in order -> what the lenses say of it."""


def spectrum_json(model: str, spectra: Spectra) -> dict[str, Any]:
    """Return the lenses over the checkpoints of each regime, and how far they go together."""
    found = []
    for regime, spectrum in spectra.items():
        rows = {name: side_by_side(lenses) for name, lenses in spectrum.items()}
        flat = [(name, row) for name, frame in rows.items() for row in frame.to_dict(orient="records")]
        found.append(
            {
                "regime": regime,
                "subjects": list(spectrum),
                "rows": [{"subject": name, **_plain(row)} for name, row in flat],
                "agreement": agreement(rows),
            }
        )
    return {"schema_version": SCHEMA_VERSION, "model": model, "spectra": found}


def spectrum_page(model: str, spectra: Spectra, notes: tuple[str, ...] = ()) -> str:
    """Return the HTML of the spectra: `notes`, the lenses' course over checkpoints, and their agreement."""
    return page(
        f"Three lenses: {model}",
        "refbias: dB, bias resiliency and occupational competence over checkpoints",
        [_spectrum_section(model, regime, spectrum, notes) for regime, spectrum in spectra.items()],
    )


def _spectrum_section(model: str, regime: str, spectrum: Mapping[str, Lenses], notes: tuple[str, ...]) -> Section:
    rows = {name.partition("-")[2] or name: side_by_side(lenses) for name, lenses in spectrum.items()}
    found = [{**pair, "reason": _in_words(pair["reason"])} for pair in agreement(rows)]
    where = f"{model}, {regime_label(regime)}"
    return Section(
        id=f"spectrum-{regime}",
        title=f"{where}: {len(rows)} checkpoints",
        paragraphs=_READING,
        tables=(
            SectionTable("Agreement of the lenses", _agreement_table(found), _AGREEMENT, f"lenses-agreement-{regime}"),
        ),
        pictures=(
            _embedded(
                course_figure(rows, where),
                f"Three lenses over the checkpoints: {where}",
                "Each lens in its own unit, one line an axis, on the axes that it speaks of.",
                f"Mean |dB|, resiliency and mean |difference of E| by axis over {len(rows)} checkpoints, {where}.",
            ),
        ),
        findings=tuple(map(_agreement_sentence, found)),
        warnings=notes,
    )


def _in_words(reason: str) -> str:
    for column, name in NAMES.items():
        reason = reason.replace(column, name)
    return reason


def _agreement_sentence(found: Mapping[str, Any]) -> str:
    pair = f"{NAMES[found['x']]} and {NAMES[found['y']]}"
    if found["pearson_r"] is None:
        return f"{pair} cannot be related: {found['reason']}."
    told = interval(found["ci_low"], found["ci_high"], 2)
    sure = f"interval {told}" if told != DASH else found["reason"]
    return (
        f"{pair}: r {number(found['pearson_r'], 2)} ({sure}) over {found['n_axes']} axes and "
        f"{found['n_checkpoints']} checkpoints; "
        f"same direction in {found['same_direction']} of {found['n_steps']} steps."
    )


def _agreement_table(found: Sequence[Mapping[str, Any]]) -> TextTable:
    frame = pd.DataFrame(list(found))
    steps = frame["n_steps"].where(frame["n_steps"] > 0)
    shown = frame.assign(
        x=frame["x"].map(NAMES),
        y=frame["y"].map(NAMES),
        ci=[interval(low, high, 2) for low, high in zip(frame["ci_low"], frame["ci_high"], strict=True)],
        share=frame["same_direction"] / steps,
        same_ci=[interval(low, high, 2) for low, high in zip(frame["same_low"], frame["same_high"], strict=True)],
    )
    headers = {
        "x": "Lens",
        "y": "Lens beside it",
        "n": "n",
        "n_axes": "Axes",
        "n_checkpoints": "Checkpoints",
        "pearson_r": "r",
        "ci": "95 % CI",
        "spearman_r": "Spearman",
        "n_steps": "Steps",
        "share": "Same direction",
        "same_ci": "95 % CI",
        "reason": "Note",
    }
    formats = {
        **dict.fromkeys(("n", "n_axes", "n_checkpoints", "n_steps"), count),
        **dict.fromkeys(("pearson_r", "spearman_r"), digits(2)),
        "share": percent,
    }
    return printed(shown.astype(dict.fromkeys(formats, "float64")), headers, formats)
