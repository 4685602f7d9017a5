"""Tables of what changes when the direction is taken out, and along the axis of dB."""

from collections.abc import Sequence

from refbias.competence.results import Subject
from refbias.tables.competence.labels import ABLATION_LABELS, MEASURE_LABELS
from refbias.tables.competence.rows import SUBJECT_HEADERS, CompetenceTable, in_words, of_all
from refbias.tables.formats import count
from refbias.tables.labels import benchmark_label, plain_name, score_label
from refbias.tables.printed import digits, printed

MITIGATION_CAPTION = (
    "The direction taken out (affine ablation) at its layer: contrasts of E at the last layer (in gaps of held-out "
    "experts and novices there), and what it costs: perplexity on neutral sentences, reading level of greedy "
    "answers, hiring logit."
)
AXIS_CAPTION = (
    "Steering along the axis that dB is about (mean state of positive less negative attribute sentences): a "
    "benchmark's score by group and strength; alpha 0 is no steering. The scorer, perhaps a stand-in, is named in "
    "axis.manifest.json."
)


def mitigation_table(subjects: Sequence[Subject]) -> CompetenceTable | None:
    """Return contrasts, behaviour and perplexity with and without the direction; None where it was never taken out."""
    tried = [subject for subject in subjects if subject.mitigation is not None]
    if not tried:
        return None
    frame = of_all(tried, {subject.slug: subject.mitigation for subject in tried if subject.mitigation is not None})
    shown = in_words(frame).assign(
        arm=[ABLATION_LABELS.get(str(arm), str(arm)) for arm in frame["arm"]], role=frame["role"].astype(str)
    )
    headers = {
        **SUBJECT_HEADERS,
        "arm": "Direction",
        "contrast_id": "Contrast",
        "role": "Role",
        "mean_E_normalised": "E at the last layer",
        "perplexity": "Perplexity",
        "reading_level": MEASURE_LABELS["L"],
        "yes_logit": MEASURE_LABELS["hiring"],
    }
    formats = dict.fromkeys(("mean_E_normalised", "perplexity", "reading_level", "yes_logit"), digits(2))
    return CompetenceTable("competence_mitigation", frame, printed(shown, headers, formats), MITIGATION_CAPTION)


def axis_table(subjects: Sequence[Subject]) -> CompetenceTable | None:
    """Return a benchmark's scores at each step along the axis of dB; None where no subject was steered along it."""
    tried = [subject for subject in subjects if subject.axis is not None]
    if not tried:
        return None
    frame = of_all(tried, {subject.slug: subject.axis for subject in tried if subject.axis is not None})
    shown = in_words(frame).assign(
        group=[plain_name(str(group)) for group in frame["group"]],
        benchmark=[f"{benchmark_label(str(name))}, {score_label(str(name))}" for name in frame["benchmark"]],
    )
    shown = shown.sort_values(["model", "subject", "benchmark", "group", "alpha"], kind="stable")
    headers = {
        **SUBJECT_HEADERS,
        "benchmark": "Benchmark",
        "group": "Group",
        "alpha": "alpha",
        "score": "Score",
        "n": "Responses",
        "n_missing": "Not scored",
        "perplexity": "Perplexity",
    }
    formats = {
        "alpha": digits(1),
        "score": digits(2),
        "n": count,
        "n_missing": count,
        "perplexity": digits(2),
    }
    return CompetenceTable("competence_axis", frame, printed(shown, headers, formats), AXIS_CAPTION)
