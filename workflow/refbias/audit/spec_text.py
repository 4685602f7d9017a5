"""The text of a model specification: what can be shown in a line, written into a file and named to the system."""

import unicodedata
from pathlib import Path

from refbias.errors import UserError

LONGEST = 8192
"""Characters of a specification."""


def readable(spec: str) -> str:
    """Return a specification as it is.

    Raises
    ------
    UserError
        If it is empty, too long, or holds a control character, a line break or half of a character.
    """
    if not spec:
        raise UserError("an empty model specification: name a hub id, a folder or a file")
    # control characters, line breaks, halves of a character; a folder's name may have them
    bad = next((char for char in spec if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")), None)
    if bad is not None:
        shown = spec[:200].encode("unicode_escape").decode()
        raise UserError(f"{shown}: the character U+{ord(bad):04X} in a model specification: rename the folder or file")
    if len(spec) > LONGEST:
        raise UserError(f"{spec[:60]}...: a model specification of {len(spec)} characters: at most {LONGEST} are read")
    return spec


def path_of(spec: str) -> Path:
    """Return the path that a specification may be, with ``~`` written out.

    Raises
    ------
    UserError
        If it names a user who has no home folder.
    """
    try:
        return Path(spec).expanduser()
    except RuntimeError:
        raise UserError(f"{spec}: no home folder of that user: write the path from / on") from None
