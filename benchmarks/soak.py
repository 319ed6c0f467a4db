"""A soak: the same federation carries out run after run; memory and open files of its long-lived processes must not grow.

    python benchmarks/soak.py [--owners 8] [--minutes 60] [--rounds 5] [--secure]

Prints a line after every run: memory (of its own, in MB: what would be free if the process ended) and open files of the
coordinator and of the owners, and at the end how fast each grows, with the first third left out, in which caches fill.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "federation"))

from loopback import SMALL, Loopback, planned, write_shards

from suture.core.storage import read_json
from suture.federation.operator.operator import JOB, Operator, SessionError
from suture.federation.wire.orders import Order
from suture.runs.folder import read_outcome

MEGABYTE = 2**20
MOST_LOSSES = 5
"""Of an operator's session in one run: a machine that does much else answers late."""


def sizes(parties: Loopback) -> dict[str, tuple[float, int]]:
    """(MB, open files) of every party's long-lived process."""
    found = {}
    for name, process in parties.processes.items():
        one = psutil.Process(process.pid)
        found[name] = one.memory_full_info().uss / MEGABYTE, one.num_fds()
    return found


def growth(values: list[float]) -> float:
    """Slope a run, by least squares, the first third left out."""
    late = values[len(values) // 3 :]
    return float(np.polyfit(range(len(late)), late, 1)[0]) if len(late) > 1 else 0.0


def carried_out(parties: Loopback, order: Order, out: Path) -> int:
    """A run to its end, as an operator gets it there; how often the session with the coordinator was lost on the way."""
    for losses in range(MOST_LOSSES):
        try:
            operator = Operator(parties.kit("operator"), patience=300)
            try:
                operator.carry_out([order], [out], job_of(out))
                return losses
            finally:
                operator.close()
        except SessionError as error:
            print(f"{out.name}: {error}; resumed", flush=True)
            time.sleep(2)
    raise SystemExit(f"{out.name}: the coordinator could not be reached {MOST_LOSSES} times in a row")


def job_of(out: Path) -> str | None:
    """The job that may still be at it."""
    known = (out / JOB).exists() and str(read_json(out / JOB, "record of a job")["job"])
    return known or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--owners", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--secure", action="store_true")
    options = parser.parse_args()
    dataset = SMALL.replace("nodes=240", f"nodes={80 * options.owners}")
    made = planned("fedavg", options.owners, f"rounds={options.rounds}", dataset=dataset)
    history: dict[str, list[tuple[float, int]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        world = write_shards(made, folder / "shards")
        parties = Loopback(folder, world.clients.ids, folder / "shards")
        parties.start()
        lost, again, end, runs = 0, 0, time.monotonic() + 60 * options.minutes, 0
        try:
            parties.wait()
            while time.monotonic() < end:
                out = folder / "runs" / f"soak-{runs:04d}"
                again += carried_out(parties, replace(parties.order(made, out.name), secure=options.secure), out)
                runs += 1
                done = read_outcome(out)
                lost += done is None or done.rounds != options.rounds
                for party, size in sizes(parties).items():
                    history.setdefault(party, []).append(size)
                at = history["coordinator"][-1]
                owners = [history[owner][-1] for owner in parties.owners]
                print(
                    f"run {runs}: coordinator {at[0]:.1f} MB {at[1]} files; owners up to "
                    f"{max(one[0] for one in owners):.1f} MB {max(one[1] for one in owners)} files",
                    flush=True,
                )
        finally:
            parties.stop()
    print(f"\n{runs} runs, {lost} of them not whole; the operator lost its session {again} times, and resumed")
    print("| party | MB at first | MB at last | MB a run | files at first | files at last |\n|---|---|---|---|---|---|")
    for party, seen in history.items():
        slope = growth([size for size, _ in seen])
        print(f"| {party} | {seen[0][0]:.1f} | {seen[-1][0]:.1f} | {slope:+.2f} | {seen[0][1]} | {seen[-1][1]} |")


if __name__ == "__main__":
    main()
