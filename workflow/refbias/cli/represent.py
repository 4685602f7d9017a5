"""Stage `represent`: embed the sentences with the reference model, or with a whole spectrum in one process."""

import argparse
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.numpy import save_file

from refbias.artifacts import Stage, atomic_path, sha256_file, write_text
from refbias.config.base import parse_json
from refbias.config.represent import RepresentStage, SpectrumStage
from refbias.config.spectrum import checkpoint_slug
from refbias.embed import Tokenised, embed_tokens, tokenise
from refbias.errors import UserError
from refbias.models import Checkpoint, load_base, load_tokenizer, resolve_device, torch_dtype
from refbias.models.heap import keep_freed_memory
from refbias.spectrum import load_merged_into
from refbias.stimuli import Sentence, load_stimuli, sentence_table

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def tokenizer_hash(tokenizer: "PreTrainedTokenizerBase", sentences: Tokenised) -> str:
    """Return a SHA-256 over the vocabulary and over the token ids that it gives the sentences."""
    content = [sorted(tokenizer.get_vocab().items()), sentences.ids]
    return hashlib.sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()


def write_sentences(path: Path, sentences: Sequence[Sentence]) -> None:
    """Write ``sentences.tsv``: a line a row of the embeddings."""
    write_text(path, sentence_table(sentences))


def audited_tokenizer(settings: SpectrumStage, args: argparse.Namespace) -> "tuple[PreTrainedTokenizerBase, Path]":
    """Return the tokenizer of the audited models: a full checkpoint's own, where it has one."""
    folders = [args.unharmful, args.harmful] if settings.source == "full" else [args.reference]
    own = [folder for folder in folders if (folder / "tokenizer_config.json").is_file()]
    folder = own[0] if own else args.reference
    if len(own) == 2 and load_tokenizer(own[0]).get_vocab() != load_tokenizer(own[1]).get_vocab():
        raise UserError(f"{own[1]}: its tokenizer's vocabulary is not that of {own[0]}: use endpoints of one model")
    return load_tokenizer(folder), folder


def checkpoints(settings: SpectrumStage, args: argparse.Namespace) -> Iterator[tuple[str, "PreTrainedModel"]]:
    """Yield slug and decoder of every checkpoint; one decoder in memory, its weights replaced in place."""
    dtype, device = torch_dtype(settings.compute.dtype), settings.compute.device
    if settings.source == "reference":
        yield "reference", load_base(args.reference, dtype=dtype, device=device)
        return
    full = settings.source == "full"
    model = load_base(args.unharmful if full else args.reference, dtype=dtype, device=device)
    if full:
        first, last = Checkpoint(args.unharmful), Checkpoint(args.harmful)
    else:
        first, last = Checkpoint(args.reference, args.unharmful), Checkpoint(args.reference, args.harmful)
    for weight in settings.weights:
        load_merged_into(model, first, last, weight, settings.merge_dtype)
        yield checkpoint_slug(weight), model


def _represent(settings: RepresentStage, args: argparse.Namespace) -> dict[str, Any]:
    """Write the embeddings; return what the manifest says of them."""
    sentences = load_stimuli(settings.stimuli)
    tokenizer, folder = audited_tokenizer(settings, args)
    tokens = tokenise(tokenizer, [sentence.text for sentence in sentences])
    write_sentences(args.output / "sentences.tsv", sentences)
    seconds, slugs, width = 0.0, [], 0
    for slug, model in checkpoints(settings, args):
        start = time.perf_counter()
        name = f"{settings.model}/{settings.source}/{slug}"
        found = embed_tokens(model, tokens, settings.represent, bos=tokenizer.bos_token_id, name=name)
        seconds += time.perf_counter() - start
        with atomic_path(args.output / f"{slug}.safetensors") as path:
            save_file({"embeddings": found}, path)
        slugs.append(slug)
        width = found.shape[1]
    return {
        **settings.represent.model_dump(mode="json"),
        "model": settings.model,
        "source": settings.source,
        "checkpoints": slugs,
        "n_sentences": len(sentences),
        "n_distinct": len(tokens.texts),
        "n_tokens": tokens.n_tokens,
        "width": width,
        "dtype": settings.compute.dtype,
        "device": resolve_device(settings.compute.device),
        "threads": torch.get_num_threads(),
        "embed_seconds": round(seconds, 3),
        "tokens_per_second": round(tokens.n_tokens * len(slugs) / seconds, 1),
        "tokenizer": folder.name,
        "tokenizer_sha256": tokenizer_hash(tokenizer, tokens),
        "sentences_sha256": sha256_file(args.output / "sentences.tsv"),
    }


def spectrum_parser(stage: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of a stage that walks over a reference or a spectrum."""
    parser = argparse.ArgumentParser(prog=f"refbias {stage}", description=description)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration.")
    parser.add_argument("--reference", required=True, type=Path, help="Folder of the reference model.")
    parser.add_argument("--unharmful", type=Path, help="Folder of the unharmful endpoint (checkpoint or adapter).")
    parser.add_argument("--harmful", type=Path, help="Folder of the harmful endpoint (checkpoint or adapter).")
    parser.add_argument("--output", required=True, type=Path, help="Folder for embeddings and manifest.")
    return parser


def spectrum_inputs(settings: SpectrumStage, args: argparse.Namespace) -> dict[str, Path]:
    """Return role -> manifest of the folders that the stage reads, where they have one.

    Raises
    ------
    UserError
        If a spectrum is asked for without its two endpoints.
    """
    roles = ["reference"] if settings.source == "reference" else ["reference", "unharmful", "harmful"]
    for role in roles:
        if getattr(args, role) is None:
            raise UserError(f"--{role}: missing: the spectrum {settings.source!r} lies between two endpoints")
    manifests = {role: getattr(args, role) / "manifest.json" for role in roles}
    return {role: path for role, path in manifests.items() if path.is_file()}


def main(argv: Sequence[str]) -> None:
    """Write ``<checkpoint>.safetensors`` for every checkpoint, ``sentences.tsv`` and the manifest.

    Raises
    ------
    UserError
        If a spectrum is asked for without its two endpoints.
    """
    args = spectrum_parser("represent", __doc__).parse_args(argv)
    settings = parse_json(RepresentStage, args.settings, "--settings")
    inputs = spectrum_inputs(settings, args)
    keep_freed_memory()
    with Stage("represent", settings.model_dump(mode="json"), args.output, inputs) as stage:
        stage.record(**_represent(settings, args))
