"""Where the files that ship with the package lie.

They live in the checkout's own folders (``data/``, ``workflow/report/``) and are copied into the
wheel below the package, so both places are looked at: the installed copy first.
"""

from pathlib import Path

from refbias.errors import UserError

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent.parent
_ROOTS = {
    "data": (_PACKAGE / "data", _CHECKOUT / "data"),
    "report": (_PACKAGE / "report_files", _CHECKOUT / "workflow" / "report"),
}


def _resolve(kind: str, parts: tuple[str, ...]) -> Path:
    for root in _ROOTS[kind]:
        path = root.joinpath(*parts)
        if path.exists():
            return path
    raise UserError(f"shipped file {kind}/{'/'.join(parts)} is missing: reinstall refbias")


def data_path(*parts: str) -> Path:
    """Return the path of a shipped data file or folder.

    Parameters
    ----------
    *parts
        Path components below ``data/``.

    Returns
    -------
    Path
        An existing path.

    Raises
    ------
    UserError
        If nothing of that name ships.
    """
    return _resolve("data", parts)


def report_path(*parts: str) -> Path:
    """Return the path of a shipped report file (template, captions).

    Parameters
    ----------
    *parts
        Path components below ``workflow/report/``.

    Returns
    -------
    Path
        An existing path.

    Raises
    ------
    UserError
        If nothing of that name ships.
    """
    return _resolve("report", parts)
