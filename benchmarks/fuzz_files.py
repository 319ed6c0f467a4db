"""Damaged run folders, shards, policies, owners' homes and kits: each ends in a result or one sentence.

python benchmarks/fuzz_files.py [--cases 1000] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "federation"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "adversary"))

from hostile_files import Reader, reads


def told(reader: Reader) -> None:
    print(f"{sum(reader.ended.values())} ended well, {len(reader.findings)} findings", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reader = reads(Path(folder), options.cases, options.seed, told)
    print(f"{options.cases} damaged files: {dict(reader.ended)}; at most {reader.slowest:.2f} s more than undamaged")
    for finding in reader.findings[:60]:
        print(finding)
    sys.exit(1 if reader.findings else 0)


if __name__ == "__main__":
    main()
