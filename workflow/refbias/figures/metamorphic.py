"""Figures of the metamorphic lens: heat maps, intervals by relation, before and after mitigation.

A bright cell is an unbiased one; the colours are those that the colour-blind can order, and every cell has its number.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from refbias.figures.metamorphic_db import beside
from refbias.figures.style import GREY, MARKERS, new_figure, say_empty, style
from refbias.tables.formats import DASH
from refbias.tables.labels import plain_name
from refbias.tables.metamorphic import ALL, SCOPE_LABELS, bounds, relation_label, subject_label

MAP = "cividis"
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
HATCHES = ("", "////", "....")
SCOPES = ("held_out_keys", "held_out_relation", "held_out_both")
MAIN = (("reference", "plain"), ("reference", "few_shot"), ("mitigated", "plain"))
"""Subjects that figures set side by side; the checkpoints of a spectrum have a figure of their own."""
_NOTE = "Resiliency in %. * differs from the source questions: exact McNemar p < 0.05 after Holm."


def _order(names: Sequence[str]) -> list[str]:
    first = [name for name in (ALL, "source") if name in names]
    return [*first, *(name for name in dict.fromkeys(names) if name not in first)]


def _wrapped(relation: str) -> str:
    return relation_label(relation).replace(" ", "\n", 1).replace(">", ">\n")


def _grid(rows: pd.DataFrame, index: str, names: Sequence[str], relations: Sequence[str]) -> tuple[Any, Any]:
    """Return values and marks, shape (names, relations); NaN and no mark where there is no row."""
    values: npt.NDArray[np.float64] = np.full((len(names), len(relations)), np.nan)
    marks = np.full(values.shape, "", dtype="<U1")
    for _, row in rows.iterrows():
        at = (names.index(str(row[index])), relations.index(str(row["relation"])))
        values[at] = row["resiliency"]
        marks[at] = "*" if row["mcnemar_holm"] < 0.05 else ""
    return values, marks


def _heat(axes: Axes, values: Any, marks: Any, rows: Sequence[str], columns: Sequence[str]) -> Any:
    colours = mpl.colormaps[MAP].with_extremes(bad="#e4e4e4")
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, vmin=0, vmax=100, aspect="auto")
    for (at, of), value in np.ndenumerate(values):
        text = DASH if np.isnan(value) else f"{value:.0f}{marks[at, of]}"
        dark = not np.isnan(value) and value < 50
        axes.text(of, at, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(len(columns)), [_wrapped(name) for name in columns], fontsize=7.5)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.2)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def heat_models(frame: pd.DataFrame) -> Figure:
    """Draw resiliency of every subject under every relation.

    Parameters
    ----------
    frame
        ``model_relation.csv``.
    """
    several = frame["model"].nunique() > 1
    rows = frame.assign(
        label=[
            (f"{row['model']}: " if several else "") + subject_label(str(row["subject"]), str(row["reading"]))
            for _, row in frame.iterrows()
        ]
    )
    names, relations = list(dict.fromkeys(rows["label"])), _order(list(rows["relation"]))
    values, marks = _grid(rows, "label", names, relations)
    with style():
        figure = new_figure(2.6 + 0.95 * len(relations), 1.5 + 0.36 * len(names))
        axes = figure.subplots()
        image = _heat(axes, values, marks, names, relations)
        axes.set_title("" if several else f"{rows['model'].iloc[0]}: bias resiliency by relation", loc="left")
        axes.set_xlabel(_NOTE, loc="left", color=GREY)
        figure.colorbar(image, ax=axes, label="Bias resiliency (%)", shrink=0.9)
    return figure


def _subjects(frame: pd.DataFrame, model: str) -> list[tuple[str, str]]:
    rows = frame[frame["model"] == model]
    present = set(zip(rows["subject"].astype(str), rows["reading"].astype(str), strict=True))
    return [where for where in MAIN if where in present]


def heat_categories(frame: pd.DataFrame, model: str) -> Figure:
    """Draw resiliency by category and relation, a panel for the reference, few-shot and the mitigated model.

    Parameters
    ----------
    frame
        ``category_relation.csv``.
    model
        Which rows.
    """
    shown = frame[frame["model"] == model]
    subjects = _subjects(frame, model)
    relations = _order(list(shown["relation"]))
    with style():
        figure = new_figure(2.2 + 0.9 * len(relations), 0.8 + 3.0 * max(len(subjects), 1))
        panels = figure.subplots(max(len(subjects), 1), 1, squeeze=False)[:, 0]
        if not subjects:
            say_empty(panels[0], "the reference was not asked")
        image = None
        for axes, (subject, reading) in zip(panels, subjects, strict=False):
            rows = shown[(shown["subject"] == subject) & (shown["reading"] == reading)]
            categories = list(dict.fromkeys(rows["category"].astype(str)))
            values, marks = _grid(rows, "category", categories, relations)
            image = _heat(axes, values, marks, [plain_name(name) for name in categories], relations)
            least, most = (int(value) for value in (rows["n"].min(), rows["n"].max()))
            held = ", held-out pair-property keys" if (rows["questions"] == "held_out_keys").any() else ""
            axes.set_title(f"{model}, {subject_label(subject, reading)}{held} (N {least} to {most} a cell)", loc="left")
        if image is not None:
            panels[-1].set_xlabel(_NOTE, loc="left", color=GREY)
            figure.colorbar(image, ax=list(panels), label="Bias resiliency (%)", shrink=min(1.0, 1.6 / len(panels)))
    return figure


def _interval(axes: Axes, at: float, row: "pd.Series[Any]", look: Mapping[str, Any], wide: float) -> None:
    axes.plot([*bounds(row)], [at, at], color=look["color"], linewidth=wide, zorder=1)
    axes.plot(
        row["resiliency"],
        at,
        linestyle="none",
        markeredgecolor="black",
        markeredgewidth=0.5,
        zorder=2,
        **look,
    )


def forest(frame: pd.DataFrame, model: str) -> Figure:
    """Draw resiliency with its interval (`refbias.tables.metamorphic.bounds`), a row a relation, a marker a subject.

    Parameters
    ----------
    frame
        ``model_relation.csv``.
    model
        Which rows.
    """
    shown = frame[frame["model"] == model]
    subjects = _subjects(frame, model)
    relations = _order(list(shown["relation"]))
    step = 0.8 / max(len(subjects), 1)
    with style():
        figure = new_figure(6.6, 1.6 + len(relations) * (0.3 + 0.16 * len(subjects)))
        axes = figure.subplots()
        for number, (subject, reading) in enumerate(subjects):
            look: dict[str, Any] = {"color": COLOURS[number], "marker": MARKERS[number], "markersize": 5.5}
            rows = shown[(shown["subject"] == subject) & (shown["reading"] == reading)]
            for _, row in rows.iterrows():
                at = relations.index(str(row["relation"])) + (number - (len(subjects) - 1) / 2) * step
                if not np.isnan(row["resiliency"]):
                    _interval(axes, at, row, look, 3.0 if row["relation"] == ALL else 1.8)
            axes.plot(
                [], [], markeredgecolor="black", markeredgewidth=0.5, label=subject_label(subject, reading), **look
            )
        for at in range(0, len(relations), 2):
            axes.axhspan(at - 0.5, at + 0.5, color="#f3f4f6", zorder=0)
        axes.set_yticks(range(len(relations)), [relation_label(name) for name in relations])
        axes.set_ylim(len(relations) - 0.5, -0.5)
        axes.set_xlim(-2, 102)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("Bias resiliency (%), 95 % CI (all questions: over source questions)")
        axes.set_title(f"{model}: resiliency by relation", loc="left")
        figure.legend(loc="outside lower center", ncols=max(len(subjects), 1))
    return figure


def _bars(
    axes: Axes, groups: Sequence[str], series: Sequence[tuple[str, Sequence["tuple[float, float, float] | None"]]]
) -> None:
    """Draw grouped bars with intervals; None is a bar that is not there, said so in its place."""
    width = 0.8 / max(len(series), 1)
    for number, (label, values) in enumerate(series):
        for at, found in enumerate(values):
            x = at + (number - (len(series) - 1) / 2) * width
            if found is None or np.isnan(found[0]):
                axes.text(x, 1.5, "none", ha="center", va="bottom", fontsize=7, color=GREY, rotation=90)
                continue
            value, low, high = found
            axes.bar(
                x,
                value,
                width * 0.92,
                color=COLOURS[number],
                hatch=HATCHES[number % len(HATCHES)],
                edgecolor="black",
                linewidth=0.6,
            )
            axes.plot([x, x], [low, high], color="black", linewidth=1.3)
            top = value if np.isnan(high) else min(high, 100)
            axes.text(x, top + 1.5, f"{value:.0f}", ha="center", va="bottom", fontsize=7.5)
        axes.bar([0], [0], color=COLOURS[number], hatch=HATCHES[number % len(HATCHES)], edgecolor="black", label=label)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 20))
    axes.tick_params(axis="x", length=0)


def _triple(row: "pd.Series[Any]", name: str, low: str, high: str, scale: float = 1) -> tuple[float, float, float]:
    return scale * row[name], scale * row[low], scale * row[high]


def _remedy_series(rows: pd.DataFrame) -> list[tuple[str, list["tuple[float, float, float] | None"]]]:
    series: list[tuple[str, list[tuple[float, float, float] | None]]] = []
    for label, method, side in (
        ("before", "", "before"),
        ("few-shot", "few_shot", "after"),
        ("fine-tuned", "fine_tuning", "after"),
    ):
        values: list[tuple[float, float, float] | None] = []
        for scope in SCOPES:
            of = rows[
                (rows["scope"] == scope) & (rows["method"].isin([method] if method else ["few_shot", "fine_tuning"]))
            ]
            values.append(None if of.empty else _triple(of.iloc[-1], side, f"{side}_low", f"{side}_high"))
        series.append((label, values))
    return series


def mitigation(frame: pd.DataFrame, side: pd.DataFrame, model: str) -> Figure:
    """Draw resiliency before and after on what was held out, and beside it the neutral questions.

    Parameters
    ----------
    frame, side
        ``mitigation.csv`` and ``side_effects.csv``.
    model
        Which rows.
    """
    rows = frame[(frame["model"] == model) & (frame["category"] == ALL)]
    own = side[side["model"] == model]
    costs = []
    for label, (subject, reading) in zip(("before", "few-shot", "fine-tuned"), MAIN, strict=True):
        of = own[(own["subject"] == subject) & (own["reading"] == reading)]
        found = (
            [None, None]
            if of.empty
            else [
                _triple(of.iloc[0], "neutral_accuracy", "accuracy_low", "accuracy_high", 100),
                _triple(of.iloc[0], "over_refusal", "over_refusal_low", "over_refusal_high", 100),
            ]
        )
        costs.append((label, found))
    with style():
        figure = new_figure(9.6, 4.2)
        left, right = figure.subplots(1, 2, width_ratios=(3, 2), sharey=True)
        _bars(left, [SCOPE_LABELS[name].replace("held-out ", "held-out\n") for name in SCOPES], _remedy_series(rows))
        left.set_ylabel("% (lines: 95 % CI)")
        left.set_title(f"{model}: bias resiliency, re-test", loc="left")
        _bars(right, ["accuracy", "over-refusal"], costs)
        right.set_title("Neutral questions", loc="left")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def draw_all(tables: Mapping[str, pd.DataFrame]) -> Iterator[tuple[str, Figure]]:
    """Yield name and figure of all that the tables hold.

    Parameters
    ----------
    tables
        File name without extension -> table of the lens.
    """
    relations, categories = tables["model_relation"], tables["category_relation"]
    if not relations.empty:
        yield "models_relations", heat_models(relations)
    for model in dict.fromkeys(relations["model"]):
        yield f"categories_relations_{model}", heat_categories(categories, model)
        yield f"relations_{model}", forest(relations, model)
        if tables["mitigation"]["model"].eq(model).any():
            yield f"mitigation_{model}", mitigation(tables["mitigation"], tables["side_effects"], model)
    shown = tables["beside_db"]
    for (model, regime), rows in shown.groupby(["model", "regime"], sort=False):
        yield f"beside_db_{model}_{regime}", beside(rows, tables["beside_db_summary"], str(model), str(regime))
