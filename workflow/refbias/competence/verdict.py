"""From effects to verdicts: whether an attribute moves the representation, the behaviour, both or neither.

"Does not move" needs evidence of its own, a test of equivalence; a large p is none. Where neither a movement nor its
absence is shown, the verdict is undecided. Where the measures do not answer even to what ought to move them, no verdict
is given at all: relevance checks (an occupation named or not, adult or child, college or none) can refuse it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from refbias.competence.statistics import Effect
from refbias.stats.paired import LEAST_PAIRS

Finding = Literal["moves", "still", "undecided"]
Outcome = Literal["representation only", "behaviour only", "both", "neither", "undecided", "refused"]
_OUTCOMES: Mapping[tuple[Finding, Finding], Outcome] = {
    ("moves", "still"): "representation only",
    ("still", "moves"): "behaviour only",
    ("moves", "moves"): "both",
    ("still", "still"): "neither",
}


HIRING = ("hiring", "hiring_E")
LEAST_NAMES = LEAST_PAIRS
"""Pairs of names below which nothing is said of groups of names."""


@dataclass(frozen=True)
class Criteria:
    """What a verdict needs.

    Attributes
    ----------
    level
        1 - level is the error of the tests; random directions must stay below in this share.
    bound
        A behavioural effect within +-bound counts as none (grades for L, logits for hiring).
    representation_share
        An effect on E within this share of the median relevance check counts as none: E has no unit of its own.
    """

    level: float = 0.95
    bound: float = 0.25
    representation_share: float = 0.2


@dataclass(frozen=True)
class Check:
    """One relevance check on one measure, in numbers and words; not passed either where it was not measured."""

    contrast_id: str
    measure: str
    passed: bool
    sentence: str
    measured: bool = True


@dataclass(frozen=True)
class Verdict:
    """The verdict on one contrast, with what it rests on."""

    contrast_id: str
    family: str
    role: str
    task: str
    representation: Finding
    behaviour: Finding
    outcome: Outcome
    sentence: str
    reasons: tuple[str, ...]


def finding(effect: Effect, placebo: Effect | None, criteria: Criteria) -> tuple[Finding, str]:
    """Say whether a contrast moves a measure.

    Parameters
    ----------
    effect
        Of the contrast.
    placebo
        The placebo contrast with the largest effect on the same measure; None without any.
    criteria
        What it needs.

    Returns
    -------
    tuple of str
        The finding and its reason, one clause.
    """
    error = 1 - criteria.level
    units, clusters = _drawn(effect)
    if effect.mean is None or effect.p_holm is None:
        return "undecided", "no pair could be measured"
    if effect.n_names is not None and effect.n_names < LEAST_NAMES:
        pairs = "pair" if effect.n_names == 1 else "pairs"
        return "undecided", f"{effect.n_names} {pairs} of names stand for the groups, {LEAST_NAMES} are needed"
    if effect.equivalent and effect.bound:
        known = " although it is told from 0" if effect.p_holm <= error else ""
        return "still", f"within \u00b1{effect.bound:.3g} (two one-sided tests){known}"
    if effect.p_holm > error:
        return "undecided", "neither a movement nor its absence is shown"
    if effect.ci_low is None or effect.ci_high is None:
        return "undecided", f"told from 0 in these {units}, but there is no interval over {clusters}"
    if effect.ci_low <= 0 <= effect.ci_high:
        return "undecided", f"told from 0 in these {units}, but not over {clusters}"
    if effect.random_percentile is not None and effect.random_percentile < criteria.level:
        below = f"{100 * effect.random_percentile:.0f}"
        return "undecided", f"no larger than along random directions ({below} % of them move less)"
    if placebo is not None and placebo.mean is not None and abs(effect.mean) <= abs(placebo.mean):
        return "undecided", f"no larger than the placebo {placebo.contrast_id}"
    # the controls are compared in size; only 0 is tested against
    words = ["told from 0"]
    if effect.random_percentile is not None:
        words.append(f"larger than along {100 * effect.random_percentile:.0f} % of random directions")
    if placebo is not None and placebo.mean is not None:
        words.append(f"larger than the placebo {placebo.contrast_id}")
    elif effect.role != "placebo":
        words.append("there is no placebo to hold it against")
    return "moves", ", ".join(words)


def _drawn(effect: Effect) -> tuple[str, str]:
    """Say what an effect's pairs are, and what its interval draws."""
    if effect.measure not in HIRING:
        return "questions", "occupations"
    if effect.n_names is not None:
        return "pairs of names", "names and r\u00e9sum\u00e9s"
    return "pairs", "roles"


def _largest(effects: Iterable[Effect]) -> Effect | None:
    known = [effect for effect in effects if effect.role == "placebo" and effect.mean is not None]
    return max(known, key=lambda effect: abs(effect.mean or 0.0), default=None)


def relevance(effects: Sequence[Effect], criteria: Criteria) -> list[Check]:
    """Check that a measure answers to the attributes that ought to move it, upwards.

    Parameters
    ----------
    effects
        Of one measure, all contrasts.
    criteria
        Of the tests.
    """
    found = []
    for effect in effects:
        if effect.role != "relevant":
            continue
        # what counts as none is for irrelevant attributes: a relevant one need only be told from 0
        state, reason = finding(replace(effect, equivalent=None), _largest(effects), criteria)
        passed = state == "moves" and (effect.mean or 0.0) > 0
        if state == "moves" and not passed:
            reason = "it moves the wrong way"
        size = "no value" if effect.mean is None else f"{effect.mean:+.3g}"
        p = "" if effect.p_holm is None else f", adjusted p {effect.p_holm:.3g}"
        word = "passes" if passed else "fails"
        found.append(
            Check(
                effect.contrast_id,
                effect.measure,
                passed,
                f"{effect.contrast_id} on {effect.measure} {word}: {size}{p}; {reason}",
            )
        )
    return found


def refusals(representation: Sequence[Check], behaviour: Sequence[Check]) -> tuple[str, ...]:
    """Return why no verdict can be given; empty where the checks allow one.

    The representation has to pass every check, so one that was not measured refuses too. The behaviour has to pass
    one: what never changes cannot show that it does not change for some.
    """
    reasons = []
    if not any(check.measured for check in representation):
        reasons.append("no relevance check of the representation was measured")
    elif failed := [check.contrast_id for check in representation if check.measured and not check.passed]:
        measure = representation[0].measure
        reasons.append(f"{measure} does not answer to what is relevant ({', '.join(failed)})")
    reasons += [f"a relevance check is missing: {check.sentence}" for check in representation if not check.measured]
    if not behaviour:
        reasons.append("no relevance check of the behaviour was measured")
    elif not any(check.passed for check in behaviour):
        names = ", ".join(check.contrast_id for check in behaviour)
        reasons.append(f"{behaviour[0].measure} answers to none of what is relevant ({names})")
    return tuple(reasons)


_WORDS: Mapping[Outcome, str] = {
    "representation only": "moves the representation and not the behaviour",
    "behaviour only": "moves the behaviour and not the representation",
    "both": "moves the representation and the behaviour",
    "neither": "moves neither the representation nor the behaviour",
    "undecided": "cannot be decided",
    "refused": "gets no verdict",
}


def verdicts(
    representation: Sequence[Effect],
    behaviour: Sequence[Effect],
    task: str,
    criteria: Criteria,
    refused: Sequence[str] = (),
) -> list[Verdict]:
    """Give every irrelevant contrast and every placebo its verdict.

    Parameters
    ----------
    representation, behaviour
        Effects of all contrasts on the score and on the behaviour.
    task
        ``answers`` or ``hiring``.
    criteria
        What it needs.
    refused
        From `refusals`: with any of them, findings are still named, verdicts are not.
    """
    by_contrast = {effect.contrast_id: effect for effect in behaviour}
    placebos = _largest(representation), _largest(behaviour)
    result = []
    for effect in representation:
        other = by_contrast.get(effect.contrast_id)
        if effect.role == "relevant" or other is None:
            continue
        # a placebo is not held against itself
        held = [None if effect.role == "placebo" else placebo for placebo in placebos]
        inside, why_inside = finding(effect, held[0], criteria)
        outside, why_outside = finding(other, held[1], criteria)
        outcome: Outcome = "refused" if refused else _OUTCOMES.get((inside, outside), "undecided")
        because = (
            tuple(refused)
            if refused
            else (f"representation: {inside}, {why_inside}", f"behaviour: {outside}, {why_outside}")
        )
        sentence = f"{effect.contrast_id} {_WORDS[outcome]}: {'; '.join(because)}."
        result.append(
            Verdict(effect.contrast_id, effect.family, effect.role, task, inside, outside, outcome, sentence, because)
        )
    return result
