"""Stage `represent`: embed the sentences with the reference model, or with a whole spectrum in one process."""

import argparse
import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
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
from refbias.stream import between, can_stream, stream_embeddings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LOG = logging.getLogger(__name__)


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


def endpoints(settings: SpectrumStage, args: argparse.Namespace) -> tuple[Checkpoint, Checkpoint]:
    """Return the two ends of a spectrum: full checkpoints, or adapters on the reference."""
    if settings.source == "full":
        return Checkpoint(args.unharmful), Checkpoint(args.harmful)
    return Checkpoint(args.reference, args.unharmful), Checkpoint(args.reference, args.harmful)


def checkpoints(settings: SpectrumStage, args: argparse.Namespace) -> Iterator[tuple[str, "PreTrainedModel"]]:
    """Yield slug and decoder of every checkpoint; one decoder in memory, its weights replaced in place."""
    dtype, device = torch_dtype(settings.compute.dtype), settings.compute.device
    if settings.source == "reference":
        yield "reference", load_base(args.reference, dtype=dtype, device=device)
        return
    first, last = endpoints(settings, args)
    model = load_base(first.weights, dtype=dtype, device=device)
    for weight in settings.weights:
        load_merged_into(model, first, last, weight, settings.merge_dtype)
        yield checkpoint_slug(weight), model


def streams(settings: RepresentStage, args: argparse.Namespace) -> bool:
    """Tell whether the checkpoints go through the layers together; a notice says why a spectrum's do not."""
    if settings.source == "reference" or settings.represent.forward == "whole":
        return False
    reason = can_stream(endpoints(settings, args)[0].weights)
    if reason is not None:
        LOG.warning("%s/%s: %s: whole models are embedded with", settings.model, settings.source, reason)
    return reason is None


def embeddings(
    settings: RepresentStage, args: argparse.Namespace, tokens: Tokenised, bos: int | None, streamed: bool
) -> Iterator[tuple[str, npt.NDArray[np.float32], float]]:
    """Yield slug, embeddings and seconds of every checkpoint; reading and merging weights does not count."""
    name = f"{settings.model}/{settings.source}"
    if not streamed:
        for slug, model in checkpoints(settings, args):
            start = time.perf_counter()
            found = embed_tokens(model, tokens, settings.represent, bos=bos, name=f"{name}/{slug}")
            yield slug, found, time.perf_counter() - start
        return
    first, last = endpoints(settings, args)
    result = stream_embeddings(
        [between(checkpoint_slug(weight), first, last, weight) for weight in settings.weights],
        tokens,
        settings.represent,
        bos=bos,
        dtype=torch_dtype(settings.compute.dtype),
        device=settings.compute.device,
        name=name,
        merge_dtype=settings.merge_dtype,
    )
    seconds = result.seconds["compute"] + result.seconds["spill"]
    for slug, layers in result.embeddings.items():
        yield slug, layers[settings.represent.layer], seconds / len(result.embeddings)


def _represent(settings: RepresentStage, args: argparse.Namespace) -> dict[str, Any]:
    """Write the embeddings; return what the manifest says of them."""
    sentences = load_stimuli(settings.stimuli)
    tokenizer, folder = audited_tokenizer(settings, args)
    tokens = tokenise(tokenizer, [sentence.text for sentence in sentences])
    write_sentences(args.output / "sentences.tsv", sentences)
    seconds, slugs, width = 0.0, [], 0
    streamed = streams(settings, args)
    for slug, found, spent in embeddings(settings, args, tokens, tokenizer.bos_token_id, streamed):
        with atomic_path(args.output / f"{slug}.safetensors") as path:
            save_file({"embeddings": found}, path)
        seconds += spent
        slugs.append(slug)
        width = found.shape[1]
    return {
        **settings.represent.model_dump(mode="json"),
        "forward": "streamed" if streamed else "whole",
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
