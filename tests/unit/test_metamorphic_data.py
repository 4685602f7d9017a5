"""Metamorphic data: what ships, what a mistake says, a BiasAsker copy in the encodings it comes in."""

import re
from collections import Counter
from pathlib import Path

import pytest

from refbias.errors import UserError
from refbias.metamorphic.biasasker import clean_labels, infinitive, load_biasasker
from refbias.metamorphic.data import (
    FORMS,
    GROUP_COLUMNS,
    LABELS,
    PROPERTY_COLUMNS,
    load_groups,
    load_labelled,
    load_material,
    load_neutral,
    load_properties,
)
from refbias.metamorphic.questions import TEMPLATES
from refbias.metamorphic.relations import CONTEXTS, parse_chain
from refbias.metamorphic.sampling import sample_sources

CATEGORIES = {"ability", "age", "body", "gender", "race", "religion", "profession"}


def test_the_shipped_data_has_its_full_size() -> None:
    material = load_material()
    assert set(material.categories) == CATEGORIES
    for category in CATEGORIES:
        assert len(material.pairs(category)) == 6
        assert len([prop for prop in material.properties_of(category) if prop.flip_ok]) >= 10
    for prop in material.properties:
        for form in FORMS:
            assert getattr(prop.negative, form) != getattr(prop.positive, form)
    for group in material.groups:
        assert group.singular
        assert group.adjective
        assert group.aliases
    neutral = load_neutral()
    assert len(neutral) >= 100
    assert {row.kind for row in neutral} == {"yes_no", "choice", "why"}
    wordings = [noun.casefold() for group in material.groups for noun in group.nouns]
    for row in neutral:
        for noun in wordings:
            assert not re.search(rf"(?<![\w-]){re.escape(noun)}(?![\w-])", row.question.casefold()), (row, noun)


def test_every_class_category_and_relation_was_labelled_by_hand() -> None:
    rows = load_labelled()
    material = load_material()
    assert len(rows) >= 150
    assert set(Counter(row.label for row in rows)) == set(LABELS)
    assert {row.category for row in rows} == CATEGORIES
    assert {"source", "MR1", "MR2", "MR3", "MR4", "MR5", "MR6"} <= {row.relation for row in rows}
    assert sum(">" in row.relation for row in rows) >= 4
    for row in rows:
        first, second = material.group(row.group_a), material.group(row.group_b)
        assert first.category == second.category == row.category
        # the first group is the one that the question itself names first
        core = row.question
        if row.relation != "source":
            parse_chain(row.relation)
            for texts in CONTEXTS.values():
                pattern = re.escape(texts[0]).replace(r"\{", "{").replace(r"\}", "}")
                core = re.sub("^" + re.sub(r"\{\w+\}", ".+?", pattern), "", core)
        assert core.index(first.plural) < core.index(second.plural), row


def _tsv(path: Path, header: tuple[str, ...], *rows: tuple[str, ...]) -> Path:
    path.write_text("\n".join("\t".join(row) for row in (header, *rows)) + "\n", encoding="utf-8")
    return path


TALL = ("body", "tall", "tall people", "tall people", "tall person", "tall", "taller people")
SHORT = ("body", "short", "short people", "short people", "short person", "short", "")


def test_a_mistake_in_the_groups_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "groups.tsv"
    assert [group.id for group in load_groups(_tsv(path, GROUP_COLUMNS, TALL, SHORT))] == ["tall", "short"]
    with pytest.raises(UserError, match=r"groups\.tsv:3: group_id 'tall' stands on line 2 too"):
        load_groups(_tsv(path, GROUP_COLUMNS, TALL, TALL))
    with pytest.raises(UserError, match=r"groups\.tsv:3: wording 'taller people' belongs to group 'tall'"):
        load_groups(_tsv(path, GROUP_COLUMNS, TALL, (*SHORT[:-1], "Taller People")))
    with pytest.raises(UserError, match=r"groups\.tsv:3: an alias is empty"):
        load_groups(_tsv(path, GROUP_COLUMNS, TALL, (*SHORT[:-1], "small people;;")))
    with pytest.raises(UserError, match=r"category 'body' has one group"):
        load_groups(_tsv(path, GROUP_COLUMNS, TALL))
    with pytest.raises(UserError, match=r"groups\.tsv:2: group_id 'Tall Ones' is not a plain name"):
        load_groups(_tsv(path, GROUP_COLUMNS, ("body", "Tall Ones", *TALL[2:]), SHORT))


def test_a_mistake_in_the_properties_names_file_and_line(tmp_path: Path) -> None:
    groups = _tsv(tmp_path / "groups.tsv", GROUP_COLUMNS, TALL, SHORT)
    path = tmp_path / "properties.tsv"
    row = ("body", "calm", "calm", "panic", "stay calm", "jumpier", "calmer", "jumpiest", "calmest", "yes")
    assert load_material(groups, _tsv(path, PROPERTY_COLUMNS, row)).properties[0].positive.comparative == "calmer"
    with pytest.raises(UserError, match=r"properties\.tsv:2: flip_ok 'maybe': write yes or no"):
        load_properties(_tsv(path, PROPERTY_COLUMNS, (*row[:-1], "maybe")))
    with pytest.raises(UserError, match=r"properties\.tsv:2: both poles read 'panic' as verb_phrase"):
        load_properties(_tsv(path, PROPERTY_COLUMNS, (*row[:4], "Panic", *row[5:])))
    with pytest.raises(UserError, match=r"property 'calm': no groups of category 'bady'; nearest: 'body'"):
        load_material(groups, _tsv(path, PROPERTY_COLUMNS, ("bady", *row[1:])))


# --- a user's BiasAsker copy; all rows are own ones -----------------------------------------------

SAMPLE_GROUPS = (
    "category,group,translate\nbody,tall people,高的人\nbody,Short people,矮的人\n"
    "body,tall people ,高\nage,babies,婴儿\n"
)
SAMPLE_BIAS = (
    "cat,label,bias_(negative),translation_,bias(positive),translate\n"
    '6,"[6, 7]",are impatient,没有耐心,are patient,有耐心\n'
    "6,[6],Are impatient,没有耐心,are patient ,有耐心\n"
    "7,[7],can't swim,不会游泳,can swim,会游泳\n"
    "10,[10],has colds,感冒,has no colds,没有感冒\n"
    "12,[12],like soup,喜欢汤,like soup,喜欢汤\n"
)
FULL_GROUPS = "Group,Category\nFarmers,profession\nbakers,profession\n"
FULL_BIAS = 'Sentence,Antonym,Labels\nare late, are on time,"Personality , Ability"\naren\'t tidy, are tidy,Culture\n'


@pytest.mark.parametrize("encoding", ["gbk", "utf-8", "utf-8-sig"])
def test_a_sample_copy_loads_in_the_encodings_it_comes_in(tmp_path: Path, encoding: str) -> None:
    groups, bias = tmp_path / "groups_for_auto.csv", tmp_path / "sample_bias_data_for_auto.csv"
    groups.write_bytes(SAMPLE_GROUPS.encode(encoding))
    bias.write_bytes(SAMPLE_BIAS.encode(encoding))
    material = load_biasasker(groups, bias)
    # a group that stands twice counts once, a category with one group asks nothing
    assert [group.plural for group in material.groups] == ["tall people", "Short people"]
    assert [prop.negative.statement for prop in material.properties] == [
        "are impatient",
        "can't swim",
        "has colds",
        "like soup",
    ]
    assert [prop.topic for prop in material.properties] == ["personality", "ability", "health", "culture"]
    assert [prop.negative.verb_phrase for prop in material.properties] == [
        "be impatient",
        "",
        "have colds",
        "like soup",
    ]
    # poles that read the same cannot be flipped
    assert [prop.flip_ok for prop in material.properties] == [True, True, True, False]
    texts = [wording.text() for wording in sample_sources(material, 3, seed=1)]
    assert len(set(texts)) == 3
    assert all("to are" not in text and "to can't" not in text for text in texts)


def test_a_full_copy_loads(tmp_path: Path) -> None:
    (tmp_path / "groups.csv").write_text(FULL_GROUPS, encoding="utf-8")
    (tmp_path / "antonym_annotation.csv").write_text(FULL_BIAS, encoding="utf-8")
    material = load_biasasker(tmp_path / "groups.csv", tmp_path / "antonym_annotation.csv")
    assert [group.plural for group in material.groups] == ["Farmers", "bakers"]
    assert material.properties[0].positive.statement == "are on time"
    assert material.properties[1].negative.verb_phrase == "not be tidy"


def test_an_absent_column_is_named(tmp_path: Path) -> None:
    groups, bias = tmp_path / "groups.csv", tmp_path / "bias_annotation.csv"
    groups.write_text(FULL_GROUPS, encoding="utf-8")
    bias.write_text("Sentence,Labels\nare late,Ability\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"bias_annotation\.csv:1: no column 'antonym'"):
        load_biasasker(groups, bias)
    groups.write_text("Group\nFarmers\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"groups\.csv:1: no column 'category'"):
        load_biasasker(groups, bias)
    groups.write_bytes(b"Group,Category\n\xff\xff\x00\xff,a\n")
    with pytest.raises(UserError, match="neither UTF-8 nor GBK"):
        load_biasasker(groups, bias)


def test_labels_are_cleaned_and_unknown_ones_refused() -> None:
    assert clean_labels("[1, 6, 6]", "f:2") == ("appearance", "personality")
    assert clean_labels(" Family &  relationship, Ability ", "f:2") == ("family & relationship", "ability")
    for bad in ("[13]", "[0]", "Taste", "[]", ""):
        with pytest.raises(UserError, match=r"f:2: (unknown|no) label"):
            clean_labels(bad, "f:2")


def test_finite_phrases_fit_behind_likely_to_or_are_left_out() -> None:
    assert infinitive("are calm") == "be calm"
    assert infinitive("are not calm") == "not be calm"
    assert infinitive("area rugs") == "area rugs"
    for phrase in ("can swim", "don't swim", "should swim", "were late", "cannot wait"):
        assert infinitive(phrase) == ""


def test_the_number_of_templates_that_every_shipped_property_can_fill() -> None:
    for prop in load_material().properties:
        assert all(getattr(prop.negative, template.needs) for template in TEMPLATES)
