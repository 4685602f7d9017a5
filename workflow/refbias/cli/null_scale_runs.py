"""The fine-tunings of the null scale: what each of them needs, and the embeddings that are kept of it."""

import gc
import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from refbias.artifacts import Stage, atomic_path, read_json, sha256_file
from refbias.config.finetune import FinetuneStage
from refbias.config.models import LocalSource
from refbias.config.null_scale import NullScaleSettings, Regime
from refbias.embed import Tokenised, embed_tokens, tokenise
from refbias.errors import UserError
from refbias.finetune import finetune
from refbias.models import load_base, load_tokenizer, torch_dtype
from refbias.models.acquire import acquire
from refbias.models.files import TOKENIZER_FILES, check_directory, weight_files, weight_hashes
from refbias.resources import data_path
from refbias.splits import Example, read_split
from refbias.stimuli import Sentence, load_stimuli

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What every seed needs: the reference, the examples and the sentences of all sets, each text once."""

    settings: NullScaleSettings
    reference: Path
    weights: dict[str, str]
    examples: tuple[Example, ...]
    split_sha256: str
    sets: dict[str, list[Sentence]]
    tokens: Tokenised
    bos: int | None
    work: Path

    def fingerprint(self, regime: Regime | None = None, seed: int | None = None) -> str:
        """Return a hash over everything that the embeddings of a run depend on; of the reference's without a regime."""
        facts: dict[str, Any] = {
            "weights": self.weights,
            "tokens": self.tokens.ids,
            "represent": self.settings.represent.model_dump(mode="json"),
            "compute": self.settings.compute.model_dump(mode="json"),
        }
        if regime is not None:
            facts |= {
                "seed": seed,
                "split": self.split_sha256,
                "examples": self.settings.examples,
                "chat_format": self.settings.chat_format,
                "regime": getattr(self.settings.regimes, regime).model_dump(mode="json"),
            }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def draw(examples: Sequence[Example], n: int, seed: int) -> list[Example]:
    """Return `n` distinct examples, drawn with `seed`."""
    chosen = np.random.default_rng(seed).choice(len(examples), size=n, replace=False)
    return [examples[index] for index in chosen]


def _wanted(settings: NullScaleSettings) -> dict[str, Any]:
    """Return what the model in the work folder depends on: where it is from, its type, a user's files themselves."""
    source = settings.source
    facts: dict[str, Any] = {"source": source.model_dump(mode="json"), "dtype": settings.compute.dtype}
    if isinstance(source, LocalSource):
        folder = Path(source.path)
        names = [path.name for path in (*weight_files(folder), folder / "config.json")]
        names += [name for name in TOKENIZER_FILES if (folder / name).is_file()]
        facts["files"] = {name: sha256_file(folder / name) for name in names}
    return facts


def reference_model(settings: NullScaleSettings, given: Path | None, work: Path) -> Path:
    """Return the folder of the reference: the given one, else the source's, fetched into the work folder.

    What an earlier call fetched serves as long as the configuration asks for the same model in the same type.
    """
    if given is not None:
        check_directory(given)
        return given
    if isinstance(settings.source, LocalSource):
        check_directory(settings.source.path)
    folder, wanted = work / "model", _wanted(settings)
    manifest = folder / "manifest.json"
    if not manifest.is_file() or read_json(manifest).get("settings") != wanted:
        with Stage("acquire", wanted, folder) as stage:
            facts = acquire(settings.source, folder, settings.compute.dtype)
            stage.record(source=facts, weights_sha256=weight_hashes(folder))
    return folder


def prepare(settings: NullScaleSettings, reference: Path, work: Path) -> Plan:
    """Read the split and the sentence sets, and tokenise.

    Raises
    ------
    UserError
        If the split holds fewer examples than a seed draws, or a file is broken.
    """
    split = Path(settings.file) if settings.file else data_path("quickstart", "wildguard_neutral.jsonl")
    examples, _ = read_split(split, "unharmful")
    if settings.examples > len(examples):
        raise UserError(f"key 'examples': {settings.examples}, but {split} holds {len(examples)}: lower it")
    sets = {name: load_stimuli(chosen) for name, chosen in settings.stimuli.items()}
    texts = dict.fromkeys(sentence.text for sentences in sets.values() for sentence in sentences)
    tokenizer = load_tokenizer(reference)
    return Plan(
        settings=settings,
        reference=reference,
        weights=weight_hashes(reference),
        examples=tuple(examples),
        split_sha256=sha256_file(split),
        sets=sets,
        tokens=tokenise(tokenizer, list(texts)),
        bos=tokenizer.bos_token_id,
        work=work,
    )


def _embed(plan: Plan, weights: Path, adapter: Path | None, name: str) -> npt.NDArray[np.float32]:
    compute = plan.settings.compute
    model = load_base(weights, adapter, dtype=torch_dtype(compute.dtype), device=compute.device)
    return embed_tokens(model, plan.tokens, plan.settings.represent, bos=plan.bos, name=name)


def _tuned(plan: Plan, regime: Regime, seed: int, folder: Path) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
    """Tune with one seed and embed; the weights live as long as the embedding takes."""
    trained = folder / "trained"
    settings = FinetuneStage(
        regime=regime,
        # the rows bear the label unharmful; the split's own name is no side of a spectrum
        split="unharmful",
        full=plan.settings.regimes.full,
        lora=plan.settings.regimes.lora,
        chat_format=plan.settings.chat_format,
        file=plan.settings.file,
        seed=seed,
    )
    examples = draw(plan.examples, plan.settings.examples, seed)
    facts = finetune(settings, examples, plan.reference, trained, folder / "trainer")
    gc.collect()
    adapter = trained if regime == "lora" else None
    found = _embed(plan, plan.reference if adapter else trained, adapter, f"{regime} s{seed}")
    for part in (trained, folder / "trainer"):
        shutil.rmtree(part)
    return found, facts


def embeddings(plan: Plan, regime: Regime | None = None, seed: int | None = None) -> npt.NDArray[np.float32]:
    """Return the embeddings of the reference or of one seed's model, from the work folder where they are there.

    Parameters
    ----------
    plan
        Of the whole measurement.
    regime, seed
        Which fine-tuning; None = the reference itself.

    Returns
    -------
    numpy.ndarray
        Shape (n distinct texts, d), float32.
    """
    name = "reference" if regime is None or seed is None else f"{regime}-s{seed}"
    folder = plan.work / "runs" / name
    file, fingerprint = folder / "embeddings.safetensors", plan.fingerprint(regime, seed)
    if (folder / "manifest.json").is_file() and read_json(folder / "manifest.json")["fingerprint"] == fingerprint:
        return load_file(file)["embeddings"]
    facts: dict[str, Any] = {}
    with Stage("null-scale", {"regime": regime, "seed": seed}, folder) as stage:
        if regime is None or seed is None:
            found = _embed(plan, plan.reference, None, name)
        else:
            found, facts = _tuned(plan, regime, seed, folder)
        with atomic_path(file) as path:
            save_file({"embeddings": found}, path)
        stage.record(**facts, fingerprint=fingerprint)
    _logger.info("%s: embedded", name)
    gc.collect()
    return found
