"""Tables as people read them: numbers as text, names, and the paper's tables with its values beside the computed ones.

Every table, figure and page takes its numbers from here, so that a value never reads differently in two places. A
value that could not be had is a dash, and the reason stands in the table's note.
"""

from refbias.tables.cells import TextTable, latex, latex_escape, markdown, markdown_cell, read_csv
from refbias.tables.labels import GroupName, group_names
from refbias.tables.paper import beside, paper_values, table1_beside_paper
from refbias.tables.table1 import TABLE1_COLUMNS, table1, table1_caption, table1_latex, table1_markdown

__all__ = [
    "TABLE1_COLUMNS",
    "GroupName",
    "TextTable",
    "beside",
    "group_names",
    "latex",
    "latex_escape",
    "markdown",
    "markdown_cell",
    "paper_values",
    "read_csv",
    "table1",
    "table1_beside_paper",
    "table1_caption",
    "table1_latex",
    "table1_markdown",
]
