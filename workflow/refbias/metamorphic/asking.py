"""Questions become prompts, prompts answers: through a generation backend, an interface, or the options' likelihood.

One function for every reading, `ask`; it returns the rows of ``raw.jsonl``. Answers written by a local model are kept
part by part in a work folder, those of an interface one by one in a cache, so that a killed run goes on where it was.
"""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refbias.artifacts import read_jsonl, write_jsonl
from refbias.benchmarks.base import Message, Sampling
from refbias.config.generation import GenerationSettings
from refbias.config.metamorphic import AskStage
from refbias.config.models import Compute
from refbias.errors import UserError
from refbias.generation import BACKENDS, Request, Task
from refbias.metamorphic.data import Material, Neutral
from refbias.metamorphic.few_shot import Example, choice_turns, open_turns
from refbias.metamorphic.forced_choice import NAMES, ORDERS, option_texts, replies, row_of, with_options
from refbias.metamorphic.questions import SOURCE, Question
from refbias.models import Checkpoint, load_tokenizer, prompt_ids, resolve_device, stop_ids
from refbias.models.chat import completion_ids, resolve_format
from refbias.models.load import load_lm, torch_dtype

LOG = logging.getLogger(__name__)
PLAIN_STOP = ("\nQuestion:",)
"""In the plain format a base model goes on with the next question; the answer ends there."""


@dataclass(frozen=True)
class Prompted:
    """What is asked under an id: the turns of a conversation, the last one the user's."""

    id: str
    turns: tuple[Message, ...]


@dataclass(frozen=True)
class Local:
    """A model on disk, and how it is run.

    Parameters
    ----------
    checkpoint
        Its weights.
    tokenizer
        Folder of the tokenizer.
    name
        What to call it in errors.
    identity
        What names the weights (JSON values).
    work
        Folder for finished parts.
    """

    checkpoint: Checkpoint
    tokenizer: Path
    name: str
    identity: Any
    work: Path


def asked_openly(
    items: Sequence[Question] | Sequence[Neutral], examples: tuple[Example, ...] = ()
) -> tuple[Prompted, ...]:
    """Return questions, or neutral ones, as conversations with the examples in front."""
    before = open_turns(examples)
    texts = [(item.id, item.text if isinstance(item, Question) else item.question) for item in items]
    return tuple(Prompted(name, (*before, Message("user", text))) for name, text in texts)


def first_sources(questions: Sequence[Question], count: int) -> tuple[Question, ...]:
    """Return `count` source questions, taken from the categories in turn."""
    by_category: dict[str, list[Question]] = {}
    for question in questions:
        if question.relation == SOURCE:
            by_category.setdefault(question.category, []).append(question)
    longest = max(map(len, by_category.values()), default=0)
    turns = (of[turn] for turn in range(longest) for of in by_category.values() if turn < len(of))
    return tuple(turns)[:count]


# --- answers that are written -----------------------------------------------------------------------------------------


def _parts(requests: Sequence[Request], content: Any, work: Path, size: int) -> dict[Path, Sequence[Request]]:
    """Return file -> requests; a file's name says everything that its rows depend on."""
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    starts = range(0, len(requests), size)
    return {work / f"{key}-{number:05d}.jsonl": requests[start : start + size] for number, start in enumerate(starts)}


def generate(prompts: Sequence[Prompted], settings: AskStage, model: Local, code: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Let a local model write its answers.

    Parameters
    ----------
    prompts
        What is asked.
    settings
        Of the stage.
    model
        Which model.
    code
        Hash of the code, part of what names a finished part.

    Returns
    -------
    rows, facts
        Rows of ``raw.jsonl`` in the order of `prompts`; what the manifest says.
    """
    generation, compute = settings.generation or GenerationSettings(), settings.compute or Compute()
    tokenizer = load_tokenizer(model.tokenizer)
    form = resolve_format(tokenizer, settings.chat_format)
    requests = [
        Request(item.id, "", tuple(prompt_ids(tokenizer, item.turns, settings.chat_format))) for item in prompts
    ]
    sampling = Sampling(samples=1, temperature=settings.temperature, top_p=1.0, max_new_tokens=settings.max_new_tokens)
    content = {
        "requests": [dataclasses.asdict(request) for request in requests],
        "sampling": dataclasses.asdict(sampling),
        "seed": settings.seed,
        "generation": generation.outcome(),
        "compute": [compute.dtype, resolve_device(compute.device)],
        "model": model.identity,
        "code": code,
    }
    parts = _parts(requests, content, model.work, generation.part_size)
    missing = [path for path in parts if not path.is_file()]
    facts: dict[str, Any] = {"chat_format": form, "backend": generation.backend, "resumed": len(parts) - len(missing)}
    if missing:
        task = Task(
            checkpoint=model.checkpoint,
            tokenizer=model.tokenizer,
            name=model.name,
            settings=generation,
            compute=compute,
            longest=max(len(request.ids) for request in requests) + settings.max_new_tokens,
            work=model.work,
            stop=PLAIN_STOP if form == "plain" else (),
            eos=tuple(stop_ids(tokenizer, settings.chat_format)),
        )
        with BACKENDS[generation.backend](task) as session:
            for path in missing:
                outputs = session.generate(parts[path], sampling, settings.seed, benchmark="metamorphic")
                write_jsonl(path, ({"id": o.prompt_id, "raw": o.text, "finished": o.finish != "length"} for o in outputs))
            facts["engine"] = session.facts()
    return [row for path in parts for row in read_jsonl(path)], facts


# --- answers that are chosen ------------------------------------------------------------------------------------------


def _strip_stops(ids: Sequence[int], stops: Sequence[int]) -> tuple[int, ...]:
    end = len(ids)
    while end and ids[end - 1] in stops:
        end -= 1
    return tuple(ids[:end])


def choose(
    questions: Sequence[Question], material: Material, examples: tuple[Example, ...], settings: AskStage, model: Local
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Read which option a local model finds likeliest; returns as `generate`."""
    from refbias.metamorphic.option_scores import Item, score_continuations

    chosen, compute = settings.forced_choice, settings.compute or Compute()
    if chosen is None:
        raise ValueError("forced_choice: the stage's settings hold none")
    kind = chosen.options
    tokenizer = load_tokenizer(model.tokenizer)
    stops = stop_ids(tokenizer, settings.chat_format)
    before = choice_turns(examples, kind)
    items, texts = [], []
    for question in questions:
        words = option_texts(question, material)
        texts.append(words)
        for order in ORDERS:
            listed = [words[name] for name in order]
            turns = (*before, Message("user", with_options(question.text, listed, kind)))
            options = tuple(
                _strip_stops(completion_ids(tokenizer, turns, reply, settings.chat_format), stops)
                for reply in replies(listed, kind)
            )
            if len(set(options)) < len(options):
                raise UserError(
                    f"{model.name}: question {question.id}: two options are the same tokens: set key "
                    f"'metamorphic.forced_choice.options' to {'text' if kind == 'letters' else 'letters'}"
                )
            items.append(Item(question.id, tuple(prompt_ids(tokenizer, turns, settings.chat_format)), options))
    weights = load_lm(
        model.checkpoint.weights, model.checkpoint.adapter, dtype=torch_dtype(compute.dtype), device=compute.device
    )
    found = score_continuations(weights, items, chosen.batch_size, model.name)
    rows = []
    for number, question in enumerate(questions):
        scores = [
            {name: sum(values) / len(values) for name, values in zip(order, found[number * len(ORDERS) + at], strict=True)}
            for at, order in enumerate(ORDERS)
        ]
        rows.append(row_of(question, texts[number], scores))
    return rows, {
        "chat_format": resolve_format(tokenizer, settings.chat_format),
        "options": list(NAMES),
        "prompt_tokens": sum(len(item.prompt) for item in items),
    }
