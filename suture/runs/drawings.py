"""What run folders keep for drawing alone: a sketch of the cut before the first round, views of the models after the last.

Both are small whatever the graph, compact because they are data and no reading, and computed with the truth, which only
somebody who runs a simulation has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from suture.core.storage import write_atomically
from suture.runs.folder import SKETCH, VIEWS, RunFolder
from suture.runs.prepare import Prepared
from suture.runs.sketch import sketch_of


def keep_sketch(folder: RunFolder, prepared: Prepared) -> None:
    """The cut, for whoever watches the run; a run that goes on has its sketch."""
    if not (folder.path / SKETCH).exists():
        _keep(folder, SKETCH, sketch_of(prepared))


def keep_views(folder: RunFolder, views: Mapping[str, Any]) -> None:
    """What the reported models say."""
    _keep(folder, VIEWS, views)


def _keep(folder: RunFolder, name: str, content: Mapping[str, Any]) -> None:
    write_atomically(folder.path / name, (json.dumps(content, separators=(",", ":")) + "\n").encode())
