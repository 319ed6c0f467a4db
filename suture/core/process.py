"""What a program decides for its whole process, as opposed to what a library may: memory and waiting.

glibc gives every allocation above 32 MB back to the system when it is freed, and the next one of that size pays for
fresh, zeroed pages again. A round allocates the same few large tensors over and over, so keeping the pages makes it up
to twice as fast (measured on Coauthor CS). The command line and the benchmarks call `prepare_process` once at their
start, before torch is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import sys
from collections.abc import Iterator

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # from <malloc.h>


def prepare_process() -> None:
    """Make both choices for this process."""
    spin_briefly()
    reuse_freed_pages()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import modules in here without looking for garbage, and never look at what they made again.

    Python searches for cycles while half a million objects that stay are being made: a tenth of the time to import torch and
    all of ours. Later searches pass those over.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def spin_briefly() -> None:
    """Let an idle OpenMP thread spin for some microseconds, then sleep.

    By default it spins on, and on a shared machine takes the core another one needs: 30 rounds on Cora took 38 s with two
    threads on two busy cores, and 1 s so. Sleeping at once, on the other hand, doubles a round on an idle machine.
    Takes effect only before torch is imported; values the user has set stay.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


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


def give_back_freed_pages() -> None:
    """Return to the system what is free now: after a large graph was laid out, much of it in holes that nothing fills."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
