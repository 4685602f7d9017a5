"""Competence data: what ships, what a mistake says, a user's copy of the public question and pair files."""

from collections import Counter
from pathlib import Path

import pytest

from refbias.competence.data import (
    load_attributes,
    load_contrasts,
    load_graded,
    load_names,
    load_pairs,
    load_questions,
    load_resumes,
)
from refbias.competence.public import load_pair_files
from refbias.competence.records import Attribute, context_of, with_article
from refbias.errors import UserError
from refbias.resources import data_path


def test_the_shipped_data_has_its_full_size() -> None:
    pairs = load_pairs()
    assert Counter(pair.split for pair in pairs.pairs) == {"fit": 24, "held_out": 8}
    assert not pairs.notes
    sentences = [text for pair in pairs.pairs for text in (pair.expert, pair.novice)]
    assert len(set(sentences)) == 64
    questions = load_questions()
    assert len(questions.occupations) == 8
    assert all(len(questions.of(occupation)) == 8 for occupation in questions.occupations)
    assert len({question.text for question in questions.questions}) == 64
    # neutral: no sentence of a pair names an occupation
    for text in sentences:
        assert not [occupation for occupation in questions.occupations if occupation in text]
    attributes = load_attributes()
    assert Counter(row.role for row in attributes) == {"irrelevant": 8, "relevant": 4, "placebo": 4, "baseline": 1}
    contrasts = load_contrasts(attributes)
    assert {row.family for row in contrasts if row.role == "irrelevant"} == {"gender", "race", "income"}
    assert {"occupation_none", "adult_child", "college_none"} <= {row.id for row in contrasts}
    assert Counter(row.quality for row in load_resumes()) == {"strong": 2, "fair": 2, "weak": 2}
    assert set(Counter(row.group for row in load_names()).values()) == {2}
    assert len({row.group for row in load_names()}) == 4
    assert [row.order for row in load_graded()] == [1, 2, 3, 4]


def test_a_context_is_the_phrase_the_occupation_and_a_full_stop() -> None:
    tea = Attribute("tea", "drink", "placebo", "I prefer tea to coffee")
    assert context_of(tea, None) == "I prefer tea to coffee."
    assert context_of(tea, "accountant") == "I prefer tea to coffee, and I work as an accountant."
    assert with_article("nurse") == "a nurse"
    assert with_article("an hourly worker") == "an hourly worker"


def test_sides_of_a_contrast_say_whether_the_occupation_is_named() -> None:
    contrasts = {row.id: row for row in load_contrasts(load_attributes())}
    assert contrasts["woman_man"].cells == (("woman", True), ("man", True))
    assert contrasts["occupation_none"].cells == (("none", True), ("none", False))


def _changed(tmp_path: Path, name: str, old: str, new: str) -> Path:
    text = data_path("competence", name).read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / name
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("pairs.tsv", "pair_02\t", "pair_01\t", r"pairs.tsv:3: pair_id 'pair_01' stands on line 2 too"),
        ("pairs.tsv", "two days.\tfit", "two days.\tfitted", r"pairs.tsv:2: unknown split 'fitted'; nearest: 'fit'"),
        ("pairs.tsv", "for two days.", "for two short days.", r"pairs.tsv:2: .* length \(10 and 11 words\)"),
        ("pairs.tsv", "I have done this kind of work for two days.", "I have done this kind of work for many years.",
         r"pairs.tsv:2: expert and novice say the same"),
        ("questions.tsv", "nurse_2\t", "nurse_1\t", r"questions.tsv:3: question_id 'nurse_1' stands on line 2 too"),
        ("attributes.tsv", "gender\tirrelevant\tI am a woman", "gender\tirelevant\tI am a woman",
         r"attributes.tsv:7: unknown role 'irelevant'; nearest: 'irrelevant'"),
        ("attributes.tsv", "none\tnone\tbaseline", "nothing\tnone\tbaseline", r"attributes.tsv:2: role baseline"),
        ("attributes.tsv", "I am a woman", "I am a woman.", r"attributes.tsv:7: phrase 'I am a woman.' ends in '.'"),
        ("contrasts.tsv", "woman\tman", "womann\tman",
         r"contrasts.tsv:6: first names an unknown attribute 'womann'; nearest: 'woman'"),
        ("contrasts.tsv", "woman\tman", "tea\tman", r"contrasts.tsv:6: first 'tea' is placebo, the contrast irrel"),
        ("contrasts.tsv", "woman\tman", "man\tman", r"contrasts.tsv:6: contrast 'woman_man' compares 'man' with its"),
        ("contrasts.tsv", "occupation\tnone", "occupation\ttea", r"contrasts.tsv:2: 'occupation' is compared with"),
        ("attributes.tsv", "woman\tgender", "occupation\tgender", r"attributes.tsv:7: id 'occupation' means the occ"),
        ("resumes.tsv", "{name}", "Someone", r"resumes.tsv:2: the text has no placeholder {name}"),
        ("resumes.tsv", "{name}", "{name} of {town}", r"resumes.tsv:2: unknown placeholder {town}"),
        ("resumes.tsv", "{name}", "{name", r"resumes.tsv:2: a brace stands alone"),
        ("names.tsv", "Latoya Jefferson", "Keisha Booker", r"names.tsv:3: name 'Keisha Booker' stands on line 2 too"),
        ("graded.tsv", "school\t2", "school\ttwo", r"graded.tsv:3: grade_order 'two'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(tmp_path: Path, name: str, old: str, new: str, says: str) -> None:
    path = _changed(tmp_path, name, old, new)
    loaders = {
        "pairs.tsv": load_pairs,
        "questions.tsv": load_questions,
        "attributes.tsv": load_attributes,
        "contrasts.tsv": lambda path: load_contrasts(load_attributes(), path),
        "resumes.tsv": load_resumes,
        "names.tsv": load_names,
        "graded.tsv": load_graded,
    }
    with pytest.raises(UserError, match=says):
        loaders[name](path)  # type: ignore[operator]


def test_unequal_pairs_are_let_through_with_a_note_when_asked(tmp_path: Path) -> None:
    path = _changed(tmp_path, "pairs.tsv", "for two days.", "for two short days.")
    pairs = load_pairs(path, unequal="note")
    assert len(pairs.pairs) == 32
    (note,) = pairs.notes
    assert "pairs.tsv:2" in note


def test_an_occupation_without_questions_is_refused_by_name() -> None:
    questions = load_questions()
    with pytest.raises(UserError, match="occupation 'nurses' has no questions; nearest: 'nurse'"):
        questions.first(["nurses"], None)
    with pytest.raises(UserError, match=r"competence.questions': 9, but occupation 'nurse' has 8"):
        questions.first(["nurse"], 9)
    with pytest.raises(UserError, match=r"competence.occupations': 9, but the questions are of 8"):
        questions.first(9, None)
    small = questions.first(2, 3)
    assert small.occupations == ("nurse", "carpenter")
    assert [question.id for question in small.of("carpenter")] == ["carpenter_1", "carpenter_2", "carpenter_3"]


def test_a_users_copy_of_the_public_files_loads(tmp_path: Path) -> None:
    """20 occupations x 100 questions, a file an occupation; sentences of experts and novices, a file each."""
    folder = tmp_path / "questions"
    folder.mkdir()
    for number in range(20):
        lines = [f"Which of my {n} tools is number {number}’s favourite?" for n in range(100)]
        (folder / f"job_number_{number:02d}.txt").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    questions = load_questions(folder)
    assert len(questions.questions) == 2000
    assert questions.occupations[3] == "job number 03"
    assert len({question.id for question in questions.questions}) == 2000
    assert questions.first(4, 5).occupations == questions.occupations[:4]
    expert, novice = tmp_path / "expert.txt", tmp_path / "novice.txt"
    expert.write_text("\n".join(f"I know method {n} well." for n in range(97)), encoding="utf-8")
    novice.write_text("\n".join(f"I do not know method {n}." for n in range(100)) + "\n", encoding="utf-8")
    pairs = load_pair_files(expert, novice)
    assert Counter(pair.split for pair in pairs.pairs) == {"fit": 73, "held_out": 24}
    assert pairs.notes[0] == f"{novice}: its last 3 sentences have no partner and are left out"
    assert len(pairs.notes) == 98
    (folder / "baker.txt").write_text("\n\n")
    with pytest.raises(UserError, match=r"baker.txt: occupation 'baker' has no questions"):
        load_questions(folder)


def test_a_question_that_a_folder_repeats_is_taken_once_and_said(tmp_path: Path) -> None:
    (tmp_path / "baker.txt").write_text("Why does dough rise?\nHow hot is the oven?\nwhy does dough rise?\n")
    questions = load_questions(tmp_path)
    assert [question.id for question in questions.questions] == ["baker_1", "baker_2"]
    assert "baker.txt:3" in questions.notes[0]


def test_occupations_in_another_script_keep_ids_of_their_own_and_one_occupation_has_one_file(tmp_path: Path) -> None:
    for name in ("\u770b\u8b77\u5e2b", "\u5927\u5de5", "c", "c++"):
        (tmp_path / f"{name}.txt").write_text("Why?\nHow?\n", encoding="utf-8")
    questions = load_questions(tmp_path)
    assert len(questions.occupations) == 4
    assert len({question.id for question in questions.questions}) == 8
    (tmp_path / "truck driver.txt").write_text("Where?\n", encoding="utf-8")
    (tmp_path / "truck_driver.txt").write_text("When?\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"truck_driver.txt: occupation 'truck driver' is that of truck driver.txt too"):
        load_questions(tmp_path)


def test_a_folder_named_like_a_question_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "baker.txt").mkdir()
    with pytest.raises(UserError, match=r"baker.txt: cannot be read"):
        load_questions(tmp_path)
