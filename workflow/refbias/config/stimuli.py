"""Which sentences are embedded, and how many of each set."""

from pydantic import Field

from refbias.config.base import Strict


class StimuliSettings(Strict):
    """Sentence sets; the shipped ones unless a file is named."""

    targets: int = Field(default=50, ge=1, description="Target templates per group (first n of the file).")
    attributes: int = Field(default=100, ge=1, description="Attribute sentences of each valence (first n).")
    anchors: int = Field(default=1000, ge=1, description="Anchor sentences (first n; the file interleaves groups).")
    control: int = Field(default=50, ge=1, description="Group-free control targets (first n).")
    groups_file: str | None = Field(default=None, description="TSV of target groups; empty = shipped.")
    targets_file: str | None = Field(default=None, description="TSV of target templates; empty = shipped.")
    attributes_file: str | None = Field(default=None, description="TSV of attribute sentences; empty = shipped.")
    anchors_file: str | None = Field(default=None, description="TSV of anchors; empty = shipped.")
    control_file: str | None = Field(default=None, description="TSV of control targets; empty = shipped.")
