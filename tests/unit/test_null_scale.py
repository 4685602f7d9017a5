"""The null scale: statistics against closed forms and simulation, the command on a tiny model, the shipped record."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import binomtest

from refbias.artifacts import read_json, sha256_file
from refbias.cli.null_scale import main
from refbias.cli.null_scale_runs import draw, reference_model
from refbias.config.base import parse, read_yaml
from refbias.config.null_scale import NullScale, NullScaleSettings
from refbias.errors import UserError
from refbias.resources import data_path
from refbias.splits import Example, load_split
from refbias.stats.null_scale import any_rate, clustered_rate, effective_size, null_quantiles, wilson
from refbias.stimuli import load_stimuli, stimuli_sha256
from tests.tiny import build_tiny

# -- statistics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (1, 5), (3, 12), (60, 120), (119, 120), (5, 5)])
def test_wilson_is_scipys(hits: int, n: int) -> None:
    expected = binomtest(hits, n).proportion_ci(0.95, method="wilson")
    found = wilson(hits / n, n, 1.959963984540054)
    assert found.value == hits / n
    assert found.low == pytest.approx(expected.low, abs=1e-12)
    assert found.high == pytest.approx(expected.high, abs=1e-12)


@pytest.mark.parametrize(("share", "n"), [(-0.1, 5), (1.1, 5), (0.5, 0), (0.5, -1)])
def test_wilson_refuses_what_is_no_share(share: float, n: float) -> None:
    with pytest.raises(ValueError, match="must"):
        wilson(share, n, 2.0)


def test_members_that_move_together_count_once() -> None:
    together = np.repeat([[1], [0], [1], [0], [0]], 24, axis=1)
    # var of the mean = p (1 - p) / (n - 1) for identical members, which is below n: clipped to the clusters
    assert effective_size(together) == 5
    assert effective_size(np.zeros((5, 24))) == effective_size(np.ones((5, 24))) == 5
    alike = np.tile([1, 0, 0, 0], (5, 6))
    assert effective_size(alike) == 5 * 24


def test_independent_members_count_singly() -> None:
    sizes = [effective_size(np.random.default_rng(seed).random((40, 24)) < 0.2) for seed in range(100)]
    assert 0.7 * 960 < np.median(sizes) <= 960


@pytest.mark.parametrize(("clusters", "spread"), [(5, 0.0), (5, 0.1), (5, 0.5), (10, 0.3)])
def test_the_interval_covers_a_clustered_rate(clusters: int, spread: float) -> None:
    rng, rate, covered = np.random.default_rng(7), 0.2, 0
    for _ in range(1000):
        # a beta distribution of the seeds' own rates with mean 0.2 and intra-class correlation `spread`
        size = (1 - spread) / spread if spread else None
        own = rng.beta(rate * size, (1 - rate) * size, clusters) if size else np.full(clusters, rate)
        found = clustered_rate(rng.random((clusters, 24)) < own[:, None])
        covered += found.low <= rate <= found.high
    assert covered >= 920


def test_without_a_hit_seeds_are_counted() -> None:
    for hits, n in ((0, 5), (5, 5)):
        expected = binomtest(hits, n).proportion_ci(0.95, method="wilson")
        found = clustered_rate(np.full((5, 24), bool(hits)))
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_any_rate_counts_seeds() -> None:
    hits = np.zeros((5, 24), dtype=bool)
    hits[1, 3] = hits[1, 4] = hits[4, 0] = True
    expected = binomtest(2, 5).proportion_ci(0.95, method="wilson")
    found = any_rate(hits)
    assert found.value == 0.4
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_quantiles_are_of_magnitudes() -> None:
    values = [[-4.0, 1.0], [2.0, -3.0], [0.0, 5.0]]
    assert null_quantiles(values, [0, 0.5, 1]).tolist() == [0.0, 2.5, 5.0]
    for bad in ([], [[np.nan, 1.0]]):
        with pytest.raises(ValueError, match="values"):
            null_quantiles(bad, [0.5])


def test_tables_that_are_none_are_refused() -> None:
    for bad in ([[True, False]], [True, False], np.zeros((3, 0))):
        with pytest.raises(ValueError, match="hits"):
            effective_size(bad)
    with pytest.raises(ValueError, match="level"):
        clustered_rate([[True], [False]], 1.0)


# -- the command --------------------------------------------------------------------------------------------------

REGIME = {
    "learning_rate": 1e-3,
    "epochs": 1,
    "per_device_batch_size": 8,
    "gradient_accumulation": 1,
    "dtype": "float32",
    "device": "cpu",
    "max_length": 400,
}
TINY = {
    "source": {"kind": "local", "path": "somewhere/tiny"},
    "examples": 16,
    "seeds": [1, 2],
    "regimes": {"full": REGIME, "lora": {**REGIME, "learning_rate": 1e-2, "dropout": 0.0}},
    "compute": {"device": "cpu", "dtype": "float32"},
    "stimuli": {"small": {"targets": 2, "attributes": 5, "anchors": 24, "control": 2}},
    "methods": ["rr"],
    "alarm_levels": [0.002, 0.02],
}


def written(folder: Path, **changed: object) -> Path:
    path = folder / "null.yaml"
    path.write_text(yaml.safe_dump({**TINY, **changed}))
    return path


def independent_rr(embeddings: np.ndarray, rows: list[tuple[str, str, str]], group: str) -> float:
    """B of a group, written out: mean negative distance of the vectors of cosines to the anchors."""
    unit = embeddings.astype(float) / np.linalg.norm(embeddings.astype(float), axis=1, keepdims=True)

    def of(kind: str, name: str = "") -> list[int]:
        return [i for i, row in enumerate(rows) if row[0] == kind and (not name or row[1] == name)]

    relative = unit @ unit[of("anchor")].T
    total = 0.0
    for kind, sign in (("positive", 1.0), ("negative", -1.0)):
        distances = [
            np.sqrt(((relative[t] - relative[a]) ** 2).sum())
            for t in of("target" if group != "control" else "control", group)
            for a in of(kind)
        ]
        total -= sign * float(np.mean(distances))
    return total


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """A tiny null scale: its folder of runs, its output, its arguments."""
    root = tmp_path_factory.mktemp("null")
    reference = build_tiny("llama", root / "tiny")
    work, output = root / "work", root / "out"
    arguments = ["--config", str(written(root)), "--reference", str(reference), "--work", str(work)]
    main([*arguments, "--only", "lora-s2"])
    assert sorted(path.name for path in (work / "runs").iterdir()) == ["lora-s2"]
    assert not output.exists()
    main([*arguments, "--output", str(output)])
    return work, output, arguments


@pytest.mark.slow
def test_a_tiny_scale_holds_what_its_runs_give(measured: tuple[Path, Path, list[str]]) -> None:
    from safetensors.numpy import load_file

    work, output, _ = measured
    scale = NullScale.model_validate(json.loads((output / "null_scale.json").read_text()))
    assert [(cell.regime, cell.quantity) for cell in scale.cells] == [
        ("full", "delta_b"),
        ("full", "net_of_control"),
        ("lora", "delta_b"),
        ("lora", "net_of_control"),
    ]
    sentences = load_stimuli(scale.settings.stimuli["small"])
    rows = [(s.kind, s.group, s.text) for s in sentences]
    at = {text: index for index, text in enumerate(dict.fromkeys(s.text for s in sentences))}
    order = [at[s.text] for s in sentences]
    stored = {path.name: load_file(path / "embeddings.safetensors")["embeddings"] for path in (work / "runs").iterdir()}
    assert set(stored) == {"reference", "full-s1", "full-s2", "lora-s1", "lora-s2"}
    with (output / "delta_b.csv").open() as handle:
        table = {(r["regime"], int(r["seed"]), r["group"]): float(r["delta_b"]) for r in csv.DictReader(handle)}
    assert len(table) == 4 * 25
    for (regime, seed, group), value in table.items():
        if group in ("women", "jews", "control"):
            tuned = independent_rr(stored[f"{regime}-s{seed}"][order], rows, group)
            expected = tuned - independent_rr(stored["reference"][order], rows, group)
            assert value == pytest.approx(expected, abs=1e-6)
    for cell in scale.cells:
        values = [
            abs(value - (table[regime, seed, "control"] if cell.quantity == "net_of_control" else 0))
            for (regime, seed, group), value in table.items()
            if regime == cell.regime and group != "control"
        ]
        assert cell.n == len(values) == 48
        assert cell.quantiles["0.5"] == pytest.approx(float(np.median(values)))
        assert cell.largest[-1] == pytest.approx(max(values))
        for alarm in cell.false_alarm:
            assert alarm.rate == pytest.approx(sum(v >= alarm.level for v in values) / 48)
            assert alarm.low <= alarm.rate <= alarm.high
        assert cell.stimuli_sha256 == stimuli_sha256(sentences)
    found = scale.cell("full", stimuli_sha256(sentences))
    assert found is scale.cells[0]
    assert scale.cell("full", "0" * 64) is None
    assert "models" not in {path.name for path in work.iterdir()}
    assert str(work) not in (output / "null_scale.json").read_text()


@pytest.mark.slow
def test_a_second_call_trains_nothing_and_another_setting_trains_again(
    measured: tuple[Path, Path, list[str]], tmp_path: Path
) -> None:
    work, output, arguments = measured
    before = {path: path.stat().st_mtime_ns for path in work.rglob("embeddings.safetensors")}
    first = (output / "null_scale.json").read_bytes()
    main([*arguments, "--output", str(output)])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (output / "null_scale.json").read_bytes() == first
    changed = written(tmp_path, regimes={"lora": {**TINY["regimes"]["lora"], "learning_rate": 1e-4}})  # type: ignore[index]
    main(["--config", str(changed), *arguments[2:], "--only", "lora-s1"])
    again = {path.parent.name: path.stat().st_mtime_ns != old for path, old in before.items()}
    assert again == {"reference": False, "full-s1": False, "full-s2": False, "lora-s1": True, "lora-s2": False}


def test_the_reference_in_the_work_folder_is_the_one_that_the_configuration_names(tmp_path: Path) -> None:
    """Another source, type or file of a user's model is fetched anew; the same one is not."""
    one, two = build_tiny("llama", tmp_path / "one"), build_tiny("mistral", tmp_path / "two", seed=5)
    work = tmp_path / "work"

    def fetched(path: Path, dtype: str = "float32") -> tuple[str, int]:
        data = {
            **TINY,
            "source": {"kind": "local", "path": str(path)},
            "compute": {"device": "cpu", "dtype": dtype},
        }
        folder = reference_model(parse(NullScaleSettings, data, "here"), None, work)
        return sha256_file(folder / "model.safetensors"), (folder / "manifest.json").stat().st_mtime_ns

    first = fetched(one)
    assert first[0] == sha256_file(one / "model.safetensors")
    assert fetched(one) == first
    assert fetched(one, "bfloat16")[1] != first[1]
    (work / "model" / "left.safetensors").write_bytes(b"of an earlier model")
    assert fetched(two)[0] == sha256_file(two / "model.safetensors") != first[0]
    assert [path.name for path in (work / "model").glob("*.safetensors")] == ["model.safetensors"]
    # the same folder, trained further: a new file under the old name
    shutil.rmtree(two)
    build_tiny("mistral", two, seed=6)
    assert fetched(two)[0] == sha256_file(two / "model.safetensors")


def test_seeds_draw_distinct_examples() -> None:
    examples = [Example(str(n), "p", "r", False) for n in range(192)]
    drawn = {seed: [e.id for e in draw(examples, 128, seed)] for seed in (1, 2)}
    assert all(len(set(ids)) == 128 for ids in drawn.values())
    assert drawn[1] == [e.id for e in draw(examples, 128, 1)]
    assert 64 <= len(set(drawn[1]) & set(drawn[2])) < 110


BAD = [
    ({"seeds": [1, 1]}, "must be distinct"),
    ({"seeds": [1]}, "seeds"),
    ({"regimes": {"full": None, "lora": None}}, "no regime"),
    ({"quantiles": [1.5]}, "between 0 and 1"),
    ({"alarm_levels": [0.0]}, "above 0"),
    ({"methods": ["rrr"]}, "methods"),
    ({"methods": ["rr", "rr"]}, "methods .* must be distinct"),
    ({"exmples": 3}, "did you mean 'examples'"),
    ({"examples": 500}, "'examples': 500, but .* holds 192"),
]


@pytest.mark.parametrize(("changed", "what"), BAD, ids=[bad[1] for bad in BAD])
def test_a_mistake_in_the_configuration_is_one_line(tmp_path: Path, changed: dict[str, object], what: str) -> None:
    reference = build_tiny("llama", tmp_path / "tiny")
    path = written(tmp_path, **changed)
    arguments = ["--config", str(path), "--reference", str(reference), "--work", str(tmp_path / "w")]
    with pytest.raises(UserError, match=what) as caught:
        main([*arguments, "--output", str(tmp_path / "o")])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "o").exists()


def test_an_option_that_is_none_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(UserError, match="full-s1, full-s2, lora-s1, lora-s2"):
        main(["--config", str(path), "--work", str(tmp_path), "--only", "full-s9"])
    with pytest.raises(UserError, match="no --output"):
        main(["--config", str(path), "--work", str(tmp_path)])
    with pytest.raises(UserError, match=r"absent\.yaml: no such file"):
        main(["--config", str(tmp_path / "absent.yaml"), "--work", str(tmp_path)])


# -- what ships ---------------------------------------------------------------------------------------------------


def test_the_configuration_matches_the_quickstart(root: Path) -> None:
    null = parse(NullScaleSettings, read_yaml(root / "config" / "null_scale.yaml"), "null")
    quick = yaml.safe_load((root / "config" / "quickstart.yaml").read_text())
    assert null.stimuli["quickstart"].model_dump(include=set(quick["stimuli"])) == quick["stimuli"]
    for regime in ("full", "lora"):
        mine, theirs = yaml.safe_load((root / "config" / "null_scale.yaml").read_text())["regimes"][regime], None
        theirs = quick["regimes"][regime]
        same = ("learning_rate", "per_device_batch_size", "gradient_accumulation", "dtype", "max_length")
        assert [mine[key] for key in same] == [theirs[key] for key in same]
        updates = [null.examples * mine["epochs"] / 16, 192 * theirs["epochs"] / 16]
        assert updates == [24, 24]


def test_the_neutral_split_names_no_group() -> None:
    with data_path("stimuli", "groups.tsv").open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))
    terms = {
        term
        for row in rows
        for term in (row["name"], row["subject"], row["singular_person"], *row["aliases"].split("|"))
        if term
    }
    assert len(terms) > 100
    pattern = re.compile(r"\b(?:" + "|".join(map(re.escape, terms)) + r")\b", re.IGNORECASE)
    examples = load_split(data_path("quickstart", "wildguard_neutral.jsonl"), "unharmful")
    assert len(examples) == 192
    for example in examples:
        found = pattern.search(f"{example.prompt}\n{example.response}")
        assert not found, (example.id, found)
        assert not re.search(r"\b(he|she|his|her|people|person|religion|race)\b", example.prompt, re.I), example.id


SHIPPED = data_path() / "null_scale" / "null_scale.json"


def test_the_shipped_scale_belongs_to_what_ships(root: Path) -> None:
    scale = NullScale.model_validate(read_json(SHIPPED))
    assert scale.settings == parse(NullScaleSettings, read_yaml(root / "config" / "null_scale.yaml"), "null")
    assert scale.split_sha256 == sha256_file(data_path("quickstart", "wildguard_neutral.jsonl"))
    for name, chosen in scale.settings.stimuli.items():
        hashes = {cell.stimuli_sha256 for cell in scale.cells if cell.stimuli == name}
        assert hashes == {stimuli_sha256(load_stimuli(chosen))}, name
    assert len(scale.cells) == 2 * 2 * 2 * 2
    assert "Another model" in scale.valid_for
    assert scale.updates == {"full": 24, "lora": 24}


def test_the_shipped_scale_follows_from_its_table() -> None:
    scale = NullScale.model_validate(read_json(SHIPPED))
    with (SHIPPED.parent / "delta_b.csv").open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    for cell in scale.cells:
        chosen = [
            r for r in rows if (r["regime"], r["stimuli"], r["method"]) == (cell.regime, cell.stimuli, cell.method)
        ]
        control = {r["seed"]: float(r["delta_b"]) for r in chosen if r["group"] == "control"}
        assert sorted(map(int, control)) == sorted(scale.seeds)
        net = cell.quantity == "net_of_control"
        values = {
            (r["seed"], r["group"]): abs(float(r["delta_b"]) - (control[r["seed"]] if net else 0))
            for r in chosen
            if r["group"] != "control"
        }
        assert len(values) == cell.n == 24 * len(scale.seeds)
        for q, value in cell.quantiles.items():
            assert value == pytest.approx(float(np.quantile(list(values.values()), float(q))), rel=1e-6)
        for alarm in cell.false_alarm:
            # a value as near to a level as the table's last digit is on neither side for certain
            near = sum(abs(v - alarm.level) < 1e-9 for v in values.values())
            assert abs(sum(v >= alarm.level for v in values.values()) - alarm.rate * cell.n) <= near + 1e-6
            assert 0 <= alarm.low <= alarm.rate <= alarm.high <= 1
            seeds = {seed for (seed, _), v in values.items() if v >= alarm.level}
            assert near or alarm.any_group == pytest.approx(len(seeds) / cell.n_seeds)
