"""The sentences whose embeddings are compared: target groups, target templates, attributes, anchors, control.

All sets ship as tab-separated files and can be replaced by a user's own; both go through the same checks. Every
sentence has an id, so that a result can be traced to the line that it came from.
"""

from refbias.stimuli.anchors import check_anchors, load_masked_anchors, load_word_anchors, mask_anchors
from refbias.stimuli.entries import Entry, sentence_key
from refbias.stimuli.groups import Group, Mentions, fill, group_topics, load_groups, toxigen_groups
from refbias.stimuli.quality import Finding, check_quality
from refbias.stimuli.sentences import (
    Sentence,
    StimulusSet,
    load_stimuli,
    read_stimuli,
    sentence_table,
    stimuli_sha256,
    validate_stimuli,
)
from refbias.stimuli.table import Cleaning, Row, Table, read_table
from refbias.stimuli.variants import CELLS, Variant, apply_variant, check_variant, load_variant

__all__ = [
    "CELLS",
    "Cleaning",
    "Entry",
    "Finding",
    "Group",
    "Mentions",
    "Row",
    "Sentence",
    "StimulusSet",
    "Table",
    "Variant",
    "apply_variant",
    "check_anchors",
    "check_quality",
    "check_variant",
    "fill",
    "group_topics",
    "load_groups",
    "load_masked_anchors",
    "load_stimuli",
    "load_variant",
    "load_word_anchors",
    "mask_anchors",
    "read_stimuli",
    "read_table",
    "sentence_key",
    "sentence_table",
    "stimuli_sha256",
    "toxigen_groups",
    "validate_stimuli",
]
