"""Which questions are asked: stratified by category, or where a first sample says that most is revealed.

The unit of the sample is (pair of groups, property): no two source questions share it before all are used, so no
source is the swap or the flip of another. Templates go round the units. The order of the groups is drawn; the pole is
the negative one unless others are asked for, since a flip of poles drawn at random would compare a mixture with itself.
"""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats as scipy_stats

from refbias.errors import UserError
from refbias.metamorphic.data import POLES, Material
from refbias.metamorphic.questions import SOURCE, TEMPLATES, Question, Template, Wording, usable_templates

PER_CATEGORY = 55


def generator(seed: int, *names: str) -> np.random.Generator:
    """Return the random stream of a part of a sample, the same in every process."""
    digest = hashlib.blake2b("\0".join((str(seed), *names)).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def cochran(
    population: int | None = None, margin: float = 0.05, confidence: float = 0.95, proportion: float = 0.5
) -> int:
    """Return the sample size that estimates a proportion within a margin (Cochran 1977, eqs. 4.1 and 4.2).

    n0 = z^2 p (1 - p) / margin^2, and with the finite correction n = n0 / (1 + (n0 - 1) / population), rounded up.

    Parameters
    ----------
    population
        Size of the population; None = no finite correction.
    margin
        Half width of the interval, in (0, 1).
    confidence
        In (0, 1).
    proportion
        Expected one; 0.5 is the worst case.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    for name, value in (("margin", margin), ("confidence", confidence), ("proportion", proportion)):
        if not 0 < value < 1:
            raise ValueError(f"{name}: must lie between 0 and 1, got {value}")
    if population is not None and population < 1:
        raise ValueError(f"population: must be positive, got {population}")
    z = float(scipy_stats.norm.ppf((1 + confidence) / 2))
    size = z * z * proportion * (1 - proportion) / margin**2
    if population is not None:
        size /= 1 + (size - 1) / population
    return math.ceil(size)


def population(material: Material, flip: bool, poles: Sequence[str] = ("negative",)) -> dict[str, int]:
    """Return category -> number of source questions that could be asked (units, templates, orders, poles)."""
    return {
        category: sum(
            len(usable_templates(prop, flip or len(poles) > 1)) * len(material.pairs(category)) * 2 * len(poles)
            for prop in material.properties_of(category)
            if prop.flip_ok or not flip
        )
        for category in material.categories
    }


def even_split(total: int, categories: Sequence[str]) -> dict[str, int]:
    """Return category -> size; the first categories take what is left over."""
    least, more = divmod(total, len(categories))
    return {category: least + (number < more) for number, category in enumerate(categories)}


def sample_sources(
    material: Material,
    sizes: Mapping[str, int] | int = PER_CATEGORY,
    seed: int = 0,
    *,
    flip: bool = True,
    poles: Sequence[str] = ("negative",),
    templates: Sequence[Template] = TEMPLATES,
) -> list[Wording]:
    """Draw source questions, stratified by category.

    Parameters
    ----------
    material
        Groups and properties.
    sizes
        Questions of each category: one number, or category -> number.
    seed
        A larger sample of the same seed holds the smaller one.
    flip
        Leave properties out whose poles are no true opposites, because a relation will flip them.
    poles
        Poles to draw from.
    templates
        Templates to go round.

    Returns
    -------
    list of Wording
        By category, no two of a (pair, property, template).

    Raises
    ------
    UserError
        For an unknown category or pole, or where a category cannot yield as many.
    """
    wanted = dict.fromkeys(material.categories, sizes) if isinstance(sizes, int) else dict(sizes)
    for category in wanted:
        if category not in material.categories:
            raise UserError(f"category {category!r}: unknown: one of {', '.join(material.categories)}")
    unknown = [pole for pole in poles if pole not in POLES]
    if unknown or not poles:
        raise UserError(f"poles {', '.join(poles) or '(none)'}: name some of {', '.join(POLES)}")
    both = flip or len(poles) > 1
    found: list[Wording] = []
    for category, size in wanted.items():
        units = [
            (pair, prop, usable)
            for pair, prop in itertools.product(material.pairs(category), material.properties_of(category))
            if (prop.flip_ok or not flip) and (usable := usable_templates(prop, both, templates))
        ]
        most = sum(len(usable) for _, _, usable in units)
        if size > most:
            raise UserError(f"category {category!r}: {size} questions asked for, {most} can be had: lower the number")
        draw = generator(seed, "sources", category)
        order = draw.permutation(len(units))
        starts = draw.integers(0, 2**31, size=len(units))
        taken: list[Wording] = []
        for turn in range(len(templates)):
            swaps, of_pole = draw.integers(0, 2, size=len(units)), draw.integers(0, len(poles), size=len(units))
            for at in order:
                pair, prop, usable = units[at]
                if turn < len(usable):
                    template = usable[(int(starts[at]) + turn) % len(usable)]
                    first, second = pair[::-1] if swaps[at] else pair
                    taken.append(Wording(template, first, second, prop, poles[of_pole[at]]))
        found += taken[:size]
    return found


# --- adaptive mode ----------------------------------------------------------------------------------------------------


def by_relation(question: Question) -> str:
    """Arm of a question: its relation."""
    return question.relation


def by_cell(question: Question) -> str:
    """Arm of a question: its relation and category."""
    return f"{question.relation}|{question.category}"


def first_sample(
    mutants: Sequence[Question], per_arm: int, seed: int, arm: Callable[[Question], str] = by_relation
) -> list[Question]:
    """Return `per_arm` mutants of every arm (all where it holds fewer), drawn at random."""
    chosen = []
    for name in dict.fromkeys(map(arm, mutants)):
        members = [question for question in mutants if arm(question) == name]
        order = generator(seed, "first", name).permutation(len(members))
        chosen += [members[at] for at in order[:per_arm]]
    return chosen


def next_batch(
    mutants: Sequence[Question],
    outcomes: Mapping[str, bool | None],
    size: int,
    seed: int,
    arm: Callable[[Question], str] = by_relation,
) -> list[Question]:
    """Choose the next mutants to ask by Thompson sampling.

    Each place of the batch goes to the arm whose draw from its posterior Beta(1 + revealed, 1 + not revealed) is the
    largest among the arms that have unasked mutants left; the mutant is drawn within the arm. Nothing is kept between
    calls but the outcomes, so a run that was stopped goes on as it would have gone on.

    Parameters
    ----------
    mutants
        All mutants that may be asked.
    outcomes
        Id of an asked mutant -> it revealed something (True), it did not (False), its answer could not be used (None:
        asked, but no evidence).
    size
        Mutants at most; fewer where no more are left.
    seed
        With the outcomes it fixes the draws.
    arm
        What competes.

    Returns
    -------
    list of Question
        Not asked before, in the order of choice. Shares of what was so chosen are no estimates: within an arm they lie
        too low on average, since one that began badly is asked no more, and over all arms too high.
    """
    successes: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    left: dict[str, list[Question]] = {}
    for question in mutants:
        if question.relation == SOURCE:
            raise ValueError(f"mutants: {question.id} is a source question")
        name = arm(question)
        if question.id not in outcomes:
            left.setdefault(name, []).append(question)
        elif outcomes[question.id] is not None:
            (successes if outcomes[question.id] else failures)[name] += 1
    state = hashlib.sha256(repr(sorted(outcomes.items())).encode()).hexdigest()
    draw = generator(seed, "thompson", state)
    chosen: list[Question] = []
    while left and len(chosen) < size:
        names = sorted(left)
        values = draw.beta([1 + successes[name] for name in names], [1 + failures[name] for name in names])
        name = names[int(np.argmax(values))]
        members = left[name]
        chosen.append(members.pop(int(draw.integers(len(members)))))
        if not members:
            del left[name]
    return chosen
