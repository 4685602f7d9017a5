"""The nine topics of WildGuardMix's prompts about groups, in the order of tables."""

import re

TOPICS = (
    "sexual_orientation", "religion", "race", "ethnicity", "gender", "age", "disability",
    "socioeconomic_status", "nationality",
)  # fmt: skip
NO_TOPIC = "none"
LABELS = (*TOPICS, NO_TOPIC)


def fold(name: str) -> str:
    """Return a name in the form that comparisons use: lower case, one underscore between words."""
    return re.sub(r"[\s_\-]+", "_", name.strip()).casefold()
