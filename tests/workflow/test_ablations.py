"""Ablations through the rules: only where they are configured, to a table, and rerun no more than needed."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.ablation_files import many, write_json, write_variants
from tests.workflow.conftest import Checkout

JOBS = {"ablation_sentences": 1, "represent_ablations": 2, "ablate": 1, "analyse_ablations": 1}
TABLE = "results/tiny/tables/ablations.csv"


def configure(checkout: Checkout, **changes: object) -> None:
    """Give the tiny run a section `ablations`."""
    path = checkout.path / "config" / "tiny.yaml"
    data = yaml.safe_load(path.read_text())
    files = {key: str(Path(value).relative_to(checkout.path)) for key, value in variants(checkout).items()}
    data["ablations"] = {
        **files,
        "alpaca_file": "data/made/alpaca.json",
        "regimes": ["full"],
        "anchor_counts": [8, 30],
        "anchor_seeds": [0, 1],
        "sample": {"size": 30},
        "layers": [1],
        **changes,
    }
    path.write_text(yaml.safe_dump(data, sort_keys=False))


def variants(checkout: Checkout) -> dict[str, str]:
    folder = checkout.path / "data" / "made"
    if not folder.exists():
        files = write_variants(checkout.path / "data" / "stimuli", folder)
        write_json(folder / "alpaca.json", many(40))
        return files
    return {
        "variants_dir": str(folder),
        **{f"{name}_file": str(folder / f"{name}.tsv") for name in ("words", "masked")},
    }


@pytest.fixture(scope="module")
def ablated(finished: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The finished tiny run with ablations added."""
    target = tmp_path_factory.mktemp("ablated") / "copy"
    shutil.copytree(finished.path, target, copy_function=shutil.copy2)
    checkout = Checkout(target)
    configure(checkout)
    assert checkout.would_run(TABLE) == JOBS, "nothing of the run itself is made again"
    checkout.snakemake("--latency-wait", "5", TABLE)
    return checkout


def test_the_table_has_every_cell(ablated: Checkout) -> None:
    table = pd.read_csv(ablated.path / TABLE)
    assert set(table["benchmark"]) == {"wildguardmix", "decodingtrust", "toxigen"}
    assert set(table["model"] + table["regime"]) == {"tiny-gemmafull"}
    cells = table.groupby("ablation")["cell"].unique().map(set).to_dict()
    assert cells["attributes"] == {"base", "subj_v1", "subj_v2", "syn_v1", "syn_v2", "syn_v3"}
    assert cells["targets"] == {"base", "passive", "passive_rephrased", "syn_v1", "syn_v2", "syn_v3"}
    assert cells["anchors"] == {"neutral", "words", "alpaca"}
    assert cells["circularity"] == {"base", "without_group", "masked", "leave_group_out"}
    assert cells["pooling"] == {"mean", "max", "last"}
    assert cells["layer"] == {"final", "before_norm", "layer_001"}
    assert cells["bos"] == {"included", "excluded"}
    anchors = table[table["ablation"] == "anchors"]
    assert len(anchors) == 3 * 2 * 2 * 3, "source x number x seed x benchmark"
    own = pd.read_csv(ablated.path / "results" / "tiny" / "tables" / "table1.csv")
    base = table[(table["ablation"] == "attributes") & (table["cell"] == "base")]
    both = base.merge(own, on=["benchmark", "model", "regime", "method"], suffixes=("", "_own"))
    assert len(both) == 6
    assert (both["n"] == both["n_own"]).all()
    assert (both["n_positive"] == both["n_positive_own"]).all()
    given = both["pearson_r"].notna()
    assert ((both["pearson_r"] - both["pearson_r_own"])[given].abs() < 1e-3).all()


def test_what_reruns_after_which_change(ablated: Checkout) -> None:
    assert ablated.would_run(TABLE) == {}
    try:
        configure(ablated, anchor_seeds=[0, 2])
        assert ablated.would_run(TABLE) == {"ablate": 1, "analyse_ablations": 1}
        configure(ablated, layers=[2])
        found = ablated.would_run(TABLE)
        assert found == {name: count for name, count in JOBS.items() if name != "ablation_sentences"}
        configure(ablated, sample={"size": 20})
        assert ablated.would_run(TABLE) == JOBS
    finally:
        configure(ablated)
    assert ablated.would_run(TABLE) == {}


def test_without_the_section_nothing_of_it_is_in_the_run(finished: Checkout) -> None:
    assert finished.would_run("--forceall").keys().isdisjoint(JOBS)
