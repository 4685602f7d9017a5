"""Scorers and topics in the workflow: what is planned, what a change of scorer reruns, a run with models as scorers."""

import json
import re
import sys
from pathlib import Path

import pandas as pd
import yaml

from tests.tiny import build_tiny, make_roomy
from tests.tiny_classifier import build_roberta
from tests.workflow.conftest import Checkout, make_checkout
from tests.workflow.test_reruns import PICTURES

FORMAT = "<|user|>\n[INST] Judge.\n{prompt}\n{response}\n[/INST]\n<|assistant|>\n"
MODEL_RULES = ("score", "topics")
SCORERS = """
scorers:
  wildguard:
    model: {kind: local, path: models/guard}
    prompt_file: format.txt
    dtype: float32
    max_new_tokens: 4
    max_unreadable: 1
  toxigen_roberta: {model: {kind: local, path: models/roberta}}
"""


def use_models(checkout: Checkout) -> None:
    """Let models score WildGuardMix and ToxiGen."""
    checkout.edit("config/tiny.yaml", "wildguardmix: {", "wildguardmix: {scorer: wildguard, ")
    checkout.edit("config/tiny.yaml", "toxigen: {", "toxigen: {scorer: toxigen_roberta, ")
    with (checkout.path / "config" / "tiny.yaml").open("a") as handle:
        handle.write(SCORERS)
    (checkout.path / "format.txt").write_text(FORMAT, encoding="utf-8")


def without_topics(checkout: Checkout) -> None:
    """Give WildGuardMix a file that says no topics."""
    source = checkout.path / "data" / "quickstart" / "wildguardmix_test.jsonl"
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        del row["topic"]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (checkout.path / "prompts.jsonl").write_text(text, encoding="utf-8")
    checkout.edit("config/tiny.yaml", "wildguardmix: {", "wildguardmix: {prompts: prompts.jsonl, ")


def test_models_of_scorers_and_the_topic_map_are_planned(root: Path, tmp_path: Path) -> None:
    checkout = make_checkout(root, tmp_path / "fresh")
    assert not {"acquire_guard", "topics"} & set(checkout.would_run())
    use_models(checkout)
    without_topics(checkout)
    found = checkout.would_run()
    assert (found["acquire_guard"], found["topics"], found["score"], found["generate"]) == (2, 1, 3, 7)
    plan = checkout.snakemake("--dry-run", "--printshellcmds", "results/tiny/scores/tiny-gemma/full/outputs.csv").stdout
    assert "python -m refbias judge --gpu 0 --log" in plan
    assert "--vllm-python" not in plan
    assert '"topics_file": "results/tiny/topics/topics.csv"' in plan
    with (checkout.path / "config" / "tiny.yaml").open("a") as handle:
        handle.write("topics: {mapper: llm, model: {kind: local, path: models/guard}}\n")
    assert checkout.would_run()["acquire_guard"] == 3


def test_where_the_interpreter_of_a_guard_lies_scores_nothing_again(copy: Checkout, root: Path, tmp_path: Path) -> None:
    make_roomy(build_tiny("mistral", copy.path / "models" / "guard"))
    build_roberta(copy.path / "models" / "roberta")
    places = [tmp_path / name / "python" for name in ("one", "two")]
    for place in places:
        place.parent.mkdir()
        stand_in = root / "tests" / "fake_vllm"
        place.write_text(f'#!/bin/sh\nPYTHONPATH="{stand_in}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
        place.chmod(0o755)
    use_models(copy)
    copy.edit("config/tiny.yaml", "max_unreadable: 1", "max_unreadable: 1\n    backend: vllm")
    target = "results/tiny/scores/tiny-gemma/reference/outputs.csv"
    plan = copy.snakemake("--dry-run", "--printshellcmds", target).stdout
    assert "--vllm-python .venv-vllm/bin/python --output" in plan
    with (copy.path / "config" / "tiny.yaml").open("a") as handle:
        handle.write(f"generation: {{interpreter: {places[0]}}}\n")
    assert "generate" not in copy.would_run(target)
    copy.snakemake("--resources", "gpu=0", "--latency-wait", "5", target)
    assert "wildguard" in set(pd.read_csv(copy.path / target)["scorer"])
    copy.edit("config/tiny.yaml", str(places[0]), str(places[1]))
    assert copy.would_run(target) == {}


def test_models_that_score_or_map_go_to_the_partition_of_gpus(root: Path, tmp_path: Path) -> None:
    checkout = make_checkout(root, tmp_path / "fresh")
    profile = yaml.safe_load((root / "workflow" / "profiles" / "slurm" / "profile.v9+.yaml").read_text("utf-8"))
    chosen = [f"{rule}:slurm_partition={profile['set-resources'][rule]['slurm_partition']}" for rule in MODEL_RULES]

    def partitions() -> dict[str, set[str]]:
        printed = checkout.snakemake("--dry-run", "--set-resources", *chosen).stdout
        blocks = re.findall(r"^rule (\w+):\n((?:    .*\n)+)", printed, re.MULTILINE)
        found = {rule: set(re.findall(r"slurm_partition=(\w+)", text)) for rule, text in blocks if rule in MODEL_RULES}
        return found

    without_topics(checkout)
    assert partitions() == {"topics": {"cpu"}, "score": {"cpu"}}
    use_models(checkout)
    with (checkout.path / "config" / "tiny.yaml").open("a") as handle:
        handle.write("topics: {mapper: llm, model: {kind: local, path: models/guard}}\n")
    assert partitions() == {"topics": {"gpu"}, "score": {"gpu"}}


def test_scoring_by_rule_asks_for_no_gpu(root: Path, tmp_path: Path) -> None:
    checkout = make_checkout(root, tmp_path / "fresh")
    plan = checkout.snakemake("--dry-run", "--printshellcmds", "results/tiny/scores/tiny-gemma/full/outputs.csv").stdout
    block = plan.split("rule score:", 1)[1].split("\n\n", 1)[0]
    assert "gpu" not in block
    assert "python -m refbias score --log" in plan


def test_a_change_of_scorer_scores_again_and_nothing_else(copy: Checkout) -> None:
    copy.edit("config/tiny.yaml", "toxigen: {", "toxigen: {scorer: agreement_rule, ")
    assert copy.would_run() == {**PICTURES, "score": 3, "records": 1}


def test_models_score_stored_generations(copy: Checkout) -> None:
    build_tiny("mistral", copy.path / "models" / "guard")
    build_roberta(copy.path / "models" / "roberta")
    use_models(copy)
    assert copy.would_run() == {**PICTURES, "score": 3, "records": 1, "acquire_guard": 2}
    target = "results/tiny/scores/tiny-gemma/reference/outputs.csv"
    copy.snakemake("--resources", "gpu=0", "--latency-wait", "5", target)
    table = pd.read_csv(copy.path / target)
    assert {"wildguard", "toxigen_roberta", "agreement_rule"} == set(table["scorer"])
    toxic = table[table["scorer"] == "toxigen_roberta"]
    assert toxic["probability"].between(0, 1).all()
    assert (copy.path / target).with_name("answers.jsonl").stat().st_size > 0
    # another threshold scores again; models are not fetched again
    copy.edit("config/tiny.yaml", "roberta}}", "roberta}, threshold: 0.6}")
    assert copy.would_run(target) == {"score": 1}
