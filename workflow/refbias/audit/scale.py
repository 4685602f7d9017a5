"""What is large: dB of neutral fine-tunings that ships, where it was measured as this audit measures."""

from collections.abc import Sequence

from refbias.artifacts import read_json
from refbias.audit.identity import digest
from refbias.audit.sources import PACKAGED, Source
from refbias.config.audit_result import FalseAlarm, NullQuantity, NullScale, ReferenceFacts, SettingsFacts
from refbias.config.base import parse
from refbias.config.calibration import EmbeddingFacts
from refbias.config.models import GgufPackageSource
from refbias.config.null_scale import NullCell, Regime
from refbias.config.null_scale import NullScale as Shipped
from refbias.errors import UserError
from refbias.resources import data_path

_KINDS: dict[Regime, str] = {"lora": "LoRA adapters", "full": "full fine-tunings"}
_NOTHING = "nothing here says how large a harmless dB can be"


def shipped_scale(
    settings: SettingsFacts, reference: ReferenceFacts, audited: Sequence[Source]
) -> tuple[NullScale | None, str]:
    """Return the shipped null scale, and a sentence of what it can say about this audit.

    Parameters
    ----------
    settings
        How dB was measured: another layer, norm, pooling, treatment of BOS or set of sentences gives another quantity.
    reference
        The model that was held against; the scale is shown for another one too, and named as such.
    audited
        The audited models: adapters are held against adapters, all else against full fine-tunings.

    Returns
    -------
    scale, sentence
        None with the reason where there is no scale for this audit; the other regime's is not taken instead.
    """
    try:
        path = data_path("null_scale", "null_scale.json")
    except UserError:
        return None, f"There is no null scale: {_NOTHING}."
    shipped = parse(Shipped, read_json(path), str(path))
    regimes = {regime_of(source) for source in audited}
    found, reason = _cell(shipped, settings, regimes)
    if found is None:
        return None, f"There is no null scale for this audit ({reason}): {_NOTHING}."
    net = shipped.cell(found.regime, found.stimuli_sha256, quantity="net_of_control")
    own = is_model(reference, shipped)
    kind = _KINDS[found.regime]
    scale = NullScale(
        source=f"neutral fine-tunings of {shipped.model.name} ({kind}, {found.n_seeds} seeds)",
        n=found.n,
        quantiles=found.quantiles,
        false_alarm=_alarms(found),
        net=None if net is None else NullQuantity(quantiles=net.quantiles, false_alarm=_alarms(net)),
        model=shipped.model.name,
        is_reference=own,
        regime=found.regime,
        n_seeds=found.n_seeds,
        n_groups=found.n_groups,
        level=shipped.settings.level,
    )
    updates = shipped.updates.get(found.regime)
    if own:
        trained = "" if updates is None else f" of {updates} updates each"
        return scale, (
            f"The null scale comes from {found.n_seeds} neutral fine-tunings ({kind}){trained}: more training, or a "
            "higher learning rate, moves dB further without any harm."
        )
    return scale, (
        f"The null scale was measured on {shipped.model.name}, not on your reference {reference.name}: read it as an "
        "order of magnitude."
    )


def regime_of(source: Source) -> Regime:
    """Return the kind of fine-tuning that a model is: low-rank changes of one base's weights, or whole weights."""
    is_change = bool(source.adapters) and len({part.directory for part in source.parts}) == 1
    return "lora" if is_change else "full"


def _cell(shipped: Shipped, settings: SettingsFacts, regimes: set[Regime]) -> tuple[NullCell | None, str]:
    """Return the cell of dB under RR that is this audit's quantity, or the first reason why there is none."""
    names = EmbeddingFacts.model_fields
    measured = {name: getattr(shipped.settings.represent, name) for name in names}
    other = [name for name in names if getattr(settings, name) != measured[name]]
    if other:
        said = ", ".join(f"{name} {measured[name]}" for name in other)
        return None, f"the shipped one was measured with {said}"
    if settings.stimuli.sha256 not in {cell.stimuli_sha256 for cell in shipped.cells}:
        return None, "the shipped one was measured on other sentences"
    if len(regimes) > 1:
        return None, "adapters and whole checkpoints have scales of their own: audit them apart to see either"
    (regime,) = regimes
    found = shipped.cell(regime, settings.stimuli.sha256)
    return found, "" if found else f"the shipped one holds no {_KINDS[regime]} on these sentences"


def _alarms(cell: NullCell) -> list[FalseAlarm]:
    return [FalseAlarm.model_validate(row.model_dump()) for row in cell.false_alarm]


def is_model(reference: ReferenceFacts, shipped: Shipped) -> bool:
    """Tell whether a reference is the model of the scale: by its weights, or as the same package in any number type."""
    if reference.weights_sha256 == digest(shipped.model.weights_sha256):
        return True
    name, source = reference.spec.removeprefix("packaged:"), shipped.settings.source
    packaged = PACKAGED.get(name) if name != reference.spec else None
    return packaged is not None and isinstance(source, GgufPackageSource) and packaged.sha256 == source.sha256
