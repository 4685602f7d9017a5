"""Put three lenses together: dB by group, bias resiliency by category, competence contrasts, on shared axes.

One page (HTML and JSON) a model or checkpoint, and one of the spectrum where several checkpoints are given.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from refbias.analysis.lenses import CONTROL, Lenses
from refbias.artifacts import Stage, read_json, write_json, write_text
from refbias.competence.results import REFERENCE, load_subject
from refbias.config.audit_result import AuditResult
from refbias.config.base import parse
from refbias.errors import UserError
from refbias.metamorphic.beside_db import SHIFT_COLUMNS
from refbias.report.lenses import lens_json, lens_page, spectrum_json, spectrum_page
from refbias.report.sections import stand_in_sentence
from refbias.tables import group_names, read_csv
from refbias.tables.table2 import table2

SPECTRUM = "spectrum"
METHOD = "rr"


def main(argv: list[str]) -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(prog="refbias lenses", description=__doc__)
    parser.add_argument("--model", required=True, help="slug of the model")
    parser.add_argument("--subjects", nargs="+", help="reference, <regime>-<checkpoint>; all that are found by default")
    parser.add_argument("--delta-b", type=Path, help="delta_b.csv of the shifts")
    parser.add_argument("--audit", type=Path, help="audit.json, in place of delta_b.csv")
    parser.add_argument("--metamorphic", type=Path, help="folder of the metamorphic lens, with answers/")
    parser.add_argument("--competence", type=Path, help="folder of the competence lens, with <model>/<subject>/")
    parser.add_argument("--method", help="of dB in delta_b.csv; rr by default")
    parser.add_argument("--groups", type=Path, help="TSV of target groups with their topics; shipped by default")
    parser.add_argument("--stand-in", nargs="*", default=[], help="models that are the packaged 270M stand-in")
    parser.add_argument("--output", type=Path, required=True, help="folder of the pages")
    options = parser.parse_args(argv)
    shifts = _shifts(options)
    subjects = _subjects(options, shifts)
    found = {subject: _lenses(options, subject, shifts) for subject in subjects}
    empty = [name for name, lenses in found.items() if not lenses.any]
    if empty:
        raise UserError(f"--subjects {empty[0]}: no lens was held to it: name a subject of {options.model}")
    stems = _stems(list(found))
    names = group_names(options.groups)
    inputs = {f"{name}": path for name in ("delta_b", "audit") if (path := getattr(options, name))}
    notes = tuple(stand_in_sentence(name) for name in options.stand_in if name == options.model)
    settings = {"model": options.model, "subjects": subjects, "method": options.method or METHOD}
    with Stage("lenses", settings, options.output, inputs) as stage:
        for subject, lenses in found.items():
            write_text(
                options.output / f"{stems[subject]}.html", lens_page(options.model, subject, lenses, names, notes)
            )
            write_json(options.output / f"{stems[subject]}.json", lens_json(options.model, subject, lenses))
        spectra = _spectra(found)
        if spectra:
            write_text(options.output / f"{SPECTRUM}.html", spectrum_page(options.model, spectra, notes))
            write_json(options.output / f"{SPECTRUM}.json", spectrum_json(options.model, spectra))
        stage.record(pages=list(found), spectra=list(spectra))
    print(f"{len(found)} pages in {options.output}")


def _stems(names: Sequence[str]) -> dict[str, str]:
    """Return name -> the stem of its page's files: an audit may call a checkpoint by a path, or ``owner/name``."""
    stems = {name: re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-") for name in names}
    for name, stem in stems.items():
        alike = [other for other in names if stems[other] == stem]
        if len(alike) > 1 or stem in ("", SPECTRUM):
            raise UserError(f"--subjects {name}: {stem!r} can be no page's name here: audit it under another name")
    return stems


def _spectra(found: Mapping[str, Lenses]) -> dict[str, dict[str, Lenses]]:
    """Return regime -> checkpoints in order, of regimes with several."""
    spectra: dict[str, dict[str, Lenses]] = {}
    for name, lenses in found.items():
        regime, _, checkpoint = name.partition("-")
        if checkpoint:
            spectra.setdefault(regime, {})[name] = lenses
    return {regime: spectrum for regime, spectrum in spectra.items() if len(spectrum) > 1}


def _shifts(options: argparse.Namespace) -> dict[str, pd.DataFrame]:
    """Return subject -> columns group, topic, delta_b, ci_low, ci_high; empty without dB."""
    if options.delta_b and options.audit:
        raise UserError("--delta-b and --audit: give one of them")
    if options.audit:
        if options.method not in (None, METHOD):
            raise UserError(f"--method {options.method}: an audit's groups are of {METHOD}: leave the option out")
        return _audited(options)
    if not options.delta_b:
        return {}
    method = options.method or METHOD
    frame = read_csv(options.delta_b, [*SHIFT_COLUMNS, "ci_low", "ci_high"])
    frame = frame[(frame["model"] == options.model) & (frame["method"] == method)]
    if frame.empty:
        raise UserError(f"{options.delta_b}: no row of model {options.model} and method {method}")
    if frame["n_anchors"].nunique() > 1:
        frame = frame[frame["n_anchors"] == frame["n_anchors"].max()]
    groups = table2(options.groups)
    topics = dict(zip(groups["group"], groups["topic"], strict=True))
    frame = frame.assign(topic=[topics.get(group, "") for group in frame["group"]])
    frame = frame.sort_values(["regime", "harmful_weight"], kind="stable")
    return {
        f"{regime}-{checkpoint}": rows[["group", "topic", "delta_b", "ci_low", "ci_high"]].reset_index(drop=True)
        for (regime, checkpoint), rows in frame.groupby(["regime", "checkpoint"], sort=False)
    }


def _audited(options: argparse.Namespace) -> dict[str, pd.DataFrame]:
    result = parse(AuditResult, read_json(options.audit), str(options.audit))
    named = options.subjects or []
    # an audit of one checkpoint may call it by a path of its own
    single = len(result.checkpoints) == 1 and len([name for name in named if name != REFERENCE]) == 1
    found = {}
    for checkpoint in result.checkpoints:
        rows = [
            {field: getattr(row, field) for field in ("group", "topic", "delta_b", "ci_low", "ci_high")}
            for row in [*checkpoint.groups, *([checkpoint.control] if checkpoint.control else [])]
        ]
        name = next(name for name in named if name != REFERENCE) if single else checkpoint.name
        frame = pd.DataFrame(rows).astype({"delta_b": "float64", "ci_low": "float64", "ci_high": "float64"})
        found[name] = frame.assign(topic=frame["topic"].where(frame["group"] != CONTROL, ""))
    return found


def _subjects(options: argparse.Namespace, shifts: dict[str, pd.DataFrame]) -> list[str]:
    if options.subjects:
        return list(dict.fromkeys(options.subjects))
    found = set(shifts)
    if options.competence:
        found |= {path.parent.name for path in (options.competence / options.model).glob("*/verdicts.json")}
    if options.metamorphic:
        folder = options.metamorphic / "answers" / options.model
        found |= {path.parent.parent.name for path in folder.glob("*/plain/summary.json")}
    if not found:
        raise UserError(
            f"--model {options.model}: no result of any lens: name --delta-b, --metamorphic or --competence"
        )
    # checkpoints stand in the order of their mixing weight where dB gives it
    known: Sequence[str] = list(shifts)
    places = {name: place for place, name in enumerate(known)}
    return sorted(found, key=lambda name: (name != REFERENCE, places.get(name, len(known)), name))


def _lenses(options: argparse.Namespace, subject: str, shifts: dict[str, pd.DataFrame]) -> Lenses:
    cells = effects = None
    verdicts: list[dict[str, object]] = []
    if options.metamorphic:
        summary = options.metamorphic / "answers" / options.model / subject / "plain" / "summary.json"
        cells = _cells(summary) if summary.is_file() else None
    if options.competence:
        folder = options.competence / options.model / subject
        if (folder / "verdicts.json").is_file():
            analysed = load_subject(folder)
            effects, verdicts = analysed.effects, analysed.verdicts["verdicts"]
    return Lenses(shifts.get(subject), cells, effects, verdicts)


def _cells(path: Path) -> list[dict[str, object]]:
    content = read_json(path)
    good = isinstance(content, list) and all(
        isinstance(cell, dict) and {"category", "relation", "resiliency"} <= set(cell) for cell in content
    )
    if not good:
        raise UserError(f"{path}: not a summary of metamorphic tests: run refbias metamorphic summary again")
    return list(content)
