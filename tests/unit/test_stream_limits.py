"""The layer-streamed forward: two batches at once, memory and disk, and what is refused."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from refbias.config.represent import RepresentSettings
from refbias.embed import Tokenised
from refbias.errors import UserError
from refbias.models import Checkpoint, load_base, load_tokenizer
from refbias.stream import Part, Variant, between, can_stream, passes, single
from refbias.stream.blocks import run_block
from tests.unit.stream_example import (
    FAMILIES,
    MORE,
    TEXTS,
    adapter,
    build,
    build_pairs,
    streamed,
    tokens_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    return build_pairs(tmp_path_factory.mktemp("pairs"))


# --- two batches at once -----------------------------------------------------------------------


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("kind", [*FAMILIES, *MORE, "gpt2", "phi3"])
@pytest.mark.parametrize("memory_mb", [None, 0])
def test_two_batches_at_once_give_the_numbers_of_one_after_the_other(
    folders: dict[str, tuple[Path, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    memory_mb: int | None,
) -> None:
    ends = folders.get(kind) or (build(kind, tmp_path / "u", 1), build(kind, tmp_path / "h", 2))
    texts = [f"{text} And {number} more." for number in range(8) for text in TEXTS]
    tokens = tokens_of(ends[0], texts)
    variants = [between(f"h{weight}", *map(Checkpoint, ends), weight) for weight in (0.0, 0.5)]
    seen: set[str] = set()

    def noted(*args: Any) -> torch.Tensor:
        seen.add(threading.current_thread().name)
        return run_block(*args)

    monkeypatch.setattr(passes, "run_block", noted)
    at_once = streamed(variants, tokens, layers="all", memory_mb=memory_mb, spill_dir=tmp_path)
    assert len(seen) == 2
    assert all(name.startswith("refbias-lane") for name in seen)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    in_turn = streamed(variants, tokens, layers="all", memory_mb=memory_mb, spill_dir=tmp_path)
    assert threading.current_thread().name in seen
    for name, sites in in_turn.embeddings.items():
        for layer, expected in sites.items():
            np.testing.assert_array_equal(at_once.embeddings[name][layer], expected)


# --- memory, spill, errors -------------------------------------------------------------------


def test_states_beyond_the_memory_go_to_files_and_leave_none(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    first, last = (Checkpoint(folder) for folder in folders["gemma3_text"])
    texts = [f"{text} {number}" for number in range(40) for text in TEXTS]
    tokens = tokens_of(first.weights, texts)
    variants = [between(f"h{weight}", first, last, weight) for weight in (0.0, 0.5, 1.0)]
    kept = streamed(variants, tokens, RepresentSettings())
    states_mb = tokens.n_tokens * 32 * 4 / 1e6
    assert kept.peak_activation_mb == pytest.approx(3 * states_mb)
    assert states_mb < 1 < 2 * states_mb
    spilled = streamed(variants, tokens, RepresentSettings(), memory_mb=1, spill_dir=tmp_path / "s")
    assert spilled.peak_activation_mb == pytest.approx(states_mb)
    assert spilled.seconds["spill"] > 0
    assert list((tmp_path / "s").iterdir()) == []
    for name in kept.embeddings:
        np.testing.assert_array_equal(spilled.embeddings[name]["final"], kept.embeddings[name]["final"])
    nothing = streamed(variants, tokens, RepresentSettings(), memory_mb=0, spill_dir=tmp_path / "s")
    assert nothing.peak_activation_mb == 0
    np.testing.assert_array_equal(nothing.embeddings["h0.5"]["final"], kept.embeddings["h0.5"]["final"])


def test_a_full_disk_is_one_line(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    folder = folders["llama"][0]
    with pytest.raises(UserError, match=r"no room for 0 MB of intermediate states \(No space left"):
        streamed([single("a", Checkpoint(folder))], tokens_of(folder), memory_mb=0, spill_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def broken(folder: Path, out: Path, change: Any) -> Path:
    out.mkdir()
    for path in folder.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    tensors = load_file(out / "model.safetensors")
    change(tensors)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_a_weight_that_is_not_finite_names_file_and_tensor(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name][3, 5] = float("nan")

    folder = broken(folders["llama"][0], tmp_path / "nan", spoil)
    with pytest.raises(UserError, match=r"model.safetensors: tensor 'model.layers.1.mlp.up_proj.weight' holds NaN"):
        streamed([single("a", Checkpoint(folder))], tokens_of(folder))


def test_a_state_that_is_not_finite_names_layer_and_sentence(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    def swell(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.mlp.down_proj.weight"] *= 1e38
        tensors["model.layers.1.mlp.up_proj.weight"] *= 1e8

    folder = broken(folders["llama"][0], tmp_path / "large", swell)
    with pytest.raises(UserError, match=r"gemma/a: layer 2 gives a non-finite state for sentence 'A.'"):
        streamed([single("a", Checkpoint(folder)), single("b", Checkpoint(folder))], tokens_of(folder), name="gemma")


def test_what_does_not_fit_together_is_refused_before_a_layer_is_read(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    llama, mistral = folders["llama"][0], folders["gemma3_text"][0]
    tokens = tokens_of(llama)
    with pytest.raises(UserError, match=r"tensor '.*' (is missing|is \(64, 32\))"):
        streamed([between("h", Checkpoint(llama), Checkpoint(mistral), 0.5)], tokens)

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.2.mlp.up_proj.weight"]

    with pytest.raises(UserError, match=r"tensor 'model.layers.2.mlp.up_proj.weight' is missing: copy it again"):
        streamed([single("a", Checkpoint(broken(llama, tmp_path / "less", drop)))], tokens)

    def halve(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].bfloat16()

    half = broken(llama, tmp_path / "half", halve)
    with pytest.raises(UserError, match=r"tensor 'norm.weight': torch.float32 in .*, torch.bfloat16 in"):
        streamed([between("h", Checkpoint(llama), Checkpoint(half), 0.5)], tokens)
    wrong = adapter(tmp_path / "wrong", folders["gemma3_text"][0], 1, 2, ("q_proj",))
    with pytest.raises(UserError, match=r"changes a matrix of \(64, 32\), the base model's is \(32, 32\)"):
        streamed([single("a", Checkpoint(llama, wrong))], tokens)
    tokenizer = load_tokenizer(llama)
    tokenizer.add_tokens(["strange"])
    foreign = Tokenised(("strange",), ((400,),), (0,))
    with pytest.raises(UserError, match=r"ref: token id 400 of sentence 'strange' lies beyond the model's 320"):
        streamed([single("a", Checkpoint(llama))], foreign, name="ref")
    with pytest.raises(UserError, match="no part of a weight other than 0"):
        streamed([Variant("none", (Part(0.0, llama),))], tokens)


def test_quantised_checkpoints_are_left_to_the_whole_model(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    folder = broken(folders["llama"][0], tmp_path / "q", lambda tensors: None)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    assert can_stream(folder) == "its weights are quantised"


def test_a_sharded_checkpoint_and_a_decoder_saved_alone_are_the_same_model(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    folder = folders["llama"][0]
    tokens = tokens_of(folder)
    expected = streamed([single("a", Checkpoint(folder))], tokens).embeddings["a"]["final"]
    model = load_base(folder, dtype=torch.float32)
    for name, options in (("alone", {}), ("sharded", {"max_shard_size": "40KB"})):
        model.save_pretrained(tmp_path / name, **options)
        for side in ("tokenizer.json", "tokenizer_config.json"):
            (tmp_path / name / side).write_bytes((folder / side).read_bytes())
        found = streamed([single("a", Checkpoint(tmp_path / name))], tokens).embeddings["a"]["final"]
        np.testing.assert_array_equal(found, expected)
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
