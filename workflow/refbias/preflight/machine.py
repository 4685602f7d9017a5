"""The machine: free disk against need, GPU, memory and number type."""

import os
import shutil
from pathlib import Path

from refbias.acquisition.cache import cache_root, hub_cache
from refbias.config.root import Config
from refbias.errors import UserError
from refbias.planning.estimate import card_memory_gb, needed_gb
from refbias.preflight.rows import MISSING, NOTE, OK, Row

GIGA = 1e9


def _existing(path: Path) -> Path:
    """Return the folder itself, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def disk_rows(config: Config) -> list[Row]:
    """Return free space against the plan's need, for the results and for the caches of downloads.

    Where both lie on one disk the needs add up.
    """
    try:
        results_gb, download_gb = needed_gb(config)
    except UserError as error:
        return [Row("disk", "results", NOTE, f"need unknown: {error}", "watch the free space")]
    needs: dict[int, tuple[Path, float, list[str]]] = {}
    hub = hub_cache() or Path(os.environ.get("HF_HOME", "") or Path.home() / ".cache" / "huggingface")
    places = [("results", Path("results"), results_gb), ("hub cache", hub, download_gb), ("cache", cache_root(), 0.0)]
    for name, place, gigabytes in places:
        folder = _existing(place)
        path, before, names = needs.get(folder.stat().st_dev, (folder, 0.0, []))
        needs[folder.stat().st_dev] = (path, before + gigabytes, [*names, name])
    rows = []
    for path, gigabytes, names in needs.values():
        free = shutil.disk_usage(path).free / GIGA
        found = f"{free:.0f} GB free, about {gigabytes:.0f} GB needed"
        facts = {"free_gb": round(free, 1), "needed_gb": round(gigabytes, 1)}
        if free >= gigabytes:
            rows.append(Row("disk", ", ".join(names), OK, found, facts=facts))
        else:
            mend = "free some, work in a folder on a larger disk, or move the caches (HF_HOME, REFBIAS_CACHE)"
            rows.append(Row("disk", ", ".join(names), MISSING, found, mend, facts=facts))
    return rows


def gpu_rows(config: Config) -> list[Row]:
    """Return a row for the GPU, its memory against the plan's need, and bfloat16.

    A missing GPU stops a run that asks for one (`cuda`); with `auto` it is a note.
    """
    asked = {config.compute.device}
    asked |= {settings.device for settings in (config.regimes.full, config.regimes.lora) if settings is not None}
    if asked == {"cpu"}:
        return []
    # takes two seconds, and a run on the CPU does not ask
    import torch

    if not torch.cuda.is_available():
        status = MISSING if "cuda" in asked else NOTE
        mend = "run this on the machine with the GPU, or set the keys `device` to cpu (far slower)"
        return [Row("gpu", "CUDA", status, f"no CUDA device seen by torch {torch.__version__}", mend, "compute.device")]
    rows = []
    cards = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    smallest = min(card.total_memory for card in cards) / GIGA
    names = ", ".join(f"{card.name} ({card.total_memory / GIGA:.0f} GB)" for card in cards)
    rows.append(Row("gpu", "CUDA", OK, names, facts={"cards": [card.name for card in cards]}))
    rows += memory_rows(config, smallest)
    if _wants_bf16(config):
        works = torch.cuda.is_bf16_supported(including_emulation=False)
        mend = "" if works else "set the keys `dtype` to float32, or use an Ampere card or later"
        found = "supported" if works else "not supported by this card"
        rows.append(Row("gpu", "bfloat16", OK if works else MISSING, found, mend, "compute.dtype"))
    return rows


def memory_rows(config: Config, card_gb: float) -> list[Row]:
    """Return what each kind of job needs of a card of `card_gb` GB, activations left out."""
    rows = []
    try:
        needs = card_memory_gb(config)
    except UserError as error:
        return [Row("gpu", "memory", NOTE, f"need unknown: {error}", "watch the first job")]
    for what, gigabytes in needs.items():
        found = f"needs about {gigabytes:.0f} GB and activations, the card has {card_gb:.0f} GB"
        mend = "choose another `regimes.full.memory_plan`, ready-made `endpoints`, or a larger card"
        fits = gigabytes < card_gb
        rows.append(Row("gpu", what, OK if fits else MISSING, found, "" if fits else mend))
    return rows


def _wants_bf16(config: Config) -> bool:
    parts = (config.compute, config.regimes.full, config.regimes.lora)
    return any(part is not None and part.dtype == "bfloat16" for part in parts)
