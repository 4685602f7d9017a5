"""From scored outputs and dB to the pairs behind every table and figure.

Pure functions on data frames, in the order of the data: `unit_scores` (outputs to units), `observations` (units and dB
to pairs), then `table1`, `auc_curve` and `roc_curves` (pairs to numbers). Nothing here reads or writes a file.
"""

from refbias.analysis.association import TABLE1_COLUMNS, auc_curve, roc_curves, table1
from refbias.analysis.direction import detection_score
from refbias.analysis.pairs import OBSERVATION_COLUMNS, Pairing, observations, unit_groups
from refbias.analysis.units import REFERENCE, UNIT_COLUMNS, harmful_weight, unit_scores

__all__ = [
    "OBSERVATION_COLUMNS",
    "REFERENCE",
    "TABLE1_COLUMNS",
    "UNIT_COLUMNS",
    "Pairing",
    "auc_curve",
    "detection_score",
    "harmful_weight",
    "observations",
    "roc_curves",
    "table1",
    "unit_groups",
    "unit_scores",
]
