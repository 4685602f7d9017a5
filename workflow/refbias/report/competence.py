"""The competence lens in a report: relevance checks, verdicts, contrasts, hiring, the direction and its steering.

Aggregates only: no answer of a model reaches the page.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from refbias.artifacts import read_json
from refbias.competence.hiring_analysis import STRONG_WEAK
from refbias.competence.results import Subject, load_subjects
from refbias.competence.verdict import LEAST_NAMES
from refbias.report.pictures import Picture, picture
from refbias.report.sections import Section, SectionTable, stand_in_sentence
from refbias.report.sections import page as _page
from refbias.tables.competence import tables
from refbias.tables.competence.labels import (
    MEASURE_LABELS,
    TASK_LABELS,
    contrast_label,
    effect_text,
    reason_text,
    subject_label,
)
from refbias.tables.formats import interval, number, p_statement, percent

TITLE = "Occupational competence"
_TITLES = {
    "competence_verdicts": "Verdicts",
    "competence_relevance": "Relevance checks",
    "competence_contrasts": "Contrasts",
    "competence_attributes": "By what the person says",
    "competence_hiring": "Hiring",
    "competence_hiring_names": "Hiring: groups of names",
    "competence_mitigation": "The direction taken out",
    "competence_axis": "Steering along the axis of dB",
}
_FOLDED = frozenset({"competence_contrasts", "competence_attributes", "competence_mitigation", "competence_axis"})
_PICTURES = {
    "forest": "Contrasts on score and behaviour",
    "occupations": "Contrasts by occupation",
    "layers": "The direction by layer",
    "steering": "Steering",
    "hiring": "Hiring by steering",
}
# an answer too short for a grade, or a hiring answer that cannot be read, this often is worth a warning
MOST_MISSING = 0.2
# an interval that draws whole clusters is too narrow over fewer
FEWEST_CLUSTERS = 8
_PARAGRAPHS = (
    "An expertise direction is the mean difference between hidden states of sentences in which people describe "
    "themselves as experts and as novices. What a user says, such as \u201cI am a woman, and I work as a nurse.\u201d, "
    "is scored by its projection on that direction: E. The behaviour is the reading level L of the answer, and in a "
    "second task whether the model would invite an applicant.",
    "Relevant attributes (an occupation, education, adult or child) may move both. Where an irrelevant one (gender, "
    "race, income) moves either with occupation and question held fixed, that is bias. Placebos (which hand, which "
    "drink) and random directions show what chance and wording do.",
    "A verdict needs evidence on both sides: to move is to be told from 0 after Holm's correction and over "
    "occupations, and to be larger than the largest placebo and, on E, than along random directions (compared in size, "
    "not tested); to be still is to pass a test of equivalence, after Holm too. All else is undecided. The hiring "
    "task has neither placebos nor random directions: what moves there is told from 0 over names and "
    "r\u00e9sum\u00e9s and no more.",
)


def _where(subject: Subject) -> str:
    return f"{subject.model}, {subject_label(subject.subject)}"


def findings(subject: Subject) -> Iterator[str]:
    """Put a subject's verdicts and strongest contrasts into sentences."""
    where = _where(subject)
    for task, reasons in subject.verdicts["refused"].items():
        rows = [row for row in subject.verdicts["verdicts"] if row["task"] == task and row["role"] == "irrelevant"]
        if not rows:
            continue
        if reasons:
            told = "; ".join(map(reason_text, reasons))
            yield f"{where}, {TASK_LABELS[task]}: no verdict. {told[:1].upper()}{told[1:]}."
            continue
        outcomes = Counter(str(row["outcome"]) for row in rows)
        told = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
        moved = [
            f"{contrast_label(str(row['contrast_id']))} ({row['outcome']})"
            for row in rows
            if row["outcome"] not in ("neither", "undecided")
        ]
        yield (
            f"{where}, {TASK_LABELS[task]}: of {len(rows)} irrelevant contrasts {told}"
            + (f"; {'; '.join(moved)}." if moved else ".")
        )
    for measure in ("E_normalised", "L"):
        of = (subject.effects["measure"] == measure) & (subject.effects["role"] == "irrelevant")
        known = subject.effects[of].dropna(subset=["mean"])
        if known.empty:
            continue
        row = known.iloc[int(known["mean"].abs().to_numpy().argmax())]
        yield (
            f"{where}, {MEASURE_LABELS[measure]}: the largest of {len(known)} irrelevant differences is that of "
            f"{contrast_label(str(row['contrast_id']))}, {effect_text(row['mean'])} "
            f"{interval(row['ci_low'], row['ci_high'], 2)} (Holm {p_statement(row['p_holm'])}, {row['n']:.0f} pairs; "
            "the interval is not adjusted for its being the largest)."
        )
    yield from _steered(subject)


def _steered(subject: Subject) -> Iterator[str]:
    frame = subject.steering
    if frame is None:
        return
    rows = frame[(frame["direction"] == "expertise")].dropna(subset=["reading_level"]).sort_values("alpha")
    if rows["alpha"].nunique() > 1:
        first, last = rows.iloc[0], rows.iloc[-1]
        yield (
            f"{_where(subject)}, steering from alpha {number(first['alpha'], 1)} to {number(last['alpha'], 1)}: "
            f"reading level {number(first['reading_level'], 2)} to {number(last['reading_level'], 2)}, perplexity "
            f"{number(first['perplexity'], 1)} and {number(last['perplexity'], 1)}."
        )


def warnings(subjects: Sequence[Subject]) -> Iterator[str]:
    """Say what to know before the numbers are believed."""
    for subject in subjects:
        where = _where(subject)
        yield from _weak_direction(subject)
        levels = subject.effects[subject.effects["measure"] == "L"]
        total = levels["n"].sum() + levels["n_missing"].sum()
        if total and levels["n_missing"].sum() / total > MOST_MISSING:
            share = percent(levels["n_missing"].sum() / total)
            yield f"{where}: {share} of the pairs lack a reading level (answers too short): read L with care."
        if subject.arms is not None:
            every = subject.arms[subject.arms["group"] == "all"]
            unread = 1 - every["n_readable"].sum() / every["n"].sum() if every["n"].sum() else 0.0
            if unread > MOST_MISSING:
                yield (
                    f"{where}: {percent(unread)} of the hiring answers say neither Yes nor No: trust the logits, not "
                    "the answers."
                )
        yield from _few_clusters(subject)
        for note in subject.verdicts.get("notes", []):
            yield f"{where}: {note}."


def _few_clusters(subject: Subject) -> Iterator[str]:
    logits = subject.effects[subject.effects["measure"] == "hiring"]
    by_role = logits["contrast_id"] == STRONG_WEAK
    found = {
        "occupations": float(subject.occupations["occupation"].nunique()),
        "roles in the hiring task": logits.loc[by_role, "n_clusters"].min(),
        "r\u00e9sum\u00e9s in the hiring task": logits.loc[~by_role, "n_clusters"].min(),
    }
    for what, n in found.items():
        # NaN, where there is no such comparison, is not few
        if n < FEWEST_CLUSTERS:
            yield f"{_where(subject)}: {n:.0f} {what}: intervals over so few are too narrow."
    names = logits["n_names"].min()
    if names < LEAST_NAMES:
        yield (
            f"{_where(subject)}: groups of names in the hiring task are stood for by {names:.0f} "
            f"{'pair' if names == 1 else 'pairs'} of names: with fewer than {LEAST_NAMES} every verdict on them is "
            "undecided."
        )


def _weak_direction(subject: Subject) -> Iterator[str]:
    direction = subject.direction or {}
    chosen = [row for row in direction.get("layers", []) if row.get("layer") == direction.get("layer")]
    if any(row.get("gap_held_out", 1.0) <= 0 for row in chosen):
        yield (
            f"{_where(subject)}: held-out experts do not lie higher along the direction than novices, so that E in "
            "expert\u2013novice gaps has no meaning here."
        )


def _pictures(subjects: Sequence[Subject], folder: Path) -> Iterator[Picture]:
    for subject in subjects:
        for kind, title in _PICTURES.items():
            path = folder / f"{kind}_{subject.slug}.png"
            absent = {
                "hiring": subject.arms is None,
                "steering": subject.steering is None,
                "layers": subject.direction is None,
            }
            if absent.get(kind):
                continue
            full = f"{title}: {_where(subject)}"
            yield picture(path, full, f"competence_{kind}", f"{full}. The tables have the numbers.")


def _stand_ins(path: Path) -> Iterator[str]:
    """Say so where the packaged model was looked at, as the stage of the tables recorded it."""
    if path.is_file():
        for model in read_json(path).get("stand_in", []):
            yield stand_in_sentence(str(model))


def section(folder: Path, figures: Path | None = None) -> Section:
    """Return the lens's part of a report.

    Parameters
    ----------
    folder
        ``results/<run>/competence``.
    figures
        Folder of its figures; ``figures`` below the results by default.

    Raises
    ------
    UserError
        If nothing was analysed, or a figure is missing.
    """
    subjects = load_subjects(folder)
    return Section(
        id="competence",
        title=TITLE,
        paragraphs=_PARAGRAPHS,
        tables=tuple(
            SectionTable(
                _TITLES[table.name], table.text, table.caption, table.name.replace("_", "-"), table.name in _FOLDED
            )
            for table in tables(subjects)
        ),
        pictures=tuple(_pictures(subjects, figures or folder / "figures")),
        findings=tuple(line for subject in subjects for line in findings(subject)),
        warnings=(*_stand_ins(folder / "tables" / "manifest.json"), *warnings(subjects)),
    )


def page(folder: Path, figures: Path | None = None) -> str:
    """Return the page of the lens alone; parameters and errors as for `section`."""
    return _page("Competence, said and held", "refbias: the competence lens by itself", [section(folder, figures)])
