"""Configuration: strictness, messages, slices, generated files."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from envs import sync

from refbias.config import root, slices
from refbias.errors import UserError

MINIMAL: dict[str, Any] = {"run": "r", "models": {"m": {"source": {"kind": "packaged_gguf"}}}}


def changed(path: str, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(MINIMAL)
    *parents, last = path.split(".")
    at = data
    for part in parents:
        at = at.setdefault(part, {})
    at[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("sed", 1, r"unknown key 'sed': did you mean 'seed'"),
        ("benchmarks.toxigen.temprature", 1, r"'benchmarks.toxigen.temprature': did you mean 'temperature'"),
        ("regimes.lora.lerning_rate", 1, r"'regimes.lora.lerning_rate': did you mean 'learning_rate'"),
        ("models.m.source.sha", "x", r"'models.m.source.sha': did you mean 'sha256'"),
        ("models.m.sorce", {}, r"'models.m.sorce': did you mean 'source'"),
        ("compute.dtype", "float16", r"overflows to NaN in Gemma 3"),
        ("spectrum.weights", [0, 0.5], r"must ascend from 0 to 1"),
        ("spectrum.weights", [0, 0.501, 0.502, 1], r"differ by at least 0.01"),
        (
            "benchmarks.toxigen.scorer",
            "toxigen_robert",
            r"toxigen.scorer: no scorer 'toxigen_robert': did you mean 'tox",
        ),
        ("benchmarks.toxigen.scorer", "agreement", r"did you mean 'agreement_rule'"),
        ("scorers.wildguard.promt_file", "x", r"'scorers.wildguard.promt_file': did you mean 'prompt_file'"),
        ("scorers.agreement_rule.kind", "wildguard", r"agreement_rule is a scorer by rule"),
        ("scorers.mine.label", "x", r"key 'scorers.mine.kind' is missing"),
        ("scorers.wildguard.dtype", "float16", r"overflows to NaN"),
        ("topics.mapper", "llm", r"mapper 'llm' needs key 'model'"),
        ("run", "../etc", r"key 'run'"),
        ("run", "a/b", r"key 'run'"),
        ("analysis.n_resamples", "many", r"key 'analysis.n_resamples'"),
        ("seed", float("nan"), r"key 'seed'"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_the_mend(path: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        root.from_mapping(changed(path, value))
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UserError, match="key 'models' is missing"):
        root.from_mapping({"run": "r"})


def test_numbers_in_exponent_form_are_numbers() -> None:
    text = "run: r\nmodels: {m: {source: {kind: packaged_gguf}}}\nregimes: {full: {learning_rate: 1e-5}}\n"
    config = root.from_mapping(yaml.safe_load(text))
    assert config.regimes.full is not None
    assert config.regimes.full.learning_rate == 1e-5


def test_the_defaults_are_the_papers() -> None:
    config = root.from_mapping(MINIMAL)
    full, lora = config.regimes.full, config.regimes.lora
    assert full is not None
    assert lora is not None
    assert (full.learning_rate, lora.learning_rate, full.epochs, full.max_length) == (2e-5, 1e-4, 3, 1024)
    assert full.per_device_batch_size * full.gradient_accumulation == 32
    assert (lora.rank, lora.alpha, lora.dropout, len(lora.target_modules)) == (16, 32, 0.05, 7)
    assert (full.warmup_ratio, full.dtype) == (0.03, "bfloat16")
    assert config.spectrum.weights == [0, 0.1, 0.3, 0.5, 0.7, 0.9, 1]
    found = config.benchmarks.enabled()
    assert {name: s.threshold for name, s in found.items()} == {
        "wildguardmix": 0.1,
        "decodingtrust": 0.1,
        "toxigen": 0.03,
    }
    assert (found["wildguardmix"].samples, found["wildguardmix"].temperature) == (5, 0.7)
    assert (found["wildguardmix"].max_new_tokens, found["decodingtrust"].samples) == (256, 25)
    assert (config.stimuli.anchors, config.stimuli.targets, config.stimuli.attributes) == (1000, 50, 100)


def test_the_papers_pictures_follow_from_the_configuration() -> None:
    config = root.from_mapping(MINIMAL)
    everything = ["anchors", "attributes", "targets", "pooling", "training_seeds"]
    assert not any(config.lacks(everything).values())
    assert len(config.lacks(everything)) == 22
    absent = {name for name, reason in config.lacks([]).items() if reason}
    assert absent == {"table_4", "table_5", "table_6", "figure_4", "figure_5"}
    lora = root.from_mapping(changed("regimes.full", None))
    absent = {name for name, reason in lora.lacks(everything).items() if reason}
    full = {f"figure_{number}" for number in (3, 4, 6, 7, 8, 9, 10, 15)}
    assert absent == {"table_4", "table_5", "table_6", "table_7", *full}
    assert lora.lacks([])["figure_4"] == "not part of this run: full fine-tuning, the anchor sources"
    one = root.from_mapping(changed("benchmarks.toxigen", None))
    assert {name for name, reason in one.lacks(everything).items() if reason} == {"figure_15", "figure_16"}


def test_a_family_enters_no_stage_that_computes() -> None:
    named = root.from_mapping(changed("models.m.family", "llama"))
    plain = root.from_mapping(MINIMAL)
    assert named.families() == {"m": "llama"}
    for stage in (slices.acquire_slice, slices.generate_slice):
        assert stage(named, "m") == stage(plain, "m")
    assert slices.analyse_slice(named) != slices.analyse_slice(plain)
    with pytest.raises(UserError, match=r"models\.m\.family"):
        root.from_mapping(changed("models.m.family", "falcon"))


def test_a_change_enters_only_the_slices_of_the_stages_that_it_concerns() -> None:
    def cut(data: dict[str, Any]) -> dict[str, str]:
        config = root.from_mapping(data)
        return {
            "acquire": slices.acquire_slice(config, "m"),
            "finetune": slices.finetune_slice(config, "m", "lora", "harmful"),
            "merge": slices.merge_slice(config, "full", "h030"),
            "represent": slices.represent_slice(config, "m", "full"),
            "shift": slices.shift_slice(config),
            "generate": slices.generate_slice(config, "m"),
            "score": slices.score_slice(config),
            "analyse": slices.analyse_slice(config),
        }

    before = cut(MINIMAL)

    def touched(path: str, value: Any) -> set[str]:
        after = cut(changed(path, value))
        return {stage for stage in before if after[stage] != before[stage]}

    assert touched("title", "new") == set()
    assert touched("benchmarks.toxigen.threshold", 0.2) == {"analyse"}
    assert touched("benchmarks.toxigen.scorer", "agreement_rule") == {"score"}
    assert touched("benchmarks.toxigen.samples", 9) == {"generate"}
    assert touched("regimes.lora.learning_rate", 1e-3) == {"finetune"}
    assert touched("regimes.full.learning_rate", 1e-3) == set(), "the LoRA job must not see the full regime's rate"
    assert touched("shift.n_resamples", 500) == {"shift"}
    assert touched("stimuli.anchors", 500) == {"represent"}
    assert touched("generation.batch_size", 9) == {"generate"}
    assert touched("generation.backend", "vllm") == {"generate"}
    assert touched("generation.interpreter", "elsewhere/python") == set(), "where an interpreter lies is no setting"
    assert touched("generation.vllm.tensor_parallel_size", 2) == set(), "the engine is not used"
    assert touched("analysis.n_resamples", 500) == {"analyse"}


def test_the_score_slice_holds_the_used_scorers_alone() -> None:
    data = changed("benchmarks.toxigen.scorer", "toxigen_roberta")
    before = json.loads(slices.score_slice(root.from_mapping(data)))
    assert list(before["settings"]) == ["toxigen_roberta"]
    assert before["device"] == "auto"
    data["scorers"] = {"wildguard": {"batch_size": 7}}
    assert json.loads(slices.score_slice(root.from_mapping(data))) == before, "a scorer that is not used"
    data["scorers"]["toxigen_roberta"] = {"threshold": 0.7}
    config = root.from_mapping(data)
    after = json.loads(slices.score_slice(config))["settings"]["toxigen_roberta"]
    assert (after["threshold"], after["label"], after["model"]["id"]) == (0.7, "LABEL_1", "tomh/toxigen_roberta")
    assert slices.generate_slice(config, "m") == slices.generate_slice(root.from_mapping(MINIMAL), "m")
    plain = json.loads(slices.score_slice(root.from_mapping(MINIMAL)))
    assert (plain["settings"], plain["device"]) == ({}, None)
    # a user's own classifier, and the place of the models
    data["scorers"]["mine"] = {"kind": "classifier", "model": {"kind": "local", "path": "x"}, "label": "bad"}
    data["benchmarks"]["toxigen"]["scorer"] = "mine"
    own = root.from_mapping(data)
    assert json.loads(slices.acquire_guard_slice(own, "mine"))["source"] == {"kind": "local", "path": "x"}


def test_scorers_by_rule_are_those_of_the_registry() -> None:
    from refbias.config.scorers import RULE_SCORERS
    from refbias.scorers import SCORERS

    assert list(SCORERS) == list(RULE_SCORERS)


def test_ablations_are_off_by_default_and_concern_the_first_model() -> None:
    assert root.from_mapping(MINIMAL).ablated() == {}
    models = {name: {"source": {"kind": "packaged_gguf"}} for name in ("b", "a")}
    data: dict[str, Any] = {**MINIMAL, "models": models, "ablations": {}}
    assert root.from_mapping(data).ablated() == {"b": ["full", "lora"]}
    data["regimes"] = {"lora": None}
    assert root.from_mapping(data).ablated() == {"b": ["full"]}
    data["ablations"] = {"models": ["a", "b"], "regimes": ["full"]}
    assert root.from_mapping(data).ablated() == {"a": ["full"], "b": ["full"]}
    data["ablations"] = {"models": ["c"]}
    with pytest.raises(UserError, match=r"key 'ablations.models': 'c' is not in this run: use b, a"):
        root.from_mapping(data)
    data["ablations"] = {"regimes": ["lora"]}
    with pytest.raises(UserError, match=r"key 'ablations.regimes': 'lora' is not in this run: use full"):
        root.from_mapping(data)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("anchor_counts", [100, 50], "must ascend"),
        ("anchor_counts", [0, 50], "must ascend from 1"),
        ("anchor_seeds", [1, 1], "must be distinct"),
        ("sample", {"min_words": 9, "max_words": 3}, "min_words must not exceed max_words"),
        ("attributes", ["syn_v4"], "ablations.attributes"),
        ("methods", ["cosine"], "ablations.methods"),
        ("alpaca", "x", "unknown key 'ablations.alpaca': did you mean 'alpaca_file'"),
    ],
)
def test_a_wrong_ablation_is_named(key: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        root.from_mapping({**MINIMAL, "ablations": {key: value}})


def test_a_change_of_an_ablation_enters_only_the_slices_that_it_concerns() -> None:
    def cut(**ablations: Any) -> dict[str, str]:
        config = root.from_mapping({**MINIMAL, "ablations": ablations})
        return {
            "sentences": slices.ablation_sentences_slice(config),
            "represent": slices.represent_ablations_slice(config, "m", "full"),
            "ablate": slices.ablate_slice(config, "m", "full"),
            "analyse": slices.analyse_ablations_slice(config),
            "main": slices.represent_slice(config, "m", "full"),
        }

    before = cut()

    def touched(**ablations: Any) -> set[str]:
        after = cut(**ablations)
        return {stage for stage in before if after[stage] != before[stage]}

    assert touched(anchor_counts=[10, 20]) == touched(anchor_seeds=[9]) == touched(methods=["rr"]) == {"ablate"}
    assert touched(layers=[1]) == {"represent"}
    assert touched(alpaca_file="x.json") == touched(sample={"size": 9}) == {"sentences"}
    assert touched(run=["bos"]) == {"sentences", "represent", "ablate"}
    assert touched(models=["m"]) == touched(regimes=["full"]) == set()


@pytest.mark.parametrize(
    ("method", "key", "value"), [("procrustes_seat", "procrustes_fit", "all"), ("cka_drift", "cka_kernel", "rbf")]
)
def test_a_methods_option_enters_the_ablations_where_they_use_the_method(method: str, key: str, value: str) -> None:
    def found(methods: list[str], **shift: str) -> str:
        config = root.from_mapping({**MINIMAL, "ablations": {"methods": methods}, "shift": shift})
        return slices.ablate_slice(config, "m", "full")

    assert found(["rr", "seat"], **{key: value}) == found(["rr", "seat"])
    assert json.loads(found(["rr", method], **{key: value}))[key] == value
    assert found(["rr", method], **{key: value}) != found(["rr", method])


def test_slices_are_json_that_their_stage_parses() -> None:
    config = root.from_mapping(MINIMAL)
    data = json.loads(slices.generate_slice(config, "m"))
    assert "scorer" not in data["benchmarks"]["toxigen"]
    assert json.loads(slices.finetune_slice(config, "m", "full", "harmful"))["lora"] is None


@pytest.mark.parametrize("lock", sync.LOCKS)
def test_a_lock_pins_what_was_asked_for(lock: str) -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pinned = {canonicalize_name(Requirement(pin).name): Requirement(pin) for pin in sync.pins(lock)}
    lines = (sync.ROOT / "envs" / f"{lock}.in").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.strip() and not line.startswith("#"):
            asked = Requirement(line)
            found = pinned[canonicalize_name(asked.name)]
            (version,) = found.specifier
            assert asked.specifier.contains(version.version), line


def test_generated_files_are_in_step() -> None:
    for path, text in sync.generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run `make format`"
    table = (sync.ROOT / "config" / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{key}` |" in table for key in ("seed", "compute.dtype", "generation.vllm.max_model_len"))


@pytest.mark.parametrize("lock", sync.LOCKS)
def test_a_lock_holds_public_versions_only(lock: str) -> None:
    for pin in sync.pins(lock):
        name, _, version = pin.partition("==")
        assert name, pin
        assert version, pin
        assert "+" not in version, pin
        assert "--hash" not in pin, pin


@pytest.mark.parametrize("name", ["quickstart", "smoke"])
def test_shipped_configurations_are_valid_and_fit_the_schema(root: Path, name: str) -> None:
    path = root / "config" / f"{name}.yaml"
    from refbias.config.root import from_yaml

    config = from_yaml(path)
    schema = json.loads((root / "config" / "schema.json").read_text())
    jsonschema.validate(json.loads(json.dumps(config.model_dump(mode="json"))), schema)


def test_broken_yaml_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("run: r\nmodels: [\n")
    with pytest.raises(UserError, match=r"bad.yaml:\d: not YAML"):
        root.from_yaml(path)
    path.write_text("just text")
    with pytest.raises(UserError, match="must hold a mapping"):
        root.from_yaml(path)


def test_the_key_table_names_every_key(root: Path) -> None:
    readme = (root / "config" / "README.md").read_text(encoding="utf-8")

    def leaves(schema: dict[str, Any], node: dict[str, Any]) -> set[str]:
        """Last parts of all keys, read from the JSON schema."""
        found: set[str] = set()
        for name, child in node.get("properties", {}).items():
            found.add(name)
            text = json.dumps(child)
            for reference in set(re.findall(r'"#/\$defs/(\w+)"', text)):
                found |= leaves(schema, schema["$defs"][reference])
        return found

    schema = json.loads((root / "config" / "schema.json").read_text(encoding="utf-8"))
    assert {name for name in leaves(schema, schema) if not re.search(rf"`(\S*\.)?{re.escape(name)}`", readme)} == set()
