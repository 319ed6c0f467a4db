"""What the dashboard costs: a list of a thousand run folders, and a running job with twenty viewers beside it.

    python benchmarks/dashboard.py [--folders 1000] [--viewers 20] [--pairs 40] [--seconds 4]

Both are ratios in one run, so that they hold on any machine. Listing: the second look at all folders against the first.
Viewers: one long job, which is looked at for some seconds by viewers of its page and of the list, who get every event, then
by nobody for as many, and so on. Each stretch with viewers is compared with the mean of the two without beside it, since a
machine has its own moods; and each stretch without with those before and after it, in the same way: what comes out there
is the noise of this benchmark itself. Medians are told with an interval by ranks, which a few bad seconds do not move.
The job and the dashboard share one core, which is the worst that can be; the viewers have another, as browsers are on other
people's machines. The same is told of processor time: what job and dashboard take together for a round. Where they have the
core for themselves, that is how long the round lasts; where they do not, it is what is not blurred by the others.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import httpx

GRAPH = "csbm:nodes=2000,features=300,classes=5"
SECONDS_TO_COME, SECONDS_TO_GO = 1.5, 0.5
VIEWER = """
import selectors, socket, sys
port, cookie, number, *paths = sys.argv[1:]
chosen, open_ones, heard = selectors.DefaultSelector(), [], {}
chosen.register(sys.stdin, selectors.EVENT_READ)
while True:
    for key, _ in chosen.select():
        if key.fileobj is not sys.stdin:
            heard[key.fileobj] += key.fileobj.recv(1 << 20).count(b'data: ')
        elif (told := sys.stdin.readline().strip()) == 'come':
            for place in range(int(number)):
                open_ones.append(one := socket.create_connection(('127.0.0.1', int(port))))
                asked = f'GET {paths[place % len(paths)]} HTTP/1.1', f'Host: 127.0.0.1:{port}', f'Cookie: {cookie}'
                one.sendall(('\\r\\n'.join(asked) + '\\r\\n\\r\\n').encode())
                chosen.register(one, selectors.EVENT_READ)
                heard[one] = 0
        elif told == 'go':
            print(min(heard.values()), flush=True)
            for one in open_ones:
                chosen.unregister(one)
                one.close()
            open_ones, heard = [], {}
        else:
            sys.exit()
"""


def suture(*words: str) -> list[str]:
    return [sys.executable, "-m", "suture", *words]


def run(out: Path, rounds: int) -> list[str]:
    options = [f"--dataset={GRAPH}", "--method=fedavg", "--clients=5", "--threads=1", f"--set=rounds={rounds}", "--quiet"]
    return suture("run", *options, f"--out={out}")


@contextmanager
def dashboard(root: Path) -> Iterator[tuple[str, str, int]]:
    process = subprocess.Popen(suture("dashboard", str(root), "--port=0"), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address, token = re.match(r"(http://.*)/\?token=(.*)", process.stdout.readline().strip()).groups()  # type: ignore[union-attr]
        yield address, token, process.pid
    finally:
        process.terminate()
        process.wait()


def listing(root: Path, folders: int) -> tuple[float, float]:
    """Seconds of the first and of the second look at all folders, and that a page of 50 is what comes back."""
    subprocess.run(run(root / "run-0", 3), check=True, stdout=subprocess.DEVNULL)
    for number in range(1, folders):
        shutil.copytree(root / "run-0", root / f"run-{number}", ignore=shutil.ignore_patterns("*.safetensors"))
    with dashboard(root) as (address, token, _), httpx.Client(base_url=address, timeout=600) as browser:
        browser.get("/", params={"token": token})
        browser.get("/api/hello")
        seconds = []
        for _ in range(2):
            started = time.perf_counter()
            told = browser.get("/api/runs").json()
            seconds.append(time.perf_counter() - started)
            assert told["all"] == folders and len(told["rows"]) == 50
            time.sleep(1.5)  # a younger look is answered from memory
    return seconds[0], seconds[1]


def processor_seconds(pid: int) -> float:
    """That a process has taken so far, threads that have ended included: its clock, by the number that Linux gives it."""
    return time.clock_gettime((~pid << 3) | 2)


@dataclass
class Lived:
    """What a stretch took: seconds of a round, and of processor time in all, for so many rounds."""

    seconds: float
    rounds: int
    dashboard: float
    job: float

    def into(self, clock: list[float], processor: list[float]) -> Lived:
        """Written down, by round."""
        clock.append(self.seconds)
        processor.append((self.dashboard + self.job) / self.rounds)
        return self


@dataclass
class Stretch:
    """So many seconds of a job that is running, from the end of a round to the end of another."""

    metrics: Path
    seconds: float
    dashboard: int
    job: int
    """Processes."""

    def lived(self) -> Lived:
        """One of them."""
        with self.metrics.open() as file:
            file.seek(0, os.SEEK_END)
            _next_round(file)
            before = processor_seconds(self.dashboard), processor_seconds(self.job)
            begun, rounds = time.perf_counter(), 0
            while (taken := time.perf_counter() - begun) < self.seconds:
                rounds += _next_round(file)
            spent = processor_seconds(self.dashboard) - before[0], processor_seconds(self.job) - before[1]
        return Lived(taken / rounds, rounds, *spent)


def _next_round(file: TextIO) -> int:
    while not file.readline():
        time.sleep(0.002)
    return 1


@dataclass
class Viewers:
    """Who come and go, in a process of their own."""

    process: subprocess.Popen[str]

    @contextmanager
    def looking(self) -> Iterator[None]:
        """All of them, from the moment they had time to come; each must have been told something."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print("come", file=self.process.stdin, flush=True)
        time.sleep(SECONDS_TO_COME)
        yield
        print("go", file=self.process.stdin, flush=True)
        assert int(self.process.stdout.readline()) > 1, "a viewer was told nothing; give more --seconds"
        time.sleep(SECONDS_TO_GO)


@contextmanager
def viewers(address: str, cookie: str, number: int, paths: list[str]) -> Iterator[Viewers]:
    command = [sys.executable, "-c", VIEWER, address.rpartition(":")[2], cookie, str(number), *paths]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Viewers(process)
    finally:
        process.kill()
        process.wait()


@dataclass
class Found:
    """Seconds of a round: stretches without viewers, and the ones with them between these."""

    alone: list[float] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)

    def ratios(self) -> list[float]:
        """Of each stretch with viewers to those beside it."""
        return [2 * one / (self.alone[place] + self.alone[place + 1]) for place, one in enumerate(self.watched)]

    def noise(self) -> list[float]:
        """The same of stretches without viewers."""
        beside = zip(self.alone, self.alone[1:], self.alone[2:], strict=False)
        return [2 * one / (before + after) for before, one, after in beside]


@dataclass
class Measured:
    """Of one job: seconds by the clock, and of processor time; what the dashboard took of the latter with viewers."""

    clock: Found = field(default_factory=Found)
    processor: Found = field(default_factory=Found)
    of_dashboard: float = 0.0
    of_job: float = 0.0


def measured(root: Path, given: argparse.Namespace) -> Measured:
    """Of one job, stretch after stretch."""
    cores = sorted(os.sched_getaffinity(0))
    shared, others = {cores[0]}, set(cores[1:]) or {cores[0]}
    os.sched_setaffinity(0, shared)  # what is started from here on stays there
    found, metrics = Measured(), root / "job" / "metrics.jsonl"
    with dashboard(root) as (address, token, pid):
        job = subprocess.Popen(run(root / "job", 10**6), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.sched_setaffinity(0, others)
        try:
            with httpx.Client(base_url=address, timeout=600) as browser:
                browser.get("/", params={"token": token})
                while not (rows := browser.get("/api/runs").json()["rows"]) or not metrics.exists():
                    time.sleep(0.1)
                cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
            paths = [f"/api/runs/{rows[0]['id']}/events", "/api/events"]
            with viewers(address, cookie, given.viewers, paths) as those:
                stretch = Stretch(metrics, given.seconds, pid, job.pid)
                stretch.lived()  # the first ones are slower
                stretch.lived().into(found.clock.alone, found.processor.alone)
                for _ in range(given.pairs):
                    with those.looking():
                        watched = stretch.lived().into(found.clock.watched, found.processor.watched)
                    found.of_dashboard, found.of_job = found.of_dashboard + watched.dashboard, found.of_job + watched.job
                    stretch.lived().into(found.clock.alone, found.processor.alone)
                    print(f"{1000 * watched.seconds:.2f} ms a round with viewers: {found.clock.ratios()[-1]:.4f}, ", end="")
                    print(f"processor time {found.processor.ratios()[-1]:.4f}", flush=True)
        finally:
            job.kill()
            job.wait()
    return found


def told(ratios: list[float]) -> str:
    """Median with its 95 % interval by ranks, mean with its standard error."""
    ranked, count = sorted(ratios), len(ratios)
    outside = max(0, int((count - 1.96 * count**0.5) / 2))
    low, high = ranked[outside], ranked[-1 - outside]
    error = statistics.stdev(ratios) / count**0.5
    return (
        f"median {statistics.median(ratios):.4f} ({low:.4f} to {high:.4f}), mean {statistics.mean(ratios):.4f} ± {error:.4f}"
    )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("folders", 1000), ("viewers", 20), ("pairs", 40)):
        asked.add_argument(f"--{name}", type=int, default=usual)
    asked.add_argument("--seconds", type=float, default=4.0)
    given = asked.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if given.folders:
        with tempfile.TemporaryDirectory() as place:
            first, second = listing(Path(place), given.folders)
        print(f"{given.folders} folders: first look {first:.2f} s, second {second:.3f} s, {second / first:.3f} of it")
    if given.pairs > 2:
        with tempfile.TemporaryDirectory() as place:
            found = measured(Path(place), given)
        for name, one in (("seconds", found.clock), ("processor time", found.processor)):
            print(f"{name} of a round with {given.viewers} viewers, against without: {told(one.ratios())}")
            print(f"{name} without, against without: {told(one.noise())}; {given.pairs} stretches")
        print(f"processor time of the dashboard: {found.of_dashboard / found.of_job:.4f} of the job's")


if __name__ == "__main__":
    main()
