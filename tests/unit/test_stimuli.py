"""The shipped sentences keep their promises; a user's file is cleaned with a count or refused with file and line."""

import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli import (
    Mentions,
    check_quality,
    fill,
    group_topics,
    load_groups,
    load_stimuli,
    read_stimuli,
    sentence_key,
    toxigen_groups,
    validate_stimuli,
)
from refbias.stimuli.quality import load_valenced_words

SHIPPED = StimuliSettings()
GROUP_IDS = [
    "homosexuals", "muslims", "black_people", "physically_disabled_people", "asians", "women", "old_people",
    "jews", "poor_people", "immigrants", "mexicans", "latin_americans", "men", "christians", "white_people",
    "able_bodied_people", "canadians", "young_people", "rich_people", "europeans", "atheists", "americans",
    "caucasians", "buddhists",
]  # fmt: skip
TOPIC_SIZES = {
    "sexual_orientation": 1,
    "religion": 5,
    "race": 4,
    "disability": 2,
    "gender": 2,
    "age": 2,
    "socioeconomic_status": 2,
    "nationality": 4,
    "ethnicity": 2,
}
# a small set of a user's own, correct as it stands
SMALL = {
    "groups": (
        "id\tname\ttopic\ttoxigen\tsingular_person\tsubject\taliases\tnumber\n"
        "tall\tTall people\theight\t\ttall person\ttall people\ttall|taller\tplural\n"
        "welsh\tThe Welsh\tnationality\t\tWelsh person\tthe Welsh\t\tplural\n"
    ),
    "targets": "id\ttemplate\nt1\t{group} are waiting at the stop.\nt2\tOn the tram, {group} are reading.\n",
    "attributes": "id\tvalence\ttext\np1\tpositive\tThey are kind.\nn1\tnegative\tThey are cruel.\n",
    "anchors": "id\tgroup\ttext\na1\ttall\tTall people bought bread.\na2\twelsh\tThe Welsh bought milk.\n",
    "control": "id\ttext\nc1\tThe chairs are in the hall.\n",
}


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., StimuliSettings]:
    """Write the small set, with some files replaced (str or bytes), and return settings that name it."""

    def write(**changed: str | bytes) -> StimuliSettings:
        paths = {}
        for name, content in {**SMALL, **changed}.items():
            path = tmp_path / f"{name}.tsv"
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            paths[f"{name}_file"] = str(path)
        return StimuliSettings(targets=2, attributes=1, anchors=2, control=1, **paths)

    return write


def test_counts_of_the_shipped_sets() -> None:
    counts = validate_stimuli(SHIPPED)
    assert counts == {
        "groups": 24,
        "targets": 50,
        "control": 50,
        "positive": 100,
        "negative": 100,
        "anchors": 1000,
        "sentences": 24 * 50 + 50 + 200 + 1000,
        "bom": 0,
        "crlf_lines": 0,
        "blank_lines": 0,
        "folded_cells": 0,
    }


def test_groups_are_decodingtrusts_in_its_order() -> None:
    groups = load_groups()
    assert [group.id for group in groups] == GROUP_IDS
    assert [re.sub(r"\W", "_", group.name.lower()) for group in groups] == GROUP_IDS
    assert all(group.subject.lower() == group.name.lower() for group in groups)


def test_topics_and_toxigen_names() -> None:
    topics = group_topics()
    assert {topic: len(members) for topic, members in topics.items()} == TOPIC_SIZES
    assert sorted(group for members in topics.values() for group in members) == sorted(GROUP_IDS)
    assert topics["religion"] == ["muslims", "jews", "christians", "atheists", "buddhists"]
    assert toxigen_groups() == {
        "asian": "asians",
        "black": "black_people",
        "jewish": "jews",
        "latino": "latin_americans",
        "lgbtq": "homosexuals",
        "mexican": "mexicans",
        "muslim": "muslims",
        "physical_disability": "physically_disabled_people",
        "women": "women",
    }


def test_the_shipped_sets_meet_the_standard() -> None:
    assert [str(finding) for finding in check_quality(read_stimuli(SHIPPED))] == []


def test_lengths_counted_independently() -> None:
    lengths: dict[str, list[int]] = {}
    for sentence in load_stimuli(SHIPPED):
        lengths.setdefault(sentence.kind, []).append(len(re.findall(r"\S+", sentence.text)))
    for kind, values in lengths.items():
        assert 6 <= sum(values) / len(values) <= 8, kind
    assert ks_2samp(lengths["positive"], lengths["negative"]).pvalue > 0.05
    assert ks_2samp(lengths["positive"][:40], lengths["negative"][:40]).pvalue > 0.05


def test_no_sentence_and_no_id_stands_twice() -> None:
    sentences = load_stimuli(SHIPPED)
    assert len({sentence_key(sentence.text) for sentence in sentences}) == len(sentences)
    assert len({sentence.id for sentence in sentences}) == len(sentences)


def test_every_sentence_is_a_plain_english_sentence() -> None:
    for sentence in load_stimuli(SHIPPED):
        assert re.fullmatch(r"[A-Z][A-Za-z',\- ]+\.", sentence.text), sentence
        assert "  " not in sentence.text, sentence


@pytest.mark.parametrize("n", [24, 100, 250, 613, 1000])
def test_the_first_n_anchors_are_balanced(n: int) -> None:
    anchors = [s for s in load_stimuli(StimuliSettings(anchors=n)) if s.kind == "anchor"]
    counts = Counter(anchor.group for anchor in anchors)
    assert set(counts) == set(GROUP_IDS)
    assert set(counts.values()) <= {n // 24, -(-n // 24)}


def test_anchor_frames_are_many_and_not_those_of_the_targets() -> None:
    stimuli = read_stimuli(SHIPPED)
    subjects = {group.id: group.subject for group in stimuli.groups}
    frames = Counter(
        re.sub(rf"\b{subjects[anchor.label]}\b", "{group}", anchor.text, flags=re.IGNORECASE)
        for anchor in stimuli.anchors
    )
    assert all(frame.count("{group}") == 1 for frame in frames)
    assert len(frames) == 337
    assert max(frames.values()) == 3
    assert not set(frames) & {target.text for target in stimuli.targets}
    assert 150 < sum(not frame.startswith("{group}") for frame in frames.elements()) < 600


@pytest.mark.parametrize("group", GROUP_IDS)
def test_grammar_of_the_targets_for_each_group(group: str) -> None:
    targets = [s for s in load_stimuli(SHIPPED) if s.kind == "target" and s.group == group]
    subject = next(g.subject for g in load_groups() if g.id == group)
    assert len(targets) == 50
    for target in targets:
        assert re.search(re.escape(subject), target.text, re.IGNORECASE), target
        singular = rf"\b(an?|one|this|each|every) {subject}\b|\b{subject} (is|was|has|does)\b"
        assert not re.search(singular, target.text, re.IGNORECASE), target


def test_attribute_pairs_have_as_many_words() -> None:
    stimuli = read_stimuli(SHIPPED)
    for positive, negative in zip(stimuli.positive, stimuli.negative, strict=True):
        assert positive.id[1:] == negative.id[1:]
        assert len(positive.text.split()) == len(negative.text.split()), positive


def test_attributes_hold_valenced_words_and_no_group() -> None:
    words, mentions = load_valenced_words(), Mentions(load_groups())
    assert len(words) >= 200
    stimuli = read_stimuli(SHIPPED)
    for entry in (*stimuli.positive, *stimuli.negative):
        assert words & set(re.findall(r"[\w-]+", entry.text.lower())), entry
        assert not mentions.find(entry.text), entry
        assert not re.search(r"\b(wom[ae]n|m[ae]n|she|he|her|his|old|young|rich|poor)\b", entry.text.lower()), entry


def test_a_subset_is_the_beginning_of_the_whole() -> None:
    part = load_stimuli(StimuliSettings(targets=10, attributes=40, anchors=250, control=20))
    assert part == load_stimuli(StimuliSettings(targets=10, attributes=40, anchors=250, control=20))
    assert Counter(s.kind for s in part) == {
        "target": 240,
        "control": 20,
        "positive": 40,
        "negative": 40,
        "anchor": 250,
    }
    whole = load_stimuli(SHIPPED)
    assert [s for s in whole if s in set(part)] == part
    assert [s.kind for s in part] == sorted(
        (s.kind for s in part), key=["target", "control", "positive", "negative", "anchor"].index
    )
    assert [s.group for s in part if s.kind == "target"] == [group for group in GROUP_IDS for _ in range(10)]
    assert {s.group for s in part if s.kind == "control"} == {"control"}


def test_fill_capitalises_only_where_a_sentence_opens() -> None:
    group = next(g for g in load_groups() if g.id == "able_bodied_people")
    assert fill("{group} wait.", group) == "Able-bodied people wait."
    assert fill("Outside, {group} wait.", group) == "Outside, able-bodied people wait."
    assert fill('"{group} wait," it said.', group) == '"Able-bodied people wait," it said.'
    assert fill("It rains. {group} wait.", group) == "It rains. Able-bodied people wait."
    with pytest.raises(ValueError, match="exactly once"):
        fill("Nobody waits.", group)


def test_mentions_prefer_the_longest_wording_and_whole_words() -> None:
    mentions = Mentions(load_groups())
    assert mentions.find("Latin Americans and Americans") == [
        ("latin_americans", "latin americans"),
        ("americans", "americans"),
    ]
    assert mentions.find("Able-bodied people met WOMEN.") == [
        ("able_bodied_people", "able-bodied people"),
        ("women", "women"),
    ]
    assert mentions.find("The manager told the golden oldster about an amendment.") == []


def test_a_users_own_set_loads(small: Callable[..., StimuliSettings]) -> None:
    texts = [sentence.text for sentence in load_stimuli(small())]
    assert texts[:4] == [
        "Tall people are waiting at the stop.",
        "On the tram, tall people are reading.",
        "The Welsh are waiting at the stop.",
        "On the tram, the Welsh are reading.",
    ]


def test_traces_of_an_editor_are_cleaned_and_counted(
    small: Callable[..., StimuliSettings], caplog: pytest.LogCaptureFixture
) -> None:
    control = b"\xef\xbb\xbf" + SMALL["control"].replace("\n", "\r\n").encode() + b"\r\n \t \r\n\r\n"
    chosen = small(control=control, anchors=SMALL["anchors"].replace("bought bread", "bought \u00a0bread"))
    counts = validate_stimuli(chosen)
    assert {name: counts[name] for name in ("bom", "crlf_lines", "blank_lines", "folded_cells")} == {
        "bom": 1,
        "crlf_lines": 5,
        "blank_lines": 3,
        "folded_cells": 1,
    }
    with caplog.at_level(logging.WARNING):
        assert load_stimuli(chosen) == load_stimuli(small())
    assert "control.tsv: cleaned byte order mark 1, CR line ends 5, blank lines 3" in caplog.text


def test_other_anchors_without_a_group_and_shipped_anchors_beside_own_groups(
    small: Callable[..., StimuliSettings],
) -> None:
    chosen = small(anchors="id\tgroup\ttext\na1\tcontrol\tTable.\na2\tcontrol\tWindow.\n")
    assert [s.group for s in load_stimuli(chosen) if s.kind == "anchor"] == ["control", "control"]
    assert len(load_stimuli(chosen.model_copy(update={"anchors_file": None, "anchors": 1000}))) == 4 + 1 + 2 + 1000


BAD = [
    ("control", b"id\ttext\nc1\tA caf\xe9 is open.\n", "control.tsv:2", "not UTF-8"),
    ("control", "id\ttext\nc1\tThe door.\n".encode("utf-16"), "control.tsv:1", "UTF-16"),
    ("control", b"id\ttext\nc1\tThe \x00door.\n", "control.tsv:2", "U\\+0000"),
    ("control", "id\ttext\nc1\tThe do\u200bor.\n", "control.tsv:2", "U\\+200B"),
    ("control", "", "control.tsv:1", "empty"),
    ("control", "\n \n", "control.tsv:1", "empty"),
    ("control", "\nid\ttext\n", "control.tsv:2", "no rows"),
    ("control", "id\ttxet\nc1\tThe door.\n", "control.tsv:1", "unknown column 'txet'; nearest: 'text'"),
    ("control", "id\ttext\tnote\nc1\tThe door.\tx\n", "control.tsv:1", "unknown column 'note'"),
    ("control", "id\nc1\n", "control.tsv:1", "column 'text' is missing"),
    ("control", "id\ttext\tid\nc1\tThe door.\tc2\n", "control.tsv:1", "stands twice"),
    ("control", "id,text\nc1,The door.\n", "control.tsv:1", "separated by tabs"),
    ("control", "id\ttext\nc1\tThe\tdoor.\n", "control.tsv:2", "3 cells"),
    ("control", "id\ttext\nc1\t\n", "control.tsv:2", "'text' is empty"),
    ("control", "id\ttext\n\tThe door.\n", "control.tsv:2", "'id' is empty"),
    ("control", 'id\ttext\nc1\t"The door."\n', "control.tsv:2", "quotation marks"),
    ("control", "id\ttext\nc.1\tThe door.\n", "control.tsv:2", "id 'c.1'"),
    ("control", "id\ttext\nc1\tThe door.\nc1\tThe wall.\n", "control.tsv:3", "'c1' is already used at .*control.tsv:2"),
    ("control", "id\ttext\nc1\tThe door.\nc2\tthe  DOOR.\n", "control.tsv:3", "already at .*control.tsv:2"),
    ("control", "id\ttext\nt1\tThe door.\n", "control.tsv:2", "already used at .*targets.tsv:2"),
    ("control", "id\ttext\nc1\tThey are kind.\n", "attributes.tsv:2", "already at .*control.tsv:2"),
    ("control", "id\ttext\nc1\t{group} wait.\n", "control.tsv:2", "belongs in the target templates"),
    ("targets", "id\ttemplate\nt1\tPeople wait.\n", "targets.tsv:2", "slot {group} exactly once"),
    ("targets", "id\ttemplate\nt1\t{group} see {group}.\n", "targets.tsv:2", "exactly once"),
    ("targets", "id\ttemplate\nt1\t{group} see {person}.\n", "targets.tsv:2", "no other braces"),
    ("targets", "id\ttemplate\nt1\t{group} bought bread.\n", "anchors.tsv:2", "already at .*targets.tsv:2"),
    ("attributes", "id\tvalence\ttext\np1\tpositiv\tThey smile.\n", "attributes.tsv:2", "nearest: 'positive'"),
    ("attributes", "id\tvalence\ttext\np1\t\tThey smile.\n", "attributes.tsv:2", "'valence' is empty"),
    ("anchors", "id\tgroup\ttext\na1\ttal\tTall people eat.\n", "anchors.tsv:2", "group id 'tal'; nearest: 'tall'"),
    ("anchors", "id\tgroup\ttext\na1\t\tTall people eat.\n", "anchors.tsv:2", "'group' is empty"),
    ("groups", SMALL["groups"].replace("\nwelsh", "\ntall"), "groups.tsv:3", "id 'tall' already belongs"),
    ("groups", SMALL["groups"].replace("the Welsh", "taller"), "groups.tsv:3", "wording 'taller' already belongs"),
    ("groups", SMALL["groups"].replace("\ntall\t", "\nTall!\t"), "groups.tsv:2", "id 'Tall!'"),
    ("groups", SMALL["groups"].replace("\ntall\t", "\ncontrol\t"), "groups.tsv:2", "is kept for"),
    ("groups", SMALL["groups"].replace("height\t", "height\tlatinos"), "groups.tsv:2", "nearest: 'latino'"),
    ("groups", SMALL["groups"].replace("nationality\t", "height\twomen").replace("height\t\t", "height\twomen\t"),
     "groups.tsv:3", "ToxiGen group 'women' already belongs"),
    ("groups", SMALL["groups"].replace("tall|", "tall||"), "groups.tsv:2", "alias is empty"),
    ("groups", SMALL["groups"].replace("plural\nw", "singular\nw"), "groups.tsv:2", "plural"),
    ("groups", SMALL["groups"].replace("tall people\ttall|", "tall {x}\ttall|"), "groups.tsv:2", "braces"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "where", "what"), BAD, ids=[f"{b[2]}-{b[3][:30]}" for b in BAD])
def test_a_mistake_is_refused_with_file_and_line(
    small: Callable[..., StimuliSettings], name: str, content: str | bytes, where: str, what: str
) -> None:
    with pytest.raises(UserError, match=what) as caught:
        load_stimuli(small(**{name: content}))
    message = str(caught.value)
    assert f"/{where}: " in message.split(": ")[0] + ": "
    assert "\n" not in message


def test_a_missing_file_and_a_folder_are_refused(small: Callable[..., StimuliSettings], tmp_path: Path) -> None:
    for path in (tmp_path / "absent.tsv", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            load_stimuli(small().model_copy(update={"control_file": str(path)}))


@pytest.mark.parametrize("key", ["targets", "attributes", "anchors", "control"])
def test_more_than_a_file_holds_is_refused_naming_the_key(small: Callable[..., StimuliSettings], key: str) -> None:
    with pytest.raises(UserError, match=rf"stimuli\.{key} asks for 9, but .*{key}\.tsv holds [12] "):
        load_stimuli(small().model_copy(update={key: 9}))


def test_each_departure_from_the_standard_is_found_with_its_line(small: Callable[..., StimuliSettings]) -> None:
    stimuli = read_stimuli(
        small(
            targets="id\ttemplate\nt1\t{group} are happy about it.\nt2\tEvery {group} waits at the stop today.\n",
            control="id\ttext\nc1\tThe taller chair stands beside the table outside.\n",
            attributes="id\tvalence\ttext\np1\tpositive\tTall neighbours are kind.\nn1\tnegative\tThey are cruel.\n",
            anchors=(
                "id\tgroup\ttext\na1\ttall\tTall people met the Welsh.\na2\ttall\tEverybody bought milk.\n"
                "a3\ttall\tTaller are happy about it.\n"
            ),
        )
    )
    found = {(f.path.name, f.line, f.rule) for f in check_quality(stimuli)}
    assert found >= {
        ("attributes.tsv", 1, "length"),
        ("targets.tsv", 2, "valence"),
        ("targets.tsv", 3, "grammar"),
        ("control.tsv", 2, "group"),
        ("attributes.tsv", 2, "group"),
        ("anchors.tsv", 2, "group"),
        ("anchors.tsv", 3, "group"),
        ("anchors.tsv", 3, "balance"),
        ("anchors.tsv", 4, "template"),
    }
    assert all(re.match(r".+\.tsv:\d+: \w+: .", str(f)) for f in check_quality(stimuli))


def test_unlike_lengths_of_the_valences_are_found() -> None:
    stimuli = read_stimuli(SHIPPED)
    longer = tuple(replace(entry, text=f"Once again, {entry.text}") for entry in stimuli.negative)
    assert "positive and negative lengths differ" in " ".join(
        map(str, check_quality(replace(stimuli, negative=longer)))
    )


_cell = st.sampled_from(["a1", "tall", "control", "{group}", "", '"x"', "x\r"]) | st.text(max_size=6)
_rows = st.lists(st.lists(_cell, min_size=2, max_size=4).map("\t".join), max_size=4)
# arbitrary bytes, and near misses: the right header over odd rows, which reach the later checks
_noise = st.binary(max_size=200) | st.builds(
    lambda rows, eol: eol.join(["id\tgroup\ttext", *rows]).encode("utf-8", "surrogatepass"),
    _rows,
    st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
)


@given(content=_noise)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("name", ["groups", "anchors"])
def test_arbitrary_bytes_raise_nothing_but_a_user_error(
    small: Callable[..., StimuliSettings], name: str, content: bytes
) -> None:
    message = ""
    try:
        check_quality(read_stimuli(small(**{name: content})))
    except UserError as error:
        message = str(error)
    assert not message or re.search(r"\.tsv:\d+: ", message)
    assert len(message.splitlines()) <= 1


def test_the_shipped_files_are_plain_utf8_with_lf() -> None:
    for path in sorted(path for path in data_path("stimuli").rglob("*") if path.is_file()):
        raw = path.read_bytes()
        raw.decode("utf-8")
        assert b"\r" not in raw, path
        assert raw.endswith(b"\n"), path
        assert not raw.startswith(b"\xef\xbb\xbf"), path
