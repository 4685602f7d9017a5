"""The topic of each WildGuardMix prompt: how it is found where the prompts' file does not say it."""

from typing import Literal

from pydantic import Field, model_validator

from refbias.config.base import Strict
from refbias.config.models import ChatFormat, Compute
from refbias.config.scorers import GuardSource


class TopicSettings(Strict):
    """How prompts get a topic: by rules on words, or by asking a language model."""

    mapper: Literal["rules", "llm"] = Field(
        default="rules", description="`rules`: words of groups and topics; `llm`: the likeliest label to a model."
    )
    model: GuardSource | None = Field(default=None, description="Causal language model of mapper `llm`.")
    chat_format: ChatFormat = Field(default="auto", description="As for `models`, of mapper `llm`.")
    words_file: str | None = Field(
        default=None, description="TSV of words by topic, of mapper `rules`; empty = the shipped one."
    )

    @model_validator(mode="after")
    def _model_where_it_is_used(self) -> "TopicSettings":
        if (self.mapper == "llm") != (self.model is not None):
            raise ValueError("mapper 'llm' needs key 'model', mapper 'rules' takes none")
        return self


class TopicStage(Strict):
    """Slice of the configuration that the stage `topics` sees.

    `prompts` is WildGuardMix's file or folder; `compute` is None where no model runs.
    """

    prompts: str | None
    topics: TopicSettings
    groups_file: str | None = None
    compute: Compute | None = None
