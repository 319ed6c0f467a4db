"""What the dashboard costs: a list of a thousand run folders, and a running job with twenty viewers beside it.

    python benchmarks/dashboard.py [--folders 1000] [--viewers 20] [--pairs 12] [--seconds 8]

Both are ratios in one run, so that they hold on any machine. Listing: the second look at all folders against the first.
Viewers: one long job, which is looked at for some seconds by viewers of its page and of the list, who get every event, then
by nobody for as many, and so on. A pair is the seconds of a round with viewers against those without; which comes first
changes from pair to pair, as a machine has its own moods. The job and the dashboard share one core, which is the worst that
can be; the viewers have another, as browsers are on other people's machines. Beside it stands the processor time of the
dashboard against the job's.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import httpx

GRAPH = "csbm:nodes=2000,features=300,classes=5"
VIEWER = """
import sys, threading, httpx
address, token, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
def view(path):
    with httpx.Client(base_url=address, timeout=None) as browser:
        browser.get('/', params={'token': token})
        with browser.stream('GET', path) as events:
            for line in events.iter_lines():
                pass
paths = sys.argv[4:]
for place in range(number):
    threading.Thread(target=view, args=(paths[place % len(paths)],), daemon=True).start()
sys.stdin.read()
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
    """That a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds_a_round(metrics: Path, seconds: float) -> float:
    """Of a job that is running, over so many seconds; from the end of a round to the end of another."""
    with metrics.open() as file:
        file.seek(0, os.SEEK_END)
        _next_round(file)
        begun, rounds = time.perf_counter(), 0
        while (taken := time.perf_counter() - begun) < seconds:
            rounds += _next_round(file)
    return taken / rounds


def _next_round(file: TextIO) -> int:
    while not file.readline():
        time.sleep(0.002)
    return 1


@contextmanager
def looking_on(address: str, token: str, viewers: int, paths: list[str], cores: set[int]) -> Iterator[None]:
    """Viewers, from the moment all of them had time to come."""
    command = [sys.executable, "-c", VIEWER, address, token, str(viewers), *paths]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    time.sleep(2.0)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Pair:
    """Seconds of a round, and the dashboard's processor time against the job's while somebody looked on."""

    alone: float
    watched: float
    share: float


def pairs_of(root: Path, given: argparse.Namespace) -> Iterator[Pair]:
    """One after the other, of one job."""
    cores = sorted(os.sched_getaffinity(0))
    shared, others = {cores[0]}, set(cores[1:]) or {cores[0]}
    os.sched_setaffinity(0, shared)  # what is started from here on stays there
    with dashboard(root) as (address, token, pid):
        job = subprocess.Popen(run(root / "job", 10**6), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.sched_setaffinity(0, others)
        try:
            with httpx.Client(base_url=address, timeout=600) as browser:
                browser.get("/", params={"token": token})
                while (
                    not (found := browser.get("/api/runs").json()["rows"]) or not (root / "job" / "metrics.jsonl").exists()
                ):
                    time.sleep(0.1)
            paths = [f"/api/runs/{found[0]['id']}/events", "/api/events"]
            for number in range(given.pairs):
                alone = 0.0 if number % 2 else seconds_a_round(root / "job" / "metrics.jsonl", given.seconds)
                with looking_on(address, token, given.viewers, paths, others):
                    before = processor_seconds(pid), processor_seconds(job.pid)
                    watched = seconds_a_round(root / "job" / "metrics.jsonl", given.seconds)
                    after = processor_seconds(pid), processor_seconds(job.pid)
                alone = alone or seconds_a_round(root / "job" / "metrics.jsonl", given.seconds)
                yield Pair(alone, watched, (after[0] - before[0]) / (after[1] - before[1]))
        finally:
            job.kill()
            job.wait()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("folders", 1000), ("viewers", 20), ("pairs", 12)):
        asked.add_argument(f"--{name}", type=int, default=usual)
    asked.add_argument("--seconds", type=float, default=8.0)
    given = asked.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as place:
        first, second = listing(Path(place), given.folders)
        print(f"{given.folders} folders: first look {first:.2f} s, second {second:.3f} s, {second / first:.3f} of it")
    found: list[Pair] = []
    with tempfile.TemporaryDirectory() as place:
        for pair in pairs_of(Path(place), given):
            found.append(pair)
            ratio, alone, watched = pair.watched / pair.alone, 1000 * pair.alone, 1000 * pair.watched
            print(f"{alone:.2f} ms a round alone, {watched:.2f} ms with {given.viewers} viewers: {ratio:.4f}; ", end="")
            print(f"the dashboard took {pair.share:.4f} of the job's processor time", flush=True)
    ratios, shares = [pair.watched / pair.alone for pair in found], [pair.share for pair in found]
    mean, error = statistics.mean(ratios), statistics.stdev(ratios) / len(ratios) ** 0.5
    print(f"with viewers {mean:.4f} ± {error:.4f} of the seconds without (mean, standard error); ", end="")
    print(f"median {statistics.median(ratios):.4f}; processor time {statistics.median(shares):.4f}")


if __name__ == "__main__":
    main()
