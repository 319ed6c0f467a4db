"""How much can be tried in the time there is: methods, seeds, rounds, and nodes of large graphs."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from suture.assessment.candidates import Candidate
from suture.method import Method
from suture.runs.execute import try_out
from suture.runs.loop import Interrupted
from suture.runs.outcome import Tick
from suture.runs.prepare import Prepared
from suture.settings import Protocol

SEEDS, GOOD_SEEDS, FEWEST_SEEDS, FEWEST_ROUNDS = 10, 5, 3, 20
PILOT_ROUNDS = 3
PILOT_SHARE = 0.15
"""Of the time, for trying out how long a round takes."""
ENOUGH_NODES = 20_000
"""Graphs are not sampled to fewer than these: they are quick enough."""


@dataclass(frozen=True)
class Pace:
    """Seconds that a method needs on this graph, on this machine."""

    method: str
    before: float
    """Before its first round."""
    per_round: float

    def seconds(self, rounds: int) -> float:
        """Of one run."""
        return self.before + rounds * self.per_round


@dataclass(frozen=True)
class Trial:
    """What is run, and what was left out for want of time."""

    methods: tuple[str, ...]
    seeds: int
    rounds: int
    share: float
    """Of every owner's nodes; 1: all."""
    seconds: float
    """That it will take, roughly."""
    reduced: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What may be reduced, and how far; what the user asked for may not."""

    seconds: float
    rounds: int
    nodes: int
    seeds: int = SEEDS
    fewest_seeds: int = FEWEST_SEEDS
    fewest_rounds: int = FEWEST_ROUNDS
    patience: int = 0
    """Of the protocol: rounds without a better one that end a run."""
    may_sample: bool = True

    def expected(self, rounds: int) -> int:
        """How many of so many rounds a run will make, roughly: with patience, about twice as many as that."""
        return min(rounds, 2 * self.patience) if self.patience else rounds


def measure(
    prepared: Prepared,
    method: Method[Any, Any],
    protocol: Protocol,
    seconds: float,
    stop: Callable[[], bool] = lambda: False,
    watch: Callable[[Tick], None] = lambda tick: None,
) -> Pace:
    """Try a few iterations of every phase, or as many as the time allows."""
    ticks: list[Tick] = []

    def note(tick: Tick) -> None:
        ticks.append(tick)
        watch(tick)

    try:
        try_out(prepared, method, protocol, PILOT_ROUNDS, note, lambda: stop() or ticks[-1].seconds > seconds)
    except Interrupted:
        if stop():
            raise
    return pace_of(method, ticks)


def pace_of(method: Method[Any, Any], ticks: Sequence[Tick]) -> Pace:
    """From the first iterations of every phase; one that was not reached is taken to be as slow as the slowest before it."""
    ends = [0.0, *(tick.seconds for tick in ticks)]
    lasted = [end - begin for begin, end in itertools.pairwise(ends)]
    slowest, before, per_round = 0.0, 0.0, 0.0
    for phase in method.plan():
        # The first iteration also lays out memory.
        own = [seconds for tick, seconds in zip(ticks, lasted, strict=True) if tick.phase == phase.name]
        each = statistics.fmean(own[1:] or own) if own else slowest
        slowest = max(slowest, each)
        if phase.evaluate:
            per_round = each
        else:
            before += phase.times * each
    return Pace(method.name, before, per_round)


def fit(paces: Sequence[Pace], tried: Sequence[Candidate], limits: Limits) -> Trial:
    """The most that fits.

    First fewer seeds, then half the rounds, then very few seeds, then samples of a large graph; then the slowest method that
    nobody asked for is left out, and all of this begins anew. What remains at last is run whatever it takes.
    """
    chosen = list(paces)
    wanted = {candidate.name for candidate in tried if candidate.wanted}
    gone: list[str] = []
    while True:
        trial = _fitted(chosen, limits)
        optional = [pace for pace in chosen if pace.method not in wanted]
        if trial.seconds <= limits.seconds or not optional:
            return replace(trial, reduced=tuple(_told(trial, limits, gone)))
        rounds = limits.expected(limits.rounds)
        slowest = max(optional, key=lambda pace: pace.seconds(rounds))
        chosen.remove(slowest)
        gone.append(f"{slowest.method}, which would take {_minutes(slowest.seconds(rounds))} a run")


def _fitted(paces: Sequence[Pace], limits: Limits) -> Trial:
    fewest = min(limits.fewest_seeds, limits.seeds)
    good = min(max(GOOD_SEEDS, fewest), limits.seeds)
    half = max(min(limits.fewest_rounds, limits.rounds), limits.rounds // 2)
    trial = _trial(paces, limits.seeds, limits.rounds, limits)
    for seeds, rounds in ((limits.seeds, limits.rounds), (good, limits.rounds), (good, half), (fewest, half)):
        trial = _trial(paces, seeds, rounds, limits)
        if trial.seconds <= limits.seconds:
            return trial
    if limits.may_sample and limits.nodes > ENOUGH_NODES:
        share = max(limits.seconds / trial.seconds, ENOUGH_NODES / limits.nodes)
        return replace(trial, share=share, seconds=trial.seconds * share)
    return trial


def _trial(paces: Sequence[Pace], seeds: int, rounds: int, limits: Limits) -> Trial:
    seconds = seeds * sum(pace.seconds(limits.expected(rounds)) for pace in paces)
    return Trial(tuple(pace.method for pace in paces), seeds, rounds, 1.0, seconds)


def _told(trial: Trial, limits: Limits, gone: Sequence[str]) -> list[str]:
    lines = [f"not tried: {one}" for one in gone]
    if trial.seeds < limits.seeds:
        lines.append(f"{trial.seeds} seeds instead of {limits.seeds}")
    if trial.rounds < limits.rounds:
        lines.append(f"{trial.rounds} rounds instead of {limits.rounds}")
    if trial.share < 1:
        lines.append(f"{100 * trial.share:.2g} % of every owner's nodes, picked as neighbourhoods")
    if trial.seconds > limits.seconds:
        lines.append(f"still it takes {_minutes(trial.seconds)}, more than there was")
    return lines


def _minutes(seconds: float) -> str:
    return f"about {seconds / 60:.0f} minutes" if seconds >= 90 else f"about {seconds:.0f} seconds"
