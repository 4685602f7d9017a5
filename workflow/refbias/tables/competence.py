"""The competence lens in print: what its contrasts, measures and verdicts are called, and its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

from refbias.competence.data import load_attributes, load_contrasts
from refbias.competence.hiring_analysis import STEERING_ROLE
from refbias.competence.records import BASELINE, OCCUPATION
from refbias.competence.results import REFERENCE, Subject
from refbias.tables.cells import TextTable
from refbias.tables.formats import count, interval, number, p_value, percent
from refbias.tables.labels import benchmark_label, plain_name, regime_label, score_label
from refbias.tables.printed import digits, printed

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
CAPTIONS = {
    "competence_attributes": (
        "Mean expertise score E (in expert\u2013novice gaps, so that models compare) and reading level L of answers, "
        "by what the person says, with and without an occupation named; 95 % intervals over occupations and questions."
    ),
    "competence_contrasts": (
        "Paired differences, first less second, occupation and question held. d_z: mean over the standard deviation of "
        "differences. Adjusted p: sign-flip test, Holm within the measure (placebos left out). Equivalent: two "
        "one-sided tests and the interval of whole occupations keep within the bound. Beyond random: share of random "
        "directions along which the contrast moves less."
    ),
    "competence_verdicts": (
        "What each irrelevant attribute moves. Still needs a test of equivalence; where neither a movement nor its "
        "absence is shown, the verdict is undecided. A verdict is refused where the measures do not answer to what is "
        "relevant."
    ),
    "competence_relevance": (
        "Relevance checks: what ought to raise the measure. The representation has to pass all of them, so one "
        "that was not measured refuses the verdict too; the behaviour has to pass one."
    ),
    "competence_hiring": (
        "The hiring task by steering and group of names. P(Yes): mean share of Yes over its spellings at the first new "
        "token. Said Yes: of the answers that could be read, with Wilson 95 % CI. To Yes and to No: changed answers "
        "against no steering, with McNemar's exact p."
    ),
    "competence_hiring_names": (
        "The hiring task without steering: groups of names paired by r\u00e9sum\u00e9 and place in the group (strong "
        "against weak r\u00e9sum\u00e9s by role and name). Difference: of logits, first less second, with an interval "
        "over r\u00e9sum\u00e9s (roles) and the sign-flip test after Holm. Only first and only second: pairs of "
        "readable answers with Yes on that side alone, with McNemar's exact p, which takes the pairs as independent, "
        "and after Holm."
    ),
    "competence_mitigation": (
        "The direction taken out (affine ablation) at its layer: contrasts of E at the last layer (in gaps of held-out "
        "experts and novices there), and what it costs: perplexity on neutral sentences, reading level of greedy "
        "answers, hiring logit."
    ),
    "competence_axis": (
        "Steering along the axis that dB is about (mean state of positive less negative attribute sentences): a "
        "benchmark's score by group and strength; alpha 0 is no steering. The scorer, perhaps a stand-in, is named in "
        "axis.manifest.json."
    ),
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


def family_label(family: str) -> str:
    """Return what a family of attributes is called."""
    return FAMILY_LABELS.get(family, plain_name(family))


def subject_label(subject: str) -> str:
    """Return what a subject is called: the reference, or regime and checkpoint."""
    if subject == REFERENCE:
        return "reference"
    regime, _, checkpoint = subject.partition("-")
    return f"{regime_label(regime)}, {checkpoint}" if checkpoint else subject


@dataclass(frozen=True)
class CompetenceTable:
    """A table of the lens: its name (a file stem), its rows, its cells in print, its caption."""

    name: str
    frame: pd.DataFrame
    text: TextTable
    caption: str


def _of_all(subjects: Sequence[Subject], rows: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Put tables of subjects below each other, named by model and subject."""
    frames = []
    for subject in subjects:
        frame = rows[subject.slug].copy()
        frame.insert(0, "model", subject.model)
        frame.insert(1, "subject", subject.subject)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    shown = frame.assign(subject=[subject_label(str(name)) for name in frame["subject"]])
    if "contrast_id" in frame.columns:
        shown = shown.assign(contrast_id=[contrast_label(str(name)) for name in frame["contrast_id"]])
    return shown


_SUBJECT_HEADERS = {"model": "Model", "subject": "Subject"}


def attributes_table(subjects: Sequence[Subject]) -> CompetenceTable:
    """Return E and L by attribute, with and without an occupation named."""
    measures = ("E_normalised", "L")
    rows = {
        subject.slug: subject.attributes[subject.attributes["measure"].isin(measures)].reset_index(drop=True)
        for subject in subjects
    }
    frame = _of_all(subjects, rows)
    wide = _named(frame).pivot_table(
        index=["model", "subject", "attribute_id"],
        columns=["measure", "with_occupation"],
        values=["mean", "ci_low", "ci_high"],
        sort=False,
        dropna=False,
    )
    cells = pd.DataFrame(index=wide.index)
    headers = {**_SUBJECT_HEADERS, "attribute_id": "The person says"}
    for measure, short in (("E_normalised", "E"), ("L", "L")):
        for named, words in ((True, "occupation named"), (False, "none named")):
            if ("mean", measure, named) not in wide.columns:
                continue
            low, high = wide["ci_low", measure, named], wide["ci_high", measure, named]
            cells[f"{short}{named}"] = wide["mean", measure, named]
            cells[f"{short}{named}_ci"] = [interval(a, b, 2) for a, b in zip(low, high, strict=True)]
            headers |= {f"{short}{named}": f"{short}, {words}", f"{short}{named}_ci": "95 % CI"}
    cells = cells.reset_index()
    cells["attribute_id"] = [attribute_label(str(name)) for name in cells["attribute_id"]]
    formats = {name: digits(2) for name in headers if name.endswith(("True", "False"))}
    name = "competence_attributes"
    return CompetenceTable(name, frame, printed(cells, headers, formats), CAPTIONS[name])


def contrasts_table(subjects: Sequence[Subject]) -> CompetenceTable:
    """Return the effects of all contrasts on all measures; E and L in print."""
    frame = _of_all(subjects, {subject.slug: subject.effects for subject in subjects})
    shown = _named(frame[frame["measure"].isin(("E", "L"))])
    order = {subject.slug: place for place, subject in enumerate(subjects)}
    slugs = frame.loc[shown.index, ["model", "subject"]].agg("_".join, axis=1)
    shown = shown.assign(
        order=slugs.map(order),
        role=pd.Categorical(shown["role"], ROLES, ordered=True),
        ci=[interval(low, high, 2) for low, high in zip(shown["ci_low"], shown["ci_high"], strict=True)],
        equivalent=shown["equivalent"].map({"True": "yes", "False": "no"}).fillna(""),
    ).sort_values(["order", "measure", "role"], kind="stable")
    headers = {
        **_SUBJECT_HEADERS,
        "measure": "Measure",
        "role": "Role",
        "contrast_id": "Contrast",
        "mean": "Difference",
        "ci": "95 % CI",
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
    name = "competence_contrasts"
    return CompetenceTable(name, frame, printed(shown.astype({"role": str}), headers, formats), CAPTIONS[name])


def verdict_table(subjects: Sequence[Subject]) -> CompetenceTable:
    """Return the verdicts, one a contrast and task."""
    columns = ("task", "contrast_id", "family", "role", "representation", "behaviour", "outcome", "sentence")
    frame = _of_all(
        subjects, {s.slug: pd.DataFrame(_rows(s.verdicts["verdicts"], columns), columns=columns) for s in subjects}
    )
    headers = {
        **_SUBJECT_HEADERS,
        "task": "Task",
        "contrast_id": "Contrast",
        "role": "Role",
        "representation": "Representation",
        "behaviour": "Behaviour",
        "outcome": "Verdict",
    }
    name = "competence_verdicts"
    return CompetenceTable(name, frame, printed(_named(frame), headers), CAPTIONS[name])


def relevance_table(subjects: Sequence[Subject]) -> CompetenceTable:
    """Return the relevance checks with their reasons."""
    columns = ("task", "measure", "contrast_id", "passed", "sentence", "measured")
    frame = _of_all(
        subjects, {s.slug: pd.DataFrame(_rows(s.verdicts["relevance"], columns), columns=columns) for s in subjects}
    )
    shown = _named(frame).assign(
        passed=[
            "passes" if passed else "fails" if measured else "not measured"
            for passed, measured in zip(frame["passed"], frame["measured"], strict=True)
        ],
        measure=[MEASURE_LABELS.get(str(name), str(name)) for name in frame["measure"]],
        sentence=[str(text).partition(": ")[2] for text in frame["sentence"]],
    )
    headers = {
        **_SUBJECT_HEADERS,
        "measure": "Measure",
        "contrast_id": "Check",
        "passed": "Outcome",
        "sentence": "What was seen",
    }
    name = "competence_relevance"
    return CompetenceTable(name, frame, printed(shown, headers), CAPTIONS[name])


def hiring_table(subjects: Sequence[Subject]) -> CompetenceTable | None:
    """Return the hiring task by arm and group of names; None where no subject was given it."""
    asked = [subject for subject in subjects if subject.arms is not None]
    if not asked:
        return None
    frame = _of_all(asked, {subject.slug: subject.arms for subject in asked if subject.arms is not None})
    shown = _named(frame).assign(
        arm=[ARM_LABELS.get(str(arm), str(arm)) for arm in frame["arm"]],
        group=["all names" if group == "all" else attribute_label(str(group)) for group in frame["group"]],
        ci=[interval(low, high, 2) for low, high in zip(frame["yes_low"], frame["yes_high"], strict=True)],
    )
    headers = {
        **_SUBJECT_HEADERS,
        "arm": "Steering",
        "group": "Names",
        "n": "Prompts",
        "yes_logit_minus_no": MEASURE_LABELS["hiring"],
        "p_yes": "P(Yes)",
        "n_readable": "Readable",
        "yes_share": "Said Yes",
        "ci": "95 % CI",
        "to_yes": "To Yes",
        "to_no": "To No",
        "mcnemar_p": "McNemar p",
    }
    formats = {
        **dict.fromkeys(("n", "n_readable", "to_yes", "to_no"), count),
        **dict.fromkeys(("yes_logit_minus_no", "p_yes", "yes_share"), digits(2)),
        "mcnemar_p": p_value,
    }
    name = "competence_hiring"
    return CompetenceTable(name, frame, printed(shown, headers, formats), CAPTIONS[name])


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
    frame = _of_all(asked, rows)
    shown = _named(frame).assign(
        ci=[interval(low, high, 2) for low, high in zip(frame["ci_low"], frame["ci_high"], strict=True)]
    )
    headers = {
        **_SUBJECT_HEADERS,
        "contrast_id": "Contrast",
        "n": "Pairs",
        "mean": "Difference",
        "ci": "95 % CI",
        "p_holm": "Adjusted p",
        "n_decided": "Readable pairs",
        "yes_first": "Yes, first",
        "yes_second": "Yes, second",
        "only_first": "Only first",
        "only_second": "Only second",
        "mcnemar_p": "McNemar p",
        "mcnemar_p_holm": "Adjusted McNemar p",
    }
    counts = ("n", "n_decided", "yes_first", "yes_second", "only_first", "only_second")
    formats = {
        **dict.fromkeys(counts, count),
        **dict.fromkeys(("p_holm", "mcnemar_p", "mcnemar_p_holm"), p_value),
        "mean": digits(2),
    }
    name = "competence_hiring_names"
    return CompetenceTable(name, frame, printed(shown, headers, formats), CAPTIONS[name])


def mitigation_table(subjects: Sequence[Subject]) -> CompetenceTable | None:
    """Return contrasts, behaviour and perplexity with and without the direction; None where it was never taken out."""
    tried = [subject for subject in subjects if subject.mitigation is not None]
    if not tried:
        return None
    frame = _of_all(tried, {subject.slug: subject.mitigation for subject in tried if subject.mitigation is not None})
    shown = _named(frame).assign(
        arm=[ABLATION_LABELS.get(str(arm), str(arm)) for arm in frame["arm"]], role=frame["role"].astype(str)
    )
    headers = {
        **_SUBJECT_HEADERS,
        "arm": "Direction",
        "contrast_id": "Contrast",
        "role": "Role",
        "mean_E_normalised": "E at the last layer",
        "perplexity": "Perplexity",
        "reading_level": MEASURE_LABELS["L"],
        "yes_logit": MEASURE_LABELS["hiring"],
    }
    formats = dict.fromkeys(("mean_E_normalised", "perplexity", "reading_level", "yes_logit"), digits(2))
    name = "competence_mitigation"
    return CompetenceTable(name, frame, printed(shown, headers, formats), CAPTIONS[name])


def axis_table(subjects: Sequence[Subject]) -> CompetenceTable | None:
    """Return a benchmark's scores at each step along the axis of dB; None where no subject was steered along it."""
    tried = [subject for subject in subjects if subject.axis is not None]
    if not tried:
        return None
    frame = _of_all(tried, {subject.slug: subject.axis for subject in tried if subject.axis is not None})
    shown = _named(frame).assign(
        group=[plain_name(str(group)) for group in frame["group"]],
        benchmark=[f"{benchmark_label(str(name))}, {score_label(str(name))}" for name in frame["benchmark"]],
    )
    shown = shown.sort_values(["model", "subject", "benchmark", "group", "alpha"], kind="stable")
    headers = {
        **_SUBJECT_HEADERS,
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
    name = "competence_axis"
    return CompetenceTable(name, frame, printed(shown, headers, formats), CAPTIONS[name])


def tables(subjects: Sequence[Subject]) -> list[CompetenceTable]:
    """Return every table that the subjects allow, verdicts first."""
    found = [
        verdict_table(subjects),
        relevance_table(subjects),
        contrasts_table(subjects),
        attributes_table(subjects),
        hiring_table(subjects),
        hiring_names_table(subjects),
        mitigation_table(subjects),
        axis_table(subjects),
    ]
    return [table for table in found if table is not None]


def _rows(values: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[dict[str, Any]]:
    return [{column: value.get(column) for column in columns} for value in values]


def effect_text(mean: float | None, places: int = 2) -> str:
    """Format a difference with its sign."""
    text = number(mean, places)
    return f"+{text}" if mean is not None and mean > 0 and text[:1].isdigit() else text
