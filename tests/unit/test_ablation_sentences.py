"""What the ablations embed: draws from instruction data sets, aligned variants, and what is left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from refbias.ablations.instructions import sample_sentences
from refbias.ablations.sentences import collect
from refbias.artifacts import read_json
from refbias.cli import ablation_sentences
from refbias.config.ablations import AblationSettings, SampleSettings
from refbias.config.root import from_mapping
from refbias.config.slices import ablation_sentences_slice
from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError
from refbias.stimuli import Mentions, load_groups
from tests.ablation_files import ALPACA, TULU, many, rows, write, write_json, write_variants

SMALL = StimuliSettings(targets=2, attributes=3, anchors=30, control=2)
ELIGIBLE = {
    "Give three tips for staying healthy.",
    "What is the capital of France?",
    "Describe a time when women led a large team.",
    "Rewrite the sentence below.",
    "Keep the meaning as it is.",
    "Name the planets of our solar system.",
}


def draw(path: Path, source: str, seed: int = 5, **options: Any) -> tuple[list[str], Any]:
    return sample_sentences(path, source, SampleSettings(**options), Mentions(load_groups()), seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_alpaca_gives_plain_short_distinct_sentences(tmp_path: Path, suffix: str) -> None:
    found, counts = draw(write_json(tmp_path / f"alpaca.{suffix}", ALPACA), "alpaca")
    assert set(found) == ELIGIBLE
    assert counts.as_json() == {"records": 10, "sentences": 11, "eligible": 7, "distinct": 6, "kept": 6}


def test_the_draw_does_not_depend_on_format_order_or_shards(tmp_path: Path) -> None:
    records = many(60)
    whole, counts = draw(write_json(tmp_path / "a.json", records), "alpaca", size=20)
    assert (counts.eligible, counts.kept) == (60, 20)
    shards = tmp_path / "shards"
    shards.mkdir()
    for number in range(3):
        write_json(shards / f"part-{number}.parquet", records[::-1][number::3])
    (shards / "README.md").write_text("not data")
    assert draw(shards, "alpaca", size=20)[0] == whole
    # a smaller draw is a beginning of a larger one, another seed draws otherwise
    assert draw(shards, "alpaca", size=7)[0] == whole[:7]
    assert set(draw(shards, "alpaca", seed=6, size=20)[0]) != set(whole)
    everything = {record["instruction"] for record in records}
    assert set(whole) < everything
    assert sorted(draw(shards, "alpaca", size=500)[0]) == sorted(everything)


def test_draws_are_spread_over_the_data_set(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", many(100))
    drawn = [int(text.split()[1]) for seed in range(40) for text in draw(path, "alpaca", seed=seed, size=10)[0]]
    counts = [sum(at * 10 <= number < at * 10 + 10 for number in drawn) for at in range(10)]
    assert min(counts) > 20, "40 expected in each tenth"
    assert max(counts) < 65


def test_tulu_gives_user_turns_only(tmp_path: Path) -> None:
    expected = {
        "How do I bake bread at home?",
        "Please list every step.",
        "Use metric units only.",
        "Write a short note about the weather in spring.",
    }
    for suffix in ("json", "jsonl", "parquet"):
        found, counts = draw(write_json(tmp_path / f"tulu.{suffix}", TULU), "tulu")
        assert set(found) == expected
        assert counts.records == 4


def test_lengths_and_group_terms_are_as_asked(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", ALPACA)
    assert set(draw(path, "alpaca", keep_group_terms=False)[0]) == ELIGIBLE - {
        "Describe a time when women led a large team."
    }
    assert set(draw(path, "alpaca", min_words=9, max_words=9)[0]) == {"Describe a time when women led a large team."}


@pytest.mark.parametrize(
    ("name", "text", "source", "message"),
    [
        ("a.jsonl", '{"instruction": "Say a word to me."}\nnot json\n', "alpaca", r"a.jsonl:2: not JSON"),
        ("a.jsonl", '{"instruction": 7}\n', "alpaca", r"a.jsonl:1: 'instruction' must be a text, not 7"),
        ("a.json", '[{"instruction": null}]', "alpaca", r"a.json: record 1: 'instruction' must be a text"),
        ("a.json", '[{"text": "x"}]', "alpaca", r"record 1: no column 'instruction'"),
        ("a.json", "[[1]]", "alpaca", r"record 1: a record must be a JSON object"),
        ("a.json", '{"instruction": "x"}', "alpaca", r"must hold a JSON array"),
        ("a.json", '{"instruction": "x"}\n{"instruction": "y"}', "alpaca", r"a.json:2: .*name JSON Lines .jsonl"),
        ("a.json", "[]", "alpaca", r"no plain sentence of 4 to 12 words among 0 records"),
        ("a.csv", "instruction\n", "alpaca", r"a.csv: unknown kind of file"),
        ("t.jsonl", '{"messages": "hi"}\n', "tulu", r"t.jsonl:1: 'messages' must be a list of turns, not 'hi'"),
        ("t.jsonl", '{"messages": [{"content": "x"}]}\n', "tulu", r"must hold 'role' and 'content'"),
        ("t.jsonl", '{"messages": [{"role": "user", "content": null}]}\n', "tulu", r"must be a text, not None"),
        ("t.jsonl", '{"prompt": "x"}\n', "tulu", r"no column 'messages'"),
    ],
)
def test_a_bad_row_is_named_with_its_place(tmp_path: Path, name: str, text: str, source: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        draw(path, source)
    assert "\n" not in str(caught.value)


def test_bad_parquet_and_missing_files_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "a.parquet"
    broken.write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match=r"a.parquet: not a readable Parquet file"):
        draw(broken, "alpaca")
    write_json(tmp_path / "b.parquet", [{"text": "x"}])
    with pytest.raises(UserError, match=r"b.parquet: no column 'instruction'"):
        draw(tmp_path / "b.parquet", "alpaca")
    with pytest.raises(UserError, match="no such file or folder"):
        draw(tmp_path / "c.json", "alpaca")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no file of the kinds"):
        draw(tmp_path / "empty", "alpaca")


# --- the collection --------------------------------------------------------------------------


@pytest.fixture
def files(root: Path, tmp_path: Path) -> dict[str, str]:
    return write_variants(root / "data" / "stimuli", tmp_path / "variants")


def test_every_set_is_aligned_with_the_part_of_the_base_that_the_run_uses(
    files: dict[str, str], tmp_path: Path
) -> None:
    alpaca = write_json(tmp_path / "alpaca.jsonl", ALPACA)
    settings = AblationSettings(**files, alpaca_file=str(alpaca), sample=SampleSettings(size=20))
    found = collect(SMALL, settings, 1)
    sets: dict[str, list[Any]] = {}
    for row in found.rows:
        sets.setdefault(row.set, []).append(row.sentence)
    assert next(iter(sets)) == "base"
    assert len(sets) == 1 + 5 + 5 + 3
    base = {sentence.id: sentence for sentence in sets["base"]}
    assert [s.id for s in sets["targets_passive"]] == [s.id for s in sets["base"] if s.kind == "target"]
    assert len(sets["targets_passive"]) == 24 * 2
    for name, members in sets.items():
        if name.startswith(("targets_", "attributes_")):
            words = name.partition("_")[2].replace("_", " ")
            for sentence in members:
                assert sentence.text == f"{base[sentence.id].text[:-1]}, {words}."
                assert (sentence.kind, sentence.group) == (base[sentence.id].kind, base[sentence.id].group)
    assert [s.id for s in sets["attributes_syn_v2"]] == [
        s.id for s in sets["base"] if s.kind in ("positive", "negative")
    ]
    assert [s.id for s in sets["anchors_masked"]] == [s.id for s in sets["base"] if s.kind == "anchor"]
    assert [s.text for s in sets["anchors_masked"]] == [f"People of line {at} wait." for at in range(30)]
    assert len(sets["anchors_words"]) == 20
    assert len(sets["anchors_alpaca"]) == 6
    assert found.drawn["alpaca"]["kept"] == 6
    assert found.left_out == {"anchors/tulu": "key 'ablations.tulu_file' names no file"}


def test_only_what_runs_is_collected(files: dict[str, str]) -> None:
    settings = AblationSettings(**files, run=["targets", "layer"], targets=["passive"])
    assert {row.set for row in collect(SMALL, settings, 1).rows} == {"base", "targets_passive"}
    settings = AblationSettings(run=["pooling"])
    assert {row.set for row in collect(SMALL, settings, 1).rows} == {"base"}


def test_mentions_are_whole_words_also_inside_other_groups_wordings(root: Path, tmp_path: Path) -> None:
    texts = ["Latin Americans wait here.", "African Americans read.", "Homosexuality is a noun.", "WOMEN sing today."]
    table = [{"id": f"x{at}", "group": "control", "text": text} for at, text in enumerate(texts)]
    stimuli = SMALL.model_copy(update={"anchors": 4, "anchors_file": str(write(tmp_path / "a.tsv", table))})
    found = collect(stimuli, AblationSettings(run=["circularity"], circularity=["without_group"]), 1)
    mentions = {row.sentence.text: set(row.mentions) for row in found.rows if row.sentence.kind == "anchor"}
    assert mentions == {
        texts[0]: {"latin_americans", "americans"},
        texts[1]: {"black_people", "americans"},
        texts[2]: set(),
        texts[3]: {"women"},
    }


def test_shipped_variants_of_replaced_sets_are_left_out_with_the_reason(root: Path, tmp_path: Path) -> None:
    own = {}
    for name in ("attributes", "targets", "anchors"):
        own[f"{name}_file"] = str(write(tmp_path / f"{name}.tsv", rows(root / "data" / "stimuli" / f"{name}.tsv")))
    stimuli = SMALL.model_copy(update=own)
    settings = AblationSettings(
        run=["attributes", "targets", "circularity"], attributes=["syn_v1"], targets=["passive"]
    )
    found = collect(stimuli, settings, 1)
    assert {row.set for row in found.rows} == {"base"}
    assert set(found.left_out) == {"attributes/syn_v1", "targets/passive", "circularity/masked"}
    assert all("name key 'ablations." in reason for reason in found.left_out.values())


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "attributes_syn_v1",
            lambda table: table[1:],
            r"_syn_v1.tsv:2: id 'n001' stands where the base file has 'p001' \(.*attributes.tsv:2\)",
        ),
        ("attributes_syn_v1", lambda table: table[:-1], r"_syn_v1.tsv:200: ends before id 'n100'"),
        (
            "attributes_syn_v1",
            lambda table: [{**table[0], "valence": "negative"}, *table[1:]],
            r"_syn_v1.tsv:2: 'p001' is 'negative', but 'positive' in the base file",
        ),
        (
            "attributes_syn_v1",
            lambda table: [table[0], {**table[1], "text": table[0]["text"].upper()}, *table[2:]],
            r"_syn_v1.tsv:3: .* is already at .*_syn_v1.tsv:2",
        ),
        (
            "targets_passive",
            lambda table: [table[1], table[0], *table[2:]],
            r"_passive.tsv:2: id 't02' stands where the base file has 't01' \(.*targets.tsv:2\)",
        ),
        (
            "targets_passive",
            lambda table: [{**table[0], "template": "No slot here."}, *table[1:]],
            r"_passive.tsv:2: .* slot \{group\}",
        ),
        (
            "targets_passive",
            lambda table: [{**table[0], "template": "A {group} and a {more}."}, *table[1:]],
            r"_passive.tsv:2: .* no other braces",
        ),
        (
            "masked",
            lambda table: [*table, {**table[0], "id": "a9999", "text": "One more."}],
            r"masked.tsv:1002: id 'a9999'",
        ),
        (
            "masked",
            lambda table: [{**table[0], "text": "Muslims wait."}, *table[1:]],
            r"masked.tsv:2: 'muslims' names the group muslims",
        ),
        (
            "words",
            lambda table: [{**table[0], "text": "three words here"}, *table[1:]],
            r"words.tsv:2: .* at most 2",
        ),
    ],
)
def test_a_variant_or_anchor_that_does_not_fit_is_refused(
    files: dict[str, str], tmp_path: Path, name: str, change: Any, message: str
) -> None:
    path = tmp_path / "variants" / f"{name}.tsv"
    write(path, change(rows(path)))
    settings = AblationSettings(**files, attributes=["syn_v1"], targets=["passive"], anchors=["words"])
    with pytest.raises(UserError, match=message):
        collect(SMALL, settings, 1)


def test_the_stage_writes_the_table_and_says_what_is_missing(files: dict[str, str], tmp_path: Path) -> None:
    config = from_mapping(
        {
            "run": "t",
            "seed": 4,
            "models": {"m": {"source": {"kind": "packaged_gguf"}}},
            "stimuli": SMALL.model_dump(),
            "ablations": files,
        }
    )
    ablation_sentences.main(["--settings", ablation_sentences_slice(config), "--output", str(tmp_path / "out")])
    table = rows(tmp_path / "out" / "sentences.tsv")
    manifest = read_json(tmp_path / "out" / "manifest.json")
    assert list(table[0]) == ["set", "id", "kind", "group", "mentions", "text"]
    assert sum(manifest["sets"].values()) == len(table)
    assert set(manifest["left_out"]) == {"anchors/alpaca", "anchors/tulu"}
    assert manifest["drawn"] == {}
    assert json.loads(ablation_sentences_slice(config))["ablations"].keys() & {"methods", "anchor_counts"} == set()
