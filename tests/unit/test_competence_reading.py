"""Reading level: the grades of the fact sheet, invariance to markup and repetition, counts against other counters."""

from importlib import util
from pathlib import Path

import pyphen
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refbias.competence.data import load_graded
from refbias.competence.prose import complete, flatten, sentences
from refbias.competence.reading import dcrs, fkgl, is_easy, load_easy_words, read_text, words
from refbias.competence.syllables import syllables
from refbias.errors import UserError

EASY = load_easy_words()

# own count of syllables, spoken aloud
SYLLABLES = {
    1: "the a cat dog made makes looked through strength eye year guest guide walked jumped clothes rules failed "
    "use one shoe true tree days played don't friend hour build read real queue league tongue bed red helped "
    "fifth",
    2: "table boxes wanted going trying maybe people question beyond being someone something safely movement "
    "careful homework household therefore create react quiet diet client trial bias million union region "
    "fashion business lawyer nation patient ancient bottled handles nurses building valued fluid ruin couldn't "
    "rescue pages places classes poem statement basement science lion always before seven carried studied "
    "rhythm tourist prism",
    3: "media radio ratio video museum employee agreement management measurement settlement element serious "
    "various previous easier happier area idea created actual manual gradual audience period medium opinion "
    "companion financial important recipe tourism influence energy banana computer however physician "
    "technician musician beautiful violent family different another carpenter engineer nuclear linear continue "
    "document example attention",
    4: "material society variety anxiety experience associate appreciate negotiate evaluate situation continuous "
    "geology electrician reliable ingredient usually information technology temperature intelligent electronic "
    "diabetes cooperate coordinate necessary community available alternative",
    5: "association communication examination individual opportunity electricity refrigerator university possibility",
    6: "reliability responsibility",
}

PROSE = (
    "Wash the lettuce in cold water. Dry it with a clean cloth before you add the dressing. The leaves stay crisp when "
    "they are dry. You need a bowl, a knife, and salt. Never leave the salad in the sun."
)
MARKDOWN = """## A crisp salad

1. **Wash** the lettuce in cold water.
2. Dry it with a *clean cloth* before you add the dressing
   - The leaves stay `crisp` when they are dry.

You need a [bowl](https://example.org/bowl), a knife, and salt.

| part | grams |
|------|-------|
| salt | 3     |

```python
print("not prose at all")
```

> Never leave the salad in the sun.
"""


@pytest.mark.parametrize(
    ("counts", "grade"), [((1, 1, 1), -3.40), ((6, 1, 6), -1.45), ((13, 1, 24), 11.2646), ((16, 1, 23), 7.6125)]
)
def test_fkgl(counts: tuple[int, int, int], grade: float) -> None:
    assert fkgl(*counts) == pytest.approx(grade, abs=5e-5)


@pytest.mark.parametrize(
    ("counts", "grade"), [((6, 1, 0), 0.2976), ((100, 5, 5), 1.7815), ((30, 2, 6), 3.902), ((16, 1, 2), 2.7673)]
)
def test_dcrs_without_its_adjustment(counts: tuple[int, int, int], grade: float) -> None:
    assert dcrs(*counts) == pytest.approx(grade, abs=1e-4)


def test_level_is_the_mean_of_both_grades_of_hand_counts() -> None:
    found = read_text("The cat sat on the mat. It was warm and the cat was glad.", EASY)
    assert (found.words, found.sentences, found.syllables, found.difficult) == (14, 2, 14, 0)
    assert found.fkgl == pytest.approx(0.39 * 7 + 11.8 - 15.59)
    assert found.dcrs == pytest.approx(0.0496 * 7)
    assert found.level == pytest.approx((0.39 * 7 + 11.8 - 15.59 + 0.0496 * 7) / 2)


def test_syllables_of_words_counted_by_ear() -> None:
    wrong = {word: syllables(word) for n, row in SYLLABLES.items() for word in row.split() if syllables(word) != n}
    assert wrong == {}


def test_syllables_agree_with_a_hyphenation_dictionary_up_to_what_it_leaves_whole() -> None:
    # a hyphenation never parts more than is spoken, but for the endings that it sets off and speech does not
    dictionary = pyphen.Pyphen(lang="en_US")
    found = [word for word in sorted(EASY) if word.isalpha() and len(word) > 3]
    below = [word for word in found if syllables(word) < len(dictionary.positions(word)) + 1]
    assert len(found) > 2000
    assert len(below) / len(found) < 0.01, below


@given(st.lists(st.sampled_from(PROSE.split(". ")), min_size=2, max_size=5), st.integers(2, 6))
@settings(max_examples=40, deadline=None)
def test_a_text_repeated_keeps_its_level(parts: list[str], times: int) -> None:
    text = ". ".join(part.rstrip(".") for part in parts) + "."
    once, often = read_text(text, EASY), read_text(" ".join([text] * times), EASY)
    assert often.words == times * once.words
    assert often.sentences == times * once.sentences
    if once.level is None:
        assert once.words < 10
    else:
        assert often.level == pytest.approx(once.level)
        assert (often.fkgl, often.dcrs) == (pytest.approx(once.fkgl), pytest.approx(once.dcrs))


def test_markdown_reads_as_the_same_prose() -> None:
    assert flatten(MARKDOWN) == PROSE
    assert read_text(MARKDOWN, EASY) == read_text(PROSE, EASY)


def test_a_list_of_words_is_one_sentence() -> None:
    listed = "For the soup you need:\n\n- two onions\n- a red pepper\n- some salt\n\nThen boil it."
    assert flatten(listed) == "For the soup you need: two onions, a red pepper, some salt. Then boil it."


def test_list_items_that_are_sentences_count_as_such_without_full_stops() -> None:
    listed = "* Check the oil of the car every week\n* Look at the tyres before a long trip"
    spoken = "Check the oil of the car every week. Look at the tyres before a long trip."
    assert read_text(listed, EASY) == read_text(spoken, EASY)
    assert read_text(listed, EASY).sentences == 2


def test_wrapped_lines_are_one_paragraph() -> None:
    assert flatten("One line that goes\non here.\n\nAnother.") == "One line that goes on here. Another."


def test_headings_underlined_or_bold_or_numbered_go() -> None:
    text = "Title\n=====\n\nIt rains.\n\nSub\n---\n\n**Step two:**\n\nIt snows.\n\n---\n### End ###"
    assert flatten(text) == "It rains. It snows."


@pytest.mark.parametrize("mark", ["```", "~~~"])
def test_code_is_left_out_even_where_the_fence_never_closes(mark: str) -> None:
    assert flatten(f"Run it.\n{mark}sh\nls -l\n{mark}\nThen stop.") == "Run it. Then stop."
    assert flatten(f"Run it.\n{mark}\nls -l\nrm x") == "Run it."


def test_the_cut_last_sentence_is_dropped_where_the_limit_cut_it() -> None:
    text = "Turn off the water first. Then open the valve with the big wrench and"
    assert complete(text) == "Turn off the water first."
    assert read_text(text, EASY, finished=False).words == 5
    assert read_text(text, EASY, finished=True).words == 14
    assert complete("no end at all") == ""


def test_sentences_do_not_end_at_abbreviations_numbers_or_initials() -> None:
    text = (
        'Dr. Lee paid 3.50 dollars, e.g. for tea. "Is it hot?" he asked. J. Doe left at 5 p.m. on Monday! Wait... no.'
    )
    assert sentences(text) == [
        "Dr. Lee paid 3.50 dollars, e.g. for tea.",
        '"Is it hot?"',
        "he asked.",
        "J. Doe left at 5 p.m. on Monday!",
        "Wait... no.",
    ]


def test_no_and_etc_end_sentences_unless_the_sentence_goes_on() -> None:
    assert sentences("The answer is no. You should wait.") == ["The answer is no.", "You should wait."]
    assert sentences("Bring nails, screws, etc. Then start.") == ["Bring nails, screws, etc.", "Then start."]
    assert sentences("Nails, etc. are in box No. 5, see fig. 3.") == ["Nails, etc. are in box No. 5, see fig. 3."]


def test_graded_passages_are_put_in_their_order() -> None:
    graded = sorted(load_graded(), key=lambda passage: passage.order)
    found = [read_text(passage.text, EASY) for passage in graded]
    assert len(found) >= 4
    for measure in ("fkgl", "dcrs", "level"):
        grades = [getattr(reading, measure) for reading in found]
        assert grades == sorted(grades), (measure, grades)
        assert len(set(grades)) == len(grades)


@pytest.mark.parametrize("text", ["", "Yes.", "- \n- \n", "```\nx = 1\n```", "Nine words are too few for any grade."])
def test_too_few_words_are_undefined_never_zero(text: str) -> None:
    found = read_text(text, EASY)
    assert (found.fkgl, found.dcrs, found.level) == (None, None, None)


def test_inflections_of_easy_words_are_easy() -> None:
    easy = frozenset({"make", "stop", "party", "cat", "slow", "happy", "do", "old"})
    for word in ("makes", "making", "stopped", "stopping", "parties", "cat's", "cats", "slowly", "happier", "don't"):
        assert is_easy(word, easy), word
    for word in ("maker's-mark", "as", "ping", "catalogue", "sing"):
        assert not is_easy(word, easy), word
    assert is_easy("Old-cat", easy)
    assert is_easy("1,250.5", easy)


def test_words_keep_hyphens_apostrophes_and_numbers_together() -> None:
    assert words("Don't re-use a 1.5-litre bottle \u2013 it\u2019s old.") == [
        *("Don't", "re-use", "a", "1.5", "litre", "bottle", "it\u2019s", "old"),
    ]


def test_easy_words_are_read_from_the_package_or_a_file(tmp_path: Path) -> None:
    spec = util.find_spec("textstat")
    assert spec is not None
    assert spec.submodule_search_locations
    shipped = Path(spec.submodule_search_locations[0]) / "resources/en/easy_words.txt"
    assert frozenset(shipped.read_text(encoding="utf-8").split()) == EASY
    with pytest.raises(UserError, match="no such file"):
        load_easy_words(tmp_path / "none.txt")
    (tmp_path / "few.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(UserError, match="only 2 words"):
        load_easy_words(tmp_path / "few.txt")
