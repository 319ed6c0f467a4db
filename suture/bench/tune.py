"""`suture tune`: better values for every method, found on validation alone, with the same budget for each.

A folder holds all of it: what was asked (tune.json), the protocol before (config.toml), every trial (search.log,
trials.json), and the protocol with what was found (tuned.toml), which says where each of its values comes from.

Nothing here knows a test score: the graphs that trials train on have no test nodes (`bench.hiding`), and the seeds of a
search are other ones than those that are reported, so that cuts, splits and first weights are others, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from suture.bench.hiding import without_test
from suture.bench.origins import origins_of, with_origins
from suture.bench.search import Found, Study, Trial, check_optuna
from suture.bench.work import Options, Work
from suture.config.resolve import Own, Resolved, to_toml
from suture.config.space import Space, spaces_of
from suture.config.toml import written
from suture.core.forks import Link
from suture.core.metrics import metric_for
from suture.core.storage import make_folder, read_json, write_atomically, write_json
from suture.errors import ConfigError, DataError, StorageError
from suture.method import Method
from suture.methods import own_fields
from suture.runs.execute import execute
from suture.runs.folder import refuse_used
from suture.runs.intake import path_of
from suture.runs.outcome import Tick
from suture.runs.plan import Plan, plan_as_written
from suture.runs.prepare import Prepared, Source
from suture.runs.pulse import alone_in

ASKED, BEFORE, TUNED, TRIALS = "tune.json", "config.toml", "tuned.toml", "trials.json"
SEEDS = (100, 101)
"""Of a search, unless others are named."""
BUDGET = 20
SUFFIX = "-tuned"
"""Of the name of a protocol that was."""


@dataclass(frozen=True)
class Wish:
    """How to search."""

    trials: int = BUDGET
    """For each method, the protocol's own values included."""
    seeds: tuple[int, ...] = SEEDS
    search: Mapping[str, Space] = dataclasses.field(default_factory=dict)
    """In place of a method's own space or beside it, by `training.lr` or `fedprox.mu`."""
    only: bool = False
    """Search nothing but these."""


@dataclass(frozen=True)
class Tuned:
    """What came of it."""

    found: tuple[Found, ...]
    protocol: Path
    """A protocol file with the best values."""
    metric: str
    in_percent: bool


def tune(
    made: Plan,
    wish: Wish,
    out: Path,
    data: Data | None = None,
    *,
    protocol: str | Path,
    given: Sequence[str] = (),
    options: Options | None = None,
    watch: Callable[[str, int, int, Tick], None] = lambda method, number, seed, tick: None,
) -> Tuned:
    """Search for every method of a plan; what the folder holds already of the same search is only read.

    `protocol` is the one that the plan was made from and `given` what the user has set over it, to say where values come
    from. `watch` is called after every round with the method, the number of the trial, the seed and the tick.
    """
    check_optuna()
    work = Work.of(None, options)
    _check(made, wish)
    spaces = {method.name: _spaces(method, wish) for method in made.methods}
    for key in wish.search:
        if not any(key.removeprefix(f"{name}.") in of for name, of in spaces.items()):
            raise ConfigError(
                f"--search {key} is of none of {', '.join(spaces)}; give METHOD.KEY, training.KEY or model.KEY"
            )
    _begin(made, wish, spaces, out)
    with alone_in(out), work.dividing_threads() as work:
        source = Source(replace(made, seeds=wish.seeds), data, data_root=path_of(work.options.data_root, "data_root"))
        prepared = [without_test(source.prepared(seed)) for seed in wish.seeds]
        metric = metric_for(prepared[0].task.metric, made.protocol.task)
        found = []
        for method in made.methods:
            study = Study(
                method.name,
                spaces[method.name],
                {key: value_at(method, key) for key in spaces[method.name]},
                _Attempt(made, type(method), prepared, out / BEFORE, work.options),
                metric.greater_is_better,
                _tested_rounds(method),
                out,
                wish.trials,
                lambda number, seed, tick, name=method.name: watch(name, number, seed, tick),  # type: ignore[misc]
            )
            found.append(study.carry_out(work.options.jobs, work.threads, work.options.stop))
    write_json(out / TRIALS, {one.method: [dataclasses.asdict(trial) for trial in one.trials] for one in found})
    tuned, by = _protocol(made, found, wish, metric.is_share)
    origins = {**origins_of(protocol, made, given), **by}
    write_atomically(out / TUNED, with_origins(to_toml(tuned), origins).encode())
    return Tuned(tuple(found), out / TUNED, metric.name, metric.is_share)


def _check(made: Plan, wish: Wish) -> None:
    if wish.trials < 2:
        raise ConfigError(f"--trials must be 2 or more, got {wish.trials}: the first one is of the protocol's own values")
    if not wish.seeds or len(set(wish.seeds)) < len(wish.seeds):
        raise ConfigError("--search-seeds must be one or several, all different")
    if both := sorted({*wish.seeds} & {*made.seeds}):
        raise ConfigError(
            f"--search-seeds {', '.join(map(str, both))} would be reported too: values must not be chosen on what they are "
            f"judged by, which is {', '.join(map(str, made.seeds))}; name other ones"
        )


def _spaces(method: Method[Any, Any], wish: Wish) -> dict[str, Space]:
    """Where one method is searched."""
    own = {} if wish.only else spaces_of(type(method), own_fields(type(method)))
    for key, space in wish.search.items():
        name = key.removeprefix(f"{method.name}.")
        if key.startswith(f"{method.name}.") or name.split(".")[0] in ("training", "model"):
            value_at(method, name)
            own[name] = space
    if not own:
        raise ConfigError(
            f"there is nothing to search for {method.name}; name something with --search training.lr=0.001..0.1"
        )
    return own


def value_at(method: Method[Any, Any], key: str) -> object:
    """What a method has at `mu` or `training.lr`; refuses what it has not."""
    value: Any = method
    for part in key.split("."):
        if part not in {field.name for field in dataclasses.fields(value)}:
            raise ConfigError(f"{method.name} has no {key} to search; see: suture methods {method.name}")
        value = getattr(value, part)
    return value


def _begin(made: Plan, wish: Wish, spaces: Mapping[str, Mapping[str, Space]], out: Path) -> None:
    """Keep what is asked, or see that it is what was asked before."""
    refuse_used(out)
    asked: dict[str, Any] = {
        "dataset": made.dataset,
        "methods": {name: {key: str(space) for key, space in of.items()} for name, of in spaces.items()},
        "trials": wish.trials,
        "seeds": list(wish.seeds),
        "reported": list(made.seeds),
    }
    config = made.config().encode()
    if not (out / ASKED).exists():
        make_folder(out)
        if any(out.iterdir()):
            raise StorageError(f"{out} is there already and holds no search; give --out a new folder")
        write_atomically(out / BEFORE, config)
        write_json(out / ASKED, asked)
        return
    before = read_json(out / ASKED, "description of the search")
    differing = [key for key in asked if asked[key] != before.get(key)]
    if differing or (out / BEFORE).read_bytes() != config:
        what = ", ".join(differing) or "values"
        raise ConfigError(f"{out} holds another search (other {what}); go on with the same options, or give another --out")


def _tested_rounds(method: Method[Any, Any]) -> int:
    return sum(phase.times for phase in method.plan())


@dataclass(frozen=True)
class _Attempt:
    """Trains a method with other values, once for each seed of the search."""

    made: Plan
    kind: type[Method[Any, Any]]
    prepared: Sequence[Prepared]
    config: Path
    options: Options

    def __call__(self, values: Mapping[str, Any], link: Link) -> Sequence[float]:
        """The validation scores; there are no others."""
        overrides = [f"{self.kind.name}.{key}={written(value)}" for key, value in values.items()]
        made = plan_as_written(self.made.dataset, [self.kind], protocol=self.config, overrides=overrides)
        scores = []
        for prepared in self.prepared:
            finished = execute(
                prepared,
                made.methods[0],
                made.protocol,
                chunk_size=self.options.chunk,
                engine=self.options.engine,
                watch=lambda tick, seed=prepared.task.seed: link.tell((seed, tick)),  # type: ignore[misc]
                stop=link.stop,
            )
            if finished.outcome.validation is None:
                raise DataError("no owner has a validation example, so nothing can be tuned; set split.val above 0")
            scores.append(finished.outcome.validation)
        return scores


def _protocol(made: Plan, found: Sequence[Found], wish: Wish, share: bool) -> tuple[Resolved, dict[str, str]]:
    """The plan's values with the best that were found in the place of its own; and by what each of these was found."""
    resolved = made.resolved
    own: Own = {name: dict(table) for name, table in resolved.methods.items()}
    sections: dict[str, Own] = {
        section: {name: dict(table) for name, table in tables.items()} for section, tables in resolved.sections.items()
    }
    notes = {tuned_method(line): line for line in resolved.protocol.tuned}
    origins: dict[str, str] = {}
    for one in found:
        by = _by_what(one, wish, share)
        for key, value in one.best.values.items():
            section, dot, name = key.rpartition(".")
            table = sections.setdefault(section, {}) if dot else own
            table.setdefault(one.method, {})[name] = value
            place = f"{one.method}.{section}" if dot else one.method
            origins[f"methods.{place}.{name}"] = f"tuned: {by}"
        if one.best.values:
            values = ", ".join(f"{key} = {written(value)}" for key, value in one.best.values.items())
            notes[one.method] = f"{one.method}: {values} ({by})"
    protocol = resolved.protocol
    name = protocol.name if protocol.name.endswith(SUFFIX) or not notes else f"{protocol.name}{SUFFIX}"
    return Resolved(replace(protocol, name=name, tuned=tuple(notes.values())), own, sections), origins


def tuned_method(line: str) -> str:
    """Whose a line of `Protocol.tuned` is."""
    return line.partition(":")[0]


def _by_what(found: Found, wish: Wish, share: bool) -> str:
    def told(trial: Trial) -> str:
        return f"{100 * (trial.score or 0.0):.2f} %" if share else f"{trial.score:.4g}"

    seeds = ", ".join(map(str, wish.seeds))
    return f"{wish.trials} trials on seeds {seeds}, validation {told(found.best)}, before {told(found.baseline)}"
