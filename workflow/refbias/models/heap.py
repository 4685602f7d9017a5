"""Keep memory that torch frees on the CPU, instead of handing it back and faulting it in again.

A training step on a CPU frees and asks for gigabytes. By default glibc returns large blocks to the
kernel at once and every step pays for their page faults anew, which on virtual machines costs more
than the arithmetic.
"""

import contextlib
import ctypes
import gc
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8


def keep_freed_memory() -> None:
    """Tell glibc's allocator to keep what is freed, for all threads in one place; elsewhere do nothing."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        # what one thread freed serves the next one
        libc.mallopt(_M_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Hand what is free back to the kernel once, between two steps of different needs; no-op without glibc."""
    # a pass's buffers are among objects that name each other: they are not free before the collector has seen them
    gc.collect()
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
