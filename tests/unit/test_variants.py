"""The shipped variants keep their rows' ids, valences and lengths and change their words; broken ones are refused."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import ks_2samp

from refbias.cli import stimuli as command
from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli import (
    CELLS,
    StimulusSet,
    apply_variant,
    check_anchors,
    check_quality,
    check_variant,
    load_groups,
    load_masked_anchors,
    load_variant,
    load_word_anchors,
    mask_anchors,
    read_stimuli,
)

FILES = [(kind, cell) for kind, cells in CELLS.items() for cell in cells]
SYNONYMS = [(kind, cell) for kind, cell in FILES if cell.startswith("syn_")]
GROUPS = (
    "id\tname\ttopic\ttoxigen\tsingular_person\tsubject\taliases\tnumber\n"
    "tall\tTall people\theight\t\ttall person\ttall people\ttall|taller\tplural\n"
    "welsh\tThe Welsh\tnationality\t\tWelsh person\tthe Welsh\tWelsh people|Wales\tplural\n"
    "icelanders\tIcelanders\tnationality\t\tIcelander\tIcelanders\t\tplural\n"
)
BASE = {
    "groups": GROUPS,
    "targets": "id\ttemplate\nt1\t{group} wait here.\nt2\tHere {group} read.\n",
    "attributes": "id\tvalence\ttext\np1\tpositive\tThey are kind.\nn1\tnegative\tThey are cruel.\n",
    "anchors": "id\tgroup\ttext\na1\ttall\tTall people bought bread.\na2\twelsh\tHere the Welsh bought milk.\n",
    "control": "id\ttext\nc1\tThe chairs are in the hall.\n",
}
FUNCTION_WORDS = """
a an the and or of in on at to by for with from into out up down all each every this these those that such they their
them us our we is are was were be been being has have had will do so as than through under over about one another other
others everyone everybody who there
"""


def rows(name: str) -> list[list[str]]:
    """Read a file without the package's own reader."""
    lines = data_path("stimuli").joinpath(*name.split("/")).read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    return [line.split("\t") for line in lines[1:]]


@pytest.fixture(scope="module")
def shipped() -> StimulusSet:
    return read_stimuli(StimuliSettings())


@pytest.fixture
def small(tmp_path: Path) -> StimulusSet:
    """Return a small base, correct as it stands."""
    for name, content in BASE.items():
        (tmp_path / f"{name}.tsv").write_text(content, encoding="utf-8")
    files = {f"{name}_file": str(tmp_path / f"{name}.tsv") for name in BASE}
    return read_stimuli(StimuliSettings(targets=2, attributes=1, anchors=2, control=1, **files))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(content: str) -> Path:
        path = tmp_path / "variant.tsv"
        path.write_text(content, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(("kind", "cell"), FILES)
def test_a_shipped_variant_loads_and_meets_the_standard(shipped: StimulusSet, kind: str, cell: str) -> None:
    variant = load_variant(kind, cell, shipped)
    assert [str(finding) for finding in check_variant(shipped, variant)] == []
    assert not variant.cleaning
    changed = apply_variant(shipped, variant)
    assert check_quality(changed) == []
    kept = {"targets": ("positive", "negative"), "attributes": ("targets",)}[kind]
    assert all(getattr(changed, name) == getattr(shipped, name) for name in (*kept, "anchors", "control", "groups"))


@pytest.mark.parametrize(("kind", "cell"), FILES)
def test_rows_go_with_the_rows_of_the_base_file(kind: str, cell: str) -> None:
    base, variant = rows(f"{kind}.tsv"), rows(f"variants/{kind}_{cell}.tsv")
    assert [row[:-1] for row in variant] == [row[:-1] for row in base]
    texts = [row[-1].lower() for row in variant]
    assert len(set(texts)) == len(texts)
    shape = r"[A-Z{][A-Za-z',\-{} ]+\."
    assert [row for row in variant if not re.fullmatch(shape, row[-1]) or "  " in row[-1]] == []
    if kind == "targets":
        assert all(row[-1].count("{group}") == 1 for row in variant)


@pytest.mark.parametrize(("kind", "cell"), FILES)
def test_lengths(kind: str, cell: str) -> None:
    lengths: dict[str, list[int]] = {}
    subjects = [group.subject for group in load_groups()] if kind == "targets" else [""]
    for row in rows(f"variants/{kind}_{cell}.tsv"):
        counts = [len(row[-1].replace("{group}", subject).split()) for subject in subjects]
        lengths.setdefault(row[1] if kind == "attributes" else "targets", []).extend(counts)
    for label, values in lengths.items():
        assert 6 <= sum(values) / len(values) <= 8, label
    if kind == "attributes":
        assert ks_2samp(lengths["positive"], lengths["negative"]).pvalue > 0.05


@pytest.mark.parametrize(("kind", "cell"), FILES)
def test_which_rows_stay_as_in_the_base(shipped: StimulusSet, kind: str, cell: str) -> None:
    base, variant = rows(f"{kind}.tsv"), rows(f"variants/{kind}_{cell}.tsv")
    same = [old[-1] for old, new in zip(base, variant, strict=True) if old[-1] == new[-1]]
    assert load_variant(kind, cell, shipped).unchanged == len(same)
    # they stay in "they / their" alone, and only where the base's subject is that already
    assert len(same) == (74 if cell == "subj_v1" else 0)
    assert all(re.match(r"(They|Their) ", text) for text in same)


def test_the_subjects_of_the_subject_variants() -> None:
    texts = {cell: [row[-1] for row in rows(f"variants/attributes_{cell}.tsv")] for cell in CELLS["attributes"][:2]}
    assert [text for text in texts["subj_v1"] if not re.search(r"\b(they|their)\b", text, re.IGNORECASE)] == []
    assert [text for text in texts["subj_v2"] if not re.search(r"\b(person|people)\b", text, re.IGNORECASE)] == []


def test_synonym_sets_differ_from_the_base_and_from_each_other_in_every_row() -> None:
    for kind in CELLS:
        sets = [rows(f"{kind}.tsv"), *(rows(f"variants/{kind}_syn_v{k}.tsv") for k in (1, 2, 3))]
        for same_row in zip(*sets, strict=True):
            assert len({row[-1] for row in same_row}) == 4, same_row[0]


def test_synonyms_replace_content_words() -> None:
    function_words = set(re.findall(r"\w+", FUNCTION_WORDS))

    def content(text: str) -> set[str]:
        return set(re.findall(r"[a-z'-]+", text.lower().replace("{group}", ""))) - function_words

    for kind, cell in SYNONYMS:
        pairs = zip(rows(f"{kind}.tsv"), rows(f"variants/{kind}_{cell}.tsv"), strict=True)
        kept = [len(content(a[-1]) & content(b[-1])) / len(content(a[-1])) for a, b in pairs]
        assert max(kept) < 1, (kind, cell)
        assert sum(kept) / len(kept) < (0.1 if kind == "attributes" else 0.5), (kind, cell)


def test_passives_hold_a_form_of_the_passive() -> None:
    for cell in ("passive", "passive_rephrased"):
        texts = [row[-1] for row in rows(f"variants/targets_{cell}.tsv")]
        participle = r"\b(is|are|was|were|be|been|being)\b.*\b(\w+ed|taken|held|seen|read|eaten|put|left|let|sent|worn|"
        participle += r"written|bought|chosen|heard|given|found|ridden|lent|made|done|meant)\b"
        assert [text for text in texts if not re.search(participle, text)] == []


VARIANTS = [
    ("attributes", "p1\tpositive\tThey are good.\n", "variant.tsv:2", "ends before id 'n1' .*attributes.tsv:3"),
    ("attributes", "n1\tnegative\tThey are bad.\np1\tpositive\tThey are good.\n", "variant.tsv:2",
     "id 'n1' stands where the base file has 'p1' .*attributes.tsv:2"),
    ("attributes", "p1\tnegative\tThey are good.\nn1\tnegative\tThey are bad.\n", "variant.tsv:2",
     "'p1' is 'negative', but 'positive' in the base file"),
    ("attributes", "p1\tpositive\tThey are good.\nn1\tnegativ\tThey are bad.\n", "variant.tsv:3",
     "nearest: 'negative'"),
    ("attributes", "p1\tpositive\tThey are good.\nn1\tnegative\tThey are bad.\nn2\tnegative\tThey are evil.\n",
     "variant.tsv:4", "after the base file's last row"),
    ("attributes", "p1\tpositive\tThey are good.\nn1\tnegative\tthey are GOOD.\n", "variant.tsv:3", "already at"),
    ("attributes", "p1\tpositive\tThey are good.\np1\tpositive\tThey are fine.\n", "variant.tsv:3", "already used at"),
    ("attributes", "p1\tpositive\tThey are kind.\nn1\tnegative\tThey are bad.\n", "variant.tsv:2", "as in the base"),
    ("attributes", "p1\tpositive\tThey are cruel.\nn1\tnegative\tThey are bad.\n", "variant.tsv:2", "base's row 'n1'"),
    ("attributes", "p1\tpositive\t{group} are good.\nn1\tnegative\tThey are bad.\n", "variant.tsv:2", "belongs in"),
    ("targets", "t1\t{group} queue here.\nt2\tHere people read.\n", "variant.tsv:3", "exactly once"),
    ("targets", "t1\t{group} queue here.\n", "variant.tsv:2", "ends before id 't2'"),
    ("targets", "t1\t{group} queue here.\nt2\tHere {group} read.\n", "variant.tsv:3", "as in the base"),
    ("targets", "t2\t{group} queue here.\nt1\tHere {group} look.\n", "variant.tsv:2", "has 't1'"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "content", "where", "what"), VARIANTS, ids=[f"{v[0]}-{v[3][:24]}" for v in VARIANTS])
def test_a_broken_variant_is_refused_with_file_and_line(
    small: StimulusSet, write: Callable[[str], Path], kind: str, content: str, where: str, what: str
) -> None:
    header = {"attributes": "id\tvalence\ttext\n", "targets": "id\ttemplate\n"}[kind]
    with pytest.raises(UserError, match=what) as caught:
        load_variant(kind, "syn_v1", small, write(header + content))
    assert f"/{where}: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_subject_variant_may_keep_rows_but_not_all(small: StimulusSet, write: Callable[[str], Path]) -> None:
    text = "id\tvalence\ttext\np1\tpositive\tThey are kind.\nn1\tnegative\tThey are mean.\n"
    variant = load_variant("attributes", "subj_v1", small, write(text))
    assert (variant.unchanged, variant.share_unchanged) == (1, 0.5)
    with pytest.raises(UserError, match=r"variant\.tsv:1: no row differs"):
        load_variant("attributes", "subj_v2", small, write(text.replace("mean", "cruel")))
    with pytest.raises(ValueError, match="subj_v1"):
        load_variant("attributes", "passive", small)


def test_departures_from_the_standard_are_found_with_their_line(shipped: StimulusSet, tmp_path: Path) -> None:
    def changed(kind: str, cell: str, **texts: str) -> set[tuple[int, str]]:
        path = tmp_path / f"{kind}.tsv"
        lines = [[*row[:-1], texts.get(row[0], row[-1])] for row in rows(f"variants/{kind}_{cell}.tsv")]
        head = {"attributes": "id\tvalence\ttext", "targets": "id\ttemplate"}[kind]
        path.write_text("\n".join([head, *map("\t".join, lines)]) + "\n", encoding="utf-8")
        findings = check_variant(shipped, load_variant(kind, cell, shipped, path))
        assert all(finding.path == path for finding in findings)
        return {(finding.line, finding.rule) for finding in findings}

    assert changed("attributes", "syn_v1", p002="Old neighbours are gentle and giving.") == {(4, "group")}
    assert changed("targets", "syn_v1", t01="Happy {group} stand outside the shelter.") == {(2, "valence")}
    assert changed("targets", "passive", t02="Every {group} waits beside a shelter.") == {(3, "grammar")}
    # ten words more in half of the negative sentences: the mean and the distribution
    longer = {f"n{k:03}": f"{'Once more and ' * 3}again, they hurt number {'x' * k}." for k in range(1, 60)}
    assert changed("attributes", "syn_v2", **longer) == {(1, "length")}
    short = {f"t{k:02}": f"{{group}} sit {'x' * k}." for k in range(1, 51)}
    assert changed("targets", "syn_v3", **short) == {(1, "length")}


def test_word_anchors_are_a_thousand_distinct_neutral_words(shipped: StimulusSet) -> None:
    table = rows("anchors_words.tsv")
    assert len(table) == 1000
    assert len({row[2].lower() for row in table}) == len({row[0] for row in table}) == 1000
    assert {row[1] for row in table} == {"control"}
    assert all(re.fullmatch(r"[A-Za-z-]+( [a-z]+)?", row[2]) for row in table)
    words = load_word_anchors()
    assert [word.text for word in words] == [row[2] for row in table]
    # they serve as a run's own anchors too
    chosen = StimuliSettings(anchors_file=str(data_path("stimuli", "anchors_words.tsv")))
    assert [word.text for word in read_stimuli(chosen).anchors] == [row[2] for row in table]
    assert [str(finding) for finding in check_anchors(words, shipped.groups)] == []


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        ("w1\ttall\ttable\n", "variant.tsv:2", "has no group, not 'tall'"),
        ("w1\t\tone round table\n", "variant.tsv:2", "3 words"),
        ("w1\t\ttable\nw2\t\tTable\n", "variant.tsv:3", "already at"),
        ("w1\t\ttable\nw1\t\tlamp\n", "variant.tsv:3", "already used"),
        ("w1\t\t{group}\n", "variant.tsv:2", "belongs in"),
        ("w1\t\t\n", "variant.tsv:2", "'text' is empty"),
    ],
)
def test_broken_word_anchors_are_refused(write: Callable[[str], Path], content: str, where: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as caught:
        load_word_anchors(write("id\tgroup\ttext\n" + content))
    assert f"/{where}: " in str(caught.value)


def test_valenced_words_and_groups_in_word_anchors_are_found(small: StimulusSet, write: Callable[[str], Path]) -> None:
    words = load_word_anchors(write("id\tgroup\ttext\nw1\tcontrol\ttable\nw2\t\thappy\nw3\t\ttaller\n"))
    assert [(f.line, f.rule) for f in check_anchors(words, small.groups)] == [(3, "valence"), (4, "group")]


def test_the_masked_anchors_are_those_that_the_generator_writes(shipped: StimulusSet, tmp_path: Path) -> None:
    path = tmp_path / "masked.tsv"
    command.main(["mask", "--output", str(path)])
    assert path.read_bytes() == data_path("stimuli", "anchors_masked.tsv").read_bytes()
    assert len(load_masked_anchors(shipped)) == 1000


def test_masked_anchors_differ_from_the_base_in_the_group_alone() -> None:
    subjects = {group.id: group.subject for group in load_groups()}
    used: Counter[str] = Counter()
    seen = set()
    for old, new in zip(rows("anchors.tsv"), rows("anchors_masked.tsv"), strict=True):
        assert new[:2] == old[:2]
        before, after = re.split(rf"\b{re.escape(subjects[old[1]])}\b", old[2], flags=re.IGNORECASE)
        assert new[2].startswith(before)
        assert new[2].endswith(after)
        word = new[2][len(before) : len(new[2]) - len(after)]
        assert word == (word.capitalize() if not before else word.lower())
        used[word.lower()] += 1
        seen.add(new[2])
    assert len(seen) == 1000
    # as many as there are frames used once, twice and three times
    assert list(used) == ["people", "individuals", "persons"]
    assert used["people"] == 337


def test_masks_agree_in_number_and_article(small: StimulusSet, tmp_path: Path) -> None:
    def masked(*texts: str) -> list[str]:
        first = small.anchors[0]
        return mask_anchors([replace(first, id=f"m{k}", text=text) for k, text in enumerate(texts)], small.groups)

    assert masked(
        "Here an Icelander met the Welsh.",
        "Here a Welsh person met tall people.",
        "Tall people met Welsh people. Icelanders ate.",
        "Tall people met Welsh people. Icelanders ate.",
        "A table.",
    ) == [
        "Here a person met people.",
        "Here an individual met individuals.",
        "People met people. People ate.",
        "Individuals met individuals. Individuals ate.",
        "A table.",
    ]
    with pytest.raises(UserError, match=r"anchors\.tsv:2: 'taller' can stand for"):
        masked("The taller table.")
    with pytest.raises(UserError, match="a frame can serve 3 groups at most"):
        masked(*["Tall people ate."] * 4)


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        ("a1\ttall\tPeople bought bread.\n", "variant.tsv:2", "ends before id 'a2'"),
        ("a1\twelsh\tPeople bought bread.\na2\twelsh\tHere people bought milk.\n", "variant.tsv:2", "'a1' is 'welsh'"),
        ("a1\ttall\tPeople bought bread.\na2\twelsh\tHere tall people ate.\n", "variant.tsv:3", "names the group tall"),
        ("a1\ttall\tPeople bought bread.\na2\twelsh\tPeople bought bread.\n", "variant.tsv:3", "already at"),
    ],
)
def test_broken_masked_anchors_are_refused(
    small: StimulusSet, write: Callable[[str], Path], content: str, where: str, what: str
) -> None:
    with pytest.raises(UserError, match=what) as caught:
        load_masked_anchors(small, write("id\tgroup\ttext\n" + content))
    assert f"/{where}: " in str(caught.value)


def test_the_command_reports_variants_and_refuses_a_folder_without_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.main(["validate", "--strict"])
    lines = capsys.readouterr().out.splitlines()
    assert "attributes subj_v1: 200, 74 of them as in the base" in lines
    assert {f"{kind} {cell}: {len(rows(f'{kind}.tsv'))}" for kind, cell in SYNONYMS} <= set(lines)
    assert lines[-2:] == ["word anchors: 1000", "masked anchors: 1000"]
    with pytest.raises(UserError, match="holds no file of a variant's name"):
        command.main(["validate", "--variants", str(tmp_path)])
    # a user's own targets have no shipped variants
    own = [f"t{k}\t{{group}} stand beside bench {'x' * k}.\n" for k in range(1, 51)]
    (tmp_path / "targets.tsv").write_text("id\ttemplate\n" + "".join(own))
    command.main(["validate", "--targets", str(tmp_path / "targets.tsv")])
    assert not re.search(r"^targets \w", capsys.readouterr().out, re.MULTILINE)
    with pytest.raises(UserError, match="no --output"):
        command.main(["mask"])
