"""The search for better values of one method, by Optuna, on validation alone.

Trials are told and asked for in batches of as many as are computed side by side, and every suggestion has a seed of its own:
a search that was stopped goes on as if it had not been, and the same search finds the same values. What a trial is given up
for (its curve is below the median of finished trials) depends on batches before it, not on who was quicker.
"""

from __future__ import annotations

import importlib.util
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suture.config.space import Space, Spaces, Value
from suture.core.forks import Ended, Job, Link, side_by_side
from suture.errors import ConfigError, SutureError
from suture.runs.loop import Interrupted
from suture.runs.outcome import Tick

if TYPE_CHECKING:
    import optuna

JOURNAL = "search.log"
"""What Optuna keeps of all trials."""
BASELINE, VALUES, WHY, SCORES = "baseline", "values", "why", "scores"
GIVEN_UP = "given up"
GRACE = 4
"""Finished trials before any is given up."""
LOOKS = 20
"""How often in its rounds a trial is compared with others."""


@dataclass(frozen=True)
class Trial:
    """One set of values that was tried."""

    values: dict[str, Value]
    score: float | None
    """The mean validation score over the seeds; None: it was given up, or failed."""
    scores: tuple[float, ...] = ()
    """Of every seed."""
    why: str = ""
    """Why there is no score."""


@dataclass(frozen=True)
class Found:
    """What came of a search."""

    method: str
    trials: tuple[Trial, ...]
    """The first is of the values that the protocol has."""
    greater_is_better: bool

    @property
    def baseline(self) -> Trial:
        """The protocol's own values."""
        return self.trials[0]

    @property
    def best(self) -> Trial:
        """The best of all; of equal ones the first, so that nothing is changed for nothing."""
        sign = 1.0 if self.greater_is_better else -1.0
        scored = [trial for trial in self.trials if trial.score is not None]
        if not scored:
            raise SutureError(f"no trial of {self.method} came to an end: {self.trials[0].why or 'none was begun'}")
        return max(scored, key=lambda trial: sign * (trial.score or 0.0))

    @property
    def given_up(self) -> int:
        """Trials that others were so much better than that they were not finished."""
        return sum(trial.score is None and trial.why.startswith(GIVEN_UP) for trial in self.trials)


Attempt = Callable[[Mapping[str, Value], Link], Sequence[float]]
"""Trains with these values in place of the protocol's, once for each seed, and tells (seed, tick); the validation scores."""


@dataclass
class Study:
    """The search of one method, kept in a folder."""

    method: str
    spaces: Spaces
    defaults: Mapping[str, object]
    """What the protocol has."""
    attempt: Attempt
    greater_is_better: bool
    rounds: int
    folder: Path
    trials: int
    watch: Callable[[int, int, Tick], None] = lambda number, seed, tick: None
    _curves: dict[str, dict[int, float]] = field(default_factory=dict)
    _given_up: dict[str, int] = field(default_factory=dict)

    def carry_out(self, jobs: int, threads: int, stop: Callable[[], bool]) -> Found:
        """All trials that are left."""
        study = self._opened()
        while (done := len(_counted(study))) < self.trials:
            if done == 0:
                self._baseline(study, threads, stop)
                continue
            self._batch(study, range(done, min(done + jobs, self.trials)), jobs, threads, stop)
        return Found(self.method, tuple(map(self._read, _counted(study)[: self.trials])), self.greater_is_better)

    def _opened(self) -> optuna.Study:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(logging.ERROR)
        storage = JournalStorage(JournalFileBackend(str(self.folder / JOURNAL)))
        study = optuna.create_study(storage=storage, study_name=self.method, direction="maximize", load_if_exists=True)
        for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            study.tell(
                trial.number, state=optuna.trial.TrialState.FAIL
            )  # of a process that was killed; it counts for nothing
        return study

    def _baseline(self, study: optuna.Study, threads: int, stop: Callable[[], bool]) -> None:
        """The protocol's own values: what others must beat."""
        import optuna

        (end,) = self._done([({}, None)], (0,), 1, threads, stop)
        if end.result is None:
            raise self._failed(end)
        shown = {key: value for key, value in self.defaults.items() if key in self.spaces and self.spaces[key].holds(value)}
        study.add_trial(
            optuna.trial.create_trial(
                value=self._worth(end.result),
                params=shown,
                distributions={key: _distribution(self.spaces[key]) for key in shown},
                intermediate_values=self._curves.get("0", {}),
                user_attrs={BASELINE: True, VALUES: {}, SCORES: list(end.result)},
            )
        )

    def _batch(self, study: optuna.Study, numbers: range, jobs: int, threads: int, stop: Callable[[], bool]) -> None:
        import optuna

        distributions = {key: _distribution(space) for key, space in self.spaces.items()}
        asked: list[tuple[dict[str, Value], optuna.trial.Trial | None]] = []
        for number in numbers:
            study.sampler = optuna.samplers.TPESampler(seed=number, constant_liar=True)
            study.pruner = optuna.pruners.MedianPruner(n_startup_trials=GRACE, n_warmup_steps=self.rounds // 5)
            trial = study.ask(distributions)
            values = {key: self.spaces[key].rounded(trial.params[key]) for key in self.spaces}
            trial.set_user_attr(VALUES, values)
            asked.append((values, trial))
        states = optuna.trial.TrialState
        for (_, asked_for), end in zip(asked, self._done(asked, numbers, jobs, threads, stop), strict=True):
            if asked_for is None:
                raise TypeError("only the protocol's own values are tried without having been asked for")
            # One that was given up may have come to its end before it heard so: what it found must not depend on that.
            at = self._given_up.get(end.name)
            if at is not None:
                asked_for.set_user_attr(WHY, f"{GIVEN_UP} after {at} rounds, below the median of the trials before it")
                study.tell(asked_for, state=states.PRUNED)
            elif end.result is not None:
                asked_for.set_user_attr(SCORES, list(end.result))
                study.tell(asked_for, self._worth(end.result))
            elif isinstance(end.error, SutureError):
                asked_for.set_user_attr(WHY, str(end.error))
                study.tell(asked_for, state=states.FAIL)
            else:
                raise self._failed(end)

    def _done(
        self,
        asked: Sequence[tuple[Mapping[str, Value], optuna.trial.Trial | None]],
        numbers: Sequence[int],
        jobs: int,
        threads: int,
        stop: Callable[[], bool],
    ) -> list[Ended[Sequence[float]]]:
        """Try all of them, side by side; in the order they were asked for."""
        trials = {str(number): trial for number, (_, trial) in zip(numbers, asked, strict=True)}
        stopped = False

        def work(values: Mapping[str, Value]) -> Callable[[Link], Sequence[float]]:
            return lambda link: self.attempt(values, link)

        def hear(name: str, event: object) -> bool:
            match event:
                case (int() as seed, Tick() as tick) if name not in self._given_up:
                    hopeless = self._is_hopeless(name, trials[name], tick)
                    # Of one that is given up this is the last that anybody hears.
                    self.watch(int(name), seed, replace(tick, total=tick.done) if hopeless else tick)
                    return hopeless
            return False

        def stopping() -> bool:
            nonlocal stopped
            stopped = stopped or stop()
            return stopped

        tasks = [Job(str(number), work(values)) for number, (values, _) in zip(numbers, asked, strict=True)]
        ends = {end.name: end for end in side_by_side(tasks, at_once=jobs, threads=threads, hear=hear, stop=stopping)}
        if stopped:
            raise Interrupted(f"stopped after {numbers[0]} of {self.trials} trials of {self.method}")
        return [ends[str(number)] for number in numbers]

    def _is_hopeless(self, name: str, trial: optuna.trial.Trial | None, tick: Tick) -> bool:
        """Whether a trial's best score so far is below what others had by then; looked at now and then."""
        told, curve = tick.line.get("validation"), self._curves.setdefault(name, {})
        # Later seeds are not looked at; one that was given up has been told so.
        if not isinstance(told, float) or name in self._given_up or (curve and max(curve) >= tick.done):
            return False
        worth = self._worth([told])
        best = max([worth, *curve.values()])
        if tick.done % max(1, self.rounds // LOOKS) != 0:
            return False
        curve[tick.done] = best
        if trial is None:
            return False
        trial.report(best, tick.done)
        if trial.should_prune():
            self._given_up.setdefault(name, tick.done)
        return name in self._given_up

    def _worth(self, scores: Sequence[float]) -> float:
        return statistics.fmean(scores) * (1.0 if self.greater_is_better else -1.0)

    def _read(self, trial: optuna.trial.FrozenTrial) -> Trial:
        told = trial.user_attrs
        scores = tuple(float(score) for score in told.get(SCORES, ()))
        return Trial(
            dict(told.get(VALUES, {})), statistics.fmean(scores) if scores else None, scores, str(told.get(WHY, ""))
        )

    def _failed(self, end: Ended[Any]) -> BaseException:
        error = end.error
        if isinstance(error, SutureError):
            return type(error)(f"{self.method}, trial {end.name}: {error}")
        return error if error is not None else RuntimeError(f"trial {end.name} of {self.method} has no result")


def _counted(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Trials that have ended by themselves; one whose process was killed has not."""
    return [trial for trial in study.get_trials(deepcopy=False) if SCORES in trial.user_attrs or WHY in trial.user_attrs]


def _distribution(space: Space) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if space.choices:
        return CategoricalDistribution(space.choices)
    if space.whole:
        return IntDistribution(int(space.low), int(space.high), log=space.log)
    return FloatDistribution(space.low, space.high, log=space.log)


def check_optuna() -> None:
    """Say early what is missing."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError('Optuna is not installed; install it with: pip install "suture-fl[tune]"')
