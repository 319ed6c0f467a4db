"""How many threads to compute with, found out by computing: `--threads auto`.

    for n in 2, 4, 8, ... up to the cores this process may use:
        the same products, sums and elementwise steps in turns with the best number so far and with n
        keep n if that was clearly faster, else stop

Two threads wait for each other some hundred times a round. On an idle machine that costs microseconds; beside other busy
processes one of the two is often not running, and the other waits for as long as the system lets somebody else compute: a
round can take ten times as long as with one thread. So a number of threads cannot be chosen by counting cores. What is
measured here are steps as small as those of a round on a small graph, because large ones are slowed down least.

Sums of many numbers are rounded differently by different numbers of threads. A number is therefore chosen once, before
anything is computed, and written into the run folder; whoever goes on with a run, or repeats one, computes with that number.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch

TURNS = 20
"""Of each number of threads; some milliseconds each."""
LONGEST = 0.4
"""Seconds of a trial; a busy machine needs no more turns to be known as one."""
ENOUGH = 1.08
"""More threads must be faster by this factor, all turns together, to be worth disturbing others."""
HOPELESS = 2.0
"""So many times slower after a few turns, and the trial ends."""
FEW = 4


@dataclass(frozen=True)
class Chosen:
    """A number of threads, and why."""

    threads: int
    usable: int
    """Threads that could have been used: cores, or what OMP_NUM_THREADS allows, divided among jobs."""
    faster: float
    """How many times as fast as 1 they were; if 1 was chosen, how many times as fast as that 2 were."""

    @property
    def is_choice(self) -> bool:
        """Whether there was more than one number to choose from."""
        return self.usable > 1

    def sentence(self) -> str:
        """For people."""
        found = "2 were" if self.threads == 1 else "just now"
        many = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"computing with {many}: {found} {self.faster:.2f} times as fast as 1; --threads N sets a number"


def choose(jobs: int = 1) -> Chosen:
    """Measure, set the number of threads of this process, and say which it is; takes at most a few tenths of a second."""
    usable = max(1, min(torch.get_num_threads(), len(os.sched_getaffinity(0))) // jobs)
    best, gained, tried = 1, 1.0, 1.0
    while best * 2 <= usable:
        tried = _speed_up(best, best * 2)
        if tried < ENOUGH:
            break
        best, gained = best * 2, gained * tried
    torch.set_num_threads(best)
    return Chosen(best, usable, gained if best > 1 else tried)


def _speed_up(fewer: int, more: int) -> float:
    """How many times as fast the same work is with more threads, over all turns: what is slow only now and then counts."""
    steps = _Steps()
    for threads in (fewer, more):  # threads are started, and pages touched, before anything counts
        steps.seconds(threads)
    with_fewer = with_more = 0.0
    for turn in range(1, TURNS + 1):
        with_fewer += steps.seconds(fewer)
        with_more += steps.seconds(more)
        if turn >= FEW and (with_more > HOPELESS * with_fewer or with_fewer + with_more > LONGEST):
            break
    return with_fewer / with_more


class _Steps:
    """A few steps such as those of a round on a small graph: products, additions, sums of rows; 300 nodes, 128 wide."""

    def __init__(self) -> None:
        self.x_NF, self.w_FH = torch.ones(300, 512), torch.full((512, 128), 0.01)
        self.moments = torch.zeros(10, 512, 128)

    def seconds(self, threads: int) -> float:
        torch.set_num_threads(threads)
        started = time.perf_counter()
        for _ in range(3):
            h_NH = torch.mm(self.x_NF, self.w_FH)
            torch.mm(self.x_NF.T, h_NH.relu_())
            self.moments.mul_(0.9).add_(0.1)
        return time.perf_counter() - started
