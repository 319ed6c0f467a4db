"""The run folder: everything one run leaves behind, and all that is needed to resume or repeat it.

run.json          what was asked: dataset, method, seed, threads       config.toml   every resolved value
manifest.json     the cut, hashed                                      environment.json
privacy.json      training examples and degrees of every client         data.json     what was known and assumed of the graph
schema.json       of the imported folder the graph came from, if it did
metrics.jsonl     one line a round, identical for identical seeds      ledger.jsonl  every message
checkpoint/       until the run is finished                            result.json, model.safetensors   after
evaluation.json   after: every metric of every client, per class, with confusion matrices
memory.safetensors  after: what a method that mends graphs needs to mend those it predicts on; stitched.safetensors
kept/, sketch.json, views.json   what is kept for drawing              progress.json, .lock   see `runs.pulse`
messages.tape     the content of every message, if it was to be recorded      attacks.json  what attacks made of it

A comparison's folder holds compare.json (like run.json), config.toml, the manifest if one was given, and a run folder for
each method and seed; an assessment's also holds assess.json, what was known before its runs. No other module spells these
names.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, cast

import safetensors.torch
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from suture.config.strict import strict
from suture.core.message import AnyRecord, Model, Record
from suture.core.storage import (
    Json,
    LineFile,
    disk_errors,
    make_folder,
    read_json,
    read_lines,
    refuse_links,
    write_atomically,
    write_json,
)
from suture.core.tree import Tree
from suture.core.trusted import Code, refuse_foreign
from suture.errors import ConfigError, IntegrityError
from suture.graph.cut import Cut, load_manifest, save_manifest
from suture.method import Method
from suture.methods import DOOR as METHODS
from suture.methods import AnyMethod
from suture.plugins import Source
from suture.privacy.tape import TapeFile
from suture.runs.appraisal import Evaluation
from suture.runs.checkpoint import (
    load_checkpoint,
    load_models,
    load_record,
    save_checkpoint,
    save_models,
    save_record,
)
from suture.runs.handed import codes_in
from suture.runs.machine import environment
from suture.runs.origin import FEDERATION
from suture.runs.outcome import Line, Outcome
from suture.runs.plan import Plan, plan_as_written

COMPARISON, RUN = "compare.json", "run.json"
CONFIG, MANIFEST, ENVIRONMENT, FACTS = "config.toml", "manifest.json", "environment.json", "privacy.json"
METRICS, LEDGER, KEPT, TAPE = "metrics.jsonl", "ledger.jsonl", "kept", "messages.tape"
DATA, SCHEMA, MEMORY, STITCHED = "data.json", "schema.json", "memory.safetensors", "stitched.safetensors"
CHECKPOINT, RESULT, MODELS, EVALUATION = "checkpoint", "result.json", "model.safetensors", "evaluation.json"
ASSESSMENT, ATTACKS, SKETCH, VIEWS = "assess.json", "attacks.json", "sketch.json", "views.json"
EMBEDDED = "embedded"
"""The engine that carries a run out if none is named."""
# A checkpoint may take at most this share of the running time.
CHECKPOINT_SHARE = 0.02
MIN_SECONDS_BETWEEN_CHECKPOINTS = 2.0


@dataclass(frozen=True)
class Asked:
    """What a run or comparison was asked to do, apart from config.toml."""

    dataset: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    own_module: bool
    """The network was the user's own, and cannot be rebuilt from a name."""
    threads: Annotated[int, Field(ge=1, le=1024)]
    chunk: Annotated[int, Field(ge=0)]
    engine: str = EMBEDDED
    """What carried it out: an engine of this process, or `federation`."""
    plugins: tuple[dict[str, str], ...] = ()
    """Where what does not come with Suture was found: kind, name, spelling and sha256 of each."""
    recorded: bool = False
    """The contents of its messages are kept as well."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The same."""
        if any(one.keys() != {part.name for part in dataclasses.fields(Source)} for one in self.plugins):
            raise IntegrityError("a run's description of its plug-ins is damaged; start the run anew")
        return tuple(Source(**one) for one in self.plugins)

    @staticmethod
    def now(
        dataset: str,
        methods: Sequence[str],
        seeds: Sequence[int],
        *,
        own_module: bool = False,
        chunk: int = 0,
        engine: str = EMBEDDED,
        sources: Sequence[Source] = (),
        recorded: bool = False,
        threads: int | None = None,
    ) -> Asked:
        """What is asked for in this process, with the threads it has if none are given."""
        threads = threads or torch.get_num_threads()
        used = [source for source in sources if source.kind != METHODS.what or source.name in methods]
        plugins = tuple(dataclasses.asdict(source) for source in used)
        return Asked(dataset, tuple(methods), tuple(seeds), own_module, threads, chunk, engine, plugins, recorded)

    @staticmethod
    def by_federation(dataset: str, method: str, seed: int, sources: Sequence[Source] = ()) -> Asked:
        """One run between owners, each of whom computes its own client alone."""
        return Asked.now(dataset, [method], [seed], chunk=1, engine=FEDERATION, sources=sources)


class RunFolder:
    """An open run folder."""

    def __init__(self, path: Path, *, every_round: bool = False) -> None:
        self.path, self.every_round = path, every_round
        self.saved = load_checkpoint(path / CHECKPOINT)
        lengths = self.saved.progress if self.saved else {}
        self.metrics = LineFile(path / METRICS, int(str(lengths.get("metrics_bytes", 0))))
        self.ledger = LineFile(path / LEDGER, int(str(lengths.get("ledger_bytes", 0))))
        recorded = (path / RUN).exists() and read_asked(path).recorded
        self.tape = TapeFile(path / TAPE, int(str(lengths.get("tape_bytes", 0)))) if recorded else None
        self._last = time.perf_counter()
        self._cost = 0.0

    @staticmethod
    def create(path: Path, asked: Asked, config: str, cut: Cut | None, *, every_round: bool = False) -> RunFolder:
        """Start a new run; what was asked is on disk before the first round. No cut: owners have their own pieces."""
        _begin(path, config, cut)
        write_json(path / ENVIRONMENT, environment())
        write_json(path / RUN, dataclasses.asdict(asked))
        return RunFolder(path, every_round=every_round)

    @staticmethod
    def open(path: Path, asked: Asked, config: str, cut: Cut | None, *, every_round: bool = False) -> RunFolder:
        """Go on with a run that was begun, or start it."""
        if (path / RUN).exists():
            return RunFolder(path, every_round=every_round)
        return RunFolder.create(path, asked, config, cut, every_round=every_round)

    def keep_facts(self, clients: Sequence[Mapping[str, object]]) -> None:
        """What accounts of privacy need to know of the clients, so that they can be made without the graph."""
        write_json(self.path / FACTS, {"clients": list(clients)})

    def keep_card(self, card: Mapping[str, object], schema: bytes | None) -> None:
        """What was known of the graph, and the schema of the folder it came from."""
        write_json(self.path / DATA, dict(card))
        if schema is not None:
            write_atomically(self.path / SCHEMA, schema)

    def read_metrics(self) -> list[Line]:
        """The lines up to the checkpoint this folder was opened at, and those added since."""
        self.metrics.flush()
        return read_metrics(self.path)

    def checkpoint_due(self) -> bool:
        """Whether enough time has passed for another checkpoint to be cheap, or every round wants one."""
        if self.every_round:
            return True
        waited = time.perf_counter() - self._last
        return waited > max(MIN_SECONDS_BETWEEN_CHECKPOINTS, self._cost / CHECKPOINT_SHARE)

    def checkpoint(self, progress: Mapping[str, object], records: Mapping[str, Record]) -> None:
        """Save; the lengths of the line files go with it, so that a resume cuts off what came after."""
        started = time.perf_counter()
        lengths = {"metrics_bytes": self.metrics.length(), "ledger_bytes": self.ledger.length()}
        lengths |= {"tape_bytes": self.tape.length()} if self.tape else {}
        save_checkpoint(self.path / CHECKPOINT, {**progress, **lengths}, records)
        self._last = time.perf_counter()
        self._cost = self._last - started

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Store tensors of one iteration under kept/, for drawing; a resumed run writes the same file again."""
        content = safetensors.torch.save({key: tensor.contiguous().clone() for key, tensor in tensors.items()})
        write_atomically(self.path / KEPT / f"{name}.safetensors", content)

    def finish(
        self,
        outcome: Outcome,
        models: Sequence[Model],
        method: Method[Any, Any],
        evaluation: Evaluation | None = None,
        memories: Mapping[str, Record | None] = MappingProxyType({}),
    ) -> None:
        """Write the models and, last of all, the result: a folder with result.json is a finished run."""
        self.close()
        for name, memory in ((name, one) for name, one in memories.items() if one is not None):
            save_record(self.path / name, memory)
        description = {"method": method.name, "model": dataclasses.asdict(method.model)}
        save_models(self.path / MODELS, models, description)
        if evaluation is not None:
            write_json(self.path / EVALUATION, evaluation)
        write_json(self.path / RESULT, outcome.as_json())
        with disk_errors("clean", self.path / CHECKPOINT):
            shutil.rmtree(self.path / CHECKPOINT, ignore_errors=True)

    def close(self) -> None:
        """Flush the line files."""
        self.metrics.close()
        self.ledger.close()
        if self.tape:
            self.tape.close()


def begin_comparison(path: Path, asked: Asked, config: str, cut: Cut | None) -> None:
    """Start a folder for several runs; a cut that all of them use is kept with it."""
    _begin(path, config, cut)
    write_json(path / COMPARISON, dataclasses.asdict(asked))


def begin_assessment(path: Path, known: Mapping[str, object]) -> None:
    """What an assessment knows before the comparison that it is; to be called before that is begun."""
    refuse_used(path)
    make_folder(path)
    write_json(path / ASSESSMENT, dict(known))


def read_assessed(path: Path) -> dict[str, object] | None:
    """What `begin_assessment` kept; None: the folder is not of an assessment."""
    return read_json(path / ASSESSMENT, "assessment") if (path / ASSESSMENT).exists() else None


def _begin(path: Path, config: str, cut: Cut | None) -> None:
    refuse_used(path)
    make_folder(path)
    write_atomically(path / CONFIG, config.encode())
    if cut is not None:
        save_manifest(cut, path / MANIFEST)


def is_comparison(path: Path) -> bool:
    """Whether a folder holds several runs."""
    return (path / COMPARISON).exists()


def is_begun(path: Path) -> bool:
    """Whether a folder holds a run or a comparison."""
    return is_comparison(path) or (path / RUN).exists()


def refuse_used(path: Path) -> None:
    """A folder holds one run or comparison, and never another one."""
    if is_begun(path):
        raise ConfigError(f"{path} holds a run already; continue it with `suture resume {path}` or choose another folder")


def place_of(comparison: Path, method: str, seed: int) -> Path:
    """The folder of one run of a comparison."""
    return comparison / f"{method}-seed{seed}"


def manifest_of(path: Path) -> Path | None:
    """The cut of a run, or the one given to a comparison; None where owners have their own pieces."""
    return path / MANIFEST if (path / MANIFEST).exists() else None


def check_same_graph(comparison: Path, methods: Sequence[str], cuts: Mapping[int, Cut]) -> None:
    """Refuse to go on with runs that were begun on another graph than the one these cuts are of."""
    begun = (place_of(comparison, method, seed) for seed in cuts for method in methods)
    manifest = next((found for run in begun if (found := manifest_of(run)) is not None), None)
    if manifest is not None and load_manifest(manifest).fingerprint not in {cut.fingerprint for cut in cuts.values()}:
        raise IntegrityError(f"the graph of {comparison} was changed since it was begun; put it back, or start anew")


def read_asked(path: Path) -> Asked:
    """What a run or comparison folder was asked to do."""
    for name in (COMPARISON, RUN):
        if (path / name).exists():
            refuse_links(path)
            try:
                return strict(Asked, read_json(path / name, "run description"), "")
            except ConfigError as error:
                raise IntegrityError(f"{path / name} is not complete; it is damaged, start the run anew") from error
    raise ConfigError(f"{path} holds no run: neither {RUN} nor {COMPARISON} is there; give the folder of a run")


def read_plan(path: Path, methods: Sequence[AnyMethod] = ()) -> Plan:
    """The plan of a run or comparison folder; `methods` are classes that cannot be found again from what it says."""
    asked, given = read_asked(path), {kind.name: kind for kind in methods}
    foreign = {source.name: source for source in asked.sources if source.kind == METHODS.what}
    found: list[str | AnyMethod] = [
        given[name] if name in given else _found_again(foreign[name], path) if name in foreign else name
        for name in asked.methods
    ]
    refuse_foreign(codes_of(path, given), str(path), str(path))
    made = plan_as_written(asked.dataset, found, protocol=path / CONFIG, seeds=asked.seeds)
    if made.names != asked.methods:
        were, are = ", ".join(asked.methods), ", ".join(made.names)
        raise IntegrityError(f"{path} ran {were}, which is now called {are}; rename it back")
    return made


def codes_of(path: Path, given: Collection[str] = ()) -> tuple[Code, ...]:
    """The code that the files of a run or comparison spell, and that is not installed or given (by name) instead."""
    foreign = (one for one in read_asked(path).sources if one.kind == METHODS.what and one.spelling)
    spelled = [one.spelling for one in foreign if one.name not in (*METHODS.names(), *given)]
    return codes_in(*(path / name for name in (COMPARISON, RUN, CONFIG, DATA)), spelled=spelled)


def _found_again(source: Source, path: Path) -> str:
    """A foreign method's name if it is installed, else its spelling."""
    if source.name in METHODS.names():
        return source.name
    if not source.spelling:
        raise ConfigError(
            f"the method {source.name} of {path} was a class in memory; call suture.resume(path, methods=[...]) with it"
        )
    file = Path(source.spelling.rpartition(":")[0])
    if file.suffix == ".py" and not file.is_file():
        raise ConfigError(f"the method {source.name} of {path} was in {file}, which is not there any more; put it back")
    return source.spelling


def read_outcome(path: Path) -> Outcome | None:
    """The numbers of a finished run, None if it is not finished."""
    if not (path / RESULT).exists():
        return None
    try:
        return TypeAdapter(Outcome).validate_python(read_json(path / RESULT, "result"))
    except ValidationError as error:
        raise IntegrityError(f"{path / RESULT} is not complete; it is damaged, start the run anew") from error


def read_evaluation(path: Path) -> Evaluation | None:
    """Every metric of a finished run; None where owners keep theirs."""
    if not (path / EVALUATION).exists():
        return None
    return cast(Evaluation, read_json(path / EVALUATION, "evaluation"))


def read_metrics(path: Path) -> list[Line]:
    """The lines of a run so far."""
    return list(read_lines(path / METRICS))


def read_facts(path: Path) -> list[dict[str, Json]]:
    """What `keep_facts` kept."""
    clients: Any = read_json(path / FACTS, "record of the clients").get("clients")
    if not isinstance(clients, list) or not all(isinstance(client, dict) for client in clients):
        raise IntegrityError(f"{path / FACTS} is damaged; start the run anew")
    return clients


def read_card(path: Path) -> dict[str, object]:
    """What `keep_card` kept; see `runs.card`."""
    if not (path / DATA).exists():
        raise ConfigError(f"{path} does not say what its graph was ({DATA} is missing); train it again")
    return read_json(path / DATA, "description of the graph")


def read_notes(path: Path) -> tuple[str, ...]:
    """What was dropped or assumed of a run's graph; nothing where that is not kept."""
    notes: Any = read_card(path).get("notes", []) if (path / DATA).exists() else []
    return tuple(map(str, notes)) if isinstance(notes, list) else ()


def read_models(path: Path) -> tuple[dict[str, Tree], dict[str, object]]:
    """The models of a finished run by client, and what they are; see `load_models`."""
    if not (path / RESULT).exists():
        raise ConfigError(f"{path} is not finished; first run: suture resume {path}")
    return load_models(path / MODELS)


def read_memory(path: Path, kind: type[AnyRecord], name: str = MEMORY) -> AnyRecord | None:
    """What a method remembers after the run; None if it needs nothing, or if owners keep it."""
    return load_record(path / name, kind) if (path / name).exists() else None


def schema_of(path: Path) -> Path | None:
    """The schema of the folder a run was trained on, if it was one."""
    return path / SCHEMA if (path / SCHEMA).exists() else None


def read_environment(path: Path) -> dict[str, object]:
    """Where a run was computed, and by which code."""
    return read_json(path / ENVIRONMENT, "description of the machine")
