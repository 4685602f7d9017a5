"""What is large: the null scale as two tables, with the groups of this audit that lie beyond each value."""

from refbias.config.audit_result import AuditResult, FalseAlarm, NullScale
from refbias.report.audit.cells import Cell, Column, Table, numeric, words
from refbias.report.audit.words import EM_DASH, beyond, digits, per_cent
from refbias.tables.formats import number

NOT_MEASURED = "not part of this null scale"


def scale_tables(result: AuditResult) -> tuple[Table, Table] | None:
    """Return the null scale's quantiles and its false alarms; None without a null scale."""
    found = result.null_scale
    if found is None:
        return None
    return _quantiles(result, found), _alarms(result, found)


def scale_source(scale: NullScale) -> str:
    """Say where the values come from, and whether that is the audit's own reference."""
    values = f"These {scale.n} values, one a group and fine-tuning, come from {scale.source}."
    if scale.is_reference:
        return f"{values} That model is the reference of this audit."
    if scale.is_reference is None:
        return f"{values} They hold for that model and those sentences."
    return f"{values} That is another model than the reference of this audit: read them as an order of magnitude."


def _quantiles(result: AuditResult, scale: NullScale) -> Table:
    net = scale.net.quantiles if scale.net else {}
    places = digits([*scale.quantiles.values(), *net.values()])
    rows = []
    for key, value in sorted(scale.quantiles.items(), key=lambda item: float(item[0])):
        less = net.get(key)
        rows.append(
            (
                words(per_cent(float(key))),
                numeric(value, number(value, places), ""),
                _beyond(result, value, net=False),
                numeric(less, number(less, places), NOT_MEASURED),
                _beyond(result, less, net=True),
            )
        )
    name = result.checkpoints[-1].name
    columns = (
        Column("Share of neutral values below", numeric=False),
        Column("|dB|"),
        Column("Groups beyond it", detail=name),
        Column("|dB net of control|"),
        Column("Groups beyond it, net", detail=name),
    )
    return Table("Size of dB under neutral fine-tuning, and of dB net of the control.", columns, tuple(rows))


def _alarms(result: AuditResult, scale: NullScale) -> Table:
    net = {row.level: row for row in scale.net.false_alarm} if scale.net else {}
    levels = [row.level for row in scale.false_alarm]
    # levels are round numbers: as many decimals as the finest needs
    places = max((len(f"{level:.10f}".rstrip("0").partition(".")[2]) for level in levels), default=0)
    rows = [
        (
            numeric(row.level, number(row.level, places), ""),
            *_rates(row),
            *_rates(net.get(row.level)),
            _beyond(result, row.level, net=False),
            _beyond(result, row.level, net=True),
        )
        for row in scale.false_alarm
    ]
    interval = "" if scale.level is None else f"{per_cent(scale.level)} interval"
    some = "Any group" if scale.n_groups is None else f"Any of {scale.n_groups} groups"
    columns = (
        Column("Alarm level"),
        Column("One group", detail=interval),
        Column(some, detail=interval),
        Column("One group, net", detail=interval),
        Column(f"{some}, net", detail=interval),
        Column("Groups beyond it"),
        Column("Groups beyond it, net"),
    )
    seeds = "" if scale.n_seeds is None else f" Known from {scale.n_seeds} fine-tunings."
    return Table(
        "How often a neutral fine-tuning raises an alarm at a level of |dB|: in one group, and in any of its groups, "
        f"which is what a condition of fail-on asks.{seeds}",
        columns,
        tuple(rows),
    )


def _rates(row: FalseAlarm | None) -> tuple[Cell, Cell]:
    if row is None:
        return Cell(EM_DASH, why=NOT_MEASURED), Cell(EM_DASH, why=NOT_MEASURED)
    return (
        numeric(row.rate, per_cent(row.rate), "", _ends(row.low, row.high)),
        numeric(
            row.any_group,
            "" if row.any_group is None else per_cent(row.any_group),
            NOT_MEASURED,
            _ends(row.any_low, row.any_high),
        ),
    )


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{per_cent(low)} to {per_cent(high)}"


def _beyond(result: AuditResult, level: float | None, *, net: bool) -> Cell:
    last = result.checkpoints[-1]
    if level is None:
        return Cell(EM_DASH, why=NOT_MEASURED)
    if net and all(group.net_of_control is None for group in last.groups):
        return Cell(EM_DASH, why="no control sentences")
    n = beyond(last, level, net=net)
    return numeric(float(n), f"{n} of {len(last.groups)}", "")
