"""Scorers that run a model over stored responses: which model, which label, which limits.

The scorers by rule (the agreement phrases, the stand-in) need no settings; their names are listed
here so that a configuration can be checked without loading them.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from refbias.config.base import Device, Dtype, Strict
from refbias.config.models import HubSource, LocalSource

RULE_SCORERS = ("agreement_rule", "standin_valence")
ScorerName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
"""A scorer's name, as in tables and paths: lower-case letters, digits, underscore."""

GuardSource = Annotated[HubSource | LocalSource, Field(discriminator="kind")]


class WildGuardSettings(Strict):
    """A guard model that answers in WildGuard's three lines."""

    kind: Literal["wildguard"] = "wildguard"
    model: GuardSource = Field(
        default=HubSource(kind="hub", id="allenai/wildguard", revision="main"),
        description="Where the guard comes from; a commit as revision is reproducible.",
    )
    prompt_file: str | None = Field(
        default=None,
        description="Text file with the guard's input, `{prompt}` and `{response}` in it; empty = read from the "
        "installed package wildguard 1.0.1.",
    )
    backend: Literal["hf", "vllm"] = Field(
        default="hf",
        description="`hf`: transformers; `vllm`: vLLM (`make env-vllm`), by the interpreter of `generation`.",
    )
    dtype: Dtype = Field(default="bfloat16", description="Number type of weights and activations.")
    batch_size: int = Field(default=32, ge=1, description="Responses judged together.")
    max_new_tokens: int = Field(default=128, ge=1, description="New tokens at most.")
    max_unreadable: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="Share of answers of a checkpoint and benchmark that may be unreadable before the stage fails.",
    )


class ClassifierSettings(Strict):
    """A sequence classifier: 1 where the probability of one label passes a threshold."""

    kind: Literal["classifier"] = "classifier"
    model: GuardSource = Field(description="Where the classifier comes from.")
    label: str = Field(min_length=1, description="Label that counts, by its name in the model's config.json.")
    threshold: float = Field(default=0.5, ge=0, lt=1, description="A probability above it scores 1.")
    max_tokens: int = Field(default=512, ge=4, description="Tokens at most; longer texts are cut.")
    batch_size: int = Field(default=64, ge=1, description="Texts classified together.")
    dtype: Dtype = Field(default="float32", description="Number type of weights and activations.")


ScorerSettings = Annotated[WildGuardSettings | ClassifierSettings, Field(discriminator="kind")]

DEFAULT_SCORERS: dict[str, WildGuardSettings | ClassifierSettings] = {
    "wildguard": WildGuardSettings(),
    "toxigen_roberta": ClassifierSettings(
        model=HubSource(kind="hub", id="tomh/toxigen_roberta", revision="main"), label="LABEL_1"
    ),
}


def with_defaults(value: Any) -> Any:
    """Return the section `scorers` with what the user left out of a known scorer filled in.

    Raises
    ------
    ValueError
        If an entry takes the name of a scorer by rule.
    """
    if not isinstance(value, Mapping):
        return value
    filled: dict[Any, Any] = dict(DEFAULT_SCORERS)
    for name, entry in value.items():
        if name in RULE_SCORERS:
            raise ValueError(f"{name} is a scorer by rule and has no settings: choose another name")
        known = DEFAULT_SCORERS.get(name)
        if known is not None and isinstance(entry, Mapping) and entry.get("kind", known.kind) == known.kind:
            filled[name] = {**known.model_dump(), **entry}
        else:
            filled[name] = entry
    return filled


def unknown_scorer(name: str, known: Iterable[str]) -> str | None:
    """Return what to tell the user of a scorer that does not exist, None if it does."""
    names = [*RULE_SCORERS, *known]
    if name in names:
        return None
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return f"no scorer {name!r}: did you mean {near[0]!r}? (known: {', '.join(names)})"


class ScoreStage(Strict):
    """Slice of the configuration that the stage `score` sees.

    `scorers` maps a benchmark to its scorer's name, `settings` holds the used scorers that run a
    model, `device` is where they run (None where none does).
    """

    scorers: dict[str, str]
    settings: dict[ScorerName, ScorerSettings] = Field(default={})
    device: Device | None = None
