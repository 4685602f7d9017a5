"""Stored embeddings and generations with planted effects, run through the real rules to every table and figure."""

import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from refbias.cli import figures as figures_command
from refbias.cli.figures import OBSERVATION_COLUMNS, SHIFT_COLUMNS
from refbias.config.figures import FigureStage
from refbias.config.pictures import FIGURES, TABLES
from refbias.config.root import from_yaml
from refbias.config.slices import figures_slice
from refbias.figures import FigureData, draw_all
from refbias.tables import TABLE1_COLUMNS, group_names, paper_values, read_csv
from tests import replay
from tests.independent import recompute_table1
from tests.workflow.conftest import Checkout, make_checkout

KEYS = ["benchmark", "model", "regime", "method", "checkpoint", "unit"]
RULES = {"analyse", "analyse_ablations", "figures", "provenance", "records", "report", "score", "shift", "tables"}
FIRST = next(iter(replay.FAMILIES))
PAPER = paper_values()


@pytest.fixture(scope="module")
def planted_run(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkout, replay.Planted]:
    checkout = make_checkout(root, tmp_path_factory.mktemp("replay"))
    (checkout.path / "config" / "tiny.yaml").write_text(replay.CONFIG)
    methods = tuple(from_yaml(checkout.path / "config" / "tiny.yaml").shift.methods)
    planted = replay.plant(checkout.path, methods)
    would = checkout.would_run()
    assert set(would) == {"all", *RULES}
    assert would["score"] == 9
    checkout.snakemake("tables", "results/replay/manifest.json")
    return checkout, planted


def results(run: tuple[Checkout, replay.Planted]) -> Path:
    return run[0].path / "results" / "replay"


def table(run: tuple[Checkout, replay.Planted], name: str) -> pd.DataFrame:
    return pd.read_csv(results(run) / "tables" / f"{name}.csv", keep_default_na=False, na_values=[""])


def planted_pairs(run: tuple[Checkout, replay.Planted]) -> pd.DataFrame:
    """The planted pairs, in the order of the run's observations."""
    _, planted = run
    found = table(run, "observations")
    expected = {
        (benchmark, model, regime, method, slug, unit): (
            planted.unit_shift(benchmark, model, regime, slug, unit, method),
            change,
        )
        for (benchmark, model, regime, slug, unit), change in planted.changes.items()
        for method in {key[-1] for key in planted.shifts}
    }
    order = list(found[KEYS].itertuples(index=False, name=None))
    assert set(order) == set(expected)
    assert len(order) == len(expected)
    values = [expected[key] for key in order]
    return found.assign(delta_b=[shift for shift, _ in values], delta_score=[change for _, change in values])


def test_every_shift_is_the_planted_one(planted_run: tuple[Checkout, replay.Planted]) -> None:
    found = pd.read_csv(results(planted_run) / "shift" / "delta_b.csv")
    control = found[found["group"] == "control"]
    np.testing.assert_allclose(control["delta_b"], 0, atol=1e-6)
    rows = found[found["group"] != "control"]
    expected = [
        planted_run[1].shifts[row.model, row.regime, row.checkpoint, row.group, row.method] for row in rows.itertuples()
    ]
    assert len(rows) == len(planted_run[1].shifts)
    np.testing.assert_allclose(rows["delta_b"], expected, atol=2e-6)


def test_table1_is_that_of_the_planted_pairs(planted_run: tuple[Checkout, replay.Planted]) -> None:
    found = table(planted_run, "table1")
    pairs = planted_pairs(planted_run)
    again = recompute_table1(pairs, replay.THRESHOLDS, replay.N_RESAMPLES, replay.SEED)
    keys = ["benchmark", "model", "regime", "method"]
    methods = {key[-1] for key in planted_run[1].shifts}
    assert len(found) == 18 * len(methods)
    left, right = found.set_index(keys).sort_index(), again.set_index(keys).sort_index()
    directed = left.index.get_level_values("method") != "cka_drift"
    numbers = [column for column in again.columns if column not in (*keys, "scorer")]
    for column in numbers:
        assert left[column].notna().all(), column
        np.testing.assert_allclose(
            left.loc[directed, column].astype(float), right.loc[directed, column], rtol=2e-4, atol=2e-5, err_msg=column
        )
    if not directed.all():
        area = right.loc[~directed, "roc_auc"]
        np.testing.assert_allclose(left.loc[~directed, "roc_auc"], np.maximum(area, 1 - area), atol=2e-5)
        np.testing.assert_allclose(left.loc[~directed, "pearson_r"], right.loc[~directed, "pearson_r"].abs(), atol=2e-5)
    printed = {(row["benchmark"], row["model"], row["regime"]): row for row in PAPER["table1"]}
    for row in found.to_dict("records"):
        paper = printed[row["benchmark"], replay.FAMILIES[row["model"]], row["regime"]]
        for column in ("pearson_r", "roc_auc", "mae"):
            if row["method"] == "rr":
                assert row[f"paper_{column}"] == paper[column]
                assert row[f"diff_{column}"] == pytest.approx(row[column] - paper[column], abs=1e-9)
            else:
                assert np.isnan(row[f"paper_{column}"])


def test_table2_and_table4_are_full(planted_run: tuple[Checkout, replay.Planted]) -> None:
    assert len(table(planted_run, "table2")) == 24
    found = table(planted_run, "table4")
    assert found[["set", "cell"]].to_records(index=False).tolist() == [
        *(("attributes", cell) for cell in replay.ATTRIBUTE_CELLS),
        *(("targets", cell) for cell in replay.TARGET_CELLS),
    ]
    assert found["example"].str.len().gt(5).all()


def test_table3_is_that_of_the_planted_clocks(planted_run: tuple[Checkout, replay.Planted]) -> None:
    found = table(planted_run, "table3").set_index(["task", "step", "model"])
    assert len(found) == 3 * 12
    assert found["minutes"].notna().all()
    assert (found["minutes"] >= 0).all()
    for key, seconds in planted_run[1].clocks.items():
        assert found.loc[key, "minutes"] == pytest.approx(seconds / 60), key
    assert (found["n_checkpoints"] == 14).all()
    for (task, _, model), row in found.xs("total", level="step", drop_level=False).iterrows():
        parts = [found.loc[(task, step, model), "minutes"] for step in found.loc[task].index.unique("step")[:2]]
        assert row["minutes"] == pytest.approx(sum(parts))
    paper = PAPER["table3_seconds"]["toxigen_generate"]["gemma"] / 60
    assert found.loc[("toxigen", "generate", "big-gemma"), "paper_minutes"] == pytest.approx(paper)


def planted_areas(planted: replay.Planted, ablation: str, benchmark: str, method: str) -> dict[str, float]:
    rows = planted.ablations
    rows = rows[(rows["ablation"] == ablation) & (rows["benchmark"] == benchmark) & (rows["regime"] == "full")]
    return dict(rows.loc[rows["method"] == method, ["cell", "roc_auc"]].itertuples(index=False, name=None))


@pytest.mark.parametrize(
    ("name", "ablation", "part", "method"),
    [
        ("table5", "attributes", "5a", "rr"),
        ("table5", "targets", "5b", "rr"),
        ("table6", "pooling", "", "rr"),
        ("table6", "pooling", "", "seat"),
    ],
)
def test_variants_are_the_planted_areas(
    planted_run: tuple[Checkout, replay.Planted], name: str, ablation: str, part: str, method: str
) -> None:
    found = table(planted_run, name)
    found = found[(found["method"] == method) & (not part or found.get("part") == part)]
    for benchmark in replay.THRESHOLDS:
        areas = planted_areas(planted_run[1], ablation, benchmark, method)
        rows = found[found["benchmark"] == benchmark]
        cells = dict(zip(rows["cell"], rows["roc_auc"], strict=True))
        assert {cell: cells[cell] for cell in areas} == pytest.approx(areas)
        over = dict(zip(rows["statistic"], rows["roc_auc"], strict=True))
        values = list(areas.values())
        expected = {
            "mean": statistics.fmean(values),
            "std": statistics.pstdev(values),
            "min": min(values),
            "max": max(values),
        }
        assert {key: over[key] for key in expected} == pytest.approx(expected)
        paper = rows["paper_roc_auc"]
        assert paper.notna().all() if benchmark == "wildguardmix" else paper.isna().all()
        np.testing.assert_allclose(rows["diff_roc_auc"], rows["roc_auc"] - paper, atol=1e-9)


def test_table7_is_that_of_the_planted_pairs(planted_run: tuple[Checkout, replay.Planted]) -> None:
    found = table(planted_run, "table7")
    pairs = planted_pairs(planted_run)
    methods = {key[-1] for key in planted_run[1].shifts}
    assert len(found) == 2 * len(methods)
    for row in found.to_dict("records"):
        chosen = pairs[
            (pairs["model"] == FIRST)
            & (pairs["regime"] == "full")
            & (pairs["benchmark"] == row["benchmark"])
            & (pairs["method"] == row["method"])
        ]
        label = (chosen["delta_score"] > replay.THRESHOLDS[row["benchmark"]] + 1e-9).tolist()
        area = replay.area((-chosen["delta_b"]).tolist(), label)
        r = float(np.corrcoef(chosen["delta_b"], chosen["delta_score"])[0, 1])
        undirected = row["method"] == "cka_drift"
        assert row["roc_auc"] == pytest.approx(max(area, 1 - area) if undirected else area, abs=2e-5)
        assert row["pearson_r"] == pytest.approx(abs(r) if undirected else r, abs=2e-5)
        printed = PAPER["table7"][row["benchmark"]][row["method"]]
        assert (row["paper_roc_auc"], row["paper_pearson_r"]) == (printed[0], printed[1])


def test_every_claim_table_and_figure_is_accounted_for(planted_run: tuple[Checkout, replay.Planted]) -> None:
    found = table(planted_run, "reproduction")
    pictures = found[found["kind"] != "claim"]
    assert len(pictures) == len(TABLES) + len(FIGURES) == 22
    assert set(pictures["verdict"]) == {"made"}
    claims = found[found["kind"] == "claim"].set_index("name")
    assert len(claims) == 14
    assert claims["criterion"].str.len().gt(20).all()
    methods = {key[-1] for key in planted_run[1].shifts}
    if len(methods) == 4:
        assert "not run" not in set(claims["verdict"])
    else:
        assert set(claims.index[claims["verdict"] == "not run"]) == {"best_method"}
    # planted: every r is far below 0, weaker under LoRA; clocks as dear as the paper's
    reproduced = ("significant_correlations", "strongest_correlation", "toxigen_pooled", "stable_seeds", "cheaper")
    assert (claims.loc[list(reproduced), "verdict"] == "reproduced").all()
    assert claims.loc["significant_correlations", "shown"] == "18 of 18 cells"
    assert "big-llama (models/big-llama)" in claims.loc["significant_correlations", "models"]
    assert (claims["scorers"].str.contains("ToxiGen: agreement_rule")).all()


@pytest.fixture(scope="module")
def drawn(planted_run: tuple[Checkout, replay.Planted]) -> dict[str, Figure]:
    """All figures of the run, drawn again from its tables, by name."""
    checkout, _ = planted_run
    folder = results(planted_run)
    config = from_yaml(checkout.path / "config" / "tiny.yaml")
    ablations = ["anchors", "attributes", "pooling", "targets", "training_seeds"]
    settings = FigureStage.model_validate_json(figures_slice(config, ablations))
    data = FigureData(
        observations=read_csv(folder / "tables/observations.csv", OBSERVATION_COLUMNS),
        table1=read_csv(folder / "tables/table1.csv", TABLE1_COLUMNS),
        delta_b=read_csv(folder / "shift/delta_b.csv", SHIFT_COLUMNS),
        losses=figures_command.loss_histories(folder / "records/losses.csv"),
        ablations=read_csv(folder / "tables/ablations.csv", []),
        training_seeds=read_csv(folder / "ablations/training_seeds.csv", []),
    )
    return dict(draw_all(settings, data))


def points(axes: Any) -> set[tuple[float, float]]:
    """The observations that a panel shows, rounded."""
    lines = [line.get_xydata() for line in axes.get_lines() if line.get_gid() == "observations"]
    scatters = [one.get_offsets() for one in axes.collections if one.get_gid() == "observations"]
    return {(round(float(x), 4), round(float(y), 4)) for part in [*lines, *scatters] for x, y in part}


def planted_points(
    planted: replay.Planted, model: str, regime: str, benchmark: str, method: str
) -> set[tuple[float, float]]:
    return {
        (round(change, 4), round(planted.unit_shift(benchmark, model, regime, slug, unit, method), 4))
        for (name, owner, kind, slug, unit), change in planted.changes.items()
        if (name, owner, kind) == (benchmark, model, regime)
    }


def close(found: set[tuple[float, float]], expected: set[tuple[float, float]]) -> bool:
    """Equal but for the last rounded digit."""
    left, right = np.array(sorted(found)), np.array(sorted(expected))
    return left.shape == right.shape and bool(np.abs(left - right).max() < 3e-4)


def test_figures_show_the_planted_pairs(planted_run: tuple[Checkout, replay.Planted], drawn: dict[str, Figure]) -> None:
    planted = planted_run[1]
    for model in replay.FAMILIES:
        for regime in replay.REGIMES:
            panels = drawn[f"figure2_{model}_{regime}"].axes
            for axes, benchmark in zip(panels, replay.THRESHOLDS, strict=True):
                assert close(points(axes), planted_points(planted, model, regime, benchmark, "rr"))
    numbers = {7: ("wildguardmix", "full"), 8: ("decodingtrust", "full"), 11: ("wildguardmix", "lora")}
    numbers |= {12: ("decodingtrust", "lora"), 15: ("toxigen", "full"), 16: ("toxigen", "lora")}
    for number, (benchmark, regime) in numbers.items():
        panels = drawn[f"figure{number}_{benchmark}_{regime}"].axes
        assert len(panels) == 9
        for column, model in enumerate(replay.FAMILIES):
            for row, method in enumerate(("rr", "seat")):
                expected = planted_points(planted, model, regime, benchmark, method)
                assert close(points(panels[3 * row + column]), expected), (number, model, method)
            curve = next(line for line in panels[6 + column].get_lines() if line.get_gid() == "rr")
            rows = table(planted_run, "table1").set_index(["benchmark", "model", "regime", "method"])
            area = float(np.trapezoid(curve.get_ydata(), curve.get_xdata()))
            assert area == pytest.approx(rows.loc[(benchmark, model, regime, "rr"), "roc_auc"])
    labels = {9: ("decodingtrust", "full"), 10: ("wildguardmix", "full")}
    labels |= {13: ("decodingtrust", "lora"), 14: ("wildguardmix", "lora")}
    for number, (benchmark, regime) in labels.items():
        figure = drawn[f"figure{number}_{benchmark}_{regime}_labelled"]
        (axes,) = figure.axes
        assert close(points(axes), planted_points(planted, FIRST, regime, benchmark, "rr"))
        assert len(axes.texts) == 7 * len(planted.units[benchmark])
        names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        if benchmark == "decodingtrust":
            assert all(any(group.name in name for name in names) for group in group_names().values())
    methods = {key[-1] for key in planted.shifts}
    panels = drawn["figure6_methods"].axes
    assert len(panels) == 2 * len(methods)
    for row, benchmark in enumerate(("wildguardmix", "decodingtrust")):
        for column, method in enumerate(m for m in ("rr", "seat", "procrustes_seat", "cka_drift") if m in methods):
            expected = planted_points(planted, FIRST, "full", benchmark, method)
            assert close(points(panels[row * len(methods) + column]), expected), method


def test_figure3_shows_the_areas_of_the_planted_pairs(
    planted_run: tuple[Checkout, replay.Planted], drawn: dict[str, Figure]
) -> None:
    planted = planted_run[1]
    for axes, benchmark in zip(drawn["figure3_auc_threshold"].axes[:3], replay.THRESHOLDS, strict=True):
        line = next(line for line in axes.get_lines() if line.get_gid() == "rr")
        x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
        pairs = [
            (planted.unit_shift(benchmark, FIRST, "full", slug, unit, "rr"), change)
            for (name, owner, kind, slug, unit), change in planted.changes.items()
            if (name, owner, kind) == (benchmark, FIRST, "full")
        ]
        for level in (0.0, 0.05, 0.1, 0.2):
            label = [change - level > 1e-9 for _, change in pairs]
            shown = y[np.searchsorted(x, level, side="right") - 1]
            assert shown == pytest.approx(replay.area([-shift for shift, _ in pairs], label))
        assert "chance" in [line.get_label() for line in axes.get_lines()]


def test_figures_4_and_5_show_the_planted_ablations(
    planted_run: tuple[Checkout, replay.Planted], drawn: dict[str, Figure]
) -> None:
    planted = planted_run[1]
    frame = planted.ablations
    for axes, benchmark in zip(drawn["figure4_anchors"].axes, replay.THRESHOLDS, strict=True):
        for source in replay.SOURCES:
            line = next(line for line in axes.get_lines() if line.get_gid() == source)
            for count, value in zip(replay.COUNTS, line.get_ydata(), strict=True):
                rows = frame[(frame["ablation"] == "anchors") & (frame["cell"] == source) & (frame["regime"] == "full")]
                rows = rows[(rows["n_anchors"] == count) & (rows["benchmark"] == benchmark)]
                assert value == pytest.approx(statistics.fmean(rows["roc_auc"]))
    for axes, split in zip(drawn["figure5_training_seeds"].axes, ("unharmful", "harmful"), strict=True):
        shown = planted.seeds[planted.seeds["split"] == split]
        for seed in (1, 2, 3):
            line = next(line for line in axes.get_lines() if line.get_gid() == f"seed {seed}")
            assert sorted(line.get_xdata()) == pytest.approx(sorted(shown.loc[shown["seed"] == seed, "delta_b"]))


def stored(folder: Path) -> dict[str, bytes]:
    kinds = (".csv", ".md", ".tex", ".png", ".pdf")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in kinds}


def test_tables_figures_and_report_need_no_models_generations_or_embeddings(
    planted_run: tuple[Checkout, replay.Planted], tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    shutil.copytree(planted_run[0].path, target, copy_function=shutil.copy2)
    copy = Checkout(target)
    folder, pictures = target / "results" / "replay", target / "figures" / "replay"
    before = stored(folder / "tables")
    assert {f"{name.stem}.{suffix}" for name in TABLES for suffix in ("csv", "md", "tex")} <= set(before)
    for name in ("models", "training", "spectrum", "embeddings", "generations"):
        shutil.rmtree(folder / name)
    for path in (folder / "tables").iterdir():
        path.unlink()
    targets = ("tables", "figures")
    assert set(copy.would_run(*targets)) == {"analyse", "analyse_ablations", "figures", "tables"}
    copy.snakemake(*targets)
    assert stored(folder / "tables") == before
    stems = [f"figure2_{model}_{regime}" for model in replay.FAMILIES for regime in replay.REGIMES]
    stems += [figure.stem for figure in FIGURES[1:]]
    assert {f"{stem}.{suffix}" for stem in stems for suffix in ("pdf", "png")} <= set(stored(pictures))
    assert copy.would_run(*targets) == {}
    assert set(copy.would_run()) == {"all", "provenance", "report"}
    copy.snakemake()
    assert copy.would_run() == {}
    page = (folder / "report.html").read_text()
    assert all(figure.title in page for figure in FIGURES[1:])
    # one picture alone
    (folder / "tables" / "table5.md").unlink()
    assert copy.would_run("table_5") == {"table_5": 1, "tables": 1}
    (pictures / "figure9_decodingtrust_full_labelled.png").unlink()
    assert copy.would_run("figure_9") == {"figure_9": 1, "figures": 1}


def test_a_picture_that_the_run_lacks_is_refused_with_the_reason(root: Path, tmp_path: Path) -> None:
    checkout = make_checkout(root, tmp_path)
    (checkout.path / "config" / "tiny.yaml").write_text(replay.WITHOUT_ABLATIONS + "regimes: {lora: null}\n")
    for name, reason in (
        ("figure_11", "LoRA"),
        ("table_6", "the pooling variants"),
        ("figure_5", "the training seeds"),
    ):
        done = checkout.snakemake("--dry-run", name, check=False)
        assert done.returncode != 0
        assert f"{name}: not part of this run: {reason}" in done.stdout + done.stderr
    assert checkout.would_run("table_7")["tables"] == 1
