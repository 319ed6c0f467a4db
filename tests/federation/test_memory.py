"""A party's long-lived process does not grow with the threads that come and go in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from suture.federation.flare.memory import forget_statistics

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


BUFFERS = """
import os, sys
from suture.federation.flare.memory import keep_flat
if sys.argv[1] == "kept":
    keep_flat()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
for _ in range(3):
    bytearray(1 << 20)
before, between = resident(), []
for _ in range(3):
    buffers = []
    for _ in range(64):
        buffers.append(bytearray(b"x") * (1 << 20))
        between.append(bytes(2000))  # larger than what Python's own allocator hands out
    del buffers
print(resident() - before)
"""


def left_of_buffers(how: str) -> float:
    """MB that a process keeps when buffers of 64 MB, with small things between them, have come and gone."""
    done = subprocess.run([sys.executable, "-c", BUFFERS, how], capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own way with large pieces")
def test_buffers_that_have_gone_leave_nothing_behind() -> None:
    assert left_of_buffers("as it comes") > 20 and left_of_buffers("kept") < 5


def test_statistics_of_ended_jobs_are_forgotten() -> None:
    stats = pytest.importorskip("nvflare.fuel.f3.stats_pool")
    pool = stats.StatsPoolManager.add_time_hist_pool("travels", "as a coordinator has them", scope="a test")
    for job in range(60):
        for party in range(9):
            pool.record_value(f"client-{party:02d}.job-{job}#task", 0.01)
    few = stats.StatsPoolManager.add_time_hist_pool("others", "of a few", scope="a test")
    few.record_value("task", 0.01)
    forget_statistics()
    assert not pool.cat_bins and len(few.cat_bins) == 1
    pool.record_value("client-00.job-61#task", 0.01)
    assert len(pool.cat_bins) == 1
