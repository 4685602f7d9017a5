"""The tables of the competence lens."""

from collections.abc import Sequence

from refbias.competence.results import Subject
from refbias.tables.competence.answers import attributes_table, contrasts_table
from refbias.tables.competence.hiring import hiring_names_table, hiring_table
from refbias.tables.competence.rows import CompetenceTable
from refbias.tables.competence.steering import axis_table, mitigation_table
from refbias.tables.competence.verdicts import relevance_table, verdict_table


def tables(subjects: Sequence[Subject]) -> list[CompetenceTable]:
    """Return every table that the subjects allow, verdicts first."""
    found = [
        verdict_table(subjects),
        relevance_table(subjects),
        contrasts_table(subjects),
        attributes_table(subjects),
        hiring_table(subjects),
        hiring_names_table(subjects),
        mitigation_table(subjects),
        axis_table(subjects),
    ]
    return [table for table in found if table is not None]
