"""`suture watch`: look at a folder until its runs have ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.live import Live

from suture.errors import ConfigError
from suture.federation.operator.files import JOB, is_followed
from suture.report import console
from suture.report.events import FORMAT, Events
from suture.report.live import Screen
from suture.report.standing import Standing, standing

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_BEGIN = 5.0
"""A folder that nobody works in may have been made a moment ago."""
NOT_HOME = "ordered from a federation; its rounds come into this folder when a leg of it has ended"


def watch(path: Path, once: bool, lines: bool) -> None:
    """Show a folder as it grows; end when its runs do, or at once."""
    if not path.is_dir():
        raise ConfigError(f"{path} is no folder; give the folder of a run or comparison")
    events = Events(sys.stdout) if lines else None
    if events is not None:
        events.write("begin", format=FORMAT, command="watch")
    try:
        found = _found(path, once)
    except Exception as error:
        if events is not None:
            events.write("error", text=str(error))
        raise
    if events is not None:
        _in_lines(found, once, events)
    elif once or not console.results().is_terminal:
        _settle(found, once)
        console.results().print(Screen(found))
    else:
        _live(found)
    if events is None:
        _say_end(found)


def _found(path: Path, once: bool) -> Standing:
    """The runs of the folder; waits for those of a federation to come home, as long as a command follows them."""
    since = time.monotonic()
    while (found := standing(path)) is None:
        if once:
            raise ConfigError(f"{path}: {NOT_HOME}")
        since = time.monotonic() if is_followed(path) else since
        if time.monotonic() - since > SECONDS_TO_BEGIN:
            raise ConfigError(f"{path}: {NOT_HOME}, and no command follows it; go on with: suture federation resume {path}")
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return found


def _way_on(path: Path) -> str:
    """How a run between owners is continued: by the operator, in whose folder the job is written down."""
    if (path / JOB).exists():
        return f"continue with: suture federation resume {path}"
    return "this is the coordinator's folder; its operator continues it, by suture federation resume and the folder there"


def _goes_on(found: Standing, since: float) -> bool:
    """Look again; whether there is more to come."""
    found.look()
    if found.state == "finished":
        return False
    return found.occupied or time.monotonic() - since < SECONDS_TO_BEGIN


def _live(found: Standing) -> None:
    quiet_since = time.monotonic()
    with Live(Screen(found), console=console.results(), refresh_per_second=4, transient=False) as live:
        while _goes_on(found, quiet_since):
            quiet_since = time.monotonic() if found.occupied else quiet_since
            live.update(Screen(found))
            time.sleep(SECONDS_BETWEEN_LOOKS)
        live.update(Screen(found))


def _settle(found: Standing, once: bool) -> None:
    """In a pipe: wait for the end without a word, then show it."""
    quiet_since = time.monotonic()
    while not once and _goes_on(found, quiet_since):
        quiet_since = time.monotonic() if found.occupied else quiet_since
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _in_lines(found: Standing, once: bool, events: Events) -> None:
    quiet_since, known = time.monotonic(), dict[int, str]()
    while True:
        for number, run in enumerate(found.runs):
            first = run.done - run.new + 1
            for done, line in enumerate(run.lines[len(run.lines) - run.new :] if run.new else (), start=first):
                events.write("round", method=run.method, seed=run.seed, done=done, total=run.total, line=line)
            if known.get(number) != run.state:
                known[number] = run.state
                events.write("run", **run.as_json())
        quiet_since = time.monotonic() if found.occupied else quiet_since
        if once or found.state == "finished" or not (found.occupied or time.monotonic() - quiet_since < SECONDS_TO_BEGIN):
            break
        time.sleep(SECONDS_BETWEEN_LOOKS)
        found.look()
    events.write("result", result={"state": found.state, "runs": [run.as_json() for run in found.runs]})


def _say_end(found: Standing) -> None:
    if found.state == "stopped":
        federated = any(run.status is not None for run in found.runs)
        way_on = _way_on(found.path) if federated else f"continue with: suture resume {found.path}"
        console.notes().print(f"stopped; {way_on}", soft_wrap=True)
    elif found.state == "finished":
        console.notes().print(f"finished; look at it with: suture show {found.path}", soft_wrap=True)
