from __future__ import annotations

import sys
from pathlib import Path

# The harnesses of a federation in one process, on pipes and on real connections are those of tests/federation.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "federation"))
