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

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch_geometric.data import Data

from suture.bench.grid import compare as carry_out
from suture.bench.work import Options as Options
from suture.bench.work import Work
from suture.core.trusted import Code, let_in
from suture.errors import ConfigError, DataError
from suture.methods import AnyMethod
from suture.nn.module import ModuleFactory
from suture.runs import folder as folders
from suture.runs import origin
from suture.runs.comparison import Comparison as Comparison
from suture.runs.counting import kind_of
from suture.runs.fitting import fitting
from suture.runs.folder import RunFolder
from suture.runs.foreign import codes_named_by
from suture.runs.intake import Overrides, graph_of, override_texts, path_of
from suture.runs.origin import IN_MEMORY
from suture.runs.plan import DEFAULT_METHODS as DEFAULT_METHODS
from suture.runs.plan import Plan as Plan
from suture.runs.plan import plan
from suture.runs.predicting import graph_for
from suture.runs.predicting import predict as predicted
from suture.runs.pulse import carried_out, refuse_part_of_running
from suture.runs.result import Result as Result
from suture.runs.trained import Trained


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
    made, work, place = made.single(), Work.of(model, options), path_of(out, "out")
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
    work, place = Work.of(model, options), path_of(out, "out")
    work.check_place(place)
    with work.dividing_threads() as work:
        source = work.source(made, data, path_of(manifest, "manifest"))
        made, left_out = fitting(made, kind_of(source.graph), source.graphless)
        if place is not None:
            folders.begin_comparison(place, work.asked(made), made.config(), source.given)
        return carry_out(work, made, source, place, left_out)


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
    # Chunks of another size would round differently, and so may other threads.
    work = Work.of(model, replace(options or Options(), chunk=asked.chunk, record=asked.recorded, threads=asked.threads))
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
    with work.dividing_threads() as work:
        graph = work.source(made, data, folders.manifest_of(path))
        folders.check_same_graph(path, made.names, graph.cuts)
        return carry_out(work, made, graph, path)
