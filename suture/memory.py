"""Process memory: reuse freed pages, and know the peak.

glibc gives every allocation above 32 MB back to the system when it is freed, and the next one of that size pays for
fresh, zeroed pages again. A round allocates the same few large tensors over and over, so keeping the pages makes it up
to twice as fast (measured on Coauthor CS). This is a choice for a whole process, so programs make it, not the library:
the command line and the benchmarks call `reuse_freed_pages` once at their start.
"""

from __future__ import annotations

import ctypes
import resource
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # from <malloc.h>


def reuse_freed_pages() -> bool:
    """Keep freed memory for the next allocation of this process; False where the C library is not glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:
        return False
    never_trim = library.mallopt(_M_TRIM_THRESHOLD, -1)
    never_map = library.mallopt(_M_MMAP_MAX, 0)
    return bool(never_trim and never_map)


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
