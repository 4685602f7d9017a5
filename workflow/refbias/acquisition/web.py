"""A file at a web address: resumed where it was cut, held to its SHA-256, kept by content.

The file appears in the cache under its checksum once it is whole and right; a partial one lies beside
it under a temporary name, from which the next attempt goes on.
"""

import errno
import fcntl
import http.client
import shutil
import urllib.error
import urllib.request
from pathlib import Path

from refbias import __version__
from refbias.acquisition.cache import Passing, by_content, cache_root, is_offline, patiently
from refbias.artifacts import sha256_file
from refbias.errors import UserError

TIMEOUT_S = 30.0
NO_ANSWER = "no answer"
_PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
_BLOCK = 1 << 20


def _request(url: str, method: str = "GET", start: int = 0) -> urllib.request.Request:
    headers = {"User-Agent": f"refbias/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    # the configuration admits http and https alone
    return urllib.request.Request(url, headers=headers, method=method)  # noqa: S310


def _receive(url: str, part: Path) -> bool:
    """Append to `part` what is still missing of the file at `url`; return whether it came in one piece.

    Raises
    ------
    Passing
        If the transfer was cut or the server is busy or out of reach.
    UserError
        If the server refuses.
    """
    start = part.stat().st_size if part.exists() else 0
    try:
        with urllib.request.urlopen(_request(url, start=start), timeout=TIMEOUT_S) as response:  # noqa: S310
            # a server that knows no ranges sends the whole file again
            resumed = response.status == http.client.PARTIAL_CONTENT
            left = response.headers.get("Content-Length")
            with part.open("ab" if resumed else "wb") as handle:
                before = handle.tell()
                shutil.copyfileobj(response, handle, _BLOCK)
                received = handle.tell() - before
        if left is not None and received < int(left):
            raise Passing(f"cut after {received} of {left} bytes")
        return not resumed
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            # longer than the file: not a part of it
            part.unlink()
            raise Passing("the partial file was no part of it") from None
        if error.code in _PASSING_STATUS:
            raise Passing(f"status {error.code}") from None
        raise UserError(
            f"{url}: the server answers {error.code} ({error.reason}): correct the address, or give a copy as "
            "`source: {kind: local, path: ...}`"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise
        raise Passing(f"{type(error).__name__}: {error}") from None


def _receive_right(url: str, part: Path, sha256: str) -> None:
    in_one_piece = _receive(url, part)
    found = sha256_file(part)
    if found == sha256:
        return
    part.unlink()
    if not in_one_piece:
        raise Passing("the pieces are of two versions of the file")
    raise UserError(
        f"{url}: SHA-256 is {found}, not {sha256}: the file there was changed, or the checksum in `data` is wrong"
    )


def download(url: str, sha256: str) -> Path:
    """Return the cached file with this SHA-256, downloaded if it is not there yet.

    Parameters
    ----------
    url
        http or https address.
    sha256
        Hexadecimal checksum that the file must have.

    Returns
    -------
    Path
        A file in the cache; link or copy it, never change it.

    Raises
    ------
    UserError
        If the file cannot be had, or has another checksum after every attempt.
    """
    target = by_content(sha256)
    if target.is_file():
        if sha256_file(target) == sha256:
            return target
        target.unlink()
    local = "or give a copy as `source: {kind: local, path: ...}`"
    if is_offline():
        raise UserError(
            f"{url}: not in the cache ({cache_root()}) and offline: run once with network (without HF_HUB_OFFLINE "
            f"and `offline: true`), {local}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{sha256}.part")
    with part.with_suffix(".lock").open("w", encoding="utf-8") as lock:
        # two runs that want the same file must not write into one partial file
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_file():
            try:
                patiently(lambda: _receive_right(url, part, sha256), url)
            except Passing as error:
                raise UserError(f"{url}: not downloaded ({error}): try again later, {local}") from None
            part.replace(target)
    return target


def answers(url: str, timeout_s: float) -> str | None:
    """Ask for a file's head; return None if it can be had, else what is wrong.

    Parameters
    ----------
    url
        http or https address.
    timeout_s
        Patience in seconds.
    """
    try:
        with urllib.request.urlopen(_request(url, "HEAD"), timeout=timeout_s):  # noqa: S310
            return None
    except urllib.error.HTTPError as error:
        return f"the server answers {error.code} ({error.reason})"
    except (OSError, http.client.HTTPException) as error:
        return f"{NO_ANSWER} ({type(error).__name__})"
