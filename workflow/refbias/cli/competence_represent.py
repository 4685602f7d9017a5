"""Find a subject's expertise direction and score every context along it."""

import argparse
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from refbias.artifacts import Stage, write_rows
from refbias.competence.direction import Direction, Sides, find_direction, read_direction, unit, write_direction
from refbias.competence.prompts import cells, place, up_to_place
from refbias.competence.scores import RANDOM_COLUMNS, SCORE_COLUMNS, random_rows, score_rows
from refbias.competence.stage import Bench, open_bench, stage_parser
from refbias.competence.subjects import read_states, sentence_tokens
from refbias.config.base import parse_json
from refbias.config.competence import CompetenceRepresentStage
from refbias.models import resolve_device
from refbias.models.heap import keep_freed_memory


def _find(bench: Bench, settings: CompetenceRepresentStage, of_reference: Direction | None) -> Direction:
    """Return the subject's own direction, at the reference's layer where there is one."""
    pairs = bench.pairs
    texts = [text for pair in pairs.pairs for text in (pair.expert, pair.novice)]
    sentences = sentence_tokens(bench.tokenizer, texts)
    bos = bench.tokenizer.bos_token_id
    states = read_states(bench.subject, sentences, "all", settings.compute, pooling="mean", bos=bos)
    places = {split: [n for n, pair in enumerate(pairs.pairs) if pair.split == split] for split in ("fit", "held_out")}
    fit, held_out = (
        {
            layer: Sides(found[[2 * n for n in places[split]]], found[[2 * n + 1 for n in places[split]]])
            for layer, found in states.items()
        }
        for split in ("fit", "held_out")
    )
    lengths = [len(sentences.ids[row]) for row in sentences.row]
    gap = sum(lengths[::2]) / len(pairs.pairs) - sum(lengths[1::2]) / len(pairs.pairs)
    notes = {
        "n_fit": len(places["fit"]),
        "n_held_out": len(places["held_out"]),
        "length_gap_tokens": round(gap, 4),
        "n_unequal_pairs": sum(a != b for a, b in zip(lengths[::2], lengths[1::2], strict=True)),
        "notes": list(pairs.notes),
        "layer_from": "key layer" if settings.layer != "auto" else "held-out separation",
    }
    layer = None if isinstance(settings.layer, str) else settings.layer
    if of_reference is not None:
        layer, notes["layer_from"] = of_reference.layer, "reference"
    found = find_direction(fit, held_out, layer=layer, share=settings.layer_range, seed=settings.seed, notes=notes)
    if of_reference is not None:
        cosine = float(unit(found.vector) @ unit(of_reference.vector))
        found = replace(found, notes={**notes, "cosine_with_reference": cosine})
    return found


def _represent(bench: Bench, settings: CompetenceRepresentStage, args: argparse.Namespace) -> dict[str, Any]:
    """Write direction and scores; return what the manifest says of them."""
    start = time.perf_counter()
    of_reference = read_direction(args.direction_of) if args.direction_of else None
    direction = _find(bench, settings, of_reference)
    write_direction(args.output, direction)
    found = time.perf_counter()
    every = list(cells(bench.attributes, bench.questions.questions))
    prompts = [place(bench.tokenizer, cell.question.text, cell.context, settings.chat_format) for cell in every]
    cut = up_to_place(prompts)
    states = read_states(
        bench.subject,
        cut,
        [direction.layer],
        settings.compute,
        pooling="last",
        bos=bench.tokenizer.bos_token_id,
    )[direction.layer]
    write_rows(args.output / "scores.csv", SCORE_COLUMNS, score_rows(every, states, direction))
    rows = random_rows(every, states, direction, settings.n_random, settings.seed)
    write_rows(args.output / "random_directions.csv", RANDOM_COLUMNS, rows)
    facts = next(asdict(fact) for fact in direction.facts if fact.layer == direction.layer)
    return {
        "subject": settings.subject,
        "layer": direction.layer,
        "facts": facts,
        "n_cells": len(every),
        "n_occupations": len(bench.questions.occupations),
        "n_tokens": cut.n_tokens,
        "notes": list(bench.questions.notes),
        "dtype": settings.compute.dtype,
        "device": resolve_device(settings.compute.device),
        "threads": torch.get_num_threads(),
        "seconds_direction": round(found - start, 3),
        "seconds_scores": round(time.perf_counter() - found, 3),
    }


def represent(argv: list[str]) -> None:
    """Write direction.safetensors, direction.json, scores.csv, random_directions.csv and manifest.json."""
    parser = stage_parser("represent", __doc__)
    parser.add_argument("--direction-of", type=Path, help="Results of the reference, whose layer is taken.")
    args = parser.parse_args(argv)
    settings = parse_json(CompetenceRepresentStage, args.settings, "--settings")
    bench, inputs = open_bench(settings, args)
    if args.direction_of:
        inputs["direction_of"] = args.direction_of / "direction.json"
    keep_freed_memory()
    with Stage("competence represent", settings.model_dump(mode="json"), args.output, inputs) as stage:
        stage.record(**_represent(bench, settings, args))
