"""Questions become prompts, prompts answers: through a generation backend, an interface, or the options' likelihood.

Every reading gives rows of ``raw.jsonl``. `writer` and `chooser` load a model once for any number of calls; `generate`
and `choose` ask everything, part by part into a work folder, so that a killed run goes on where it was. Answers of an
interface are kept by `refbias.metamorphic.endpoint` itself.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refbias.artifacts import read_jsonl, write_jsonl
from refbias.benchmarks.base import Message, Sampling
from refbias.config.generation import GenerationSettings
from refbias.config.metamorphic import AskStage, ForcedChoiceSettings
from refbias.config.models import Compute
from refbias.errors import UserError
from refbias.generation import BACKENDS, Request, Task
from refbias.metamorphic.data import Material, Neutral
from refbias.metamorphic.few_shot import Example, choice_turns, open_turns
from refbias.metamorphic.forced_choice import NAMES, ORDERS, option_texts, replies, row_of, with_options
from refbias.metamorphic.questions import Question
from refbias.models import Checkpoint, load_tokenizer, prompt_ids, resolve_device, stop_ids
from refbias.models.chat import completion_ids, resolve_format
from refbias.models.heap import keep_freed_memory
from refbias.models.load import load_lm, torch_dtype

PLAIN_STOP = ("\nQuestion:",)
"""In the plain format a base model goes on with the next question; the answer ends there."""
CHOICE_PART = 500
"""Questions of a finished part: enough that prompts of equal length meet."""


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


Row = dict[str, Any]
Asker = Callable[[Sequence[Any]], list[Row]]


def _in_parts(
    items: Sequence[Any], content: Any, model: Local, size: int, opened: contextlib.AbstractContextManager[Asker]
) -> tuple[list[Row], int]:
    """Ask part by part; the model is loaded only if a part is missing.

    Returns
    -------
    rows, kept
        All rows in order, and how many parts were there.
    """
    # a file's name says everything that its rows depend on
    key = hashlib.sha256(json.dumps([content, model.identity], sort_keys=True).encode()).hexdigest()[:16]
    starts = range(0, len(items), size)
    parts = {model.work / f"{key}-{number:05d}.jsonl": items[at : at + size] for number, at in enumerate(starts)}
    missing = [path for path in parts if not path.is_file()]
    if missing:
        with opened as ask:
            for path in missing:
                write_jsonl(path, ask(parts[path]))
    return [row for path in parts for row in read_jsonl(path)], len(parts) - len(missing)


# --- answers that are written -----------------------------------------------------------------------------------------


def requests_of(prompts: Sequence[Prompted], settings: AskStage, model: Local) -> list[Request]:
    """Return prompts as token ids, with the one BOS that the model wants."""
    tokenizer = load_tokenizer(model.tokenizer)
    return [Request(item.id, "", tuple(prompt_ids(tokenizer, item.turns, settings.chat_format))) for item in prompts]


@contextlib.contextmanager
def writer(longest: int, settings: AskStage, model: Local) -> Iterator[Asker]:
    """Load a model that writes answers; yields a function from requests to rows.

    Parameters
    ----------
    longest
        Tokens of the longest prompt that will be asked.
    settings, model
        Of the stage; which model.
    """
    tokenizer = load_tokenizer(model.tokenizer)
    sampling = Sampling(samples=1, temperature=settings.temperature, top_p=1.0, max_new_tokens=settings.max_new_tokens)
    plain = resolve_format(tokenizer, settings.chat_format) == "plain"
    generation = settings.generation or GenerationSettings()
    task = Task(
        checkpoint=model.checkpoint,
        tokenizer=model.tokenizer,
        name=model.name,
        settings=generation,
        compute=settings.compute or Compute(),
        longest=longest + settings.max_new_tokens,
        work=model.work,
        stop=PLAIN_STOP if plain else (),
        eos=tuple(stop_ids(tokenizer, settings.chat_format)),
    )
    with BACKENDS[generation.backend](task) as session:

        def ask(requests: Sequence[Request]) -> list[Row]:
            outputs = session.generate(requests, sampling, settings.seed, benchmark="metamorphic")
            return [{"id": o.prompt_id, "raw": o.text, "finished": o.finish != "length"} for o in outputs]

        yield ask


def generate(
    prompts: Sequence[Prompted], settings: AskStage, model: Local, code: str
) -> tuple[list[Row], dict[str, Any]]:
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
    requests = requests_of(prompts, settings, model)
    content = {
        "requests": [dataclasses.asdict(request) for request in requests],
        "sampling": [settings.temperature, settings.max_new_tokens, settings.seed],
        "generation": generation.outcome(),
        "compute": [compute.dtype, resolve_device(compute.device)],
        "code": code,
    }
    longest = max(len(request.ids) for request in requests)
    rows, kept = _in_parts(requests, content, model, generation.part_size, writer(longest, settings, model))
    form = resolve_format(load_tokenizer(model.tokenizer), settings.chat_format)
    return rows, {"chat_format": form, "backend": generation.backend, "parts_kept": kept}


# --- answers that are chosen ------------------------------------------------------------------------------------------


def _strip_stops(ids: Sequence[int], stops: Sequence[int]) -> tuple[int, ...]:
    end = len(ids)
    while end and ids[end - 1] in stops:
        end -= 1
    return tuple(ids[:end])


@contextlib.contextmanager
def chooser(material: Material, examples: tuple[Example, ...], settings: AskStage, model: Local) -> Iterator[Asker]:
    """Load a model that chooses among options; yields a function from questions to rows."""
    from refbias.metamorphic.option_scores import Item, score_continuations

    chosen, compute = settings.forced_choice or ForcedChoiceSettings(), settings.compute or Compute()
    kind = chosen.options
    tokenizer = load_tokenizer(model.tokenizer)
    stops = stop_ids(tokenizer, settings.chat_format)
    before = choice_turns(examples, kind)
    keep_freed_memory()
    weights = load_lm(
        model.checkpoint.weights, model.checkpoint.adapter, dtype=torch_dtype(compute.dtype), device=compute.device
    )

    def item(question: Question, listed: Sequence[str]) -> Item:
        turns = (*before, Message("user", with_options(question.text, listed, kind)))
        options = tuple(
            _strip_stops(completion_ids(tokenizer, turns, reply, settings.chat_format), stops)
            for reply in replies(listed, kind)
        )
        if len(set(options)) < len(options):
            other = "text" if kind == "letters" else "letters"
            raise UserError(
                f"{model.name}: question {question.id}: two options are the same tokens: set key "
                f"'metamorphic.forced_choice.options' to {other}"
            )
        return Item(question.id, tuple(prompt_ids(tokenizer, turns, settings.chat_format)), options)

    def ask(questions: Sequence[Question]) -> list[Row]:
        texts = [option_texts(question, material) for question in questions]
        items = [
            item(question, [words[name] for name in order])
            for question, words in zip(questions, texts, strict=True)
            for order in ORDERS
        ]
        found = score_continuations(weights, items, chosen.batch_size, model.name)
        means = [[sum(values) / len(values) for values in options] for options in found]
        rows = []
        for number, (question, words) in enumerate(zip(questions, texts, strict=True)):
            own = means[number * len(ORDERS) : (number + 1) * len(ORDERS)]
            scores = [dict(zip(order, values, strict=True)) for order, values in zip(ORDERS, own, strict=True)]
            rows.append(row_of(question, words, scores))
        return rows

    yield ask


def choose(
    questions: Sequence[Question],
    material: Material,
    examples: tuple[Example, ...],
    settings: AskStage,
    model: Local,
    code: str,
) -> tuple[list[Row], dict[str, Any]]:
    """Read which option a local model finds likeliest; parameters and results as `generate`."""
    compute = settings.compute or Compute()
    content = {
        "questions": [dataclasses.asdict(question) for question in questions],
        "material": [material.group(name).plural for q in questions for name in (q.group_a, q.group_b)],
        "settings": settings.model_dump(mode="json"),
        "examples": [dataclasses.asdict(example) for example in examples],
        "compute": [compute.dtype, resolve_device(compute.device)],
        "code": code,
    }
    opened = chooser(material, examples, settings, model)
    rows, kept = _in_parts(questions, content, model, CHOICE_PART, opened)
    form = resolve_format(load_tokenizer(model.tokenizer), settings.chat_format)
    return rows, {"chat_format": form, "options": list(NAMES), "parts_kept": kept}
