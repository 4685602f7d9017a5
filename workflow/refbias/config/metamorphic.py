"""Metamorphic tests of bias: which questions are put to which models, how, and what is done about it."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from refbias.config.base import Slug, Strict
from refbias.config.finetune import FullRegime, LoraRegime
from refbias.config.generation import GenerationSettings
from refbias.config.models import ChatFormat, Compute

Chain = Annotated[str, StringConstraints(pattern=r"^MR[1-6](@[1-9])?(>MR[1-6](@[1-9])?)*$")]
Pole = Literal["negative", "positive"]
Reading = Literal["generate", "forced_choice"]
Subjects = Literal["reference", "endpoints", "spectra"]
RELATIONS = ["MR1", "MR2", "MR3", "MR4", "MR5", "MR6"]

TABLES = ("model_relation", "category_relation", "mitigation", "side_effects", "beside_db", "beside_db_summary")
"""File names, without extension, of the tables; here because the workflow asks, which loads no pandas for it."""


class EndpointSettings(Strict):
    """A model behind an OpenAI-compatible interface (`POST <base_url>/chat/completions`)."""

    base_url: str = Field(pattern=r"^https?://\S+$", description="Address up to `/chat/completions`, such as `.../v1`.")
    model: str = Field(min_length=1, description="Name of the model as the service knows it.")
    key_env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="NAME of the environment variable that holds the key; empty = no key is sent.",
    )
    concurrency: int = Field(default=4, ge=1, le=256, description="Requests under way at once.")
    max_retries: int = Field(default=6, ge=0, description="Repeats of a request after 429, 5xx or a lost connection.")
    token_key: Literal["max_tokens", "max_completion_tokens"] = Field(
        default="max_tokens", description="What the service calls the limit of new tokens."
    )
    cache: str | None = Field(
        default=None, description="Folder of the answers, shared by runs; empty = `answers` in the cache of refbias."
    )
    timeout_s: float = Field(default=120.0, gt=0, description="Seconds after which a request counts as lost.")
    max_requests: int | None = Field(
        default=None, ge=1, description="Budget of a job: requests sent, repeats included; empty = no limit."
    )
    max_tokens: int | None = Field(
        default=None, ge=1, description="Budget of a job: tokens of prompts and answers; empty = no limit."
    )

    def outcome(self) -> dict[str, Any]:
        """Return what answers depend on (JSON values): no speed, no budget, no name of a variable."""
        return self.model_dump(mode="json", include={"base_url", "model"})


class ForcedChoiceSettings(Strict):
    """Log-probability of the options group A, group B and no difference, each order of the groups once."""

    options: Literal["text", "letters"] = Field(
        default="letters",
        description="`letters`: next-token log-probability of X, Y and Z; `text`: mean log-probability a token of the "
        "options' words, for small base models that do not know letters.",
    )
    min_margin: float = Field(
        default=0.0,
        ge=0,
        description="Log-probability by which the best option leads the second, over both orders; below: UNSURE.",
    )
    batch_size: int = Field(default=32, ge=1, description="Prompts of equal length read together.")


class JudgeSettings(Strict):
    """A model that labels answers which the rules leave open; never the model under test."""

    which: Literal["none", "unsure", "all"] = Field(
        default="none", description="`none`: rules alone; `unsure`: answers that no rule decides; `all`: all but empty."
    )
    directory: str | None = Field(default=None, description="Folder of a local judge model, in transformers' layout.")
    endpoint: EndpointSettings | None = Field(default=None, description="A judge behind an interface; empty = local.")

    @model_validator(mode="after")
    def _one_judge(self) -> Self:
        given = [name for name in ("directory", "endpoint") if getattr(self, name) is not None]
        if self.which != "none" and len(given) != 1:
            raise ValueError(f"which {self.which!r} needs one of `directory` and `endpoint`")
        if self.which == "none" and given:
            raise ValueError(f"`{given[0]}` is given: set `which` to unsure or all, or leave it out")
        return self


class MitigationFinetune(Strict):
    """Hyperparameters of the mitigation; an empty one is the run's own of the same regime."""

    learning_rate: float | None = Field(default=2e-5, gt=0, description="Peak learning rate.")
    epochs: float | None = Field(default=3, gt=0, description="Passes over the set.")
    per_device_batch_size: int | None = Field(default=None, ge=1, description="Examples a device takes at once.")
    gradient_accumulation: int | None = Field(default=None, ge=1, description="Batches summed before an update.")
    max_length: int | None = Field(default=None, ge=8, description="Tokens of prompt and completion together.")
    save_steps: int | None = Field(default=500, ge=1, description="Updates between resumable trainer checkpoints.")


class MitigationSettings(Strict):
    """Fine-tuning on unbiased answers, and the same questions again."""

    regime: Literal["full", "lora"] = Field(default="full", description="Training regime.")
    finetune: MitigationFinetune = Field(default=MitigationFinetune(), description="Its hyperparameters.")
    hold_out: Chain | None = Field(default="MR4", description="Relation kept out of the training set; null = none.")
    neutral_tokens: int = Field(default=48, ge=1, description="New tokens of an answer to a neutral question, at most.")
    open_questions: int = Field(
        default=100,
        ge=0,
        description="Source questions that are asked openly too, for the variety of answers, where `reading` is "
        "forced_choice.",
    )


class MetamorphicSettings(Strict):
    """Second lens: questions about pairs of groups, reworded so that an unbiased answer stays."""

    models: list[Slug] = Field(default=[], description="Models of the run that are tested; empty = all.")
    endpoints: dict[Slug, EndpointSettings] = Field(
        default={}, description="Further models behind an OpenAI-compatible interface; always read by `generate`."
    )
    subjects: Subjects = Field(
        default="reference",
        description="`reference` alone, with the `endpoints` of its spectra, or every checkpoint of the `spectra`.",
    )
    groups_file: str | None = Field(
        default=None, description="TSV of groups, or CSV of a BiasAsker copy; empty = shipped."
    )
    properties_file: str | None = Field(
        default=None, description="TSV of properties, or CSV of a BiasAsker copy; empty = shipped."
    )
    per_category: int = Field(default=55, ge=1, description="Source questions of each category.")
    relations: list[Chain] = Field(
        default=RELATIONS, min_length=1, description="Rewordings, such as `MR3`, `MR3>MR6` or `MR4@2`."
    )
    poles: list[Pole] = Field(default=["negative"], min_length=1, description="Poles of the source questions.")
    reading: Reading = Field(
        default="generate",
        description="`generate`: answers are written and labelled; `forced_choice`: log-probabilities of the options, "
        "for models that do not follow questions.",
    )
    forced_choice: ForcedChoiceSettings = Field(default=ForcedChoiceSettings(), description="The second reading.")
    max_new_tokens: int = Field(default=128, ge=1, description="New tokens of an answer, at most.")
    temperature: float = Field(default=0.0, ge=0, description="Sampling temperature; 0 = greedy.")
    few_shot: int = Field(
        default=4, ge=0, le=8, description="Examples with an unbiased answer in front, asked again so; 0 = not asked."
    )
    judge: JudgeSettings = Field(default=JudgeSettings(), description="A judge model.")
    mitigation: MitigationSettings | None = Field(
        default=MitigationSettings(), description="Fine-tuning against the bias found; null = none."
    )
    n_resamples: int = Field(default=2000, ge=100, description="Resamples of the bootstrap over source questions.")

    @field_validator("relations", "poles", "models")
    @classmethod
    def _once(cls, value: list[str]) -> list[str]:
        for name in value:
            if value.count(name) > 1:
                raise ValueError(f"{name} stands twice: name it once")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.mitigation is not None and self.mitigation.hold_out not in (None, *self.relations):
            raise ValueError(
                f"mitigation.hold_out: {self.mitigation.hold_out} is none of the relations: "
                f"use one of {', '.join(self.relations)}, or null"
            )
        files = (self.groups_file, self.properties_file)
        csv = [bool(path and path.lower().endswith(".csv")) for path in files]
        if any(csv) and not all(csv):
            raise ValueError("groups_file, properties_file: a BiasAsker copy needs both of its CSV files")
        judge = self.judge.endpoint
        for slug, tested in self.endpoints.items():
            if judge is not None and judge.outcome() == tested.outcome():
                raise ValueError(f"judge.endpoint: {judge.model} is the model under test {slug!r}: name another")
        return self


class SampleStage(Strict):
    """Slice of the configuration that the stage `metamorphic sample` sees."""

    groups_file: str | None
    properties_file: str | None
    per_category: int
    relations: list[Chain]
    poles: list[Pole]
    seed: int


class AskStage(Strict):
    """Slice of the configuration that the stage `metamorphic ask` sees.

    `questions` is what is asked: the sample, the neutral questions, or the first `first` source questions. A forced
    choice has neither new tokens nor a temperature.
    """

    groups_file: str | None
    properties_file: str | None
    questions: Literal["sample", "neutral", "open"] = "sample"
    first: int | None = None
    reading: Reading
    forced_choice: ForcedChoiceSettings | None = None
    few_shot: int
    max_new_tokens: int = 1
    temperature: float = 0.0
    generation: GenerationSettings | None = None
    compute: Compute | None = None
    chat_format: ChatFormat = "auto"
    endpoint: EndpointSettings | None = None
    seed: int


class LabelStage(Strict):
    """Slice of the configuration that the stage `metamorphic evaluate` sees; `first` as in `AskStage`."""

    groups_file: str | None
    properties_file: str | None
    first: int | None = None
    reading: Reading
    min_margin: float
    judge: JudgeSettings
    generation: GenerationSettings | None = None
    compute: Compute | None = None
    n_resamples: int
    seed: int


def mitigation_regime(
    chosen: MitigationSettings, full: FullRegime | None, lora: LoraRegime | None
) -> FullRegime | LoraRegime:
    """Return the hyperparameters of the mitigation: the run's regime (its defaults where it has none) with its own."""
    base: FullRegime | LoraRegime = (full or FullRegime()) if chosen.regime == "full" else (lora or LoraRegime())
    own = chosen.finetune.model_dump(exclude_none=True)
    return type(base).model_validate({**base.model_dump(), **own})
