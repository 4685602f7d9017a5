"""dB in every cell of the ablations against the plain methods on sentences chosen by hand."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file
from scipy.spatial.distance import cdist

from refbias.ablations.cells import plan
from refbias.ablations.table import read_sentences
from refbias.artifacts import read_json, sha256_file, write_json
from refbias.cli import ablate, ablation_sentences
from refbias.config.ablations import AblationSettings
from refbias.config.root import Config, from_mapping
from refbias.config.slices import ablate_slice, ablation_sentences_slice
from refbias.errors import UserError
from refbias.metrics import METHODS, Embeddings, cka_shift, procrustes_shift
from refbias.metrics.nested import bias_of_distances, fast_unit_rows, prefix_distances
from refbias.stimuli import load_groups
from tests.ablation_files import many, rows, write_variants
from tests.ablation_files import write_json as write_records

SITES = {
    "pooling/mean": "embeddings",
    "pooling/max": "norm.max",
    "pooling/last": "norm.last",
    "layer/final": "embeddings",
    "layer/before_norm": "layer_003.mean",
    "layer/layer_000": "layer_000.mean",
    "layer/layer_001": "layer_001.mean",
    "bos/included": "embeddings",
    "bos/excluded": "norm.mean.no_bos",
}
WIDTH = 24
COUNTS, SEEDS = [5, 12, 40], [3, 8]
KEY = ["ablation", "cell", "n_anchors", "seed", "checkpoint", "group", "method"]


def configuration(**ablations: Any) -> Config:
    return from_mapping(
        {
            "run": "t",
            "models": {"m": {"source": {"kind": "packaged_gguf"}}},
            "stimuli": {"targets": 3, "attributes": 4, "anchors": 50, "control": 2},
            "spectrum": {"weights": [0, 1]},
            "ablations": {"anchor_counts": COUNTS, "anchor_seeds": SEEDS, "sample": {"size": 45}, **ablations},
        }
    )


class Case:
    """A collection of sentences with random embeddings on disk, as the earlier stages leave them."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        sentences = folder / "sentences"
        ablation_sentences.main(["--settings", ablation_sentences_slice(config), "--output", str(sentences)])
        self.rows = rows(sentences / "sentences.tsv")
        self.row_of = {text: at for at, text in enumerate(dict.fromkeys(row["text"] for row in self.rows))}
        n_base = sum(row["set"] == "base" for row in self.rows)
        generator = np.random.default_rng(2)
        common = generator.normal(size=WIDTH) * 3
        self.sites: dict[str, dict[str, np.ndarray]] = {}
        for slug in ("reference", "h000", "h100"):
            self.sites[slug] = {
                site: (
                    common + generator.normal(size=(len(self.row_of) if site == "embeddings" else n_base, WIDTH))
                ).astype(np.float32)
                for site in dict.fromkeys(SITES.values())
            }
        # pairs of which the expanded square keeps few digits or none
        whole = self.sites["h100"]["embeddings"]
        target, attribute = self.find("base", "target")[0], self.find("base", "positive")
        whole[attribute[0]] = whole[target]
        whole[attribute[1]] = whole[target] * np.float32(1 + 3e-7) + np.float32(1e-6)
        self.write()

    def find(self, name: str, kind: str, group: str | None = None) -> list[int]:
        return [
            self.row_of[row["text"]]
            for row in self.rows
            if row["set"] == name and row["kind"] == kind and group in (None, row["group"])
        ]

    def write(self) -> None:
        facts = {
            "dtype": "float32",
            "layer": "final",
            "final_norm": True,
            "pooling": "mean",
            "exclude_bos": False,
            "width": WIDTH,
            "tokenizer_sha256": "x",
            "sentences_sha256": sha256_file(self.folder / "sentences" / "sentences.tsv"),
            "sites": SITES,
            "left_out": {},
        }
        for name, slugs in (("reference", ["reference"]), ("audited", ["h000", "h100"])):
            for slug in slugs:
                (self.folder / name).mkdir(exist_ok=True)
                save_file(self.sites[slug], self.folder / name / f"{slug}.safetensors")
            write_json(self.folder / name / "manifest.json", facts)

    def run(self) -> pd.DataFrame:
        options = [
            part
            for name in ("sentences", "reference", "audited", "output")
            for part in (f"--{name}", str(self.folder / name))
        ]
        ablate.main(["--settings", ablate_slice(self.config, "m", "full"), *options])
        return pd.read_csv(self.folder / "output" / "delta_b.csv")

    def embeddings(self, slug: str, site: str, targets: str, attributes: str, anchors: list[int]) -> Embeddings:
        matrix = self.sites[slug][site]
        groups = dict.fromkeys(row["group"] for row in self.rows if row["set"] == targets and row["kind"] == "target")
        sets = {group: matrix[self.find(targets, "target", group)] for group in groups}
        if targets == "base":
            sets["control"] = matrix[self.find("base", "control")]
        return Embeddings(
            sets,
            matrix[self.find(attributes, "positive")],
            matrix[self.find(attributes, "negative")],
            matrix[anchors],
        )

    def delta_b(
        self,
        slug: str,
        method: str,
        anchors: list[int],
        site: str = "embeddings",
        targets: str = "base",
        attributes: str = "base",
    ) -> dict[str, float]:
        pair = [self.embeddings(name, site, targets, attributes, anchors) for name in ("reference", slug)]
        return {group: result.delta_b for group, result in METHODS[method](*pair).items()}


@pytest.fixture(scope="module")
def case(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("ablate")
    files = write_variants(root / "data" / "stimuli", folder / "variants")
    alpaca = write_records(folder / "alpaca.jsonl", many(60))
    return Case(configuration(**files, alpaca_file=str(alpaca)), folder)


@pytest.fixture(scope="module")
def table(case: Case) -> pd.DataFrame:
    return case.run()


def check(table: pd.DataFrame, expected: dict[str, float], **key: Any) -> None:
    chosen = table
    for column, value in key.items():
        chosen = chosen[chosen[column].isna() if value is None else chosen[column] == value]
    found = chosen.set_index("group")["delta_b"].to_dict()
    assert set(found) == set(expected), key
    for group, value in expected.items():
        assert abs(found[group] - value) <= 1e-8, (key, group, found[group], value)


@pytest.mark.parametrize("slug", ["h000", "h100"])
@pytest.mark.parametrize("method", ["rr", "seat"])
def test_variants_and_sites_equal_the_plain_methods(case: Case, table: pd.DataFrame, slug: str, method: str) -> None:
    anchors = case.find("base", "anchor")
    key = {"checkpoint": slug, "method": method, "seed": None, "n_anchors": 50 if method == "rr" else 0}
    for cell in ("base", "subj_v1", "subj_v2", "syn_v1", "syn_v2", "syn_v3"):
        expected = case.delta_b(slug, method, anchors, attributes="base" if cell == "base" else f"attributes_{cell}")
        check(table, expected, ablation="attributes", cell=cell, **key)
    for cell in ("base", "passive", "passive_rephrased", "syn_v1", "syn_v2", "syn_v3"):
        expected = case.delta_b(slug, method, anchors, targets="base" if cell == "base" else f"targets_{cell}")
        check(table, expected, ablation="targets", cell=cell, **key)
    for name, site in SITES.items():
        ablation, _, cell = name.partition("/")
        check(table, case.delta_b(slug, method, anchors, site=site), ablation=ablation, cell=cell, **key)


def test_anchor_cells_equal_the_plain_method_on_nested_subsets(case: Case, table: pd.DataFrame) -> None:
    sources = {"neutral": ("base", COUNTS), "words": ("anchors_words", COUNTS), "alpaca": ("anchors_alpaca", COUNTS)}
    for cell, (name, counts) in sources.items():
        held = case.find(name, "anchor")
        assert len(held) >= counts[-1]
        for seed in SEEDS:
            order = [held[at] for at in np.random.default_rng(seed).permutation(len(held))]
            for count in counts:
                expected = case.delta_b("h100", "rr", order[:count])
                key = {"checkpoint": "h100", "method": "rr", "n_anchors": count, "seed": seed}
                check(table, expected, ablation="anchors", cell=cell, **key)
    assert set(table[table["ablation"] == "anchors"]["cell"]) == set(sources)


def test_circularity_cells_equal_the_plain_method_group_by_group(case: Case, table: pd.DataFrame) -> None:
    terms = {group.id: group.terms for group in load_groups()}
    anchors = [row for row in case.rows if row["set"] == "base" and row["kind"] == "anchor"]

    def padded(text: str) -> str:
        return f" {' '.join(re.sub('[^a-z0-9]', ' ', text.lower()).split())} "

    def named(row: dict[str, str], group: str) -> bool:
        return any(padded(term) in padded(row["text"]) for term in terms.get(group, ()))

    groups = [*terms, "control"]
    tests = {
        "without_group": lambda row, group: not named(row, group),
        "leave_group_out": lambda row, group: row["group"] != group,
    }
    for cell, keep in tests.items():
        kept = {g: [case.row_of[row["text"]] for row in anchors if keep(row, g)] for g in groups}
        count = min(map(len, kept.values()))
        assert 40 < count < 50
        expected = {g: case.delta_b("h000", "rr", kept[g][:count])[g] for g in groups}
        check(table, expected, ablation="circularity", cell=cell, checkpoint="h000", n_anchors=count)
    masked = case.delta_b("h000", "rr", case.find("anchors_masked", "anchor"))
    check(table, masked, ablation="circularity", cell="masked", checkpoint="h000", n_anchors=50)
    base = case.delta_b("h000", "rr", case.find("base", "anchor"))
    check(table, base, ablation="circularity", cell="base", checkpoint="h000", n_anchors=50)


def test_every_row_is_covered_by_the_tests_above(table: pd.DataFrame) -> None:
    assert not table.duplicated(KEY).any()
    counts = table[table["checkpoint"] == "h100"].groupby(["ablation", "method"])["cell"].nunique().to_dict()
    both = {"attributes": 6, "targets": 6, "pooling": 3, "layer": 4, "bos": 2}
    expected = {(name, method): n for name, n in both.items() for method in ("rr", "seat")}
    assert counts == {**expected, ("anchors", "rr"): 3, ("circularity", "rr"): 4}
    assert list(table.columns) == ablate.COLUMNS
    assert set(table[table["ablation"] == "anchors"]["seed"]) == set(SEEDS)


def test_what_is_missing_is_recorded(case: Case, table: pd.DataFrame) -> None:
    left_out = read_json(case.folder / "output" / "manifest.json")["left_out"]
    assert left_out == {"anchors/tulu": "key 'ablations.tulu_file' names no file"}
    settings = AblationSettings(anchor_counts=[10, 50, 51], anchor_seeds=[0], run=["anchors"])
    cells, missing = plan(read_sentences(case.folder / "sentences" / "sentences.tsv"), settings, {})
    assert {(cell.cell, cell.n_anchors) for cell in cells} == {
        ("neutral", 10),
        ("neutral", 50),
        ("words", 10),
        ("alpaca", 10),
    }
    assert missing["anchors/neutral/51"] == "the source holds 50 sentences"
    assert set(missing) == {"anchors/neutral/51", *(f"anchors/{s}/{n}" for s in ("words", "alpaca") for n in (50, 51))}


def test_subsets_are_nested_and_the_same_in_every_model(case: Case) -> None:
    table = read_sentences(case.folder / "sentences" / "sentences.tsv")
    settings = case.config.ablations
    assert settings is not None
    cells = [cell for cell in plan(table, settings, SITES)[0] if cell.seed is not None]
    chosen = {(c.cell, c.seed, c.n_anchors): c.anchors(table, "muslims").tolist() for c in cells}
    for (source, seed, count), found in chosen.items():
        assert len(set(found)) == len(found) == count
        assert set(found) <= set(table.anchors[source].tolist())
        if count != COUNTS[-1]:
            assert chosen[source, seed, COUNTS[-1]][:count] == found
        assert found != chosen[source, SEEDS[0] + SEEDS[1] - seed, count]
    again = [cell for cell in plan(table, settings, SITES)[0] if cell.seed is not None]
    assert [c.anchors(table, "muslims").tolist() for c in again] == list(chosen.values())


def test_a_bad_embedding_names_checkpoint_site_and_row(case: Case, tmp_path: Path) -> None:
    other = Case(case.config, tmp_path)
    other.sites["h100"]["norm.last"][7] = 0
    other.write()
    with pytest.raises(UserError, match=r"m/full/h100: norm.last: zero, NaN or infinite vector in row 7"):
        other.run()
    other.sites["h100"]["norm.last"] = other.sites["h100"]["norm.last"][:-1]
    other.write()
    with pytest.raises(UserError, match=r"h100.safetensors: norm.last has \d+ rows for \d+ sentences"):
        other.run()
    del other.sites["h100"]["norm.last"]
    other.write()
    with pytest.raises(UserError, match=r"h100.safetensors: cannot be read"):
        other.run()
    with (tmp_path / "sentences" / "sentences.tsv").open("a") as handle:
        handle.write("base\tx\tanchor\tcontrol\t\tOne more line.\n")
    with pytest.raises(UserError, match="made from another"):
        other.run()


def test_methods_that_need_both_models_go_through_the_plain_functions(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Case(case.config, tmp_path)
    monkeypatch.setitem(METHODS, "doubled", lambda a, b: METHODS["rr"](a, b))
    assert other.config.ablations is not None
    ablations = other.config.ablations.model_copy(update={"methods": ["seat", "doubled"]})
    settings = ablate.AblateStage(model="m", regime="full", weights=[0, 1], ablations=ablations)
    table = read_sentences(tmp_path / "sentences" / "sentences.tsv")
    cells, _ = plan(table, ablations, SITES)
    found = ablate._compute(settings, cells, table, (tmp_path / "reference", tmp_path / "audited"), lambda: None)
    frame = pd.DataFrame(found, columns=ablate.COLUMNS).astype({"delta_b": float})
    chosen = frame[frame["method"] == "doubled"]
    assert set(chosen["ablation"]) == {"attributes", "targets", "pooling", "layer", "bos"}
    expected = case.delta_b("h100", "rr", case.find("base", "anchor"), targets="targets_syn_v2")
    check(chosen, expected, ablation="targets", cell="syn_v2", checkpoint="h100", n_anchors=50)


def test_the_options_of_the_shift_hold_in_every_cell(case: Case, tmp_path: Path) -> None:
    data = case.config.model_dump(mode="json")
    data["ablations"] |= {"run": ["targets"], "targets": ["passive"], "methods": ["procrustes_seat", "cka_drift"]}
    data["shift"] |= {"procrustes_fit": "all", "cka_kernel": "rbf"}
    other = Case(from_mapping(data), tmp_path)
    table = other.run()
    options: dict[str, Any] = {
        "procrustes_seat": (procrustes_shift, {"fit": "all"}),
        "cka_drift": (cka_shift, {"kernel": "rbf"}),
    }
    assert len(table) == 2 * 2 * (24 + 25), "base and passive, two checkpoints and methods; the base has a control"
    for cell, targets in (("base", "base"), ("passive", "targets_passive")):
        anchors = other.find("base", "anchor")
        pair = [other.embeddings(slug, "embeddings", targets, "base", anchors) for slug in ("reference", "h100")]
        for method, (function, option) in options.items():
            expected = {group: result.delta_b for group, result in function(*pair, **option).items()}
            plain = {group: result.delta_b for group, result in function(*pair).items()}
            # any two points are alike to CKA, and the control has two
            moved = {group: abs(plain[group] - value) for group, value in expected.items() if group != "control"}
            assert min(moved.values()) > 1e-6, method
            check(table, expected, cell=cell, method=method, checkpoint="h100")


# --- distances -------------------------------------------------------------------------------


def test_prefix_distances_equal_differences_at_any_closeness() -> None:
    generator = np.random.default_rng(0)
    left = 0.9 + 0.01 * generator.normal(size=(40, 300))
    right = 0.9 + 0.01 * generator.normal(size=(9, 300))
    for row, gap in enumerate((0.0, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3)):
        left[row] = right[row] + gap * generator.normal(size=300)
    for count, found in zip((1, 2, 50, 300), prefix_distances(left, right, [1, 2, 50, 300]), strict=True):
        expected = cdist(left[:, :count], right[:, :count])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
        assert found[0, 0] == 0.0


def test_bias_of_distances_by_hand() -> None:
    distances = np.array([[1.0, 2.0, 5.0], [3.0, 3.0, 3.0], [0.0, 0.0, 1.0]])
    groups = {"a": np.array([0, 1]), "b": np.array([2])}
    assert bias_of_distances(distances, 2, groups) == {"a": (3.5 + 0.0) / 2, "b": 1.0}


def test_unit_rows_have_length_one_and_refuse_what_has_no_direction() -> None:
    values = np.array([[3.0, 4.0], [1e-20, 0.0], [1e30, 1e30]], dtype=np.float32)
    half = math.sqrt(0.5)
    np.testing.assert_allclose(fast_unit_rows(values, "x"), [[0.6, 0.8], [1, 0], [half, half]], rtol=1e-12)
    for bad in (0.0, np.nan, np.inf):
        values[1] = bad
        with pytest.raises(ValueError, match="x: zero, NaN or infinite vector in row 1"):
            fast_unit_rows(values, "x")
