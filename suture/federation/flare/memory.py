"""Keeps a party's long-lived process as small as it is.

FLARE leaves the messages and files of a finished job in reference cycles. Python looks for cycles when many objects are new;
here few are, and large, so that a coordinator grew by some two megabytes a run until hours later it looked for them.

FLARE also has some ten threads for each party that is connected, and new ones for every job. glibc gives threads heaps of
their own, eight for each core, and what is free in one is of no use to the others: with as many objects as before, a
coordinator of eight owners kept a quarter of a megabyte more a run. So all threads share one heap; the interpreter's lock
lets one of them work at a time anyway. glibc is not asked to give free pages back (malloc_trim): in a soak on a busy machine
a process died in that call, and what is free in one heap is used again.

Every message that FLARE passes on has a buffer of a megabyte or half of one, some fifty at a time while a job starts. glibc
takes such pieces from the heap once it has seen one freed; what small things lie between them then stays large. So they
have pages of their own, which go back when they are freed. And FLARE counts messages by the names of the parties that sent
them, which are new ones in every job: these statistics, which nobody reads, are forgotten when they are many.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
import time

SECONDS_BETWEEN_COLLECTIONS = 30.0
M_ARENA_MAX, M_MMAP_THRESHOLD = -8, -3
"""glibc's numbers of the settings (malloc.h)."""
LARGE = 128 << 10
"""Bytes: pieces from this size on have pages of their own. What glibc begins with, before it adapts."""
MOST_NAMES = 500
"""Names in one of FLARE's statistics. A party that carries out no job has some fifty."""


def forget_statistics() -> None:
    """Empty those of FLARE's statistics that hold very many names."""
    known = sys.modules.get("nvflare.fuel.f3.stats_pool")
    for pool in list(known.StatsPoolManager.pools.values()) if known else []:
        named = getattr(pool, "cat_bins", {})
        if len(named) > MOST_NAMES:
            with pool.update_lock:
                named.clear()


def keep_flat(seconds: float = SECONDS_BETWEEN_COLLECTIONS) -> None:
    """One heap for all threads; look for cycles every now and then.

    To be called before any other thread is there, as those that are have a heap already. Ends with the process.
    """
    with contextlib.suppress(OSError, AttributeError):  # not every system has glibc
        glibc = ctypes.CDLL(None)
        glibc.mallopt(M_ARENA_MAX, 1)
        glibc.mallopt(M_MMAP_THRESHOLD, LARGE)

    def collect() -> None:
        while True:
            time.sleep(seconds)
            forget_statistics()
            gc.collect()

    threading.Thread(target=collect, name="keep-flat", daemon=True).start()
