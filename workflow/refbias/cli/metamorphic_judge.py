"""Let a judge model look at answers that the rules leave open, outside of a run of the workflow."""

import argparse
from pathlib import Path
from typing import Any

from refbias.config.base import parse
from refbias.config.generation import GenerationSettings
from refbias.config.metamorphic import JudgeSettings
from refbias.config.models import Compute
from refbias.errors import UserError
from refbias.metamorphic.answers import read_answers, write_answers
from refbias.metamorphic.biasasker import read_material
from refbias.metamorphic.judge import check_judge
from refbias.metamorphic.judging import judged, open_judge
from refbias.metamorphic.questions import read_questions

OF_SERVICE = ("judge_model", "key_env", "concurrency", "max_requests", "max_tokens")
OF_LOCAL = ("backend", "device", "dtype")


def _settings(options: argparse.Namespace) -> JudgeSettings:
    endpoint: dict[str, Any] | None = None
    stray, needed = (OF_LOCAL, "--directory") if options.base_url else (OF_SERVICE, "--base-url")
    for name in stray:
        if getattr(options, name) is not None:
            raise UserError(f"--{name.replace('_', '-')}: belongs to a judge by {needed}: leave it out")
    if options.base_url:
        if not options.judge_model:
            raise UserError("--base-url needs --judge-model: the name by which the service knows the judge")
        named = ("key_env", "concurrency", "max_requests", "max_tokens")
        given = {name: value for name in named if (value := getattr(options, name)) is not None}
        endpoint = {"base_url": options.base_url, "model": options.judge_model, **given}
    data = {"which": options.which, "directory": options.directory, "endpoint": endpoint}
    return parse(JudgeSettings, data, "metamorphic judge")


def main(argv: list[str]) -> int:
    """Write the answers with the judge's labels; say how many changed."""
    parser = argparse.ArgumentParser(prog="refbias metamorphic judge", description=__doc__)
    parser.add_argument("--groups", type=Path, help="TSV of groups, or CSV of a BiasAsker copy; shipped by default")
    parser.add_argument("--properties", type=Path, help="TSV of properties, or CSV of a BiasAsker copy")
    parser.add_argument("--questions", type=Path, required=True, help="questions.jsonl")
    parser.add_argument("--answers", type=Path, required=True, help="answers.jsonl, labelled by rules")
    parser.add_argument("--tested", required=True, help="name of the model that answered: it may not judge itself")
    parser.add_argument("--which", choices=("unsure", "all"), default="unsure")
    parser.add_argument("--directory", help="folder of a local judge model")
    parser.add_argument("--base-url", help="address of an OpenAI-compatible service, such as https://.../v1")
    parser.add_argument("--judge-model", help="name of the judge as the service knows it")
    parser.add_argument("--key-env", help="NAME of the environment variable that holds the key")
    parser.add_argument("--concurrency", type=int, help="requests under way at once")
    parser.add_argument("--max-requests", type=int, help="budget of requests, repeats included")
    parser.add_argument("--max-tokens", type=int, help="budget of tokens")
    parser.add_argument("--backend", choices=("hf", "vllm"), help="what runs a local judge; hf by default")
    parser.add_argument("--device", help="of a local judge: auto (the default), cpu, cuda or mps")
    parser.add_argument("--dtype", help="of a local judge: bfloat16 (the default) or float32")
    parser.add_argument("--output", type=Path, required=True, help="answers.jsonl with the judge's labels")
    options = parser.parse_args(argv)
    settings = _settings(options)
    check_judge(options.judge_model or Path(options.directory).name, options.tested)
    chosen = {"device": options.device or "auto", "dtype": options.dtype or "bfloat16"}
    compute = parse(Compute, chosen, "metamorphic judge")
    backend = open_judge(settings, GenerationSettings(backend=options.backend or "hf"), compute)
    if backend is None:
        raise UserError("metamorphic judge: no judge: give --directory, or --base-url and --judge-model")
    questions, before = read_questions(options.questions), read_answers(options.answers)
    missing = [question.id for question in questions if question.id not in before]
    if missing:
        raise UserError(f"{options.answers}: {len(missing)} questions have no answer, the first is {missing[0]}")
    after = judged(questions, before, read_material(options.groups, options.properties), backend, settings.which)
    write_answers(options.output, after)
    changed = sum(answer.label != before[answer.id].label for answer in after)
    left = sum(answer.label == "UNSURE" for answer in after)
    print(f"{changed} of {len(after)} answers have another label, {left} stay UNSURE")
    return 0
