"""What a reader of a calibration must know beside its numbers, in sentences."""

import numpy as np

from refbias.calibration.curves import Curve, LogisticCurve
from refbias.calibration.data import ShiftObservations
from refbias.config.calibration import Candidate, Measure, Nested, Outcome, Validation
from refbias.metrics import is_undirected
from refbias.stats.vectors import BoolArray, constant_rows

# below these an estimate of a probability is carried by single checkpoints or single units
FEW_CHECKPOINTS = 20
FEW_OF_A_CLASS = 20
# share of the base rate's Brier score below which two candidates are held to do equally well
CLOSE = 0.02


def warnings_of(
    data: ShiftObservations,
    positive: BoolArray,
    outcome: Outcome,
    measure: Measure,
    curve: Curve,
    chosen: Candidate,
    validation: Validation,
    transfer: Validation | None,
    separated: bool,
) -> list[str]:
    """Return the warnings of a calibration, the weightiest first.

    Parameters
    ----------
    data, positive
        The observations and whose score rose.
    outcome, measure
        What is predicted from what.
    curve, chosen, validation, transfer, separated
        The fit: the curve, its candidate, the cross-validations, and whether the predictors part the classes.
    """
    spectra = np.unique(data.spectrum).size
    found = [
        *_skill(chosen, validation),
        *_transfer(transfer),
        *_size(data, positive, spectra),
        *_shape(data, measure, curve, chosen, separated),
    ]
    if validation.n_one_class_folds:
        found.append(
            f"{validation.n_one_class_folds} of {validation.n_folds} folds had one class only to learn from and were "
            "predicted by its smoothed share."
        )
    if outcome.unit == "topic":
        found.append(
            f"A unit of {outcome.benchmark} is a topic with the mean dB of its groups; a single group's dB varies more "
            "than that, so a probability for one group is less certain than the curve says."
        )
    if outcome.scorer.startswith("standin"):
        found.append(f"Scores come from {outcome.scorer}, a stand-in: the probability is of a rise in its verdicts.")
    return found


def _skill(chosen: Candidate, validation: Validation) -> list[str]:
    judged: Candidate | Nested = validation.nested or chosen
    if judged.brier_skill <= 0:
        return [
            "On left-out checkpoints the probabilities are no better than the base rate alone (Brier "
            f"{judged.brier:.3f} against {validation.base_brier:.3f}): dB tells nothing about this score in this "
            "study, do not use them."
        ]
    found = []
    if validation.nested is None:
        found.append(
            f"The curve is the best of {len(validation.candidates)} on the very checkpoints that its errors are from, "
            "and there are too few to choose without them: skill and interval flatter."
        )
    alone = validation.control_only
    if "control" in chosen.predictors and judged.brier >= alone.brier - CLOSE * validation.base_brier:
        found.append(
            f"The control's dB alone does about as well (Brier {alone.brier:.3f} against {judged.brier:.3f}): the "
            "probability follows how far the checkpoint moved as a whole, not which group moved."
        )
    if judged.skill_low is None:
        found.append("The skill has no interval: it needs two units and two checkpoints with both classes.")
    elif judged.skill_low <= 0:
        found.append(
            f"The skill against the base rate is {judged.brier_skill:.2f}, but its 95 % interval "
            f"[{judged.skill_low:.2f}, {judged.skill_high:.2f}] reaches 0: it may be luck."
        )
    return found


def _transfer(transfer: Validation | None) -> list[str]:
    if transfer is None:
        return [
            "One spectrum only: nothing here shows that the probabilities hold for another model, another training "
            "regime or another fine-tuning."
        ]
    skill = (transfer.nested or transfer.candidates[0]).brier_skill
    if skill <= 0:
        return [
            f"Chosen and fitted on the other spectra and tried on a whole one left out, the skill is {skill:.2f}: the "
            "curve does not carry over from one model and regime to another."
        ]
    return []


def _size(data: ShiftObservations, positive: BoolArray, spectra: int) -> list[str]:
    n_checkpoints = np.unique(data.cluster).size
    found = []
    if n_checkpoints < FEW_CHECKPOINTS:
        found.append(
            f"Only {n_checkpoints} checkpoints from {spectra} spectr{'um' if spectra == 1 else 'a'}: the checkpoints "
            "of a spectrum are mixtures of the same two fine-tunings and not independent, so the study counts for "
            "fewer than it lists, and a left-out checkpoint lies near those that were seen."
        )
    for name, count in (("positives", int(positive.sum())), ("negatives", int((~positive).sum()))):
        if count < FEW_OF_A_CLASS:
            found.append(f"Only {count} {name} among {positive.size} units: the curve leans on single ones.")
    return found


def _shape(data: ShiftObservations, measure: Measure, curve: Curve, chosen: Candidate, separated: bool) -> list[str]:
    found = []
    if separated:
        found.append(
            "The predictors part the classes completely, so the slopes are set by the penalty: the curve is steeper or "
            "flatter than the data can say."
        )
    if bool(constant_rows(data.control)):
        found.append("The control's dB is the same in every checkpoint: nothing is learned about it.")
    main_slope = float(curve.slopes[0]) if isinstance(curve, LogisticCurve) else 0.0
    if main_slope > 0 and not is_undirected(measure.method):
        subject = "dB" if chosen.predictors == ["delta_b"] else "dB net of the control (at a given dB of the control)"
        found.append(
            f"The probability rises with {subject}, against the direction that dB is meant to have (below 0 = towards "
            "the negative attributes)."
        )
    if not isinstance(curve, LogisticCurve) and np.ptp(curve.predict(np.array([[-np.inf], [np.inf]]))) == 0:
        found.append("The curve is flat: every dB has the same probability.")
    return found
