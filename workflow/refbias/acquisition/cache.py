"""The caches that runs share, the switch to offline work, and patience with a network.

A download is named by its content, so two runs or two addresses of one file share it. Models and data
sets of the hub lie in the hub client's own cache, which other tools on the machine share too.
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

LOG = logging.getLogger(__name__)
T = TypeVar("T")

ATTEMPTS = 4
FIRST_WAIT_S = 1.0
"""Wait before the second attempt; doubled for each further one."""


def is_offline() -> bool:
    """Tell whether nothing may be asked of the network (HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE)."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").strip().upper() in ("1", "ON", "YES", "TRUE") for name in names)


def cache_root() -> Path:
    """Return the folder of the cache: REFBIAS_CACHE, else refbias below XDG_CACHE_HOME, else ~/.cache/refbias."""
    if named := os.environ.get("REFBIAS_CACHE", "").strip():
        return Path(named)
    shared = os.environ.get("XDG_CACHE_HOME", "").strip()
    # the standard has a relative path ignored
    return (Path(shared) if Path(shared).is_absolute() else Path.home() / ".cache") / "refbias"


def by_content(sha256: str) -> Path:
    """Return where the cache keeps the file with this SHA-256."""
    return cache_root() / "sha256" / sha256[:2] / sha256


def hub_cache() -> Path | None:
    """Return the hub client's cache folder: below REFBIAS_CACHE if that is set, else None for the client's own."""
    return cache_root() / "hub" if os.environ.get("REFBIAS_CACHE", "").strip() else None


class Passing(Exception):  # noqa: N818 - no error yet: the next attempt may succeed
    """A failure that may pass; the text says what happened."""


def patiently(action: Callable[[], T], what: str) -> T:
    """Call `action`, again after a growing wait where it raises `Passing`.

    Parameters
    ----------
    action
        What to do.
    what
        Its name in the log.

    Returns
    -------
    object
        What `action` returned.

    Raises
    ------
    Passing
        From the last of `ATTEMPTS` attempts. Any other exception at once.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return action()
        except Passing as error:
            wait = FIRST_WAIT_S * 2**attempt
            LOG.warning(
                "%s: %s; attempt %d of %d in %.0f s", what, " ".join(str(error).split()), attempt + 2, ATTEMPTS, wait
            )
            time.sleep(wait)
    return action()
