"""Any checkpoint, and any name of one, is loaded, or told in one line what to mend."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refbias.acquisition import hub
from refbias.audit.embed import architecture
from refbias.audit.sources import resolve_audited, resolve_reference
from refbias.errors import UserError
from refbias.models import load_base
from refbias.stream import can_stream
from tests.audit_models import adapter
from tests.fuzzing import FEW, MANY, edited, edits, places, result_or_line
from tests.tiny import build_tiny


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole checkpoint, whose files are put in place of what was written over them."""
    return build_tiny("gemma3_text", tmp_path_factory.mktemp("checkpoint") / "whole")


@pytest.fixture(scope="module")
def spoiled(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path_factory.mktemp("spoiled") / "folder"))


def _loaded(folder: Path) -> None:
    import torch

    architecture(folder)
    can_stream(folder)
    load_base(folder, dtype=torch.float32)


SIZES = [0, -1, 1, 2, 4, 7, 33, 1 << 16, 5_000_000, 1 << 31, 1 << 40, 1 << 62, 10**30, 1e9, 1e300, True, "3", None]
NUMBERS_OF_LOADERS = settings(MANY, max_examples=40)


@NUMBERS_OF_LOADERS
@given(data=st.data())
def test_any_size_in_a_configuration_is_loaded_or_a_line(checkpoint: Path, spoiled: Path, data: st.DataObject) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    sizes = sorted(key for key, value in config.items() if type(value) is int)
    assert {"num_hidden_layers", "head_dim", "hidden_size", "vocab_size"} <= set(sizes)
    keys = data.draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=2, unique=True))
    changes = {key: data.draw(st.sampled_from(SIZES)) for key in keys}
    # the kinds of layers are as many as the layers: without them the number alone is left to be believed
    if data.draw(st.booleans()):
        config["layer_types"] = None
    (spoiled / "config.json").write_text(json.dumps({**config, **changes}))
    result_or_line(lambda: _loaded(spoiled))


@NUMBERS_OF_LOADERS
@given(data=st.data())
def test_any_place_in_a_configuration_is_loaded_or_a_line(checkpoint: Path, spoiled: Path, data: st.DataObject) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    place = data.draw(st.sampled_from([place for place in places(config) if place]))
    part = config
    for key in place[:-1]:
        part = part[key]
    values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]))
    part[place[-1]] = data.draw(st.one_of(values, st.sampled_from(SIZES)))
    (spoiled / "config.json").write_text(json.dumps(config))
    result_or_line(lambda: _loaded(spoiled))


@FEW
@given(changes=edits)
def test_an_edited_checkpoint_is_loaded_or_a_line(
    checkpoint: Path, spoiled: Path, changes: list[tuple[float, bytes]]
) -> None:
    shutil.copyfile(checkpoint / "config.json", spoiled / "config.json")
    content = (checkpoint / "model.safetensors").read_bytes()
    # the header is a small part of the file, and all that lies in it
    size = 8 + int.from_bytes(content[:8], "little")
    (spoiled / "model.safetensors").write_bytes(edited(content[:size], changes)[:size] + content[size:])
    try:
        result_or_line(lambda: _loaded(spoiled))
    finally:
        shutil.copyfile(checkpoint / "model.safetensors", spoiled / "model.safetensors")


NAMES = ["{base}", "{lora}", "checkpoint-1", "owner/name", "org/a--b", "org/model..v2", "~nobody-here/x", "~", "."]
NAMES += ["packaged:x", "\x00", "a\x00b", "a\nb", "\ud800", "\u2028", "x" * 300, "x/" * 3000, "o/" + "n" * 200]
NAMES += ["..@../..", "org/name@../../x"]
PIECES = [*NAMES, "0.5*", "+", "-", "@", "@main", "@../../x", "/", "*", "1e999*", "0.3*{base}+0.7*", " "]


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take everything of the hub from an empty cache."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("name", NAMES)
def test_each_strange_name_is_a_model_or_a_line(
    checkpoint: Path, tmp_path: Path, no_hub: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _resolved(checkpoint, tmp_path, monkeypatch, [name])


@MANY
@given(pieces=st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=4))
def test_any_specification_is_a_model_or_a_line(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, pieces: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        from huggingface_hub import constants

        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        _resolved(checkpoint, tmp_path_factory.mktemp("here"), patch, pieces)


def _resolved(checkpoint: Path, folder: Path, patch: pytest.MonkeyPatch, pieces: list[str]) -> None:
    patch.setenv("REFBIAS_CACHE", str(folder / "cache"))
    patch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    patch.chdir(folder)
    lora = adapter(checkpoint, folder / "lora", named=str(checkpoint))
    spec = "".join(pieces).replace("{base}", str(checkpoint)).replace("{lora}", str(lora))
    reference = resolve_reference(str(checkpoint), "float32")
    found = result_or_line(lambda: resolve_audited(spec, reference, "float32"))
    assert found is None or all(source.parts for source in found)
    result_or_line(lambda: resolve_reference(spec, "float32"))
    # nothing was written but into the caches
    assert {path.name for path in folder.iterdir()} <= {"lora", "cache", "hub"}


@pytest.mark.parametrize("name", ["org/a--b", "org/model..v2", "a/b/c", "-a/b", "a/" + "b" * 200, "\x00"])
def test_what_is_no_id_of_the_hub_is_a_line(name: str, no_hub: None, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repo = hub.Repo(name, "main")
    with pytest.raises(UserError, match="no id of the hub") as refused:
        hub.snapshot(repo, ["*"])
    assert "\n" not in str(refused.value)
    assert hub.cached_file(repo, "config.json") is None
    assert hub.look(repo, "config.json", 1.0).problem is not None
