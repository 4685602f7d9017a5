"""What the statistics of an audit hand over: plain frozen records, a number that cannot be had being NaN."""

from dataclasses import dataclass
from typing import Literal

from refbias.metrics.vectors import FloatArray

Method = Literal["rr", "seat"]
Level = Literal["none", "weak", "clear", "control", "collapse", "undefined"]
WarningCode = Literal[
    "control_moved", "collapse", "expansion", "tokenizers_differ", "few_sentences", "few_anchors", "anchors_disagree"
]


@dataclass(frozen=True)
class GroupEvidence:
    """dB of one target group and what speaks for and against it.

    Attributes
    ----------
    group : str
        Target group, or the name of the control.
    n_targets : int
        Target sentences.
    delta_b : float
        dB (eq. 7), in units of the method's association; below 0 is a move towards the negative attributes.
    ci_low, ci_high : float
        Interval over target and attribute sentences (`refbias.evidence.interval`); NaN with fewer than two of either.
    p_value : float
        Two-sided permutation p over the attribute labels (`refbias.evidence.permutation`).
    p_holm : float
        The same after Holm's correction over the groups; the control is a family of its own.
    beyond_scale : float
        What remains of dB when a common change of scale is taken off (`refbias.evidence.collapse`): the value nearest
        to 0 over the ways of measuring that scale, 0 where they disagree about the sign.
    p_beyond_scale : float
        Holm's p of what remains, the largest over those ways and dB as it stands.
    s_plus, s_minus : float
        Mean change of the association with the positive and with the negative attributes; dB is their difference.
    b_reference, b_audited : float
        Bias of the group in either model.
    net_of_control, net_ci_low, net_ci_high : float
        dB less the control's, with an interval that draws the same attributes for both; NaN without a control.
    net_joint_low, net_joint_high : float
        The same interval made so wide that it holds for all groups at once (`refbias.evidence.interval`): the
        probability that any group's misses is about 1 - level. Verdicts use this one.
    null_percentile : float
        Percentage, 0 to 100, of the random-attribute draws with a smaller ``|dB|``; NaN where there are not enough
        neutral sentences to draw from.
    effect_size : float
        dB over the standard deviation (ddof 1) of all attributes' mean changes, as WEAT's d; 0 where nothing changed.
    jackknife_low, jackknife_high : float
        Smallest and largest dB over random halves of the anchors, times ``sqrt(m / (m // 2))`` to stand beside the
        dB of all m anchors; NaN for a method without anchors.
    """

    group: str
    n_targets: int
    delta_b: float
    ci_low: float
    ci_high: float
    p_value: float
    p_holm: float
    beyond_scale: float
    p_beyond_scale: float
    s_plus: float
    s_minus: float
    b_reference: float
    b_audited: float
    net_of_control: float
    net_ci_low: float
    net_ci_high: float
    net_joint_low: float
    net_joint_high: float
    null_percentile: float
    effect_size: float
    jackknife_low: float
    jackknife_high: float


@dataclass(frozen=True)
class CollapseMeasures:
    """How the common scale of the representations changed, audited over reference; 1 is no change.

    Attributes
    ----------
    distance_ratio : float
        Mean distance between target and attribute sentences (RR: Euclidean between relative representations; SEAT:
        1 - cosine).
    centroid_ratio : float
        Distance between the centroids of the positive and of the negative attributes, freed of the part that finite
        sets have by chance; NaN where the reference does not tell the two sets apart.
    slope : float
        Regression slope of the audited on the reference associations within a target sentence.
    mean_cosine_reference, mean_cosine_audited : float
        Mean cosine between two different attribute sentences in either model; near 1 all sentences look alike.
    """

    distance_ratio: float
    centroid_ratio: float
    slope: float
    mean_cosine_reference: float
    mean_cosine_audited: float


@dataclass(frozen=True)
class AuditWarning:
    """A reason to read the numbers with care: a code for programs and a sentence for people."""

    code: WarningCode
    sentence: str


@dataclass(frozen=True)
class Overall:
    """Mean dB over the groups, each counting the same, with its interval over target and attribute sentences."""

    delta_b: float
    ci_low: float
    ci_high: float


@dataclass(frozen=True)
class AuditEvidence:
    """All that one method says about one audited model.

    Attributes
    ----------
    method : str
        ``rr`` or ``seat``.
    groups : tuple of GroupEvidence
        In the reference's order, without the control.
    control : GroupEvidence or None
        The group-free control.
    overall : Overall
        Mean over the groups.
    collapse : CollapseMeasures
        Change of the common scale.
    warnings : tuple of AuditWarning
        Each code at most once.
    n_positive, n_negative, n_anchors : int
        Attribute sentences and anchors; 0 anchors for a method without.
    n_permutations : int
        Divisions of the attributes that were drawn at most.
    level : float
        Coverage of the intervals; 1 - level is the error rate that verdicts use.
    """

    method: Method
    groups: tuple[GroupEvidence, ...]
    control: GroupEvidence | None
    overall: Overall
    collapse: CollapseMeasures
    warnings: tuple[AuditWarning, ...]
    n_positive: int
    n_negative: int
    n_anchors: int
    n_permutations: int
    level: float


@dataclass(frozen=True)
class Verdict:
    """One word, one sentence, and one sentence of how sure it is."""

    level: Level
    sentence: str
    uncertainty: str


@dataclass(frozen=True)
class Contributions:
    """Parts of the mean dB over the groups, each set summing to it.

    Attributes
    ----------
    delta_b : float
        Mean dB over the groups.
    templates : ndarray, shape (T,), or None
        Part of each template; None where the groups differ in their number of target sentences.
    positive, negative : ndarray, shape (p,) and (q,)
        Part of each attribute sentence, against the mean change of all attributes.
    """

    delta_b: float
    templates: FloatArray | None
    positive: FloatArray
    negative: FloatArray


@dataclass(frozen=True)
class AnchorShift:
    """An anchor, by its row, whose mean cosine with a group's targets changed."""

    index: int
    change: float
    reference: float
    audited: float
