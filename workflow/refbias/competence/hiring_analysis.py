"""The hiring task in numbers: groups of names on one résumé, arms of steering, strong against weak résumés.

Names of two groups are paired by their place in the group, on the same résumé and without steering; where groups
combine two features, as in ``black_women``, the features are compared with the other one held. A pair of names with all
its résumés is one observation of such a comparison. Strong and weak résumés
are paired by their order within the role, for each name. What has no counterpart is left out with a note.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from refbias.competence.hiring_statistics import Decisions, crossed_effect, decisions, with_decisions
from refbias.competence.results import ARMS
from refbias.competence.statistics import Effect, EffectSettings, Named, adjusted, effects, equivalence_bound
from refbias.errors import UserError
from refbias.stats.proportions import wilson

MEASURES = {"hiring": "yes_logit_minus_no", "hiring_E": "E"}
STEERING_ROLE = "steering"
STRONG_WEAK = "strong_weak"
_QUALITIES = ("strong", "weak")
_FAMILIES = {
    "gender": frozenset({"women", "men", "nonbinary"}),
    "race": frozenset({"black", "white", "asian", "hispanic", "latino"}),
}


@dataclass(frozen=True)
class HiringEffects:
    """Effects on both measures, the decisions by arm and group (one row each), and what was left out."""

    effects: list[Effect]
    arms: pd.DataFrame
    notes: tuple[str, ...] = ()

    def of(self, measure: str) -> list[Effect]:
        """Return the effects on one measure that verdicts are given on: all but those of steering."""
        return [effect for effect in self.effects if effect.measure == measure and effect.role != STEERING_ROLE]


@dataclass(frozen=True)
class _Comparison:
    named: Named
    first: "pd.Series[bool]"
    second: "pd.Series[bool]"
    pairs: tuple[str, ...]
    cluster: str

    @property
    def names(self) -> list[str]:
        """What a pair of names is known by; empty where no names are compared."""
        return list(self.pairs[1:]) if self.named.role == "irrelevant" else []


def _family(levels: Sequence[str]) -> str:
    return next((family for family, known in _FAMILIES.items() if set(levels) <= known), "names")


def group_contrasts(groups: Sequence[str]) -> list[tuple[str, str, str, dict[str, tuple[str, str]]]]:
    """Return which groups of names are compared.

    Parameters
    ----------
    groups
        Their ids.

    Returns
    -------
    list
        (family, first, second, group -> (side, what is held)). Groups that are all combinations of two features are
        compared feature by feature, others pair by pair.
    """
    parts = {group: tuple(group.split("_")) for group in groups}
    crossed = all(len(part) == 2 for part in parts.values())
    levels = [sorted({part[place] for part in parts.values()}) for place in (0, 1)] if crossed else []
    if crossed and len(set(parts.values())) == len(levels[0]) * len(levels[1]) and min(map(len, levels)) > 1:
        return [
            (
                _family(levels[place]),
                first,
                second,
                {
                    group: (part[place], part[1 - place])
                    for group, part in parts.items()
                    if part[place] in (first, second)
                },
            )
            for place in (0, 1)
            for first, second in itertools.combinations(levels[place], 2)
        ]
    return [
        (_family([first, second]), first, second, {first: (first, ""), second: (second, "")})
        for first, second in itertools.combinations(sorted(groups), 2)
    ]


def _checked(frame: pd.DataFrame) -> pd.DataFrame:
    if frame.empty:
        raise UserError("hiring.csv: holds no decision: make the table again, or remove it")
    for column, known in (("arm", ARMS), ("parsed", ("yes", "no", ""))):
        wrong = ~frame[column].isin(known)
        if wrong.any():
            at = int(np.argmax(wrong))
            names = ", ".join(name or "(empty)" for name in known)
            raise UserError(f"hiring.csv:{at + 2}: {column} {frame[column].iloc[at]!r}: one of {names}")
    if frame.duplicated(["resume_id", "name", "arm"]).any():
        raise UserError("hiring.csv: a résumé has two rows for one name and arm: make the table again")
    places = frame.drop_duplicates(["group", "name"]).groupby("group").cumcount()
    keyed = frame.drop_duplicates(["group", "name"])[["group", "name"]].assign(place=places.astype(str))
    # of two strong résumés for a role each has one weak one to be compared with, not both
    graded = frame.drop_duplicates(["role", "quality", "resume_id"])[["role", "quality", "resume_id"]]
    graded = graded.assign(rank=graded.groupby(["role", "quality"]).cumcount())
    return frame.merge(keyed, on=["group", "name"]).merge(graded, on=["role", "quality", "resume_id"])


def _comparisons(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[_Comparison]]:
    plain = frame["arm"] == "none"
    found = []
    strong, weak = ((frame["quality"] == quality) & plain for quality in _QUALITIES)
    if strong.any() and weak.any():
        named = Named(STRONG_WEAK, "quality", "relevant")
        found.append(_Comparison(named, strong, weak, ("role", "rank", "name"), "role"))
    for family, first, second, sides in group_contrasts(sorted(set(frame["group"]))):
        held = f"held_{first}_{second}"
        frame = frame.assign(**{held: frame["group"].map({group: other for group, (_, other) in sides.items()})})
        masks = [
            frame["group"].isin([group for group, (side, _) in sides.items() if side == wanted]) & plain
            for wanted in (first, second)
        ]
        named = Named(f"names_{first}_{second}", family, "irrelevant")
        found.append(_Comparison(named, masks[0], masks[1], ("resume_id", "place", held), "resume_id"))
    for arm in ARMS[1:]:
        if (frame["arm"] == arm).any():
            named = Named(f"arm_{arm}", "steering", STEERING_ROLE)
            found.append(_Comparison(named, frame["arm"] == arm, plain, ("resume_id", "name"), "resume_id"))
    return frame, found


def hiring_effects(frame: pd.DataFrame, settings: EffectSettings, bound: float, share: float) -> HiringEffects:
    """Test the hiring task.

    Parameters
    ----------
    frame
        ``hiring.csv``.
    settings
        Of the tests.
    bound
        Difference of logits that counts as none.
    share
        Of what strong against weak résumés move E, which counts as none.

    Raises
    ------
    UserError
        If there is no row, an arm or a parsed answer is none that is known, or a row comes twice.
    """
    frame, comparisons = _comparisons(_checked(frame))
    found: list[Effect] = []
    for measure, column in MEASURES.items():
        # E is read where steering has just raised it: a test of that would be of one's own doing
        tested = [c for c in comparisons if measure == "hiring" or c.named.role != STEERING_ROLE]
        rows = _tested(frame, tested, (measure, column), settings, bound if measure == "hiring" else None)
        if measure == "hiring_E" and (of_resumes := equivalence_bound(rows, share)):
            rows = _tested(frame, tested, (measure, column), settings, of_resumes)
        for steering in (False, True):
            part = adjusted([row for row in rows if (row.role == STEERING_ROLE) == steering], settings.level)
            found += _beside_answers(frame, comparisons, part) if measure == "hiring" else part
    return HiringEffects(found, _arms(frame, comparisons, settings.level), tuple(_left_out(frame, comparisons)))


def _left_out(frame: pd.DataFrame, comparisons: Sequence[_Comparison]) -> Iterator[str]:
    """Say which names or résumés of a comparison have no counterpart on its other side."""
    for comparison in comparisons:
        if comparison.named.role == STEERING_ROLE:
            continue
        of_names = comparison.named.role == "irrelevant"
        column = "name" if of_names else "resume_id"
        # a résumé that lacks some names is another matter: its pairs are fewer, none of its names is without a match
        key = [part for part in comparison.pairs if part not in ("resume_id", "name")]
        sides = [frame[mask].set_index(key) for mask in (comparison.first, comparison.second)]
        for side, other in (sides, sides[::-1]):
            alone = list(dict.fromkeys(side.loc[~side.index.isin(other.index), column]))
            if alone:
                what = "name" if of_names else "résumé"
                verb = "has" if len(alone) == 1 else "have"
                yield (
                    f"hiring.csv: {comparison.named.contrast_id} leaves out {', '.join(alone)}: "
                    f"the {what}{'s' * (len(alone) > 1)} {verb} no counterpart on the other side"
                )


def _tested(
    frame: pd.DataFrame,
    comparisons: Sequence[_Comparison],
    measure: tuple[str, str],
    settings: EffectSettings,
    bound: float | None,
) -> list[Effect]:
    name, column = measure
    rows = []
    for comparison in comparisons:
        joined = _joined(frame, comparison, column)
        if joined.empty:
            continue
        differences = (joined[f"{column}_first"] - joined[f"{column}_second"]).to_numpy(float)
        cluster = joined.index.get_level_values(comparison.cluster).to_numpy(str)
        if comparison.names:
            parts = [joined.index.get_level_values(part).astype(str) for part in comparison.names]
            pairs = ["\t".join(part) for part in zip(*parts, strict=True)]
            rows.append(crossed_effect(comparison.named, differences, cluster, pairs, name, settings, bound))
        else:
            rows += effects([comparison.named], differences[:, np.newaxis], cluster, name, settings, bound)
    return rows


def _beside_answers(frame: pd.DataFrame, comparisons: Sequence[_Comparison], found: Sequence[Effect]) -> list[Effect]:
    """Put McNemar's test of the written answers beside the effects on the logits, pair for pair the same."""
    of = {comparison.named.contrast_id: comparison for comparison in comparisons}
    return with_decisions(found, [_decided(frame, of[effect.contrast_id]) for effect in found])


def _decided(frame: pd.DataFrame, comparison: _Comparison) -> Decisions:
    joined = _joined(frame, comparison, "parsed")
    return decisions(joined["parsed_first"].tolist(), joined["parsed_second"].tolist())


def _joined(frame: pd.DataFrame, comparison: _Comparison, column: str) -> pd.DataFrame:
    """Return a column of both sides, one row a pair, by what the pairs are known by."""
    key = list(comparison.pairs)
    sides = [frame[mask].set_index(key)[[column]] for mask in (comparison.first, comparison.second)]
    return sides[0].join(sides[1], lsuffix="_first", rsuffix="_second", how="inner")


def _arms(frame: pd.DataFrame, comparisons: Sequence[_Comparison], level: float) -> pd.DataFrame:
    """Return one row an arm and group, ``all`` first: means, share of Yes, McNemar's test against no steering."""
    rows = []
    for arm in [arm for arm in ARMS if (frame["arm"] == arm).any()]:
        for group in ["all", *sorted(set(frame["group"]))]:
            chosen = frame[(frame["arm"] == arm) & ((frame["group"] == group) | (group == "all"))]
            readable = chosen["parsed"] != ""
            share = wilson(int((chosen["parsed"] == "yes").sum()), int(readable.sum()), level)
            row = {
                "arm": arm,
                "group": group,
                "n": len(chosen),
                "yes_logit_minus_no": chosen["yes_logit_minus_no"].mean(),
                "p_yes": chosen["p_yes"].mean(),
                "n_readable": int(readable.sum()),
                "yes_share": share.value,
                "yes_low": share.low,
                "yes_high": share.high,
            }
            comparison = next((c for c in comparisons if c.named.contrast_id == f"arm_{arm}"), None)
            changed = None
            if comparison is not None:
                inside = (frame["group"] == group) | (group == "all")
                part = _Comparison(
                    comparison.named,
                    comparison.first & inside,
                    comparison.second & inside,
                    comparison.pairs,
                    comparison.cluster,
                )
                changed = _decided(frame, part)
            rows.append(
                row
                | {
                    "to_yes": changed.gained if changed else None,
                    "to_no": changed.lost if changed else None,
                    "mcnemar_p": changed.p if changed else None,
                }
            )
    return pd.DataFrame(rows)
