"""Options that a command does not use, numbers and files that it cannot use: each is refused in a line."""

import csv
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from refbias.audit import store
from refbias.cli.main import main
from refbias.config import root as config_root
from refbias.errors import UserError
from refbias.resources import data_path
from tests.unit import metamorphic_run


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that ends with exit code 2, whether argparse ends it or the command does."""
    try:
        code = main(list(arguments))
    except SystemExit as end:
        code = int(end.code or 0)
    shown = capsys.readouterr().err
    assert code == 2, shown
    line = shown.strip().splitlines()[-1]
    assert "error: " in line
    return line


# --- sentence sets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["mask", "my_pack", "--output", "m.tsv"], "my_pack"),
        (["mask", "--output", "m.tsv", "--strict"], "--strict"),
        (["mask", "--output", "m.tsv", "--targets", "t.tsv"], "--targets"),
        (["example", "new", "--language", "de"], "--language"),
        (["intersect", "folder", "--output", "X"], "--output"),
        (["intersect", "folder", "--masked", "m.tsv"], "--masked"),
        (["validate", "--output", "m.tsv"], "--output"),
        (["validate", "--anchors-per-group", "3"], "--anchors-per-group"),
        (["intersect", "folder", "--anchors-per-group", "0"], "--anchors-per-group 0"),
        (["intersect", "folder", "--anchors-per-group", "-1"], "--anchors-per-group -1"),
    ],
)
def test_an_action_on_sentences_takes_its_own_options_alone(
    arguments: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert named in refusal(capsys, "stimuli", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_masking_a_users_own_anchors(tmp_path: Path) -> None:
    lines = data_path("stimuli", "anchors.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "a.tsv").write_text("".join(lines[:49]), encoding="utf-8")
    assert main(["stimuli", "mask", "--anchors", str(tmp_path / "a.tsv"), "--output", str(tmp_path / "m.tsv")]) == 0
    assert len((tmp_path / "m.tsv").read_text(encoding="utf-8").splitlines()) == 49


# --- the cache ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["abcd", "--unused-days", "30"], "KEY and --unused-days at once"),
        (["abcd", "--all"], "KEY and --all at once"),
        (["--all", "--unused-days", "30"], "--all and --unused-days at once"),
        (["--unused-days", "-1"], "--unused-days -1: must be 0 or more"),
        (["--unused-days", "nan"], "--unused-days nan: must be 0 or more"),
        (["--kind", "models"], "name keys of `refbias cache ls`, or say --all or --unused-days N"),
    ],
)
def test_the_cache_removes_what_one_way_names(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path))
    key = "abcd" + "0" * 28
    kept = store.folder("models", key)
    kept.mkdir(parents=True)
    (kept / store.FACTS).write_text(json.dumps({"name": "kept"}))
    assert message in refusal(capsys, "cache", "rm", *arguments)
    assert kept.is_dir()


# --- configurations -----------------------------------------------------------------------------------------------


def test_a_plan_of_no_model_says_so(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "plan", "--config", str(root / "config" / "audit.yaml"))
    assert "run 'audit' has no key 'models'" in line


def test_a_regime_of_the_competence_lens_is_one_of_the_run() -> None:
    data = {
        "run": "r",
        "models": {"m": {"source": {"kind": "packaged_gguf"}}},
        "regimes": {"full": None},
        "competence": {"regimes": ["full"]},
    }
    with pytest.raises(UserError, match=r"key 'competence.regimes': 'full' is not in this run: use lora"):
        config_root.from_mapping(data)
    assert config_root.from_mapping({**data, "competence": {"regimes": ["lora"]}}).competence_subjects()[1:] == [
        "lora-h000",
        "lora-h100",
    ]


# --- numbers and files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--ridge", "0", "'ridge'"),
        ("--seed", "-1", "'seed'"),
        ("--threshold", "inf", "--threshold inf: must be a finite number"),
    ],
)
def test_numbers_of_calibrate(option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "calibrate", "--observations", "none.csv", "--output", "c.json", option, value)
    assert message in line


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--seed", "-1", "--seed -1: must not be negative"), ("--bound", "inf", "--bound inf: must be positive and fin")],
)
def test_numbers_of_the_competence_analysis(
    option: str, value: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(capsys, "competence", "analyse", "--results", str(tmp_path), option, value)


def test_metamorphic_tables_of_no_method_or_resample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metamorphic_run.write_run(tmp_path)
    metamorphic_run.delta_b().to_csv(tmp_path / "delta_b.csv", index=False)
    tables = ("metamorphic", "tables", "--results", str(tmp_path), "--output", str(tmp_path / "tables"))
    shift = ("--shift", str(tmp_path / "delta_b.csv"), "--n-resamples", "100")
    assert "--method typo: the table of dB has no row of it: use rr" in refusal(
        capsys, *tables, *shift, "--method", "typo"
    )
    assert "--n-resamples and --seed" in refusal(capsys, *tables, "--n-resamples", "0")


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["--directory", "d", "--key-env", "K"], "--key-env: belongs to a judge by --base-url"),
        (["--directory", "d", "--max-requests", "5"], "--max-requests: belongs to a judge by --base-url"),
        (["--base-url", "http://127.0.0.1:1", "--judge-model", "j", "--backend", "hf"], "--backend: belongs to a"),
    ],
)
def test_a_judge_takes_the_options_of_its_kind(
    chosen: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--questions", "q.jsonl", "--answers", "a.jsonl", "--tested", "t", "--output", "o.jsonl"]
    assert message in refusal(capsys, "metamorphic", "judge", *files, *chosen)


def test_words_belong_to_the_rules_of_topics(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "topics", "agreement", "--sheet", "s.csv", "--words", "w.tsv")
    assert "--words: belongs to the rules" in line


def test_a_folder_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    gate = ("metamorphic", "gate", str(folder), "--min-resiliency", "80", "--baseline", str(folder))
    assert "cannot be read (Is a directory)" in refusal(capsys, *gate)
    assert "cannot be read (Is a directory)" in refusal(capsys, "topics", "agreement", "--sheet", str(folder))
    (folder / "effects.csv").mkdir()
    from refbias.competence.results import read_table

    with pytest.raises(UserError, match=r"effects\.csv: cannot be read \(Is a directory\)"):
        read_table(folder / "effects.csv", [])


def test_an_unequal_pair_names_the_key_that_lets_it_through(tmp_path: Path) -> None:
    from refbias.competence.data import load_pairs

    source = data_path("competence", "pairs.tsv")
    with source.open(encoding="utf-8", newline="") as handle:
        lines = list(csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))
    lines[1][lines[0].index("expert")] += " Indeed so."
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join("\t".join(line) for line in lines) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"competence\.data\.unequal_pairs"):
        load_pairs(path)
    data = {"run": "r", "models": {"m": {"source": {"kind": "packaged_gguf"}}}}
    config_root.from_mapping({**data, "competence": {"data": {"unequal_pairs": "note"}}})


def test_biasaskers_dropped_rows_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from refbias.metamorphic.biasasker import load_groups, load_properties

    groups, properties = tmp_path / "groups.csv", tmp_path / "properties.csv"
    groups.write_text("category,group\nheight,tall people\nheight,Tall People\nheight,short people\nage,children\n")
    properties.write_text("Sentence,Antonym,Labels\nare late,are punctual,[7]\nAre late,are punctual,[7]\n")
    with caplog.at_level(logging.INFO, "refbias"):
        assert [group.plural for group in load_groups(groups)] == ["tall people", "short people"]
        assert len(load_properties(properties)) == 1
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"{groups}: 1 rows are dropped, each repeats an earlier one",
        f"{groups}: left out, a category of one group: age",
        f"{properties}: 1 rows are dropped, each repeats an earlier one",
    ]


# --- what stages are handed ---------------------------------------------------------------------------------------


def test_a_local_judge_runs_under_the_named_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from refbias.cli import metamorphic_evaluate

    handed: list[Any] = []

    def open_judge(judge: Any, generation: Any, compute: Any) -> None:
        handed.append(generation)

    monkeypatch.setattr(metamorphic_evaluate, "open_judge", open_judge)
    metamorphic_run.write_run(tmp_path)
    answers = next(path.parent for path in tmp_path.glob("answers/*/reference/plain/raw.jsonl"))
    (answers / "asked.json").write_text("{}")
    config = config_root.from_mapping(
        {
            "run": "r",
            "models": {"m": {"source": {"kind": "packaged_gguf"}}},
            "generation": {"backend": "vllm", "interpreter": "/opt/vllm/bin/python"},
            "metamorphic": {"judge": {"which": "unsure", "directory": "/models/judge"}, "n_resamples": 100},
        }
    )
    from refbias.config import slices

    arguments = ["--settings", slices.metamorphic_label_slice(config, "m", "plain"), "--answers", str(answers)]
    arguments += ["--questions", str(tmp_path / "questions" / "questions.jsonl")]
    metamorphic_evaluate.main([*arguments, "--vllm-python", "/opt/vllm/bin/python"])
    assert handed[0].python() == "/opt/vllm/bin/python"


def test_a_placebo_that_is_none_is_refused_before_the_model_is_read() -> None:
    from refbias.cli.competence_steer import open_trial

    bench = SimpleNamespace(contrasts=[SimpleNamespace(id="left_right_handed")])
    settings = SimpleNamespace(steering=SimpleNamespace(placebo="left_right_hand"))
    with pytest.raises(UserError, match=r"competence\.steering\.placebo': no contrast 'left_right_hand'.*handed"):
        open_trial(bench, settings, None)  # type: ignore[arg-type]


def test_an_earlier_models_files_do_not_stay(tmp_path: Path) -> None:
    """A folder that held shards holds one file afterwards: the index of the shards would name the old ones."""
    from refbias.config.models import LocalSource
    from refbias.models.acquire import acquire

    source, out = tmp_path / "source", tmp_path / "out"
    for folder in (source, out):
        folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (source / name).write_text("{}")
    (source / "model.safetensors").write_bytes(b"new")
    old = "model-00001-of-00001.safetensors"
    (out / old).write_bytes(b"old")
    (out / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": old}}))
    (out / "chat_template.jinja").write_text("old")
    acquire(LocalSource(kind="local", path=str(source)), out, "float32")
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
