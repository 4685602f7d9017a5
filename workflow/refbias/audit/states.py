"""The reference's states, from the cache where they are there, else computed and kept."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from refbias import __version__
from refbias.audit import store
from refbias.audit.embed import Cost, Layer, Reading, States, embed_together
from refbias.audit.identity import identity
from refbias.audit.sources import Source
from refbias.audit.tokens import Tokens
from refbias.errors import UserError

LOG = logging.getLogger(__name__)
_FILE = "states.safetensors"
_FINAL = "final"


def cache_key(source: Source, tokens: Tokens, reading: Reading) -> str:
    """Return the key of a model's states: all that their numbers depend on."""
    facts: dict[str, Any] = {
        "format": 1,
        "version": __version__,
        "model": identity(source),
        "tokens": tokens.sha256,
        "represent": reading.represent.model_dump(mode="json"),
        "layers": reading.layers,
        "dtype": reading.dtype,
        "device": reading.device,
    }
    return store.key_of(facts)


def _read(key: str) -> States | None:
    place = store.find("embeddings", key)
    if place is None:
        return None
    try:
        found = load_file(place / _FILE)
        return {_layer(name): states for name, states in found.items()}
    except (SafetensorError, OSError, ValueError) as error:
        LOG.warning("%s: damaged (%s): computed again", place, error)
        for entry in store.entries():
            if entry.key == key:
                store.remove(entry)
        return None


def _layer(name: str) -> Layer:
    return _FINAL if name == _FINAL else int(name)  # type: ignore[return-value]


def write_states(states: States, path: Path) -> None:
    """Write states as safetensors, a tensor a layer, named by its number or ``final``.

    Raises
    ------
    OSError
        If they cannot be written, as on a full disk.
    """
    try:
        save_file({str(layer): found for layer, found in states.items()}, path)
    except SafetensorError as error:
        raise store.as_os_error(error) from None


def _keep(key: str, states: States, source: Source, tokens: Tokens) -> None:
    facts = {"name": source.name, "spec": source.spec, "layers": len(states), "sentences": len(tokens.sentences.row)}
    try:
        with store.writing("embeddings", key, facts) as folder:
            write_states(states, folder / _FILE)
    except (UserError, OSError, SafetensorError) as error:
        # the audit does not need it; the next one computes the reference again
        LOG.warning("the reference's states are not kept: %s", error)


def all_states(
    reference: tuple[Source, Tokens],
    audited: Sequence[tuple[Source, Tokens]],
    reading: Reading,
    use_cache: bool,
    cost: Cost,
) -> tuple[States, list[States], bool]:
    """Return the states of the reference and of every audited model.

    A model with the reference's weights and tokens is not computed a second time.

    Parameters
    ----------
    reference, audited
        Models with distinct names, and their tokens.
    reading
        Layers, number type, device.
    use_cache
        Look for the reference's states in the cache, and keep them there.
    cost
        Receives seconds and tokens.

    Returns
    -------
    tuple
        States of the reference, of each audited model, and whether the reference's came from the cache.

    Raises
    ------
    UserError
        As `embed_together`.
    """
    key = cache_key(*reference, reading)
    own = _read(key) if use_cache else None
    cached = own is not None
    keys = [cache_key(source, tokens, reading) for source, tokens in audited]
    waiting = [] if own is not None else [reference]
    waiting += [pair for pair, other in zip(audited, keys, strict=True) if other != key]
    found: dict[str, States] = {}
    for tokens in {id(tokens): tokens for _, tokens in waiting}.values():
        members = [source for source, theirs in waiting if theirs is tokens]
        found |= embed_together(members, tokens.sentences, reading, bos=tokens.bos, label="models", cost=cost)
    if own is None:
        own = found.pop(reference[0].name)
        if use_cache:
            _keep(key, own, *reference)
    return own, [found.get(source.name, own) for source, _ in audited], cached


def of_part(reading: Reading, dtype: str) -> Reading:
    """Return the reading of the layer that dB is about alone, in another number type.

    Layers are then read as they are wanted: a few sentences leave little to compute meanwhile, and float32 needs the
    memory.
    """
    return replace(reading, dtype=dtype, layers="one", read_ahead=False)
