"""Whatever a user's file holds, a loader returns a result or raises one line that says what to mend."""

import copy
import csv
import datetime
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from refbias.acquisition import hub
from refbias.analysis import observations, unit_groups, unit_scores
from refbias.analysis.controls import Selection, with_control
from refbias.audit.embed import architecture
from refbias.audit.sources import resolve_audited, resolve_reference
from refbias.cli.analyse import read_table
from refbias.cli.study import read_manifests, read_observations, read_shift
from refbias.config.audit import AuditSettings
from refbias.config.base import parse, parse_json, read_yaml
from refbias.config.root import Config, from_mapping
from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError
from refbias.models import load_base
from refbias.models.gguf_file import check_gguf, dequantise
from refbias.stream import can_stream
from tests.audit_models import adapter
from tests.limits import bounded
from tests.tiny import build_tiny

# what a loader may take at most: seconds of the processor, libraries imported within; and by the clock, on a machine
# that does other things too
SECONDS = 60
MEMORY_MB = 4000
DEADLINE = datetime.timedelta(minutes=5)
MANY = settings(max_examples=60, deadline=DEADLINE, suppress_health_check=list(HealthCheck))
FEW = settings(max_examples=12, deadline=DEADLINE, suppress_health_check=list(HealthCheck))

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**30),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "0", "-1", "NaN", "auto", "full", "float16", "../x", "a\nb", "\x00", "\ud800", "1e999"]),
    st.binary(max_size=4),
    st.dates(),
)


def trees(keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What YAML can hold: scalars, lists and mappings, whose keys need not be text."""
    return st.recursive(
        scalars,
        lambda part: st.one_of(
            st.lists(part, max_size=3),
            st.dictionaries(st.one_of(keys, st.text(max_size=4), st.integers(), st.none()), part, max_size=4),
        ),
        max_leaves=8,
    )


def result_or_line(work: Callable[[], Any]) -> Any:
    """Return the result, or None after a mistake that is told in one line; either within the bounds."""
    try:
        with bounded(SECONDS, MEMORY_MB):
            return work()
    except UserError as error:
        told = str(error)
    assert told.strip()
    assert "\n" not in told
    return None


# --- configurations ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quickstart(root: Path) -> dict[str, Any]:
    """The shipped configuration as YAML holds it."""
    found = read_yaml(root / "config" / "quickstart.yaml")
    assert isinstance(found, dict)
    return found


FIELDS = st.sampled_from(sorted(Config.model_fields))
AUDIT_FIELDS = st.sampled_from(sorted(AuditSettings.model_fields))


@MANY
@given(data=trees(FIELDS))
def test_any_tree_is_a_configuration_or_a_line(data: Any) -> None:
    found = result_or_line(lambda: from_mapping(data))
    assert found is None or isinstance(found, Config)


@MANY
@given(data=trees(AUDIT_FIELDS))
def test_any_tree_is_an_audit_or_a_line(data: Any) -> None:
    result_or_line(lambda: parse(AuditSettings, {"reference": "a", "audited": ["b"], "stimuli": data}, "audit"))
    result_or_line(lambda: parse(AuditSettings, data, "audit"))


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, part in below for place in _places(part, (*path, key)))]


@MANY
@given(data=st.data())
def test_one_changed_place_in_a_good_configuration(quickstart: dict[str, Any], data: st.DataObject) -> None:
    tree = copy.deepcopy(quickstart)
    place = data.draw(st.sampled_from([place for place in _places(tree) if place]))
    part = tree
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = data.draw(trees(FIELDS))
    found = result_or_line(lambda: from_mapping(tree))
    assert found is None or isinstance(found, Config)


YAML_PIECES = ["a", ": ", "- ", "\n", "  ", "[", "{", "}", "&x", "*x", "!!int", "!!timestamp", "!!bool", "? ", "|", "'"]
YAML_PIECES += ["2021-13-45", "<<: ", "!!python/object:os.system", "#", "\t", "%YAML", "9" * 5000, "[" * 1200]


@MANY
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.lists(st.sampled_from(YAML_PIECES), max_size=12).map(lambda parts: "".join(parts).encode()),
    )
)
@example(content=b"!!int")
@example(content=b'!!float "_"')
def test_any_bytes_are_yaml_or_a_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(content)
    result_or_line(lambda: from_mapping(read_yaml(path)))


@pytest.mark.parametrize("text", ["[" * 100000, "9" * 5000, '{"a": ' * 50000, '{"a": 1e999}', "NaN", '"\\ud800"'])
def test_hostile_json_of_a_stage_is_a_line(text: str) -> None:
    assert result_or_line(lambda: parse_json(StimuliSettings, text, "--settings")) is None


# --- GGUF -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file that names an architecture and holds values of every kind."""
    from gguf import GGUFWriter

    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(4)
    writer.add_block_count(1)
    writer.add_feed_forward_length(4)
    writer.add_head_count(1)
    writer.add_vocab_size(3)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_merges(["a b"])
    writer.add_add_bos_token(True)
    writer.add_tensor("token_embd.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("output_norm.weight", np.ones(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


edits = st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4)


def _edited(content: bytes, changes: list[tuple[float, bytes]]) -> bytes:
    found = bytearray(content)
    for share, new in changes:
        at = int(share * max(0, len(found) - 1))
        found[at : at + len(new)] = new
    return bytes(found)


@MANY
@given(content=st.binary(max_size=120).map(lambda rest: b"GGUF\x03\x00\x00\x00" + rest))
def test_any_gguf_header_is_read_or_a_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    path.write_bytes(content)
    result_or_line(lambda: check_gguf(path))


@MANY
@given(changes=edits)
def test_an_edited_gguf_file_is_read_or_a_line(
    tmp_path_factory: pytest.TempPathFactory, gguf_bytes: bytes, changes: list[tuple[float, bytes]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "edited.gguf"
    path.write_bytes(_edited(gguf_bytes, changes))
    result_or_line(lambda: check_gguf(path))


@FEW
@given(changes=st.one_of(st.just([]), edits))
def test_what_passes_the_check_is_dequantised_or_a_line(
    tmp_path_factory: pytest.TempPathFactory, gguf_bytes: bytes, changes: list[tuple[float, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("dequantise")
    path = folder / "model.gguf"
    path.write_bytes(_edited(gguf_bytes, changes))
    (folder / "out").mkdir()

    def read() -> None:
        check_gguf(path)
        dequantise(path, folder / "out", "float32")

    result_or_line(read)


# --- checkpoints ------------------------------------------------------------------------------------


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
    place = data.draw(st.sampled_from([place for place in _places(config) if place]))
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
    (spoiled / "model.safetensors").write_bytes(_edited(content[:size], changes)[:size] + content[size:])
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


# --- observations -----------------------------------------------------------------------------------

CELLS = ["", "x", "NaN", "inf", "-1e999", "1", "0.5", "h010", "h999", "reference", "control", "é", '"', "a,b", "9" * 40]
Table = list[dict[str, str]]


def _csv(rows: Table) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn, rows: Table) -> bytes:
    """A good table with cells replaced, columns renamed, rows repeated or lost, or bytes written over."""
    rows = [dict(row) for row in rows]
    for _ in range(draw(st.integers(0, 3))):
        at, column = draw(st.integers(0, len(rows) - 1)), draw(st.sampled_from(list(rows[0])))
        rows[at][column] = draw(st.one_of(st.sampled_from(CELLS), st.text(max_size=5)))
    kind = draw(st.sampled_from(["cells", "repeat", "lose", "column", "bytes", "noise"]))
    if kind == "repeat":
        rows.append(rows[draw(st.integers(0, len(rows) - 1))])
    elif kind == "lose":
        del rows[draw(st.integers(0, len(rows) - 2))]
    elif kind == "column":
        column, name = draw(st.sampled_from(list(rows[0]))), draw(st.sampled_from(["x", "unit", "model"]))
        rows = [{name if key == column else key: value for key, value in row.items()} for row in rows]
    elif kind == "noise":
        return draw(st.binary(max_size=80))
    content = _csv(rows)
    return _edited(content, draw(edits)) if kind == "bytes" else content


GROUPS: Table = [
    {"id": name, "topic": topic, "toxigen": toxigen}
    for name, topic, toxigen in (("a", "t1", "x"), ("b", "t1", ""), ("c", "t2", "y"))
]
SUBJECTS = [("reference", "reference"), ("full", "h000"), ("full", "h100")]
OUTPUTS: Table = [
    {
        **{"benchmark": "decodingtrust", "model": "m", "regime": regime, "checkpoint": checkpoint, "unit": unit},
        **{"prompt_id": str(prompt), "sample": "0", "scorer": "s", "score": str((prompt + number) % 2)},
    }
    for number, (regime, checkpoint) in enumerate(SUBJECTS)
    for unit in ("a", "b")
    for prompt in range(2)
]
SHIFTS: Table = [
    {
        **{"model": "m", "regime": "full", "checkpoint": checkpoint, "group": group, "method": "rr"},
        **{"n_anchors": "250", "delta_b": f"{-0.01 * number}"},
    }
    for number, (checkpoint, group) in enumerate(
        (checkpoint, group) for checkpoint in ("h000", "h100") for group in ("a", "b", "c", "control")
    )
]
PAIRS: Table = [
    {
        **{"benchmark": "decodingtrust", "model": "m", "regime": "full", "checkpoint": checkpoint, "unit": unit},
        **{"method": "rr", "n_outputs": "2", "scorer": "s", "delta_score": "0.5", "delta_b": "-0.1"},
    }
    for checkpoint in ("h000", "h100")
    for unit in ("a", "b")
]


def _written(factory: pytest.TempPathFactory, name: str, content: bytes) -> Path:
    path = factory.getbasetemp() / name
    path.write_bytes(content)
    return path


def _analyse(groups: Path, outputs: Path, shifts: Path) -> int:
    pairing = unit_groups(read_table(groups))
    units = unit_scores(read_table(outputs), 10, 1)
    return len(observations(units, read_table(shifts), pairing))


def test_the_good_tables_are_analysed(tmp_path_factory: pytest.TempPathFactory) -> None:
    files = [
        _written(tmp_path_factory, name, _csv(rows))
        for name, rows in (("g.csv", GROUPS), ("o.csv", OUTPUTS), ("s.csv", SHIFTS))
    ]
    assert _analyse(*files) == 4
    pairs = _written(tmp_path_factory, "p.csv", _csv(PAIRS))
    assert with_control(read_observations(pairs), Selection(), read_shift(files[2])).data.delta_b.size == 4


@pytest.mark.parametrize("which", ["groups", "outputs", "shifts"])
@MANY
@given(data=st.data())
def test_damaged_tables_are_analysed_or_a_line(
    tmp_path_factory: pytest.TempPathFactory, which: str, data: st.DataObject
) -> None:
    tables = {"groups": GROUPS, "outputs": OUTPUTS, "shifts": SHIFTS}
    contents = {name: data.draw(damaged(rows)) if name == which else _csv(rows) for name, rows in tables.items()}
    files = [_written(tmp_path_factory, f"{name}.csv", content) for name, content in contents.items()]
    result_or_line(lambda: _analyse(*files))


@pytest.mark.parametrize("which", ["pairs", "shifts"])
@MANY
@given(data=st.data())
def test_damaged_observations_are_used_or_a_line(
    tmp_path_factory: pytest.TempPathFactory, which: str, data: st.DataObject
) -> None:
    contents = {
        name: data.draw(damaged(rows)) if name == which else _csv(rows)
        for name, rows in (("pairs", PAIRS), ("shifts", SHIFTS))
    }
    pairs, shifts = (_written(tmp_path_factory, f"{name}.csv", content) for name, content in contents.items())

    def load() -> None:
        found = with_control(read_observations(pairs), Selection(), read_shift(shifts)).data
        assert np.isfinite(found.delta_b).all()
        assert np.isfinite(found.control).all()

    result_or_line(load)


@MANY
@given(content=st.one_of(st.binary(max_size=40), trees(st.just("represent/m/full")).map(repr).map(str.encode)))
def test_any_manifests_are_read_or_a_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = _written(tmp_path_factory, "manifests.json", content)
    found = result_or_line(lambda: read_manifests(path))
    assert found is None or json.dumps(found)
