"""What measuring during a training costs, as a share of the training's own time."""

from dataclasses import dataclass, field

TARGET_SHARE = 0.02
"""Largest share of the training's time that measurements should take."""


@dataclass
class Cost:
    """Seconds of a watched training.

    Parameters
    ----------
    every
        Updates between measurements.
    reference
        Seconds for the reference's embeddings, once a training.
    measured
        Seconds of each measurement at a later step.
    training
        Seconds of the training itself, measurements taken off.
    steps
        Updates in that time.
    """

    every: int
    reference: float = 0.0
    measured: list[float] = field(default_factory=list)
    training: float = 0.0
    steps: int = 0

    @property
    def spent(self) -> float:
        """Seconds of all measurements and of the reference."""
        return self.reference + sum(self.measured)

    @property
    def share(self) -> float | None:
        """All that was spent, as a share of the training's own time; None before an update."""
        return self.spent / self.training if self.steps and self.training > 0 else None

    @property
    def lasting_share(self) -> float | None:
        """One measurement as a share of `every` updates: what a long training comes to; None before there are both."""
        if not (self.steps and self.measured and self.training > 0):
            return None
        return sum(self.measured) / len(self.measured) / (self.every * self.training / self.steps)

    def facts(self) -> dict[str, float | int | None]:
        """Return the figures for a manifest (JSON values)."""
        shares = {"share": self.share, "lasting_share": self.lasting_share}
        return {
            "every": self.every,
            "measurements": len(self.measured),
            "reference_seconds": round(self.reference, 4),
            "measured_seconds": round(sum(self.measured), 4),
            "training_seconds": round(self.training, 3),
            "updates": self.steps,
            **{name: None if share is None else round(share, 5) for name, share in shares.items()},
        }

    def __str__(self) -> str:
        if self.share is None:
            return f"no update was made; reference {self.reference:.2f} s"
        line = (
            f"{len(self.measured)} measurements and the reference took {self.spent:.2f} s, {self.share:.1%} of the "
            f"training's own {self.training:.1f} s ({self.steps} updates)"
        )
        lasting = self.lasting_share
        if lasting is None:
            return line
        line += f"; one every {self.every} updates comes to {lasting:.1%} in a long training"
        if lasting > TARGET_SHARE:
            enough = -(-self.every * lasting // TARGET_SHARE)
            line += f", over {TARGET_SHARE:.0%}: every={enough:.0f}, or fewer groups or attributes, would keep to it"
        return line
