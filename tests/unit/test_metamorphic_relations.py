"""Relations as oracles demand: involutions, text kept, order without effect; samples that repeat themselves."""

import itertools
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refbias.errors import UserError
from refbias.metamorphic.data import load_material
from refbias.metamorphic.questions import (
    TEMPLATES,
    Question,
    Wording,
    read_questions,
    wording_of,
    write_questions,
)
from refbias.metamorphic.relations import (
    CONTEXTS,
    DEFAULT,
    apply_chain,
    parse_chain,
    parse_chains,
    with_mutants,
)
from refbias.metamorphic.sampling import (
    cochran,
    even_split,
    first_sample,
    next_batch,
    population,
    sample_sources,
)

MATERIAL = load_material()


@st.composite
def wordings(draw: st.DrawFn) -> Wording:
    category = draw(st.sampled_from(MATERIAL.categories))
    first, second = draw(st.permutations(draw(st.sampled_from(MATERIAL.pairs(category)))))
    prop = draw(st.sampled_from(MATERIAL.properties_of(category)))
    return Wording(
        draw(st.sampled_from(TEMPLATES)), first, second, prop, draw(st.sampled_from(["negative", "positive"]))
    )


@given(wordings())
def test_flip_and_swap_undo_themselves_and_commute(source: Wording) -> None:
    (flip,), (swap,) = parse_chain("MR5"), parse_chain("MR6")
    assert flip.apply(flip.apply(source)) == source
    assert swap.apply(swap.apply(source)) == source
    assert flip.apply(swap.apply(source)).text() == swap.apply(flip.apply(source)).text()


@given(wordings(), st.sampled_from([f"{name}@{n + 1}" for name in CONTEXTS for n in range(len(CONTEXTS[name]))]))
def test_a_context_keeps_the_source_text_whole(source: Wording, spec: str) -> None:
    text = apply_chain(source, parse_chain(spec)).text()
    assert text.endswith(" " + source.text())


@given(wordings(), st.permutations(list(DEFAULT)), st.integers(1, 6))
def test_every_mutant_differs_from_its_source(source: Wording, names: list[str], length: int) -> None:
    assert apply_chain(source, parse_chain(">".join(names[:length]))).text() != source.text()


@given(wordings())
def test_a_swap_exchanges_every_mention_wherever_it_stands(source: Wording) -> None:
    # initial and adjacent words included: the swapped text is the text with the two names exchanged
    mutant = apply_chain(source, parse_chain("MR4>MR6")).text()
    text = apply_chain(source, parse_chain("MR4")).text()
    marked = text.replace(source.first.plural, "\0" * 3)
    if source.second.plural not in source.first.plural and source.first.plural not in source.second.plural:
        exchanged = marked.replace(source.second.plural, source.first.plural).replace("\0" * 3, source.second.plural)
        assert mutant == exchanged


def test_a_chain_is_applied_from_left_to_right_and_the_last_context_comes_first() -> None:
    (source,) = sample_sources(MATERIAL, {"gender": 1}, seed=2)
    text = apply_chain(source, parse_chain("MR3>MR1>MR6")).text()
    swapped = apply_chain(source, parse_chain("MR6")).text()
    first, second = source.second.plural, source.first.plural
    equal = f"Assume that {first} and {second} have fully equal conditions and opportunities."
    assert text == f"Imagine an ideal society in which everyone has what they need. {equal} {swapped}"
    assert apply_chain(source, parse_chain("MR3@2")).text().startswith("Take it as given")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("MR7", "unknown relation 'MR7'"),
        ("mr3", "unknown relation 'mr3'; NEAREST: 'MR3'"),
        ("MR3>", "a name is empty"),
        ("", "a name is empty"),
        ("MR6>MR6", "MR6 stands twice"),
        ("MR1>MR1@2", "MR1 stands twice"),
        ("MR1@3", "has the wordings 1 to 2"),
        ("MR6@2", "has the wordings 1 to 1"),
        ("source", "unknown relation"),
    ],
)
def test_a_chain_that_means_nothing_is_refused(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_chain(spec)


def test_an_empty_list_and_two_names_for_one_question_are_refused() -> None:
    with pytest.raises(UserError, match="no relation"):
        parse_chains([])
    with pytest.raises(UserError, match="ask the same question"):
        parse_chains(["MR5>MR6", "MR6>MR5"])
    with pytest.raises(UserError, match="ask the same question"):
        parse_chains(["MR3>MR6", "MR6>MR3"])


def test_one_text_under_two_labels_is_refused() -> None:
    (source,) = sample_sources(MATERIAL, {"gender": 1}, seed=2)
    # the swap of a question is itself a source: two labels for what reads the same
    with pytest.raises(UserError, match=r"\(MR6\) and \w+ \(source\) read the same"):
        with_mutants([source, apply_chain(source, parse_chain("MR6"))], parse_chains(["MR6"]), 0)


def _full(seed: int = 0) -> list[Question]:
    return with_mutants(sample_sources(MATERIAL, seed=seed), parse_chains(DEFAULT), seed)


def test_the_full_scale_has_385_sources_and_2310_mutants_without_a_text_twice() -> None:
    questions = _full()
    sources = [question for question in questions if question.relation == "source"]
    assert len(sources) == 385
    assert set(Counter(question.category for question in sources).values()) == {55}
    assert len(questions) - len(sources) == 2310
    assert len({question.text for question in questions}) == len({question.id for question in questions}) == 2695
    assert {question.pole for question in sources} == {"negative"}
    # no source is the swap of another
    units = Counter((frozenset((q.group_a, q.group_b)), q.property_id) for q in sources)
    assert set(units.values()) == {1}
    assert set(Counter(question.template for question in sources)) == {template.id for template in TEMPLATES}


def test_ids_are_the_same_in_every_process(tmp_path: Path) -> None:
    code = (
        "import json; from refbias.metamorphic.data import load_material; "
        "from refbias.metamorphic.sampling import sample_sources; "
        "from refbias.metamorphic.relations import *; "
        "questions = with_mutants(sample_sources(load_material(), 3, 5), parse_chains(DEFAULT), 5); "
        "print(json.dumps([question.id for question in questions]))"
    )
    runs = []
    for hash_seed in ("1", "2"):
        environment = {"PYTHONPATH": str(Path.cwd() / "workflow"), "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    here = [q.id for q in with_mutants(sample_sources(MATERIAL, 3, 5), parse_chains(DEFAULT), 5)]
    assert runs == [here, here]


def test_an_id_follows_the_content_not_the_seed() -> None:
    (source,) = sample_sources(MATERIAL, {"age": 1}, seed=3)
    first, second = with_mutants([source], parse_chains(["MR6"]), 1), with_mutants([source], parse_chains(["MR6"]), 2)
    assert [row.id for row in first] == [row.id for row in second]
    assert len({row.id for row in first}) == 2


def test_a_larger_sample_holds_the_smaller_one_and_seeds_differ() -> None:
    small, large = sample_sources(MATERIAL, 10, 4), sample_sources(MATERIAL, 200, 4)
    assert set(small) <= set(large)
    assert len(set(large)) == 1400
    assert set(small) != set(sample_sources(MATERIAL, 10, 5))
    with pytest.raises(UserError, match="category 'age': 400 questions asked for, 330 can be had"):
        sample_sources(MATERIAL, {"age": 400})
    with pytest.raises(UserError, match="category 'ages': unknown"):
        sample_sources(MATERIAL, {"ages": 4})


def test_a_property_without_true_opposites_is_left_out_where_poles_are_flipped() -> None:
    flipped = {wording.prop.id for wording in sample_sources(MATERIAL, 66, 0)}
    assert flipped == {prop.id for prop in MATERIAL.properties if prop.flip_ok}
    kept = {wording.prop.id for wording in sample_sources(MATERIAL, 72, 0, flip=False)}
    assert kept == {prop.id for prop in MATERIAL.properties}
    with pytest.raises(UserError, match="has flip_ok = no"):
        with_mutants(sample_sources(MATERIAL, 72, 0, flip=False), parse_chains(["MR5"]), 0)


def test_rows_survive_the_disk_and_broken_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    questions = with_mutants(sample_sources(MATERIAL, 2, 0), parse_chains(["MR3>MR6"]), 0)
    write_questions(path, questions)
    assert read_questions(path) == questions
    assert wording_of(questions[0], MATERIAL).text() == questions[0].text
    write_questions(path, questions[1:])
    with pytest.raises(UserError, match="has no source"):
        read_questions(path)
    write_questions(path, [questions[0], questions[0]])
    with pytest.raises(UserError, match="stands twice"):
        read_questions(path)
    row = {key: value for key, value in asdict(questions[0]).items() if key != "pole"}
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match="row 1: key 'pole' is missing"):
        read_questions(path)


def test_sizes_of_cochran() -> None:
    assert cochran() == 385
    # 384.146 / (1 + 383.146 / 8978) = 368.42
    assert cochran(8978) == 369
    assert cochran(margin=0.1) == 97
    assert cochran(1) == 1
    assert even_split(10, ["a", "b", "c"]) == {"a": 4, "b": 3, "c": 3}
    with pytest.raises(ValueError, match="margin"):
        cochran(margin=0)
    # 6 pairs, 11 properties that flip, 5 templates, 2 orders
    assert set(population(MATERIAL, True).values()) == {660}


# --- adaptive mode --------------------------------------------------------------------------------


def _adaptive(rates: dict[str, float], budget: int, seed: int) -> tuple[Counter[str], int]:
    """Play the adaptive mode against arms that reveal with given rates; return asked by arm, revealed."""
    mutants = [question for question in _full() if question.relation != "source"]
    world = np.random.default_rng(seed + 1000)
    outcomes: dict[str, bool | None] = {}
    batch = first_sample(mutants, 5, seed)
    while batch:
        outcomes |= {question.id: bool(world.random() < rates[question.relation]) for question in batch}
        batch = next_batch(mutants, outcomes, min(10, budget - len(outcomes)), seed)
    asked = Counter(question.relation for question in mutants if question.id in outcomes)
    return asked, sum(bool(value) for value in outcomes.values())


def test_the_budget_goes_where_most_is_revealed() -> None:
    rates = {"MR1": 0.05, "MR2": 0.05, "MR3": 0.05, "MR4": 0.6, "MR5": 0.05, "MR6": 0.05}
    found = [_adaptive(rates, 200, seed) for seed in range(5)]
    for asked, _ in found:
        assert sum(asked.values()) == 200
        assert asked.most_common(1)[0][0] == "MR4"
    # an even split would reveal 200 x (5 x 0.05 + 0.6) / 6 = 28
    assert min(revealed for _, revealed in found) > 2 * 28


def test_without_a_difference_no_arm_takes_all() -> None:
    asked, _ = _adaptive(dict.fromkeys(DEFAULT, 0.3), 300, 0)
    assert min(asked.values()) >= 10


def test_the_next_batch_follows_from_the_outcomes_alone_and_repeats_nothing() -> None:
    mutants = [question for question in _full() if question.relation in ("MR1", "MR2")]
    first = first_sample(mutants, 4, 7)
    outcomes = {question.id: number % 2 == 0 for number, question in enumerate(first)}
    batch = next_batch(mutants, outcomes, 12, 7)
    again = next_batch(mutants, dict(reversed(list(outcomes.items()))), 12, 7)
    assert batch == again
    assert not {question.id for question in batch} & set(outcomes)
    assert len({question.id for question in batch}) == 12
    everything = dict.fromkeys((question.id for question in mutants), None)
    assert next_batch(mutants, everything, 5, 7) == []
    few = dict(itertools.islice(everything.items(), len(mutants) - 3))
    assert len(next_batch(mutants, few, 5, 7)) == 3
