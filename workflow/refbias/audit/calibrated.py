"""Probabilities that a group's score rose, from a calibration that a study made."""

from collections.abc import Sequence

from refbias.calibration import apply_calibration
from refbias.config.audit_result import (
    AuditWarning,
    CalibrationFacts,
    CheckpointResult,
    GroupResult,
    SettingsFacts,
)
from refbias.config.calibration import Calibration, EmbeddingFacts, load_calibration, settings_hash
from refbias.errors import UserError


def with_probabilities(
    checkpoints: Sequence[CheckpointResult], path: str | None, settings: SettingsFacts
) -> tuple[list[CheckpointResult], CalibrationFacts]:
    """Return the checkpoints with a probability beside every group's dB, and where it comes from.

    Parameters
    ----------
    checkpoints
        Without probabilities.
    path
        Calibration file; None = uncalibrated.
    settings
        How dB was measured.

    Raises
    ------
    UserError
        If the calibration is broken, or was made for another way of measuring.
    """
    if path is None:
        return list(checkpoints), CalibrationFacts(status="uncalibrated")
    calibration = load_calibration(path)
    study, outcome = calibration.provenance, calibration.outcome
    provenance = (
        f"probability that the {outcome.benchmark} score ({outcome.scorer}) rose by more than {outcome.threshold:g}, "
        f"from study {study.run}: {calibration.n} observations of {calibration.n_checkpoints} checkpoints, Brier skill "
        f"{calibration.brier_skill:.2f} on checkpoints left out ({calibration.kind})"
    )
    found = [_calibrated(checkpoint, calibration, settings, path) for checkpoint in checkpoints]
    return found, CalibrationFacts(status="calibrated", provenance=provenance, warnings=calibration.warnings)


def _calibrated(
    checkpoint: CheckpointResult, calibration: Calibration, settings: SettingsFacts, path: str
) -> CheckpointResult:
    facts = EmbeddingFacts(
        layer=settings.layer,
        final_norm=settings.final_norm,
        pooling=settings.pooling,
        exclude_bos=settings.exclude_bos,
    )
    groups: list[GroupResult] = []
    outside: list[str] = []
    for group in checkpoint.groups:
        if group.delta_b is None:
            raise UserError(f"{path}: {checkpoint.name}: group {group.group} has no dB to calibrate")
        found = apply_calibration(
            calibration,
            delta_b=group.delta_b,
            net_of_control=group.net_of_control,
            control=None if checkpoint.control is None else checkpoint.control.delta_b,
            n_anchors=settings.stimuli.n_anchors,
            stimuli_sha256=settings.stimuli.sha256,
            method=group.method,
            settings_sha256=settings_hash(facts),
        )
        groups.append(group.model_copy(update={"probability": found.value}))
        outside += [group.group] if found.extrapolated else []
    # what speaks against the probabilities stands beside them, not in the calibration's file alone
    warnings = [
        *checkpoint.warnings,
        *(AuditWarning(code="calibration", sentence=f"Calibration: {text}") for text in calibration.warnings),
    ]
    if outside:
        names = ", ".join(outside[:5]) + (f" and {len(outside) - 5} more" if len(outside) > 5 else "")
        warnings.append(
            AuditWarning(
                code="extrapolated",
                sentence=f"dB of {names} lies outside of what the calibration was fitted on: the probability there is "
                "a guess.",
            )
        )
    return checkpoint.model_copy(update={"groups": groups, "warnings": warnings})
