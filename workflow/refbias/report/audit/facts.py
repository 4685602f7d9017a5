"""What was compared, how, and at which cost: pairs of name and text."""

from refbias.config.audit_result import AuditResult
from refbias.report.audit.words import EM_DASH, KIND_LABELS, per_cent
from refbias.tables.formats import duration, memory
from refbias.tables.labels import method_label

Facts = tuple[tuple[str, str], ...]


def _or_dash(value: object, why: str) -> str:
    return f"{EM_DASH} ({why})" if value is None else str(value)


def model_facts(result: AuditResult) -> Facts:
    """Name the reference and every checkpoint, with where it came from and its hash."""
    found = result.reference
    rows = [
        ("Reference", f"{found.name}: {KIND_LABELS[found.kind]}, {found.spec}"),
        ("Reference, revision", _or_dash(found.revision, "not from a hub")),
        ("Reference, SHA-256 of weights", _or_dash(found.weights_sha256, "not recorded")),
        (
            "Architecture",
            f"{_or_dash(found.architecture, 'not recorded')}; layers: {_or_dash(found.n_layers, 'not recorded')}; "
            f"width: {_or_dash(found.width, 'not recorded')}; computed in {_or_dash(found.dtype, 'not recorded')}",
        ),
    ]
    for checkpoint in result.checkpoints:
        sha = _or_dash(checkpoint.weights_sha256, "not recorded")
        rows.append(
            (
                f"Audited: {checkpoint.name}",
                f"{KIND_LABELS[checkpoint.kind]}, {checkpoint.spec}; SHA-256 of weights: {sha}",
            )
        )
    return tuple(rows)


def setting_facts(result: AuditResult) -> Facts:
    """List the settings, in words."""
    found = result.settings
    stimuli = found.stimuli
    layer = "final" if found.layer == "final" else str(found.layer)
    return (
        ("Methods", ", ".join(map(method_label, found.methods))),
        (
            "Layer",
            f"{layer}, {'after' if found.final_norm else 'before'} the final norm" if layer == "final" else layer,
        ),
        (
            "Pooling",
            f"{found.pooling} over tokens, first (BOS) token {'left out' if found.exclude_bos else 'included'}",
        ),
        ("Number type and device", f"{found.dtype} on {found.device}; statistics in float64"),
        (
            "Intervals",
            f"{per_cent(found.level)}, {found.n_resamples} resamples over target and attribute sentences (two-way)",
        ),
        ("p", f"{found.n_permutations} permutations of the attribute labels; Holm over groups"),
        ("Random-attribute null", f"{found.n_null} draws"),
        ("Seed", str(found.seed)),
        ("Across model families", "allowed" if found.cross_family else "not allowed"),
        (
            "Sentences",
            f"{stimuli.name}: {stimuli.n_groups} groups with up to {stimuli.n_targets} target sentences each, "
            f"{stimuli.n_positive} positive and {stimuli.n_negative} negative attribute sentences, {stimuli.n_anchors} "
            f"anchors, {stimuli.n_control} control sentences",
        ),
        ("Sentences, SHA-256", stimuli.sha256),
    )


def timing_facts(result: AuditResult) -> Facts:
    """List where the time went."""
    found = result.timing
    speed = f", {found.tokens / found.embed:,.0f} a second" if found.embed > 0 and found.tokens else ""
    return (
        ("Total", duration(found.total)),
        ("Reading weights", duration(found.read)),
        ("Embedding sentences", f"{duration(found.embed)} ({found.tokens:,} tokens{speed})"),
        ("Statistics", duration(found.statistics)),
        ("Reference", "taken from the cache" if found.reference_from_cache else "computed in this run"),
        ("Peak memory", memory(result.peak_memory_mb)),
    )
