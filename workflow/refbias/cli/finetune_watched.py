"""Stage `finetune_watched`: the stage `finetune` with dB measured on the way.

A stage of its own, so that what measures is no part of the code that plain fine-tuning depends on:
an edit of the metrics must not train a model anew.
"""

from collections.abc import Sequence
from pathlib import Path

from refbias.callbacks import BiasShiftCallback, StopRule
from refbias.cli.finetune import arguments, train
from refbias.config.base import parse_json
from refbias.config.bias_shift import WatchedFinetuneStage
from refbias.config.stimuli import StimuliSettings


def watched_stimuli(settings: WatchedFinetuneStage) -> StimuliSettings:
    """Return the run's sentence files with the sizes of the measurements."""
    sizes = ("targets", "attributes", "anchors", "control")
    return settings.stimuli.model_copy(update={name: getattr(settings.bias_shift, name) for name in sizes})


def build_callback(settings: WatchedFinetuneStage, curve: Path) -> BiasShiftCallback:
    """Return the callback of a stage; it keeps its curve in `curve` while the training goes on."""
    chosen = settings.bias_shift
    stop = chosen.stop
    return BiasShiftCallback(
        every=chosen.every,
        groups=chosen.groups,
        stimuli=watched_stimuli(settings),
        represent=settings.represent,
        output=curve,
        stop=StopRule(stop.threshold, stop.over, tuple(stop.groups), stop.patience) if stop else None,
    )


def main(argv: Sequence[str]) -> None:
    """Run the stage."""
    args = arguments(argv, "finetune_watched")
    settings = parse_json(WatchedFinetuneStage, args.settings, "--settings")
    train(settings, args, build_callback(settings, args.work / "trainer" / "bias_shift.csv"))
