"""Tables of the competence lens's answers: by attribute, and by contrast."""

from collections.abc import Sequence

import pandas as pd

from refbias.competence.results import Subject
from refbias.tables.competence.labels import ROLES, attribute_label
from refbias.tables.competence.rows import SUBJECT_HEADERS, CompetenceTable, at_level, in_words, of_all
from refbias.tables.formats import count, interval, p_value, percent
from refbias.tables.printed import digits, printed

ATTRIBUTES_CAPTION = (
    "Mean expertise score E (in expert\u2013novice gaps, so that models compare) and reading level L of answers, "
    "by what the person says, with and without an occupation named; 95 % intervals over occupations and questions."
)
CONTRASTS_CAPTION = (
    "Paired differences, first less second, occupation and question held. d_z: mean over the standard deviation of "
    "differences. Adjusted p: sign-flip test, Holm within the measure (placebos left out). Equivalent: two "
    "one-sided tests, after Holm over the irrelevant contrasts, and the interval of whole occupations keep within the "
    "bound. Beyond random: share of random "
    "directions along which the contrast moves less."
)


def attributes_table(subjects: Sequence[Subject]) -> CompetenceTable:
    """Return E and L by attribute, with and without an occupation named."""
    measures = ("E_normalised", "L")
    rows = {
        subject.slug: subject.attributes[subject.attributes["measure"].isin(measures)].reset_index(drop=True)
        for subject in subjects
    }
    frame = of_all(subjects, rows)
    wide = in_words(frame).pivot_table(
        index=["model", "subject", "attribute_id"],
        columns=["measure", "with_occupation"],
        values=["mean", "ci_low", "ci_high"],
        sort=False,
        dropna=False,
    )
    cells = pd.DataFrame(index=wide.index)
    headers = {**SUBJECT_HEADERS, "attribute_id": "The person says"}
    for measure, short in (("E_normalised", "E"), ("L", "L")):
        for named, words in ((True, "occupation named"), (False, "none named")):
            if ("mean", measure, named) not in wide.columns:
                continue
            low, high = wide["ci_low", measure, named], wide["ci_high", measure, named]
            cells[f"{short}{named}"] = wide["mean", measure, named]
            cells[f"{short}{named}_ci"] = [interval(a, b, 2) for a, b in zip(low, high, strict=True)]
            headers |= {f"{short}{named}": f"{short}, {words}", f"{short}{named}_ci": at_level("95 % CI", subjects)}
    cells = cells.reset_index()
    cells["attribute_id"] = [attribute_label(str(name)) for name in cells["attribute_id"]]
    formats = {name: digits(2) for name in headers if name.endswith(("True", "False"))}
    return CompetenceTable(
        "competence_attributes", frame, printed(cells, headers, formats), at_level(ATTRIBUTES_CAPTION, subjects)
    )


def contrasts_table(subjects: Sequence[Subject]) -> CompetenceTable:
    """Return the effects of all contrasts on all measures; E and L in print."""
    frame = of_all(subjects, {subject.slug: subject.effects for subject in subjects})
    shown = in_words(frame[frame["measure"].isin(("E", "L"))])
    order = {subject.slug: place for place, subject in enumerate(subjects)}
    slugs = frame.loc[shown.index, ["model", "subject"]].agg("_".join, axis=1)
    shown = shown.assign(
        order=slugs.map(order),
        role=pd.Categorical(shown["role"], ROLES, ordered=True),
        ci=[interval(low, high, 2) for low, high in zip(shown["ci_low"], shown["ci_high"], strict=True)],
        equivalent=shown["equivalent"].map({"True": "yes", "False": "no"}).fillna(""),
    ).sort_values(["order", "measure", "role"], kind="stable")
    headers = {
        **SUBJECT_HEADERS,
        "measure": "Measure",
        "role": "Role",
        "contrast_id": "Contrast",
        "mean": "Difference",
        "ci": at_level("95 % CI", subjects),
        "d_z": "d_z",
        "p_holm": "Adjusted p",
        "equivalent": "Equivalent",
        "random_percentile": "Beyond random",
        "n": "Pairs",
        "n_missing": "Missing",
    }
    formats = {
        "mean": digits(2),
        "d_z": digits(2),
        "p_holm": p_value,
        "random_percentile": percent,
        "n": count,
        "n_missing": count,
    }
    return CompetenceTable(
        "competence_contrasts", frame, printed(shown.astype({"role": str}), headers, formats), CONTRASTS_CAPTION
    )
