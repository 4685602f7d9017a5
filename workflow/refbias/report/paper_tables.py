"""The paper's tables 2 to 7 inside the report, and what was not run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from refbias.config.pictures import PICTURES, TABLES
from refbias.tables import TextTable
from refbias.tables.table2 import TABLE2_CAPTION, table2_text
from refbias.tables.table3 import TABLE3_CAPTION, table3_text
from refbias.tables.table7 import TABLE7_CAPTION, table7_text
from refbias.tables.variants import TABLE4_CAPTION, TABLE5_CAPTION, TABLE6_CAPTION, table4_text, variants_text

_FORMATS = {
    "table2": (table2_text, TABLE2_CAPTION),
    "table3": (table3_text, TABLE3_CAPTION),
    "table4": (table4_text, TABLE4_CAPTION),
    "table5": (variants_text, TABLE5_CAPTION),
    "table6": (variants_text, TABLE6_CAPTION),
    "table7": (table7_text, TABLE7_CAPTION),
}


@dataclass(frozen=True)
class PaperTable:
    """One of the paper's tables as the page shows it; `name` is its file's stem."""

    name: str
    title: str
    caption: str
    table: TextTable


def paper_tables(frames: Mapping[str, pd.DataFrame]) -> Iterator[PaperTable]:
    """Format those of tables 2 to 7 that a run made, given by stem."""
    for known in TABLES:
        if known.stem in frames and known.stem in _FORMATS:
            form, caption = _FORMATS[known.stem]
            title = f"{known.name.replace('_', ' ').capitalize()}: {known.title}"
            yield PaperTable(known.stem, title, caption, form(frames[known.stem]))


def absent(lacks: Mapping[str, str]) -> TextTable:
    """List the paper's tables and figures that a run lacks, with the reason."""
    rows = [
        (name.replace("_", " ").capitalize(), picture.title, f"not run ({lacks[name]})")
        for name, picture in PICTURES.items()
        if lacks[name]
    ]
    return TextTable(("Picture", "Shows", "This run"), (False, False, False), tuple(rows))
