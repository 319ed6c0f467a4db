"""Keeps a party's long-lived process as small as it is.

FLARE leaves the messages and files of a finished job in reference cycles. Python looks for cycles when many objects are new;
here few are, and large, so that a coordinator grew by some two megabytes a run until hours later it looked for them.

FLARE also has some ten threads for each party that is connected, and new ones for every job. glibc gives threads heaps of
their own, eight for each core, and what is free in one is of no use to the others: with as many objects as before, a
coordinator of eight owners kept a quarter of a megabyte more a run. So all threads share one heap; the interpreter's lock
lets one of them work at a time anyway. glibc is not asked to give free pages back (malloc_trim): in a soak on a busy machine
a process died in that call, and what is free in one heap is used again.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time

SECONDS_BETWEEN_COLLECTIONS = 30.0
M_ARENA_MAX = -8
"""glibc's number of the setting (malloc.h)."""


def keep_flat(seconds: float = SECONDS_BETWEEN_COLLECTIONS) -> None:
    """One heap for all threads; look for cycles every now and then.

    To be called before any other thread is there, as those that are have a heap already. Ends with the process.
    """
    with contextlib.suppress(OSError, AttributeError):  # not every system has glibc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)

    def collect() -> None:
        while True:
            time.sleep(seconds)
            gc.collect()

    threading.Thread(target=collect, name="keep-flat", daemon=True).start()
