"""The section `metamorphic`: messages, defaults, and which change of it reruns which stage."""

import json
from pathlib import Path
from typing import Any

import pytest

from refbias.config import slices
from refbias.config.base import parse_json
from refbias.config.finetune import FinetuneStage, FullRegime, LoraRegime
from refbias.config.metamorphic import AskStage, LabelStage, SampleStage
from refbias.config.root import Config, from_mapping, from_yaml
from refbias.errors import UserError

ENDPOINT = {"base_url": "http://127.0.0.1:9/v1", "model": "x"}
JUDGE = {"base_url": "http://127.0.0.1:9/v1", "model": "y"}


def config(lens: dict[str, Any] | None = None, **top: Any) -> Config:
    base = {"run": "r", "models": {"m": {"source": {"kind": "packaged_gguf"}}}, **top}
    return from_mapping({**base, "metamorphic": lens or {}})


def test_the_defaults_are_the_full_scale() -> None:
    lens = config().metamorphic
    assert (lens.per_category, lens.relations, lens.poles) == (55, [f"MR{n}" for n in range(1, 7)], ["negative"])
    assert (lens.reading, lens.subjects, lens.judge.which, lens.few_shot) == ("generate", "reference", "none", 4)
    assert lens.mitigation is not None
    assert (lens.mitigation.hold_out, lens.mitigation.regime) == ("MR4", "full")
    assert lens.mitigation.finetune.learning_rate == 2e-5


@pytest.mark.parametrize(
    ("lens", "message"),
    [
        ({"relation": []}, r"'metamorphic.relation': did you mean 'relations'"),
        ({"relations": ["MR9"]}, r"'metamorphic.relations.0': .*MR9"),
        ({"relations": ["MR1", "MR1"]}, r"relations': MR1 stands twice"),
        ({"relations": []}, r"'metamorphic.relations'"),
        ({"relations": ["MR1"]}, r"mitigation.hold_out: MR4 is none of the relations: use one of MR1"),
        ({"groups_file": "g.csv"}, r"BiasAsker copy needs both"),
        ({"models": ["n"]}, r"'metamorphic.models': 'n' is not in this run: use m"),
        ({"endpoints": {"m": ENDPOINT}}, r"'metamorphic.endpoints': 'm' is a model of the run"),
        ({"judge": {"which": "unsure"}}, r"judge': which 'unsure' needs one of `directory` and `endpoint`"),
        ({"judge": {"which": "all", "directory": "d", "endpoint": JUDGE}}, r"needs one of"),
        ({"judge": {"directory": "d"}}, r"`directory` is given: set `which`"),
        (
            {"endpoints": {"a": ENDPOINT}, "judge": {"which": "all", "endpoint": ENDPOINT}},
            r"judge.endpoint: x is the model under test 'a'",
        ),
        ({"endpoints": {"a": {**ENDPOINT, "key_env": "sk-1234"}}}, r"'metamorphic.endpoints.a.key_env'"),
        ({"endpoints": {"a": {**ENDPOINT, "key": "sk"}}}, r"'metamorphic.endpoints.a.key': did you mean 'key_env'"),
        ({"endpoints": {"a": {**ENDPOINT, "base_url": "ftp://x"}}}, r"base_url"),
        ({"few_shot": 9}, r"few_shot"),
    ],
)
def test_a_mistake_is_named_with_the_mend(lens: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        config(lens)
    assert "\n" not in str(caught.value)


def test_a_run_may_ask_interfaces_alone() -> None:
    alone = from_mapping({"run": "r", "models": {}, "metamorphic": {"endpoints": {"a": ENDPOINT}}})
    assert alone.metamorphic_models() == []
    with pytest.raises(UserError, match="'models': name at least one"):
        from_mapping({"run": "r", "models": {}, "metamorphic": {}})


def slice_texts(chosen: Config) -> dict[str, str]:
    found = {
        "sample": slices.metamorphic_sample_slice(chosen),
        "label": slices.metamorphic_label_slice(chosen, "m", "plain"),
    }
    for asked in ("plain", "few_shot", "plain/neutral", "plain/open"):
        found[asked] = slices.metamorphic_ask_slice(chosen, "m", asked)
    found["label_open"] = slices.metamorphic_label_slice(chosen, "m", "plain/open")
    found["mitigate"] = slices.mitigate_slice(chosen, "m", "train.jsonl")
    return found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"per_category": 9}, {"sample"}),
        ({"few_shot": 2}, {"few_shot"}),
        ({"max_new_tokens": 9}, set()),
        ({"reading": "generate", "max_new_tokens": 9}, {"plain", "few_shot", "label"}),
        ({"forced_choice": {"options": "text"}}, {"plain", "few_shot"}),
        ({"forced_choice": {"min_margin": 0.5}}, {"label", "label_open"}),
        ({"n_resamples": 500}, {"label", "label_open"}),
        ({"mitigation": {"finetune": {"epochs": 1}}}, {"mitigate"}),
        ({"mitigation": {"neutral_tokens": 9}}, {"plain/neutral", "plain/open"}),
        ({"mitigation": {"open_questions": 9}}, {"plain/open", "label_open"}),
        ({"subjects": "spectra"}, set()),
        ({"judge": {"which": "unsure", "endpoint": JUDGE}}, {"label", "label_open"}),
    ],
)
def test_a_change_reaches_the_stages_that_it_concerns(change: dict[str, Any], expected: set[str]) -> None:
    base = {"reading": "forced_choice"}
    before, after = slice_texts(config(base)), slice_texts(config({**base, **change}))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == expected


def test_patience_budget_and_names_of_variables_rerun_nothing() -> None:
    def texts(endpoint: dict[str, Any], judge: dict[str, Any]) -> list[str]:
        chosen = config({"endpoints": {"a": endpoint}, "judge": {"which": "unsure", "endpoint": judge}})
        return [
            slices.metamorphic_ask_slice(chosen, "a", "plain"),
            slices.metamorphic_label_slice(chosen, "a", "plain"),
        ]

    patient = {"max_requests": 5, "max_tokens": 9, "concurrency": 9, "key_env": "K", "max_retries": 1, "timeout_s": 3}
    assert texts(ENDPOINT, JUDGE) == texts({**ENDPOINT, **patient}, {**JUDGE, **patient})
    assert texts(ENDPOINT, JUDGE) != texts({**ENDPOINT, "model": "z"}, {**JUDGE, "model": "w"})


def test_an_interface_is_always_read_by_its_words() -> None:
    chosen = config({"endpoints": {"a": ENDPOINT}, "reading": "forced_choice"})
    stage = parse_json(AskStage, slices.metamorphic_ask_slice(chosen, "a", "few_shot"), "slice")
    assert (stage.reading, stage.few_shot, stage.compute, stage.generation) == ("generate", 4, None, None)
    assert stage.endpoint is not None
    assert parse_json(LabelStage, slices.metamorphic_label_slice(chosen, "a", "plain"), "slice").reading == "generate"


def test_the_mitigations_hyperparameters_are_the_runs_with_its_own() -> None:
    regimes = {"full": {"learning_rate": 1e-3, "per_device_batch_size": 7, "dtype": "float32"}, "lora": None}
    lens = {"mitigation": {"finetune": {"epochs": 2, "learning_rate": None}}}
    stage = parse_json(FinetuneStage, slices.mitigate_slice(config(lens, regimes=regimes), "m", "f"), "slice")
    assert isinstance(stage.full, FullRegime)
    assert (stage.full.learning_rate, stage.full.per_device_batch_size, stage.full.epochs) == (1e-3, 7, 2)
    assert (stage.split, stage.file, stage.lora) == ("unharmful", "f", None)
    lora = config({"mitigation": {"regime": "lora", "finetune": {"learning_rate": 1e-4}}}, regimes=regimes)
    stage = parse_json(FinetuneStage, slices.mitigate_slice(lora, "m", "f"), "slice")
    # the run trains none: the regime's defaults
    assert isinstance(stage.lora, LoraRegime)
    assert (stage.lora.learning_rate, stage.lora.rank) == (1e-4, 16)


@pytest.mark.parametrize("name", ["quickstart", "paper"])
def test_the_shipped_configurations(root: Path, name: str) -> None:
    chosen = from_yaml(root / "config" / f"{name}.yaml")
    sample = parse_json(SampleStage, slices.metamorphic_sample_slice(chosen), "slice")
    assert sample.per_category == {"quickstart": 10, "paper": 55}[name]
    assert len(sample.relations) == 6
    for model in chosen.models:
        stage = json.loads(slices.metamorphic_ask_slice(chosen, model, "plain"))
        assert stage["reading"] == {"quickstart": "forced_choice", "paper": "generate"}[name]
