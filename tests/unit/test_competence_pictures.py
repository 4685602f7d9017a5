"""Tables, figures and pages of the competence lens, from made-up subjects with planted effects."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from refbias.cli.main import main
from refbias.competence.results import load_subject, load_subjects
from refbias.errors import UserError
from refbias.figures.competence import draw, forest, hiring, occupations
from refbias.figures.competence_model import layers, steering
from refbias.report.competence import findings, section, warnings
from refbias.tables.competence import tables
from refbias.tables.competence.labels import contrast_label, subject_label
from tests.unit.competence_example import RELEVANT, Plant, write_subject

MODEL = "tiny<b>"
FAST = ("--n-resamples", "100", "--n-permutations", "199")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("competence")
    plants = {
        "reference": Plant(missing=0.3, n_occupations=4),
        "full-h100": Plant(E={**RELEVANT, "woman": 0.6}, L={**RELEVANT, "woman": 1.2}, n_occupations=4),
    }
    facts = {"auc_held_out": 0.9, "split_half_cosine": 0.5, "concentration": 0.1, "random_cosine": 0.05}
    for subject, plant in plants.items():
        at = write_subject(folder / MODEL / subject, plant)
        layer = [{"layer": number, **facts} for number in (1, 2, 3)]
        (at / "direction.json").write_text(json.dumps({"layer": 2, "layers": layer}), encoding="utf-8")
        assert main(["competence", "analyse", "--results", str(at), *FAST]) == 0
    return folder


def test_subjects_are_read_the_reference_first(results: Path, tmp_path: Path) -> None:
    assert [(s.model, s.subject) for s in load_subjects(results)] == [(MODEL, "reference"), (MODEL, "full-h100")]
    with pytest.raises(UserError, match="run refbias competence analyse first"):
        load_subjects(tmp_path)


def test_tables_hold_the_effects_and_a_missing_number_is_a_dash(results: Path) -> None:
    found = {table.name: table for table in tables(load_subjects(results))}
    assert set(found) == {
        f"competence_{name}" for name in ("verdicts", "relevance", "contrasts", "attributes", "hiring", "hiring_names")
    }
    effects = pd.read_csv(results / MODEL / "full-h100" / "effects.csv").set_index(["contrast_id", "measure"])
    contrasts = found["competence_contrasts"]
    column = contrasts.text.columns.index("Difference")
    (row,) = (
        row
        for row in contrasts.text.rows
        if row[1] == "full fine-tuning, h100" and row[2] == "L" and row[4] == "woman against man"
    )
    assert float(row[column]) == pytest.approx(effects.loc[("woman_man", "L"), "mean"], abs=0.005)
    verdicts = found["competence_verdicts"].text
    assert (
        MODEL,
        "full fine-tuning, h100",
        "answers",
        "woman against man",
        "irrelevant",
        "moves",
        "moves",
        "both",
    ) in (verdicts.rows)
    # no arm is compared with itself
    first = found["competence_hiring"].text.rows[0]
    assert first[-1] == "\u2013"
    names = found["competence_hiring_names"].text
    assert [row[2] for row in names.rows[:3]] == [
        "strong against weak r\u00e9sum\u00e9",
        "names of Black against white",
        "names of men against women",
    ]
    # 3 roles with 8 names, all invited with a strong resume and none with a weak one
    place = names.columns.index("Readable pairs")
    assert names.rows[0][place : place + 5] == ("24", "24", "0", "24", "0")
    # with and without an occupation, both measures
    named = [name for name in found["competence_attributes"].text.columns if "named" in name]
    assert named == ["E, occupation named", "E, none named", "L, occupation named", "L, none named"]


def test_names_in_print() -> None:
    assert contrast_label("low_high_income") == "low income against high income"
    assert contrast_label("occupation_none") == "occupation named against nothing said"
    assert contrast_label("left_right_handed") == "left-handed against right-handed"
    assert contrast_label("names_black_white") == "names of Black against white"
    assert contrast_label("own_thing") == "own thing"
    assert (subject_label("reference"), subject_label("lora-h030")) == ("reference", "LoRA, h030")


def test_forest_shows_each_effect_hollow_where_it_is_not_told_from_0(results: Path) -> None:
    subject = load_subjects(results)[1]
    effects = subject.effects.set_index(["contrast_id", "measure"])
    for axes, measure in zip(forest(subject).axes, ("E_normalised", "L"), strict=True):
        marks = {line.get_gid(): line for line in axes.lines if line.get_gid()}
        assert set(marks) == set(subject.effects.loc[subject.effects["measure"] == measure, "contrast_id"])
        for name, mark in marks.items():
            row = effects.loc[(name, measure)]
            assert float(np.asarray(mark.get_xdata())[0]) == pytest.approx(row["mean"])
            assert (mark.get_markerfacecolor() == "white") == (row["p_holm"] > 0.05)


def test_figures_and_tables_keep_to_the_level_that_was_set(tmp_path: Path) -> None:
    plant = Plant(L={**RELEVANT, "woman": 0.05, "black": 0.04}, n_occupations=4)
    folder = write_subject(tmp_path / "m" / "reference", plant)
    assert main(["competence", "analyse", "--results", str(folder), *FAST, "--level", "0.6"]) == 0
    subject = load_subject(folder)
    effects = subject.effects[subject.effects["measure"] == "L"].set_index("contrast_id")
    assert ((effects["p_holm"] > 0.05) & (effects["p_holm"] <= 0.4)).any()
    axes = forest(subject).axes[1]
    assert axes.get_xlabel() == "Difference, first less second (60 % CI)"
    marks = {line.get_gid(): line for line in axes.lines if line.get_gid()}
    for name, mark in marks.items():
        assert (mark.get_markerfacecolor() == "white") == (effects.loc[name, "p_holm"] > 0.4)
    assert "Said Yes, all names (60 % CI)" in [axes.get_title(loc="left") for axes in hiring(subject).axes]
    for table in tables([subject]):
        assert "95 %" not in "".join((*table.text.columns, table.caption)), table.name


def test_heat_map_holds_the_means_by_occupation(results: Path) -> None:
    subject = load_subjects(results)[1]
    axes = occupations(subject).axes[0]
    values = np.asarray(axes.images[0].get_array())
    rows = [label.get_text() for label in axes.get_yticklabels()]
    frame = subject.occupations.query("measure == 'E_normalised' and contrast_id == 'woman_man'")
    np.testing.assert_allclose(
        values[rows.index("woman against man")], frame.sort_values("occupation")["mean"].to_numpy()
    )


def test_curves_of_layers_and_steering_are_the_stored_ones(results: Path) -> None:
    subject = load_subjects(results)[0]
    curves = {line.get_gid(): line for line in layers(subject).axes[0].lines if line.get_gid()}
    assert np.asarray(curves["auc_held_out"].get_ydata()).tolist() == [0.9] * 3
    panel = steering(subject).axes[1]
    line = next(line for line in panel.lines if line.get_gid() == "expertise")
    assert subject.steering is not None
    stored = subject.steering.query("direction == 'expertise'").sort_values("alpha")
    np.testing.assert_allclose(np.asarray(line.get_ydata()), stored["yes_logit"])


def test_ablation_and_steering_along_the_axis_of_db_are_printed(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m" / "reference"
    shutil.copytree(results / MODEL / "reference", folder)
    kept = {"layer": 3, "contrast_id": "woman_man", "family": "gender", "role": "irrelevant"}
    ablation = [
        {**kept, "arm": "plain", "perplexity": 20.0, "reading_level": 7.5, "yes_logit": 0.25, "mean_E": 4.0},
        {**kept, "arm": "ablated", "perplexity": 21.5, "reading_level": None, "yes_logit": 0.5, "mean_E": 1.0},
    ]
    pd.DataFrame(ablation).assign(mean_E_normalised=[0.8, 0.2]).to_csv(folder / "mitigation.csv", index=False)
    steps = [
        {"alpha": alpha, "group": "women", "score": score, "n": n, "n_missing": 4 - n, "perplexity": 20 + alpha}
        for alpha, score, n in ((2, 0.5, 4), (-2, None, 0), (0, 0.25, 4))
    ]
    pd.DataFrame(steps).assign(benchmark="toxigen").to_csv(folder / "axis.csv", index=False)
    found = {table.name: table.text for table in tables([load_subject(folder)])}
    ablated = found["competence_mitigation"]
    assert [row[2:] for row in ablated.rows] == [
        ("as it is", "woman against man", "irrelevant", "0.80", "20.00", "7.50", "0.25"),
        ("taken out", "woman against man", "irrelevant", "0.20", "21.50", "\u2013", "0.50"),
    ]
    axis = found["competence_axis"]
    assert [row[3:] for row in axis.rows] == [
        ("Women", "\u22122.0", "\u2013", "0", "4", "18.00"),
        ("Women", "0.0", "0.25", "4", "0", "20.00"),
        ("Women", "2.0", "0.50", "4", "0", "22.00"),
    ]


def test_a_direction_that_held_out_pairs_contradict_is_warned_of(results: Path) -> None:
    subject = load_subjects(results)[0]
    for gap, warned in ((-0.5, True), (0.5, False)):
        layers_of = [{"layer": 1, "gap_held_out": -9.0}, {"layer": 2, "gap_held_out": gap}]
        told = warnings([replace(subject, direction={"layer": 2, "layers": layers_of})])
        assert any("held-out experts do not lie higher" in line for line in told) == warned


def test_what_was_not_run_is_not_drawn(results: Path) -> None:
    bare = replace(load_subjects(results)[0], arms=None, steering=None, direction=None)
    assert [name.partition("_")[0] for name, _ in draw([bare])] == ["forest", "occupations"]
    assert "no hiring task in this run" in {text.get_text() for axes in hiring(bare).axes for text in axes.texts}


def test_sentences_say_the_verdicts_and_what_to_beware_of(results: Path) -> None:
    reference, tuned = load_subjects(results)
    told = " ".join(findings(tuned))
    assert "woman against man (both)" in told
    assert "steering from alpha" in told
    failed = ["E does not answer to what is relevant (adult_child, own_thing)", "L answers to none of what is relevant"]
    refused = replace(tuned, verdicts={**tuned.verdicts, "refused": {"answers": failed, "hiring": []}})
    assert (
        "answers: no verdict. Expertise score E does not answer to what is relevant (adult against child, own_thing); "
        "Reading level L (grades) answers to none of what is relevant." in " ".join(findings(refused))
    )
    beware = list(warnings([reference, tuned]))
    assert any("lack a reading level" in line for line in beware) == (
        reference.effects.query("measure == 'L'")[["n_missing"]].sum().item()
        > 0.2 * reference.effects.query("measure == 'L'")[["n", "n_missing"]].sum().sum()
    )
    assert sum("4 occupations" in line for line in beware) == 2
    # strong against weak rests on 3 roles; the 9 resumes of the names are enough
    assert sum("3 roles in the hiring task: intervals" in line for line in beware) == 2
    # two names of each of four groups
    assert sum("stood for by 4 pairs of names: with fewer than 6" in line for line in beware) == 2
    assert not any("in the hiring task: intervals" in line and "3 roles" not in line for line in beware)
    many = list(warnings([replace(tuned, effects=tuned.effects.assign(n_names=6))]))
    assert not any("pairs of names" in line for line in many)
    assert "the largest of 5 irrelevant differences is that of woman against man" in told
    fewer = tuned.effects.assign(n_clusters=6)
    few = list(warnings([replace(tuned, effects=fewer)]))
    assert sum("6 r\u00e9sum\u00e9s in the hiring task" in line for line in few) == 1
    assert not any("hiring" in line for line in warnings([replace(tuned, effects=fewer.query("measure == 'L'"))]))


def test_commands_write_tables_figures_and_a_page_without_network(results: Path, tmp_path: Path) -> None:
    given = ["--results", str(results)]
    assert main(["competence", "tables", *given, "--output", str(tmp_path / "tables")]) == 0
    assert main(["competence", "figures", *given, "--output", str(tmp_path / "figures")]) == 0
    figures = ["--figures", str(tmp_path / "figures")]
    assert main(["competence", "report", *given, *figures, "--output", str(tmp_path / "page.html")]) == 0
    for stem in ("competence_verdicts", "competence_contrasts"):
        for kind in ("csv", "md", "tex"):
            assert (tmp_path / "tables" / f"{stem}.{kind}").stat().st_size
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "://" not in text
    assert "tiny<b>" not in text
    assert "tiny&lt;b&gt;" in text
    assert text.count("<img") == 10
    shown = section(results, tmp_path / "figures")
    assert {table.id for table in shown.tables} >= {"competence-verdicts", "competence-hiring"}
    assert not any("packaged Gemma 3" in line for line in shown.warnings)
    assert main(["competence", "tables", *given, "--stand-in", "m", "--output", str(results / "tables")]) == 0
    assert section(results, tmp_path / "figures").warnings[0].startswith("m is the packaged Gemma 3")
    with pytest.raises(UserError, match="no such figure"):
        section(results, tmp_path / "nowhere")
