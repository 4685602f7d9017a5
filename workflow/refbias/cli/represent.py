"""Embed the sentences with a reference model, or with every checkpoint of a spectrum in one process.

Of a spectrum the model is loaded once; each checkpoint's weights are then computed in memory, tensor
by tensor, from the two endpoints, so that no merged checkpoint has to exist.
"""

import argparse
import hashlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refbias.artifacts import Stage, atomic_path, sha256_file, write_rows
from refbias.config.base import parse_json
from refbias.config.represent import RepresentStage
from refbias.config.spectrum import checkpoint_slug
from refbias.embed import embed_tokens, tokenise
from refbias.errors import UserError
from refbias.models import Checkpoint, load_base, load_tokenizer, resolve_device, torch_dtype
from refbias.models.heap import keep_freed_memory
from refbias.spectrum import load_merged_into
from refbias.stimuli import load_stimuli

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEADER = ["id", "kind", "group", "text"]


def endpoints(
    reference: Path, unharmful: Path | None, harmful: Path | None, source: str
) -> tuple[Checkpoint, Checkpoint]:
    """Return the two endpoints of a spectrum.

    Raises
    ------
    UserError
        If one is not named.
    """
    if unharmful is None or harmful is None:
        raise UserError(f"--unharmful and --harmful: both are needed to embed the spectrum {source!r}")
    if source == "lora":
        return Checkpoint(reference, unharmful), Checkpoint(reference, harmful)
    return Checkpoint(unharmful), Checkpoint(harmful)


def checkpoints(settings: RepresentStage, options: argparse.Namespace) -> "Iterator[tuple[str, PreTrainedModel]]":
    """Yield slug and model of every checkpoint; the same model object with other weights each time."""
    dtype = torch_dtype(settings.compute.dtype)
    model = load_base(options.reference, dtype=dtype, device=resolve_device(settings.compute.device))
    if settings.source == "reference":
        yield "reference", model
        return
    unharmful, harmful = endpoints(options.reference, options.unharmful, options.harmful, settings.source)
    for weight in settings.weights:
        load_merged_into(model, unharmful, harmful, weight, settings.merge_dtype)
        yield checkpoint_slug(weight), model


def tokenizer_hash(ids: tuple[tuple[int, ...], ...]) -> str:
    """Return a hash of what the tokenizer makes of the sentences: two that agree here are one for dB."""
    return hashlib.sha256(repr(ids).encode()).hexdigest()


def main(argv: list[str]) -> None:
    """Write ``<checkpoint>.safetensors`` for every checkpoint, ``sentences.tsv`` and the manifest."""
    parser = argparse.ArgumentParser(prog="refbias represent", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--reference", type=Path, required=True, help="folder of the reference model")
    parser.add_argument("--unharmful", type=Path, help="folder of the unharmful endpoint")
    parser.add_argument("--harmful", type=Path, help="folder of the harmful endpoint")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(argv)
    settings = parse_json(RepresentStage, options.settings, "--settings")
    named = {"reference": options.reference, "unharmful": options.unharmful, "harmful": options.harmful}
    inputs = {
        role: path / "manifest.json" for role, path in named.items() if path and (path / "manifest.json").is_file()
    }
    sentences = load_stimuli(settings.stimuli)
    with Stage("represent", settings.model_dump(mode="json"), options.output, inputs) as stage:
        keep_freed_memory()
        facts = embed_all(settings, options, [sentence.text for sentence in sentences])
        rows = [[sentence.id, sentence.kind, sentence.group, sentence.text] for sentence in sentences]
        write_rows(options.output / "sentences.tsv", HEADER, rows, delimiter="\t")
        stage.record(**facts, sentences_sha256=sha256_file(options.output / "sentences.tsv"))


def embed_all(settings: RepresentStage, options: argparse.Namespace, texts: list[str]) -> Mapping[str, Any]:
    """Embed `texts` with every checkpoint, write the embeddings, return the facts for the manifest."""
    import torch
    from safetensors.numpy import save_file

    tokenizer = load_tokenizer(options.reference)
    tokenised = tokenise(tokenizer, texts)
    seconds, width, slugs = 0.0, 0, []
    for slug, model in checkpoints(settings, options):
        start = time.perf_counter()
        name = f"{settings.model} {settings.source} {slug}"
        matrix = embed_tokens(model, tokenised, settings.represent, bos=tokenizer.bos_token_id, name=name)
        seconds += time.perf_counter() - start
        with atomic_path(options.output / f"{slug}.safetensors") as part:
            save_file({"embeddings": matrix}, part)
        slugs.append(slug)
        width = int(matrix.shape[1])
    return {
        "model": settings.model,
        "checkpoints": slugs,
        "n_sentences": len(texts),
        "n_tokens": tokenised.n_tokens,
        "width": width,
        "layer": settings.represent.layer,
        "final_norm": settings.represent.final_norm,
        "pooling": settings.represent.pooling,
        "exclude_bos": settings.represent.exclude_bos,
        "dtype": settings.compute.dtype,
        "device": resolve_device(settings.compute.device),
        "threads": torch.get_num_threads(),
        "tokens_per_second": round(len(slugs) * tokenised.n_tokens / seconds, 1),
        "tokenizer_sha256": tokenizer_hash(tokenised.ids),
    }
