"""The audit's report: one HTML page made from ``audit.json`` alone.

It opens offline, asks nothing of the network, holds no text that a model wrote, and escapes everything: names of
models, groups and sentences come from files that others wrote. Its one script sorts tables and is allowed by its
hash; without it everything is there, in the order of dB.
"""

import base64
import hashlib
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from refbias.artifacts import write_text
from refbias.config.audit_result import AuditResult
from refbias.report.audit.blocks import Block, block
from refbias.report.audit.charts import SHADES
from refbias.report.audit.curves import curves
from refbias.report.audit.facts import model_facts, setting_facts, timing_facts
from refbias.report.audit.scale import scale_source, scale_tables
from refbias.report.audit.summary import summary_lines
from refbias.report.audit.tables import overview_table
from refbias.report.audit.words import (
    KIND_LABELS,
    LEVEL_LABELS,
    clean,
    digits,
    does_not_show,
    per_cent,
    shared_warnings,
    stand_out_rule,
)
from refbias.resources import report_path
from refbias.tables.formats import number

TEMPLATE = "audit.html.j2"
SCRIPT = "audit_sort.js"


def _finalize(value: Any) -> Any:
    """Clean text on its way into the page, but not what the templates themselves made."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _environment(folder: Path) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )


def _script(folder: Path) -> tuple[Markup, str]:
    """Return the script's text and the source expression that allows it and no other."""
    text = (folder / SCRIPT).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"sha256-{digest}"  # noqa: S704 - a shipped file, not input


def render(result: AuditResult) -> str:
    """Return the report's HTML.

    Parameters
    ----------
    result
        An audit's result.

    Returns
    -------
    str
        A whole page without any address outside of it.
    """
    folder = report_path(TEMPLATE).parent
    script, allowed = _script(folder)
    blocks: list[Block] = [
        block(result, checkpoint, index) for index, checkpoint in enumerate(result.checkpoints, start=1)
    ]
    drawn = curves(result)
    context: dict[str, Any] = {
        "result": result,
        "blocks": blocks,
        "several": len(blocks) > 1,
        "title": f"{blocks[0].name} against {result.reference.name}"
        if len(blocks) == 1
        else f"{len(blocks)} checkpoints against {result.reference.name}",
        "levels": LEVEL_LABELS,
        "kinds": KIND_LABELS,
        "rule": stand_out_rule(result),
        "curves": drawn,
        "named": [f"{curve.name} {curve.text}" for curve in drawn.named] if drawn else [],
        "shared_warnings": shared_warnings(result),
        "overview": overview_table(result),
        "scale_tables": scale_tables(result),
        "scale_source": scale_source(result.null_scale) if result.null_scale else "",
        "models": model_facts(result),
        "settings": setting_facts(result),
        "timing": timing_facts(result),
        "does_not_show": does_not_show(result),
        "interval": f"{per_cent(result.settings.level)} interval",
        "shades": SHADES,
        "script": script,
        "allowed": allowed,
    }
    environment = _environment(folder)
    environment.filters["decimal"] = lambda value: number(value, digits([value]))
    return environment.get_template(TEMPLATE).render(context)


def write_report(result: AuditResult, path: Path) -> None:
    """Write the report, atomically."""
    write_text(path, render(result))


__all__ = ["render", "summary_lines", "write_report"]
