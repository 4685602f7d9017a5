"""Tables of the competence lens's hiring task: by steering, and between groups of names."""

from collections.abc import Sequence

from refbias.competence.hiring_analysis import STEERING_ROLE
from refbias.competence.results import Subject
from refbias.tables.competence.labels import ARM_LABELS, MEASURE_LABELS, attribute_label
from refbias.tables.competence.rows import SUBJECT_HEADERS, CompetenceTable, at_level, in_words, of_all
from refbias.tables.formats import count, interval, p_value
from refbias.tables.printed import digits, printed

HIRING_CAPTION = (
    "The hiring task by steering and group of names. P(Yes): mean share of Yes over its spellings at the first new "
    "token. Said Yes: of the answers that could be read, with Wilson 95 % CI. To Yes and to No: changed answers "
    "against no steering, with McNemar's exact p."
)
HIRING_NAMES_CAPTION = (
    "The hiring task without steering: groups of names paired by r\u00e9sum\u00e9 and place in the group (strong "
    "against weak r\u00e9sum\u00e9s by role and name). Difference: of logits, first less second, with an interval "
    "that draws names and r\u00e9sum\u00e9s (roles) and the sign-flip test of pairs of names, each over all its "
    "r\u00e9sum\u00e9s, after Holm. Fewer than 6 pairs of names give no verdict. Only first and only second: pairs of "
    "readable answers with Yes on that side alone, with McNemar's exact p, which takes the pairs as independent, "
    "and after Holm."
)


def hiring_table(subjects: Sequence[Subject]) -> CompetenceTable | None:
    """Return the hiring task by arm and group of names; None where no subject was given it."""
    asked = [subject for subject in subjects if subject.arms is not None]
    if not asked:
        return None
    frame = of_all(asked, {subject.slug: subject.arms for subject in asked if subject.arms is not None})
    shown = in_words(frame).assign(
        arm=[ARM_LABELS.get(str(arm), str(arm)) for arm in frame["arm"]],
        group=["all names" if group == "all" else attribute_label(str(group)) for group in frame["group"]],
        ci=[interval(low, high, 2) for low, high in zip(frame["yes_low"], frame["yes_high"], strict=True)],
    )
    headers = {
        **SUBJECT_HEADERS,
        "arm": "Steering",
        "group": "Names",
        "n": "Prompts",
        "yes_logit_minus_no": MEASURE_LABELS["hiring"],
        "p_yes": "P(Yes)",
        "n_readable": "Readable",
        "yes_share": "Said Yes",
        "ci": at_level("95 % CI", asked),
        "to_yes": "To Yes",
        "to_no": "To No",
        "mcnemar_p": "McNemar p",
    }
    formats = {
        **dict.fromkeys(("n", "n_readable", "to_yes", "to_no"), count),
        **dict.fromkeys(("yes_logit_minus_no", "p_yes", "yes_share"), digits(2)),
        "mcnemar_p": p_value,
    }
    return CompetenceTable(
        "competence_hiring", frame, printed(shown, headers, formats), at_level(HIRING_CAPTION, asked)
    )


def hiring_names_table(subjects: Sequence[Subject]) -> CompetenceTable | None:
    """Return logits and written decisions between groups of names; None where no subject has the hiring task."""
    rows = {
        subject.slug: subject.effects[
            (subject.effects["measure"] == "hiring") & (subject.effects["role"] != STEERING_ROLE)
        ]
        for subject in subjects
    }
    asked = [subject for subject in subjects if not rows[subject.slug].empty]
    if not asked:
        return None
    frame = of_all(asked, rows)
    shown = in_words(frame).assign(
        ci=[interval(low, high, 2) for low, high in zip(frame["ci_low"], frame["ci_high"], strict=True)]
    )
    headers = {
        **SUBJECT_HEADERS,
        "contrast_id": "Contrast",
        "n": "Pairs",
        "n_names": "Pairs of names",
        "mean": "Difference",
        "ci": at_level("95 % CI", asked),
        "p_holm": "Adjusted p",
        "n_decided": "Readable pairs",
        "yes_first": "Yes, first",
        "yes_second": "Yes, second",
        "only_first": "Only first",
        "only_second": "Only second",
        "mcnemar_p": "McNemar p",
        "mcnemar_p_holm": "Adjusted McNemar p",
    }
    counts = ("n", "n_names", "n_decided", "yes_first", "yes_second", "only_first", "only_second")
    formats = {
        **dict.fromkeys(counts, count),
        **dict.fromkeys(("p_holm", "mcnemar_p", "mcnemar_p_holm"), p_value),
        "mean": digits(2),
    }
    return CompetenceTable("competence_hiring_names", frame, printed(shown, headers, formats), HIRING_NAMES_CAPTION)
