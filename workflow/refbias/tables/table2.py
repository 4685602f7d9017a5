"""Table 2: the target groups and the topics to which they belong."""

import csv
from pathlib import Path

import pandas as pd

from refbias.errors import UserError
from refbias.resources import data_path
from refbias.tables.cells import TextTable
from refbias.tables.labels import plain_name
from refbias.tables.printed import printed

TABLE2_CAPTION = (
    "The target groups, the topic as whose members their dB is averaged for WildGuardMix, and the group of ToxiGen "
    "that takes their dB, where there is one."
)


def table2(groups_file: str | Path | None) -> pd.DataFrame:
    """List the target groups by topic.

    Parameters
    ----------
    groups_file
        TSV with the columns id, name, topic and toxigen; None for the shipped one.

    Returns
    -------
    DataFrame
        Columns topic, n_groups (of the topic), group, name and toxigen; topics in the order of the file.

    Raises
    ------
    UserError
        If the file or a column is missing.
    """
    path = Path(groups_file) if groups_file else data_path("stimuli", "groups.tsv")
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            rows = list(csv.DictReader(handle, delimiter="\t"))
        topics = list(dict.fromkeys(row["topic"] for row in rows))
        members = {topic: [row for row in rows if row["topic"] == topic] for topic in topics}
        found = [
            (topic, len(inside), row["id"], row["name"], row["toxigen"] or "")
            for topic, inside in members.items()
            for row in inside
        ]
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: name a TSV of target groups") from None
    except KeyError as error:
        raise UserError(f"{path}:1: column {error} is missing: groups need id, name, topic, toxigen") from None
    return pd.DataFrame(found, columns=["topic", "n_groups", "group", "name", "toxigen"])


def table2_text(frame: pd.DataFrame) -> TextTable:
    """Format Table 2, one row a topic."""
    rows = [
        {
            "topic": plain_name(str(topic)),
            "groups": ", ".join(inside["name"]),
            "toxigen": ", ".join(f"{row['name']} ({row['toxigen']})" for _, row in inside.iterrows() if row["toxigen"]),
        }
        for topic, inside in frame.groupby("topic", sort=False)
    ]
    headers = {"topic": "Topic", "groups": "Target groups", "toxigen": "In ToxiGen"}
    return printed(pd.DataFrame(rows, columns=list(headers)), headers)
