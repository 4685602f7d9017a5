"""Stage `topics`: give each WildGuardMix prompt its topic, and compare topics with labels by hand."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refbias.artifacts import Stage
from refbias.benchmarks.wildguardmix import selected_prompts
from refbias.config.base import parse_json
from refbias.config.topics import TopicStage
from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stats.agreement import agreement
from refbias.stimuli.groups import load_groups
from refbias.stimuli.table import read_table
from refbias.topics.names import LABELS, NO_TOPIC, fold
from refbias.topics.rules import TopicChoice, TopicRules
from refbias.topics.table import MappedPrompt, prompt_hash, read_map, write_map, write_review

Mapper = Callable[[Sequence[str]], list[TopicChoice]]
LABELLED_COLUMNS = ("id", "topic", "kind", "prompt")


@dataclass(frozen=True)
class LabelledPrompt:
    """A prompt with the topic that a reader gave it."""

    id: str
    topic: str
    kind: str
    prompt: str


def labelled_prompts(path: Path | None = None) -> list[LabelledPrompt]:
    """Read prompts labelled by hand; None for those that ship.

    Raises
    ------
    UserError
        For an unknown topic or a broken file, naming file and line.
    """
    found = []
    for row in read_table(path or data_path("topics", "labelled_prompts.tsv"), LABELLED_COLUMNS).rows:
        if fold(row["topic"]) not in LABELS:
            raise UserError(f"{row.where}: unknown topic {row['topic']!r}: one of {', '.join(LABELS)}")
        found.append(LabelledPrompt(row["id"], fold(row["topic"]), row["kind"], row["prompt"]))
    return found


def rules_mapper(settings: TopicStage) -> Mapper:
    """Return the mapper by rules."""
    rules = TopicRules(settings.topics.words_file, load_groups(settings.groups_file))
    return lambda prompts: [rules.assign(prompt) for prompt in prompts]


def llm_mapper(settings: TopicStage, folder: Path | None) -> Mapper:
    """Return the mapper by a language model in `folder`.

    Raises
    ------
    UserError
        If no folder is named.
    """
    # rules need no torch
    from refbias.models import load_lm, load_tokenizer, torch_dtype
    from refbias.topics.llm import assign_topics

    if folder is None or settings.compute is None:
        raise UserError("mapper llm runs a model: name its folder by --model-folder")
    model = load_lm(folder, dtype=torch_dtype(settings.compute.dtype), device=settings.compute.device)
    tokenizer = load_tokenizer(folder)
    return lambda prompts: assign_topics(model, tokenizer, prompts, settings.topics.chat_format)


def measure(mapper: Mapper, labelled: Sequence[LabelledPrompt]) -> dict[str, Any]:
    """Return the agreement of a mapper with labels by hand."""
    choices = mapper([row.prompt for row in labelled])
    return agreement([choice.topic for choice in choices], [row.topic for row in labelled], LABELS)


def describe(found: dict[str, Any]) -> list[str]:
    """Return agreement as lines for a terminal."""
    kappa = "undefined (one label only)" if found["kappa"] is None else f"{found['kappa']:.3f}"
    width = max(map(len, LABELS))
    lines = [f"Cohen's kappa {kappa}, {found['n_equal']} of {found['n']} equal", ""]
    lines.append(f"{'topic':<{width}}  by hand   map  both")
    lines += [
        f"{label:<{width}}  {row['labelled']:7d}  {row['mapped']:4d}  {row['both']:4d}"
        for label, row in found["by_label"].items()
    ]
    return lines


def _make(options: argparse.Namespace) -> None:
    settings = parse_json(TopicStage, options.settings, "--settings")
    with Stage("topics", settings.model_dump(mode="json"), options.output) as stage:
        prompts = selected_prompts(settings.prompts)
        mapper = rules_mapper(settings)
        if settings.topics.mapper == "llm":
            mapper = llm_mapper(settings, options.model_folder)
        distinct = list(dict.fromkeys(text for _, text in prompts))
        chosen = dict(zip(distinct, mapper(distinct), strict=True))
        rows = [
            MappedPrompt(prompt_hash(text), prompt_id, chosen[text].topic, chosen[text].matched)
            for prompt_id, text in prompts
        ]
        write_map(options.output / "topics.csv", rows)
        stage.record(
            n_prompts=len(rows),
            n_without_topic=sum(row.topic == NO_TOPIC for row in rows),
            by_topic={label: sum(row.topic == label for row in rows) for label in LABELS},
            agreement_with_own_labels=measure(mapper, labelled_prompts()),
        )


def _review(options: argparse.Namespace) -> None:
    texts = {prompt_hash(text): text for _, text in selected_prompts(options.prompts)}
    first: dict[str, MappedPrompt] = {}
    for row in read_map(options.topics):
        first.setdefault(row.sha256, row)
    rows = list(first.values())
    stray = [row for row in rows if row.sha256 not in texts]
    if stray:
        raise UserError(f"{options.topics}: prompt {stray[0].prompt_id} is not in the prompts' file: make it again")
    write_review(options.output, rows, texts)
    print(f"{options.output}: {len(rows)} prompts; fill the column label, then: refbias topics agreement --sheet ...")


def _agreement(options: argparse.Namespace) -> None:
    if options.sheet is None:
        settings = TopicStage.model_validate({"prompts": None, "topics": {"words_file": options.words}})
        found = measure(rules_mapper(settings), labelled_prompts(options.labelled))
    elif options.words is not None:
        raise UserError("--words: belongs to the rules: a sheet is compared as it is, leave it out")
    else:
        rows = [row for row in read_map(options.sheet) if row.label]
        if not rows:
            raise UserError(f"{options.sheet}: no label is filled in: write a topic, or {NO_TOPIC}, into column label")
        found = agreement([row.topic for row in rows], [row.label for row in rows], LABELS)
    print("\n".join(describe(found)))


def main(argv: Sequence[str]) -> None:
    """Run ``refbias topics make | review | agreement``."""
    parser = argparse.ArgumentParser(prog="refbias topics", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    make = actions.add_parser("make", help="write topics.csv and its manifest")
    make.add_argument("--settings", required=True, help="JSON slice of the configuration")
    make.add_argument("--model-folder", type=Path, help="model of mapper llm")
    make.add_argument("--output", required=True, type=Path)
    make.set_defaults(run=_make)
    review = actions.add_parser("review", help="write a sheet for labels by hand")
    review.add_argument("--prompts", help="WildGuardMix's file or folder; absent: the shipped prompts")
    review.add_argument("--topics", required=True, type=Path, help="topics.csv")
    review.add_argument("--output", required=True, type=Path, help="CSV to write")
    review.set_defaults(run=_review)
    compare = actions.add_parser("agreement", help="print Cohen's kappa between map and labels by hand")
    source = compare.add_mutually_exclusive_group()
    source.add_argument("--sheet", type=Path, help="filled review sheet")
    source.add_argument("--labelled", type=Path, help="TSV id, topic, kind, prompt for the rules; absent: the shipped")
    compare.add_argument("--words", help="TSV of words for the rules; absent: the shipped")
    compare.set_defaults(run=_agreement)
    options = parser.parse_args(argv)
    options.run(options)
