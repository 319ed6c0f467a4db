"""Where the processes of a party find its start-up kit. Imported by processes that need not know torch."""

from __future__ import annotations

import os
from pathlib import Path

KIT = "SUTURE_KIT"
"""Environment variable with the folder of a party's start-up kit, set by the command that starts the party."""
HOME = "suture"
"""Folder inside a start-up kit for everything of ours."""
ABOUT = "about.json"
"""File of a start-up kit that says whose it is."""
COORDINATOR = "coordinator"
"""Name of that party; owners are named by whoever makes the kits."""
TOPIC = "suture"
"""Under which operator and coordinator speak."""
HEARTBEAT = 2
"""Seconds between two signs of life of an owner's own process; FLARE knows even numbers only."""


def kit_folder() -> Path:
    """This party's start-up kit."""
    return Path(os.environ[KIT])
