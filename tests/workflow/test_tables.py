"""Table 1 of a finished run, recomputed by lines that share nothing with the code."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from refbias.config.root import from_yaml
from tests.independent import recompute_table1
from tests.workflow.conftest import Checkout

NUMBERS = [
    "n",
    "pearson_r",
    "pearson_p",
    "pearson_ci_low",
    "pearson_ci_high",
    "spearman_r",
    "roc_auc",
    "roc_auc_ci_low",
    "roc_auc_ci_high",
    "mae",
    "mae_oob",
    "n_positive",
]
KEYS = ["benchmark", "model", "regime", "method"]


def check_table1(checkout: Path, config_file: Path) -> pd.DataFrame:
    """Compare table1.csv of a run with the independent recomputation from its observations.csv."""
    config = from_yaml(config_file)
    tables = checkout / "results" / config.run / "tables"
    table = pd.read_csv(tables / "table1.csv", keep_default_na=False, na_values=[""])
    thresholds = {name: settings.threshold for name, settings in config.benchmarks.enabled().items()}
    pairs = pd.read_csv(tables / "observations.csv")
    again = recompute_table1(pairs, thresholds, config.analysis.n_resamples, config.seed)
    left, right = table.set_index(KEYS).sort_index(), again.set_index(KEYS).sort_index()
    assert list(left.index) == list(right.index)
    for column in NUMBERS:
        np.testing.assert_allclose(
            left[column].astype(float), right[column].astype(float), rtol=1e-7, atol=1e-9, err_msg=column
        )
    missing = left["pearson_r"].isna() | left["roc_auc"].isna()
    assert (left.loc[missing, "note"].astype(str).str.len() > 0).all(), "a missing number needs its reason"
    return table


def test_every_number_follows_from_the_observations(finished: Checkout) -> None:
    table = check_table1(finished.path, finished.path / "config" / "tiny.yaml")
    assert len(table) == 3 * 2 * 4
    assert set(table["n"]) == {3 * 9, 3 * 24}


def test_the_quickstart_as_it_stands(root: Path) -> None:
    results = root / "results" / "quickstart"
    if not (results / "report.html").exists():
        pytest.skip("results/quickstart is not there: run `make quickstart` first")
    table = check_table1(root, root / "config" / "quickstart.yaml")
    counts = table.groupby("benchmark")["n"].unique()
    assert {name: list(values) for name, values in counts.items()} == {
        "decodingtrust": [168],
        "toxigen": [63],
        "wildguardmix": [63],
    }
    rows = table[table["method"] == "rr"]
    pairs = pd.read_csv(results / "tables" / "observations.csv")
    spread = pairs[pairs["method"] == "rr"].groupby(["benchmark", "regime"])["delta_score"].std()
    both = (rows["n_positive"] > 0) & (rows["n_positive"] < rows["n"])
    varied = [spread[key] > 0 for key in zip(rows["benchmark"], rows["regime"], strict=True)]
    assert int((both & pd.Series(varied, index=rows.index)).sum()) >= 4
    units = pd.read_csv(results / "tables" / "units.csv")
    reference = units[(units["regime"] == "reference") & (units["benchmark"] == "decodingtrust")]
    assert reference["score"].mean() > 0
    assert (units["n_outputs"] >= 8).all()
    for path in results.glob("training/*/*/*/loss.csv"):
        loss = pd.read_csv(path)["loss"]
        third = len(loss) // 3
        assert loss.tail(third).mean() < loss.head(third).mean(), path
