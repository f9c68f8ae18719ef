"""How the C library keeps freed memory.

By default glibc gives the memory of a freed large array back to the kernel, and the next array of
that size costs a page fault per 4 KiB: more than filling it. A server makes and frees such arrays
with every large request, so it keeps them.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h
KEEP_BYTES = 512 << 20
LARGEST_KEPT_BYTES = 32 << 20  # the largest value that glibc takes


def keep_freed_memory() -> bool:
    """Keep up to `KEEP_BYTES` of freed arrays of up to 32 MiB; False where it is not glibc."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES) and mallopt(M_TRIM_THRESHOLD, KEEP_BYTES)
    )
