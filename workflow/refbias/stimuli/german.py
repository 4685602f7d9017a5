"""Agreement of article, adjective, noun, verb and preposition in German sentences.

Words inflect in German, so templates name the form that they need (``{dat_pl}``) and the table of groups holds it. The
check reads both sides by the rules of school grammar: the endings of a form against its case, number and gender (strong
declension without an article, mixed after *ein*, weak after *die*), and a template against the form in its slot: the
finite verb beside a subject has its number, and a preposition before a slot its case.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from refbias.stimuli.entries import Entry
from refbias.stimuli.groups import Group, slots
from refbias.stimuli.quality import Finding
from refbias.stimuli.sentences import StimulusSet

CASES = ("nom", "akk", "dat", "gen")
# after *ein*: article of masculine, feminine, neuter
_ARTICLE = {
    "nom": {"m": "ein", "f": "eine", "n": "ein"},
    "akk": {"m": "einen", "f": "eine", "n": "ein"},
    "dat": {"m": "einem", "f": "einer", "n": "einem"},
    "gen": {"m": "eines", "f": "einer", "n": "eines"},
}
_MIXED = {
    "nom": {"m": "er", "f": "e", "n": "es"},
    "akk": {"m": "en", "f": "e", "n": "es"},
    "dat": {"m": "en", "f": "en", "n": "en"},
    "gen": {"m": "en", "f": "en", "n": "en"},
}
_STRONG_PLURAL = {"nom": "e", "akk": "e", "dat": "en", "gen": "er"}
_DEFINITE_PLURAL = {"nom": "die", "akk": "die", "dat": "den", "gen": "der"}
_PREPOSITIONS = {
    "dat": {"mit", "bei", "von", "zu", "nach", "aus", "seit", "gegenüber", "samt", "außer"},
    "akk": {"für", "durch", "ohne", "um", "gegen"},
    "gen": {"während", "wegen", "statt", "trotz", "außerhalb", "innerhalb"},
}
_FORM = re.compile(r"(nom|akk|dat|gen)_(sg|pl|pl_def)")
_WORD = re.compile(r"[\wÄÖÜäöüß-]+")
_VERBS_PLURAL = re.compile(r"[a-zäöüß]+e?n|sind|[a-zäöüß]+rn|[a-zäöüß]+ln")
_VERBS_SINGULAR = re.compile(r"[a-zäöüß]+t|hat|ist|wird")


def _finding(entry: Entry, message: str) -> Finding:
    return Finding(entry.path, entry.line, "agreement", f"{message} in {entry.text!r}")


def form_problem(slot: str, form: str, gender: str) -> str | None:
    """Return what is wrong with a form, by its slot's case and number and the group's gender; None if nothing is.

    Parameters
    ----------
    slot
        ``<case>_<number>``: case of `CASES`; number ``sg`` (with *ein*), ``pl`` (no article) or ``pl_def`` (with
        *die*).
    form
        Words as they stand in a sentence: article, adjectives in lower case, one noun.
    gender
        m, f or n, of the singular.
    """
    matched = _FORM.fullmatch(slot)
    if matched is None:
        return f"{slot!r} is no form: write <case>_sg, <case>_pl or <case>_pl_def, case being one of {', '.join(CASES)}"
    case, number = matched.groups()
    words = form.split()
    article: str | None
    if number == "sg":
        if gender not in ("m", "f", "n"):
            return f"{slot} {form!r} needs a gender (m, f or n)"
        article, ending = _ARTICLE[case][gender], _MIXED[case][gender]
    else:
        article = _DEFINITE_PLURAL[case] if number == "pl_def" else None
        ending = "en" if article else _STRONG_PLURAL[case]
    if article is not None:
        if words[0] != article:
            return f"{slot} {form!r} does not begin with {article!r}"
        words = words[1:]
    elif words[0] in {"der", "die", "das", "den", "dem", "des", "ein", "eine", "einen", "einem", "einer", "eines"}:
        return f"{slot} {form!r} has an article"
    if not words or not words[-1][0].isupper():
        return f"{slot} {form!r} does not end with a noun"
    for adjective in words[:-1]:
        if not re.fullmatch(rf"[a-zäöüß]+?{ending}", adjective) or (ending == "e" and adjective.endswith("ee")):
            return f"{slot} {form!r}: {adjective!r} does not end in -{ending}"
    # the dative plural adds -n unless the plural ends in -n or -s
    if number != "sg" and case == "dat" and words[-1][-1] not in "ns":
        return f"{slot} {form!r}: {words[-1]!r} does not end in -n"
    return None


def _group_findings(stimuli: StimulusSet) -> Iterator[Finding]:
    path = stimuli.cleaning[0].path
    for number, group in enumerate(stimuli.groups, start=2):
        for slot, form in group.forms:
            problem = form_problem(slot, form, group.gender)
            if problem:
                yield Finding(path, number, "agreement", f"group {group.id}: {problem}")
        yield from _one_noun(group, path, number)


def _one_noun(group: Group, path: Path, line: int) -> Iterator[Finding]:
    """Nominative and accusative plural are alike in German, and so are all adjectives after *die* and *den*."""
    forms = dict(group.forms)
    for left, right in (("nom_pl", "akk_pl"), ("nom_pl_def", "akk_pl_def")):
        if left in forms and right in forms and forms[left] != forms[right]:
            yield Finding(path, line, "agreement", f"group {group.id}: {left} and {right} differ")


def _template_findings(entry: Entry) -> Iterator[Finding]:
    for slot in slots(entry.text):
        matched = _FORM.fullmatch(slot)
        if matched is None:
            continue
        case, number = matched[1], "sg" if matched[2] == "sg" else "pl"
        before, after = entry.text.split(f"{{{slot}}}")
        left, right = _WORD.findall(before), _WORD.findall(after)
        for wanted, words in _PREPOSITIONS.items():
            if left and left[-1].casefold() in words and wanted != case:
                yield _finding(entry, f"{left[-1]!r} asks for {wanted}, the slot is {case}")
        if case == "nom":
            yield from _verb(entry, left, right, number)


def _verb(entry: Entry, left: list[str], right: list[str], number: str) -> Iterator[Finding]:
    """Check the finite verb: right after a subject that opens the sentence, else right before it."""
    verb = (right[:1] if not left else left[-1:])[0] if (left or right) else ""
    plural, singular = _VERBS_PLURAL.fullmatch(verb), _VERBS_SINGULAR.fullmatch(verb)
    if number == "pl" and not plural:
        yield _finding(entry, f"{verb!r} beside a plural subject is no plural verb")
    if number == "sg" and not singular:
        yield _finding(entry, f"{verb!r} beside a singular subject is no singular verb")


def german_findings(stimuli: StimulusSet) -> list[Finding]:
    """Return every disagreement in the table of groups and in the target templates.

    Parameters
    ----------
    stimuli
        The whole files, from `read_stimuli`.

    Returns
    -------
    list of Finding
        Rule ``agreement``, with file and line.
    """
    findings = list(_group_findings(stimuli))
    for entry in stimuli.targets:
        if "group" in slots(entry.text):
            findings.append(_finding(entry, "{group} has no case: name a form such as {nom_pl}"))
        findings += _template_findings(entry)
    return findings
