"""Read a user's own copy of BiasAsker's groups and properties.

The data set (Wan et al. 2023) holds offensive text and is neither shipped nor fetched. Its files come in two schemas,
in UTF-8 with or without a byte order mark, or in GBK as a Chinese spreadsheet saves them:

============ ===================================================================== ==================
what          sample schema                                                         full schema
============ ===================================================================== ==================
groups        ``category,group[,translate]``                                        ``Group,Category``
properties    ``cat,label,bias_,...,bias,...`` (negative and positive phrase;       ``Sentence,Antonym,Labels``
              also spelled ``bias_(negative)`` and ``bias(positive)``)
============ ===================================================================== ==================

Phrases are finite ("are patient"), so the questions are those of the templates that need a statement; a phrase that
begins with a form of *be* or *have*, or with a bare verb, is also made to fit behind "likely to".
"""

import csv
import hashlib
import io
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from refbias.errors import UserError
from refbias.metamorphic.data import ANY_CATEGORY, Group, Material, Phrases, Property, load_material

LOG = logging.getLogger(__name__)
NAMES = (
    "appearance",
    "financial status",
    "social status",
    "crime",
    "mistreatment",
    "personality",
    "ability",
    "morality",
    "belief",
    "health",
    "family & relationship",
    "culture",
)
"""Labels 1 to 12 of the sample schema, in words of the full one."""

_GROUPS = (("category", "group"),)
_SAMPLE = ("bias_", "bias", "label")
_FULL = ("sentence", "antonym", "labels")
_BE = re.compile(r"^(?:are|is)\b")
_HAVE = re.compile(r"^has\b")
# forms that have no infinitive, or whose infinitive would change what is said
_FINITE = re.compile(r"^(?:can|can't|cannot|cant|could|should|shouldn't|will|won't|must|was|were|do|don't|dont|does)\b")
_ARE_NOT = re.compile(r"^(?:aren't|arent|isn't|are not|is not)\b")


def _decoded(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): name an existing CSV file") from error
    for encoding in ("utf-8-sig", "gb18030"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise UserError(f"{path}: neither UTF-8 nor GBK: save the file as UTF-8")


def _header(name: str) -> str:
    """Return a column's name without blanks, case and the remark in brackets."""
    return re.sub(r"\s*[(（].*$", "", name.strip()).casefold()


def _cells(path: Path, schemas: Sequence[Sequence[str]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (``file:line``, cells by column) of a CSV that has the columns of one of the schemas."""
    reader = csv.reader(io.StringIO(_decoded(path), newline=""))
    header = [_header(name) for name in next(reader, [])]
    if not any(set(schema) <= set(header) for schema in schemas):
        nearest = max(schemas, key=lambda schema: len(set(schema) & set(header)))
        missing = ", ".join(repr(name) for name in nearest if name not in header)
        wanted = " or ".join(", ".join(schema) for schema in schemas)
        raise UserError(f"{path}:1: no column {missing}: a BiasAsker file has the columns {wanted}")
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        where = f"{path}:{reader.line_num}"
        if len(row) != len(header):
            raise UserError(f"{where}: {len(row)} cells, but the header names {len(header)} columns: mend the line")
        yield where, {name: " ".join(cell.split()) for name, cell in zip(header, row, strict=True)}


def _slug(*parts: str) -> str:
    text = re.sub(r"[^a-z0-9]+", "_", " ".join(parts).casefold()).strip("_")
    digest = hashlib.sha256("\0".join(parts).casefold().encode()).hexdigest()[:6]
    return f"g_{text[:40].strip('_')}_{digest}"


def clean_labels(cell: str, where: str) -> tuple[str, ...]:
    """Return the labels of a property in words.

    Parameters
    ----------
    cell
        ``[1, 6]`` (numbers from 1 to 12) or ``Ability, Social status``.
    where
        Begins an error.

    Returns
    -------
    tuple of str
        Lower-case, each once, in the cell's order.

    Raises
    ------
    UserError
        For an empty cell or a number or name that is no label.
    """
    parts = [" ".join(part.split()).casefold() for part in cell.strip().strip("[]").split(",")]
    words = []
    for part in filter(None, parts):
        if part.isdecimal() and 1 <= int(part) <= len(NAMES):
            words.append(NAMES[int(part) - 1])
        elif part in NAMES:
            words.append(part)
        else:
            raise UserError(f"{where}: unknown label {part!r}: one of 1 to {len(NAMES)}, or {', '.join(NAMES)}")
    if not words:
        raise UserError(f"{where}: no label: give one of {', '.join(NAMES)}")
    return tuple(dict.fromkeys(words))


def infinitive(phrase: str) -> str:
    """Return a finite plural phrase as it stands behind "likely to"; empty where that cannot be told."""
    if _ARE_NOT.match(phrase):
        return _ARE_NOT.sub("not be", phrase)
    if _FINITE.match(phrase):
        return ""
    return _HAVE.sub("have", _BE.sub("be", phrase))


def _phrases(statement: str) -> Phrases:
    return Phrases(verb_phrase=infinitive(statement), statement=statement)


def _say_dropped(path: Path | str, n: int) -> None:
    if n:
        LOG.info("%s: %d rows are dropped, each repeats an earlier one", path, n)


def load_groups(path: Path | str) -> tuple[Group, ...]:
    """Read BiasAsker's groups (both schemas), each (category, group) once whatever its case.

    Repeated rows, and categories of one group, are left out; the log says so.
    """
    found: dict[tuple[str, str], Group] = {}
    n_rows = 0
    for where, row in _cells(Path(path), _GROUPS):
        n_rows += 1
        category, name = row["category"].casefold().replace(" ", "_"), row["group"].strip("\"'")
        if not category or not name:
            raise UserError(f"{where}: an empty category or group: fill it or remove the line")
        found.setdefault((category, name.casefold()), Group(category, _slug(category, name), name, name))
    sizes = Counter(category for category, _ in found)
    groups = tuple(group for group in found.values() if sizes[group.category] > 1)
    if not groups:
        raise UserError(f"{path}: no category with two groups: a question compares two")
    _say_dropped(path, n_rows - len(found))
    lonely = [category for category, size in sizes.items() if size == 1]
    if lonely:
        LOG.warning("%s: left out, a category of one group: %s", path, ", ".join(lonely))
    return groups


def load_properties(path: Path | str) -> tuple[Property, ...]:
    """Read BiasAsker's properties with their opposites, each pair of phrases once.

    Parameters
    ----------
    path
        CSV of the sample schema, or ``antonym_annotation.csv`` of the full one.

    Returns
    -------
    tuple of Property
        Of category ``any``; `flip_ok` is false where both poles read the same. The topic is the first label.

    Raises
    ------
    UserError
        For an absent column, an empty phrase or an unknown label, with ``file:line``.
    """
    found: dict[tuple[str, str], Property] = {}
    n_rows = 0
    for where, row in _cells(Path(path), (_SAMPLE, _FULL)):
        n_rows += 1
        full = "sentence" in row
        negative, positive = (row["sentence"], row["antonym"]) if full else (row["bias_"], row["bias"])
        labels = clean_labels(row["labels" if full else "label"], where)
        if not negative or not positive:
            raise UserError(f"{where}: a phrase is empty: fill it or remove the line")
        key = (negative.casefold(), positive.casefold())
        identity = "p" + _slug(negative, positive)[1:]
        flip = key[0] != key[1]
        found.setdefault(key, Property(ANY_CATEGORY, identity, labels[0], _phrases(negative), _phrases(positive), flip))
    if not found:
        raise UserError(f"{path}: no rows below the header: add at least one")
    _say_dropped(path, n_rows - len(found))
    return tuple(found.values())


def load_biasasker(groups: Path | str, properties: Path | str) -> Material:
    """Read a user's copy of BiasAsker.

    Parameters
    ----------
    groups
        ``groups.csv`` or ``groups_for_auto.csv``.
    properties
        ``antonym_annotation.csv`` or ``sample_bias_data_for_auto.csv``.

    Raises
    ------
    UserError
        With ``file:line``, for any mistake in a file.
    """
    return Material(load_groups(groups), load_properties(properties))


def read_material(groups: Path | None = None, properties: Path | None = None) -> Material:
    """Read groups and properties of either kind: TSV files, the shipped ones for None, or a BiasAsker copy's CSV files.

    Raises
    ------
    UserError
        For any mistake in a file, or where only one of the two is a CSV file.
    """
    given = [path for path in (groups, properties) if path]
    if groups and properties and all(path.suffix.lower() == ".csv" for path in given):
        return load_biasasker(groups, properties)
    if any(path.suffix.lower() == ".csv" for path in given):
        raise UserError("--groups and --properties: a BiasAsker copy needs both of its CSV files")
    return load_material(groups, properties)
