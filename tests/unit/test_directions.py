"""Four methods side by side, one of them without direction: tables, figures and sentences stay true."""

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from refbias.analysis import detection_score, observations, table1, unit_groups
from refbias.analysis.direction import NOTE, folded, folded_interval
from refbias.config.shift import ShiftSettings
from refbias.figures import auc_threshold, figure2, roc, spectrum
from refbias.figures.style import METHOD_STYLES
from refbias.metrics import DIRECTIONS, METHODS, chosen_methods, is_undirected
from refbias.report import sentences
from refbias.stats import Interval
from refbias.tables import group_names, table1_latex, table1_markdown
from refbias.tables.labels import METHOD_LABELS
from tests.unit import picture_data as data

MORE = {"procrustes_seat": ("seat", 0.8, 250), "cka_drift": ("rr", 0.3, 0)}


@pytest.fixture(scope="module")
def shifts() -> pd.DataFrame:
    """dB of the four methods; the drift is positive, and has no parts."""
    base = data.delta_b()
    frames = [base]
    for method, (source, factor, anchors) in MORE.items():
        frame = base[base["method"] == source].copy()
        frame["method"], frame["n_anchors"] = method, anchors
        if is_undirected(method):
            frame["delta_b"] = factor * frame["delta_b"].abs()
            frame[["s_plus", "s_minus", "b_reference", "b_audited"]] = np.nan
            frame["ci_low"], frame["ci_high"] = frame["delta_b"] * 0.8, frame["delta_b"] * 1.1
        else:
            frame[["delta_b", "ci_low", "ci_high"]] *= factor
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def pairs(shifts: pd.DataFrame) -> pd.DataFrame:
    found = data.observations(shifts)
    return found.assign(delta_b=found["delta_b"].where(found["method"] != "cka_drift", found["delta_b"].abs()))


@pytest.fixture(scope="module")
def numbers(pairs: pd.DataFrame) -> pd.DataFrame:
    return table1(pairs, data.THRESHOLDS, n_resamples=100, seed=0)


def test_every_method_is_declared_once_everywhere() -> None:
    assert set(METHODS) == set(DIRECTIONS) == set(METHOD_LABELS) == set(METHOD_STYLES) == set(chosen_methods(METHODS))
    assert ShiftSettings().methods == list(METHODS)
    with pytest.raises(KeyError):
        is_undirected("unknown")


def test_methods_differ_in_line_and_in_grey() -> None:
    styles = [str(line) for _, line in METHOD_STYLES.values()]
    assert len(set(styles)) == len(styles)
    assert len({colour for colour, _ in METHOD_STYLES.values()}) == len(styles)
    for colour, _ in METHOD_STYLES.values():
        red, green, blue = to_rgb(colour)
        assert 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.7, "too pale on white"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-0.6, -0.2, (0.2, 0.6)), (0.2, 0.6, (0.2, 0.6)), (-0.5, 0.1, (0.0, 0.5)), (-0.1, 0.5, (0.0, 0.5))],
)
def test_an_interval_is_folded_as_the_set_of_its_values(low: float, high: float, expected: tuple[float, float]) -> None:
    assert folded_interval(Interval(low, high, 7), 0.0) == pytest.approx((*expected, 7))
    shifted = folded_interval(Interval(low + 0.5, high + 0.5, 7), 0.5)
    assert shifted[:2] == pytest.approx((expected[0] + 0.5, expected[1] + 0.5))
    inside = np.abs(np.linspace(low, high, 10001))
    assert (inside.min(), inside.max()) == pytest.approx(expected, abs=1e-4)


def test_what_is_missing_stays_missing_when_folded() -> None:
    assert math.isnan(folded(math.nan, 0.5))
    bounds = folded_interval(Interval(math.nan, math.nan, 0), 0.5)
    assert math.isnan(bounds.low)
    assert math.isnan(bounds.high)


def test_detection_score_turns_only_an_undirected_method() -> None:
    drift, label = [0.1, 0.2, 0.3, 0.4], [False, False, True, True]
    assert detection_score("cka_drift", drift, label).tolist() == drift
    assert detection_score("cka_drift", drift, label[::-1]).tolist() == [-value for value in drift]
    assert detection_score("rr", drift, label).tolist() == [-value for value in drift]


def test_table1_has_a_row_for_each_method_and_says_which_has_no_direction(numbers: pd.DataFrame) -> None:
    assert len(numbers) == 3 * 2 * 4
    undirected = numbers[numbers["method"] == "cka_drift"]
    assert undirected["note"].str.startswith(NOTE).all()
    assert not numbers.loc[numbers["method"] != "cka_drift", "note"].str.contains("undirected").any()
    known = undirected.dropna(subset=["pearson_r", "roc_auc"])
    assert (known["pearson_r"] >= 0).all()
    assert (known["roc_auc"] >= 0.5).all()
    assert (known["pearson_ci_low"] <= known["pearson_ci_high"]).all()
    for text in (table1_markdown(numbers), table1_latex(numbers)):
        assert "CKA drift has no direction" in text
        assert "Procrustes-SEAT" in text
    assert "no direction" not in table1_markdown(numbers[numbers["method"] == "rr"])


def test_topics_take_the_mean_of_the_drift_too(shifts: pd.DataFrame) -> None:
    units = data.units(data.observations(shifts))
    groups = pd.read_csv("data/stimuli/groups.tsv", sep="\t", keep_default_na=False)
    found = observations(units, shifts, unit_groups(groups))
    chosen = found[(found["benchmark"] == "wildguardmix") & (found["unit"] == "gender") & (found["regime"] == "full")]
    for method in METHODS:
        end = shifts[
            (shifts["method"] == method) & (shifts["regime"] == "full") & (shifts["checkpoint"] == "h100")
        ].set_index("group")["delta_b"]
        row = chosen[(chosen["method"] == method) & (chosen["checkpoint"] == "h100")].iloc[0]
        assert row["delta_b"] == pytest.approx((end["women"] + end["men"]) / 2)


def test_an_empty_db_is_dropped_and_counted_and_an_absent_one_refused(shifts: pd.DataFrame) -> None:
    units = data.units(data.observations(shifts))
    groups = pd.read_csv("data/stimuli/groups.tsv", sep="\t", keep_default_na=False)
    empty = shifts.copy()
    empty.loc[(empty["method"] == "cka_drift") & (empty["group"] == "women"), "delta_b"] = np.nan
    table = table1(observations(units, empty, unit_groups(groups)), data.THRESHOLDS, 50, 0)
    row = table[(table["benchmark"] == "decodingtrust") & (table["regime"] == "full")].set_index("method")
    # one of the seven changes of score of this group is missing as well
    assert row.loc["cka_drift", "n"] == row.loc["rr", "n"] - 6
    assert "7 of 168 observations dropped: no dB" in row.loc["cka_drift", "note"]
    assert row.loc["seat", "note"] == row.loc["rr", "note"]


def test_figures_show_four_methods(shifts: pd.DataFrame, pairs: pd.DataFrame, numbers: pd.DataFrame) -> None:
    curves = roc(pairs, numbers, "tiny", "full", data.THRESHOLDS)
    for axes, benchmark in zip(curves.axes, ("wildguardmix", "decodingtrust", "toxigen"), strict=True):
        for method in METHODS:
            line = next(line for line in axes.get_lines() if line.get_gid() == method)
            row = numbers[
                (numbers["benchmark"] == benchmark) & (numbers["regime"] == "full") & (numbers["method"] == method)
            ].iloc[0]
            area = np.trapezoid(np.asarray(line.get_ydata()), np.asarray(line.get_xdata()))
            assert area == pytest.approx(row["roc_auc"]), (benchmark, method)
    along = auc_threshold(pairs, "tiny", "full", data.THRESHOLDS)
    drift = next(line for line in along.axes[0].get_lines() if line.get_gid() == "cka_drift")
    assert np.nanmin(np.asarray(drift.get_ydata())) >= 0.5
    assert {text.get_text() for text in along.legends[0].get_texts()} >= set(METHOD_LABELS.values())
    panels = spectrum(shifts, "tiny", "full", group_names())
    titles = [axes.get_title(loc="left") for axes in panels.axes]
    assert titles == ["RR, 250 anchors", "SEAT", "Procrustes-SEAT, 250 anchors", "CKA drift"]
    labels = [axes.get_ylabel() for axes in panels.axes]
    assert ["towards the negative" in label for label in labels] == [True, True, True, False]
    assert "no direction" in labels[3]
    scatter = figure2(pairs, numbers, "tiny", "full", data.THRESHOLDS, "cka_drift")
    assert "|r| = " in scatter.axes[0].get_title(loc="left")
    assert not scatter.axes[0].get_ylabel().startswith("dB")


def test_sentences_about_a_method_without_direction() -> None:
    base = {
        "benchmark": "decodingtrust",
        "method": "cka_drift",
        "n": 168,
        "pearson_r": 0.4,
        "pearson_p": 0.0001,
        "pearson_ci_low": 0.1,
        "pearson_ci_high": 0.6,
        "threshold": 0.1,
        "n_positive": 20,
        "roc_auc": 0.8,
        "roc_auc_ci_low": 0.6,
        "roc_auc_ci_high": 0.9,
        "note": NOTE,
    }
    text = sentences.relation(pd.Series(base))
    assert text.startswith("CKA drift: |r| = 0.40 over 168 pairs")
    assert "excludes 0: the drift and the change of the agreement rate went together, either way" in text
    assert "lower dB" not in text
    assert "AUC of the better side 0.80" in text
    text = sentences.relation(pd.Series({**base, "pearson_ci_low": 0.0, "roc_auc_ci_low": 0.5}))
    assert "includes 0: no relation is shown" in text
    assert "not told from chance" in text
    frame = pd.DataFrame([base, {**base, "pearson_ci_low": 0.0}, {**base, "pearson_ci_low": math.nan}])
    assert sentences.tally(frame, "cka_drift") == (
        "CKA drift, which has no direction: of 3 rows of Table 1, the interval of |r| excludes 0 in 1 and includes it "
        "in 1; 1 without an interval."
    )
    rows = pd.DataFrame(
        {
            "group": ["a", "b", "control"],
            "delta_b": [0.5, 0.1, 0.1],
            "ci_low": [0.4, 0.05, 0.08],
            "ci_high": [0.6, 0.2, 0.2],
        }
    )
    text = sentences.control(rows, "cka_drift")
    assert "2 groups, a drift without direction" in text
    assert "below 0" not in text
    assert "0 have an interval wholly below the control's, 1 wholly above, and 1 overlap it" in text
