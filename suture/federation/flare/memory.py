"""Keeps a party's long-lived process as small as it is.

FLARE leaves the messages and files of a finished job in reference cycles. Python looks for cycles when many objects are new;
here few are, and large, so that a coordinator grew by some two megabytes a run until hours later it looked for them. What is
free then may lie in pieces between what is not, and glibc keeps such pages unless it is asked to give them back.

FLARE also has some ten threads for each party that is connected, and new ones for every job. glibc gives threads heaps of
their own, eight for each core, and what is free in one is of no use to the others: with as many objects as before, a
coordinator of eight owners kept a quarter of a megabyte more a run. So all threads share one heap; the interpreter's lock
lets one of them work at a time anyway.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time

from suture.core.process import give_back_freed_pages

SECONDS_BETWEEN_COLLECTIONS = 30.0
M_ARENA_MAX = -8
"""glibc's number of the setting (malloc.h)."""


def keep_flat(seconds: float = SECONDS_BETWEEN_COLLECTIONS) -> None:
    """One heap for all threads; look for cycles every now and then, and give free memory back.

    To be called before any other thread is there, as those that are have a heap already. Ends with the process.
    """
    with contextlib.suppress(OSError, AttributeError):  # not every system has glibc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)

    def collect() -> None:
        while True:
            time.sleep(seconds)
            gc.collect()
            give_back_freed_pages()

    threading.Thread(target=collect, name="keep-flat", daemon=True).start()
