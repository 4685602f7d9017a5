"""Validate sentence sets, packs and variants; write an example pack; combine two axes; mask group terms of anchors."""

import argparse
import shutil
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

from refbias import artifacts
from refbias.config.packs import Language
from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli import (
    CELLS,
    Finding,
    StimulusSet,
    Variant,
    check_anchors,
    check_quality,
    check_variant,
    load_groups,
    load_masked_anchors,
    load_variant,
    load_word_anchors,
    mask_anchors,
    read_stimuli,
    stimuli_sha256,
    validate_stimuli,
)
from refbias.stimuli.intersectional import PAIRS, TERMS, build_anchors, combine, group_table, read_terms
from refbias.stimuli.packs import GRAMMAR, check_pack, find_pack, load_pack, pack_settings, pack_words

_SETS = ("groups", "targets", "attributes", "anchors", "control")
_SOURCES = ("groups", "anchors")
"""The sets that new anchors are made of."""


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


def _settings(options: argparse.Namespace) -> StimuliSettings:
    files = {f"{name}_file": getattr(options, name, None) for name in _SETS}
    return StimuliSettings(**{key: str(path) for key, path in files.items() if path})


def _validate_files(options: argparse.Namespace) -> list[Finding]:
    settings = _settings(options)
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


def _validate_pack(path: str, language: Language | None) -> list[Finding]:
    pack = find_pack(path, language)
    for name, count in validate_stimuli(pack_settings(pack)).items():
        print(f"{name}: {count}")
    facts = pack.facts
    print(f"language: {facts.language}; groups are {facts.concept or 'not described'}")
    print(f"attributes: positive = {facts.positive}; negative = {facts.negative}")
    print(f"sha256 of the sentences: {stimuli_sha256(load_pack(pack))}")
    if pack_words(pack) is None:
        print("not checked: valenced words (no valenced_words.txt in the folder)")
    if facts.language != "en" and facts.language not in GRAMMAR:
        print("not checked: grammar (no rules for this language)")
    return check_pack(pack)


def _validate(options: argparse.Namespace) -> None:
    chosen = [name for name in (*_SETS, "variants", "words", "masked") if getattr(options, name)]
    if options.path and chosen:
        raise UserError(f"--{chosen[0]}: not beside a pack ({options.path}): name the files, or the pack")
    if options.language and not options.path:
        raise UserError("--language: belongs to a pack: name its folder")
    findings = _validate_pack(options.path, options.language) if options.path else _validate_files(options)
    for finding in findings:
        print(finding)
    if findings and options.strict:
        raise UserError(f"{len(findings)} quality findings, listed above")
    if options.path:
        print(f"valid, with {len(findings)} departures from the standard of the shipped sets" if findings else "valid")


def _example(options: argparse.Namespace) -> None:
    if options.path is None:
        raise UserError("refbias stimuli example: no folder: name the one to write")
    folder = Path(options.path)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder}: is not an empty folder: name another")
    with artifacts.atomic_path(folder) as temporary:
        shutil.copytree(data_path("example_pack"), temporary)
    print(f"{folder}: an example pack; edit it, then run: refbias stimuli validate {folder}")


def _intersect(options: argparse.Namespace) -> None:
    if options.path is None:
        raise UserError(f"refbias stimuli intersect: no folder: name the one that holds {TERMS} and {PAIRS}")
    if options.anchors_per_group < 1:
        raise UserError(f"--anchors-per-group {options.anchors_per_group}: must be 1 or more")
    folder, base = Path(options.path), read_stimuli(_settings(options))
    groups = combine(read_terms(folder / TERMS, load_groups(options.groups)), folder / PAIRS)
    anchors = build_anchors(groups, base, options.anchors_per_group)
    artifacts.write_text(folder / "groups.tsv", group_table(groups))
    artifacts.write_text(folder / "anchors.tsv", "id\tgroup\ttext\n" + "".join("\t".join(r) + "\n" for r in anchors))
    print(f"{folder}: {len(groups)} groups, {len(anchors)} anchors")


def _mask(options: argparse.Namespace) -> None:
    if options.output is None:
        raise UserError("refbias stimuli mask: no --output: name the TSV to write")
    base = read_stimuli(_settings(options))
    texts = mask_anchors(base.anchors, base.groups)
    rows = "".join(f"{a.id}\t{a.label}\t{text}\n" for a, text in zip(base.anchors, texts, strict=True))
    artifacts.write_text(options.output, f"id\tgroup\ttext\n{rows}")
    print(f"{options.output}: {len(texts)} masked anchors")


def main(argv: list[str]) -> None:
    """Run ``refbias stimuli validate``, ``example``, ``intersect`` or ``mask``.

    Raises
    ------
    UserError
        On a broken file, under ``--strict`` when a quality finding stands, or for an anchor that cannot be masked.
    """
    parser = argparse.ArgumentParser(prog="refbias stimuli", description=__doc__)
    actions = parser.add_subparsers(required=True)

    def action(name: str, run: Callable[[argparse.Namespace], None], text: str, *sets: str) -> argparse.ArgumentParser:
        chosen = actions.add_parser(name, help=text, description=text)
        # a shortened option of another action would be taken for one of this
        chosen.allow_abbrev = False
        for kind in sets:
            chosen.add_argument(f"--{kind}", type=Path, help=f"TSV of {kind}; shipped where left out")
        chosen.set_defaults(run=run)
        return chosen

    validate = action("validate", _validate, "check sentence sets, variants, or a pack", *_SETS)
    validate.add_argument("path", nargs="?", help="a pack's folder or name")
    validate.add_argument("--language", choices=typing.get_args(Language), help="of a pack without pack.json")
    validate.add_argument("--variants", type=Path, help="folder of attributes_<cell>.tsv and targets_<cell>.tsv")
    validate.add_argument("--words", type=Path, help="TSV of word anchors; shipped where left out")
    validate.add_argument("--masked", type=Path, help="TSV of masked anchors; shipped where left out")
    validate.add_argument("--strict", action="store_true", help="treat quality findings as errors")
    example = action("example", _example, "write a pack to start from")
    example.add_argument("path", nargs="?", help="the folder to write")
    intersect = action("intersect", _intersect, "write groups and anchors of two axes into their folder", *_SOURCES)
    intersect.add_argument("path", nargs="?", help=f"folder that holds {TERMS} and {PAIRS}")
    intersect.add_argument("--anchors-per-group", type=int, default=14, help="anchors of each new group")
    mask = action("mask", _mask, "write the anchors with neutral words in place of group terms", *_SOURCES)
    mask.add_argument("--output", type=Path, help="the TSV to write")
    options = parser.parse_args(argv)
    options.run(options)
