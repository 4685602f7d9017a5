"""Any configuration is read, or told in one line what to mend."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refbias.config.audit import AuditSettings
from refbias.config.base import parse, parse_json, read_yaml
from refbias.config.root import Config, from_mapping
from refbias.config.stimuli import StimuliSettings
from tests.fuzzing import MANY, places, result_or_line, trees


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


@MANY
@given(data=st.data())
def test_one_changed_place_in_a_good_configuration(quickstart: dict[str, Any], data: st.DataObject) -> None:
    tree = copy.deepcopy(quickstart)
    place = data.draw(st.sampled_from([place for place in places(tree) if place]))
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
