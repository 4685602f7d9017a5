"""Figures and page of the metamorphic lens: what they draw is what the tables say."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from refbias.cli.main import main
from refbias.errors import UserError
from refbias.figures.metamorphic import draw_all, forest, heat_models, mitigation
from refbias.report.metamorphic import findings, section
from refbias.report.sections import Section, SectionTable, page
from refbias.tables import TextTable
from refbias.tables.cells import read_csv
from refbias.tables.metamorphic import CAPTIONS, FILES, SCOPE_LABELS, tables
from tests.unit import metamorphic_run as run
from tests.unit import picture_data as data
from tests.unit.test_report import KINDS, PIXEL, Page, stage

NAMES = [
    "models_relations",
    "categories_relations_tiny",
    "relations_tiny",
    "mitigation_tiny",
    "beside_db_tiny_full",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run.write_run(folder)
    run.delta_b().to_csv(folder / "delta_b.csv", index=False)
    command = ["metamorphic", "tables", "--results", str(folder), "--shift", str(folder / "delta_b.csv")]
    options = ["--n-resamples", "100", "--stand-in", "tiny", "--output", str(folder / "tables")]
    assert main([*command, *options]) == 0
    figures = ["metamorphic", "figures", "--tables", str(folder / "tables"), "--output", str(folder / "figures")]
    assert main(figures) == 0
    return folder


@pytest.fixture(scope="module")
def frames(root: Path) -> dict[str, pd.DataFrame]:
    return {stem: read_csv(root / "tables" / f"{stem}.csv", columns) for stem, columns in FILES.items()}


def test_the_command_draws_every_figure_twice(root: Path) -> None:
    manifest = json.loads((root / "figures" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["figures"] == NAMES
    assert {f"{name}.{kind}" for name in NAMES for kind in ("pdf", "png")} <= {
        path.name for path in (root / "figures").iterdir()
    }


def test_a_heat_map_has_the_tables_numbers_and_says_what_was_not_asked(frames: dict[str, pd.DataFrame]) -> None:
    frame = frames["model_relation"]
    axes = heat_models(frame).axes[0]
    image = np.ma.filled(axes.images[0].get_array(), np.nan)
    # reference, few-shot, four checkpoints, mitigated x all, source, six relations
    assert image.shape == (7, 8)
    columns = ["all", "source", "MR1", "MR2", "MR3", "MR4", "MR5", "MR6"]
    for _, row in frame.iterrows():
        if row["subject"] == "full-h070":
            assert image[4, columns.index(row["relation"])] == pytest.approx(row["resiliency"])
    # the checkpoints were asked the source questions, MR1 and MR4 alone
    assert np.isnan(image[2:6]).sum() == 4 * 4
    texts = [text.get_text() for text in axes.texts]
    assert len(texts) == 56
    assert texts.count("–") == 16
    assert sum(text.endswith("*") for text in texts) == (frame["mcnemar_holm"] < 0.05).sum()


def test_a_forest_plot_has_a_marker_and_an_interval_for_every_row(frames: dict[str, pd.DataFrame]) -> None:
    frame = frames["model_relation"]
    axes = forest(frame, "tiny").axes[0]
    lines = [line.get_xdata() for line in axes.get_lines()]
    shown = frame[frame["subject"].isin(["reference", "mitigated"])]
    for _, row in shown.iterrows():
        # all questions: each in seven wordings, so whole ones are drawn
        kind, other = ("cluster", "ci") if row["relation"] == "all" else ("ci", "cluster")
        ends, others = ([row[f"{name}_low"], row[f"{name}_high"]] for name in (kind, other))
        assert any(len(x) == 2 and list(x) == ends for x in lines)
        assert others == ends or not any(len(x) == 2 and list(x) == others for x in lines)
        assert any(len(x) == 1 and x[0] == row["resiliency"] for x in lines)
    assert axes.get_yticklabels()[0].get_text() == "all questions"


def test_bars_before_and_after_are_those_of_the_table(frames: dict[str, pd.DataFrame]) -> None:
    figure = mitigation(frames["mitigation"], frames["side_effects"], "tiny")
    heights = {round(patch.get_height(), 6) for axes in figure.axes for patch in axes.patches}
    rows = frames["mitigation"].query("category == 'all' and scope.str.startswith('held_out')", engine="python")
    for _, row in rows[rows["method"] != "fine_tuning_after_few_shot"].iterrows():
        assert {round(row["before"], 6), round(row["after"], 6)} <= heights
    for _, row in frames["side_effects"].iterrows():
        assert round(100 * row["neutral_accuracy"], 6) in heights
    # without few-shot there is no bar, and the figure says so
    lone = frames["mitigation"].query("method == 'fine_tuning'")
    figure = mitigation(lone, frames["side_effects"].query("reading == 'plain'"), "tiny")
    assert [text.get_text() for axes in figure.axes for text in axes.texts].count("none") == 5


def test_the_table_of_all_questions_has_the_interval_over_source_questions(frames: dict[str, pd.DataFrame]) -> None:
    printed = {one.stem: one for one in tables(**frames)}["model_relation"]
    at = [printed.text.columns.index(name) for name in ("Relation", "95 % CI")]
    rows = [(row[at[0]], row[at[1]]) for row in printed.text.rows]
    assert len(rows) == len(frames["model_relation"])
    for (label, told), (_, row) in zip(rows, frames["model_relation"].iterrows(), strict=True):
        kind = "cluster" if label == "all questions" else "ci"
        assert told == f"[{row[f'{kind}_low']:.1f},\u00a0{row[f'{kind}_high']:.1f}]"


def test_figures_without_mitigation_and_without_dB(frames: dict[str, pd.DataFrame]) -> None:
    bare = {stem: frame if stem.endswith("_relation") else frame.iloc[:0] for stem, frame in frames.items()}
    assert [name for name, _ in draw_all(bare)] == NAMES[:3]
    assert not list(draw_all({stem: frame.iloc[:0] for stem, frame in frames.items()}))


def test_the_page_is_whole_accessible_and_shows_no_answer(root: Path) -> None:
    output = root / "report.html"
    assert main(["metamorphic", "report", "--results", str(root), "--output", str(output)]) == 0
    text = output.read_text(encoding="utf-8")
    parsed = Page(text)
    assert not parsed.open
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    names = [tag for tag, _ in parsed.tags]
    assert names.count("h1") == names.count("main") == 1
    assert names.count("img") == len(NAMES)
    assert names.count("table") == names.count("caption") == 7
    assert "://" not in text
    assert "script" not in names
    assert "270M, base" in parsed.text
    assert "not how a current model behaves" in parsed.text
    for question in run.QUESTIONS[:50]:
        assert question.text not in parsed.text
    answers = [
        json.loads(line) for line in (root / "answers/tiny/reference/plain/answers.jsonl").open(encoding="utf-8")
    ]
    long = {row["raw"] for row in answers if len(row["raw"]) > 45}
    assert long
    assert not any(raw in parsed.text for raw in long)


def test_the_runs_report_has_the_lens_as_a_section(root: Path, tmp_path: Path) -> None:
    data.write_run(tmp_path)
    results, figures = tmp_path / "results" / "demo", tmp_path / "figures" / "demo"
    figures.mkdir(parents=True)
    for name in [*(f"{kind}_tiny_{regime}" for kind in KINDS for regime in ("full", "lora")), "loss_tiny"]:
        (figures / f"{name}.png").write_bytes(PIXEL)
    command = ["report", "--settings", json.dumps(stage()), "--figures", str(figures)]
    for name in ("tables", "shift", "records"):
        command += [f"--{name}", str(results / name)]
    output = results / "report.html"
    assert main([*command, "--output", str(output)]) == 0
    before = output.read_text(encoding="utf-8")
    assert main([*command, "--metamorphic", str(root), "--output", str(output)]) == 0
    text = output.read_text(encoding="utf-8")
    parsed, plain = Page(text), Page(before)
    assert not parsed.open
    links = [attrs["href"] for tag, attrs in parsed.tags if tag == "a"]
    assert "#metamorphic" in links
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert "metamorphic" in ids
    assert len(ids) == len(set(ids))
    count = [sum(tag == "img" for tag, _ in found.tags) for found in (plain, parsed)]
    assert count == [9, 9 + len(NAMES)]


def test_sentences_follow_from_the_tables(frames: dict[str, pd.DataFrame]) -> None:
    told = "\n".join(findings(frames))
    row = frames["model_relation"].query("subject == 'reference' and reading == 'plain' and relation == 'all'").iloc[0]
    assert f"tiny, reference: bias resiliency {row['resiliency']:.1f} %" in told
    assert f"% [{row['cluster_low']:.1f}, {row['cluster_high']:.1f}] over" in told
    assert f"[{row['ci_low']:.1f}, {row['ci_high']:.1f}] over" not in told
    assert "for none of 6 relations is a change in how many answers are biased shown" in told
    assert "fine-tuning: on held-out pair-property keys resiliency" in told
    # what is held out is the combination
    assert "pairs and properties" not in told + " ".join(CAPTIONS.values()) + " ".join(SCOPE_LABELS.values())
    assert told.count("which chance can explain") >= 1
    flip = frames["model_relation"].query("subject == 'reference' and reading == 'plain' and relation == 'MR5'").iloc[0]
    assert flip["coherent"] + flip["incoherent"] == flip["both_biased"] > 0
    assert (
        f"of {flip['both_biased']:.0f} questions biased at both poles of the property, {flip['coherent']:.0f} pick "
        f"opposite groups (a coherent stereotype) and {flip['incoherent']:.0f} the same group (incoherent)." in told
    )
    # what decides is the test of source questions, not McNemar's of their wordings
    remedied = frames["mitigation"].query("category == 'all' and scope == 'held_out_keys' and method == 'fine_tuning'")
    few = remedied.assign(mcnemar_holm=1e-9, change_holm=0.3)
    assert "which chance can explain" in "\n".join(findings({**frames, "mitigation": few}))
    many = remedied.assign(mcnemar_holm=0.3, change_holm=0.01, change_low=5.0)
    assert "which chance can explain" not in "\n".join(findings({**frames, "mitigation": many}))
    moved = {**frames, "model_relation": frames["model_relation"].copy()}
    at = moved["model_relation"].query("subject == 'reference' and reading == 'plain' and relation == 'MR4'").index
    moved["model_relation"].loc[at, ["mcnemar_holm", "hidden", "vanished"]] = [0.001, 30, 2]
    assert "under MR4 similarity more bias than in the source questions (30 came to light" in "\n".join(findings(moved))
    mute = {**frames, "model_relation": frames["model_relation"].assign(resiliency=np.nan, unusable_share=1.0)}
    assert "no usable answer, so no resiliency (100\u00a0% of its answers could not be read)" in "\n".join(
        findings(mute)
    )


def test_unreadable_and_chosen_answers_are_warned_of(root: Path, tmp_path: Path) -> None:
    for name in ("tables", "figures"):
        (tmp_path / name).symlink_to(root / name)
    assert len(section(tmp_path).warnings) == 1
    (tmp_path / "tables").unlink()
    (tmp_path / "tables").mkdir()
    for path in (root / "tables").iterdir():
        (tmp_path / "tables" / path.name).write_bytes(path.read_bytes())
    frame = pd.read_csv(tmp_path / "tables" / "model_relation.csv").astype({"unusable_share": float})
    frame.loc[0, "unusable_share"] = 0.4
    frame.to_csv(tmp_path / "tables" / "model_relation.csv", index=False)
    facts = json.loads((tmp_path / "tables" / "manifest.json").read_text(encoding="utf-8"))
    (tmp_path / "tables" / "manifest.json").write_text(
        json.dumps({**facts, "stand_in": [], "chosen_among_options": ["tiny"]}), encoding="utf-8"
    )
    warnings = section(tmp_path).warnings
    assert len(warnings) == 2
    assert "not the model's own words" in warnings[0]
    assert "40\u00a0% of the answers could not be read" in warnings[1]
    (tmp_path / "tables" / "mitigation.csv").unlink()
    with pytest.raises(UserError, match=r"mitigation.csv: no such file"):
        section(tmp_path)


def test_hostile_text_in_a_section_is_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    table = SectionTable(hostile, TextTable((hostile,), (False,), ((hostile,),)), hostile, "t")
    text = page(hostile, hostile, [Section("s", hostile, (hostile,), (table,), (), (hostile,), (hostile,))])
    parsed = Page(text)
    assert "script" not in {tag for tag, _ in parsed.tags}
    assert hostile in parsed.text
