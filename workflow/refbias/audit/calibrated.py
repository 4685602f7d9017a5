"""Probabilities that a group's score rose, from a calibration that a study made."""

from collections.abc import Sequence

from refbias.calibration import apply_calibration, check_measure
from refbias.config.audit_result import (
    AuditWarning,
    CalibrationFacts,
    CheckpointResult,
    GroupResult,
    SettingsFacts,
)
from refbias.config.calibration import Calibration, EmbeddingFacts, load_calibration, settings_hash
from refbias.errors import UserError


def checked_calibration(path: str | None, settings: SettingsFacts) -> Calibration | None:
    """Return the calibration that an audit names, None where it names none; asks before any model is read.

    Parameters
    ----------
    path
        Calibration file.
    settings
        How dB will be measured.

    Raises
    ------
    UserError
        If the calibration is missing, broken, or was made for another way of measuring.
    """
    if path is None:
        return None
    calibration = load_calibration(path)
    check_measure(
        calibration,
        n_anchors=settings.stimuli.n_anchors,
        stimuli_sha256=settings.stimuli.sha256,
        method="rr",
        settings_sha256=settings_hash(_embedding_facts(settings)),
    )
    if not settings.stimuli.n_control and set(calibration.predictors) != {"delta_b"}:
        raise UserError(f"{path}: needs the group-free control, and there are no control sentences: add some")
    return calibration


def with_probabilities(
    checkpoints: Sequence[CheckpointResult], calibration: Calibration | None, settings: SettingsFacts
) -> tuple[list[CheckpointResult], CalibrationFacts]:
    """Return the checkpoints with a probability beside every group's dB, and where it comes from.

    Parameters
    ----------
    checkpoints
        Without probabilities.
    calibration
        Of `checked_calibration`; None = uncalibrated.
    settings
        How dB was measured.

    Raises
    ------
    UserError
        If the calibration was made for another way of measuring.
    """
    if calibration is None:
        return list(checkpoints), CalibrationFacts(status="uncalibrated")
    path = f"calibration of study {calibration.provenance.run}"
    study, outcome = calibration.provenance, calibration.outcome
    provenance = (
        f"probability that the {outcome.benchmark} score ({outcome.scorer}) rose by more than {outcome.threshold:g}, "
        f"from study {study.run}: {calibration.n} observations of {calibration.n_checkpoints} checkpoints, Brier skill "
        f"{calibration.brier_skill:.2f} on checkpoints left out ({calibration.kind})"
    )
    found = [_calibrated(checkpoint, calibration, settings, path) for checkpoint in checkpoints]
    return found, CalibrationFacts(status="calibrated", provenance=provenance, warnings=calibration.warnings)


def _embedding_facts(settings: SettingsFacts) -> EmbeddingFacts:
    return EmbeddingFacts(
        layer=settings.layer,
        final_norm=settings.final_norm,
        pooling=settings.pooling,
        exclude_bos=settings.exclude_bos,
    )


def _calibrated(
    checkpoint: CheckpointResult, calibration: Calibration, settings: SettingsFacts, path: str
) -> CheckpointResult:
    facts = _embedding_facts(settings)
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
