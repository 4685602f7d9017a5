"""The stages that run a model, one after the other on tiny checkpoints, and what their files hold."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refbias.benchmarks.base import Sampling
from refbias.cli.competence_answer import answer
from refbias.cli.competence_axis import axis
from refbias.cli.competence_hire import hire
from refbias.cli.competence_represent import represent
from refbias.cli.competence_steer import both_ways, steer
from refbias.competence.direction import read_direction
from refbias.competence.results import (
    BEHAVIOUR_COLUMNS,
    HIRING_COLUMNS,
    RANDOM_COLUMNS,
    SCORE_COLUMNS,
    STEERING_COLUMNS,
    read_table,
)
from refbias.config import slices
from refbias.config.root import Config, from_mapping
from refbias.errors import UserError
from tests.tiny import build_tiny

CONFIG = {
    "run": "tiny",
    "models": {"tiny": {"source": {"kind": "local", "path": "models/tiny"}, "chat_format": "plain"}},
    "compute": {"device": "cpu", "dtype": "float32"},
    "stimuli": {"targets": 2, "attributes": 8, "anchors": 30, "control": 2},
    "benchmarks": {"wildguardmix": None, "decodingtrust": None},
    "competence": {
        "occupations": 2,
        "questions": 2,
        "answer": {"samples": 1, "max_new_tokens": 12, "without_occupation": False},
        "steering": {
            "alphas": [-0.5, 0.5],
            "perplexity_limit": 50,
            "perplexity_sentences": 6,
            "questions": 1,
            "max_new_tokens": 8,
            "n_random": 2,
        },
        "hiring": {"names": 1, "max_new_tokens": 2},
        "axis": {"alphas": [0.5], "perplexity_limit": 50, "prompts_per_unit": 1, "samples": 1, "max_new_tokens": 4},
    },
}


def _checkpoint(folder: Path, seed: int) -> Path:
    from transformers import AutoTokenizer

    build_tiny("llama", folder, seed=seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # the hiring task needs both answers as tokens
    tokenizer.add_tokens(["Yes", "No"])
    assert len(tokenizer) <= 320
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def config() -> Config:
    return from_mapping(CONFIG)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: _checkpoint(folder / name, seed) for seed, name in enumerate(("reference", "unharmful", "harmful"))}


@pytest.fixture(scope="module")
def results(config: Config, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything about the reference, and the direction of a point between the endpoints."""
    folder = tmp_path_factory.mktemp("competence")
    own = ["--reference", str(models["reference"]), "--output", str(folder / "reference")]
    represent(["--settings", slices.competence_represent_slice(config, "tiny", "reference"), *own])
    steer(["--settings", slices.competence_steer_slice(config, "tiny", "reference"), *own])
    answer(["--settings", slices.competence_answer_slice(config, "tiny", "reference"), *own])
    hire_options = ["--steering-of", str(folder / "reference")]
    hire(["--settings", slices.competence_hire_slice(config, "tiny", "reference"), *own, *hire_options])
    axis(["--settings", slices.competence_axis_slice(config, "tiny"), *own])
    ends = [part for end in ("unharmful", "harmful") for part in (f"--{end}", str(models[end]))]
    merged = ["--reference", str(models["reference"]), *ends, "--output", str(folder / "full-h030")]
    settings = slices.competence_represent_slice(config, "tiny", "full-h030")
    represent(["--settings", settings, *merged, "--direction-of", str(folder / "reference")])
    return folder


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_every_cell_is_scored_and_the_files_are_what_the_analysis_reads(results: Path) -> None:
    folder = results / "reference"
    scores = read_table(folder / "scores.csv", SCORE_COLUMNS)
    # attributes x named or not x questions
    assert len(scores) == 17 * 2 * 4
    assert not scores.duplicated(["attribute_id", "with_occupation", "question_id"]).any()
    assert np.isfinite(scores["E"]).all()
    random = read_table(folder / "random_directions.csv", RANDOM_COLUMNS)
    assert len(random) == 2 * 200 * 17 * 2
    behaviour = read_table(folder / "behaviour.csv", BEHAVIOUR_COLUMNS)
    assert len(behaviour) == (17 + 1) * 4
    hiring = read_table(folder / "hiring.csv", HIRING_COLUMNS)
    assert len(hiring) == 6 * 4 * 3
    read_table(folder / "steering.csv", STEERING_COLUMNS)
    raw = [json.loads(line) for line in (folder / "raw.jsonl").read_text().splitlines()]
    assert len(raw) == len(behaviour)


def test_steering_moves_the_score_of_applicants_by_alpha_times_the_norm(results: Path) -> None:
    folder = results / "reference"
    rows = _rows(folder / "hiring.csv")
    alpha = float(json.loads((folder / "steering.json").read_text())["alpha_both_ways"])
    assert alpha == 0.5
    norm = float(np.linalg.norm(read_direction(folder).vector.astype(np.float64)))
    score = {(row["resume_id"], row["name"], row["arm"]): float(row["E"]) for row in rows}
    for resume, name, arm in score:
        sign = {"none": 0, "plus": 1, "minus": -1}[arm]
        assert score[resume, name, arm] == pytest.approx(score[resume, name, "none"] + sign * alpha * norm, rel=1e-4)


def test_the_dose_response_has_controls_as_long_as_the_direction_and_one_plain_point(results: Path) -> None:
    rows = _rows(results / "reference" / "steering.csv")
    assert {(row["direction"], row["number"]) for row in rows} == {
        ("expertise", "0"),
        ("random", "0"),
        ("random", "1"),
        ("placebo", "0"),
    }
    assert {float(row["alpha"]) for row in rows} == {-0.5, 0.0, 0.5}
    assert len({(row["yes_logit"], row["perplexity"]) for row in rows if float(row["alpha"]) == 0}) == 1
    moved = [row for row in rows if float(row["alpha"])]
    plain = next(float(row["perplexity"]) for row in rows if not float(row["alpha"]))
    assert len(moved) == 8
    # what costs too much is not asked
    assert all((row["yes_logit"] == "") == (float(row["perplexity"]) > 50 * plain) for row in moved)
    asked = [row["yes_logit"] for row in moved if row["yes_logit"]]
    assert len(set(asked)) == len(asked) > 2


def test_ablation_has_its_cost_and_every_contrast(results: Path) -> None:
    rows = _rows(results / "reference" / "mitigation.csv")
    assert len(rows) == 2 * 11
    assert len({(row["arm"], row["perplexity"]) for row in rows}) == 2
    plain = {row["contrast_id"]: float(row["mean_E"]) for row in rows if row["arm"] == "plain"}
    assert any(float(row["mean_E"]) != plain[row["contrast_id"]] for row in rows if row["arm"] == "ablated")


def test_the_axis_of_db_scores_every_unit_at_every_step(results: Path) -> None:
    rows = _rows(results / "reference" / "axis.csv")
    assert len(rows) == 2 * 9
    assert {float(row["alpha"]) for row in rows} == {0, 0.5}


def test_a_checkpoint_is_read_at_the_references_layer_along_its_own_direction(results: Path) -> None:
    own, reference = (read_direction(results / name) for name in ("full-h030", "reference"))
    assert own.layer == reference.layer
    assert own.notes["layer_from"] == "reference"
    a, b = own.vector.astype(np.float64), reference.vector.astype(np.float64)
    cosine = float(a @ b / np.sqrt((a @ a) * (b @ b)))
    assert own.notes["cosine_with_reference"] == pytest.approx(cosine, abs=1e-6)
    manifest = json.loads((results / "full-h030" / "manifest.json").read_text())
    assert manifest["settings"]["weight"] == 0.3
    assert manifest["layer"] == own.layer


def test_a_second_run_gives_the_same_numbers(
    config: Config, models: dict[str, Path], results: Path, tmp_path: Path
) -> None:
    own = ["--reference", str(models["reference"]), "--output", str(tmp_path)]
    represent(["--settings", slices.competence_represent_slice(config, "tiny", "reference"), *own])
    for name in ("scores.csv", "random_directions.csv", "direction.json"):
        assert (tmp_path / name).read_bytes() == (results / "reference" / name).read_bytes()


def test_the_settings_of_the_answers_are_those_that_are_generated_with(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import refbias.competence.behaviour as behaviour

    asked: list[Any] = []
    real = behaviour.generate

    def seen(model: Any, tokenizer: Any, requests: Any, sampling: Any, *more: Any, **named: Any) -> Any:
        asked.append(sampling)
        return real(model, tokenizer, requests, sampling, *more, **named)

    monkeypatch.setattr(behaviour, "generate", seen)
    chosen = {"samples": 2, "temperature": 0.6, "top_p": 0.8, "max_new_tokens": 3, "without_occupation": False}
    small = {**CONFIG, "competence": {"occupations": 1, "questions": 1, "answer": chosen}}
    own = ["--reference", str(models["reference"]), "--output", str(tmp_path)]
    answer(["--settings", slices.competence_answer_slice(from_mapping(small), "tiny", "reference"), *own])
    assert asked == [Sampling(samples=2, temperature=0.6, top_p=0.8, max_new_tokens=3)]
    rows = _rows(tmp_path / "behaviour.csv")
    assert {row["sample"] for row in rows} == {"0", "1"}


def test_what_a_stage_lacks_is_said(config: Config, models: dict[str, Path], tmp_path: Path) -> None:
    own = ["--reference", str(models["reference"]), "--output", str(tmp_path)]
    with pytest.raises(UserError, match="--unharmful: missing: full-h030 lies between two endpoints"):
        represent(["--settings", slices.competence_represent_slice(config, "tiny", "full-h030"), *own])
    with pytest.raises(UserError, match=r"direction\.json"):
        hire(["--settings", slices.competence_hire_slice(config, "tiny", "reference"), *own])
    assert both_ways([-2.0, 0.0, 1.0, 2.0]) == 2
    assert both_ways([-2.0, 0.0, 1.0]) == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"checkpoints": [0.25]}, r"competence.checkpoints': 0.25 is not among the weights"),
        ({"data": {"expert_file": "x"}}, "expert_file and novice_file belong together"),
        ({"n_random": 100}, r"competence.n_random'"),
        ({"occupations": -1}, r"competence.occupations"),
        ({"occupations": []}, r"competence.occupations"),
        ({"occupations": ["cook", "nurse", "cook"]}, r"competence.occupations.*'cook' stands twice"),
        ({"steering": {"alphas": [-2, 2, 2.0]}}, r"competence.steering.alphas.*2.0 stands twice"),
        ({"axis": {"alphas": [4, -4, 4]}}, r"competence.axis.alphas.*4.0 stands twice"),
        ({"hiring": {"alpha": 0}}, r"competence.hiring.alpha"),
        ({"axis": {"benchmark": "decodingtrust"}}, r"competence.axis.benchmark': decodingtrust is not in this run"),
        ({"layer_range": [0.8, 0.2]}, "the first depth lies beyond the second"),
        ({"steering": {"alpha": 1}}, r"unknown key 'competence.steering.alpha': did you mean 'alphas'"),
    ],
)
def test_a_mistake_in_the_section_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        from_mapping({**CONFIG, "competence": {**CONFIG["competence"], **change}})  # type: ignore[dict-item]


def test_subjects_are_the_reference_and_the_chosen_checkpoints() -> None:
    chosen = {**CONFIG, "competence": {"checkpoints": [0, 0.3], "regimes": ["lora"]}}
    assert from_mapping(chosen).competence_subjects() == ["reference", "lora-h000", "lora-h030"]
