"""A line of the preflight's table."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "note", "missing"]
OK: Status = "ok"
NOTE: Status = "note"
MISSING: Status = "missing"


@dataclass(frozen=True)
class Row:
    """One thing that a run needs.

    Parameters
    ----------
    kind
        ``hub``, ``url``, ``token``, ``path``, ``software``, ``disk`` or ``gpu``.
    name
        What is needed: a repository, an address, a path.
    status
        ``ok``; ``note``, which a run survives; ``missing``, which stops it.
    found
        What was found.
    mend
        What to do about it, "" where nothing is to be done.
    key
        Key of the configuration that asks for it.
    facts
        For the file (JSON values).
    """

    kind: str
    name: str
    status: Status
    found: str
    mend: str = ""
    key: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)
