"""What a pack of stimuli says of itself, in its ``pack.json``."""

from typing import Literal

from pydantic import Field

from refbias.config.base import Strict

Part = Literal["groups", "targets", "attributes", "anchors", "control"]
Language = Literal["en", "de", "other"]


class PackFacts(Strict):
    """Metadata of a pack.

    `positive` and `negative` say what the two attribute sets stand for: praise and blame of people in most packs,
    other concepts in some.
    """

    language: Language = Field(default="en", description="Language of the text; `other` = no checks of its grammar.")
    concept: str = Field(default="", description="What the groups are: people, kinds of request, ...")
    positive: str = Field(default="positive", description="What the positive attributes stand for.")
    negative: str = Field(default="negative", description="What the negative attributes stand for.")
    description: str = Field(default="", description="One or two sentences about the pack.")
    inherits: list[Part] = Field(default=[], description="Files that are the default pack's.")
