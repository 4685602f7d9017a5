"""Evidence beside every dB of an audit: intervals, tests, controls, nulls, warnings and the verdict.

Pure functions on arrays over one matrix, the change of association of every target with every attribute sentence.
"""

from refbias.evidence.anchors import anchor_shifts
from refbias.evidence.caution import scale_change
from refbias.evidence.contributions import contributions
from refbias.evidence.gather import gather_evidence
from refbias.evidence.pairs import Pairs, pair_matrices
from refbias.evidence.permutation import holm, label_draws, permutation_p
from refbias.evidence.records import (
    AnchorShift,
    AuditEvidence,
    AuditWarning,
    CollapseMeasures,
    Contributions,
    GroupEvidence,
    Overall,
    Verdict,
)
from refbias.evidence.verdict import confirmed_groups, moved_groups, verdict

__all__ = [
    "AnchorShift",
    "AuditEvidence",
    "AuditWarning",
    "CollapseMeasures",
    "Contributions",
    "GroupEvidence",
    "Overall",
    "Pairs",
    "Verdict",
    "anchor_shifts",
    "confirmed_groups",
    "contributions",
    "gather_evidence",
    "holm",
    "label_draws",
    "moved_groups",
    "pair_matrices",
    "permutation_p",
    "scale_change",
    "verdict",
]
