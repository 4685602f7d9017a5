"""How much chance is simulated for the evidence beside every dB of an audit."""

from pydantic import Field

from refbias.config.base import Strict


class EvidenceSettings(Strict):
    """Resamples, permutations and draws of an audit's statistics, and the level that they are read at."""

    n_resamples: int = Field(
        default=2000, ge=200, description="Two-way bootstrap resamples over target and attribute sentences."
    )
    n_permutations: int = Field(
        default=10000,
        ge=1000,
        description="Permutations of the attribute labels; with no more assignments than this, all of them (exact p).",
    )
    n_null: int = Field(
        default=500, ge=200, description="Draws of pseudo-positive and pseudo-negative sets from the neutral anchors."
    )
    n_jackknife: int = Field(default=20, ge=2, description="Random halves of the anchors on which dB is recomputed.")
    level: float = Field(
        default=0.95, ge=0.8, lt=1, description="Coverage of the intervals; 1 - level is the error rate over groups."
    )
    seed: int = Field(default=17, ge=0, description="Seed of all draws.")
