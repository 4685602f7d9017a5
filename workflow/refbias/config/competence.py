"""The competence lens: what is asked, where the direction is read, how far it is steered."""

from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from refbias.config.base import Strict
from refbias.config.benchmarks import Benchmarks
from refbias.config.models import ChatFormat, Compute
from refbias.config.scorers import ScoreStage
from refbias.config.stimuli import StimuliSettings

Regime = Literal["full", "lora"]
Share = Annotated[float, Field(ge=0, le=1)]
Occupations = Annotated[int, Field(ge=1)] | Annotated[list[str], Field(min_length=1)]


def _no_two_alike(values: list[Any]) -> list[Any]:
    """Refuse a value that stands twice: it would count twice in every mean."""
    twice = [value for value, times in Counter(values).items() if times > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} stands twice: name each once")
    return values


Alphas = Annotated[list[float], AfterValidator(_no_two_alike)]


class CompetenceData(Strict):
    """Files of the lens; each is the shipped one unless a user names another."""

    pairs_file: str | None = Field(default=None, description="TSV of expert and novice sentences; empty = shipped.")
    expert_file: str | None = Field(
        default=None, description="Experts' sentences, one a line, in place of `pairs_file`; with `novice_file`."
    )
    novice_file: str | None = Field(default=None, description="Novices' sentences, line by line with `expert_file`.")
    unequal_pairs: Literal["refuse", "note"] = Field(
        default="refuse", description="What to do about a pair of unequal length in `pairs_file`."
    )
    questions: str | None = Field(
        default=None, description="TSV of questions, or folder of `<occupation>.txt`; empty = shipped."
    )
    attributes_file: str | None = Field(default=None, description="TSV of attributes; empty = shipped.")
    contrasts_file: str | None = Field(default=None, description="TSV of contrasts; empty = shipped.")
    resumes_file: str | None = Field(default=None, description="TSV of résumés; empty = shipped.")
    names_file: str | None = Field(default=None, description="TSV of names; empty = shipped.")
    easy_words_file: str | None = Field(
        default=None, description="List of easy words, one a line; empty = that of the package textstat."
    )

    @model_validator(mode="after")
    def _both_sides(self) -> Self:
        if (self.expert_file is None) != (self.novice_file is None):
            raise ValueError("expert_file and novice_file belong together: name both or neither")
        if self.expert_file is not None and self.pairs_file is not None:
            raise ValueError("pairs_file, or expert_file with novice_file: name one")
        return self


class AnswerSettings(Strict):
    """Answers to the questions, whose reading level is measured."""

    samples: int = Field(default=5, ge=1, description="Answers to each prompt.")
    temperature: float = Field(default=0.6, ge=0, description="0 = the most probable token.")
    top_p: float = Field(default=0.8, gt=0, le=1, description="Mass of the tokens that are drawn from.")
    max_new_tokens: int = Field(default=100, ge=1, description="Tokens of an answer at most.")
    without_occupation: bool = Field(
        default=True, description="Answer contexts that name no occupation too, not only the one a contrast needs."
    )
    questions: int | None = Field(
        default=None, ge=1, description="Questions an occupation that are answered; empty = all that are scored."
    )
    batch_size: int = Field(default=64, ge=1, description="Answers decoded together.")


class SteeringSettings(Strict):
    """The causal check: answers and decisions while the states are moved along the direction."""

    subjects: Literal["reference", "all"] = Field(default="reference", description="Checkpoints that are steered.")
    alphas: Alphas = Field(
        default=[-10, -8, -6, -4, -2, 2, 4, 6, 8, 10],
        min_length=1,
        description="Multiples of the direction that are tried, beside 0.",
    )
    perplexity_limit: float = Field(
        default=1.5, gt=1, description="A grid ends where perplexity passes this multiple of that at 0."
    )
    perplexity_sentences: int = Field(default=100, ge=2, description="Anchor sentences that perplexity is taken over.")
    questions: int = Field(default=2, ge=1, description="Questions an occupation that are answered at each alpha.")
    max_new_tokens: int = Field(default=100, ge=1, description="Tokens of an answer at most; answers are greedy.")
    n_random: int = Field(default=3, ge=1, description="Random directions, as long as the direction, to steer along.")
    placebo: str = Field(
        default="left_right_handed", description="Contrast whose difference of states is the placebo direction."
    )


class HiringSettings(Strict):
    """The hiring task, without steering and along the direction both ways."""

    alpha: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        default="auto", description="Multiple of the direction; `auto` = the largest that perplexity allows both ways."
    )
    names: int | None = Field(default=None, ge=1, description="Names a group; empty = all.")
    max_new_tokens: int = Field(default=5, ge=1, description="Tokens that the written answer is read from.")


class AxisSettings(Strict):
    """Steering along the axis that dB is about, with the output benchmarks before and after."""

    alphas: Alphas = Field(
        default=[-4, -2, 2, 4], min_length=1, description="Multiples of the axis that are tried, beside 0."
    )
    perplexity_limit: float = Field(
        default=1.5, gt=1, description="A grid ends where perplexity passes this multiple of that at 0."
    )
    benchmark: Literal["wildguardmix", "decodingtrust", "toxigen"] = Field(
        default="toxigen", description="Benchmark of the run that is answered and scored at each alpha."
    )
    prompts_per_unit: int = Field(default=20, ge=1, description="Prompts of each unit.")
    samples: int = Field(default=2, ge=1, description="Responses to each prompt.")
    max_new_tokens: int = Field(default=48, ge=1, description="Tokens of a response at most.")


class CompetenceAnalysis(Strict):
    """Statistics of the lens; see `refbias competence analyse`."""

    level: float = Field(default=0.95, gt=0, lt=1, description="Of intervals and tests.")
    n_resamples: int = Field(default=2000, ge=1, description="Bootstrap resamples, by occupation and then question.")
    n_permutations: int = Field(default=10_000, ge=1, description="Sign flips.")
    bound: float = Field(default=0.25, gt=0, description="Grades of reading level that count as no difference.")
    hiring_bound: float = Field(default=0.1, gt=0, description="Logits that count as no difference.")
    representation_share: float = Field(
        default=0.2, gt=0, description="Share of the median relevance check on E that counts as no difference."
    )


class CompetenceSettings(Strict):
    """Occupational competence, by the target `competence`."""

    data: CompetenceData = Field(default=CompetenceData(), description="Files of the lens.")
    occupations: Occupations | None = Field(
        default=None, description="The first so many occupations, or some by name; empty = all."
    )
    questions: int | None = Field(default=None, ge=1, description="Questions an occupation; empty = all.")
    checkpoints: list[Share] = Field(
        default=[0, 1], description="Harmful weights of the checkpoints beside the reference; the run must have them."
    )
    regimes: list[Regime] | None = Field(default=None, description="Regimes of those checkpoints; empty = the run's.")
    layer: int | Literal["auto"] = Field(
        default="auto", description="Block whose output is read and steered; `auto` = the best held-out separation."
    )
    layer_range: tuple[Share, Share] = Field(
        default=(0.25, 0.75), description="Depths between which `auto` looks, as shares of the number of blocks."
    )
    n_random: int = Field(default=200, ge=200, description="Random directions of each kind that contrasts are held to.")
    answer: AnswerSettings = Field(default=AnswerSettings(), description="Answers and their reading level.")
    steering: SteeringSettings = Field(default=SteeringSettings(), description="Steering along the direction.")
    hiring: HiringSettings = Field(default=HiringSettings(), description="The hiring task.")
    axis: AxisSettings | None = Field(
        default=None, description="Steering along the axis of dB (reference model); null = not."
    )
    analysis: CompetenceAnalysis = Field(default=CompetenceAnalysis(), description="Statistics.")

    @field_validator("occupations")
    @classmethod
    def _each_once(cls, value: Occupations | None) -> Occupations | None:
        return _no_two_alike(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.layer_range[0] > self.layer_range[1]:
            raise ValueError("layer_range: the first depth lies beyond the second: exchange them")
        return self


class CompetenceStage(Strict):
    """What every stage of the lens that runs a model sees."""

    subject: str
    weight: float | None
    merge_dtype: Literal["float32", "bfloat16", "endpoint"]
    compute: Compute
    chat_format: ChatFormat
    seed: int
    data: CompetenceData
    occupations: Occupations | None
    questions: int | None


class CompetenceRepresentStage(CompetenceStage):
    """Slice of the stage `competence represent`."""

    layer: int | Literal["auto"]
    layer_range: tuple[Share, Share]
    n_random: int


class CompetenceSteerStage(CompetenceStage):
    """Slice of the stage `competence steer`."""

    steering: SteeringSettings
    stimuli: StimuliSettings


class CompetenceAnswerStage(CompetenceStage):
    """Slice of the stage `competence answer`."""

    answer: AnswerSettings


class CompetenceHireStage(CompetenceStage):
    """Slice of the stage `competence hire`."""

    hiring: HiringSettings


class CompetenceAxisStage(CompetenceStage):
    """Slice of the stage `competence axis`: the benchmarks as they are asked, the scorers as they judge."""

    axis: AxisSettings
    stimuli: StimuliSettings
    benchmarks: Benchmarks
    score: ScoreStage
    perplexity_sentences: int
