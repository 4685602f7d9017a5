"""The target `two_stage` on a finished run: what it makes, and that it makes it once."""

import json

import pandas as pd

from tests.workflow.conftest import Checkout


def test_the_run_itself_makes_none_of_it(finished: Checkout) -> None:
    assert not (finished.path / "results" / "tiny" / "calibration").exists()
    jobs = finished.would_run("two_stage")
    # three benchmarks, full fine-tuning and LoRA
    assert jobs == {"calibrate": 6, "judge_two_stage": 6, "two_stage": 1}


def test_files_of_every_benchmark_with_two_classes(copy: Checkout) -> None:
    results = copy.path / "results" / "tiny"
    thresholds = json.loads((results / "tables" / "manifest.json").read_text())["settings"]["thresholds"]
    pairs = pd.read_csv(results / "tables" / "observations.csv").query("method == 'rr'").dropna(subset=["delta_score"])
    rose = pairs["delta_score"] > pairs["benchmark"].map(thresholds) + 1e-9
    shares = rose.groupby([pairs["benchmark"], pairs["regime"]]).mean()
    usable = [key for key, share in shares.items() if 0 < share < 1]
    assert usable, "no benchmark of the tiny run has both classes"
    done = copy.snakemake("two_stage", "--keep-going", check=False)
    assert (done.returncode == 0) == (len(usable) == len(shares)), done.stderr[-3000:]
    for benchmark, regime in usable:
        folder = results / "calibration" / benchmark / regime
        calibration = json.loads((folder / "calibration.json").read_text())
        assert calibration["outcome"]["threshold"] == thresholds[benchmark]
        assert calibration["provenance"]["run"] == "tiny"
        account = json.loads((folder / "two_stage.json").read_text())
        assert account["n_rose"] == calibration["n_positive"]
        assert account["costs"]["benchmark"] > 0
        stem = copy.path / "figures" / "tiny" / f"two_stage_{benchmark}_{regime}"
        assert stem.with_suffix(".png").stat().st_size > 10_000
    targets = [
        f"results/tiny/calibration/{benchmark}/{regime}/{name}.json"
        for benchmark, regime in usable
        for name in ("calibration", "two_stage")
    ]
    assert copy.would_run(*targets) == {}
