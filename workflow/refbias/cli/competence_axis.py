"""Steer the reference along the axis that dB is about, and score an output benchmark at each step.

The axis is the mean state of positive attribute sentences minus that of negative ones, at the layer of the expertise
direction. dB says that fine-tuning moved a group along it; here the states are moved, and the outputs are looked at.
"""

import argparse
import contextlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from refbias.artifacts import Stage, write_rows
from refbias.benchmarks import BENCHMARKS
from refbias.benchmarks.base import Sampling
from refbias.cli.judge import make
from refbias.competence.behaviour import Speaker
from refbias.competence.direction import Sides, diagnose, mean_difference, read_direction
from refbias.competence.stage import Bench, open_bench, stage_parser
from refbias.competence.steering import bounded_alphas, perplexity, steered
from refbias.competence.subjects import load_subject, sentence_tokens, whole_states
from refbias.config.base import parse_json
from refbias.config.competence import CompetenceAxisStage
from refbias.generation import Request
from refbias.models import prompt_ids, resolve_device
from refbias.models.heap import keep_freed_memory
from refbias.scorers import ScoredItem
from refbias.stimuli import load_stimuli

AXIS_COLUMNS = ("alpha", "benchmark", "group", "score", "n", "n_missing", "perplexity")


def axis_of(bench: Bench, settings: CompetenceAxisStage, model: Any, layer: int) -> tuple[Any, dict[str, Any]]:
    """Return the axis at a layer, and its facts: every fourth attribute sentence is held out."""
    sentences = load_stimuli(settings.stimuli)
    texts = {
        valence: [sentence.text for sentence in sentences if sentence.kind == valence]
        for valence in ("positive", "negative")
    }
    tokens = sentence_tokens(bench.tokenizer, [*texts["positive"], *texts["negative"]])
    states = whole_states(model.base_model, tokens, [layer], pooling="mean", bos=bench.tokenizer.bos_token_id)[layer]
    n = min(len(texts["positive"]), len(texts["negative"]))
    positive, negative = states[:n], states[len(texts["positive"]) :][:n]
    held = np.arange(n) % 4 == 3
    sides, held_out = Sides(positive[~held], negative[~held]), Sides(positive[held], negative[held])
    facts = diagnose(layer, sides, held_out, settings.seed)
    return mean_difference(Sides(positive, negative)), {"norm": facts.norm, "auc_held_out": facts.auc_held_out}


def _axis(bench: Bench, settings: CompetenceAxisStage, args: argparse.Namespace) -> dict[str, Any]:
    """Write the scores; return what the manifest says of them."""
    chosen = settings.axis
    asked = settings.benchmarks.enabled()[chosen.benchmark]
    entry = asked.model_copy(update={"prompts_per_unit": chosen.prompts_per_unit})
    benchmark = BENCHMARKS[chosen.benchmark]
    prompts = benchmark.load(entry, settings.seed).prompts
    users = {prompt.id: prompt.messages[-1].content for prompt in prompts}
    requests = [
        Request(prompt.id, prompt.unit, tuple(prompt_ids(bench.tokenizer, prompt.messages, settings.chat_format)))
        for prompt in prompts
    ]
    scorer = make(settings.score.scorers[chosen.benchmark], settings.score, args.guards, args.vllm_python)
    layer = read_direction(args.output).layer
    model = load_subject(bench.subject, settings.compute)
    speaker = Speaker(model, bench.tokenizer, settings.chat_format, settings.seed, name=settings.subject)
    vector, facts = axis_of(bench, settings, model, layer)
    neutral = bench.neutral(settings.stimuli, settings.perplexity_sentences)
    first = 1 if requests[0].ids[0] == bench.tokenizer.bos_token_id else 0

    def moved(alpha: float) -> contextlib.AbstractContextManager[None]:
        return steered(model, layer, vector, alpha, first) if alpha else contextlib.nullcontext()

    def cost(alpha: float) -> float:
        with moved(alpha):
            return perplexity(model, neutral)

    perplexities, allowed = bounded_alphas(chosen.alphas, cost, chosen.perplexity_limit)
    sampling = Sampling(chosen.samples, entry.temperature, entry.top_p, chosen.max_new_tokens)
    rows: list[tuple[Any, ...]] = []
    for alpha in allowed:
        with moved(alpha):
            # the same random streams at every step
            outputs = speaker.answer(requests, sampling, f"axis-{chosen.benchmark}")
        items = [
            ScoredItem(
                f"{alpha}/{output.prompt_id}/{output.sample}", users[output.prompt_id], benchmark.extract(output.text)
            )
            for output in outputs
        ]
        values: dict[str, list[int | None]] = defaultdict(list)
        for output, score in zip(outputs, scorer.score(items), strict=True):
            values[output.unit].append(score.value)
        for unit, found in values.items():
            known = [value for value in found if value is not None]
            mean = float(np.mean(known)) if known else ""
            missing = len(found) - len(known)
            rows.append((alpha, chosen.benchmark, unit, mean, len(known), missing, perplexities[alpha]))
    write_rows(args.output / "axis.csv", AXIS_COLUMNS, rows)
    return {
        "subject": settings.subject,
        "layer": layer,
        "axis": facts,
        "scorer": scorer.name,
        "scorer_label": scorer.label,
        "allowed": allowed,
        "perplexity": {str(alpha): found for alpha, found in sorted(perplexities.items())},
        "n_prompts": len(requests),
        "dtype": settings.compute.dtype,
        "device": resolve_device(settings.compute.device),
        "threads": torch.get_num_threads(),
    }


def axis(argv: list[str]) -> None:
    """Write axis.csv and axis.manifest.json; the folder holds the reference's direction."""
    parser = stage_parser("axis", __doc__)
    parser.add_argument("--guards", type=Path, help="Folder of the models of scorers that run one.")
    parser.add_argument("--vllm-python", help="Interpreter that has vLLM, for guards with that backend.")
    args = parser.parse_args(argv)
    settings = parse_json(CompetenceAxisStage, args.settings, "--settings")
    bench, inputs = open_bench(settings, args)
    inputs["direction"] = args.output / "direction.json"
    keep_freed_memory()
    where = args.output / "axis.manifest.json"
    with Stage("competence axis", settings.model_dump(mode="json"), args.output, inputs, where) as stage:
        stage.record(**_axis(bench, settings, args))
