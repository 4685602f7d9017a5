"""Sections of the further lenses: the same shape in the run's report and on a page of their own."""

from collections.abc import Sequence
from dataclasses import dataclass

import jinja2

from refbias.report.pictures import Picture
from refbias.resources import report_path
from refbias.tables import TextTable

PAGE = "lens.html.j2"


@dataclass(frozen=True)
class SectionTable:
    """A table of a section; a folded one is opened by its title."""

    title: str
    table: TextTable
    caption: str
    id: str
    folded: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a report: plain text, escaped when it is drawn.

    Attributes
    ----------
    id
        Of the heading; ids of tables must differ from it and from each other on a page.
    title
        The heading.
    paragraphs
        What the lens is and how to read it.
    tables, pictures
        What it found; aggregates only.
    findings
        What it found in sentences.
    warnings
        What to know before believing it.
    """

    id: str
    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[SectionTable, ...] = ()
    pictures: tuple[Picture, ...] = ()
    findings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def stand_in_sentence(model: str) -> str:
    """Return what a reader has to know of a lens on the packaged model."""
    return (
        f"{model} is the packaged Gemma 3 (270M, base, a third party's 4-bit repackaging): no chat model, and one "
        "that follows questions poorly. Sentences and questions are this project's own stand-ins for the published "
        "ones. The numbers show that the lens works, not how a current model behaves."
    )


def environment() -> jinja2.Environment:
    """Return the environment of all report templates: everything is escaped, nothing may be undefined."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(report_path(PAGE).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return a page that holds sections alone, for a lens that ran without the experiment.

    Parameters
    ----------
    title
        The page's heading.
    lead
        The line below it.
    sections
        Drawn in their order.

    Returns
    -------
    str
        HTML without scripts and without any address.
    """
    return environment().get_template(PAGE).render(title=title, lead=lead, sections=list(sections))
