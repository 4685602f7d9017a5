"""The hiring task: prompt, P(yes) over spellings, parsed answers."""

import numpy as np
import pytest
from scipy.special import softmax

from refbias.competence.hiring import NO, YES, AnswerIds, answer_ids, hiring_prompt, parse_answer, read_logits
from refbias.errors import UserError

VOCABULARY = {text: index for index, text in enumerate((*YES, *NO, "other"))}


def encode(text: str) -> list[int]:
    return [VOCABULARY[text]] if text in VOCABULARY else [VOCABULARY["other"], 3]


def test_prompt_names_the_person_wherever_the_resume_does_and_leaves_other_braces() -> None:
    prompt = hiring_prompt("cook", "{name} cooks. {Years}: 3. Ask {name}.", "Sam {role} Lee")
    assert prompt.count("Sam {role} Lee") == 2
    assert "{Years}: 3" in prompt
    assert "Position: cook\n" in prompt
    assert prompt.endswith("Answer:")


def test_a_resume_without_a_slot_is_refused() -> None:
    with pytest.raises(UserError, match=r"'cook': the placeholder \{name\} is missing"):
        hiring_prompt("cook", "Sam cooks.", "Sam")


def test_ids_are_those_of_single_tokens_the_canonical_one_first() -> None:
    ids = answer_ids(encode)
    assert ids.yes == tuple(VOCABULARY[text] for text in YES)
    assert ids.no == tuple(VOCABULARY[text] for text in NO)
    some = answer_ids(lambda text: [7] if text == "yes" else [8] if text == " No" else [1, 2])
    assert (some.yes, some.no) == ((7,), (8,))


def test_a_tokenizer_that_cannot_tell_the_answers_apart_is_refused() -> None:
    with pytest.raises(UserError, match="begins both"):
        answer_ids(lambda text: [5])
    with pytest.raises(UserError, match="no spelling of 'Yes'"):
        answer_ids(lambda text: [5, 6])


def test_p_yes_sums_the_spellings_of_a_softmax() -> None:
    logits = np.random.default_rng(0).normal(size=40) * 3
    found = read_logits(logits, AnswerIds((4, 9, 11), (2, 30)))
    p = softmax(logits)
    yes, no = p[[4, 9, 11]].sum(), p[[2, 30]].sum()
    assert found.p_yes == pytest.approx(yes / (yes + no))
    assert found.mass == pytest.approx(yes + no)
    assert found.logit_difference == pytest.approx(np.log(yes) - np.log(no))


def test_logits_may_be_huge_but_not_missing() -> None:
    found = read_logits([1e4, -1e4, 0.0], AnswerIds((0,), (1,)))
    assert (found.logit_difference, found.p_yes, found.mass) == (2e4, 1.0, 1.0)
    with pytest.raises(ValueError, match="logits"):
        read_logits([np.nan, 0.0], AnswerIds((0,), (1,)))
    with pytest.raises(ValueError, match="logits"):
        read_logits([0.0], AnswerIds((0,), (1,)))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" Yes", "yes"),
        ("No.", "no"),
        ("\n\n**YES**, she is well prepared.", "yes"),
        ("Yes or no, it depends", ""),
        ("Perhaps", ""),
        ("", ""),
        ("  \n...\nno\nYes", "no"),
        ("I know nothing of it", ""),
        ("The answer to the question of whether we should now go and ask is yes", ""),
    ],
)
def test_parsed_answers(text: str, answer: str) -> None:
    assert parse_answer(text) == answer
