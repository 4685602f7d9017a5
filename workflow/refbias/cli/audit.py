"""Hold checkpoints against a reference: dB per group with its evidence.

Models are named as a hub id (owner/name or owner/name@revision), a folder of safetensors or of a PEFT adapter, a
training run's folder of checkpoint-* folders (a curve), a file.gguf, a weighted sum such as 0.3*A+0.7*B, or
packaged:gemma3-270m.

exit codes: 0 done; 1 done, and a group meets a --fail-on condition; 2 a mistake that you can mend, or a full disk;
130 interrupted. After 2 and 130 nothing is left behind.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refbias.artifacts import Stage, atomic_path, write_rows
from refbias.config.audit import AuditSettings
from refbias.config.audit_result import FILE_NAME, AuditResult, CheckpointResult, GroupResult, save_result
from refbias.config.base import parse, parse_json
from refbias.errors import UserError

EXCEEDED = 1
DEFAULT_OUTPUT = "refbias-audit"
REPORT = "report.html"
TABLE = "groups.csv"
EMBEDDINGS = "embeddings"
MANIFEST = "manifest.json"
_OURS = {FILE_NAME, REPORT, TABLE, EMBEDDINGS, MANIFEST, ".lock"}


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
        reference=args.reference,
        audited=args.audited,
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
        keep_embeddings=args.keep_embeddings,
    )
    data["represent"] = {**represent, **({"final_norm": False} if args.no_final_norm else {})}
    data["dtype_check"], data["use_cache"] = not args.no_dtype_check, not args.no_cache
    return parse(AuditSettings, data, "refbias audit")


def _check_output(output: Path) -> None:
    """Refuse a place that holds anything but an earlier audit, before hours of work."""
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output}: a file lies there: name a folder")
    if output.is_dir():
        others = sorted(path.name for path in output.iterdir() if path.name not in _OURS)
        if others:
            raise UserError(
                f"--output {output}: holds {others[0]!r}, which no audit wrote: name a new folder, or that of an audit"
            )
    place = next(folder for folder in output.absolute().parents if folder.exists())
    if not os.access(place, os.W_OK):
        raise UserError(f"--output {output}: {place} cannot be written to: name another folder")


def _write(audit: Any, settings: AuditSettings, output: Path, is_bare: bool) -> None:
    """Write the whole folder under a temporary name, and rename it."""
    from refbias.audit.states import write_states

    with atomic_path(output) as folder:
        folder.mkdir()
        save_result(audit.result, folder / FILE_NAME)
        if is_bare:
            return
        _write_table(audit.result, folder / TABLE)
        _write_report(audit.result, folder / REPORT)
        if settings.keep_embeddings:
            from refbias.stimuli import sentence_table

            (folder / EMBEDDINGS).mkdir()
            (folder / EMBEDDINGS / "sentences.tsv").write_text(
                sentence_table(audit.stimuli.sentences), encoding="utf-8", newline="\n"
            )
            # a model's name may hold anything: it is no file's
            for number, states in enumerate(audit.states.values()):
                name = "reference" if number == 0 else f"audited_{number:03d}"
                write_states(states, folder / EMBEDDINGS / f"{name}.safetensors")


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


def _number(value: float | None, form: str = "+.4f") -> str:
    return "-" if value is None else format(value, form)


def lines(checkpoint: CheckpointResult) -> list[str]:
    """Return what the terminal shows of one audited model: a line a group, the largest shift first."""
    words = {"confirmed": "moved", "unconfirmed": "moved, not confirmed by every check", "none": "", None: ""}
    ordered = sorted(checkpoint.groups, key=lambda group: -abs(group.delta_b or 0.0))
    shown = [*ordered, *([checkpoint.control] if checkpoint.control else [])]
    width = max(len(group.group) for group in shown)
    found = [f"{_plain(checkpoint.name)}: {checkpoint.verdict.sentence}", f"  {checkpoint.verdict.uncertainty}"]
    for group in shown:
        probability = "" if group.probability is None else f"  P {group.probability:.2f}"
        found.append(
            f"  {group.group:<{width}}  dB {_number(group.delta_b)}  [{_number(group.ci_low)}, "
            f"{_number(group.ci_high)}]  p {_number(group.p_holm, '.2g'):<7}{probability}  "
            f"{words[group.finding]}".rstrip()
        )
    found += [f"  warning ({warning.code}): {warning.sentence}" for warning in checkpoint.warnings]
    return found


def _plain(text: str) -> str:
    """Return a text without control characters: a terminal obeys them."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


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
    args = parser().parse_args(argv)
    settings = settings_of(args)
    output = args.output or (None if args.json else Path(DEFAULT_OUTPUT))
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
            found = _audit(settings, output, args)
            stage.record(exceeded=[list(row) for row in found])
        # the workflow would take a code other than 0 for a failure, and remove the result
        return 0
    return EXCEEDED if _audit(settings, output, args) else 0


def _audit(settings: AuditSettings, output: Path | None, args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Run, write, print; return what meets a condition of ``--fail-on``."""
    if not sys.stderr.isatty():
        # read when the library is imported; a log is no place for its bars
        os.environ.setdefault("TQDM_DISABLE", "1")
    from refbias.audit.run import run_audit
    from refbias.audit.verdicts import exceeded

    audit = run_audit(settings)
    found = exceeded(audit.result, settings.fail_on)
    if output is not None:
        try:
            _write(audit, settings, output, is_bare=args.json)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(
                f"--output {output}: no space left on its disk: free some, or name another folder"
            ) from None
    if args.json:
        print(audit.result.model_dump_json(indent=1))
    else:
        for checkpoint in audit.result.checkpoints:
            print("\n".join(lines(checkpoint)))
        print(f"written to {output}")
    for condition, name in dict.fromkeys((text, name) for text, name, _ in found):
        groups = ", ".join(group for text, other, group in found if (text, other) == (condition, name))
        print(f"refbias: --fail-on {condition!r} is met by {groups} of {_plain(name)}", file=sys.stderr)
    return found
