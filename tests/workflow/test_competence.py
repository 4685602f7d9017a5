"""The target `competence`: its jobs by subject, alone and beside a run's checkpoints."""

from pathlib import Path

import pytest
import yaml

from tests.workflow.conftest import Checkout, make_checkout

STAGES = ("represent", "answer", "hire", "analyse")


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Checkout:
    return make_checkout(root, tmp_path / "checkout")


def _configure(checkout: Checkout, **changes: object) -> None:
    path = checkout.path / "config" / "tiny.yaml"
    config = yaml.safe_load(path.read_text())
    config["competence"] = {"occupations": 1, "questions": 1, **changes}
    path.write_text(yaml.safe_dump(config))


def _lens(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if name.startswith("competence")}


def test_the_reference_alone_needs_no_fine_tuning(checkout: Checkout) -> None:
    _configure(checkout, checkpoints=[])
    counts = checkout.would_run("competence")
    assert not {"finetune", "merge_full", "generate", "shift"} & set(counts)
    stages = {f"competence_{stage}": 1 for stage in STAGES}
    lens = _lens(counts)
    assert stages.items() <= lens.items()
    assert lens["competence_steer"] == 1
    assert "competence_axis" not in lens
    assert {lens[f"competence_{part}"] for part in ("tables", "figures", "report")} == {1}


def test_endpoints_and_merges_are_subjects_and_no_merge_is_written(checkout: Checkout) -> None:
    config = yaml.safe_load((checkout.path / "config" / "tiny.yaml").read_text())
    weights = config["spectrum"]["weights"]
    inner = weights[1]
    _configure(checkout, checkpoints=[0, inner, 1], regimes=["full"], steering={"subjects": "all"}, axis={})
    counts = checkout.would_run("competence")
    assert counts["finetune"] == 2
    assert "merge_full" not in counts
    lens = _lens(counts)
    for stage in (*STAGES, "steer"):
        assert lens[f"competence_{stage}"] == 4, stage
    assert lens["competence_axis"] == 1


def test_the_run_itself_does_not_ask_for_the_lens(checkout: Checkout) -> None:
    assert not _lens(checkout.would_run())


def test_the_three_lenses_share_a_page_of_each_endpoint(checkout: Checkout) -> None:
    _configure(checkout, checkpoints=[0, 1], regimes=["full"])
    counts = checkout.would_run("lenses")
    assert counts["lens_pages"] == 1
    assert counts["shift"] == 1
    assert counts["competence_analyse"] == 2
    # the reference bounds how far applicants' states are moved
    assert counts["competence_steer"] == 1
    asked = checkout.would_run("results/tiny/lenses/tiny-gemma/full-h100.html")
    assert asked["lens_pages"] == 1
