"""Bad inputs of an audit: one line that names the mend, exit code 2 (130 for Ctrl-C), nothing left behind."""

import errno
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from refbias.cli.main import main
from refbias.config.audit_result import load_result
from tests.audit_models import EXACT, FEW, adapter, build, changed, edit_json, small_disk


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    base = build(folder / "base")
    changed(base, folder / "tuned", 0.2)
    adapter(base, folder / "lora")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def left_behind(folder: Path) -> list[str]:
    """Names of unfinished files and folders below."""
    return [path.name for path in folder.rglob("*") if path.name.endswith((".part", ".gone")) or path.name == "out"]


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str | Path) -> str:
    """Run an audit that must fail as a user's mistake; return its line."""
    capsys.readouterr()
    options = [*FEW, *EXACT, "--output", str(folder / "out")]
    # the arguments last: they may say otherwise
    assert main(["audit", *options, *map(str, arguments)]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("refbias: error:")]
    assert len(said) == 1
    assert left_behind(folder) == []
    return said[0]


def shard(source: Path, target: Path) -> Path:
    """Copy a checkpoint as two shards with their index."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    names = sorted(tensors)
    places = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, target / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return target


def test_shards_are_the_whole(models: Path, tmp_path: Path) -> None:
    sharded = shard(models / "base", tmp_path / "sharded")
    arguments = [str(models / "base"), str(sharded), "--output", str(tmp_path / "o"), *FEW, *EXACT]
    assert main(["audit", *arguments]) == 0
    assert {row.delta_b for row in load_result(tmp_path / "o" / "audit.json").checkpoints[0].groups} == {0.0}


def no_shard(folder: Path) -> str:
    (folder / "model-00002-of-00002.safetensors").unlink()
    return "model-00002-of-00002.safetensors"


def cut(folder: Path) -> str:
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return "model-00001-of-00002.safetensors"


def long_header(folder: Path) -> str:
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 60) + path.read_bytes()[8:])
    return "model-00001-of-00002.safetensors"


def nan(folder: Path) -> str:
    path = folder / "model-00001-of-00002.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "layers.1." in name and tensors[name].dim() == 2)
    tensors[name][0, 0] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    return name


def pickled(folder: Path) -> str:
    for path in folder.glob("model*"):
        path.unlink()
    torch.save({}, folder / "pytorch_model.bin")
    return "pickle"


def remote_code(folder: Path) -> str:
    edit_json(folder / "config.json", auto_map={"AutoModel": "x.Y"})
    return "auto_map"


def elsewhere(folder: Path) -> str:
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    edit_json(index, weight_map={**places, next(iter(places)): "../base/model.safetensors"})
    return "../base/model.safetensors"


def lacking(folder: Path) -> str:
    path = folder / "model-00001-of-00002.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "layers.1." in name)
    index = folder / "model.safetensors.index.json"
    places = {key: file for key, file in json.loads(index.read_text())["weight_map"].items() if key != name}
    edit_json(index, weight_map=places)
    save_file({key: value for key, value in tensors.items() if key != name}, path, metadata={"format": "pt"})
    return name


def quantised(folder: Path) -> str:
    edit_json(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    return "gptq"


def deep(folder: Path) -> str:
    edit_json(folder / "config.json", num_hidden_layers=5_000_000)
    return "num_hidden_layers 5000000"


def not_json(folder: Path) -> str:
    (folder / "config.json").write_text("[" * 100_000)
    return "config.json"


def a_list(folder: Path) -> str:
    (folder / "config.json").write_text("[]")
    return "JSON object"


def strange(folder: Path) -> str:
    edit_json(folder / "config.json", model_type="no-such-model", architectures=["Nothing"])
    return "config.json"


@pytest.mark.parametrize(
    "spoil",
    [
        no_shard,
        cut,
        long_header,
        nan,
        pickled,
        remote_code,
        elsewhere,
        lacking,
        quantised,
        deep,
        not_json,
        a_list,
        strange,
    ],
)
def test_spoiled_checkpoints(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], str]
) -> None:
    bad = shard(models / "tuned", tmp_path / "bad")
    word = spoil(bad)
    assert word in refused(capsys, tmp_path, models / "base", bad)


def test_a_base_of_other_sizes(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = adapter(models / "base", tmp_path / "lora", named="base")
    tensors = load_file(other / "adapter_model.safetensors")
    wide = {name: value.repeat(1, 2) if "lora_A" in name else value for name, value in tensors.items()}
    save_file(wide, other / "adapter_model.safetensors")
    assert "another base" in refused(capsys, tmp_path, models / "base", other)


def test_a_base_of_another_name(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = adapter(models / "base", tmp_path / "lora", named="somebody/another-model")
    said = refused(capsys, tmp_path, models / "base", other)
    assert "'somebody/another-model'" in said
    assert "--any-base" in said
    arguments = [str(models / "base"), str(other), "--any-base", "--output", str(tmp_path / "o"), *FEW, *EXACT]
    assert main(["audit", *arguments]) == 0


def test_a_base_of_other_weights(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # the path that the adapter names is there, and holds another model of the same sizes
    other = adapter(models / "base", tmp_path / "lora", named=str(models / "tuned"))
    assert "another base" in refused(capsys, tmp_path, models / "base", other)
    twin = shutil.copytree(models / "base", tmp_path / "twin")
    same = adapter(models / "base", tmp_path / "lora-of-twin", named=str(twin))
    assert main(["audit", str(models / "base"), str(same), "--output", str(tmp_path / "o"), *FEW, *EXACT]) == 0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"peft_type": "IA3"}, "only LORA"),
        ({"r": 0}, "'r 0'|r 0"),
        ({"lora_alpha": "x"}, "lora_alpha"),
        ({"rank_pattern": {"(a+)+b": 3}}, "pattern"),
        ({"use_dora": True}, "use_dora"),
    ],
)
def test_spoiled_adapters(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], word: str
) -> None:
    bad = shutil.copytree(models / "lora", tmp_path / "bad")
    edit_json(bad / "adapter_config.json", **changes)
    said = refused(capsys, tmp_path, models / "base", bad)
    assert any(part in said for part in word.split("|"))


def test_a_cut_adapter(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = shutil.copytree(models / "lora", tmp_path / "bad")
    path = bad / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    assert "adapter_model.safetensors" in refused(capsys, tmp_path, models / "base", bad)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("nowhere/at/all", "no such file or folder"),
        ("./nowhere", "no such file or folder"),
        ("packaged:other", "packaged:gemma3-270m"),
        ("0.5*{base}+0.6*{tuned}", "sum to 1.1"),
        ("0.5*{base}+0.5*{lora}*2", "no such file or folder"),
        ("0.5*./nowhere+0.5*{base}", "no such file or folder"),
        ("", "empty"),
        ("org/a--b", "org/a--b: no id of the hub"),
        ("org/model..v2", "org/model..v2: no id of the hub"),
        ("org/model@../../x", "'../../x' is no revision"),
        ("a\0b", "U+0000"),
        ("two\nlines", "U+000A"),
        ("half\udcff", "U+DCFF"),
        ("~nobody-of-this-name/x", "no home folder"),
        ("n" * 300, "no such file or folder"),
        ("n" * 10_000, "10000 characters"),
    ],
)
def test_models_that_are_not_there(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: str, word: str
) -> None:
    paths = {name: models / name for name in ("base", "tuned", "lora")}
    assert word in refused(capsys, tmp_path, models / "base", spec.format(**paths))


def _another_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers import models as kinds
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(kinds.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<pad>", "<eos>", "<bos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the river runs to the sea and the people run to it"] * 30, trainer)
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def test_another_vocabulary_and_width(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM, MistralConfig

    other = shutil.copytree(models / "base", tmp_path / "other")
    _another_tokenizer(other)
    assert "another vocabulary" in refused(capsys, tmp_path, models / "base", other)
    wide = shutil.copytree(other, tmp_path / "wide")
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=320,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        bos_token_id=2,
        eos_token_id=1,
        pad_token_id=0,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(wide)
    said = refused(capsys, tmp_path, models / "base", wide)
    assert "width 48" in said
    assert "--cross-family" in said
    said = refused(capsys, tmp_path, models / "base", wide, "--cross-family", "--methods", "rr,seat")
    assert "seat" in said
    arguments = [str(models / "base"), str(wide), "--cross-family", "--output", str(tmp_path / "o"), *FEW, *EXACT]
    assert main(["audit", *arguments]) == 0
    checkpoint = load_result(tmp_path / "o" / "audit.json").checkpoints[0]
    assert {row.method for row in checkpoint.methods} == {"rr", "cka_drift"}
    assert {"tokenizers_differ", "layers_differ"} <= {warning.code for warning in checkpoint.warnings}
    assert all(row.delta_b is not None for row in checkpoint.groups)


def test_more_tokens_are_no_other_vocabulary(models: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    other = shutil.copytree(models / "tuned", tmp_path / "other")
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    tokenizer.save_pretrained(other)
    assert main(["audit", str(models / "base"), str(other), "--output", str(tmp_path / "o"), *FEW, *EXACT]) == 0


def test_broken_sentences(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = tmp_path / "groups.tsv"
    header = "id\tname\ttopic\ttoxigen\tsingular_person\tsubject\taliases\tnumber\n"
    groups.write_text(header + "left\tleft\tside\t\ta left one\t\t\tplural\n")
    pair = (models / "base", models / "tuned")
    assert f"{groups}:2" in refused(capsys, tmp_path, *pair, "--groups", groups)
    attributes = tmp_path / "attributes.tsv"
    attributes.write_text("id\tvalence\ttext\na1\tpositive\tThe day was bright and warm today.\n")
    assert "no negative attribute" in refused(capsys, tmp_path, *pair, "--attributes", attributes)
    assert "no such" in refused(capsys, tmp_path, *pair, "--stimuli", "nothing")


def test_options_that_make_no_sense(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = (models / "base", models / "tuned")
    assert "float16" in refused(capsys, tmp_path, *pair, "--dtype", "float16")
    assert "ci<-0.02" in refused(capsys, tmp_path, *pair, "--fail-on", "ci=3")
    assert "calibration" in refused(capsys, tmp_path, *pair, "--fail-on", "probability>0.5")
    assert "layer" in refused(capsys, tmp_path, *pair, "--layer", "9")
    assert "name a reference" in refused(capsys, tmp_path, models / "base")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    assert "thesis.txt" in refused(capsys, tmp_path, *pair, "--output", mine)
    assert (mine / "thesis.txt").read_text() == "mine"


def test_a_full_disk(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    from refbias.cli import audit as command

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(command, "_write_report", full)
    said = refused(capsys, tmp_path, models / "base", models / "tuned")
    assert "no space left" in said
    assert str(tmp_path / "out") in said


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", kilobytes=64) as place:
        yield place


def test_a_small_disk(models: Path, full_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(models / "base"), str(models / "tuned"), "--output", str(full_disk / "o"), *FEW, *EXACT]
    assert main(["audit", *arguments]) == 2
    assert "no space left" in capsys.readouterr().err
    assert list(full_disk.iterdir()) == []


def test_a_full_cache_only_costs_time(
    models: Path, full_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("REFBIAS_CACHE", str(full_disk / "cache"))
    arguments = [str(models / "base"), str(models / "tuned"), "--output", str(tmp_path / "o"), *FEW, *EXACT]
    assert main(["audit", *arguments]) == 0
    assert "not kept" in caplog.text
    assert left_behind(full_disk) == []


# the real command, stopped where its folder is half written
_STOPPED = """
import sys, time
from refbias.cli import audit, main
def wait(*_):
    print("ready", flush=True)
    time.sleep(60)
audit._write_report = wait
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(models: Path, tmp_path: Path, root: Path) -> None:
    pair = [str(models / "base"), str(models / "tuned")]
    command = [sys.executable, "-c", _STOPPED, "audit", *pair, "--output", str(tmp_path / "out"), *FEW, *EXACT]
    environment = {**os.environ, "PYTHONPATH": str(root / "workflow")}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert any(path.name.endswith(".part") for path in tmp_path.iterdir())
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.splitlines()[-1] == "refbias: interrupted; nothing half-done is left"
    assert left_behind(tmp_path) == []
