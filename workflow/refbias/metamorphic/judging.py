"""Judge models: a local one or one behind an interface, each other than the model under test."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from refbias.acquisition.cache import cache_root
from refbias.config.generation import GenerationSettings
from refbias.config.metamorphic import EndpointSettings, JudgeSettings
from refbias.config.models import Compute
from refbias.metamorphic.answers import Answer, answer_row
from refbias.metamorphic.data import Material
from refbias.metamorphic.endpoint import Endpoint
from refbias.metamorphic.judge import JudgeBackend, cascade
from refbias.metamorphic.labeller import Verdict, asked_of
from refbias.metamorphic.questions import Question

LOG = logging.getLogger(__name__)
NEW_TOKENS = 8
"""Enough for a digit and what a chat model puts around it."""


@dataclass(frozen=True)
class LocalJudge:
    """A model in a folder, run by a generation backend."""

    directory: Path
    generation: GenerationSettings
    compute: Compute

    def complete(self, prompts: Sequence[str]) -> list[str]:
        """Return one greedy reply a prompt, in order."""
        from refbias.benchmarks.base import Message
        from refbias.generation import Request
        from refbias.generation.completion import complete
        from refbias.models import load_tokenizer, prompt_ids

        tokenizer = load_tokenizer(self.directory)
        requests = [
            Request(f"j{number}", "", tuple(prompt_ids(tokenizer, (Message("user", prompt),))))
            for number, prompt in enumerate(prompts)
        ]
        return complete(
            self.directory,
            requests,
            NEW_TOKENS,
            generation=self.generation,
            compute=self.compute,
            name=f"judge {self.directory.name}",
        )


def open_endpoint(settings: EndpointSettings, max_new_tokens: int, temperature: float = 0.0, seed: int = 0) -> Endpoint:
    """Return a model behind an interface, with its cache and the key from the environment."""
    return Endpoint(
        settings,
        cache=Path(settings.cache) if settings.cache else cache_root() / "answers",
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        environment=os.environ,
    )


def open_judge(
    settings: JudgeSettings, generation: GenerationSettings | None, compute: Compute | None
) -> JudgeBackend | None:
    """Return the judge that the settings name, None for none."""
    if settings.endpoint is not None:
        return open_endpoint(settings.endpoint, NEW_TOKENS)
    if settings.directory is not None:
        return LocalJudge(Path(settings.directory), generation or GenerationSettings(), compute or Compute())
    return None


def judged(
    questions: Sequence[Question],
    answers: Mapping[str, Answer],
    material: Material,
    backend: JudgeBackend,
    which: str,
) -> list[Answer]:
    """Return the answers after the judge has seen those that are its to see, in the order of the questions.

    Parameters
    ----------
    questions, answers
        All questions with their answers by rules; forced choices are never judged, they hold no words.
    material
        Groups and properties of the questions.
    backend
        The judge.
    which
        ``unsure`` or ``all``.
    """
    written = [question for question in questions if not answers[question.id].rule.startswith("forced_choice")]
    verdicts = {q.id: Verdict(answers[q.id].label, answers[q.id].rule, answers[q.id].answer) for q in written}
    asked = {question.id: asked_of(question, material) for question in written}
    found = cascade(verdicts, asked, backend, "all" if which == "all" else "unsure")
    changed = sum(found[name].label != verdicts[name].label for name in found)
    LOG.info("judge: %d of %d answers have another label", changed, len(found))
    return [
        answer_row(question.id, answers[question.id].raw, found[question.id])
        if question.id in found
        else answers[question.id]
        for question in questions
    ]
