"""Forms of models in an audit: GGUF files, quantised checkpoints, adapters' bases, training runs, tokenizers."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from refbias.audit import embed, sources
from refbias.cli.main import main
from refbias.config.audit_result import CheckpointResult, load_result
from tests.audit_models import EXACT, FEW, adapter, build, changed, edit_json, shifts
from tests.gguf_models import write_gguf
from tests.tiny_decoders import build_decoder

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    base = build(folder / "base")
    changed(base, folder / "tuned", 0.2)
    changed(base, folder / "other", 0.2, seed=5)
    return folder


def audit(*arguments: str | Path, output: Path) -> list[CheckpointResult]:
    """Run an audit that must succeed."""
    assert main(["audit", *map(str, arguments), "--output", str(output), *FEW, *EXACT]) == 0
    return load_result(output / "audit.json").checkpoints


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run an audit that must fail as a user's mistake; return its line."""
    capsys.readouterr()
    assert main(["audit", *map(str, arguments), "--json", *FEW, *EXACT]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("refbias: error:")]
    assert len(said) == 1
    return said[0]


# --- GGUF -------------------------------------------------------------------------------------------


def test_a_gguf_file_is_its_own_folder(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, tuned = (write_gguf(models / name, tmp_path / f"{name}.gguf") for name in ("base", "tuned"))
    found = audit(models / "base", base, tuned, models / "tuned", output=tmp_path / "o")
    assert [row.kind for row in found] == ["gguf", "gguf", "directory"]
    assert max(map(abs, shifts(tmp_path / "o", 0).values())) < 1e-6
    assert shifts(tmp_path / "o", 1) == pytest.approx(shifts(tmp_path / "o", 2), abs=1e-6)
    assert max(map(abs, shifts(tmp_path / "o", 2).values())) > 1e-3
    # the sentences got the same ids, so nothing is said of tokenizers
    assert "tokenizers_differ" not in {warning.code for row in found for warning in row.warnings}

    def again(*_: object) -> None:
        raise AssertionError("de-quantised a second time")

    monkeypatch.setattr(sources, "dequantise", again)
    audit(base, tuned, output=tmp_path / "again")
    assert shifts(tmp_path / "again") == pytest.approx(shifts(tmp_path / "o", 2), abs=1e-6)


def test_a_gguf_file_that_lacks_a_tensor(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(models / "tuned", tmp_path / "x.gguf", without=["model.layers.1.mlp.up_proj.weight"])
    assert "'model.layers.1.mlp.up_proj.weight' is missing" in refused(capsys, models / "base", path)


@pytest.mark.parametrize(("key", "value"), [("block_count", 5_000_000), ("embedding_length", 4_000_000)])
def test_a_gguf_file_that_boasts(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: int
) -> None:
    path = write_gguf(models / "tuned", tmp_path / "x.gguf", **{key: value})
    assert str(path) in refused(capsys, models / "base", path)


# --- quantised checkpoints --------------------------------------------------------------------------

_BLOCK = 16


def quantise(source: Path, target: Path) -> tuple[Path, Path]:
    """Write a checkpoint's block matrices in FP8 with a scale for every 16 x 16 numbers; and what these stand for."""
    shutil.copytree(source, target)
    plain = Path(shutil.copytree(source, target.with_name(f"{target.name}-plain")))
    stored: dict[str, torch.Tensor] = {}
    meant: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = meant[name] = tensor
            continue
        rows, columns = (size // _BLOCK for size in tensor.shape)
        blocks = tensor.reshape(rows, _BLOCK, columns, _BLOCK)
        scale = blocks.abs().amax(dim=(1, 3)) / 448
        narrow = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        stored[name] = narrow.reshape(tensor.shape)
        stored[f"{name}_scale_inv"] = scale
        meant[name] = (narrow.float() * scale[:, None, :, None]).reshape(tensor.shape)
    save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
    save_file(meant, plain / "model.safetensors", metadata={"format": "pt"})
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [_BLOCK, _BLOCK]}
    edit_json(target / "config.json", quantization_config=settings)
    return target, plain


needs_cpu_fp8 = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU FP8 matrices are multiplied as they are, by kernels of their own"
)


@needs_cpu_fp8
def test_a_quantised_checkpoint_is_what_its_numbers_stand_for(models: Path, tmp_path: Path) -> None:
    narrow, plain = quantise(models / "tuned", tmp_path / "fp8")
    found = audit(models / "base", narrow, plain, output=tmp_path / "o")
    first, second = shifts(tmp_path / "o", 0), shifts(tmp_path / "o", 1)
    largest = max(map(abs, second.values()))
    assert largest > 1e-3
    assert max(abs(first[group] - second[group]) for group in first) < 0.05 * largest
    # layers too: the blocks were found
    assert {row.layer for row in found[0].layers or []} == {0, 1, 2, 3, "final"}


@needs_cpu_fp8
def test_a_quantised_checkpoint_that_lacks_a_tensor(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow, _ = quantise(models / "tuned", tmp_path / "fp8")
    tensors = load_file(narrow / "model.safetensors")
    del tensors["model.layers.1.post_attention_layernorm.weight"]
    save_file(tensors, narrow / "model.safetensors", metadata={"format": "pt"})
    assert "'model.layers.1.post_attention_layernorm.weight' is missing" in refused(capsys, models / "base", narrow)


def test_an_adapter_on_a_quantised_reference(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    narrow, _ = quantise(models / "base", tmp_path / "base")
    lora = adapter(models / "base", tmp_path / "lora")
    said = refused(capsys, narrow, lora)
    assert "quantised (fp8)" in said
    assert "another base" not in said


@pytest.mark.parametrize("kind", ["opt", "gpt2"])
def test_whole_models_whose_blocks_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    base = build_decoder(kind, tmp_path / "base", seed=1)
    tuned = changed(base, tmp_path / "tuned", 0.2)
    audit(base, tuned, output=tmp_path / "streamed")
    monkeypatch.setattr(embed, "can_stream", lambda _: "not now")
    found = audit(base, tuned, "--no-cache", output=tmp_path / "whole")
    assert shifts(tmp_path / "whole") == pytest.approx(shifts(tmp_path / "streamed"), abs=1e-5)
    assert {row.layer for row in found[0].layers or []} == {0, 1, 2, 3, "final"}


# --- adapters' bases --------------------------------------------------------------------------------


def test_a_base_of_the_same_name_elsewhere(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # what the adapter names is there, is called like the reference, and is another model
    namesake = shutil.copytree(models / "other", tmp_path / "elsewhere" / "base")
    lora = adapter(models / "base", tmp_path / "lora", named=str(namesake))
    assert "another base" in refused(capsys, models / "base", lora)
    audit(models / "base", lora, "--any-base", output=tmp_path / "any")
    # the same weights there: the same base
    shutil.copyfile(models / "base" / "model.safetensors", namesake / "model.safetensors")
    audit(models / "base", lora, output=tmp_path / "same")
    # no longer there: its name is all there is to go by
    shutil.rmtree(namesake)
    audit(models / "base", lora, output=tmp_path / "gone")
    (tmp_path / "lora" / "adapter_config.json").write_text(
        json.dumps({**json.loads((lora / "adapter_config.json").read_text()), "base_model_name_or_path": "/gone/else"})
    )
    assert "another base" in refused(capsys, models / "base", lora)


# --- training runs ----------------------------------------------------------------------------------


def trained(models: Path, run: Path) -> Path:
    """Write what a trainer leaves: two checkpoints, and the last one's weights again in the folder itself."""
    for step, name in ((20, "other"), (100, "tuned")):
        shutil.copytree(models / name, run / f"checkpoint-{step}")
    for path in (models / "tuned").iterdir():
        shutil.copyfile(path, run / path.name)
    return run


def test_the_root_of_a_run_is_no_second_last_checkpoint(models: Path, tmp_path: Path) -> None:
    run = trained(models, tmp_path / "run")
    found = audit(models / "base", run, output=tmp_path / "o")
    assert [(row.name, row.step) for row in found] == [("checkpoint-20", 20), ("checkpoint-100", 100)]


def test_the_root_of_a_run_has_its_step(models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = trained(models, tmp_path / "run")
    changed(models / "tuned", tmp_path / "later", 0.1, seed=7)
    shutil.copyfile(tmp_path / "later" / "model.safetensors", run / "model.safetensors")
    (run / "trainer_state.json").write_text(json.dumps({"global_step": 130, "log_history": []}))
    found = audit(models / "base", run, output=tmp_path / "o")
    assert [(row.name, row.step) for row in found] == [("checkpoint-20", 20), ("checkpoint-100", 100), ("run", 130)]
    (run / "trainer_state.json").unlink()
    found = audit(models / "base", run, output=tmp_path / "again")
    assert [row.step for row in found] == [20, 100, None]
    assert "no trainer_state.json says at which step" in caplog.text


def test_the_root_of_a_run_of_adapters(models: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (10, 20):
        adapter(models / "base", run / f"checkpoint-{step}", seed=step)
    for path in (run / "checkpoint-20").iterdir():
        shutil.copyfile(path, run / path.name)
    found = audit(models / "base", run, output=tmp_path / "o")
    assert [row.step for row in found] == [10, 20]
    assert shifts(tmp_path / "o", 0) != shifts(tmp_path / "o", 1)


def without_tokenizer(folder: Path) -> Path:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    return folder


def test_checkpoints_without_a_tokenizer(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, bare = trained(models, tmp_path / "whole"), trained(models, tmp_path / "bare")
    for folder in (bare, *bare.glob("checkpoint-*")):
        without_tokenizer(folder)
    audit(models / "base", whole, output=tmp_path / "one")
    found = audit(models / "base", bare, output=tmp_path / "two")
    assert [row.step for row in found] == [20, 100]
    for number in (0, 1):
        assert shifts(tmp_path / "one", number) == shifts(tmp_path / "two", number)
        assert "tokenizer_lent" in {warning.code for warning in found[number].warnings}
    # the run's own, beside its checkpoints
    for path in (models / "base").glob("tokenizer*"):
        shutil.copyfile(path, bare / path.name)
    found = audit(models / "base", bare, output=tmp_path / "three")
    assert not any(warning.code == "tokenizer_lent" for row in found for warning in row.warnings)
    # nobody lends the reference one
    assert "no tokenizer" in refused(capsys, bare / "checkpoint-20", models / "base")


# --- tokens -----------------------------------------------------------------------------------------


def another_bos(folder: Path) -> Path:
    """Call another token BOS in a tokenizer that puts the same ids before a text as ever."""
    edit_json(folder / "tokenizer_config.json", bos_token="<eos>")  # noqa: S106 - a token of a tokenizer
    return folder


def watch(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Note which models go through their layers together."""
    seen: list[list[str]] = []
    real = embed.stream_embeddings

    def watched(variants: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        seen.append(sorted(variant.name for variant in variants))
        return real(variants, *args, **kwargs)

    monkeypatch.setattr(embed, "stream_embeddings", watched)
    return seen


def test_equal_ids_are_equal_tokenizers(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lora = adapter(models / "base", tmp_path / "lora")
    plain = adapter(models / "base", tmp_path / "plain")
    for path in (models / "base").glob("tokenizer*"):
        shutil.copyfile(path, lora / path.name)
    another_bos(lora)
    seen = watch(monkeypatch)
    found = audit(models / "base", lora, plain, output=tmp_path / "o")
    assert seen == [["base", "lora", "plain"]]
    assert "tokenizers_differ" not in {warning.code for row in found for warning in row.warnings}
    assert shifts(tmp_path / "o", 0) == shifts(tmp_path / "o", 1)
    # where BOS is left out, it counts what each model calls so: the one keeps its first token, the other does not
    seen.clear()
    found = audit(models / "base", lora, plain, "--exclude-bos", output=tmp_path / "p")
    assert sorted(seen) == [["base", "plain"], ["lora"]]
    assert "tokenizers_differ" not in {warning.code for row in found for warning in row.warnings}
    assert shifts(tmp_path / "p", 0) != shifts(tmp_path / "p", 1)


def test_other_ids_are_said(models: Path, tmp_path: Path) -> None:
    other = shutil.copytree(models / "tuned", tmp_path / "other")
    content = json.loads((other / "tokenizer.json").read_text())
    content["post_processor"] = None
    (other / "tokenizer.json").write_text(json.dumps(content))
    found = audit(models / "base", other, "--cross-family", output=tmp_path / "o")
    assert "tokenizers_differ" in {warning.code for warning in found[0].warnings}
