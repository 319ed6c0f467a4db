"""The Python interface: a graph or its name in, results, plain PyG models and annotated `Data` out.

    import suture
    result = suture.run("cora", "fedavg", protocol="fedpub-disjoint", clients=10)
    result.outcome.accuracy_client_mean
    model = result.model()             # a torch_geometric module
    result.data.prediction             # one class per node

The command line is a thin layer over these functions. `run` and `compare` make a plan and carry it out; whoever has a plan
already, as the commands do, calls `run_plan`, `compare_plan` or `resume_plan`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from suture.core.trusted import Code, let_in
from suture.errors import ConfigError, DataError
from suture.method import Method
from suture.methods import AnyMethod
from suture.nn.module import ModuleFactory
from suture.runs import folder as folders
from suture.runs import origin
from suture.runs.comparison import Comparison as Comparison
from suture.runs.counting import kind_of
from suture.runs.execute import check_engine, execute
from suture.runs.fitting import fitting
from suture.runs.folder import EMBEDDED, Asked, RunFolder
from suture.runs.foreign import codes_named_by
from suture.runs.intake import Overrides, check_device, graph_of, override_texts, path_of
from suture.runs.origin import IN_MEMORY
from suture.runs.outcome import Line, Outcome, Tick
from suture.runs.plan import DEFAULT_METHODS as DEFAULT_METHODS
from suture.runs.plan import Plan as Plan
from suture.runs.plan import plan
from suture.runs.predicting import graph_for
from suture.runs.predicting import predict as predicted
from suture.runs.prepare import Prepared, Source
from suture.runs.pulse import Pulse, carried_out, refuse_part_of_running
from suture.runs.result import Result as Result
from suture.runs.trained import Trained
from suture.trackers.tracking import check_trackers, tracked

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """How to compute, as opposed to what: none of these changes a result beyond rounding."""

    data_root: str | Path | None = None
    """Where raw datasets are; None looks at SUTURE_DATA, then at the cache folder."""
    device: str = "cpu"
    """A torch device."""
    chunk: int = 0
    """Clients computed together; 0 chooses by memory."""
    watch: Callable[[str, int, Tick], None] = lambda method, seed, tick: None
    """Called after every round with the method, the seed and the tick."""
    stop: Callable[[], bool] = lambda: False
    """Asked after every round; True saves and raises `Interrupted`."""
    tell: Callable[[Sequence[str]], None] = lambda notes: None
    """Called once before the first round with all that was dropped or assumed, if the graph is somebody's own or names
    owners."""
    engine: str = EMBEDDED
    """embedded; sealed: the server is shown sums only, where a method needs no more; or debug: slow,
    one client at a time, and an error says client, step, phase and round."""
    record: bool = False
    """Keep the content of every message in the run folder, for `suture attack`."""
    track: Sequence[str] = ()
    """Trackers to tell every round: `tensorboard`, `mlflow`, `wandb`, each also as `NAME:FOLDER`."""
    warn: Callable[[str], None] = log.warning
    """Called with a sentence when a tracker fails; the run goes on."""


def run(
    data: object,
    method: str | AnyMethod = "fedavg",
    *,
    protocol: str | Path | None = None,
    clients: int | None = None,
    seed: int | None = None,
    overrides: Overrides = (),
    config: str | Path | None = None,
    manifest: str | Path | None = None,
    out: str | Path | None = None,
    model: ModuleFactory | None = None,
    options: Options | None = None,
    x: object = None,
    y: object = None,
    **values: object,
) -> Result:
    """Run one method once (`seed` None: the protocol's first).

    `data` is a dataset's name, a folder of `suture import`, a PyG, NetworkX or SciPy graph (`x` and `y` are its features
    and labels if it has none), a .pt file, or a list of PyG graphs, one an owner. `method` is a name, a file and a class in
    it (`mine.py:Mine`), or a class; `model`, if given, builds your own module from (features, classes). Other keywords are
    values of the protocol: `rounds=5, lr=0.1`. Without a protocol, a graph of your own is run under `own`.
    """
    name, graph = graph_of(data, x, y)
    texts, file = override_texts(overrides, values), path_of(config, "config")
    seeds = None if seed is None else [seed]
    made = plan(name, [method], protocol=protocol, clients=clients, seeds=seeds, overrides=texts, config=file)
    return run_plan(made, graph, manifest=manifest, out=out, model=model, options=options)


def compare(
    data: object,
    methods: Sequence[str | AnyMethod] | None = None,
    *,
    protocol: str | Path | None = None,
    clients: int | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Overrides = (),
    config: str | Path | None = None,
    manifest: str | Path | None = None,
    out: str | Path | None = None,
    model: ModuleFactory | None = None,
    options: Options | None = None,
    x: object = None,
    y: object = None,
    **values: object,
) -> Comparison:
    """Run several methods on the same cuts, once per seed; see `run`. With a manifest every seed uses its one cut.

    `methods` None are `DEFAULT_METHODS`, but for those that cannot predict what the graph asks for.
    """
    name, graph = graph_of(data, x, y)
    texts, file = override_texts(overrides, values), path_of(config, "config")
    made = plan(name, methods, protocol=protocol, clients=clients, seeds=seeds, overrides=texts, config=file)
    return compare_plan(made, graph, manifest=manifest, out=out, model=model, options=options)


def resume(
    path: str | Path,
    data: object = None,
    *,
    methods: Sequence[AnyMethod] = (),
    model: ModuleFactory | None = None,
    options: Options | None = None,
    x: object = None,
    y: object = None,
) -> Comparison:
    """Bring an interrupted run or comparison to its end; what is finished already is only read.

    A graph or module that was given in memory must be given again; so must a method's class that is in no file.
    """
    path, graph = Path(path), None
    if data is not None:
        name, graph = graph_of(data, x, y)
        # What is given is what is gone on with; whether it is the graph of before is checked.
        graph = graph if graph is not None else origin.load(name, path_of((options or Options()).data_root, "data_root"))
    return resume_plan(folders.read_plan(path, methods), path, graph, model=model, options=options)


def predict(
    run: Result | str | Path,
    data: object = None,
    *,
    mend: bool | None = None,
    uncut: bool = False,
    model: ModuleFactory | None = None,
    data_root: str | Path | None = None,
    x: object = None,
    y: object = None,
) -> Data:
    """The graph with `prediction`, `probability`, `score` and `client` of every node, as `Result.data` has them.

    `run` is a result or the folder of a run; `data` any graph with the features of the one it was trained on (see `run`),
    None that graph itself. `mend` says whether pieces are mended as the method does for tests, None: where that can be done;
    `uncut` predicts on the whole graph, edges between owners included. `model` builds your own module, if it was one.
    """
    if isinstance(run, Result) and data is None and mend is None and not uncut:
        return run.data
    trained = Trained.of(run.finished) if isinstance(run, Result) else Trained.read(Path(run), model)
    name, graph = (None, None) if data is None else graph_of(data, x, y)
    found = graph if graph is not None else graph_for(trained, name, path_of(data_root, "data_root"))
    return predicted(trained, found, mend=mend, uncut=uncut).to_data()


def trust(what: str | Path) -> tuple[Code, ...]:
    """Let in the code that a run folder or TOML file names, or `FILE.py:NAME` itself, as `suture trust` does; returns it.

    What you name in Python, or pass as an object, is your own and needs none of this. Folders and files that others wrote
    run no code before you let it in.
    """
    return let_in(code.spelling for code in codes_named_by(what))


def run_plan(
    made: Plan,
    data: Data | None = None,
    *,
    manifest: str | Path | None = None,
    out: str | Path | None = None,
    model: ModuleFactory | None = None,
    options: Options | None = None,
) -> Result:
    """Run the first method of a plan on its first seed; `data` only if the plan has no dataset's name."""
    made, work, place = made.single(), _Work.of(model, options), path_of(out, "out")
    work.check_place(place)
    prepared = work.source(made, data, path_of(manifest, "manifest")).prepared(made.seeds[0])
    work.tell(prepared)
    with carried_out(place) as pulse:
        folder = work.folder(made, made.methods[0], prepared, place, new=True) if place is not None else None
        return work.execute(made, made.methods[0], prepared, folder, pulse)


def compare_plan(
    made: Plan,
    data: Data | None = None,
    *,
    manifest: str | Path | None = None,
    out: str | Path | None = None,
    model: ModuleFactory | None = None,
    options: Options | None = None,
) -> Comparison:
    """Run every method of a plan on every seed; `data` only if the plan has no dataset's name."""
    work, place = _Work.of(model, options), path_of(out, "out")
    work.check_place(place)
    source = work.source(made, data, path_of(manifest, "manifest"))
    made, left_out = fitting(made, kind_of(source.graph), source.graphless)
    if place is not None:
        folders.begin_comparison(place, work.asked(made), made.config(), source.given)
    return work.compare(made, source, place, left_out)


def resume_plan(
    made: Plan,
    path: Path,
    data: Data | None = None,
    *,
    model: ModuleFactory | None = None,
    options: Options | None = None,
) -> Comparison:
    """Bring the run or comparison in `path`, whose plan this is, to its end."""
    asked = folders.read_asked(path)
    # Chunks of another size would round differently.
    work = _Work.of(model, replace(options or Options(), chunk=asked.chunk, record=asked.recorded))
    if asked.dataset == IN_MEMORY and data is None:
        raise DataError(f"the graph of {path} was given in memory; call suture.resume(path, data) with the same graph")
    if asked.own_module and model is None:
        raise ConfigError(f"the model of {path} was your own module; call suture.resume(path, model=...) with it")
    if not folders.is_comparison(path):
        done = folders.read_outcome(path)
        if done is not None:
            return Comparison((done,), (folders.read_metrics(path),))
        for source in asked.sources:
            source.check_unchanged()
        prepared = work.source(made, data, folders.manifest_of(path)).prepared(made.seeds[0])
        refuse_part_of_running(path)
        with carried_out(path) as pulse:
            result = work.execute(made, made.methods[0], prepared, RunFolder(path), pulse)
        return Comparison((result.outcome,), (result.history,))
    for source in asked.sources:
        source.check_unchanged()
    graph = work.source(made, data, folders.manifest_of(path))
    folders.check_same_graph(path, made.names, graph.cuts)
    return work.compare(made, graph, path)


@dataclass(frozen=True)
class _Work:
    """How a plan is carried out: the options, and the user's own module if there is one."""

    module: ModuleFactory | None
    options: Options

    @staticmethod
    def of(module: ModuleFactory | None, options: Options | None) -> _Work:
        work = _Work(module, options or Options())
        check_engine(work.options.engine)
        check_device(work.options.device)
        check_trackers(work.options.track)
        return work

    def check_place(self, out: Path | None) -> None:
        """Messages are recorded in a folder or not at all."""
        if self.options.record and out is None:
            raise ConfigError("recorded messages need a folder; give one with out=...")

    def source(self, made: Plan, data: Data | None, manifest: Path | None) -> Source:
        options = self.options
        root = path_of(options.data_root, "data_root")
        return Source(made, data, manifest=manifest, module=self.module, data_root=root, device=options.device)

    def asked(self, made: Plan) -> Asked:
        own, options = self.module is not None, self.options
        return Asked.now(
            made.dataset,
            made.names,
            made.seeds,
            own_module=own,
            chunk=options.chunk,
            engine=options.engine,
            sources=made.sources,
            recorded=options.record,
        )

    def folder(self, made: Plan, method: Method[Any, Any], prepared: Prepared, path: Path, *, new: bool) -> RunFolder:
        """A new run, or one of a comparison, which may have been begun before that was interrupted."""
        one = replace(made, methods=(method,), seeds=(prepared.task.seed,))
        begin = RunFolder.create if new else RunFolder.open
        return begin(path, self.asked(one), made.config(), prepared.cut)

    def tell(self, prepared: Prepared, more: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Say what was dropped or assumed where that is not a paper's doing; returns what was said."""
        own = origin.is_own(prepared.dataset) or prepared.graph.get("client") is not None
        notes = (*more, *(prepared.notes if own else ()))
        if notes:
            self.options.tell(notes)
        return notes

    def compare(self, made: Plan, source: Source, out: Path | None, left_out: tuple[str, ...] = ()) -> Comparison:
        """Every method on every seed; runs that `out` holds are read, or continued."""
        runs = [folders.place_of(out, name, seed) for name in made.names for seed in made.seeds] if out is not None else []
        left = any(folders.read_outcome(run) is None for run in runs)
        with carried_out(out if left else None, len(runs)) as pulse:
            return self._compare(made, source, out, left_out, pulse)

    def _compare(self, made: Plan, source: Source, out: Path | None, left_out: tuple[str, ...], pulse: Pulse) -> Comparison:
        found: dict[tuple[int, int], tuple[Outcome, list[Line]]] = {}
        notes: tuple[str, ...] | None = None
        for seed in made.seeds:
            prepared: Prepared | None = None
            for place, method in enumerate(made.methods):
                path = folders.place_of(out, method.name, seed) if out is not None else None
                done = folders.read_outcome(path) if path is not None else None
                if path is not None and done is not None:
                    found[place, seed] = done, folders.read_metrics(path)
                    continue
                prepared = prepared or source.prepared(seed)
                notes = self.tell(prepared, left_out) if notes is None else notes
                folder = self.folder(made, method, prepared, path, new=False) if path is not None else None
                result = self.execute(made, method, prepared, folder, pulse)
                found[place, seed] = result.outcome, result.history
        runs = [found[place, seed] for place in range(len(made.methods)) for seed in made.seeds]
        return Comparison(tuple(outcome for outcome, _ in runs), tuple(history for _, history in runs), notes or ())

    def execute(
        self, made: Plan, method: Method[Any, Any], prepared: Prepared, folder: RunFolder | None, pulse: Pulse
    ) -> Result:
        seed, options = prepared.task.seed, self.options
        path, before = (folder.path, folder.read_metrics()) if folder is not None else (None, [])
        told = (method.name, seed, prepared.clients.ids, path, before, options.warn)
        try:
            with tracked(options.track, made, *told) as (note, ended):

                def watch(tick: Tick) -> None:
                    pulse.beat(method.name, seed, tick)
                    note(tick)
                    options.watch(method.name, seed, tick)

                finished = execute(
                    prepared,
                    method,
                    made.protocol,
                    folder=folder,
                    chunk_size=options.chunk,
                    engine=options.engine,
                    watch=watch,
                    stop=options.stop,
                )
                ended(finished.outcome)
        finally:
            if folder is not None:
                folder.close()
        return Result(finished.outcome, finished, folder.path if folder is not None else None)
