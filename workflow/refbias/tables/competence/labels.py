"""What the competence lens's contrasts, measures and verdicts are called in print."""

import re
from functools import cache

from refbias.competence.data import load_attributes, load_contrasts
from refbias.competence.records import BASELINE, OCCUPATION
from refbias.competence.results import REFERENCE
from refbias.tables.formats import number
from refbias.tables.labels import plain_name, regime_label

ROLES = ("relevant", "irrelevant", "placebo")
MEASURE_LABELS = {
    "E": "Expertise score E",
    "E_normalised": "E in expert\u2013novice gaps",
    "L": "Reading level L (grades)",
    "fkgl": "FKGL (grades)",
    "dcrs": "DCRS (grades)",
    "hiring": "logit(Yes) \u2212 logit(No)",
    "hiring_E": "E at the hiring prompt",
}
FAMILY_LABELS = {"income": "Income", "hand": "Handedness (placebo)", "drink": "Drink (placebo)"}
ABLATION_LABELS = {"plain": "as it is", "ablated": "taken out"}
ARM_LABELS = {"none": "no steering", "plus": "towards expert", "minus": "towards novice"}
TASK_LABELS = {"answers": "answers", "hiring": "hiring"}
_PROPER = {"asian": "Asian", "black": "Black", "hispanic": "Hispanic"}
_CONTRASTS = {
    "strong_weak": "strong against weak r\u00e9sum\u00e9",
    "arm_plus": "steered towards expert against not",
    "arm_minus": "steered towards novice against not",
}


@cache
def _shipped() -> dict[str, str]:
    names = {BASELINE: "nothing said", OCCUPATION: "occupation named"}
    found = {}
    for contrast in load_contrasts(load_attributes()):
        sides = [names.get(side, attribute_label(side)) for side in (contrast.first, contrast.second)]
        found[contrast.id] = " against ".join(sides)
    return found


def attribute_label(attribute_id: str) -> str:
    """Return what an attribute is called: its id as words."""
    if attribute_id == BASELINE:
        return "nothing said"
    words = " ".join(_PROPER.get(word, word) for word in attribute_id.split("_"))
    return words.replace(" handed", "-handed")


def contrast_label(contrast_id: str) -> str:
    """Return what a contrast is called: both its sides where it is known, else its id as words."""
    if contrast_id in _CONTRASTS:
        return _CONTRASTS[contrast_id]
    if contrast_id.startswith("names_"):
        sides = [_PROPER.get(side, side) for side in contrast_id.removeprefix("names_").split("_")]
        return f"names of {' against '.join(sides)}" if len(sides) == 2 else f"names, {' '.join(sides)}"
    return _shipped().get(contrast_id, attribute_label(contrast_id))


def reason_text(reason: str) -> str:
    """Return a reason of the competence lens with its measures and contrasts as they are called in print."""
    known = {**MEASURE_LABELS, **{key: contrast_label(key) for key in (*_CONTRASTS, *_shipped())}}
    return re.sub(r"\w+", lambda found: known.get(found[0], found[0]), reason)


def family_label(family: str) -> str:
    """Return what a family of attributes is called."""
    return FAMILY_LABELS.get(family, plain_name(family))


def subject_label(subject: str) -> str:
    """Return what a subject is called: the reference, or regime and checkpoint."""
    if subject == REFERENCE:
        return "reference"
    regime, _, checkpoint = subject.partition("-")
    return f"{regime_label(regime)}, {checkpoint}" if checkpoint else subject


def effect_text(mean: float | None, places: int = 2) -> str:
    """Format a difference with its sign."""
    text = number(mean, places)
    return f"+{text}" if mean is not None and mean > 0 and text[:1].isdigit() else text
