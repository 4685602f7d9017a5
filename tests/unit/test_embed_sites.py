"""Embeddings at several sites against the whole model's own report, and the stages that use them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

from refbias.artifacts import read_json
from refbias.cli import ablate, ablation_sentences, represent, represent_ablations
from refbias.cli.shift import load_embeddings
from refbias.config.ablations import AblationSettings
from refbias.config.represent import RepresentSettings
from refbias.config.root import Config, from_mapping
from refbias.config.slices import ablate_slice, ablation_sentences_slice, represent_ablations_slice, represent_slice
from refbias.embed import embed_sentences, tokenise
from refbias.embed_sites import Site, embed_sites, site_cells, site_of
from refbias.errors import UserError
from refbias.metrics import METHODS
from refbias.models import load_base, load_tokenizer
from tests.ablation_files import rows, write_variants
from tests.tiny import BOS, FAMILIES, build_tiny
from tests.unit.test_embed import TEXTS, close, hidden_states, whole_model

pytestmark = pytest.mark.usefixtures("one_thread")

POOLS = {"mean": lambda states: states.mean(axis=0), "max": lambda states: states.max(axis=0), "last": lambda s: s[-1]}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_site_equals_one_sentence_at_a_time(tiny: dict[str, Path], family: str) -> None:
    folder = tiny[family]
    tokenizer, whole = load_tokenizer(folder), whole_model(folder, family)
    sentences = tokenise(tokenizer, TEXTS)
    sites = [
        Site(layer, norm, pooling, bare)
        for layer, norm in ((0, False), (1, False), (2, False), (3, True))
        for pooling in POOLS
        for bare in (False, True)
    ]
    model = load_base(folder, dtype=torch.float32)
    found = embed_sites(model, sentences, sites, 40, bos=BOS, name=family)
    assert len(found) == len(sites)
    reports = [hidden_states(whole, list(ids)) for ids in sentences.ids]
    for site in sites:
        expected = [POOLS[site.pooling](report[site.layer][int(site.exclude_bos) :]) for report in reports]
        close(found[site.key], np.array(expected))
    # the last block's output before the norm is in no report: the single-site function is the witness
    before = embed_sites(model, sentences, [Site(3, False, "mean", False)], 1024, bos=BOS)["layer_003.mean"]
    single = embed_sentences(model, tokenizer, sentences.texts, RepresentSettings(final_norm=False))
    np.testing.assert_allclose(before, single, rtol=0, atol=1e-5)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_one_pass_serves_all_sites(tiny: dict[str, Path]) -> None:
    model, tokenizer = load_base(tiny["llama"], dtype=torch.float32), load_tokenizer(tiny["llama"])
    sentences = tokenise(tokenizer, TEXTS)
    tokens: list[int] = []
    model.layers[0].register_forward_pre_hook(lambda module, args: tokens.append(args[0].shape[0] * args[0].shape[1]))
    cells = site_cells(RepresentSettings(), AblationSettings(), 3)
    embed_sites(model, sentences, list(cells.values()), 40, bos=BOS)
    assert sum(tokens) == sentences.n_tokens


def test_cells_change_one_choice_each() -> None:
    cells = site_cells(RepresentSettings(), AblationSettings(), 3)
    assert {cell: site.key for cell, site in cells.items()} == {
        "pooling/mean": "norm.mean",
        "pooling/max": "norm.max",
        "pooling/last": "norm.last",
        "layer/final": "norm.mean",
        "layer/before_norm": "layer_003.mean",
        "layer/layer_000": "layer_000.mean",
        "layer/layer_001": "layer_001.mean",
        "layer/layer_002": "layer_002.mean",
        "bos/included": "norm.mean",
        "bos/excluded": "norm.mean.no_bos",
    }
    own = RepresentSettings(layer=2, pooling="max", exclude_bos=True)
    cells = site_cells(own, AblationSettings(layers=[1, 3], pooling=["max", "last"]), 3)
    assert site_of(own, 3).key == cells["pooling/max"].key == cells["bos/excluded"].key == "layer_002.max.no_bos"
    assert cells["layer/final"].key == "norm.max.no_bos"
    assert cells["layer/layer_003"].key == cells["layer/before_norm"].key == "layer_003.max.no_bos"
    assert cells["bos/included"].key == "layer_002.max"
    assert not site_cells(own, AblationSettings(run=["anchors"]), 3)
    with pytest.raises(UserError, match=r"'ablations.layers': 4: the model has blocks 1 to 3"):
        site_cells(own, AblationSettings(layers=[4]), 3)
    with pytest.raises(UserError, match=r"'represent.layer': 4"):
        site_of(RepresentSettings(layer=4), 3)


def test_a_non_finite_state_at_an_inner_site_names_layer_and_sentence(tiny: dict[str, Path]) -> None:
    model, tokenizer = load_base(tiny["mistral"], dtype=torch.float32), load_tokenizer(tiny["mistral"])
    model.layers[1].mlp.down_proj.weight.data[0, 0] = float("nan")
    sites = list(site_cells(RepresentSettings(), AblationSettings(), 3).values())
    with pytest.raises(UserError, match=r"m/h030: layer 2 .* sentence 'Old people"):
        embed_sites(model, tokenise(tokenizer, TEXTS[:3]), sites, 40, bos=BOS, name="m/h030")
    assert not any(module._forward_hooks for module in model.modules())


# --- the stages, one after the other ---------------------------------------------------------


def configuration(files: dict[str, str], **ablations: Any) -> Config:
    return from_mapping(
        {
            "run": "t",
            "models": {"tiny": {"source": {"kind": "local", "path": "unused"}}},
            "compute": {"device": "cpu", "dtype": "float32"},
            "stimuli": {"targets": 2, "attributes": 3, "anchors": 26, "control": 2},
            "spectrum": {"weights": [0, 1]},
            "ablations": {**files, "anchor_counts": [5, 20], "anchor_seeds": [0], **ablations},
        }
    )


def test_stages_from_sentences_to_delta_b(tiny: dict[str, Path], root: Path, tmp_path: Path) -> None:
    config = configuration(write_variants(root / "data" / "stimuli", tmp_path / "variants"))
    reference = tiny["gemma3_text"]
    ends = [build_tiny("gemma3_text", tmp_path / name, seed=seed) for name, seed in (("u", 8), ("h", 9))]
    sentences = tmp_path / "sentences"
    ablation_sentences.main(["--settings", ablation_sentences_slice(config), "--output", str(sentences)])
    models = ["--reference", str(reference)], ["--unharmful", str(ends[0]), "--harmful", str(ends[1])]
    for source, options in (("reference", models[0]), ("full", [*models[0], *models[1]])):
        settings = represent_ablations_slice(config, "tiny", source)
        where = ["--sentences", str(sentences / "sentences.tsv"), "--output", str(tmp_path / "abl" / source)]
        represent_ablations.main(["--settings", settings, *options, *where])
        where = ["--output", str(tmp_path / "plain" / source)]
        represent.main(["--settings", represent_slice(config, "tiny", source), *options, *where])
    # what the main stage embeds is a beginning of the ablations' sentences
    table = rows(sentences / "sentences.tsv")
    n_base = sum(row["set"] == "base" for row in table)
    for source, slug in (("reference", "reference"), ("full", "h000"), ("full", "h100")):
        found = load_file(tmp_path / "abl" / source / f"{slug}.safetensors")
        main = load_file(tmp_path / "plain" / source / f"{slug}.safetensors")["embeddings"]
        np.testing.assert_allclose(found["embeddings"][:n_base], main, rtol=0, atol=1e-5 * np.abs(main).max())
        assert len(found["embeddings"]) == len({row["text"] for row in table})
        assert {len(found[key]) for key in found if key != "embeddings"} == {n_base}
    facts = read_json(tmp_path / "abl" / "full" / "manifest.json")
    assert facts["sites"]["pooling/mean"] == facts["sites"]["layer/final"] == "embeddings"
    assert set(facts["sites"].values()) == set(found)
    folders = {
        "sentences": sentences,
        "reference": tmp_path / "abl" / "reference",
        "audited": tmp_path / "abl" / "full",
    }
    options = [part for name, path in folders.items() for part in (f"--{name}", str(path))]
    ablate.main(["--settings", ablate_slice(config, "tiny", "full"), *options, "--output", str(tmp_path / "dB")])
    delta_b = pd.read_csv(tmp_path / "dB" / "delta_b.csv")
    assert delta_b["delta_b"].notna().all()
    # the base cell is the run's own dB

    pair = [
        load_embeddings(tmp_path / "plain" / source, slug)
        for source, slug in (("reference", "reference"), ("full", "h100"))
    ]
    expected = METHODS["rr"](*pair)
    base = delta_b.query("ablation == 'attributes' and cell == 'base' and method == 'rr' and checkpoint == 'h100'")
    for row in base.itertuples():
        assert row.delta_b == pytest.approx(expected[row.group].delta_b, abs=1e-4)
    cells = delta_b.groupby(["ablation", "cell", "n_anchors", "method"])["delta_b"].std()
    assert (cells > 0).all()


def test_bos_is_left_out_where_the_tokenizer_puts_none(tiny: dict[str, Path], root: Path, tmp_path: Path) -> None:
    import shutil

    config = configuration({}, run=["bos", "pooling"])
    folder = tmp_path / "bare"
    shutil.copytree(tiny["llama"], folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    ablation_sentences.main(["--settings", ablation_sentences_slice(config), "--output", str(tmp_path / "s")])
    options = ["--reference", str(folder), "--sentences", str(tmp_path / "s" / "sentences.tsv")]
    settings = represent_ablations_slice(config, "tiny", "reference")
    represent_ablations.main(["--settings", settings, *options, "--output", str(tmp_path / "o")])
    facts = read_json(tmp_path / "o" / "manifest.json")
    assert facts["left_out"] == {"bos": "the tokenizer puts no BOS before a sentence"}
    assert set(facts["sites"]) == {"pooling/mean", "pooling/max", "pooling/last"}
