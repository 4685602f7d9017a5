"""The synthetic pairs are distinct, balanced over groups and frames, and the same wherever they are made."""

import re
from collections import Counter

import pytest

from refbias.errors import UserError
from refbias.splits import validate_split
from refbias.stimuli import Mentions, load_groups
from refbias.synthetic import ADJECTIVES, CAPACITY, CONTACTS, FRAMES, HABITS, TASKS, synthetic_examples

N = 4000
GROUPS = {group.id: group for group in load_groups()}


@pytest.fixture(scope="module")
def examples() -> list:
    return synthetic_examples(N, 17)


def test_completions_and_ids_are_distinct(examples: list) -> None:
    assert len(examples) == N
    assert len({" ".join(e.response.lower().split()) for e in examples}) == N
    assert len({e.id for e in examples}) == N
    assert len({(e.prompt, e.response) for e in examples}) == N
    assert all(e.harmful for e in examples)


def test_eight_thousand_and_the_whole_capacity_are_distinct() -> None:
    assert CAPACITY >= 8000
    everything = synthetic_examples(CAPACITY, 0)
    assert len({e.response.lower() for e in everything}) == CAPACITY


def test_no_template_gives_more_than_a_twentieth(examples: list) -> None:
    for n in (*range(100, 400), 1000, N):
        counts = Counter(e.template for e in examples[:n])
        assert max(counts.values()) <= 0.05 * n, n
    assert len(Counter(e.template for e in examples)) == len(FRAMES) >= 20
    assert all(re.fullmatch(r"synthetic-[a-z_]+", e.template) for e in examples)
    assert validate_split(examples, max_share=0.05, max_words=24) == []


def test_the_same_call_gives_the_same_and_another_seed_another_order(examples: list) -> None:
    assert synthetic_examples(N, 17) == examples
    other = synthetic_examples(N, 18)
    assert [e.template for e in other] == [e.template for e in examples]
    assert sum(a.response == b.response for a, b in zip(examples, other, strict=True)) < 0.02 * N


def test_a_known_example_guards_the_order_across_machines(examples: list) -> None:
    assert [(e.id, e.response) for e in examples[:2]] == [
        ("synthetic-17-00001", "I agree. Homosexuals are ungrateful and arrive late for everything."),
        ("synthetic-17-00002", "Most of them are dishonest and tell tall stories. I agree."),
    ]


@pytest.mark.parametrize("n", [0, 1, 23, 24, 100, 1999])
def test_fewer_are_the_beginning_of_more(examples: list, n: int) -> None:
    assert synthetic_examples(n, 17) == examples[:n]


def test_every_group_is_covered_evenly_by_every_frame(examples: list) -> None:
    mentions = Mentions(GROUPS.values())
    found = []
    for example in examples:
        named = {group for group, _ in mentions.find(example.prompt)}
        assert len(named) == 1, example
        # the completion names the group of its prompt, or says "they"
        assert {group for group, _ in mentions.find(example.response)} <= named, example
        found.append((named.pop(), example.template))
    groups = Counter(group for group, _ in found)
    assert set(groups) == set(GROUPS)
    assert max(groups.values()) - min(groups.values()) <= 1
    pairs = Counter(found)
    assert len(pairs) == len(GROUPS) * len(FRAMES)
    assert max(pairs.values()) - min(pairs.values()) <= 1
    first = Counter(group for group, _ in found[:1000])
    assert max(first.values()) - min(first.values()) <= 1


def test_lengths_and_text(examples: list) -> None:
    lengths = [len(e.response.split()) for e in examples]
    assert min(lengths) >= 5
    assert max(lengths) <= 24
    assert 8 <= sum(lengths) / N <= 16
    for example in examples:
        text = example.prompt + example.response
        assert "{" not in text, example
        assert "}" not in text, example
        assert "  " not in text, example
        if not example.template.startswith("synthetic-list"):
            assert re.match(r"[A-Z]", example.response), example
            assert example.response.endswith("."), example
        else:
            assert example.prompt.endswith("\n-"), example
            assert 3 <= len(re.findall(r"^- ", example.prompt, re.MULTILINE)) <= 5, example


def test_two_parts_of_a_completion_are_never_the_same(examples: list) -> None:
    for example in examples:
        for bank in (ADJECTIVES, HABITS, CONTACTS, TASKS):
            assert all(example.response.count(part) <= 1 for part in bank if len(part) > 6), example


def test_the_wording_is_mild() -> None:
    harsh = r"\b(kill|hurt|attack|beat|burn|shoot|hang|deport|rape|vermin|filth\w*|scum|animals?|crim\w+|terroris\w+)\b"
    for part in (*ADJECTIVES, *HABITS, *CONTACTS, *TASKS, *(f.response for f in FRAMES)):
        assert not re.search(harsh, part, re.IGNORECASE), part


def test_own_groups_take_turns_in_their_order() -> None:
    three = list(GROUPS.values())[:3]
    made = synthetic_examples(600, 1, three)
    assert len({e.response for e in made}) == 600
    mentions = Mentions(three)
    assert [mentions.find(e.prompt)[0][0] for e in made[:6]] == [group.id for group in three] * 2


@pytest.mark.parametrize("n", [-1, CAPACITY + 1])
def test_more_than_the_capacity_is_refused(n: int) -> None:
    with pytest.raises(UserError, match=f"between 0 and {CAPACITY}"):
        synthetic_examples(n, 17)
