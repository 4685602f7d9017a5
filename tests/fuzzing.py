"""What the fuzz tests share: strange values, damaged bytes, and the promise that is held."""

import datetime
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from refbias.errors import UserError
from tests.limits import bounded

# what a loader may take at most: seconds of the processor, libraries imported within; and by the clock, on a machine
# that does other things too
SECONDS = 60
MEMORY_MB = 4000
DEADLINE = datetime.timedelta(minutes=5)
MANY = settings(max_examples=60, deadline=DEADLINE, suppress_health_check=list(HealthCheck))
FEW = settings(max_examples=12, deadline=DEADLINE, suppress_health_check=list(HealthCheck))

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**30),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "0", "-1", "NaN", "auto", "full", "float16", "../x", "a\nb", "\x00", "\ud800", "1e999"]),
    st.binary(max_size=4),
    st.dates(),
)


def trees(keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What YAML can hold: scalars, lists and mappings, whose keys need not be text."""
    return st.recursive(
        scalars,
        lambda part: st.one_of(
            st.lists(part, max_size=3),
            st.dictionaries(st.one_of(keys, st.text(max_size=4), st.integers(), st.none()), part, max_size=4),
        ),
        max_leaves=8,
    )


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all places of a tree."""
    below = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, part in below for place in places(part, (*path, key)))]


def result_or_line(work: Callable[[], Any]) -> Any:
    """Return the result, or None after a mistake that is told in one line; either within the bounds."""
    try:
        with bounded(SECONDS, MEMORY_MB):
            return work()
    except UserError as error:
        told = str(error)
    assert told.strip()
    assert "\n" not in told
    return None


edits = st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4)


def edited(content: bytes, changes: list[tuple[float, bytes]]) -> bytes:
    """Return `content` with bytes written over it, each at a share of its length."""
    found = bytearray(content)
    for share, new in changes:
        at = int(share * max(0, len(found) - 1))
        found[at : at + len(new)] = new
    return bytes(found)
