"""Validate sentence sets and their variants, the shipped ones or a user's own; mask the group terms of anchors."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from refbias import artifacts
from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError
from refbias.stimuli import (
    CELLS,
    Finding,
    StimulusSet,
    Variant,
    check_anchors,
    check_quality,
    check_variant,
    load_masked_anchors,
    load_variant,
    load_word_anchors,
    mask_anchors,
    read_stimuli,
    validate_stimuli,
)

_SETS = ("groups", "targets", "attributes", "anchors", "control")


def _variants(base: StimulusSet, options: argparse.Namespace) -> Iterator[Variant]:
    """Yield the variants in a user's folder, or the shipped ones of those base files that are the shipped ones."""
    found = False
    for kind, cells in CELLS.items():
        for cell in cells:
            path = options.variants / f"{kind}_{cell}.tsv" if options.variants else None
            if path.is_file() if path else getattr(options, kind) is None:
                found = True
                yield load_variant(kind, cell, base, path)
    if options.variants and not found:
        names = ", ".join(f"{kind}_{cells[0]}.tsv" for kind, cells in CELLS.items())
        raise UserError(f"{options.variants}: holds no file of a variant's name ({names}, ...): name another folder")


def _validate(settings: StimuliSettings, options: argparse.Namespace) -> list[Finding]:
    for name, count in validate_stimuli(settings).items():
        print(f"{name}: {count}")
    base = read_stimuli(settings)
    findings = check_quality(base)
    for variant in _variants(base, options):
        same = f", {variant.unchanged} of them as in the base" if variant.unchanged else ""
        print(f"{variant.kind} {variant.cell}: {len(variant.entries)}{same}")
        findings += check_variant(base, variant)
    words = load_word_anchors(options.words)
    print(f"word anchors: {len(words)}")
    findings += check_anchors(words, base.groups)
    # the shipped masked anchors belong to the shipped anchors
    if options.masked or options.anchors is None:
        masked = load_masked_anchors(base, options.masked)
        print(f"masked anchors: {len(masked)}")
        findings += check_anchors(masked, base.groups)
    return findings


def main(argv: list[str]) -> None:
    """Run ``refbias stimuli validate`` or ``refbias stimuli mask``.

    Raises
    ------
    UserError
        On a broken file, under ``--strict`` when a quality finding stands, or for an anchor that cannot be masked.
    """
    parser = argparse.ArgumentParser(prog="refbias stimuli", description=__doc__)
    parser.add_argument("action", choices=["validate", "mask"])
    for name in _SETS:
        parser.add_argument(f"--{name}", type=Path, help=f"TSV of {name}; shipped where left out")
    parser.add_argument("--variants", type=Path, help="folder of attributes_<cell>.tsv and targets_<cell>.tsv")
    parser.add_argument("--words", type=Path, help="TSV of word anchors; shipped where left out")
    parser.add_argument("--masked", type=Path, help="TSV of masked anchors; shipped where left out")
    parser.add_argument("--output", type=Path, help="mask: the TSV to write")
    parser.add_argument("--strict", action="store_true", help="treat quality findings as errors")
    options = parser.parse_args(argv)
    files = {f"{name}_file": getattr(options, name) for name in _SETS}
    settings = StimuliSettings(**{key: str(path) for key, path in files.items() if path})
    if options.action == "mask":
        if options.output is None:
            raise UserError("refbias stimuli mask: no --output: name the TSV to write")
        base = read_stimuli(settings)
        texts = mask_anchors(base.anchors, base.groups)
        rows = "".join(f"{a.id}\t{a.label}\t{text}\n" for a, text in zip(base.anchors, texts, strict=True))
        artifacts.write_text(options.output, f"id\tgroup\ttext\n{rows}")
        print(f"{options.output}: {len(texts)} masked anchors")
        return
    findings = _validate(settings, options)
    for finding in findings:
        print(finding)
    if findings and options.strict:
        raise UserError(f"{len(findings)} quality findings, listed above")
