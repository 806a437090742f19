"""Memory that is freed stays with the process for the next call: the C library's own rule, applied from the start."""

from __future__ import annotations

import ctypes
import functools

#: The largest block by whose release glibc adapts its thresholds (malloc/malloc.c, DEFAULT_MMAP_THRESHOLD_MAX), but for
#: a page or two.
_LARGEST: int = 4 * 1024 * 1024 * ctypes.sizeof(ctypes.c_long) - 8192


@functools.cache
def keep_freed_pages() -> None:
    """Let the C library keep up to 64 MiB of freed memory, as it does once a program has freed a block of 32 MiB.

    Else glibc gives the top of its heap back after each call, and the next one faults every page in again, zeroed:
    docs/design/kernels/0016. Freeing one large block that was never touched sets the thresholds to their largest values
    (mallopt(3), "dynamic mmap threshold"). A program that set them by itself, and other C libraries, see no change.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(libc.malloc(ctypes.c_size_t(_LARGEST)))
