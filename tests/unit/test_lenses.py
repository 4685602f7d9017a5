"""Three lenses on shared axes: the map, the numbers of a page, agreement over a planted spectrum."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from refbias.analysis.lenses import AXES, Lenses, agreement, counterparts, side_by_side, without_axis
from refbias.cli.lenses import main as lenses
from refbias.cli.main import main
from refbias.competence.data import load_attributes, load_contrasts
from refbias.errors import UserError
from refbias.metamorphic.answers import finite
from refbias.metamorphic.beside_db import TOPICS
from refbias.metamorphic.data import load_material
from refbias.metamorphic.statistics import resiliency
from refbias.tables.table2 import table2
from tests.unit.audit_example import single, validated
from tests.unit.competence_example import RELEVANT, Plant, write_subject

MODEL = "tiny"
GROUPS = table2(None)


def cells(shares: dict[str, float], n: int = 20, draws: int = 20) -> list[dict[str, Any]]:
    """Return summary cells of n questions in two wordings, answered alike in both and as often biased as given."""
    counts = {category: round(share * n) for category, share in {"all": 0.5, **shares}.items()}
    found = []
    for relation, wordings in (("source", 1), ("MR1", 1), ("all", 2)):
        for category, biased in counts.items():
            score = resiliency(
                np.repeat(np.arange(n) < biased, wordings), np.repeat(np.arange(n), wordings), n_resamples=draws
            )
            found.append({"relation": relation, "category": category, "resiliency": finite(asdict(score))})
    return found


def shifts(scale: float) -> pd.DataFrame:
    """Return dB of every shipped group, larger the further down the list, and a control."""
    rows = [
        {"group": row["group"], "topic": row["topic"], "delta_b": -scale * (place + 1), "ci_low": None, "ci_high": None}
        for place, (_, row) in enumerate(GROUPS.iterrows())
    ]
    return pd.DataFrame([*rows, {"group": "control", "topic": "", "delta_b": 0.001, "ci_low": None, "ci_high": None}])


def effects(size: float) -> pd.DataFrame:
    """Return effects of an irrelevant contrast of gender, a smaller one of race, a relevant and a placebo one."""
    rows = [
        (name, family, role, measure, value * factor)
        for name, family, role, value in (
            ("adult_child", "age", "relevant", 9.0),
            ("woman_man", "gender", "irrelevant", -size),
            ("asian_white", "race", "irrelevant", 0.1),
            ("black_white", "race", "irrelevant", -0.2),
            ("tea_coffee", "drink", "placebo", 0.05),
        )
        for measure, factor in (("E", 100.0), ("E_normalised", 1.0), ("L", 0.5))
    ]
    frame = pd.DataFrame(rows, columns=["contrast_id", "family", "role", "measure", "mean"])
    return frame.assign(ci_low=frame["mean"] - 0.1, ci_high=frame["mean"] + 0.1, p_holm=0.25)


def test_every_shipped_topic_category_and_family_stands_on_one_axis_at_most_and_what_lacks_one_is_named() -> None:
    shipped = {
        "topics": set(GROUPS["topic"]),
        "categories": {group.category for group in load_material().groups},
        "families": {c.family for c in load_contrasts(load_attributes()) if c.role == "irrelevant"},
    }
    for kind, names in shipped.items():
        placed = [name for axis in AXES for name in getattr(axis, kind)]
        assert len(placed) == len(set(placed)), kind
        assert names == set(placed), kind


def test_the_map_is_that_of_the_metamorphic_lens_beside_db() -> None:
    for category, topics in TOPICS.items():
        (axis,) = (axis for axis in AXES if category in axis.categories)
        assert axis.topics == topics


def test_a_row_holds_the_numbers_of_each_lens() -> None:
    lenses = Lenses(shifts(0.01), cells({"gender": 0.25, "profession": 0.5}, draws=2000), effects(0.4), [])
    rows = side_by_side(lenses).set_index("axis")
    gender = GROUPS.reset_index(drop=True).query("topic == 'gender'").index + 1
    assert rows.loc["gender", "mean_delta_b"] == pytest.approx(-0.01 * gender.to_numpy().mean())
    assert rows.loc["gender", "mean_abs_delta_b"] == pytest.approx(0.01 * gender.to_numpy().mean())
    assert rows.loc["gender", "n_groups"] == len(gender)
    assert rows.loc["gender", "resiliency"] == pytest.approx(75)
    assert rows.loc["gender", "n_answers"] == 40
    # 20 questions, not 40 answers
    expected = binomtest(15, 20).proportion_ci(method="wilson")
    bounds = [rows.loc["gender", f"resiliency_{side}"] for side in ("low", "high")]
    assert bounds[0] <= 100 * expected.low + 3
    assert bounds[1] >= 100 * expected.high - 3
    pooled = binomtest(30, 40).proportion_ci(method="wilson")
    assert bounds[1] - bounds[0] > 1.2 * 100 * (pooled.high - pooled.low)
    assert (rows.loc["gender", "E"], rows.loc["gender", "L"]) == (-0.4, -0.2)
    # of several contrasts the largest
    race = rows.loc["race and ethnicity"]
    assert (race["contrast_id"], race["E"], race["E_p_holm"], race["n_contrasts"]) == ("black_white", -0.2, 0.25, 2)
    assert race["mean_abs_E"] == pytest.approx(0.15)
    # the control, at +0.001, is taken off every group's dB
    assert rows.loc["gender", "control_delta_b"] == 0.001
    assert rows.loc["gender", "mean_abs_net_delta_b"] == pytest.approx(0.01 * gender.to_numpy().mean() + 0.001)
    # silent lenses are missing, not 0
    assert rows.loc["age", ["E", "L", "resiliency"]].isna().all()
    assert rows.loc["profession", ["mean_delta_b", "E"]].isna().all()


def test_without_a_control_or_pooled_cells_a_number_is_missing_not_another() -> None:
    bare = shifts(0.01).query("group != 'control'")
    old = [cell for cell in cells({"gender": 0.25}) if cell["relation"] != "all"]
    row = side_by_side(Lenses(bare, old)).set_index("axis").loc["gender"]
    assert row["mean_abs_delta_b"] > 0
    assert row["resiliency"] == pytest.approx(75)
    assert row[["mean_abs_net_delta_b", "control_delta_b", "resiliency_low", "resiliency_high"]].isna().all()


def test_what_moves_every_group_alike_is_nothing_net_of_the_control() -> None:
    moved = shifts(0.0).assign(delta_b=-0.3)
    row = side_by_side(Lenses(moved)).set_index("axis").loc["gender"]
    assert row["mean_abs_delta_b"] == pytest.approx(0.3)
    assert row["mean_abs_net_delta_b"] == pytest.approx(0.0)


def test_a_checkpoint_that_a_lens_was_not_held_to_is_not_stepped_over() -> None:
    def steps(rows: dict[str, pd.DataFrame]) -> int:
        return int(agreement(rows, n_resamples=2)[0]["n_steps"])

    whole = spectrum(1.0)
    assert steps(whole) == 20
    # h2 was not asked: from h1 to h3 is no step between neighbours, so two steps an axis are gone
    mute = side_by_side(Lenses(shifts(0.03)))
    assert steps({**whole, "h2": mute}) == 10
    assert steps({**whole, "h0": mute}) == 15


def test_no_contrast_is_picked_anew_at_each_checkpoint() -> None:
    # race has two contrasts that take turns at being the largest; their mean size never moves
    rows = {}
    for place in range(4):
        frame = effects(0.2)
        for name, value in zip(("asian_white", "black_white")[:: 1 if place % 2 else -1], (0.3, -0.1), strict=True):
            frame.loc[frame["contrast_id"] == name, "mean"] = value
        rows[f"h{place}"] = side_by_side(Lenses(shifts(0.01 * (place + 1)), None, frame))
    named = [frame.set_index("axis").loc["race and ethnicity"] for frame in rows.values()]
    assert len({row["contrast_id"] for row in named}) == 2
    assert [row["mean_abs_E"] for row in named] == pytest.approx([0.2] * 4)
    found = {(row["x"], row["y"]): row for row in agreement(rows, n_resamples=2)}
    for x in ("mean_abs_delta_b", "mean_abs_net_delta_b"):
        pair = found[x, "mean_abs_E"]
        assert (pair["pearson_r"], pair["n_steps"]) == (None, 0)
        assert "mean_abs_E constant" in pair["reason"]


def test_what_stands_on_no_axis_is_named() -> None:
    own = shifts(0.01)
    own.loc[0, "topic"] = "hobby"
    other = effects(0.4)
    other.loc[other["family"] == "race", "family"] = "dialect"
    found = without_axis(Lenses(own, cells({"pets": 0.1}), other))
    assert found == {"dB": ["hobby"], "resiliency": ["pets"], "competence": ["dialect"]}
    assert "body: nothing in dB or competence" in counterparts()
    assert any(line.startswith("age: nothing in competence (adult against child") for line in counterparts())


def spectrum(relate: float, noise: int = 0) -> dict[str, pd.DataFrame]:
    """Return five checkpoints whose biased share grows with dB (relate = 1), falls (-1) or ignores it (0)."""
    generator = np.random.default_rng(noise)
    found = {}
    for place in range(5):
        share = {
            category: 0.5 + (relate * 0.1 * (place - 2) if relate else generator.uniform(-0.3, 0.3))
            for category in ("gender", "race", "religion", "age", "ability")
        }
        found[f"h{place}"] = side_by_side(Lenses(shifts(0.01 * (place + 1)), cells(share), effects(0.2 + 0.1 * place)))
    return found


@pytest.mark.parametrize("relate", [1.0, -1.0])
def test_a_planted_relation_over_a_spectrum_is_found_with_its_sign(relate: float) -> None:
    found = {(row["x"], row["y"]): row for row in agreement(spectrum(relate), n_resamples=300)}
    row = found["mean_abs_delta_b", "biased_share"]
    assert (row["n"], row["n_axes"], row["n_checkpoints"], row["n_steps"]) == (25, 5, 5, 20)
    assert row["same_direction"] == (20 if relate > 0 else 0)
    assert row["pearson_r"] * relate > 0.5
    assert row["spearman_r"] * relate > 0.5
    # gender and race alone are spoken of by all three: too few axes for an interval
    pair = found["mean_abs_delta_b", "mean_abs_E"]
    assert (pair["n_axes"], pair["ci_low"]) == (2, None)
    assert "fewer than 3 axes" in pair["reason"]


def test_unrelated_lenses_agree_in_about_half_of_the_steps() -> None:
    rows = [agreement(spectrum(0.0, noise), n_resamples=2)[0] for noise in range(12)]
    # dB rises in every step here, so agreement is a rise of the biased share
    same, steps = (sum(row[key] for row in rows) for key in ("same_direction", "n_steps"))
    assert same / steps == pytest.approx(0.5, abs=0.1)
    assert np.mean([row["pearson_r"] for row in rows]) == pytest.approx(0.0, abs=0.15)


def test_lenses_that_were_not_held_to_a_model_have_no_agreement() -> None:
    rows = {name: side_by_side(Lenses(shifts(0.01))) for name in ("a", "b", "c")}
    for row in agreement(rows, n_resamples=5):
        assert (row["n"], row["pearson_r"], row["reason"]) == (0, None, "no axis that both lenses speak of")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    frames = []
    for place, checkpoint in enumerate(("h000", "h050", "h100")):
        subject = f"full-{checkpoint}"
        frame = shifts(0.01 * (place + 1)).drop(columns="topic")
        named = {"model": MODEL, "regime": "full", "checkpoint": checkpoint, "harmful_weight": 0.5 * place}
        frames.append(frame.assign(**named, method="rr", n_anchors=250))
        at = folder / "metamorphic" / "answers" / MODEL / subject / "plain"
        at.mkdir(parents=True)
        summary = cells({"gender": 0.2 * place, "race": 0.1, "religion": 0.3 * place})
        (at / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    pd.concat(frames).to_csv(folder / "delta_b.csv", index=False)
    at = write_subject(folder / "competence" / MODEL / "full-h100", Plant(E={**RELEVANT, "woman": 0.6}), steering=False)
    assert main(["competence", "analyse", "--results", str(at), "--n-resamples", "50", "--n-permutations", "199"]) == 0
    return folder


def command(run: Path, output: Path, *more: str) -> list[str]:
    given = ["lenses", "--model", MODEL, "--output", str(output), "--delta-b", str(run / "delta_b.csv")]
    return [*given, "--metamorphic", str(run / "metamorphic"), "--competence", str(run / "competence"), *more]


def test_the_command_writes_a_page_a_subject_and_one_of_the_spectrum(run: Path, tmp_path: Path) -> None:
    assert main(command(run, tmp_path)) == 0
    assert {path.stem for path in tmp_path.glob("*.html")} == {"full-h000", "full-h050", "full-h100", "spectrum"}
    one = json.loads((tmp_path / "full-h100.json").read_text(encoding="utf-8"))
    assert one["measured"] == {"dB": True, "resiliency": True, "competence": True}
    axes = {row["axis"]: row for row in one["axes"]}
    assert axes["gender"]["resiliency"] == pytest.approx(60)
    assert axes["gender"]["outcome"] == "representation only"
    assert axes["gender"]["E"] == pytest.approx(0.15, abs=0.03)
    assert axes["disability"]["resiliency"] is None
    first = json.loads((tmp_path / "full-h000.json").read_text(encoding="utf-8"))
    assert first["measured"]["competence"] is False
    (whole,) = json.loads((tmp_path / "spectrum.json").read_text(encoding="utf-8"))["spectra"]
    assert whole["subjects"] == ["full-h000", "full-h050", "full-h100"]
    text = (tmp_path / "full-h100.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "woman against man" in text
    assert "Group-free control" in text
    assert re.search(r"dB moved most on [a-z ]+: 0\.\d+ in size, 0\.\d+ net of the group-free control", text)
    assert "packaged Gemma 3" not in text
    assert "The competence lens was not held to this model." in (tmp_path / "full-h000.html").read_text(
        encoding="utf-8"
    )


def test_what_cannot_be_related_is_told_in_words(run: Path, tmp_path: Path) -> None:
    flat = Path(shutil.copytree(run, tmp_path / "run"))
    for path in flat.glob("metamorphic/answers/*/*/plain/summary.json"):
        path.write_text(json.dumps(cells({"gender": 0.1, "race": 0.1, "religion": 0.1})), encoding="utf-8")
    assert main(command(flat, tmp_path / "pages")) == 0
    text = (tmp_path / "pages" / "spectrum.html").read_text(encoding="utf-8")
    assert "mean |dB| and biased answers (%) cannot be related: biased answers (%) constant." in text
    assert "biased_share" not in text


def test_pages_of_the_packaged_model_say_so(run: Path, tmp_path: Path) -> None:
    assert main(command(run, tmp_path, "--stand-in", "another", MODEL)) == 0
    for path in tmp_path.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert f"{MODEL} is the packaged Gemma 3" in text
        assert "another is" not in text


def test_an_audit_takes_the_place_of_the_shifts(run: Path, tmp_path: Path) -> None:
    result = validated(single())
    (tmp_path / "audit.json").write_text(result.model_dump_json(), encoding="utf-8")
    name = result.checkpoints[0].name
    args = ["lenses", "--model", MODEL, "--audit", str(tmp_path / "audit.json"), "--output", str(tmp_path / "out")]
    assert main([*args, "--subjects", name]) == 0
    found = json.loads((tmp_path / "out" / f"{name}.json").read_text(encoding="utf-8"))
    assert found["measured"] == {"dB": True, "resiliency": False, "competence": False}


def test_a_checkpoints_name_makes_no_path(tmp_path: Path) -> None:
    """An audit calls a checkpoint by what it was named by: a repository of the hub, or a path."""
    data = single()
    first = data["checkpoints"][0]
    data["checkpoints"] = [{**first, "name": name} for name in ("owner/name", "../../elsewhere", "/abs olute")]
    path, out = tmp_path / "audit.json", tmp_path / "deep" / "er" / "out"
    path.write_text(validated(data).model_dump_json(), encoding="utf-8")
    args = ["lenses", "--model", MODEL, "--audit", str(path), "--output", str(out)]
    assert main(args) == 0
    assert {file.stem for file in out.glob("*.html")} == {"owner-name", "elsewhere", "abs-olute"}
    assert [file for file in tmp_path.rglob("*.html") if file.parent != out] == []
    assert "owner/name" in (out / "owner-name.html").read_text(encoding="utf-8")
    data["checkpoints"][1]["name"] = "owner name"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(UserError, match="'owner-name' can be no page's name"):
        lenses(args[1:])


def test_a_broken_audit_is_named_by_its_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = single()
    data["checkpoints"][0]["groups"][0]["delta_b"] = "high"
    (tmp_path / "audit.json").write_text(json.dumps(data), encoding="utf-8")
    args = ["--model", MODEL, "--audit", str(tmp_path / "audit.json"), "--output", str(tmp_path / "out")]
    assert main(["lenses", *args]) == 2
    assert "delta_b" in capsys.readouterr().err
    assert main(["lenses", *args, "--method", "seat"]) == 2
    assert "--method seat: an audit's groups are of rr" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--subjects", "full-h777"), "--subjects full-h777: no lens was held to it"),
        (("--method", "seat"), "no row of model tiny and method seat"),
        (("--audit", "audit.json"), "give one of them"),
    ],
)
def test_mistakes_are_named(
    run: Path, tmp_path: Path, more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(run, tmp_path, *more)) == 2
    assert message in capsys.readouterr().err


def test_a_broken_summary_is_refused(run: Path, tmp_path: Path) -> None:
    at = tmp_path / "metamorphic" / "answers" / MODEL / "full-h000" / "plain"
    at.mkdir(parents=True)
    (at / "summary.json").write_text('[{"category": "gender"}]', encoding="utf-8")
    with pytest.raises(UserError, match="not a summary of metamorphic tests"):
        lenses(["--model", MODEL, "--metamorphic", str(tmp_path / "metamorphic"), "--output", str(tmp_path / "out")])
