"""Hold checkpoints against a reference: dB per group with its evidence.

Models are named as a hub id (owner/name or owner/name@revision), a folder of safetensors or of a PEFT adapter, a
training run's folder of checkpoint-* folders (a curve), a file.gguf, a weighted sum such as 0.3*A+0.7*B or 1.5*B-0.5*A,
or packaged:gemma3-270m.

exit codes: 0 done; 1 done, and a group meets a --fail-on condition; 2 a mistake that you can mend, or a full disk;
70 an error of the program, with its traceback; 130 interrupted. After 2 and 130 nothing is left behind, but for a
condition on what turns out not to be computed: that is said after the result is written.
"""

import argparse
import errno
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refbias.artifacts import Stage, atomic_folder, write_rows, write_text
from refbias.audit.verdicts import exceeded, met_lines
from refbias.config.audit import AuditSettings
from refbias.config.audit_result import FILE_NAME, AuditResult, GroupResult, save_result
from refbias.config.base import parse, parse_json
from refbias.errors import UserError

EXCEEDED = 1
DEFAULT_OUTPUT = "refbias-audit"
REPORT = "report.html"
TABLE = "groups.csv"
EMBEDDINGS = "embeddings"
MANIFEST = "manifest.json"
GATE = "gate.json"
# audit.json vouches for the others
WRITTEN = (FILE_NAME, REPORT, TABLE, EMBEDDINGS, MANIFEST, GATE)
_TOLERATED = re.compile(r"\.lock|\..*\.part|lost\+found")
"""What a stage, an audit that was killed, or the root of a file system leaves in a folder."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NEGATIVE = re.compile(r"-\s*[\d.].*\*")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    head, _, tail = (__doc__ or "").rpartition("\nexit codes:")
    found = argparse.ArgumentParser(
        prog="refbias audit",
        description=head,
        epilog=f"exit codes:{tail}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("reference", nargs="?", metavar="REFERENCE", help="the model before")
    found.add_argument("audited", nargs="*", metavar="AUDITED", help="the models after, one or more")
    found.add_argument("--settings", metavar="JSON", help="all settings as JSON, in place of the options (workflow)")
    found.add_argument(
        "--output", type=Path, help=f"folder for {FILE_NAME}, {REPORT}, {TABLE} (default: {DEFAULT_OUTPUT})"
    )
    found.add_argument(
        "--json", action="store_true", help="print the result as JSON, and write nothing unless --output is given"
    )
    sentences = found.add_argument_group("sentences")
    sentences.add_argument("--stimuli", metavar="PACK", help="a shipped pack, or a folder in its layout")
    for name in ("groups", "templates", "attributes", "anchors", "control"):
        sentences.add_argument(f"--{name}", metavar="TSV", help=f"own file of {name}; shipped where left out")
    for name in ("targets", "attributes", "anchors", "control"):
        sentences.add_argument(f"--n-{name}", type=int, metavar="N", help=f"the first N {name} alone")
    reading = found.add_argument_group("embedding")
    reading.add_argument("--layer", help="layer of dB: 'final' (default) or a block's number, 0 = token embeddings")
    reading.add_argument("--layers", choices=["auto", "all", "none"], help="dB at every layer (default: where it fits)")
    reading.add_argument("--no-final-norm", action="store_true", help="read the last block's output before its norm")
    reading.add_argument("--pooling", choices=["mean", "max", "last"], help="pooling over tokens (default: mean)")
    reading.add_argument("--exclude-bos", action="store_true", help="leave the BOS token out of the pooling")
    reading.add_argument("--dtype", help="auto (default: bfloat16 where native), float32 or bfloat16")
    reading.add_argument("--no-dtype-check", action="store_true", help="do not measure what bfloat16 changes")
    reading.add_argument("--device", help="auto (default), cpu, cuda or mps")
    reading.add_argument("--token-budget", type=int, metavar="N", help="tokens of a batch (default: 1024)")
    reading.add_argument("--memory", type=int, metavar="MB", help="states kept in memory; the rest goes to disk")
    reading.add_argument(
        "--spill-dir", metavar="FOLDER", help="where that goes (default: the system's temporary folder)"
    )
    reading.add_argument("--threads", "--jobs", type=int, metavar="N", help="CPU threads (default: all cores)")
    numbers = found.add_argument_group("statistics")
    numbers.add_argument("--methods", metavar="A,B", help="of rr, seat, procrustes_seat, cka_drift (default: all)")
    numbers.add_argument("--seed", type=int, help="seed of all draws (default: 17)")
    numbers.add_argument("--calibration", metavar="FILE", help="calibration that gives dB a probability")
    numbers.add_argument(
        "--fail-on",
        action="append",
        metavar="CONDITION",
        help="end with exit code 1 if a group meets it: dB, |dB|, ci, |ci|, net, |net|, p, percentile or probability, "
        "compared with a number ('ci<-0.02': the whole interval is below; 'dB<-0.02 and p<0.05'); may be repeated",
    )
    models = found.add_argument_group("models and cache")
    models.add_argument(
        "--cross-family", action="store_true", help="allow another tokenizer or width: RR and CKA alone"
    )
    models.add_argument("--any-base", action="store_true", help="accept an adapter whose base is named otherwise")
    models.add_argument("--no-cache", action="store_true", help="neither use nor keep the reference's embeddings")
    models.add_argument("--keep-embeddings", action="store_true", help="write the embeddings into the output folder")
    return found


def _given(**values: Any) -> dict[str, Any]:
    """Return what was given, a 0 included; the rest keeps its default."""
    return {key: value for key, value in values.items() if value is not None and value is not False}


def settings_of(args: argparse.Namespace) -> AuditSettings:
    """Return the settings that the options say.

    Raises
    ------
    UserError
        If a model is missing, or an option's value makes no sense.
    """
    if args.settings is not None:
        return parse_json(AuditSettings, args.settings, "--settings")
    if args.reference is None or not args.audited:
        raise UserError("refbias audit: name a reference and at least one audited model: see refbias audit --help")
    layer = int(args.layer) if args.layer and args.layer.isdecimal() else args.layer
    represent = _given(layer=layer, pooling=args.pooling, exclude_bos=args.exclude_bos, token_budget=args.token_budget)
    stimuli = _given(
        pack=args.stimuli,
        groups_file=args.groups,
        targets_file=args.templates,
        attributes_file=args.attributes,
        anchors_file=args.anchors,
        control_file=args.control,
        targets=args.n_targets,
        attributes=args.n_attributes,
        anchors=args.n_anchors,
        control=args.n_control,
    )
    data = _given(
        reference=args.reference.strip(),
        audited=[spec.strip() for spec in args.audited],
        stimuli=stimuli or None,
        layer_map=args.layers,
        dtype=args.dtype,
        device=args.device,
        methods=args.methods.split(",") if args.methods else None,
        evidence={"seed": args.seed} if args.seed is not None else None,
        cross_family=args.cross_family,
        any_base=args.any_base,
        calibration=args.calibration,
        fail_on=args.fail_on,
        memory_mb=args.memory,
        spill_dir=args.spill_dir,
        keep_embeddings=args.keep_embeddings,
    )
    data["represent"] = {**represent, **({"final_norm": False} if args.no_final_norm else {})}
    data["dtype_check"], data["use_cache"] = not args.no_dtype_check, not args.no_cache
    return parse(AuditSettings, data, "refbias audit")


def _check_output(output: Path) -> None:
    """Refuse a place that holds anything but an earlier audit, or cannot be written to, before hours of work."""
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output}: a file lies there: name a folder")
    if output.is_dir():
        names = sorted(path.name for path in output.iterdir())
        others = [name for name in names if name not in WRITTEN and not _TOLERATED.fullmatch(name)]
        if others:
            raise UserError(
                f"--output {output}: holds {others[0]!r}, which no audit wrote: name a new folder, or that of an audit"
            )
    target = output.resolve()
    place = next(folder for folder in (target, *target.parents) if folder.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"--output {output}: {place} cannot be written to: name another folder")


def _write(audit: Any, settings: AuditSettings, output: Path, is_bare: bool) -> None:
    """Write the whole folder; a page that cannot be made does not take the numbers with it."""
    failed = None
    with atomic_folder(output, WRITTEN) as folder:
        save_result(audit.result, folder / FILE_NAME)
        if settings.keep_embeddings:
            _write_embeddings(audit, folder / EMBEDDINGS)
        if not is_bare:
            _write_table(audit.result, folder / TABLE)
            try:
                _write_report(audit.result, folder / REPORT)
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _FULL:
                    raise
                failed = error
    if failed is not None:
        print(f"refbias: no {REPORT}; the numbers are written to {output}", file=sys.stderr)
        raise failed


def _write_embeddings(audit: Any, folder: Path) -> None:
    from refbias.audit.states import write_states
    from refbias.stimuli import sentence_table

    folder.mkdir()
    write_text(folder / "sentences.tsv", sentence_table(audit.stimuli.sentences))
    # a model's name may hold anything: it is no file's
    for number, states in enumerate(audit.states.values()):
        name = "reference" if number == 0 else f"audited_{number:03d}"
        write_states(states, folder / f"{name}.safetensors")


def _write_report(result: AuditResult, path: Path) -> None:
    from refbias.report.audit import write_report

    write_report(result, path)


def _write_table(result: AuditResult, path: Path) -> None:
    columns = list(GroupResult.model_fields)
    rows = [
        [checkpoint.name, "" if checkpoint.step is None else checkpoint.step, *_cells(group, columns)]
        for checkpoint in result.checkpoints
        for group in [*checkpoint.groups, *([checkpoint.control] if checkpoint.control else [])]
    ]
    write_rows(path, ["checkpoint", "step", *columns], rows)


def _cells(group: GroupResult, columns: Sequence[str]) -> list[object]:
    values = (getattr(group, name) for name in columns)
    return ["" if value is None else f"{value:.10g}" if isinstance(value, float) else value for value in values]


def main(argv: Sequence[str]) -> int:
    """Run the audit.

    Returns
    -------
    int
        0, or 1 where a group meets a condition of ``--fail-on``.

    Raises
    ------
    UserError
        For all that a user can mend, a full disk included.
    """
    # a sum may begin with a negative weight: a blank before it tells it from an option
    args = parser().parse_args([f" {text}" if _NEGATIVE.match(text) else text for text in argv])
    settings = settings_of(args)
    output = args.output or (None if args.json else Path(DEFAULT_OUTPUT))
    if output is None and settings.keep_embeddings:
        raise UserError("--keep-embeddings: --json alone writes no folder: name one by --output")
    if output is not None:
        _check_output(output)
    if args.threads is not None:
        if args.threads < 1:
            raise UserError(f"--threads {args.threads}: must be at least 1")
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if args.settings is not None:
        if output is None:
            raise UserError("--settings: needs --output")
        with Stage("audit", settings.model_dump(mode="json"), output) as stage:
            result = _audit(settings, output, args)
            stage.record(checkpoints=len(result.checkpoints))
        # conditions are the gate's to judge: a failure here would make the workflow remove the result
        return 0
    found = exceeded(_audit(settings, output, args), settings.fail_on)
    for line in met_lines(found):
        print(f"refbias: {line}", file=sys.stderr)
    return EXCEEDED if found else 0


def _audit(settings: AuditSettings, output: Path | None, args: argparse.Namespace) -> AuditResult:
    """Run, write, print."""
    if not sys.stderr.isatty():
        # read when the library is imported; a log is no place for its bars
        os.environ.setdefault("TQDM_DISABLE", "1")
    from refbias.audit.run import run_audit

    audit = run_audit(settings)
    if output is not None:
        try:
            _write(audit, settings, output, is_bare=args.json)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise UserError(
                f"--output {output}: no space left on its disk: free some, or name another folder"
            ) from None
    if args.json:
        print(audit.result.model_dump_json(indent=1))
    else:
        from refbias.report.audit import summary_lines

        print("\n".join(summary_lines(audit.result)))
        print(f"written to {output}")
    return audit.result
