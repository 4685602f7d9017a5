"""The plan of a run against sizes that are published and sums done by hand."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from refbias.cli import plan as plan_stage
from refbias.config.external import hub_needs, is_remote, url_needs
from refbias.config.finetune import FullRegime
from refbias.config.models import HubSource, LocalSource
from refbias.config.root import Config, from_mapping, from_yaml
from refbias.errors import UserError
from refbias.planning import facts, rates, workload
from refbias.planning.estimate import card_memory_gb, needed_gb, plan, total
from refbias.planning.facts import Card
from refbias.planning.pilot import pilot_slice, sliced
from refbias.planning.sizes import adapter_parameters, parameters, shape_from_config, shape_of, training_bytes
from tests.tiny import build_tiny

LLAMA, MISTRAL, GEMMA = 8_030_261_248, 7_248_023_552, 3_880_263_168
GEMMA_WITH_VISION = 4_300_079_472


@pytest.fixture(scope="module")
def paper(root: Path) -> Config:
    return from_yaml(root / "config" / "paper.yaml")


def changed(config: Config, **sections: Any) -> Config:
    return from_mapping({**config.model_dump(mode="json"), **sections})


def test_known_models_have_their_published_sizes() -> None:
    assert parameters(facts.LLAMA_8B) == LLAMA
    assert parameters(facts.MISTRAL_7B) == MISTRAL
    assert parameters(facts.GEMMA_3_4B) == GEMMA
    assert parameters(facts.GEMMA_3_4B) + facts.GEMMA_3_4B.other == GEMMA_WITH_VISION
    assert parameters(facts.GEMMA_3_270M) == 268_098_176
    # peft's own count for all seven linear layers
    assert adapter_parameters(facts.LLAMA_8B, 16) == 41_943_040


def stored_numbers(path: Path, part: str = "") -> int:
    """Count the numbers in a safetensors file from its header alone."""
    with path.open("rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
        header = json.loads(handle.read(length))
    count = 0
    for name, entry in header.items():
        if name != "__metadata__" and part in name:
            numbers = 1
            for size in entry["shape"]:
                numbers *= size
            count += numbers
    return count


@pytest.mark.parametrize(
    ("family", "part"), [("llama", ""), ("mistral", ""), ("gemma3_text", ""), ("gemma3", "language_model")]
)
def test_a_local_model_is_measured_by_its_config(tmp_path: Path, family: str, part: str) -> None:
    build_tiny(family, tmp_path)
    shape = shape_of(LocalSource(kind="local", path=str(tmp_path)))
    assert parameters(shape) == stored_numbers(tmp_path / "model.safetensors", part)


def test_a_model_of_unknown_size_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="owner/other: its size is not known offline"):
        shape_of(HubSource(kind="hub", id="owner/other", revision="main"))
    with pytest.raises(UserError, match=r"config\.json has no num_attention_heads"):
        shape_from_config({"hidden_size": 3}, "here")


def test_rates_are_their_closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(memory_gb=40, tflops=100, bandwidth_gb_s=1000)
    for name, value in (("TRAINING_SHARE", 0.5), ("PREFILL_SHARE", 0.25), ("DECODE_SHARE", 0.2)):
        monkeypatch.setattr(rates, name, value)
    monkeypatch.setattr(rates, "BANDWIDTH_SHARE", 0.5)
    # 6 x 1e9 x 1e6 operations at 5e13 a second
    assert rates.training_seconds(1e9, 1e6, card, 6) == pytest.approx(120)
    assert rates.training_seconds(1e9, 1e6, card, 4, slowdown=3) == pytest.approx(240)
    assert rates.forward_seconds(1e9, 1e6, card) == pytest.approx(80)
    # 2e9 bytes at 5e11 a second: 4 ms, and 30 ms of its own; 9 responses are two batches of 8
    assert rates.decoding_seconds(1e9, 9, 10, 8, card, "hf") == pytest.approx(2 * 10 * 0.034)
    # 2 x 1e9 x 1000 operations at 2e13 a second: 100 ms
    assert rates.decoding_seconds(1e9, 1000, 10, 1000, card, "hf") == pytest.approx(10 * 0.130)
    assert rates.loading_seconds(5e9) == pytest.approx(facts.START_S + 5 / facts.DISK_GB_S)


def test_the_papers_workload(paper: Config) -> None:
    assert workload.responses(paper, "wildguardmix").outputs == 76 * 5
    assert workload.responses(paper, "decodingtrust").outputs == 24 * 16 * 3 * 3 * 25
    assert workload.responses(paper, "toxigen").outputs == 9 * 100 * 5
    assert workload.split_tokens(paper, "harmful", 1024) == 8000 * 662
    assert workload.split_tokens(paper, "harmful", 500) == 8000 * 500
    assert workload.sentence_tokens(paper) == (24 * 50 + 50 + 200 + 1000) * facts.SENTENCE_TOKENS
    fewer = paper.model_dump(mode="json")["benchmarks"]
    fewer["decodingtrust"] |= {"prompts_per_unit": 2, "system_prompts": ["benign"], "samples": 3}
    assert workload.responses(changed(paper, benchmarks=fewer), "decodingtrust").outputs == 24 * 2 * 3


def test_shipped_prompts_and_splits_are_counted(root: Path) -> None:
    config = from_yaml(root / "config" / "quickstart.yaml")
    assert workload.responses(config, "toxigen").outputs == 9 * 4 * 2
    lines = (root / "data" / "quickstart" / "wildguard_harmful.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    words = sum(len(row["prompt"].split()) + len(row["response"].split()) for row in rows)
    assert workload.split_tokens(config, "harmful", 1024) == pytest.approx(words * facts.TOKENS_PER_WORD)


def test_the_papers_stages_and_sizes(paper: Config) -> None:
    stages = {stage.stage: stage for stage in plan(paper)}
    jobs = {name: stage.jobs for name, stage in stages.items()}
    assert jobs == {
        "acquire": 8,
        "finetune full": 6,
        "finetune lora": 6,
        "merge (CPU)": 30,
        "represent": 45,
        "generate": 45,
        "score": 45,
    }
    # two bf16 endpoints of each model stay
    assert stages["finetune full"].disk_gb == pytest.approx(2 * 2 * (LLAMA + MISTRAL + GEMMA) / 1e9)
    models = 2 * (LLAMA + MISTRAL + GEMMA_WITH_VISION) / 1e9
    data = sum(facts.DATA_MB.values()) / 1000
    # five merges of a model stay, each of twice the rank, in fp32
    merged = (
        5 * 4 * sum(adapter_parameters(shape, 32) for shape in (facts.LLAMA_8B, facts.MISTRAL_7B, facts.GEMMA_3_4B))
    )
    assert stages["merge (CPU)"].disk_gb == pytest.approx(merged / 1e9)
    assert stages["merge (CPU)"].passing_gb == pytest.approx(2 * 2 * (LLAMA + MISTRAL + GEMMA) / 1e9)
    scorers = sum(need.key.startswith("scorers.") for need in hub_needs(paper))
    assert stages["acquire"].download_gb >= models + data
    if not scorers:
        assert stages["acquire"].download_gb == pytest.approx(models + data)
    everything = total(plan(paper))
    assert everything.disk_gb == pytest.approx(sum(stage.disk_gb for stage in stages.values()))
    assert everything.passing_gb == max(stage.passing_gb for stage in stages.values())
    assert needed_gb(paper)[0] == pytest.approx(everything.disk_gb + everything.passing_gb)


def test_training_hours_by_hand(paper: Config) -> None:
    stages = {stage.stage: stage for stage in plan(paper)}
    tokens = 3 * 8000 * (434 + 662)
    for name, operations in (("finetune full", 6), ("finetune lora", 4)):
        seconds = operations * (LLAMA + MISTRAL + GEMMA) * tokens / (312e12 * facts.TRAINING_SHARE)
        loads = 2 * (3 * facts.START_S + 2 * (LLAMA + MISTRAL + GEMMA) / (1e9 * facts.DISK_GB_S))
        slow = facts.PLAN_SLOWDOWN[getattr(paper.regimes.full, "memory_plan", "single")] if operations == 6 else 1
        assert stages[name].seconds["A100 80 GB"] == pytest.approx(slow * seconds + loads)


def test_ready_made_endpoints_are_not_trained(paper: Config) -> None:
    models = paper.model_dump(mode="json")["models"]
    models["llama"]["endpoints"]["full"] = {"unharmful": "a", "harmful": "b"}
    stages = {stage.stage: stage.jobs for stage in plan(changed(paper, models=models, training_seeds=None))}
    assert (stages["finetune full"], stages["finetune lora"]) == (4, 6)


def test_memory_that_one_card_needs(paper: Config) -> None:
    assert training_bytes(FullRegime(dtype="float32")) == 16
    assert training_bytes(FullRegime(dtype="bfloat16")) == 18
    regimes = paper.model_dump(mode="json")["regimes"]
    regimes["full"] = {"dtype": "bfloat16"}
    needs = card_memory_gb(changed(paper, regimes=regimes))
    assert needs["inference (bf16 weights)"] == pytest.approx(2 * LLAMA / 1e9)
    assert needs["full fine-tuning (plan single)"] == pytest.approx(18 * LLAMA / 1e9)
    # an adapter's weights, gradients and two moments in fp32
    assert needs["LoRA (bf16 weights, fp32 adapter)"] == pytest.approx((2 * LLAMA + 16 * 41_943_040) / 1e9)


def test_the_pilot_is_the_cheapest_slice_and_its_file_holds_it(paper: Config, root: Path) -> None:
    choice = pilot_slice(paper)
    costs = {
        (model, regime, benchmark): total(plan(sliced(paper, model, regime, benchmark))).seconds["A100 40 GB"]
        for model in paper.models
        for regime in ("full", "lora")
        for benchmark in ("wildguardmix", "decodingtrust", "toxigen")
    }
    assert costs[choice] == min(costs.values())
    words = {"run", "title", "note"}
    pilot = from_yaml(root / "config" / "pilot.yaml")
    assert pilot.model_dump(exclude=words) == sliced(paper, *choice).model_dump(exclude=words)


def test_the_command_prints_stages_assumptions_and_pilot(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_stage.main(["--config", str(root / "config" / "paper.yaml")])
    printed = capsys.readouterr().out
    for text in ("finetune full", "GPU-h A100 40 GB", "download GB", "total", "Assumptions", "35%", "Memory, full"):
        assert text in printed, text
    assert "Pilot: model gemma, regime lora, benchmark wildguardmix" in printed


def test_what_a_run_needs_from_outside(paper: Config, root: Path) -> None:
    needs = {need.id: need for need in hub_needs(paper)}
    assert needs["meta-llama/Llama-3.1-8B-Instruct"].key == "models.llama.source"
    assert needs["allenai/wildguardmix"].type == "dataset"
    assert needs["allenai/wildguardmix"].files == ("train/wildguard_train.parquet", "test/wildguard_test.parquet")
    assert [key for key, _ in url_needs(paper)] == ["data.decodingtrust.source", "data.toxigen.source"]
    assert is_remote(paper)
    assert not is_remote(from_yaml(root / "config" / "quickstart.yaml"))
