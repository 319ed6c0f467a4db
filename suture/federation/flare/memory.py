"""Keeps a party's long-lived process as small as it is.

FLARE leaves the messages and files of a finished job in reference cycles. Python looks for cycles when many objects are new;
here few are, and large, so that a coordinator grew by some two megabytes a run until hours later it looked for them. What is
free then may lie in pieces between what is not, and glibc keeps such pages unless it is asked to give them back.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time

SECONDS_BETWEEN_COLLECTIONS = 30.0


def keep_flat(seconds: float = SECONDS_BETWEEN_COLLECTIONS) -> None:
    """Look for cycles every now and then, and give free memory back, in a thread that ends with the process."""

    def collect() -> None:
        while True:
            time.sleep(seconds)
            gc.collect()
            with contextlib.suppress(OSError, AttributeError):  # not every system has glibc
                ctypes.CDLL(None).malloc_trim(0)

    threading.Thread(target=collect, name="keep-flat", daemon=True).start()
