"""Memory of a process on a CPU.

For: keeping what tensors have freed. glibc gives blocks of 32 MiB and more back to the system at
once, so a long text's arrays are taken anew for every operation, page by page: a band of 16,384
tokens took three times as long as four of 4,096.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> None:
    """Let malloc use freed memory again instead of giving it back, where it is glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_MMAP_THRESHOLD, 2**30)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
