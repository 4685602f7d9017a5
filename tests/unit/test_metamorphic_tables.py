"""Tables of the metamorphic lens, recomputed from the files by pandas and scipy alone; mock models end to end."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from refbias.cli.main import main
from refbias.config.metamorphic import TABLES
from refbias.metamorphic.beside_db import TOPICS, disagreements
from refbias.metamorphic.questions import Question, write_questions
from refbias.stimuli import load_groups
from refbias.tables.metamorphic import FILES
from tests.unit import metamorphic_run as run


def _tables(root: Path, *options: str) -> dict[str, pd.DataFrame]:
    command = ["metamorphic", "tables", "--results", str(root), "--output", str(root / "tables")]
    assert main([*command, "--n-resamples", "100", *options]) == 0
    return {path.stem: pd.read_csv(path) for path in (root / "tables").glob("*.csv")}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run.write_run(folder)
    run.delta_b().to_csv(folder / "delta_b.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def made(root: Path) -> dict[str, pd.DataFrame]:
    return _tables(root, "--shift", str(root / "delta_b.csv"))


def _rows(path: Path) -> pd.DataFrame:
    return pd.DataFrame([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])


def _joined(root: Path, subject: str, reading: str = "plain") -> pd.DataFrame:
    """Questions with the answers of a subject, biased as 1, 0 or NaN."""
    answers = _rows(root / "answers" / "tiny" / subject / reading / "answers.jsonl")[["id", "label", "biased"]]
    frame = _rows(root / "questions" / "questions.jsonl").merge(answers, on="id")
    return frame.assign(biased=frame["biased"].astype(float))


def _key(frame: pd.DataFrame) -> "pd.Series[Any]":
    return frame.apply(lambda row: (*sorted((row["group_a"], row["group_b"])), row["property_id"]), axis=1)


def _held(root: Path) -> set[tuple[str, str, str]]:
    data = json.loads((root / "mitigation/tiny/training_set/held_out.json").read_text(encoding="utf-8"))
    return {tuple(key) for key in data["keys"]}


def _check_cell(row: "pd.Series[Any]", own: pd.DataFrame, sources: pd.DataFrame) -> None:
    n, biased = len(own), int(own["biased"].sum())
    assert (row["n"], row["n_biased"], row["n_unusable"]) == (n, biased, 0)
    assert row["resiliency"] == pytest.approx(100 * (1 - biased / n))
    ends = scipy_stats.binomtest(n - biased, n).proportion_ci(method="wilson")
    assert [row["ci_low"], row["ci_high"]] == pytest.approx([100 * ends.low, 100 * ends.high])
    if row["relation"] in ("all", "source"):
        assert math.isnan(row["mcnemar_p"])
        return
    pairs = own.merge(sources[["id", "biased"]], left_on="source_id", right_on="id", suffixes=("", "_source"))
    table = pd.crosstab(pairs["biased_source"], pairs["biased"]).reindex(index=[0, 1], columns=[0, 1], fill_value=0)
    hidden, vanished = int(table.loc[0, 1]), int(table.loc[1, 0])
    assert (row["n_pairs"], row["hidden"], row["vanished"]) == (n, hidden, vanished)
    assert row["both_biased"] == table.loc[1, 1]
    p = scipy_stats.binomtest(hidden, hidden + vanished).pvalue if hidden + vanished else 1.0
    assert row["mcnemar_p"] == pytest.approx(p)
    before, after = int(pairs["biased_source"].sum()), int(pairs["biased"].sum())
    counts = np.array([[before, n - before], [after, n - after]])
    if (counts.sum(axis=0) == 0).any():
        assert math.isnan(row["chi2_p"])
        assert row["note"] == "no test: an empty column"
        return
    plain = scipy_stats.chi2_contingency(counts, correction=False)
    yates = scipy_stats.chi2_contingency(counts, correction=True)
    assert [row["chi2"], row["chi2_p"], row["chi2_yates_p"]] == pytest.approx([plain[0], plain[1], yates[1]])
    assert row["fisher_p"] == pytest.approx(scipy_stats.fisher_exact(counts)[1])
    assert row["cramers_v"] == pytest.approx(math.sqrt(plain[0] / counts.sum()))
    few = bool((plain[3] < 5).any())
    assert row["apt_test"] == ("fisher" if few else "chi_square")
    assert row["apt_p"] == pytest.approx(row["fisher_p"] if few else row["chi2_p"])


def _holm(p: "pd.Series[float]") -> list[float]:
    values = p.tolist()
    order = sorted(range(len(values)), key=lambda at: values[at])
    found, most = [0.0] * len(values), 0.0
    for rank, at in enumerate(order):
        most = max(most, min(1.0, values[at] * (len(values) - rank)))
        found[at] = most
    return found


def test_the_workflow_names_the_tables_that_are_written() -> None:
    assert tuple(FILES) == TABLES


@pytest.mark.parametrize(
    ("subject", "reading"),
    [("reference", "plain"), ("reference", "few_shot"), ("full-h070", "plain"), ("mitigated", "plain")],
)
def test_every_cell_of_both_tables_by_hand(
    root: Path, made: dict[str, pd.DataFrame], subject: str, reading: str
) -> None:
    rows = _joined(root, subject, reading)
    if subject == "mitigated":
        rows = rows[_key(rows).isin(_held(root))]
    sources = rows[rows["relation"] == "source"]
    for stem in ("model_relation", "category_relation"):
        frame = made[stem]
        frame = frame[(frame["subject"] == subject) & (frame["reading"] == reading)]
        for _, row in frame.iterrows():
            own = rows if row["relation"] == "all" else rows[rows["relation"] == row["relation"]]
            own = own if row["category"] == "all" else own[own["category"] == row["category"]]
            _check_cell(row, own, sources)
        tested = frame.dropna(subset=["mcnemar_p"])
        assert tested["mcnemar_holm"].tolist() == pytest.approx(_holm(tested["mcnemar_p"]))
        assert tested["mcnemar_bh"].tolist() == pytest.approx(scipy_stats.false_discovery_control(tested["mcnemar_p"]))
    cells = rows["relation"].nunique() + 1
    assert len(frame) == 7 * cells


def test_a_mitigated_model_is_judged_on_what_it_has_not_seen(made: dict[str, pd.DataFrame]) -> None:
    frame = made["model_relation"]
    assert set(frame.loc[frame["subject"] == "mitigated", "questions"]) == {"held_out_keys"}
    assert set(frame.loc[frame["subject"] != "mitigated", "questions"]) == {"all"}
    # 28 of 70 keys
    assert set(frame.loc[(frame["subject"] == "mitigated") & (frame["relation"] != "all"), "n"]) == {28}


def _flipped(gain: "pd.Series[float]", own: pd.DataFrame) -> float:
    """p of the sign-flip test of whole source questions, by scipy."""
    sums = gain.groupby(own["source_id"]).sum().to_numpy()
    found = scipy_stats.permutation_test(
        (sums,), np.sum, permutation_type="samples", n_resamples=9999, rng=np.random.default_rng(1)
    )
    return float(found.pvalue)


def test_the_re_test_by_hand(root: Path, made: dict[str, pd.DataFrame]) -> None:
    before, held = _joined(root, "reference"), _held(root)
    after = {"few_shot": _joined(root, "reference", "few_shot"), "fine_tuning": _joined(root, "mitigated")}
    for method, frame in after.items():
        both = before.merge(frame[["id", "biased"]], on="id", suffixes=("", "_after"))
        new, swapped = _key(both).isin(held), both["relation"] == "MR4"
        masks = {"held_out_keys": new & ~swapped, "held_out_relation": ~new & swapped, "held_out_both": new & swapped}
        masks |= {"all": new | ~new} if method == "few_shot" else {}
        for scope, mask in masks.items():
            own = both[mask]
            rows = made["mitigation"]
            rows = rows[(rows["method"] == method) & (rows["scope"] == scope) & (rows["category"] == "all")]
            assert len(rows) == 1
            row = rows.iloc[0]
            assert row["n_pairs"] == row["n_before"] == row["n_after"] == len(own)
            assert row["before"] == pytest.approx(100 * (1 - own["biased"].mean()))
            assert row["after"] == pytest.approx(100 * (1 - own["biased_after"].mean()))
            assert row["change"] == pytest.approx(row["after"] - row["before"])
            assert row["change_low"] < row["change"] < row["change_high"]
            for side, column in (("before", "biased"), ("after", "biased_after")):
                ends = scipy_stats.binomtest(int((own[column] == 0).sum()), len(own)).proportion_ci(method="wilson")
                # answers to the wordings of a question are no independent ones
                assert row[f"{side}_low"] <= 100 * ends.low + 1e-7
                assert row[f"{side}_high"] >= 100 * ends.high - 1e-7
            assert row["change_p"] == pytest.approx(_flipped(own["biased"] - own["biased_after"], own), abs=0.015)
            mended = int(((own["biased"] == 1) & (own["biased_after"] == 0)).sum())
            worse = int(((own["biased"] == 0) & (own["biased_after"] == 1)).sum())
            assert (row["mended"], row["worsened"]) == (mended, worse)
            assert row["mcnemar_p"] == pytest.approx(scipy_stats.binomtest(mended, mended + worse).pvalue)
    scopes = made["mitigation"].groupby("method")["scope"].agg(set)
    assert "all" not in scopes["fine_tuning"]
    assert "held_out_keys" in scopes["fine_tuning_after_few_shot"]
    # planted: fine-tuning mends held-out keys, not the held-out relation
    rows = made["mitigation"].query("method == 'fine_tuning' and category == 'all'").set_index("scope")
    assert rows.loc["held_out_keys", "mcnemar_holm"] < 0.001
    assert rows.loc["held_out_keys", "change_holm"] < 0.001
    assert rows.loc["held_out_relation", "change_holm"] > 0.05
    for method, own in made["mitigation"].query("category == 'all'").groupby("method"):
        assert own["change_holm"].tolist() == pytest.approx(_holm(own["change_p"])), method


def test_side_effects_by_hand(root: Path, made: dict[str, pd.DataFrame]) -> None:
    frame = made["side_effects"].set_index(["subject", "reading"])
    trained = json.loads((root / "mitigation/tiny/training_set/held_out.json").read_text())["trained_neutral"]
    fresh = [row for row in run.NEUTRAL if row.id not in trained]
    scored = [row for row in fresh if row.kind != "why"]
    plain, tuned = frame.loc[("reference", "plain")], frame.loc[("mitigated", "plain")]
    assert (plain["n_neutral"], plain["n_scored"]) == (len(fresh), len(scored))
    right = [run.lot("neutral", row.id) < 0.8 for row in scored]
    assert plain["neutral_accuracy"] == pytest.approx(np.mean(right))
    assert plain["over_refusal"] == 0
    declined = [run.lot("tuned", row.id) < 0.3 for row in fresh]
    assert tuned["over_refusal"] == pytest.approx(np.mean(declined))
    after = [run.lot("tuned", row.id) >= 0.3 for row in scored]
    lost = sum(one and not two for one, two in zip(right, after, strict=True))
    won = sum(two and not one for one, two in zip(right, after, strict=True))
    assert tuned["accuracy_mcnemar_p"] == pytest.approx(scipy_stats.binomtest(lost, lost + won).pvalue)
    assert math.isnan(plain["accuracy_mcnemar_p"])
    assert frame["n_compared"].nunique() == 1
    assert (frame["n_compared"] <= frame["n_unbiased"]).all()


def test_dB_and_resiliency_of_a_category_by_hand(root: Path, made: dict[str, pd.DataFrame]) -> None:
    shift = pd.read_csv(root / "delta_b.csv")
    topics = {group.id: group.topic for group in load_groups()}
    assert {topic for of in TOPICS.values() for topic in of} <= set(topics.values())
    assert set(TOPICS) == set(run.MATERIAL.categories)
    before = _joined(root, "reference")
    for _, row in made["beside_db"].iterrows():
        wanted = {"ability": ["disability"], "race": ["race", "ethnicity"]}.get(row["category"], [row["category"]])
        values = shift.query("method == 'rr' and n_anchors == 250 and checkpoint == @row.checkpoint")
        own = values[values["group"].map(topics).isin(wanted)]["delta_b"]
        assert row["n_groups"] == len(own)
        if row["category"] in ("body", "profession"):
            assert row["lenses"] == "no groups"
            assert math.isnan(row["mean_delta_b"])
        else:
            assert row["mean_delta_b"] == pytest.approx(own.mean(), abs=1e-9)
            assert row["mean_abs_delta_b"] == pytest.approx(own.abs().mean(), abs=1e-9)
            control = values.loc[values["group"] == "control", "delta_b"].item()
            assert row["net_delta_b"] == pytest.approx(own.mean() - control, abs=1e-9)
        after = _joined(root, f"full-{row['checkpoint']}").merge(
            before[["id", "biased"]], on="id", suffixes=("", "_before")
        )
        after = after[after["category"] == row["category"]]
        assert row["n_pairs"] == len(after) == 30
        assert row["resiliency"] == pytest.approx(100 * (1 - after["biased"].mean()))
        assert row["change"] == pytest.approx(100 * (after["biased_before"].mean() - after["biased"].mean()))
    with_groups = made["beside_db"].query("lenses != 'no groups'")
    summary = made["beside_db_summary"].set_index(["x", "y"])
    for x in ("mean_delta_b", "net_delta_b", "mean_abs_delta_b"):
        for y in ("change",) if x == "net_delta_b" else ("change", "resiliency"):
            found = summary.loc[(x, y)]
            assert found["n"] == len(with_groups) == 20
            assert found["pearson_r"] == pytest.approx(scipy_stats.pearsonr(with_groups[x], with_groups[y])[0])
            assert found["spearman_r"] == pytest.approx(scipy_stats.spearmanr(with_groups[x], with_groups[y])[0])
            assert found["pearson_ci_low"] <= found["pearson_r"] <= found["pearson_ci_high"]
            assert found["spearman_ci_low"] <= found["spearman_r"] <= found["spearman_ci_high"]
    # planted: categories whose dB falls become less resilient
    signs = summary.loc[("mean_delta_b", "change")]
    assert signs["pearson_r"] > 0.7
    moved = with_groups[(with_groups["change"] != 0) & (with_groups["mean_delta_b"] != 0)]
    same = int((np.sign(moved["change"]) == np.sign(moved["mean_delta_b"])).sum())
    assert (signs["n_agree"], signs["n_signs"]) == (same, len(moved))
    assert signs["agree_p"] == pytest.approx(scipy_stats.binomtest(same, len(moved)).pvalue)
    assert summary.loc[("mean_abs_delta_b", "change"), "n_signs"] != signs["n_signs"]
    listed = disagreements(made["beside_db"])
    assert len(listed) == len(moved) - same
    assert (np.sign(listed["change"]) == -np.sign(listed["mean_delta_b"])).all()
    for _, row in made["beside_db"].iterrows():
        told = row["change_holm"] < 0.05 and (row["change_low"] > 0 or row["change_high"] < 0)
        larger = abs(row["mean_delta_b"]) > abs(row["control_delta_b"])
        assert row["clear"] == (told and larger and row["n_groups"] > 0)
        after = _joined(root, f"full-{row['checkpoint']}").merge(
            before[["id", "biased"]], on="id", suffixes=("", "_before")
        )
        own = after[after["category"] == row["category"]]
        assert row["change_p"] == pytest.approx(_flipped(own["biased_before"] - own["biased"], own), abs=0.015)
    for _, own in made["beside_db"].groupby(["model", "regime"]):
        assert own["change_holm"].tolist() == pytest.approx(_holm(own["change_p"]))


@pytest.mark.parametrize(("changed", "clear"), [(4, False), (10, True)])
def test_a_few_questions_in_many_wordings_are_a_few_questions(tmp_path: Path, changed: int, clear: bool) -> None:
    sources = [row.id for row in run.QUESTIONS if row.category == "gender" and row.relation == "source"]
    assert len(sources) == 10
    write_questions(tmp_path / "questions" / "questions.jsonl", run.QUESTIONS)
    answers = tmp_path / "answers" / "tiny"
    run.write_subject(answers / "reference" / "plain", lambda question: "Both.", run.QUESTIONS)
    run.write_subject(
        answers / "full-h100" / "plain",
        lambda question: run.first(question) if question.source_id in sources[:changed] else "Both.",
        run.QUESTIONS,
    )
    run.delta_b().to_csv(tmp_path / "delta_b.csv", index=False)
    made = _tables(tmp_path, "--shift", str(tmp_path / "delta_b.csv"))
    (row,) = (row for _, row in made["beside_db"].iterrows() if row["category"] == "gender")
    assert (row["newly_biased"], row["n_pairs"]) == (7 * changed, 70)
    assert abs(row["mean_delta_b"]) > abs(row["control_delta_b"])
    # seven wordings of one question say the same: McNemar's test counts them as seven
    assert row["mcnemar_p"] < 1e-6
    assert row["change_p"] == pytest.approx(2 / 2**changed)
    assert row["clear"] == clear


def test_without_dB_and_without_mitigation_the_tables_are_empty_not_zero(tmp_path: Path) -> None:
    write_questions(tmp_path / "questions" / "questions.jsonl", run.QUESTIONS)
    run.write_subject(tmp_path / "answers/tiny/reference/plain", lambda question: "", run.QUESTIONS)
    made = _tables(tmp_path)
    for stem in ("mitigation", "beside_db", "beside_db_summary"):
        assert made[stem].empty
    frame = made["model_relation"]
    assert (frame["n"] == 0).all()
    assert (frame["n_unusable"] > 0).all()
    for column in ("resiliency", "ci_low", "mcnemar_p", "chi2_p", "cramers_v"):
        assert frame[column].isna().all()
    side = made["side_effects"].iloc[0]
    assert math.isnan(side["neutral_accuracy"])
    assert math.isnan(side["commonest_share"])
    assert "no neutral questions asked" in side["note"]
    text = (tmp_path / "tables" / "model_relation.md").read_text(encoding="utf-8")
    assert "100 %" in text
    assert "nan" not in text
    assert main(["metamorphic", "tables", "--results", str(tmp_path / "none"), "--output", str(tmp_path / "t")]) == 2


def test_words_chosen_among_options_have_no_diversity_unless_asked_openly(tmp_path: Path) -> None:
    write_questions(tmp_path / "questions" / "questions.jsonl", run.QUESTIONS)
    folder = tmp_path / "answers/tiny/reference/plain"
    run.write_subject(folder, lambda question: "no difference", run.QUESTIONS)
    raw = "".join(json.dumps({"id": row.id, "raw": "no difference", "options": []}) + "\n" for row in run.QUESTIONS)
    (folder / "raw.jsonl").write_text(raw, encoding="utf-8")
    row = _tables(tmp_path)["side_effects"].iloc[0]
    assert math.isnan(row["distinct_1"])
    assert math.isnan(row["commonest_share"])
    assert "no diversity: no answers in the model's own words" in row["note"]
    run.write_subject(folder / "open", run.leaning(lambda question: 0), run.QUESTIONS[:50])
    row = _tables(tmp_path)["side_effects"].iloc[0]
    assert row["n_unbiased"] == 50
    assert row["commonest_share"] < 0.3


# --- mock models, from answers to tables ----------------------------------------------------------


def _preferred(question: Question) -> str:
    return run.MATERIAL.group(min(question.group_a, question.group_b)).plural


def _mock(tmp_path: Path, policy: run.Policy) -> pd.DataFrame:
    write_questions(tmp_path / "questions" / "questions.jsonl", run.QUESTIONS)
    run.write_subject(tmp_path / "answers/tiny/reference/plain", policy, run.QUESTIONS)
    return _tables(tmp_path)["model_relation"].set_index("relation")


@pytest.mark.parametrize("text", ["I'm sorry, but I can't answer that.", "Both.", "Neither of them."])
def test_a_model_that_never_picks_has_100_everywhere(tmp_path: Path, text: str) -> None:
    frame = _mock(tmp_path, lambda question: text)
    assert (frame["resiliency"] == 100).all()
    assert (frame.drop(["all", "source"])["mcnemar_p"] == 1).all()


def test_a_model_that_takes_the_first_has_0_and_flips_under_the_swap_alone(tmp_path: Path) -> None:
    frame = _mock(tmp_path, run.first)
    assert (frame["resiliency"] == 0).all()
    assert frame["flipped"].drop(["all", "source"]).to_dict() == {
        **dict.fromkeys(["MR1", "MR2", "MR3", "MR4", "MR5"], 0),
        "MR6": 70,
    }


def test_a_model_that_prefers_a_group_has_0_and_never_flips(tmp_path: Path) -> None:
    frame = _mock(tmp_path, _preferred)
    assert (frame["resiliency"] == 0).all()
    assert (frame["flipped"].drop(["all", "source"]) == 0).all()


def _stereotype(question: Question) -> str:
    return run.MATERIAL.group(sorted((question.group_a, question.group_b))[question.pole == "positive"]).plural


def _halved(question: Question) -> str:
    return (_stereotype if question.category in ("age", "body") else _preferred)(question)


@pytest.mark.parametrize(
    ("policy", "incoherent", "coherent"),
    [
        (_preferred, 70, 0),
        (_stereotype, 0, 70),
        (_halved, 50, 20),
        (lambda question: _preferred(question) if question.relation == "source" else "Both.", 0, 0),
    ],
)
def test_the_same_group_at_both_poles_is_incoherent_and_opposite_groups_a_stereotype(
    tmp_path: Path, policy: run.Policy, incoherent: int, coherent: int
) -> None:
    frame = _mock(tmp_path, policy)
    assert frame.loc["MR5", ["incoherent", "coherent"]].to_list() == [incoherent, coherent]
    assert frame.drop("MR5")[["incoherent", "coherent"]].isna().to_numpy().all()
    cells = _tables(tmp_path)["category_relation"].query("relation == 'MR5'")
    assert (cells["incoherent"].sum(), cells["coherent"].sum()) == (incoherent, coherent)


def test_a_bias_under_MR4_alone_is_significant_there_alone(tmp_path: Path) -> None:
    frame = _mock(tmp_path, lambda question: _preferred(question) if question.relation == "MR4" else "Both equally.")
    assert frame["resiliency"].drop("all").to_dict() == {name: 0 if name == "MR4" else 100 for name in frame.index[1:]}
    assert frame.index[frame["mcnemar_holm"] < 0.05].tolist() == ["MR4"]
    assert frame.index[frame["apt_holm"] < 0.05].tolist() == ["MR4"]
    assert frame.loc["all", "resiliency"] == pytest.approx(100 * 6 / 7)
