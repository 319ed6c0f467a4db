"""Damaged frames at real desks and at a real coordinator: no crash, no hang above a second, no allocation out of proportion.

    TMPDIR=/dev/shm python benchmarks/fuzz_frames.py [--frames 1000000] [--seed 0]

Recorded traffic with damage of many kinds, and, the last twentieth, frames that Hypothesis invents. In memory
(TMPDIR), as owners write down what they answer. A short run of the same is part of the tests (tests/adversary/test_fuzz.py).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "federation"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "adversary"))

from fuzzing import Fuzzer, Watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began, shown = time.perf_counter(), [0]

    def told(watch: Watch) -> None:
        for finding in watch.findings[shown[0] : 50]:
            print(finding, flush=True)
        shown[0] = len(watch.findings)
        print(f"{watch.tried} frames, {len(watch.findings)} findings, {time.perf_counter() - began:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        watch = Fuzzer(Path(folder), options.seed).run(options.frames, told)
    told(watch)
    print(f"slowest {watch.slowest:.2f} s, largest growth {watch.largest / 2**20:.1f} MB; at {dict(watch.places)}")
    print(f"answers: {dict(watch.answers)}")
    sys.exit(1 if watch.findings else 0)


if __name__ == "__main__":
    main()
