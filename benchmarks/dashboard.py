"""What the dashboard costs: a list of a thousand run folders, and a running job with twenty viewers beside it.

    python benchmarks/dashboard.py [--folders 1000] [--viewers 20] [--rounds 150] [--repeats 5]

Both are ratios in one run, so that they hold on any machine. Listing: the second look at all folders against the first.
Viewers: the seconds of a job's rounds with viewers of its page and of the list, who get every event, against those without,
one after the other and again, in turn; the job, the dashboard and the viewers are processes of their own. On a machine that
does other things as well these seconds say little, so the processor time that the dashboard took meanwhile, against the
job's own, is told beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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
from pathlib import Path

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


def job(root: Path, name: str, rounds: int) -> float:
    """Seconds of the rounds of one job, as it measured them itself."""
    subprocess.run(run(root / name, rounds), check=True, stdout=subprocess.DEVNULL)
    return float(json.loads((root / name / "result.json").read_text())["seconds"])


def processor_seconds(pid: int) -> float:
    """That a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watched(root: Path, name: str, rounds: int, viewers: int, address: str, token: str, pid: int) -> tuple[float, float]:
    """The same with viewers, who come once the job has begun; and the dashboard's share of processor time in the job's."""
    process = subprocess.Popen(run(root / name, rounds), stdout=subprocess.DEVNULL)
    with httpx.Client(base_url=address, timeout=600) as browser:
        browser.get("/", params={"token": token})
        while not (found := [row for row in browser.get("/api/runs").json()["rows"] if row["name"] == name]):
            time.sleep(0.05)
    paths = [f"/api/runs/{found[0]['id']}/events", "/api/events"]
    look_on = subprocess.Popen([sys.executable, "-c", VIEWER, address, token, str(viewers), *paths], stdin=subprocess.PIPE)
    before, taken = processor_seconds(pid), 0.0
    while process.poll() is None:
        with contextlib.suppress(OSError, IndexError):
            taken = processor_seconds(process.pid)
        time.sleep(0.1)
    share = (processor_seconds(pid) - before) / taken
    look_on.kill()
    look_on.wait()
    return float(json.loads((root / name / "result.json").read_text())["seconds"]), share


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("folders", 1000), ("viewers", 20), ("rounds", 150), ("repeats", 5)):
        asked.add_argument(f"--{name}", type=int, default=usual)
    given = asked.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as place:
        first, second = listing(Path(place), given.folders)
        print(f"{given.folders} folders: first look {first:.2f} s, second {second:.3f} s, {second / first:.3f} of it")
    with tempfile.TemporaryDirectory() as place, dashboard(Path(place)) as (address, token, pid):
        ratios, shares = [], []
        for number in range(given.repeats):
            alone = job(Path(place), f"alone-{number}", given.rounds)
            seconds, share = watched(Path(place), f"watched-{number}", given.rounds, given.viewers, address, token, pid)
            ratios.append(seconds / alone)
            shares.append(share)
            print(f"{alone:.2f} s alone, {seconds:.2f} s with {given.viewers} viewers: {ratios[-1]:.3f}; ", end="")
            print(f"processor time of the dashboard: {share:.4f} of the job's", flush=True)
        middle = statistics.median(ratios)
        print(f"median of {given.repeats} ratios: {middle:.3f}, from {min(ratios):.3f} to {max(ratios):.3f}; ", end="")
        print(f"of shares: {statistics.median(shares):.4f}")


if __name__ == "__main__":
    main()
