"""The Python interface: PyG `Data` or a dataset's name in, results, plain PyG models and annotated `Data` out.

    import suture
    result = suture.run("cora", "fedavg", protocol="fedpub-disjoint", clients=10)
    result.outcome.accuracy_client_mean
    model = result.model()             # a torch_geometric module
    result.data.prediction             # one class per node

The command line is a thin layer over these functions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from suture.config.resolve import Resolved, resolve, to_toml
from suture.config.strict import strict
from suture.core.message import Model
from suture.core.storage import make_folder, read_json, write_atomically, write_json
from suture.errors import ConfigError, DataError, IntegrityError
from suture.graph import datasets
from suture.graph.cut import Cut, load_manifest, save_manifest
from suture.method import Method
from suture.methods import METHODS, method_class, own_fields
from suture.nn.export import to_module, to_pyg
from suture.nn.module import ModuleFactory
from suture.runs.folder import RunFolder, read_result
from suture.runs.runner import Finished, Outcome, Prepared, Tick, cut_graph, execute, prepare, preprocess
from suture.settings import Protocol

DEFAULT_PROTOCOL = "fedpub-disjoint"
DEFAULT_METHODS = ("local", "fedavg", "fedprox", "fedper", "fedsage", "gcfl", "fedproto", "fedpub", "global")
IN_MEMORY = "in-memory"
FEDERATION = "federation"
"""In place of a dataset's name: the graph is in pieces, and its owners have them."""
COMPARISON = "compare.json"
RUN = "run.json"
ASKED = {"dataset": str, "methods": list, "seeds": list, "own_module": bool, "threads": int, "chunk": int}
"""What both of these files hold."""


@dataclass(frozen=True)
class Options:
    """How to compute, as opposed to what: none of these changes a result beyond rounding."""

    data_root: Path | None = None
    """Where raw datasets are; None looks at SUTURE_DATA, then at the cache folder."""
    device: str = "cpu"
    """A torch device."""
    chunk: int = 0
    """Clients computed together; 0 chooses by memory."""
    watch: Callable[[str, int, Tick], None] = lambda method, seed, tick: None
    """Called after every round with the method, the seed and the tick."""
    stop: Callable[[], bool] = lambda: False
    """Asked after every round; True saves and raises `Interrupted`."""


@dataclass(frozen=True)
class Result:
    """A finished run."""

    outcome: Outcome
    finished: Finished
    folder: Path | None

    def model(self, client: str | None = None) -> nn.Module:
        """A plain PyG module: the model all share, or that of one client (`result.client_ids`)."""
        models = self._models(client)
        task, method = self.finished.prepared.task, self.finished.method
        name = client if client in models.ids else models.ids[0]
        row = models.ids.index(name)
        if task.module is not None:
            return to_module(models.params, task.module, task.features, task.classes, row)
        return to_pyg(models.params, method.model, task.features, task.classes, row)

    def _models(self, client: str | None) -> Model:
        personal, shared = self.finished.personal, self.finished.shared
        if client is not None and client not in self.client_ids:
            raise ConfigError(f"unknown client {client!r}; clients are {', '.join(self.client_ids)}")
        if client is not None and personal is not None:
            return personal
        if shared is None:
            raise ConfigError(f"{self.outcome.method} has a model for each client; name one of {', '.join(self.client_ids)}")
        return shared

    @property
    def client_ids(self) -> tuple[str, ...]:
        """Names of the clients."""
        return self.finished.prepared.clients.ids

    @property
    def data(self) -> Data:
        """The (preprocessed) graph with `client` and `prediction` per node; -1 for nodes no client owns."""
        prepared = self.finished.prepared
        data = prepared.data.clone()
        data.client = torch.full((int(data.num_nodes),), -1)
        data.prediction = torch.full((int(data.num_nodes),), -1)
        graph = prepared.clients
        predicted = self.predictions()
        # Where clients overlap, the first owner speaks: write in reverse so that it comes last.
        members = prepared.cut.partition.members
        for k in reversed(range(len(graph.ids))):
            first, last = graph.segments.bounds[k], graph.segments.bounds[k + 1]
            data.client[members[k]] = k
            data.prediction[members[k]] = predicted[first:last]
        return data

    def predictions(self) -> torch.Tensor:
        """The predicted class of every client's nodes on its own piece, flat, client after client."""
        prepared, method = self.finished.prepared, self.finished.method
        ids = prepared.clients.ids
        models = self.finished.personal
        if models is None:
            shared = self._models(None)
            expanded = {name: value.expand(len(ids), *value.shape[1:]) for name, value in shared.params.items()}
            models = Model(ids, expanded)
        with torch.no_grad():
            return method.predict(prepared.pieces_for(method), models, prepared.task).argmax(1).cpu()


@dataclass(frozen=True)
class Row:
    """Mean and sample deviation over seeds of one method."""

    method: str
    seeds: int
    values: dict[str, tuple[float, float] | None]
    least_private: Outcome | None = None
    """The run with the weakest of the guarantees; None: there is none."""


COLUMNS = (
    "accuracy_client_mean",
    "accuracy_weighted",
    "accuracy_worst",
    "accuracy_global",
    "bytes_up",
    "bytes_down",
    "seconds",
)


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison."""

    outcomes: tuple[Outcome, ...]

    def as_json(self) -> list[dict[str, object]]:
        """One object per method and seed."""
        return [outcome.as_json() for outcome in self.outcomes]

    def rows(self) -> list[Row]:
        """One row per method, in the order they were asked for."""
        rows = []
        for name in dict.fromkeys(outcome.method for outcome in self.outcomes):
            runs = [outcome for outcome in self.outcomes if outcome.method == name]
            promised = [run for run in runs if run.mechanism is not None]
            weakest = max(promised, key=lambda run: (run.delta or 0.0, run.epsilon or math.inf), default=None)
            rows.append(Row(name, len(runs), {column: _spread(runs, column) for column in COLUMNS}, weakest))
        return rows


def _spread(runs: Sequence[Outcome], column: str) -> tuple[float, float] | None:
    values = [getattr(run, column) for run in runs]
    if any(value is None for value in values):
        return None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Plan:
    """A comparison that has been checked but not started: what `--dry-run` shows."""

    dataset: str
    protocol: Protocol
    resolved: Resolved
    methods: tuple[Method[Any, Any], ...]
    seeds: tuple[int, ...]


def plan(
    dataset: str,
    methods: Sequence[str] = DEFAULT_METHODS,
    *,
    protocol: str | Path = DEFAULT_PROTOCOL,
    clients: int | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    config: Path | None = None,
) -> Plan:
    """Resolve and check every name and value, without touching data or disk."""
    if dataset not in (IN_MEMORY, FEDERATION):
        datasets.about(dataset)
    classes = [method_class(name) for name in methods]
    fields = {name: own_fields(kind) for name, kind in METHODS.items()}
    resolved = resolve(protocol, dataset, overrides, config_file=config, clients=clients, method_fields=fields)
    settings = resolved.protocol
    built = tuple(_build(kind, resolved) for kind in classes)
    chosen = tuple(seeds) if seeds is not None else settings.seeds
    _check_list("methods", methods)
    _check_list("seeds", chosen)
    settings = replace(settings, seeds=chosen)
    return Plan(dataset, settings, replace(resolved, protocol=settings), built, chosen)


def _check_list(what: str, given: Sequence[object]) -> None:
    if not given or len(set(given)) < len(given):
        raise ConfigError(f"{what} must be one or several, all different, got {', '.join(map(str, given)) or 'none'}")


def _build(kind: type[Method[Any, Any]], resolved: Resolved) -> Method[Any, Any]:
    values = strict_values(kind, resolved.methods.get(kind.name, {}))
    return kind(model=resolved.model_of(kind.name), training=resolved.training_of(kind.name), **values)


def strict_values(kind: type[Method[Any, Any]], values: dict[str, object]) -> dict[str, Any]:
    """Check a method's own hyper-parameters against its field types."""
    checked = strict(kind, values, kind.name)
    return {name: getattr(checked, name) for name in values}


def run(
    data: Data | str,
    method: str = "fedavg",
    *,
    protocol: str | Path = DEFAULT_PROTOCOL,
    clients: int | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    config: Path | None = None,
    manifest: Path | None = None,
    out: Path | None = None,
    model: ModuleFactory | None = None,
    options: Options | None = None,
) -> Result:
    """Run one method once (`seed` None: the protocol's first).

    `data` is a dataset's name or a PyG graph; `model`, if given, builds your own module from (features, classes).
    """
    options = options or Options()
    seeds = None if seed is None else [seed]
    made = plan(_name(data), [method], protocol=protocol, clients=clients, seeds=seeds, overrides=overrides, config=config)
    made = replace(made, seeds=made.seeds[:1])
    source = _Source(made, data, manifest, model, options)
    prepared = source.prepared(made.seeds[0])
    folder = _new_run(made, made.methods[0], prepared, out, options) if out is not None else None
    return _execute(made, made.methods[0], prepared, folder, options)


def compare(
    data: Data | str,
    methods: Sequence[str] = DEFAULT_METHODS,
    *,
    protocol: str | Path = DEFAULT_PROTOCOL,
    clients: int | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    config: Path | None = None,
    manifest: Path | None = None,
    out: Path | None = None,
    model: ModuleFactory | None = None,
    options: Options | None = None,
) -> Comparison:
    """Run several methods on the same cuts, once per seed. With a manifest every seed uses its one cut."""
    options = options or Options()
    made = plan(_name(data), methods, protocol=protocol, clients=clients, seeds=seeds, overrides=overrides, config=config)
    source = _Source(made, data, manifest, model, options)
    if out is not None:
        _new_comparison(made, source, out)
    return _compare(made, source, out, options)


def resume(
    path: Path, data: Data | None = None, *, model: ModuleFactory | None = None, options: Options | None = None
) -> Comparison:
    """Bring an interrupted run or comparison to its end; what is finished already is only read.

    A graph or module that was given in memory must be given again.
    """
    options = options or Options()
    single = not (path / COMPARISON).exists()
    asked = read_asked(path)
    made = read_plan(path)
    # Checkpoints hold the clients' states chunk by chunk.
    options = replace(options, chunk=asked["chunk"])
    if asked["dataset"] == IN_MEMORY and data is None:
        raise DataError(f"the graph of {path} was given in memory; call suture.resume(path, data) with the same graph")
    if asked["own_module"] and model is None:
        raise ConfigError(f"the model of {path} was your own module; call suture.resume(path, model=...) with it")
    if single:
        done = read_outcome(path)
        if done is not None:
            return Comparison((done,))
        source = _Source(made, data or made.dataset, path / "manifest.json", model, options)
        folder = RunFolder(path)
        return Comparison((_execute(made, made.methods[0], source.prepared(made.seeds[0]), folder, options).outcome,))
    manifest = path / "manifest.json"
    source = _Source(made, data or made.dataset, manifest if manifest.exists() else None, model, options)
    return _compare(made, source, path, options)


class _Source:
    """The graph of a comparison and its cuts, all of them made (and so checked) before anything is trained or written."""

    def __init__(
        self, made: Plan, data: Data | str, manifest: Path | None, module: ModuleFactory | None, options: Options
    ) -> None:
        self.made, self.module, self.options = made, module, options
        loaded = datasets.load(data, options.data_root) if isinstance(data, str) else data
        self.graph = preprocess(loaded, made.protocol.preprocess)
        self.given = load_manifest(manifest, self.graph) if manifest is not None else None
        self.cuts: dict[int, Cut] = {}
        if self.given is None:
            self.cuts = {seed: cut_graph(self.graph, made.dataset, made.protocol, seed) for seed in made.seeds}

    def prepared(self, seed: int) -> Prepared:
        cut = self.given or self.cuts.get(seed)
        made, device = self.made, self.options.device
        return prepare(self.graph, made.dataset, made.protocol, seed, cut=cut, device=device, module=self.module)


def _compare(made: Plan, source: _Source, out: Path | None, options: Options) -> Comparison:
    outcomes: list[Outcome] = []
    for seed in made.seeds:
        prepared: Prepared | None = None
        for method in made.methods:
            path = out / f"{method.name}-seed{seed}" if out is not None else None
            done = read_outcome(path) if path is not None else None
            if done is None:
                prepared = prepared or source.prepared(seed)
                folder = _open_run(made, method, prepared, path, options) if path is not None else None
                done = _execute(made, method, prepared, folder, options).outcome
            outcomes.append(done)
    order = [method.name for method in made.methods]
    return Comparison(tuple(sorted(outcomes, key=lambda outcome: order.index(outcome.method))))


def _execute(made: Plan, method: Method[Any, Any], prepared: Prepared, folder: RunFolder | None, options: Options) -> Result:
    seed = prepared.task.seed
    try:
        finished = execute(
            prepared,
            method,
            made.protocol,
            folder=folder,
            chunk_size=options.chunk,
            watch=lambda tick: options.watch(method.name, seed, tick),
            stop=options.stop,
        )
    finally:
        if folder is not None:
            folder.close()
    return Result(finished.outcome, finished, folder.path if folder is not None else None)


def _asked(
    made: Plan, methods: Sequence[str], seeds: Sequence[int], own_module: bool, options: Options
) -> dict[str, object]:
    return {
        "dataset": made.dataset,
        "methods": list(methods),
        "seeds": list(seeds),
        "own_module": own_module,
        "threads": torch.get_num_threads(),
        "chunk": options.chunk,
    }


def _new_comparison(made: Plan, source: _Source, out: Path) -> None:
    _refuse_used(out)
    make_folder(out)
    write_atomically(out / "config.toml", to_toml(made.resolved).encode())
    if source.given is not None:
        save_manifest(source.given, out / "manifest.json")
    names = [method.name for method in made.methods]
    write_json(out / COMPARISON, _asked(made, names, made.seeds, source.module is not None, source.options))


def _refuse_used(out: Path) -> None:
    if any((out / name).exists() for name in (COMPARISON, RUN)):
        raise ConfigError(f"{out} holds a run already; continue it with `suture resume {out}` or choose another folder")


def _new_run(made: Plan, method: Method[Any, Any], prepared: Prepared, path: Path, options: Options) -> RunFolder:
    _refuse_used(path)
    asked = _asked(made, [method.name], [prepared.task.seed], prepared.task.module is not None, options)
    return RunFolder.create(path, asked, to_toml(made.resolved), prepared.cut)


def _open_run(made: Plan, method: Method[Any, Any], prepared: Prepared, path: Path, options: Options) -> RunFolder:
    """A run of a comparison: begun before the comparison was interrupted, or new."""
    return RunFolder(path) if (path / RUN).exists() else _new_run(made, method, prepared, path, options)


def read_asked(path: Path) -> dict[str, Any]:
    """What a run or comparison folder was asked to do."""
    for name in (COMPARISON, RUN):
        if (path / name).exists():
            asked = read_json(path / name, "run description")
            if any(not isinstance(asked.get(key), kind) for key, kind in ASKED.items()):
                raise IntegrityError(f"{path / name} is not complete; it is damaged, start the run anew")
            return asked
    raise ConfigError(f"{path} holds no run: neither {RUN} nor {COMPARISON} is there; give the folder of a run")


def read_plan(path: Path) -> Plan:
    """The plan of a run or comparison folder."""
    asked = read_asked(path)
    return plan(asked["dataset"], asked["methods"], protocol=path / "config.toml", seeds=asked["seeds"])


def read_outcome(path: Path) -> Outcome | None:
    """The numbers of a finished run, None if it is not finished."""
    result = read_result(path)
    if result is None:
        return None
    try:
        suspects = tuple(map(str, result.pop("suspects", ())))  # type: ignore[call-overload]
        return Outcome(**result, suspects=suspects)  # type: ignore[arg-type]
    except TypeError as error:
        raise IntegrityError(f"{path / 'result.json'} is not complete; it is damaged, start the run anew") from error


def _name(data: Data | str) -> str:
    return data if isinstance(data, str) else IN_MEMORY
