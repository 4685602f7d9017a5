"""The vLLM backend on a stand-in for vLLM that echoes prompts: arguments, ids, seeds, resumption, errors."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from refbias.artifacts import read_json, read_jsonl, sha256_file
from refbias.benchmarks.base import Sampling
from refbias.cli import generate as stage
from refbias.cli.main import main
from refbias.config.generation import GenerationSettings
from refbias.config.models import Compute
from refbias.errors import UserError
from refbias.generation import Request, Task, completion, vllm
from refbias.generation.seeds import item_seed
from refbias.models import load_lm, load_tokenizer
from refbias.models.load import Checkpoint
from tests.generate_settings import generate_settings
from tests.tiny import BOS, EOS, build_tiny, make_roomy

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "fake_vllm"
CPU = Compute(device="cpu", dtype="float32")


def task(tmp_path: Path, compute: Compute = CPU, **generation: Any) -> Task:
    settings = GenerationSettings.model_validate({"backend": "vllm", **generation})
    return Task(Checkpoint(tmp_path), tmp_path / "tokenizer", "m", settings, compute, 77, tmp_path / "work")


# --- arguments -------------------------------------------------------------------------------


def test_engine_takes_what_the_configuration_says(tmp_path: Path) -> None:
    plain = vllm.engine_arguments(task(tmp_path), tmp_path / "w", "cpu")
    assert plain["model"] == str(tmp_path / "w")
    assert plain["tokenizer"] == str(tmp_path / "tokenizer")
    assert (plain["dtype"], plain["tensor_parallel_size"], plain["max_num_seqs"]) == ("float32", 1, 64)
    assert (plain["max_model_len"], plain["kv_cache_memory_bytes"]) == (77, 4_000_000_000)
    assert (plain["enable_prefix_caching"], plain["generation_config"]) == (True, "vllm")
    assert (plain["trust_remote_code"], plain["load_format"]) == (False, "safetensors")
    chosen = {
        "dtype": "bfloat16",
        "tensor_parallel_size": 4,
        "gpu_memory_utilization": 0.5,
        "max_model_len": 900,
        "enforce_eager": True,
    }
    found = vllm.engine_arguments(task(tmp_path, batch_size=256, vllm=chosen), tmp_path, "cuda")
    assert {key: found[key] for key in chosen} == chosen
    assert found["max_num_seqs"] == 256
    assert "kv_cache_memory_bytes" not in found, "on a GPU the cache takes what the weights leave"
    found = vllm.engine_arguments(task(tmp_path, vllm={"kv_cache_gb": 0.5}), tmp_path, "cuda")
    assert found["kv_cache_memory_bytes"] == 500_000_000


def test_each_response_has_its_own_seed_and_the_stops_of_the_other_backend() -> None:
    found = vllm.sampling_arguments(Sampling(5, 0.7, 0.9, 12), 123, frozenset({9, 1}), ("\nQuestion:",))
    assert found == {
        "n": 1,
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 12,
        "seed": 123,
        "stop": ["\nQuestion:"],
        "stop_token_ids": [1, 9],
        "detokenize": True,
    }
    assert not vllm.sampling_arguments(Sampling(5, 0.7, 0.9, 12), 1, frozenset(), ())["detokenize"]
    with pytest.raises(UserError, match=r"key 'temperature': 2.5: vLLM takes 2 at most"):
        vllm.sampling_arguments(Sampling(5, 2.5, 0.9, 12), 1, frozenset(), ())


def test_a_tensor_parallel_job_takes_its_gpus() -> None:
    wide = {"tensor_parallel_size": 4}
    assert GenerationSettings.model_validate({"backend": "vllm", "vllm": wide}).gpus() == 4
    assert GenerationSettings.model_validate({"backend": "hf", "vllm": wide}).gpus() == 1


def test_the_interpreter_goes_with_the_backend() -> None:
    assert GenerationSettings().python() is None
    assert GenerationSettings(backend="vllm").python() == ".venv-vllm/bin/python"
    assert GenerationSettings(backend="vllm", interpreter="/opt/x/python").python() == "/opt/x/python"


# --- the stage -------------------------------------------------------------------------------


def settings(**changes: Any) -> str:
    return generate_settings(**{"generation": {"backend": "vllm", "part_size": 12}, **changes})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that holds prompts of a byte a token."""
    return make_roomy(build_tiny("llama", tmp_path_factory.mktemp("model") / "llama", seed=3))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that finds the stand-in; this one does not."""
    path = tmp_path_factory.mktemp("environment") / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{FAKE}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return path


def generate(
    model: Path, python: Path, tmp_path: Path, *more: str, text: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "refbias", "generate", "--python", str(python), "--settings", text or settings()]
    command += ["--reference", str(model), "--name", "h030", "--output", str(tmp_path / "out"), *more]
    command += ["--work", str(tmp_path / "work")]
    variables = {**os.environ, "FAKE_VLLM_LOG": str(tmp_path / "log.jsonl"), "OMP_NUM_THREADS": "1", **environment}
    variables["PYTHONPATH"] = str(ROOT / "workflow")
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture
def fake_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The stand-in in this process."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("FAKE_VLLM_LOG", str(tmp_path / "log.jsonl"))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]


def generate_here(model: Path, tmp_path: Path, *more: str) -> None:
    command = ["--settings", settings(), "--reference", str(model), "--name", "h030", *more]
    stage.main([*command, "--output", str(tmp_path / "out"), "--work", str(tmp_path / "work")])


def events(tmp_path: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_jsonl(tmp_path / "log.jsonl") if event["event"] == kind]


@pytest.fixture(scope="module")
def whole(model: Path, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    done = generate(model, python, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_one_start_serves_all_benchmarks(whole: Path, model: Path) -> None:
    (start,) = events(whole, "start")
    assert start["model"] == str(model)
    assert start["options"]["max_num_seqs"] == 64
    manifest = read_json(whole / "out" / "manifest.json")
    assert manifest["backend"] == "vllm"
    assert manifest["engine"]["enable_prefix_caching"] is True
    assert not any(str(model) in str(value) for value in manifest["engine"].values())
    assert not (whole / "work").exists()
    # the engine holds the longest prompt with its new tokens, and no more
    prompts = read_jsonl(whole / "out" / "prompts.jsonl")
    assert start["options"]["max_model_len"] == max(prompt["n_tokens"] for prompt in prompts) + 6


def test_ids_carry_one_bos_and_rows_are_those_of_any_backend(whole: Path, model: Path) -> None:
    tokenizer = load_tokenizer(model)
    prompts = {row["prompt_id"]: row for row in read_jsonl(whole / "out" / "prompts.jsonl")}
    asked = [
        (ids, params)
        for event in events(whole, "generate")
        for ids, params in zip(event["prompts"], event["params"], strict=True)
    ]
    assert all(ids[0] == BOS and ids.count(BOS) == 1 for ids, _ in asked)
    assert all(params["n"] == 1 and params["stop_token_ids"] == [EOS] for _, params in asked)
    rows = [
        row
        for name in ("wildguardmix", "decodingtrust", "toxigen")
        for row in read_jsonl(whole / "out" / f"{name}.jsonl")
    ]
    assert len(rows) == len(asked) == 2 * len(prompts) == 84
    for row, (ids, params) in zip(rows, asked, strict=True):
        assert list(row) == ["benchmark", "unit", "prompt_id", "sample", "seed", "text", "n_tokens", "finish"]
        prompt = prompts[row["prompt_id"]]
        system = f"{prompt['system']}\n\n" if prompt["system"] else ""
        assert tokenizer.decode(ids[1:]) == f"Question: {system}{prompt['user'].strip()}\nAnswer:"
        assert row["seed"] == params["seed"] == item_seed(17, row["benchmark"], row["prompt_id"], row["sample"])
        turn = row["seed"] % (len(ids) - 1)
        assert row["text"] == tokenizer.decode((ids[1:][turn:] + ids[1:][:turn])[:6]).partition("\nQuestion:")[0]
    assert len({row["seed"] for row in rows}) == len(rows)


def test_a_killed_job_goes_on_and_no_finished_part_is_generated_twice(
    whole: Path, model: Path, python: Path, tmp_path: Path
) -> None:
    killed = generate(model, python, tmp_path, FAKE_VLLM_KILL="4")
    assert killed.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "work").glob("*.jsonl"))) == 3
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert generate(model, python, tmp_path).returncode == 0
    expected = [event["prompts"] for event in events(whole, "generate")]
    assert len(expected) == 2 + 4 + 2
    assert [event["prompts"] for event in events(tmp_path, "generate")] == [*expected[:4], *expected[3:]]
    for path in (whole / "out").glob("*.jsonl"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    manifest = read_json(tmp_path / "out" / "manifest.json")
    assert manifest["resumed"] == {"wildguardmix": 2, "decodingtrust": 1}
    assert not (tmp_path / "work").exists()


def write_adapter(folder: Path) -> Path:
    from safetensors.torch import save_file

    folder.mkdir()
    module = "base_model.model.model.layers.1.self_attn.q_proj"
    random = torch.Generator().manual_seed(0)
    tensors = {
        f"{module}.lora_A.weight": torch.randn(2, 32, generator=random),
        f"{module}.lora_B.weight": torch.randn(32, 2, generator=random),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.usefixtures("fake_here")
def test_an_adapter_is_served_as_merged_weights_that_are_gone_afterwards(model: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    left = tmp_path / "work" / ".merged-killed"
    left.mkdir(parents=True)
    generate_here(model, tmp_path, "--checkpoint", str(adapter))
    (start,) = events(tmp_path, "start")
    assert Path(start["model"]).parent == tmp_path / "work"
    assert start["tokenizer"]
    assert not (tmp_path / "work").exists()
    load_lm(model, adapter, dtype=torch.float32).save_pretrained(tmp_path / "expected")
    assert start["weights"] == sha256_file(tmp_path / "expected" / "model.safetensors")
    load_lm(model, dtype=torch.float32).save_pretrained(tmp_path / "base")
    assert start["weights"] != sha256_file(tmp_path / "base" / "model.safetensors")


def test_the_language_tower_of_a_multimodal_checkpoint_is_served(tmp_path: Path) -> None:
    folder = build_tiny("gemma3", tmp_path / "gemma3", seed=3)
    with vllm.served_folder(Checkpoint(folder), folder, "float32", tmp_path / "work") as served:
        assert read_json(served / "config.json")["model_type"] == "gemma3_text"
        assert (served / "tokenizer.json").is_file()
    assert not served.exists()


# --- mistakes --------------------------------------------------------------------------------


def test_a_missing_interpreter_is_named_with_the_mend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "generate.log"
    assert main(["generate", "--python", ".venv-nowhere/bin/python", "--log", str(log), "--settings", "{}"]) == 2
    expected = (
        "refbias: error: .venv-nowhere/bin/python: no such interpreter: run `make env-vllm`, or name one in key "
        "'generation.interpreter'\n"
    )
    assert capsys.readouterr().err == expected
    assert log.read_text() == expected


@pytest.mark.usefixtures("fake_here")
def test_an_engine_for_another_device_is_told_so(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_VLLM_DEVICE", "cuda")
    with pytest.raises(UserError, match=r"key 'compute.device': cpu, but this vLLM is built for cuda"):
        generate_here(model, tmp_path)


@pytest.mark.usefixtures("fake_here")
def test_logits_that_are_no_numbers_are_named(
    whole: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM_NAN", "13")
    row = read_jsonl(whole / "out" / "wildguardmix.jsonl")[13]
    with pytest.raises(UserError, match="logits are not finite: check the weights") as caught:
        generate_here(model, tmp_path)
    assert str(caught.value).startswith(f"h030: prompt {row['prompt_id']}, sample {row['sample']}: ")


@pytest.mark.usefixtures("fake_here")
def test_an_end_that_nothing_explains_stops_the_job(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM_SHORT", "1")
    with pytest.raises(RuntimeError, match=r"the engine ended a response \(None\) where nothing ends it"):
        generate_here(model, tmp_path)


def test_an_interpreter_without_vllm_is_told_so(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="vLLM is not installed beside this interpreter: run `make env-vllm`"):
        generate_here(model, tmp_path)


# --- greedy continuations --------------------------------------------------------------------

ASKED = [Request("a", "", (BOS, 40, 50, 60, 70)), Request("b", "", (BOS, 41, 51))]


def wrong(*ids: int) -> list[Request]:
    return [Request("a", "", ids)]


def echoed(model: Path) -> list[str]:
    tokenizer = load_tokenizer(model)
    found = []
    for request in ASKED:
        body = request.ids[1:]
        turn = item_seed(0, "completion", request.prompt_id, 0) % len(body)
        found.append(tokenizer.decode((body[turn:] + body[:turn])[:2]))
    return found


@pytest.mark.usefixtures("fake_here")
def test_continuations_by_the_engine_in_this_process(model: Path) -> None:
    assert vllm.complete(model, ASKED, 2, compute=CPU) == echoed(model)
    with pytest.raises(UserError, match="prompt a: begins with 0 BOS tokens"):
        vllm.complete(model, wrong(40), 2, compute=CPU)


def test_continuations_by_an_engine_in_its_own_environment(model: Path, python: Path) -> None:
    chosen = GenerationSettings(backend="vllm", interpreter=str(python))
    assert completion.complete(model, ASKED, 2, generation=chosen, compute=CPU) == echoed(model)
    with pytest.raises(UserError, match="llama: prompt a: begins with 2 BOS tokens"):
        completion.complete(model, wrong(BOS, BOS, 40), 2, generation=chosen, compute=CPU)
    missing = GenerationSettings(backend="vllm", interpreter="nowhere/python")
    with pytest.raises(UserError, match="nowhere/python: no such interpreter: run `make env-vllm`"):
        completion.complete(model, ASKED, 2, generation=missing, compute=CPU)


def test_continuations_by_transformers_are_its_own_greedy_ones(model: Path) -> None:
    loaded, tokenizer = load_lm(model, dtype=torch.float32), load_tokenizer(model)
    expected = []
    for request in ASKED:
        prompt = torch.tensor([request.ids])
        whole = loaded.generate(prompt, max_new_tokens=9, do_sample=False)[0, len(request.ids) :]
        expected.append(tokenizer.decode(whole, skip_special_tokens=True))
    assert completion.complete(model, ASKED, 9, compute=CPU) == expected
    assert completion.complete(model, [], 9, compute=CPU) == []
    with pytest.raises(ValueError, match="two have the same id"):
        completion.complete(model, [*ASKED, *ASKED], 9, compute=CPU)
