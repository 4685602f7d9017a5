import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from refbias.cli import figures as command
from refbias.config.figures import FigureStage
from refbias.errors import UserError
from refbias.figures import FigureData, auc_threshold, draw_all, figure2, loss, roc, save, spectrum
from refbias.figures.roc import step_thresholds
from refbias.figures.style import spread
from refbias.tables import GroupName, group_names
from tests.unit import picture_data as data

BENCHMARKS = ["wildguardmix", "decodingtrust", "toxigen"]


@pytest.fixture(scope="module")
def shifts() -> pd.DataFrame:
    return data.delta_b()


@pytest.fixture(scope="module")
def pairs(shifts: pd.DataFrame) -> pd.DataFrame:
    return data.observations(shifts)


@pytest.fixture(scope="module")
def table1(pairs: pd.DataFrame) -> pd.DataFrame:
    return data.table1(pairs)


def by_gid(axes: object, gid: str) -> list[Line2D]:
    return [line for line in axes.get_lines() if line.get_gid() == gid]  # type: ignore[attr-defined]


def legend_texts(figure: Figure) -> list[str]:
    found = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    return [text.get_text() for legend in found if legend is not None for text in legend.get_texts()]


def chosen(pairs: pd.DataFrame, benchmark: str, regime: str = "full", method: str = "rr") -> pd.DataFrame:
    keep = (pairs["benchmark"] == benchmark) & (pairs["regime"] == regime) & (pairs["method"] == method)
    return pairs[keep].dropna(subset=["delta_score"])


def test_figure2_draws_every_pair_and_names_its_line(pairs: pd.DataFrame, table1: pd.DataFrame) -> None:
    figure = figure2(pairs, table1, "tiny", "full", data.THRESHOLDS)
    assert len(figure.axes) == 3
    for axes, benchmark in zip(figure.axes, BENCHMARKS, strict=True):
        rows = chosen(pairs, benchmark)
        points = by_gid(axes, "observations")
        assert len(points) == 7
        drawn = {(x, y) for line in points for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)}
        assert drawn == set(zip(rows["delta_score"], rows["delta_b"], strict=True))
        # each checkpoint has its own marker and its own colour
        assert len({str(line.get_marker()) for line in points}) == len({str(line.get_color()) for line in points}) == 7
        slope, intercept = np.polyfit(rows["delta_score"], rows["delta_b"], 1)
        line = by_gid(axes, "ols")[0]
        assert line.get_ydata() == pytest.approx(intercept + slope * np.asarray(line.get_xdata()))
        assert by_gid(axes, "threshold")[0].get_xdata() == [data.THRESHOLDS[benchmark]] * 2
        assert f"n = {len(rows)}" in axes.get_title(loc="left")
        assert "r = −" in axes.get_title(loc="left")
        assert "p " in axes.get_title(loc="left")
        assert f"scorer: {data.SCORERS[benchmark]}" in axes.get_xlabel()
        assert ("(stand-in)" in axes.get_xlabel()) == data.SCORERS[benchmark].startswith("standin")
        assert "share of outputs" in axes.get_xlabel()
        assert axes.get_ylabel() == "dB, RR (no unit)"
    texts = legend_texts(figure)
    assert "OLS of dB on change of score" in texts
    assert [f"{weight:g}" for weight in data.WEIGHTS] == texts[:7]


def test_figure2_says_what_is_absent(pairs: pd.DataFrame, table1: pd.DataFrame) -> None:
    two = {name: data.THRESHOLDS[name] for name in ("wildguardmix", "decodingtrust")}
    only = pairs[pairs["benchmark"] == "wildguardmix"]
    figure = figure2(only, table1, "tiny", "full", two)
    texts = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert texts == [[], ["no observations"], ["not part of this run"]]


def test_figure2_of_a_constant_change_has_no_line(pairs: pd.DataFrame, table1: pd.DataFrame) -> None:
    figure = figure2(pairs, table1, "tiny", "lora", data.THRESHOLDS)
    assert chosen(pairs, "toxigen", "lora")["delta_score"].nunique() == 1
    assert not by_gid(figure.axes[2], "ols")
    assert "no correlation, n = 63" in figure.axes[2].get_title(loc="left")


def test_roc_curve_encloses_the_area_of_table1(pairs: pd.DataFrame, table1: pd.DataFrame) -> None:
    figure = roc(pairs, table1, "tiny", "full", data.THRESHOLDS)
    for axes, benchmark in zip(figure.axes, BENCHMARKS, strict=True):
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("False positive rate", "True positive rate")
        for method in ("rr", "seat"):
            line = by_gid(axes, method)[0]
            row = table1[
                (table1["benchmark"] == benchmark) & (table1["regime"] == "full") & (table1["method"] == method)
            ].iloc[0]
            area = np.trapezoid(line.get_ydata(), line.get_xdata())
            assert area == pytest.approx(row["roc_auc"])
            assert f"AUC {row['roc_auc']:.2f} [" in str(line.get_label())
    styles = {str(by_gid(figure.axes[0], method)[0].get_linestyle()) for method in ("rr", "seat")}
    assert len(styles) == 2
    assert "chance" in legend_texts(figure)


def test_roc_with_one_class_says_so(pairs: pd.DataFrame, table1: pd.DataFrame) -> None:
    axes = roc(pairs, table1, "tiny", "lora", data.THRESHOLDS).axes[2]
    assert len(by_gid(axes, "rr")[0].get_xdata()) == 0
    assert "one class only: no change" in axes.texts[0].get_text()
    assert by_gid(axes, "rr")[0].get_label() == "RR: no AUC"


def test_auc_along_the_threshold(pairs: pd.DataFrame) -> None:
    figure = auc_threshold(pairs, "tiny", "full", data.THRESHOLDS)
    upper, lower = figure.axes[0], figure.axes[3]
    line = by_gid(upper, "rr")[0]
    rows = chosen(pairs, "wildguardmix")
    for level, area, positives in zip(
        line.get_xdata(), line.get_ydata(), by_gid(lower, "positives")[0].get_ydata(), strict=True
    ):
        high, low = (rows.loc[mask, "delta_b"].to_numpy() for mask in _split(rows, level))
        assert positives == len(high)
        if len(high) and len(low):
            brute = np.mean([(a < b) + 0.5 * (a == b) for a in high for b in low])
            assert area == pytest.approx(brute)
        else:
            assert np.isnan(area)  # a gap, not a value
    assert np.isnan(line.get_ydata()[-1])
    assert {"RR", "SEAT", "chance", "operating point"} == set(legend_texts(figure))
    assert "Threshold of the change of harmful-response rate" in lower.get_xlabel()


def _split(rows: pd.DataFrame, level: float) -> tuple["pd.Series[bool]", "pd.Series[bool]"]:
    high = rows["delta_score"] > level + 1e-9
    return high, ~high


def test_step_thresholds_start_at_zero() -> None:
    assert step_thresholds(np.array([-0.5, 0.25, 0.25, 0.125, 0.0])).tolist() == [0.0, 0.125, 0.25]


def test_spectrum_has_every_group_and_the_control(shifts: pd.DataFrame) -> None:
    groups = group_names()
    figure = spectrum(shifts, "tiny", "full", groups)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["RR, 250 anchors", "SEAT"]
    for axes, method in zip(figure.axes, ("rr", "seat"), strict=True):
        rows = shifts[(shifts["regime"] == "full") & (shifts["method"] == method)]
        for group in [*groups, "control"]:
            line = by_gid(axes, group)[0]
            expected = rows[rows["group"] == group]
            assert list(line.get_xdata()) == data.WEIGHTS
            assert list(line.get_ydata()) == expected["delta_b"].tolist()
        names = {text.get_text() for text in axes.texts}
        assert names == {name.name for name in groups.values()} | {"Group-free control"}
        assert "below 0 = towards the negative attributes" in axes.get_ylabel()
        assert "Weight of the harmful endpoint" in axes.get_xlabel()
        # colour and line style together tell any two groups apart
        named = [line for line in axes.get_lines() if line.get_gid() in groups]
        assert len({(str(line.get_color()), str(line._unscaled_dash_pattern)) for line in named}) == 24
    texts = legend_texts(figure)
    assert {"Group-free control", "its 95 % interval", "Religion", "Nationality"} <= set(texts)


def test_spectrum_survives_unknown_groups_and_gaps(shifts: pd.DataFrame) -> None:
    some = shifts[shifts["group"].isin(["jews", "women"])].copy()
    some.loc[some["harmful_weight"] == 1.0, "delta_b"] = np.nan
    figure = spectrum(some, "tiny", "full", {"jews": GroupName("$Jews$", "Religion")})
    assert {text.get_text() for text in figure.axes[0].texts} == {"$Jews$", "Women"}
    assert spectrum(shifts.iloc[:0], "tiny", "full", {}).axes[0].texts[0].get_text() == "no values of dB"


@pytest.mark.parametrize("wanted", [[0.5] * 6, [0.0, 0.01, 0.9, 1.0], [0.98, 0.99, 1.0], [0.3]])
def test_spread_keeps_gap_order_and_bounds(wanted: list[float]) -> None:
    placed = spread(wanted, 0.1, 0.0, 1.0)
    assert placed.min() >= 0
    assert placed.max() <= 1 + 1e-12
    assert (np.diff(placed) >= 0.1 - 1e-12).all()


def test_spread_shrinks_the_gap_when_labels_do_not_fit() -> None:
    assert spread([0.5] * 21, 0.1, 0.0, 1.0).tolist() == pytest.approx(np.linspace(0, 1, 21).tolist())


def test_loss_curves() -> None:
    histories = {
        (regime, split): data.loss_history(3.0, end)
        for regime, split, end in (
            ("full", "harmful", 0.9),
            ("full", "unharmful", 1.2),
            ("lora", "harmful", 1.5),
            ("lora", "unharmful", 1.7),
        )
    }
    axes = loss(histories).axes[0]
    for (regime, split), frame in histories.items():
        line = by_gid(axes, f"{regime}/{split}")[0]
        assert list(line.get_ydata()) == frame["loss"].tolist()
    assert axes.get_xscale() == "log"
    assert "nats" in axes.get_ylabel()
    assert len({(str(line.get_color()), str(line.get_marker())) for line in axes.get_lines()}) == 4
    assert loss({}).axes[0].texts[0].get_text() == "nothing was trained in this run"


def test_saved_bytes_repeat_and_fonts_are_embedded(tmp_path: Path) -> None:
    def draw() -> Figure:
        return loss({("full", "harmful"): data.loss_history(3.0, 1.0)})

    first, second = save(draw(), tmp_path / "a"), save(draw(), tmp_path / "b")
    assert [path.name for path in first] == ["a.pdf", "a.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    pdf = first[0].read_bytes()
    assert b"/Type0" in pdf or b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf


def test_command_writes_all_figures(tmp_path: Path) -> None:
    data.write_run(tmp_path, regimes=("full",))
    results, output = tmp_path / "results" / "demo", tmp_path / "figures"
    settings = {"models": ["tiny"], "regimes": ["full"], "thresholds": data.THRESHOLDS, "lacks": data.lacks(("full",))}
    arguments = [
        "--settings",
        json.dumps(settings),
        "--observations",
        str(results / "tables/observations.csv"),
        "--table1",
        str(results / "tables/table1.csv"),
        "--delta-b",
        str(results / "shift/delta_b.csv"),
        "--losses",
        str(results / "records/losses.csv"),
        "--output",
        str(output),
    ]
    command.main(arguments)
    names = ["figure2_tiny_full", "roc_tiny_full", "auc_threshold_tiny_full", "spectrum_tiny_full", "loss_tiny"]
    names += ["figure3_auc_threshold", "figure6_methods", "figure7_wildguardmix_full", "figure8_decodingtrust_full"]
    names += ["figure9_decodingtrust_full_labelled", "figure10_wildguardmix_full_labelled", "figure15_toxigen_full"]
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["figures"] == names
    assert {f"{name}.{kind}" for name in names for kind in ("pdf", "png")} <= {path.name for path in output.iterdir()}


def test_a_planned_figure_without_its_table_is_an_error(tmp_path: Path) -> None:
    data.write_run(tmp_path, regimes=("full",))
    tables = tmp_path / "results/demo/tables"
    lacks = data.lacks(("full",), ("anchors",))
    assert not lacks["figure_4"]
    settings = FigureStage(models=["tiny"], regimes=["full"], thresholds=data.THRESHOLDS, lacks=lacks)
    frames = {name: pd.read_csv(tables / f"{name}.csv") for name in ("observations", "table1")}
    pictures = FigureData(**frames, delta_b=data.delta_b(), losses={})
    with pytest.raises(UserError, match=r"--ablations: missing: figure 4"):
        list(draw_all(settings, pictures))
