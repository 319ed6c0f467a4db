"""Keeps a party's long-lived process as small as it is.

FLARE leaves the messages and files of a finished job in reference cycles. Python looks for cycles when many objects are new;
here few are, and large, so that a coordinator grew by some two megabytes a run until hours later it looked for them.
"""

from __future__ import annotations

import gc
import threading
import time

SECONDS_BETWEEN_COLLECTIONS = 30.0


def keep_flat(seconds: float = SECONDS_BETWEEN_COLLECTIONS) -> None:
    """Look for cycles every now and then, in a thread that ends with the process."""

    def collect() -> None:
        while True:
            time.sleep(seconds)
            gc.collect()

    threading.Thread(target=collect, name="keep-flat", daemon=True).start()
