"""Statistics of the pairs (dB, change of score): correlation, ROC, prediction error, and their intervals.

All functions take plain vectors and compute in float64. A value that cannot be had (a constant side, one class only)
is NaN with a reason, never a stand-in number; malformed input raises ValueError naming the argument.
"""

from refbias.stats.correlation import Correlation, pearson, spearman, undefined_reason, weighted_pearson
from refbias.stats.regression import BootstrapMae, bootstrap_mae, ols_line
from refbias.stats.resampling import Interval, cluster_bootstrap, paired_bootstrap_diff, percentile_interval
from refbias.stats.roc import above, auc_threshold_curve, roc_auc, roc_points, weighted_auc

__all__ = [
    "BootstrapMae",
    "Correlation",
    "Interval",
    "above",
    "auc_threshold_curve",
    "bootstrap_mae",
    "cluster_bootstrap",
    "ols_line",
    "paired_bootstrap_diff",
    "pearson",
    "percentile_interval",
    "roc_auc",
    "roc_points",
    "spearman",
    "undefined_reason",
    "weighted_auc",
    "weighted_pearson",
]
