"""The target `metamorphic`: what it plans for the quickstart, the paper, checkpoints, interfaces and a model alone."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workflow.conftest import Checkout, make_checkout

TAIL = {"metamorphic_tables": 1, "metamorphic_figures": 1, "metamorphic_report": 1, "metamorphic": 1}
ALONE: dict[str, Any] = {
    "run": "tiny",
    "models": {"m": {"source": {"kind": "local", "path": "models/m"}}},
    "compute": {"device": "cpu", "dtype": "float32"},
}


def planned(checkout: Checkout, config: dict[str, Any] | str, *arguments: str) -> dict[str, int]:
    """Job counts of a dry run of the target, with a configuration of its own or a shipped one."""
    text = yaml.safe_dump(config) if isinstance(config, dict) else (checkout.path / "config" / config).read_text()
    (checkout.path / "config" / "tiny.yaml").write_text(text, encoding="utf-8")
    return checkout.would_run(*(arguments or ("metamorphic",)))


@pytest.fixture(scope="module")
def fresh(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return make_checkout(root, tmp_path_factory.mktemp("metamorphic"))


def test_the_quickstart(fresh: Checkout) -> None:
    assert planned(fresh, "quickstart.yaml") == {
        "acquire": 1,
        "metamorphic_sample": 1,
        # options are weighed: reference, reference with examples, mitigated
        "metamorphic_choose": 3,
        # neutral questions and open ones, of the same three
        "metamorphic_ask": 6,
        "metamorphic_evaluate": 6,
        "mitigation_set": 1,
        "mitigate": 1,
        **TAIL,
    }


def test_the_papers_models_at_full_scale(fresh: Checkout) -> None:
    assert planned(fresh, "paper.yaml") == {
        "preflight": 1,
        "acquire": 3,
        "metamorphic_sample": 1,
        # plain, few-shot and mitigated, each with the neutral questions, of three models
        "metamorphic_ask": 18,
        "metamorphic_evaluate": 9,
        "mitigation_set": 3,
        "mitigate": 3,
        **TAIL,
    }


def test_a_model_alone(fresh: Checkout) -> None:
    lens = {"mitigation": None, "few_shot": 0}
    assert planned(fresh, {**ALONE, "metamorphic": lens}) == {
        "acquire": 1,
        "metamorphic_sample": 1,
        "metamorphic_ask": 1,
        "metamorphic_evaluate": 1,
        **TAIL,
    }
    # the section is there from the start
    assert planned(fresh, ALONE)["metamorphic_ask"] == 6


def test_over_the_spectra_beside_db(fresh: Checkout) -> None:
    spectrum = {"spectrum": {"weights": [0, 0.5, 1], "max_merged": 1}}
    lens = {"mitigation": None, "few_shot": 0, "subjects": "spectra"}
    found = planned(fresh, {**ALONE, **spectrum, "metamorphic": lens})
    # the reference and three checkpoints of two regimes; dB of the same
    assert (found["metamorphic_ask"], found["metamorphic_evaluate"]) == (7, 7)
    assert (found["metamorphic_merge"], found["merge_lora"]) == (1, 1)
    assert (found["finetune"], found["represent"], found["shift"]) == (4, 3, 1)
    # the spectrum's own merges would make a finished run generate again
    assert "merge_full" not in found
    ends = planned(fresh, {**ALONE, **spectrum, "metamorphic": {**lens, "subjects": "endpoints"}})
    assert ends["metamorphic_ask"] == 5
    assert "metamorphic_merge" not in ends


def test_interfaces_beside_a_model_and_alone(fresh: Checkout) -> None:
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "model": "x"}
    lens = {"mitigation": None, "endpoints": {"api": endpoint}, "reading": "forced_choice"}
    found = planned(fresh, {**ALONE, "metamorphic": lens})
    # few-shot too; a service has no log-probabilities of options, and answers in words
    assert (found["metamorphic_choose"], found["metamorphic_ask_interface"]) == (2, 2)
    assert found["metamorphic_evaluate"] == 4
    alone = planned(fresh, {**ALONE, "models": {}, "metamorphic": lens})
    assert alone == {"metamorphic_sample": 1, "metamorphic_ask_interface": 2, "metamorphic_evaluate": 2, **TAIL}
