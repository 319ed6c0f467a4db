"""All attacks on a recorded run, one after the other, in the time there is; what they found is kept beside the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from suture.attacks.attack import VIEWS, Attack, Clock, Finding, Measured, NotTried
from suture.attacks.codes import Codes
from suture.attacks.gradients import Inversion
from suture.attacks.labels import Labels
from suture.attacks.links import Links
from suture.attacks.membership import Membership
from suture.attacks.presence import Presence
from suture.attacks.reidentification import Reidentification
from suture.attacks.rows import Rows
from suture.attacks.scenes import Scene
from suture.attacks.sums import Sums
from suture.attacks.words import Words
from suture.core.forks import Ended, Job, Link, side_by_side
from suture.core.storage import read_json, write_json
from suture.errors import ConfigError, IntegrityError, unknown
from suture.runs.folder import ATTACKS as FILE

ATTACKS: Mapping[str, type[Attack]] = {
    kind.name: kind for kind in (Rows, Words, Inversion, Codes, Sums, Links, Membership, Presence, Labels, Reidentification)
}
"""By name, in the order they are tried."""
Watch = Callable[[str, str, int, int, str], None]
"""Called with an attack, its view, and how many of how many of what it has tried."""


def silent(attack: str, view: str, done: int, planned: int, unit: str) -> None:
    """Tells nobody."""


def chosen(attacks: Sequence[str] | None, views: Sequence[str] | None) -> list[tuple[Attack, str]]:
    """The attacks and views that were named, or all; refuses what there is not."""
    for names, known, what in ((attacks, ATTACKS, "attack"), (views, VIEWS, "view")):
        for name in names or ():
            if name not in known:
                raise unknown(what, name, known)
    pairs = [(ATTACKS[name](), view) for name in attacks or ATTACKS for view in views or VIEWS]
    fitting: list[tuple[Attack, str]] = [(attack, view) for attack, view in pairs if view in attack.views]
    if not fitting:
        raise ConfigError(f"{', '.join(attacks or ())} cannot be done by {', '.join(views or ())}; leave --view out")
    return fitting


def carry_out(
    scene: Scene,
    pairs: Sequence[tuple[Attack, str]],
    seconds: float,
    watch: Watch = silent,
    now: Callable[[], float] = time.perf_counter,
) -> Iterator[Finding]:
    """What each attack finds from each view, quick ones first; each has an equal share of the time that is left by `now`."""
    until = now() + seconds
    for number, (attack, view) in enumerate(_quick_first(pairs)):
        share = max(0.0, (until - now()) / (len(pairs) - number))
        yield _tried(attack, view, scene, Clock.of(share, partial(watch, attack.name, view), now))


def carry_out_at_once(
    scene: Scene,
    pairs: Sequence[tuple[Attack, str]],
    seconds: float,
    watch: Watch,
    *,
    jobs: int,
    threads: int,
    ended: Callable[[Finding], None],
) -> None:
    """The same with so many attacks side by side, each in a process of its own with so many threads."""
    until = time.perf_counter() + seconds

    def waiting() -> Iterator[Job[Finding]]:
        for number, (attack, view) in enumerate(_quick_first(pairs)):
            left = max(0.0, until - time.perf_counter())
            share = left * min(1.0, jobs / (len(pairs) - number))
            yield Job(f"{attack.name} as {view}", partial(_in_a_process, attack, view, scene, share))

    def hear(name: str, event: Any) -> None:
        watch(*event)

    def end(found: Ended[Finding]) -> None:
        if found.result is not None:
            ended(found.result)

    ends = side_by_side(waiting(), at_once=jobs, threads=threads, hear=hear, ended=end)
    for failed in ends:
        if failed.error is not None:
            raise failed.error


def _in_a_process(attack: Attack, view: str, scene: Scene, share: float, link: Link) -> Finding:
    def pace(done: int, planned: int, unit: str) -> None:
        link.tell((attack.name, view, done, planned, unit))

    return _tried(attack, view, scene, Clock.of(share, pace))


def _quick_first(pairs: Sequence[tuple[Attack, str]]) -> list[tuple[Attack, str]]:
    return sorted(pairs, key=lambda pair: pair[0].long)


def _tried(attack: Attack, view: str, scene: Scene, clock: Clock) -> Finding:
    heard, measured, why_not, begun = scene.heard(view), None, "", time.perf_counter()
    scene.recorded.opened.clear()
    try:
        if not heard:
            raise NotTried("there is nobody else")
        measured = attack.attempt(heard, scene, clock)
    except NotTried as reason:
        why_not = str(reason)
    return Finding(
        attack=attack.name,
        view=view,
        target=attack.target,
        measured=measured,
        knows=attack.knows,
        guess=attack.guess,
        victims=tuple(heard),
        seconds=round(time.perf_counter() - begun, 3),
        why_not=why_not,
        tried=None if why_not else clock.tried,
        read=() if why_not else tuple(sorted(scene.recorded.opened)),
    )


def in_order(found: Iterable[Finding]) -> list[Finding]:
    """As attacks and views are listed, whichever was tried first."""
    attacks, views = list(ATTACKS), list[str](VIEWS)
    return sorted(found, key=lambda one: (attacks.index(one.attack), views.index(one.view)))


def keep(path: Path, found: Sequence[Finding]) -> list[Finding]:
    """Write findings into the run folder; those of other attacks or views that are there stay. All that are there then."""
    new = {(finding.attack, finding.view) for finding in found}
    kept = [finding for finding in read_findings(path) if (finding.attack, finding.view) not in new]
    everything = in_order([*kept, *found])
    write_json(path / FILE, {"findings": [finding.as_json() for finding in everything]})
    return everything


def read_findings(path: Path) -> list[Finding]:
    """What `keep` kept; none if nobody has attacked the run."""
    if not (path / FILE).exists():
        return []
    try:
        told: Any = read_json(path / FILE, "record of attacks")["findings"]
        return [_finding(one) for one in told]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError(f"{path / FILE} is damaged; delete it, and attack the run again") from error


def _finding(told: dict[str, Any]) -> Finding:
    found = {key: value for key, value in told.items() if key != "cut"}
    found["tried"] = tuple(found["tried"]) if found.get("tried") else None
    if found["measured"] is not None:
        numbers = {key: value for key, value in found["measured"].items() if key != "advantage"}
        numbers["exact"] = None if numbers["exact"] is None else tuple(numbers["exact"])
        found["measured"] = Measured(**numbers)
    if found["attack"] not in ATTACKS or found["view"] not in VIEWS:
        raise ValueError(found["attack"])
    lists = {key: tuple(found.get(key, ())) for key in ("knows", "victims", "read")}
    return Finding(**found | lists)
