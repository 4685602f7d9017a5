"""What reruns after which change, and that nothing does without one."""

import os
import shutil
from pathlib import Path

import pytest

from tests.workflow.conftest import Checkout, make_checkout

PICTURES = {"all": 1, "analyse": 1, "tables": 1, "figures": 1, "provenance": 1, "report": 1}
AFTER_SHIFT = {**PICTURES, "shift": 1, "records": 1}
AFTER_SCORE = {**PICTURES, "score": 3, "records": 1}


def test_a_second_run_has_nothing_to_do(finished: Checkout) -> None:
    assert finished.would_run() == {}


def test_every_declared_result_is_there(finished: Checkout) -> None:
    results, figures = finished.path / "results" / "tiny", finished.path / "figures" / "tiny"
    for name in (
        "shift/delta_b.csv",
        "tables/observations.csv",
        "tables/table1.csv",
        "tables/units.csv",
        "report.html",
    ):
        assert (results / name).stat().st_size > 0, name
    for regime in ("full", "lora"):
        for suffix in ("pdf", "png"):
            assert (figures / f"figure2_tiny-gemma_{regime}.{suffix}").stat().st_size > 0


def test_merged_full_weights_are_gone_and_adapters_stay(finished: Checkout) -> None:
    spectrum = finished.path / "results" / "tiny" / "spectrum" / "tiny-gemma"
    assert not list(spectrum.glob("full/*/*.safetensors"))
    assert [path.parent.name for path in spectrum.glob("lora/*/adapter_model.safetensors")] == ["h050"]


def test_results_copied_to_another_checkout_need_nothing(finished: Checkout, root: Path, tmp_path: Path) -> None:
    other = make_checkout(root, tmp_path / "other")
    for name in ("results", "figures", "models"):
        shutil.copytree(finished.path / name, other.path / name, copy_function=shutil.copy2)
    assert other.would_run() == {}
    source = finished.path / ".snakemake" / "metadata"
    shutil.copytree(source, other.path / ".snakemake" / "metadata", dirs_exist_ok=True)
    assert other.would_run() == {}


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        ("workflow/refbias/metrics/rr.py", "import ", "ADDED = 1\nimport ", AFTER_SHIFT),
        ("workflow/report/report.html.j2", "</body>", "<!-- new --></body>", {"all": 1, "report": 1}),
        ("workflow/refbias/cli/analyse.py", "import argparse", "import argparse\nADDED = 1", PICTURES),
        ("workflow/refbias/cli/score.py", "import argparse", "import argparse\nADDED = 1", AFTER_SCORE),
        ("config/tiny.yaml", "n_resamples: 200}\nanalysis", "n_resamples: 300}\nanalysis", AFTER_SHIFT),
        ("config/tiny.yaml", 'title: "refbias', 'title: "new', {"all": 1, "report": 1, "provenance": 1}),
    ],
)
def test_an_edit_reruns_its_stage_and_what_follows(
    copy: Checkout, path: str, old: str, new: str, expected: dict[str, int]
) -> None:
    copy.edit(path, old, new)
    assert copy.would_run() == expected


def test_comments_and_docstrings_rerun_nothing(copy: Checkout) -> None:
    for path in (copy.path / "workflow" / "refbias").rglob("*.py"):
        path.write_text("# a new comment\n" + path.read_text().replace('"""', '"""More words. ', 1))
    assert copy.would_run() == {}


def test_an_edit_of_training_code_retrains_but_does_not_fetch_the_model(copy: Checkout) -> None:
    copy.edit("workflow/refbias/cli/finetune.py", "import argparse", "import argparse\nADDED = 1")
    found = copy.would_run()
    assert "acquire" not in found
    assert (found["finetune"], found["merge_full"], found["merge_lora"], found["generate"]) == (4, 1, 1, 6)
    assert found["represent"] == 2, "the reference is not embedded again"
    assert found["score"] == 2


def test_a_changed_scorer_never_generates(copy: Checkout) -> None:
    copy.edit(
        "data/standin/sentences.tsv",
        "\n",
        "\n",
    )
    with (copy.path / "data" / "standin" / "sentences.tsv").open("a") as handle:
        handle.write("added-1\tunharmful\ttrain\tThe added sentence about a bridge is long.\n")
    found = copy.would_run()
    assert found == AFTER_SCORE


def test_other_weights_in_a_local_models_folder_are_taken(copy: Checkout) -> None:
    weights = next((copy.path / "models" / "gemma3_text").glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.unlink()
    weights.write_bytes(content)
    found = copy.would_run()
    assert (found["acquire"], found["finetune"], found["represent"], found["generate"]) == (1, 4, 3, 7)


def test_touched_files_rerun_nothing(copy: Checkout) -> None:
    for path in copy.path.rglob("*"):
        if path.is_file() and ".snakemake" not in path.parts and path.suffix != ".safetensors":
            os.utime(path)
    assert copy.would_run() == {}


def test_dry_run_of_the_quickstart_counts_its_jobs(root: Path, tmp_path: Path) -> None:
    checkout = make_checkout(root, tmp_path / "fresh")
    (checkout.path / "config" / "tiny.yaml").unlink()
    shutil.copy2(checkout.path / "config" / "quickstart.yaml", checkout.path / "config" / "tiny.yaml")
    assert checkout.would_run() == {
        "acquire": 1,
        "all": 1,
        "analyse": 1,
        "figures": 1,
        "finetune": 4,
        "generate": 15,
        "merge_full": 5,
        "merge_lora": 1,
        "provenance": 1,
        "records": 1,
        "report": 1,
        "represent": 3,
        "score": 3,
        "shift": 1,
        "tables": 1,
    }


def test_a_wrong_key_stops_before_any_job(root: Path, tmp_path: Path) -> None:
    checkout = make_checkout(root, tmp_path / "fresh")
    checkout.edit("config/tiny.yaml", "seed: 3", "sead: 3")
    done = checkout.snakemake("--dry-run", check=False)
    assert done.returncode != 0
    assert "unknown key 'sead': did you mean 'seed'?" in done.stdout + done.stderr
