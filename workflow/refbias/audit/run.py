"""One audit from settings to result: models, sentences, states, evidence."""

import contextlib
import datetime
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from refbias import __version__
from refbias.artifacts import peak_memory_mb
from refbias.audit.calibrated import checked_calibration, with_probabilities
from refbias.audit.compute import choose_dtype
from refbias.audit.drift import adapter_drift
from refbias.audit.embed import Cost, Layer, Reading, States, architecture, refusals_to_stream
from refbias.audit.identity import weights_hash
from refbias.audit.layers import layer_biases, layer_results
from refbias.audit.limits import limits_of
from refbias.audit.result import Measured, checkpoint_result, overall_verdict
from refbias.audit.scale import shipped_scale
from refbias.audit.sources import Source, distinct_names, resolve_audited, resolve_reference
from refbias.audit.states import all_states, of_part
from refbias.audit.stimuli import Stimuli, choose_stimuli, split
from refbias.audit.tokens import Tokens, tokens_of
from refbias.audit.verdicts import refuse_impossible
from refbias.config.audit import AuditSettings
from refbias.config.audit_result import (
    AuditResult,
    AuditWarning,
    CheckpointResult,
    DtypeCheck,
    ReferenceFacts,
    SettingsFacts,
    Timing,
    Tool,
)
from refbias.errors import UserError
from refbias.metrics import rr_shift
from refbias.models import resolve_device
from refbias.models.heap import keep_freed_memory, return_freed_memory
from refbias.progress import step_bar
from refbias.stimuli.groups import CONTROL
from refbias.stream.activations import spill_folder

LOG = logging.getLogger(__name__)
LARGEST_MAP_BYTES = 1_000_000_000
"""States of all layers of all models that ``layer_map: auto`` is ready to hold."""
_CHECKED = {"targets": 5, "attributes": 20, "anchors": 100}
"""Sentences on which two number types are compared."""


@dataclass(frozen=True)
class Audit:
    """A finished audit: what goes into ``audit.json``, and the states that it rests on."""

    result: AuditResult
    stimuli: Stimuli
    states: dict[str, States]


@dataclass(frozen=True)
class _Models:
    """The models of an audit: architecture, blocks, width and tokens of each."""

    reference: Source
    audited: list[Source]
    facts: dict[str, tuple[str, int, int]]
    own: Tokens
    tokens: list[Tokens]

    def pairs(self) -> list[tuple[Source, Tokens]]:
        """Return each audited model with its tokens."""
        return list(zip(self.audited, self.tokens, strict=True))


def run_audit(settings: AuditSettings) -> Audit:
    """Audit every checkpoint that the settings name.

    What can be refused without a model is refused first.

    Parameters
    ----------
    settings
        The audit.

    Returns
    -------
    Audit
        Result, sentences and states by name of model.

    Raises
    ------
    UserError
        For all that a user can mend: a model that is not there or in no form that is read, models that do
        not fit each other, broken sentences, non-finite states, a calibration for other sentences, a condition on
        what cannot be computed, a folder for states that cannot be written to.
    """
    start = time.perf_counter()
    keep_freed_memory()
    device = resolve_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    stimuli = choose_stimuli(settings.stimuli)
    facts = _settings_facts(settings, stimuli, dtype, device)
    fitted = checked_calibration(settings.calibration, facts)
    refuse_impossible(settings.fail_on, stimuli)
    spill_dir = None if settings.memory_mb is None else spill_folder(settings.spill_dir)
    models = _models(settings, stimuli, dtype)
    reading = Reading(
        represent=settings.represent,
        layers=_layers(settings, stimuli, models),
        dtype=dtype,
        device=device,
        memory_mb=settings.memory_mb,
        spill_dir=spill_dir,
    )
    cost = Cost(read=time.perf_counter() - start)
    own = (models.reference, models.own)
    before, after, cached = all_states(own, models.pairs(), reading, settings.use_cache, cost)
    checks = _dtype_checks(settings, stimuli, models, reading, before, after, cost)
    known = _known(models, checks)
    return_freed_memory()  # the layers' memory must not stand under that of the statistics
    embedded = time.perf_counter()
    with _numbers_of(models.reference):
        biases = layer_biases(before, stimuli.sentences) if reading.layers == "all" else None
    checkpoints = []
    with step_bar("statistics", len(after), "checkpoints") as step:
        for source, states, measured in zip(models.audited, after, known, strict=True):
            checkpoints.append(_checkpoint(source, settings, stimuli, reading, (before, states), biases, measured))
            step(1)
    checkpoints, calibration = with_probabilities(checkpoints, fitted, facts)
    reference = _reference_facts(models, dtype)
    scale, scale_note = shipped_scale(facts, reference, models.audited)
    end = time.perf_counter()
    result = AuditResult(
        tool=Tool(version=__version__),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        verdict=overall_verdict(checkpoints),
        reference=reference,
        settings=facts,
        checkpoints=checkpoints,
        null_scale=scale,
        null_scale_note=scale_note,
        calibration=calibration,
        timing=Timing(
            read=round(cost.read, 3),
            embed=round(cost.embed, 3),
            statistics=round(end - embedded, 3),
            total=round(end - start, 3),
            tokens=cost.tokens,
            reference_from_cache=cached,
        ),
        peak_memory_mb=round(peak_memory_mb(), 1),
        limits=limits_of(settings, dtype, scale_note, calibration, len(checkpoints)),
    )
    names = [models.reference.name, *(source.name for source in models.audited)]
    return Audit(result, stimuli, dict(zip(names, [before, *after], strict=True)))


@contextlib.contextmanager
def _numbers_of(source: Source) -> Iterator[None]:
    """Name the model in what the statistics refuse: a dead state is the model's, not the code's."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{source.spec}: {error}: these states cannot be compared, check the weights") from error


def _models(settings: AuditSettings, stimuli: Stimuli, dtype: str) -> _Models:
    reference = resolve_reference(settings.reference, dtype)
    audited = [
        source for spec in settings.audited for source in resolve_audited(spec, reference, dtype, settings.any_base)
    ]
    audited = distinct_names(audited, [reference.name])
    facts = {source.name: architecture(source.directory) for source in [reference, *audited]}
    if settings.represent.layer != "final":
        for name, (_, blocks, _) in facts.items():
            if not 0 <= settings.represent.layer <= blocks:
                raise UserError(
                    f"layer {settings.represent.layer}: {name} has blocks 1 to {blocks}, 0 = token embeddings: name "
                    "one of them, or 'final'"
                )
    width = facts[reference.name][2]
    for source in audited:
        for part in source.parts:
            has = architecture(part.directory)[2]
            if has != width and not settings.cross_family:
                raise UserError(
                    f"{source.spec}: width {has}, the reference's is {width}: audit a model of its family, or say "
                    "--cross-family (RR and CKA alone)"
                )
    texts = [sentence.text for sentence in stimuli.sentences]
    own, tokens = tokens_of(texts, reference, audited, settings.cross_family, settings.represent.exclude_bos)
    return _Models(reference, audited, facts, own, tokens)


def _layers(settings: AuditSettings, stimuli: Stimuli, models: _Models) -> Literal["one", "all"]:
    """Return whether the states of all layers are wanted, and fit."""
    if settings.layer_map != "auto":
        return "all" if settings.layer_map == "all" else "one"
    rows = len(stimuli.sentences)
    size = sum(4 * rows * width * (blocks + 2) for _, blocks, width in models.facts.values())
    if size <= LARGEST_MAP_BYTES:
        return "all"
    LOG.warning("states of all layers take %.1f GB: no layer map (--layers all to have it)", size / 1e9)
    return "one"


def _known(models: _Models, checks: Sequence[DtypeCheck | None]) -> list[Measured]:
    """Return what is known of each audited model without the statistics of its states."""
    whole = {
        name: AuditWarning(code="whole_model", sentence=_WHOLE.format(name=name, reason=reason))
        for name, reason in refusals_to_stream([models.reference, *models.audited]).items()
    }
    return [
        Measured(
            weights_sha256=weights_hash(source),
            tokenizers_differ=not tokens.same_ids(models.own),
            layers=None,
            drift=None,
            dtype_check=check,
            warnings=[whole[name] for name in (models.reference.name, source.name) if name in whole],
        )
        for (source, tokens), check in zip(models.pairs(), checks, strict=True)
    ]


def _checkpoint(
    source: Source,
    settings: AuditSettings,
    stimuli: Stimuli,
    reading: Reading,
    states: tuple[States, States],
    biases: dict[Layer, dict[str, float]] | None,
    known: Measured,
) -> CheckpointResult:
    before, after = (split(found[reading.main], stimuli.sentences) for found in states)
    with _numbers_of(source):
        layers, warnings = None, [*source.warnings, *known.warnings]
        if biases is not None and set(states[0]) == set(states[1]):
            layers = layer_results(biases, layer_biases(states[1], stimuli.sentences))
        elif biases is not None:
            warnings.append(AuditWarning(code="layers_differ", sentence=_LAYERS_DIFFER))
        measured = replace(known, layers=layers, drift=adapter_drift(source), warnings=warnings)
        return checkpoint_result(source, before, after, stimuli, settings, measured)


_LAYERS_DIFFER = "The models have different numbers of layers, so there is no layer map."
_WHOLE = (
    "{name} is loaded whole, not layer by layer ({reason}): that takes the memory of all its weights; the numbers are "
    "the same."
)


def _dtype_checks(
    settings: AuditSettings,
    stimuli: Stimuli,
    models: _Models,
    reading: Reading,
    before: States,
    after: Sequence[States],
    cost: Cost,
) -> list[DtypeCheck | None]:
    """Measure how much dB changes between the number type in use and float32: on some sentences, for all anchors."""
    if reading.dtype == "float32" or not settings.dtype_check:
        return [None] * len(after)
    return_freed_memory()  # the layers are twice as large in float32: those of before must not stand under them
    rows = stimuli.part(**_CHECKED)
    sentences = [stimuli.sentences[row] for row in rows]
    parts = {id(tokens): tokens.part(rows) for tokens in (models.own, *models.tokens)}
    exact = of_part(reading, "float32")
    own = (models.reference, parts[id(models.own)])
    audited = [(source, parts[id(tokens)]) for source, tokens in models.pairs()]
    first, others, _ = all_states(own, audited, exact, settings.use_cache, cost)
    # distances of relative representations grow with the root of the number of anchors
    anchors = [sum(row.kind == "anchor" for row in some) for some in (stimuli.sentences, sentences)]
    growth = math.sqrt(anchors[0] / anchors[1])
    found: list[DtypeCheck | None] = []
    for source, states, wide in zip(models.audited, after, others, strict=True):
        with _numbers_of(source):
            narrow = rr_shift(
                split(before[reading.main][rows], sentences), split(states[reading.main][rows], sentences)
            )
            whole = rr_shift(split(first[exact.main], sentences), split(wide[exact.main], sentences))
        change = growth * max(abs(narrow[group].delta_b - whole[group].delta_b) for group in whole if group != CONTROL)
        found.append(
            DtypeCheck(dtype=reading.dtype, against="float32", n_sentences=len(rows), max_change_delta_b=float(change))
        )
    return found


def _reference_facts(models: _Models, dtype: str) -> ReferenceFacts:
    source = models.reference
    name, blocks, width = models.facts[source.name]
    return ReferenceFacts(
        name=source.name,
        spec=source.spec,
        kind=source.kind,
        revision=source.revision,
        weights_sha256=weights_hash(source),
        architecture=name,
        n_layers=blocks,
        width=width,
        dtype=dtype,
    )


def _settings_facts(settings: AuditSettings, stimuli: Stimuli, dtype: str, device: str) -> SettingsFacts:
    represent, evidence = settings.represent, settings.evidence
    return SettingsFacts(
        methods=settings.chosen_methods(),
        layer=represent.layer,
        final_norm=represent.final_norm,
        pooling=represent.pooling,
        exclude_bos=represent.exclude_bos,
        dtype=dtype,
        device=device,
        level=evidence.level,
        n_resamples=evidence.n_resamples,
        n_permutations=evidence.n_permutations,
        n_null=evidence.n_null,
        seed=evidence.seed,
        cross_family=settings.cross_family,
        stimuli=stimuli.facts(),
    )
