"""The scorers that run a model, made from their section of the configuration.

To add a kind: settings in `refbias.config.scorers`, a module with its class, one line here. Kept apart
from the registry of rules, so that scoring by rule needs no torch.
"""

from pathlib import Path

from refbias.config.base import Device
from refbias.config.scorers import ClassifierSettings, ScorerSettings
from refbias.scorers.base import Scorer
from refbias.scorers.classifier import SequenceClassifier
from refbias.scorers.wildguard import WildGuard


def make_neural_scorer(
    name: str, settings: ScorerSettings, folder: Path, device: Device, python: str | None = None
) -> Scorer:
    """Make a scorer that runs the model in `folder`.

    Parameters
    ----------
    name
        The scorer's name in the configuration.
    settings
        Its settings.
    folder
        Where its model was acquired.
    device
        ``auto``, ``cpu``, ``cuda`` or ``mps``.
    python
        Interpreter that has vLLM, for a guard that asks for it; None: the configuration's default.
    """
    if isinstance(settings, ClassifierSettings):
        return SequenceClassifier(name, settings, folder, device)
    return WildGuard(name, settings, folder, device, python)
