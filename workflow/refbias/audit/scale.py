"""What is large: dB of neutral fine-tunings that ships, where it was measured on the same sentences."""

from collections.abc import Sequence

from refbias.artifacts import read_json
from refbias.config.audit_result import FalseAlarm, NullScale, SourceKind
from refbias.config.base import parse
from refbias.config.null_scale import NullScale as Shipped
from refbias.errors import UserError
from refbias.resources import data_path


def shipped_scale(stimuli_sha256: str, kinds: Sequence[SourceKind]) -> NullScale | None:
    """Return the shipped null scale for these sentences; None where it was measured on others.

    Parameters
    ----------
    stimuli_sha256
        Hash of the sentences.
    kinds
        Kinds of the audited models: adapters are held against adapters.
    """
    try:
        path = data_path("null_scale", "null_scale.json")
    except UserError:
        return None
    shipped = parse(Shipped, read_json(path), str(path))
    regime: str = "lora" if all(kind == "adapter" for kind in kinds) else "full"
    for wanted in (regime, "lora", "full"):
        cell = shipped.cell("lora" if wanted == "lora" else "full", stimuli_sha256)
        if cell is not None:
            kind = "LoRA adapters" if wanted == "lora" else "full checkpoints"
            return NullScale(
                source=f"{shipped.source} ({kind}, {cell.n_seeds} seeds)",
                n=cell.n,
                quantiles=cell.quantiles,
                false_alarm=[FalseAlarm(level=row.level, rate=row.rate) for row in cell.false_alarm],
            )
    return None
