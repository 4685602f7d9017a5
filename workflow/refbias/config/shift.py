"""How the shift dB is computed from embeddings."""

from typing import Literal

from pydantic import Field

from refbias.config.base import Strict

Method = Literal["rr", "seat", "procrustes_seat", "cka_drift"]
ProcrustesFit = Literal["anchors", "all"]
CkaKernel = Literal["linear", "rbf"]


class ShiftSettings(Strict):
    """Methods and resampling of the shift dB (paper, eq. 2-7)."""

    methods: list[Method] = Field(
        default=["rr", "seat", "procrustes_seat", "cka_drift"],
        min_length=1,
        description="RR and the baselines beside it.",
    )
    procrustes_fit: ProcrustesFit = Field(
        default="anchors", description="Sentences on which Procrustes-SEAT fits its orthogonal map."
    )
    cka_kernel: CkaKernel = Field(
        default="linear", description="Kernel of the CKA drift; `rbf` has the median distance as its width."
    )
    n_resamples: int = Field(default=2000, ge=100, description="Bootstrap resamples over target sentences.")


class ShiftStage(Strict):
    """Slice of the configuration that the stage `shift` sees."""

    shift: ShiftSettings
    seed: int
    weights: list[float]
