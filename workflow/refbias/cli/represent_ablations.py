"""Stage `represent_ablations`: embed the sentences of all ablations, a whole spectrum in one process.

Every distinct sentence is embedded as the run embeds (key ``embeddings``); the run's own sentences are
read at the other sites too (pooling, layer, norm, BOS), from the same forward passes, one key a site.
At width 4096 in float32 a sentence takes 16 kB a site. With the full sets (about 13,500 distinct
sentences, 2,450 of them the base's) ``embeddings`` takes 220 MB and each other site 40 MB: with a
sweep of 32 layers and 5 sites beside it 1.6 GB a checkpoint, 13 GB for a reference and 7 checkpoints.
`ablations.layers` names fewer layers; nothing else is large.

Whole models are merged and embedded with here, not streamed layer by layer: a streamed pass pools in one way, so that
the sites of one forward pass would take a pass for each pooling and treatment of BOS.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save_file

from refbias.ablations.table import WHOLE, read_sentences
from refbias.artifacts import Stage, atomic_path, sha256_file
from refbias.cli.represent import audited_tokenizer, checkpoints, spectrum_inputs, spectrum_parser, tokenizer_hash
from refbias.config.ablations import RepresentAblationsStage
from refbias.config.base import parse_json
from refbias.embed import Tokenised, decoder_blocks, embed_tokens, tokenise
from refbias.embed_sites import Site, embed_sites, site_cells, site_of
from refbias.models import resolve_device
from refbias.models.heap import keep_freed_memory

if TYPE_CHECKING:
    from argparse import Namespace

    from transformers import PreTrainedModel


def _parts(tokens: Tokenised, n_base: int) -> tuple[Tokenised, Tokenised]:
    """Cut the distinct sentences into the base's and the others."""
    cut = slice(0, n_base), slice(n_base, None)
    base, rest = (Tokenised(tokens.texts[at], tokens.ids[at], tuple(range(len(tokens.ids[at])))) for at in cut)
    return base, rest


def _embed(
    model: "PreTrainedModel",
    parts: tuple[Tokenised, Tokenised],
    sites: Sequence[Site],
    settings: RepresentAblationsStage,
    bos: int | None,
    name: str,
) -> dict[str, npt.NDArray[np.float32]]:
    """Return key -> embeddings; the first of `sites` is the run's own."""
    found = embed_sites(model, parts[0], sites, settings.represent.token_budget, bos=bos, name=name)
    whole = found.pop(sites[0].key)
    if parts[1].texts:
        others = embed_tokens(model, parts[1], settings.represent, bos=bos, name=f"{name}, other sentences")
        whole = np.concatenate([whole, others])
    return {WHOLE: whole, **found}


def _represent(settings: RepresentAblationsStage, args: "Namespace") -> dict[str, Any]:
    """Write the embeddings; return what the manifest says of them."""
    table = read_sentences(args.sentences)
    tokenizer, folder = audited_tokenizer(settings, args)
    bos = tokenizer.bos_token_id
    tokens = tokenise(tokenizer, table.texts)
    parts = _parts(tokens, table.n_base)
    left_out: dict[str, str] = {}
    cells: dict[str, Site] = {}
    slugs, width, base = [], 0, ""
    for slug, model in checkpoints(settings, args):
        n_layers = len(decoder_blocks(model))
        cells = site_cells(settings.represent, settings.ablations, n_layers)
        if "bos" in settings.ablations.run and any(ids[0] != bos for ids in parts[0].ids):
            left_out["bos"] = "the tokenizer puts no BOS before a sentence"
            cells = {cell: site for cell, site in cells.items() if not cell.startswith("bos/")}
        own = site_of(settings.represent, n_layers)
        base = own.key
        name = f"{settings.model}/{settings.source}/{slug}"
        found = _embed(model, parts, [own, *cells.values()], settings, bos, name)
        with atomic_path(args.output / f"{slug}.safetensors") as path:
            save_file(found, path)
        slugs.append(slug)
        width = found[WHOLE].shape[1]
    return {
        **settings.represent.model_dump(mode="json"),
        "model": settings.model,
        "source": settings.source,
        "checkpoints": slugs,
        "sites": {cell: WHOLE if site.key == base else site.key for cell, site in cells.items()},
        "left_out": left_out,
        "n_sentences": len(table.texts),
        "n_distinct": len(tokens.texts),
        "n_base": table.n_base,
        "n_tokens": tokens.n_tokens,
        "width": width,
        "dtype": settings.compute.dtype,
        "device": resolve_device(settings.compute.device),
        "threads": torch.get_num_threads(),
        "tokenizer": folder.name,
        "tokenizer_sha256": tokenizer_hash(tokenizer, tokens),
        "sentences_sha256": sha256_file(args.sentences),
    }


def main(argv: Sequence[str]) -> None:
    """Write ``<checkpoint>.safetensors`` for every checkpoint, and the manifest.

    Raises
    ------
    UserError
        If a spectrum is asked for without its two endpoints.
    """
    parser = spectrum_parser("represent_ablations", __doc__)
    parser.add_argument("--sentences", required=True, type=Path, help="sentences.tsv of the stage ablation_sentences.")
    args = parser.parse_args(argv)
    settings = parse_json(RepresentAblationsStage, args.settings, "--settings")
    inputs = {**spectrum_inputs(settings, args), "sentences": args.sentences}
    keep_freed_memory()
    with Stage("represent_ablations", settings.model_dump(mode="json"), args.output, inputs) as stage:
        stage.record(**_represent(settings, args))
