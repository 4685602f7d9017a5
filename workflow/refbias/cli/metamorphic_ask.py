"""Stage `metamorphic ask`: put questions to one model and keep what it answers, as it came.

Answers are labelled by another stage: a new rule of the labeller asks nothing again.
"""

import argparse
import contextlib
from pathlib import Path
from typing import Any

from refbias.artifacts import Stage, sha256_file, write_jsonl
from refbias.codehash import code_hash
from refbias.config.base import parse_json
from refbias.config.metamorphic import AskStage, EndpointSettings
from refbias.errors import UserError
from refbias.metamorphic.asking import Local, Prompted, asked_openly, choose, generate
from refbias.metamorphic.biasasker import read_material
from refbias.metamorphic.data import Material, Neutral, load_neutral
from refbias.metamorphic.few_shot import Example, load_examples
from refbias.metamorphic.judging import open_endpoint
from refbias.metamorphic.questions import Question, first_sources, read_questions
from refbias.models import Checkpoint
from refbias.models.files import weight_hashes

Rows = tuple[list[dict[str, Any]], dict[str, Any]]


def _identity(folder: Path) -> Any:
    """Return what names the weights in `folder`: its manifest's hash, or those of the weights."""
    manifest = folder / "manifest.json"
    return sha256_file(manifest) if manifest.is_file() else weight_hashes(folder)


def local_model(args: argparse.Namespace) -> Local:
    """Return the model that ``--reference`` and ``--checkpoint`` name."""
    if args.reference is None:
        raise UserError("metamorphic ask: --reference is missing: name the folder of the model")
    folders = [args.reference] if args.checkpoint is None else [args.reference, args.checkpoint]
    adapter = args.checkpoint is not None and (args.checkpoint / "adapter_config.json").is_file()
    whole = folders[:1] if adapter else folders
    with_tokenizer = [folder for folder in whole if (folder / "tokenizer_config.json").is_file()]
    return Local(
        checkpoint=Checkpoint(args.reference, args.checkpoint) if adapter else Checkpoint(folders[-1]),
        tokenizer=with_tokenizer[-1] if with_tokenizer else args.reference,
        name=args.name,
        identity=[_identity(folder) for folder in folders],
        work=args.work,
    )


def _through(settings: AskStage, prompts: tuple[Prompted, ...]) -> Rows:
    if settings.endpoint is None:
        raise ValueError("endpoint: the stage's settings hold none")
    endpoint = open_endpoint(settings.endpoint, settings.max_new_tokens, settings.temperature, settings.seed)
    replies = endpoint.chat([item.turns for item in prompts])
    rows = [
        {"id": item.id, "raw": reply.text, "finished": reply.finished}
        for item, reply in zip(prompts, replies, strict=True)
    ]
    return rows, endpoint.facts()


def _asked(settings: AskStage, path: Path | None) -> tuple[Question, ...] | tuple[Neutral, ...]:
    if settings.questions == "neutral":
        return load_neutral()
    if path is None:
        raise UserError("metamorphic ask: --questions is missing: name questions.jsonl")
    questions = tuple(read_questions(path))
    return first_sources(questions, settings.first or len(questions)) if settings.questions == "open" else questions


def _ask(settings: AskStage, args: argparse.Namespace, material: Material, examples: tuple[Example, ...]) -> Rows:
    items = _asked(settings, args.questions)
    if settings.endpoint is not None:
        return _through(settings, asked_openly(items, examples))
    model = local_model(args)
    code = code_hash("refbias.cli.metamorphic_ask")
    if settings.reading == "forced_choice":
        questions = [item for item in items if isinstance(item, Question)]
        return choose(questions, material, examples, settings, model, code)
    return generate(asked_openly(items, examples), settings, model, code)


def main(argv: list[str]) -> int:
    """Write ``raw.jsonl`` and ``asked.json``, the manifest of the asking."""
    parser = argparse.ArgumentParser(prog="refbias metamorphic ask", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration.")
    parser.add_argument("--questions", type=Path, help="questions.jsonl; not for the neutral questions.")
    parser.add_argument("--reference", type=Path, help="Folder of the reference model; not for an interface.")
    parser.add_argument("--checkpoint", type=Path, help="Folder of a checkpoint or adapter; absent: the reference.")
    parser.add_argument("--endpoint", help="JSON of an interface with patience and budget, which no answer depends on.")
    parser.add_argument("--name", required=True, help="What to call the model.")
    parser.add_argument("--output", required=True, type=Path, help="Folder for the answers.")
    parser.add_argument("--work", required=True, type=Path, help="Folder for finished parts, gone on success.")
    args = parser.parse_args(argv)
    settings = parse_json(AskStage, args.settings, "--settings")
    # the manifest holds the slice alone: how patiently it was asked is no part of the result
    whole = settings
    if args.endpoint:
        whole = settings.model_copy(update={"endpoint": parse_json(EndpointSettings, args.endpoint, "--endpoint")})
    files = {"groups": settings.groups_file, "properties": settings.properties_file}
    given = {role: Path(path) for role, path in files.items() if path}
    inputs: dict[str, Path] = dict(given)
    if args.questions is not None:
        inputs["questions"] = args.questions
    for role, folder in (("reference", args.reference), ("checkpoint", args.checkpoint)):
        if folder is not None and (folder / "manifest.json").is_file():
            inputs[role] = folder / "manifest.json"
    stage = Stage(
        "metamorphic_ask",
        settings.model_dump(mode="json"),
        args.output,
        inputs,
        manifest=args.output / "asked.json",
    )
    with stage:
        material = read_material(given.get("groups"), given.get("properties"))
        examples = load_examples(settings.few_shot, material)
        rows, facts = _ask(whole, args, material, examples)
        write_jsonl(args.output / "raw.jsonl", rows)
        stage.record(n_answers=len(rows), model=args.name, few_shot=[example.id for example in examples], **facts)
    for path in args.work.glob("*.jsonl"):
        path.unlink()
    # somebody else's files in the folder, such as a log, stay
    with contextlib.suppress(OSError):
        args.work.rmdir()
    return 0
