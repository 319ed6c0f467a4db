"""A party's long-lived process does not grow with the threads that come and go in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

MANY = 32
HEAPS = """
import sys, threading
from suture.federation.flare.memory import keep_flat
if sys.argv[1] == "kept":
    keep_flat()
meet = threading.Barrier({many} + 1)
def work():
    kept = [bytes(2000) for _ in range(500)]  # larger than what Python's own allocator hands out
    meet.wait()
    meet.wait()
threads = [threading.Thread(target=work) for _ in range({many})]
for one in threads:
    one.start()
meet.wait()
starts = [int(line.split("-")[0], 16) for line in open("/proc/self/maps") if len(line.split()) == 5]
print(sum(start % (64 << 20) == 0 for start in starts))
meet.wait()
"""


def heaps(how: str) -> int:
    """Of glibc's own, which lie at multiples of 64 MB, of a process with many threads at work."""
    done = subprocess.run([sys.executable, "-c", HEAPS.format(many=MANY), how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="counts glibc's heaps")
def test_threads_have_one_heap_together() -> None:
    assert heaps("as it comes") >= 4 and heaps("kept") == 0
