"""What an audit does not show, in sentences that go with every result."""

from refbias.config.audit import AuditSettings
from refbias.config.audit_result import CalibrationFacts

_ALWAYS = (
    "dB compares sentence embeddings. It does not show how the audited model answers: a shift can be there without any "
    "change of behaviour, and behaviour can change without a shift.",
    "dB is relative to the reference: a bias that both models share does not appear.",
    "The result speaks of these sentences. Other groups, wordings, languages and topics are not covered.",
    "Intervals and tests cover the choice of target and attribute sentences; they do not cover other training seeds, "
    "anchors or kinds of sentences.",
    "Values of dB are comparable at the same number of anchors, layer and pooling alone.",
    "A model that was trained to keep dB small may keep its bias where dB does not look.",
)


def limits_of(
    settings: AuditSettings, dtype: str, scale_note: str, calibration: CalibrationFacts, n_checkpoints: int
) -> list[str]:
    """Return the limits of one audit.

    Parameters
    ----------
    settings
        The audit.
    dtype
        Number type that was used.
    scale_note
        What there is to say how large dB is (`refbias.audit.scale.shipped_scale`).
    calibration
        What there is to say how likely a change of behaviour is.
    n_checkpoints
        Audited checkpoints.
    """
    found = list(_ALWAYS)
    if n_checkpoints > 1:
        found.append(
            f"p is adjusted over the groups of each checkpoint (Holm), not over the {n_checkpoints} checkpoints: the "
            "more of them are tested, the likelier one of them stands out by chance alone."
        )
    if {"procrustes_seat", "cka_drift"} & set(settings.chosen_methods()):
        found.append("The intervals of Procrustes-SEAT and CKA drift cover the target sentences alone.")
    if settings.cross_family:
        found.append(
            "Reference and audited model may differ in tokenizer, vocabulary or width: their shift holds the "
            "difference between the families too, not a fine-tuning's alone."
        )
    if dtype != "float32" and not settings.dtype_check:
        found.append(f"Computed in {dtype}; how much dB changes against float32 was not measured.")
    found.append(scale_note)
    if calibration.status == "uncalibrated":
        found.append("Uncalibrated: no probability that the model's outputs changed can be given.")
    return found
