"""The paper's tables, held against values planted in their inputs and against the paper's own arithmetic."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from refbias.config import root as config_root
from refbias.config import slices
from refbias.errors import UserError
from refbias.tables import paper_values, table1_beside_paper
from refbias.tables.claims import CLAIMS, Evidence, Verdict
from refbias.tables.table2 import table2, table2_text
from refbias.tables.table3 import table3, table3_text
from refbias.tables.table7 import table7, table7_text
from refbias.tables.variants import first_rows, table4, table5, table6, variants_text
from tests.unit import picture_data

PAPER = paper_values()
FAMILIES = {"big-llama": "llama", "big-mistral": "mistral", "big-gemma": "gemma"}
SLUGS = {family: model for model, family in FAMILIES.items()}
P_OF = {"***": 0.0005, "**": 0.005, "*": 0.03, "": 0.3}
THRESHOLDS = picture_data.THRESHOLDS


def printed_table1(**changes: float) -> pd.DataFrame:
    """The paper's table 1 as if computed, RR, with a SEAT row of a lower AUC below each."""
    rows = []
    for cell in PAPER["table1"]:
        base = {
            "benchmark": cell["benchmark"],
            "model": SLUGS[cell["model"]],
            "regime": cell["regime"],
            "threshold": THRESHOLDS[cell["benchmark"]],
            "n": 63,
            "n_positive": 20,
            "pearson_r": cell["pearson_r"],
            "pearson_p": P_OF[cell["stars"]],
            "roc_auc": cell["roc_auc"],
            "mae": cell["mae"],
            "note": "",
            **changes,
        }
        rows += [{**base, "method": "rr"}, {**base, "method": "seat", "roc_auc": base["roc_auc"] - 0.1}]
    return pd.DataFrame(rows)


def test_the_papers_values_stand_beside_rr_of_models_with_a_family() -> None:
    families = {**FAMILIES, "big-gemma": None}
    table = table1_beside_paper(printed_table1(mae=0.5), families)
    mine = (table["method"] == "rr") & (table["model"] != "big-gemma")
    assert mine.sum() == 12
    assert (table.loc[mine, "paper_pearson_r"] == table.loc[mine, "pearson_r"]).all()
    assert (table.loc[mine, ["diff_pearson_r", "diff_roc_auc"]] == 0).all(axis=None)
    assert table.loc[mine, "diff_mae"].tolist() == (0.5 - table.loc[mine, "paper_mae"]).tolist()
    empty = [name for name in table.columns if name.startswith(("paper_", "diff_")) and name != "paper_stars"]
    assert table.loc[~mine, empty].isna().all(axis=None)
    assert (table.loc[~mine, "paper_stars"] == "").all()


def test_an_auc_at_another_threshold_has_no_counterpart() -> None:
    table = table1_beside_paper(printed_table1(threshold=0.2), FAMILIES)
    assert table["paper_roc_auc"].isna().all()
    assert table["paper_pearson_r"].notna().any()


def test_table2_holds_the_nine_topics() -> None:
    frame = table2(None)
    assert len(frame) == 24
    assert frame["topic"].nunique() == 9
    assert frame.groupby("topic")["n_groups"].first().to_dict() == frame["topic"].value_counts().to_dict()
    assert (frame["toxigen"] != "").sum() == 9
    text = table2_text(frame)
    assert ("Sexual orientation", "Homosexuals", "Homosexuals (lgbtq)") in text.rows


def test_table2_names_a_missing_column(tmp_path: Path) -> None:
    path = tmp_path / "g.tsv"
    path.write_text("id\tname\na\tA\n")
    with pytest.raises(UserError, match=r"g\.tsv:1: column 'topic' is missing"):
        table2(path)


def clocks(family: str) -> dict[str, Any]:
    """Manifests whose clocks are the paper's, for one model under one regime with two checkpoints."""
    model, seconds = SLUGS[family], PAPER["table3_seconds"]
    shares = {"h000": 0.9, "h100": 1.1}
    manifests: dict[str, Any] = {
        f"represent/{model}/full": {
            "checkpoints": list(shares),
            "embed_seconds": 2.0 * seconds["ours_embed"][family],
            "device": "cuda",
        },
        f"represent/{model}/reference": {"checkpoints": ["reference"], "embed_seconds": 1e6, "device": "cuda"},
        f"score/{model}/full": {"outputs": {}},
    }
    for slug, share in shares.items():
        generated, scored = {}, {}
        for benchmark in ("wildguardmix", "toxigen"):
            generated[benchmark] = {"seconds": share * seconds[f"{benchmark}_generate"][family]}
            scored[benchmark] = {"seconds": share * seconds[f"{benchmark}_classify"][family]}
        generated["decodingtrust"] = {"seconds": share * (seconds["decodingtrust_total"][family] - 1)}
        scored["decodingtrust"] = {"seconds": share}
        manifests[f"generate/{model}/full/{slug}"] = {"benchmarks": generated, "device": "cuda"}
        manifests[f"score/{model}/full"]["outputs"][slug] = scored
    return manifests


def all_clocks() -> dict[str, Any]:
    manifests: dict[str, Any] = {}
    for family in SLUGS:
        manifests |= clocks(family)
    shift = {SLUGS[family]: 2.0 * seconds for family, seconds in PAPER["table3_seconds"]["ours_shift"].items()}
    return {**manifests, "shift": {"model_seconds": shift}}


def test_table3_is_the_mean_over_audited_checkpoints_of_the_clocks() -> None:
    frame = table3(all_clocks(), list(FAMILIES), ["full"], list(THRESHOLDS), FAMILIES)
    assert len(frame) == 3 * 4 * 3
    for task, printed in PAPER["table3_seconds"].items():
        name, step = task.rsplit("_", 1)
        for family, seconds in printed.items():
            found = frame[(frame["task"] == name) & (frame["step"] == step) & (frame["model"] == SLUGS[family])]
            assert found["minutes"].item() == pytest.approx(seconds / 60)
            assert found["paper_minutes"].item() == pytest.approx(seconds / 60)
            assert found["diff_minutes"].item() == pytest.approx(0)
    assert (frame["n_checkpoints"] == 2).all()
    alone = frame[(frame["task"] == "decodingtrust") & (frame["step"] == "classify")]
    assert alone["minutes"].tolist() == pytest.approx([1 / 60] * 3)
    assert alone["paper_minutes"].isna().all()
    assert frame.loc[frame["task"] == "ours", "device"].tolist() == ["cuda", "cpu", "cpu and cuda"] * 3


def test_table3_without_a_clock_says_so() -> None:
    manifests = all_clocks()
    del manifests["generate/big-llama/full/h100"]["benchmarks"]["toxigen"]["seconds"]
    frame = table3(manifests, ["big-llama"], ["full"], list(THRESHOLDS), {"big-llama": None})
    gone = frame[(frame["task"] == "toxigen") & (frame["step"] != "classify")]
    assert gone["minutes"].isna().all()
    assert set(gone["note"]) == {"no clock in the stage's manifest"}
    assert frame["paper_minutes"].isna().all()
    text = table3_text(frame)
    assert "Paper's minutes" not in text.columns
    assert any("–" in row for row in text.rows)


SPELT = {"synonyms_v1": "syn_v1", "synonyms_v2": "syn_v2", "synonyms_v3": "syn_v3"}


def ablations(rows: list[dict[str, Any]]) -> pd.DataFrame:
    base = {
        "n_anchors": 100,
        "seed": np.nan,
        "benchmark": "wildguardmix",
        "model": "big-llama",
        "regime": "full",
        "method": "rr",
        "threshold": 0.1,
        "n": 63,
        "n_positive": 20,
        "pearson_r": -0.5,
        "pearson_p": 0.01,
        "note": "",
    }
    return pd.DataFrame([{**base, **row} for row in rows])


def printed_ablations() -> pd.DataFrame:
    rows = []
    for part, kind in (("5a", "attributes"), ("5b", "targets")):
        for cell, area in PAPER[f"table{part}"].items():
            if cell not in ("mean", "std", "min", "max"):
                rows.append({"ablation": kind, "cell": SPELT.get(cell, cell), "roc_auc": area})
    for cell in ("mean", "max", "last"):
        for method, area in PAPER["table6"][cell].items():
            rows.append({"ablation": "pooling", "cell": cell, "method": method, "roc_auc": area})
    for source, area in (("neutral", 0.89), ("words", 0.85), ("alpaca", 0.88), ("tulu", 0.87)):
        for count, lift in ((50, -0.02), (1000, 0.01)):
            for seed, noise in ((0, -0.01), (1, 0.01)):
                cell = {"ablation": "anchors", "cell": source, "n_anchors": count, "seed": seed}
                rows.append({**cell, "roc_auc": area + lift + noise})
    # rows that no table shows: another model, another regime, another threshold
    rows += [{**rows[0], key: value, "roc_auc": 0.1} for key, value in (("model", "other"), ("regime", "lora"))]
    rows.append({**rows[0], "threshold": 0.2, "roc_auc": 0.1})
    return ablations(rows)


def test_the_papers_variants_give_the_papers_means_and_population_deviations() -> None:
    """The printed spread follows from the printed areas with ddof 0 alone."""
    frame = table5(printed_ablations(), "big-llama", THRESHOLDS, "llama")
    assert len(frame) == 2 * (6 + 4)
    assert frame["paper_roc_auc"].notna().all()
    assert frame["diff_roc_auc"].abs().max() <= 0.0006
    spread = frame[(frame["statistic"] == "std")]["roc_auc"].tolist()
    areas = [[row["roc_auc"] for _, row in part.iterrows()] for _, part in frame[frame["cell"] != ""].groupby("part")]
    assert spread == pytest.approx([statistics.pstdev(part) for part in areas])
    frame = table6(printed_ablations(), "big-llama", THRESHOLDS, "llama")
    assert len(frame) == 2 * (3 + 4)
    assert frame["diff_roc_auc"].abs().max() <= 0.0006
    assert "Paper's AUC" in variants_text(frame).columns
    assert table5(printed_ablations(), "big-llama", THRESHOLDS, None)["paper_roc_auc"].isna().all()


def test_a_variant_without_an_auc_leaves_no_mean() -> None:
    frame = printed_ablations()
    frame.loc[1, "roc_auc"] = np.nan
    found = table5(frame, "big-llama", THRESHOLDS, "llama")
    over = found[(found["part"] == "5a") & (found["statistic"] != "value")]
    assert over["roc_auc"].isna().all()
    assert set(over["note"]) == {"missing: a variant has no AUC"}


def test_absent_ablation_rows_are_an_error() -> None:
    with pytest.raises(UserError, match="no row of pooling, model big-mistral"):
        first_rows(printed_ablations(), "pooling", "big-mistral", THRESHOLDS, ["rr"])


def test_table4_shows_the_first_sentences(tmp_path: Path) -> None:
    attributes, targets = tmp_path / "a.tsv", tmp_path / "t.tsv"
    attributes.write_text('id\tvalence\ttext\nn1\tnegative\tBad "luck".\np1\tpositive\tGood.\np2\tpositive\tBetter.\n')
    targets.write_text("id\ttemplate\nt1\t{group} walk.\n")
    rows = [{"ablation": kind, "cell": "base", "roc_auc": 0.9} for kind in ("attributes", "targets")]
    files: dict[str, str | None] = {"attributes": str(attributes), "targets": str(targets)}
    frame = table4(ablations(rows), "big-llama", THRESHOLDS, files)
    assert frame.to_dict("records") == [
        {
            "set": "attributes",
            "cell": "base",
            "name": "base",
            "n_sentences": 3,
            "example": "Good.",
            "example_negative": 'Bad "luck".',
        },
        {
            "set": "targets",
            "cell": "base",
            "name": "base",
            "n_sentences": 1,
            "example": "{group} walk.",
            "example_negative": "",
        },
    ]
    targets.write_text("id\n")
    with pytest.raises(UserError, match=r"t\.tsv:1: no example sentence found"):
        table4(ablations(rows), "big-llama", THRESHOLDS, files)


def test_table4_shows_a_users_own_variants(tmp_path: Path) -> None:
    (tmp_path / "attributes_subj_v1.tsv").write_text(
        "id\tvalence\ttext\nn1\tnegative\tOurs, bad.\np1\tpositive\tOurs.\n"
    )
    rows = [{"ablation": "attributes", "cell": "subj_v1", "roc_auc": 0.9}]
    own = table4(ablations(rows), "big-llama", THRESHOLDS, {}, str(tmp_path)).to_dict("records")
    assert [(row["n_sentences"], row["example"], row["example_negative"]) for row in own] == [
        (2, "Ours.", "Ours, bad.")
    ]
    shipped = table4(ablations(rows), "big-llama", THRESHOLDS, {}).to_dict("records")
    assert shipped[0]["example"] != "Ours."
    with pytest.raises(UserError, match=r"attributes_subj_v1\.tsv: no such file"):
        table4(ablations(rows), "big-llama", THRESHOLDS, {}, str(tmp_path / "none"))
    config = {
        "run": "r",
        "models": {"m": {"source": {"kind": "packaged_gguf"}}},
        "ablations": {"variants_dir": str(tmp_path)},
    }
    assert json.loads(slices.tables_slice(config_root.from_mapping(config)))["variants_dir"] == str(tmp_path)


def printed_table7() -> pd.DataFrame:
    rows = [
        {
            "benchmark": benchmark,
            "model": "big-llama",
            "regime": regime,
            "method": method,
            "threshold": 0.1,
            "n": 63,
            "n_positive": 20,
            "roc_auc": area if regime == "full" else 0.1,
            "pearson_r": r,
            "pearson_p": 0.001 if significant else 0.4,
            "note": "",
        }
        for regime in ("lora", "full")
        for benchmark in ("decodingtrust", "wildguardmix")
        for method, (area, r, significant) in reversed(PAPER["table7"][benchmark].items())
    ]
    return pd.DataFrame(rows)


def test_table7_orders_the_methods_and_stands_beside_the_paper() -> None:
    frame = table7(printed_table7(), "big-llama", THRESHOLDS, "llama")
    assert frame["method"].tolist() == ["rr", "seat", "procrustes_seat", "cka_drift"] * 2
    assert frame["benchmark"].tolist() == ["wildguardmix"] * 4 + ["decodingtrust"] * 4
    assert (frame[["diff_roc_auc", "diff_pearson_r"]] == 0).all(axis=None)
    assert frame["directed"].tolist() == ["yes", "yes", "yes", "no"] * 2
    assert frame["paper_significant"].tolist() == ["yes", "yes", "no", "yes"] * 2
    assert [row[-4] for row in table7_text(frame).rows][:3] == ["0.001", "0.001", "0.400"]
    assert table7(printed_table7(), "big-llama", THRESHOLDS, None)["paper_pearson_r"].isna().all()


def seeds(spread: float = 0.003) -> pd.DataFrame:
    means = PAPER["figure5"]["mean_delta_b"]
    return pd.DataFrame(
        [
            {
                "model": "big-llama",
                "regime": "full",
                "split": split,
                "seed": seed,
                "group": group,
                "method": "rr",
                "n_anchors": 1000,
                "delta_b": mean + shift * spread * 1.5**0.5,
            }
            for split, mean in means.items()
            for group in ("women", "men")
            for seed, shift in ((1, -1), (2, 0), (3, 1))
        ]
    )


def pooled(sign: float = -1.0) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    return pd.DataFrame(
        {
            "benchmark": "toxigen",
            "model": list(FAMILIES) * 20,
            "regime": "full",
            "method": "rr",
            "delta_b": x,
            "delta_score": sign * x + rng.normal(size=60),
        }
    )


def evidence(**changes: Any) -> Evidence:
    """The paper's own numbers as the evidence."""
    costs = table3(all_clocks(), list(FAMILIES), ["full"], list(THRESHOLDS), FAMILIES)
    found: dict[str, Any] = {
        "table1": printed_table1(),
        "observations": pooled(),
        "table3": costs,
        "table7": table7(printed_table7(), "big-llama", THRESHOLDS, "llama"),
        "ablations": printed_ablations(),
        "training_seeds": seeds(),
        "models": list(FAMILIES),
        "families": FAMILIES,
        "thresholds": THRESHOLDS,
    }
    return Evidence(**{**found, **changes})


def judge(**changes: Any) -> dict[str, Verdict]:
    found = evidence(**changes)
    return {claim.name: claim.judge(found) for claim in CLAIMS}


def test_the_papers_own_numbers_reproduce_its_claims() -> None:
    found = judge()
    assert {name: verdict.verdict for name, verdict in found.items()} == dict.fromkeys(found, "reproduced")
    assert found["significant_correlations"].shown == "15 of 18 cells"
    assert found["strongest_correlation"].shown == "lowest r −0.84 (DecodingTrust, big-llama, full)"
    assert found["auc_range"].shown == "AUC from 0.65 to 0.99"
    assert found["rr_above_seat"].shown == "RR above SEAT in 6 of 6"
    assert found["stable_attributes"].shown == "6 variants: std 0.030, lowest 0.818"
    assert found["stable_targets"].shown == "6 variants: std 0.008, lowest 0.892"
    assert "8 sets (neutral, words, alpaca, tulu)" in found["stable_anchors"].shown
    assert found["three_minutes"].shown == ("minutes: big-llama 2.9, big-mistral 3.2, big-gemma 3.2 (cpu and cuda)")
    assert found["cheaper"].shown == "3.0 to 48.6 times"
    assert found["stable_seeds"].shown == (
        "3 seeds; harmful: mean dB −0.051, std 0.003; unharmful: mean dB 0.291, std 0.003"
    )
    assert found["pooling"].shown == "RR above SEAT in 3 of 3 poolings"
    assert set(found["significant_correlations"].models) == set(FAMILIES)


def slower() -> pd.DataFrame:
    costs = table3(all_clocks(), list(FAMILIES), ["full"], list(THRESHOLDS), FAMILIES)
    costs.loc[costs["task"] == "ours", "minutes"] *= 5
    return costs


def wobbling() -> pd.DataFrame:
    frame = printed_ablations()
    frame.loc[frame["cell"].isin(["subj_v1", "passive", "words"]), "roc_auc"] = 0.45
    frame.loc[(frame["method"] == "seat") & (frame["cell"] == "last"), "roc_auc"] = 0.99
    return frame


def seat_best() -> pd.DataFrame:
    frame = table7(printed_table7(), "big-llama", THRESHOLDS, "llama")
    frame.loc[1, "roc_auc"] = 0.99
    return frame


def equal_regimes() -> pd.DataFrame:
    frame = printed_table1()
    return frame.assign(pearson_r=np.where(frame["regime"] == "lora", frame["pearson_r"] - 0.2, frame["pearson_r"]))


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        (
            {"table1": printed_table1(pearson_r=0.3)},
            {"significant_correlations", "strongest_correlation", "weaker_under_lora"},
        ),
        ({"table1": printed_table1(roc_auc=0.55)}, {"auc_range"}),
        ({"table1": printed_table1().assign(roc_auc=0.9)}, {"auc_range", "rr_above_seat"}),
        ({"table1": equal_regimes()}, {"weaker_under_lora"}),
        ({"observations": pooled(1.0)}, {"toxigen_pooled"}),
        ({"ablations": wobbling()}, {"stable_attributes", "stable_targets", "stable_anchors", "pooling"}),
        ({"table7": seat_best()}, {"best_method"}),
        ({"training_seeds": seeds(0.2)}, {"stable_seeds"}),
        ({"table3": slower()}, {"three_minutes", "cheaper"}),
    ],
)
def test_numbers_against_a_claim_do_not_reproduce_it(changes: dict[str, Any], failed: set[str]) -> None:
    found = judge(**changes)
    assert {name for name, verdict in found.items() if verdict.verdict == "not reproduced"} == failed
    assert all(found[name].verdict == "reproduced" for name in set(found) - failed)


def test_a_pair_without_db_or_without_score_is_left_out_of_the_pooled_correlation() -> None:
    rows = pooled()
    rows.loc[0, "delta_b"], rows.loc[1, "delta_score"] = np.nan, np.nan
    found = judge(observations=rows)["toxigen_pooled"]
    assert found.verdict == "reproduced"
    assert found.shown.endswith("n = 58")


def test_models_that_stand_for_none_of_the_papers_reproduce_nothing() -> None:
    found = judge(families=dict.fromkeys(FAMILIES))
    assert {verdict.verdict for verdict in found.values()} == {"not run"}


def test_absent_evidence_is_not_run_with_the_reason() -> None:
    full = printed_table1().query("regime == 'full'")
    found = judge(table1=full, table7=None, ablations=None, training_seeds=None)
    assert found["significant_correlations"].verdict == "not run"
    assert found["significant_correlations"].shown == "9 of 18 cells in this run"
    assert found["rr_above_seat"].verdict == "reproduced"
    for name in ("stable_anchors", "stable_attributes", "stable_targets", "stable_seeds", "pooling"):
        assert found[name].verdict == "not run"
        assert found[name].shown == "not part of this run"
    gone = printed_table1()
    gone.loc[0, "roc_auc"] = np.nan
    found = judge(table1=gone)
    assert found["auc_range"].shown == "17 of 18 cells have a value"
    assert found["rr_above_seat"].shown == "5 of 6 pairs of AUC in this run"
