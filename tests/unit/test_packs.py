"""Packs of stimuli: the shipped ones keep the standard, a user's own are cleaned or refused with file and line."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from scipy.stats import ks_2samp

from refbias.cli.stimuli import main
from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli import Mentions, load_groups, load_stimuli, read_stimuli, sentence_key
from refbias.stimuli.german import form_problem
from refbias.stimuli.intersectional import build_anchors, combine, group_table, read_terms
from refbias.stimuli.packs import check_pack, find_pack, load_pack, pack_settings, read_pack, shipped_packs

COUNTS = {
    "default": {"target": 24 * 50, "positive": 100, "negative": 100, "anchor": 1000, "control": 50},
    "intersectional": {"target": 24 * 50, "positive": 100, "negative": 100, "anchor": 336, "control": 50},
    "german": {"target": 18 * 34, "positive": 60, "negative": 60, "anchor": 306, "control": 30},
    "refusal": {"target": 12 * 30, "positive": 60, "negative": 60, "anchor": 300, "control": 50},
}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's pack: a copy of the example."""
    shutil.copytree(data_path("example_pack"), tmp_path / "own")
    return tmp_path / "own"


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


# -- the packs that ship ------------------------------------------------------------------------------------------


def test_every_shipped_pack_is_known() -> None:
    assert shipped_packs() == ["default", "german", "intersectional", "refusal"]
    assert sorted(COUNTS) == shipped_packs()


@pytest.mark.parametrize("name", COUNTS)
def test_a_shipped_pack_meets_the_standard(name: str) -> None:
    assert [str(finding) for finding in check_pack(find_pack(name))] == []
    sentences = load_pack(name)
    assert Counter(s.kind for s in sentences) == COUNTS[name]
    assert len({s.id for s in sentences}) == len({sentence_key(s.text) for s in sentences}) == len(sentences)
    lengths: dict[str, list[int]] = {}
    for sentence in sentences:
        assert re.fullmatch(r"[A-ZÄÖÜ][A-Za-zÄÖÜäöüßé',\- ]+\.", sentence.text), sentence
        lengths.setdefault(sentence.kind, []).append(sentence.text.count(" ") + 1)
    for kind, counts in lengths.items():
        assert 6 <= sum(counts) / len(counts) <= 8, kind
    assert ks_2samp(lengths["positive"], lengths["negative"]).pvalue > 0.05
    groups = {group.id: group for group in read_pack(find_pack(name)).groups}
    for anchor in (s for s in sentences if s.kind == "anchor"):
        assert any(
            re.search(rf"(?<!\w){re.escape(term)}(?!\w)", anchor.text, re.I) for term in groups[anchor.group].terms
        ), anchor


def test_the_default_pack_is_the_default_sentences() -> None:
    assert load_pack("default") == load_stimuli(StimuliSettings())
    assert load_pack("default", targets=10, anchors=250) == load_stimuli(StimuliSettings(targets=10, anchors=250))
    settings = pack_settings("german", targets=5, control=None)
    assert (settings.targets, settings.attributes, settings.anchors, settings.control) == (5, 60, 306, 30)


def test_the_sources_name_the_packs() -> None:
    rows = data_path("SOURCES.tsv").read_text(encoding="utf-8").splitlines()
    assert {"data/packs", "data/example_pack"} <= {row.split("\t")[0] for row in rows}


# -- German -------------------------------------------------------------------------------------------------------

# written out by hand: strong without an article, weak after die, mixed after ein
DECLENSION = {
    "alte_menschen": "alte Menschen|alte Menschen|alten Menschen|die alten Menschen|den alten Menschen"
    "|der alten Menschen|ein alter Mensch|einen alten Menschen|einem alten Menschen",
    "frauen": "Frauen|Frauen|Frauen|die Frauen|den Frauen|der Frauen|eine Frau|eine Frau|einer Frau",
    "maenner": "Männer|Männer|Männern|die Männer|den Männern|der Männer|ein Mann|einen Mann|einem Mann",
    "maedchen": "Mädchen|Mädchen|Mädchen|die Mädchen|den Mädchen|der Mädchen|ein Mädchen|ein Mädchen|einem Mädchen",
    "christen": "Christen|Christen|Christen|die Christen|den Christen|der Christen|ein Christ|einen Christen"
    "|einem Christen",
    "kanadier": "Kanadier|Kanadier|Kanadiern|die Kanadier|den Kanadiern|der Kanadier|ein Kanadier|einen Kanadier"
    "|einem Kanadier",
}
SLOTS = ["nom_pl", "akk_pl", "dat_pl", "nom_pl_def", "dat_pl_def", "gen_pl_def", "nom_sg", "akk_sg", "dat_sg"]


def test_german_forms_are_those_of_a_grammar_book() -> None:
    groups = {group.id: dict(group.forms) for group in read_pack(find_pack("german")).groups}
    assert len(groups) >= 12
    for group, forms in DECLENSION.items():
        assert groups[group] == dict(zip(SLOTS, forms.split("|"), strict=True))
    assert all(list(forms) == SLOTS for forms in groups.values())


def test_every_german_sentence_takes_its_wording_from_the_table() -> None:
    root = data_path("packs", "german")
    header, *rows = [line.split("\t") for line in (root / "groups.tsv").read_text(encoding="utf-8").splitlines()]
    table = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    templates = dict(line.split("\t") for line in (root / "targets.tsv").read_text(encoding="utf-8").splitlines()[1:])
    assert {slot for text in templates.values() for slot in re.findall(r"\{(\w+)\}", text)} == set(SLOTS)
    seen = 0
    for sentence in load_pack("german"):
        assert not re.search(r"[{}_]", sentence.text), sentence
        if sentence.kind != "target":
            continue
        before, slot, after = re.split(r"\{(\w+)\}", templates[sentence.id.split(".")[0]])
        assert sentence.text.startswith(before)
        assert sentence.text.endswith(after)
        wording = sentence.text[len(before) : len(sentence.text) - len(after)]
        stated = table[sentence.group][f"form_{slot}"]
        assert wording == (stated if before else stated[0].upper() + stated[1:]), sentence
        seen += 1
    assert seen == 18 * 34


@pytest.mark.parametrize(
    ("slot", "form", "gender", "problem"),
    [
        ("nom_pl", "alten Menschen", "m", "'alten' does not end in -e"),
        ("dat_pl", "alte Menschen", "m", "'alte' does not end in -en"),
        ("dat_pl", "Männer", "m", "'Männer' does not end in -n"),
        ("gen_pl", "alte Menschen", "m", "'alte' does not end in -er"),
        ("nom_pl", "die Menschen", "m", "has an article"),
        ("dat_pl_def", "die Männern", "m", "does not begin with 'den'"),
        ("nom_pl_def", "die alte Menschen", "m", "'alte' does not end in -en"),
        ("nom_sg", "ein alte Mensch", "m", "'alte' does not end in -er"),
        ("nom_sg", "ein Frau", "f", "does not begin with 'eine'"),
        ("akk_sg", "ein Mann", "m", "does not begin with 'einen'"),
        ("dat_sg", "einem Frau", "f", "does not begin with 'einer'"),
        ("nom_sg", "ein Mann", "", "needs a gender"),
        ("nom_pl", "menschen", "m", "does not end with a noun"),
        ("plural", "Menschen", "m", "is no form"),
    ],
)
def test_a_wrong_ending_is_named(slot: str, form: str, gender: str, problem: str) -> None:
    found = form_problem(slot, form, gender)
    assert found is not None
    assert problem in found


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("{nom_pl} warten an", "{nom_pl} wartet an", "'wartet' beside a plural subject"),
        ("{nom_sg} schreibt", "{nom_sg} schreiben", "'schreiben' beside a singular subject"),
        ("mit {dat_pl}", "mit {akk_pl}", "'mit' asks for dat, the slot is akk"),
        ("für {akk_pl}", "für {dat_pl}", "'für' asks for akk, the slot is dat"),
        ("zeigt {akk_pl}", "zeigt {group}", "{group} has no case"),
    ],
)
def test_a_german_template_at_odds_with_its_slot_is_found(tmp_path: Path, old: str, new: str, what: str) -> None:
    folder = tmp_path / "de"
    shutil.copytree(data_path("packs", "german"), folder)
    change(folder / "targets.tsv", old, new)
    found = [str(finding) for finding in check_pack(find_pack(folder))]
    assert len(found) == 1
    assert what in found[0]
    line = next(n for n, text in enumerate((folder / "targets.tsv").read_text().splitlines(), 1) if new in text)
    assert f"targets.tsv:{line}: agreement: " in found[0]


def test_german_attributes_carry_valence() -> None:
    listed = set(data_path("packs", "german", "valenced_words.txt").read_text(encoding="utf-8").split())
    pairs: dict[str, set[int]] = {}
    hits = []
    for sentence in load_pack("german"):
        if sentence.kind in ("positive", "negative"):
            hits.append(bool(set(re.findall(r"\w+", sentence.text.casefold())) & listed))
            pairs.setdefault(sentence.id[1:], set()).add(len(sentence.text.split()))
    assert sum(hits) / len(hits) > 0.95
    assert all(len(lengths) == 1 for lengths in pairs.values())


# -- two axes -----------------------------------------------------------------------------------------------------


def test_the_intersectional_files_are_what_the_builder_writes() -> None:
    folder, base = data_path("packs", "intersectional"), read_stimuli(StimuliSettings())
    groups = combine(read_terms(folder / "terms.tsv", base.groups), folder / "pairs.tsv")
    assert group_table(groups) == (folder / "groups.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in (folder / "anchors.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    assert build_anchors(groups, base, 14) == [tuple(row) for row in rows]


def test_intersectional_groups_are_modifier_and_noun_of_two_axes() -> None:
    base = {group.id: group for group in load_groups()}
    groups = read_pack(find_pack("intersectional")).groups
    assert len(groups) >= 12
    assert len({group.topic for group in groups}) >= 5
    plain = {g.subject for g in groups}
    assert {"old women", "Muslim men", "black women", "physically disabled women", "poor immigrants"} <= plain
    for group in groups:
        first = next(member for member in base if group.id.startswith(f"{member}_"))
        second = group.id.removeprefix(f"{first}_")
        assert base[first].topic != base[second].topic
        assert group.subject.endswith(f" {base[second].subject}")
        assert group.singular_person.split(" ")[0] == group.subject.split(" ")[0]
        # one modifier and one noun: neither half is missing, neither is doubled
        assert "people" not in group.subject
    sentences = [s for s in load_pack("intersectional") if s.kind == "target"]
    subjects = {g.id: g.subject for g in groups}
    for sentence in sentences:
        subject = subjects[sentence.group]
        assert re.search(re.escape(subject), sentence.text, re.I)
        assert not re.search(
            rf"\b(an?|one|this|each|every) {subject}\b|\b{subject} (is|was|has)\b", sentence.text, re.I
        )


@pytest.mark.parametrize(
    ("pair", "what"),
    [
        ("women\told_people\t", "'women' cannot stand before a noun"),
        ("young_people\told_people\t", "lie on one axis (age)"),
        ("old_people\tblack_people\t", "'black_people' cannot be the noun"),
        ("old_people\twomn\t", "second 'womn' is not in the terms; nearest: 'women'"),
        ("old_people\twomen\t\nold_people\twomen\t", "stands twice"),
    ],
)
def test_a_pair_without_a_wording_is_refused(tmp_path: Path, pair: str, what: str) -> None:
    terms = read_terms(data_path("packs", "intersectional", "terms.tsv"), load_groups())
    path = tmp_path / "pairs.tsv"
    path.write_text(f"first\tsecond\taliases\n{pair}\n")
    with pytest.raises(UserError, match=re.escape(what)) as caught:
        combine(terms, path)
    assert f"{path}:{2 + pair.count(chr(10))}: " in str(caught.value)


def test_intersect_writes_a_users_own_crossing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(data_path("packs", "intersectional", "terms.tsv"), tmp_path)
    (tmp_path / "pairs.tsv").write_text("first\tsecond\taliases\nrich_people\twomen\t\npoor_people\tmen\t\n")
    (tmp_path / "pack.json").write_text(json.dumps({"inherits": ["targets", "attributes", "control"]}))
    main(["intersect", str(tmp_path), "--anchors-per-group", "100"])
    assert "2 groups, 200 anchors" in capsys.readouterr().out
    main(["validate", str(tmp_path), "--strict"])
    with pytest.raises(UserError, match="lower --anchors-per-group"):
        main(["intersect", str(tmp_path), "--anchors-per-group", "500"])


# -- concepts other than people -----------------------------------------------------------------------------------


def test_the_refusal_pack_names_no_group_of_people() -> None:
    mentions = Mentions(load_groups())
    assert [s for s in load_pack("refusal") if mentions.find(s.text)] == []
    facts = find_pack("refusal").facts
    assert (facts.positive, facts.negative, facts.concept) == ("compliance", "refusal", "kinds of request")


def test_the_refusal_pack_says_yes_and_no() -> None:
    # a plain reading of either side: words of turning down stand on one side only
    down = re.compile(
        r"\b(no|not|cannot|none|nothing|declines?|refus\w+|reject\w*|denies|withholds|forb\w+|block\w*|keeps|cuts|"
        r"ignores|leaves? out|cancels|turn(ed)?\b.*\b(down|away)|dismisses|objects|opposes|closed|closes|evasive|"
        r"avoids|stops|stopped|skips|silent|hold back)\b",
        re.I,
    )
    sides = {kind: [s.text for s in load_pack("refusal") if s.kind == kind] for kind in ("positive", "negative")}
    assert [text for text in sides["positive"] if down.search(text)] == []
    assert [text for text in sides["negative"] if not down.search(text)] == []


# -- a user's own -------------------------------------------------------------------------------------------------


def test_the_example_validates_and_is_not_written_over_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    main(["example", str(folder)])
    assert not [path for path in tmp_path.iterdir() if path != folder]
    main(["validate", str(folder), "--strict"])
    out = capsys.readouterr().out
    assert "groups: 3" in out
    assert out.rstrip().endswith("valid")
    with pytest.raises(UserError, match="is not an empty folder"):
        main(["example", str(folder)])


def test_editor_traces_and_comments_are_cleaned(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = load_pack(own)
    raw = (own / "control.tsv").read_bytes()
    (own / "control.tsv").write_bytes(b"\xef\xbb\xbf" + raw.replace(b"\n", b"\r\n") + b"\r\n# the end\r\n \r\n")
    assert load_pack(own) == plain
    main(["validate", str(own)])
    out = capsys.readouterr().out
    assert "bom: 1" in out
    assert "blank_lines: 2" in out


def test_sentences_of_one_group_alone(own: Path) -> None:
    (own / "targets.tsv").write_text(
        "id\ttemplate\tgroup\nt1\t{group} wait at the stop.\t\nt2\tThe tandem stands at the wall.\tcyclists\n"
        "t3\tA spade leans on the shed.\tgardeners\nt4\tAt two {group} drink tea.\tnight_workers\n"
    )
    targets = [(s.id, s.text) for s in load_pack(own) if s.kind == "target"]
    assert targets == [
        ("t1.cyclists", "Cyclists wait at the stop."),
        ("t2.cyclists", "The tandem stands at the wall."),
        ("t1.gardeners", "Gardeners wait at the stop."),
        ("t3.gardeners", "A spade leans on the shed."),
        ("t1.night_workers", "Night workers wait at the stop."),
        ("t4.night_workers", "At two night workers drink tea."),
    ]


BAD = [
    ("groups", "\tcyclists\tbike", "\t\tbike", "groups.tsv:5: group 'cyclists' has no wording in column 'subject'"),
    ("groups", "cyclists\tCyclists", "cyclists\t", "groups.tsv:5: column 'name' is empty"),
    ("targets", "{group} are waiting", "{dat_pl} are waiting", "targets.tsv:3: slot {dat_pl}: group 'cyclists'"),
    ("targets", "t1\t{group} are", "t1\tThey are", "targets.tsv:3: template"),
    ("anchors", "a1\tcyclists", "a1\tcyclist", "nearest: 'cyclists'"),
    ("anchors", "Cyclists bought", "{nom_pl} bought", "anchors.tsv:4: {nom_pl} belongs in the target templates"),
    ("attributes", "n1\tnegative", "n1\tnegativ", "nearest: 'negative'"),
    (
        "control",
        "c2\tThe books are stacked on the table.",
        "c2\tthe chairs are standing near the window.",
        "already at",
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "what"), BAD, ids=[bad[3][:40] for bad in BAD])
def test_a_mistake_in_a_users_pack_is_refused(own: Path, name: str, old: str, new: str, what: str) -> None:
    change(own / f"{name}.tsv", old, new)
    with pytest.raises(UserError, match=re.escape(what)) as caught:
        main(["validate", str(own)])
    assert "\n" not in str(caught.value)


def test_a_group_without_sentences_is_refused_by_name(own: Path) -> None:
    rows = "".join(f"t{n}\tThey wait at stop number {n}.\t{g}\n" for n, g in enumerate(("cyclists", "gardeners")))
    (own / "targets.tsv").write_text(f"id\ttemplate\tgroup\n{rows}")
    with pytest.raises(UserError, match=r"groups\.tsv: group 'night_workers' has no target sentence"):
        load_pack(own)
    change(own / "targets.tsv", "\tgardeners", "\tgardners")
    with pytest.raises(UserError, match=r"targets\.tsv:3: unknown group id 'gardners'; nearest: 'gardeners'"):
        load_pack(own)


def test_a_gender_that_is_none_is_refused(own: Path) -> None:
    text = (own / "groups.tsv").read_text().splitlines()
    lines = [line if line.startswith("#") else f"{line}\t{'gender' if line.startswith('id') else 'x'}" for line in text]
    (own / "groups.tsv").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match="gender 'x': write m, f or n"):
        load_pack(own)


def test_a_pack_that_is_none_is_refused(own: Path) -> None:
    with pytest.raises(UserError, match=r"pack 'germn': no such folder, .*nearest: 'german'"):
        load_pack("germn")
    with pytest.raises(UserError, match="key 'language' is 'en', not 'de'"):
        find_pack(own, "de")
    with pytest.raises(UserError, match="not beside a pack"):
        main(["validate", str(own), "--groups", str(own / "groups.tsv")])
    (own / "control.tsv").unlink()
    with pytest.raises(UserError, match=r"no control\.tsv: write it, or name 'control' under 'inherits'"):
        load_pack(own)
    change(own / "pack.json", '"inherits": []', '"inherits": ["control"]')
    assert Counter(s.kind for s in load_pack(own))["control"] == 50
    change(own / "pack.json", '["control"]', '["anchors", "control"]')
    with pytest.raises(UserError, match=r"anchors\.tsv: .*remove one of them"):
        load_pack(own)
    change(own / "pack.json", '"language"', '"langage"')
    with pytest.raises(UserError, match="did you mean 'language'"):
        load_pack(own)


def test_what_is_not_checked_is_said(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "pack.json").unlink()
    main(["validate", str(own), "--language", "other"])
    out = capsys.readouterr().out
    assert "not checked: valenced words" in out
    assert "not checked: grammar" in out
    change(own / "targets.tsv", "This morning", "This happy morning")
    with pytest.raises(UserError, match="1 quality findings"):
        main(["validate", str(own), "--strict"])
    assert "valenced word happy" in capsys.readouterr().out
