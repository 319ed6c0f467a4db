"""One run: a prepared graph, a method, a protocol and a seed, from the first round to the reported number.

    graph -> preprocess -> cut -> clients -> phases of (ask clients, combine replies) -> evaluation -> outcome

`execute` is the loop everything goes through; with a `RunFolder` it leaves a complete, resumable record behind.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch_geometric.data import Data

from suture.checkpoint import Checkpoint
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError, SutureError
from suture.evaluation import TEST, TRAIN, VALIDATION, Selection, Summary, averaged, global_accuracy
from suture.folder import RunFolder
from suture.graph.batch import GraphBatch, batch_of, uncut
from suture.graph.cut import Cut, make_cut
from suture.graph.data import largest_component, num_classes, row_normalise, validate
from suture.graph.links import hide_from_uncut, hide_links
from suture.message import Message, Model, Nothing, Record
from suture.method import Method, Phase, Scores, Task
from suture.nn.module import ModuleFactory
from suture.privacy.accountant import account, facts_of, worst_of
from suture.privacy.disclosure import disclosure_of
from suture.privacy.ledger import RunLedger
from suture.settings import PreprocessSettings, Protocol
from suture.storage import read_lines

# Memory the working copies of one chunk of clients may take when the chunk size is chosen automatically.
CHUNK_BUDGET_BYTES = 1 << 30


NO_GUARANTEE = "no guarantee"


class Interrupted(SutureError):
    """The user asked the run to stop; everything up to the last finished round is kept."""


@dataclass(frozen=True)
class Prepared:
    """A graph that has been cut, on the device it will be trained on."""

    dataset: str
    data: Data
    cut: Cut
    clients: GraphBatch
    with_hidden_edges: GraphBatch
    """The clients as they would be if none had lost its edges; the same as `clients` if none has."""
    uncut: GraphBatch
    task: Task

    def pieces_for(self, method: Method[Any, Any]) -> GraphBatch:
        """The clients' graphs as a method is shown them."""
        return self.with_hidden_edges if method.sees_hidden_edges else self.clients


@dataclass(frozen=True)
class Tick:
    """One finished iteration, for whoever watches."""

    phase: str
    done: int
    total: int
    loss: float | None
    validation: float | None
    seconds: float

    @property
    def seconds_left(self) -> float:
        """Estimated from the pace so far."""
        return self.seconds / self.done * (self.total - self.done)


@dataclass(frozen=True)
class Outcome:
    """The line of a run in a table. Field names are the keys of the JSON output."""

    method: str
    seed: int
    dataset: str
    clients: int
    protocol: str
    accuracy_client_mean: float
    accuracy_weighted: float
    accuracy_worst: float
    accuracy_global: float | None
    bytes_up: int
    bytes_down: int
    seconds: float
    rounds: int
    best_round: int
    metric: str = "accuracy"
    """What the accuracy columns hold: accuracy, or roc_auc in link prediction."""
    mechanism: str | None = None
    """What hides the clients' data: DP-SGD or NFDP; None: nothing does."""
    epsilon: float | None = None
    """Of the least protected client; None: there is no guarantee, or none with a finite epsilon."""
    delta: float | None = None
    privacy: str = NO_GUARANTEE
    """What that is worth, in words."""

    def as_json(self) -> dict[str, object]:
        """For `--json` and result.json."""
        return asdict(self)


@dataclass(frozen=True)
class Finished:
    """What a run leaves in memory: its numbers, the one model for everybody, and each client's own model, if any."""

    outcome: Outcome
    shared: Model | None
    personal: Model | None
    prepared: Prepared
    method: Method[Any, Any]


def preprocess(data: Data, settings: PreprocessSettings) -> Data:
    """What a protocol does to the whole graph before the cut."""
    data = validate(data)
    if settings.largest_component:
        data = largest_component(data)
    return row_normalise(data) if settings.row_normalise else data


def cut_graph(data: Data, dataset: str, protocol: Protocol, seed: int) -> Cut:
    """The cut a protocol prescribes for a preprocessed graph."""
    return make_cut(data, dataset, protocol.preprocess, protocol.partition, protocol.split, seed)


def prepare(
    data: Data,
    dataset: str,
    protocol: Protocol,
    seed: int,
    *,
    cut: Cut | None = None,
    device: str = "cpu",
    module: ModuleFactory | None = None,
) -> Prepared:
    """Lay a preprocessed graph out for training; `cut` (from a manifest) takes the place of a new one."""
    cut = cut or cut_graph(data, dataset, protocol, seed)
    parts = cut.partition
    place = torch.device(device)
    clients = batch_of(data, parts.ids, parts.members, cut.split.client_roles, parts.graphless)
    shown = clients
    if any(parts.graphless):
        edges = batch_of(data, parts.ids, parts.members, cut.split.client_roles, [False] * len(parts.ids)).edge_index
        shown = replace(clients, edge_index=edges)
    whole, outputs = uncut(data, cut.split.roles), num_classes(data)
    if protocol.task == "link":
        # A pair is scored by its ends' outputs, which are embeddings then, not classes.
        outputs = protocol.model.hidden
        clients, shown = (hide_links(graph, protocol.split, cut.seed) for graph in (clients, shown))
        whole = hide_from_uncut(whole, clients, torch.cat(list(parts.members)))
    task = Task(clients.x.width, outputs, seed, module, link=protocol.task == "link")
    return Prepared(dataset, data, cut, clients.to(place), shown.to(place), whole.to(place), task)


def automatic_chunk(method: Method[Any, Any], graph: GraphBatch, task: Task) -> int:
    """How many clients fit the budget: weights, gradients, two moments and their copies, and activations."""
    weights = sum(value.numel() for value in method.initial_params(task).values())
    nodes = graph.num_nodes / len(graph.ids)
    each = 4 * (6 * weights + 6 * nodes * method.model.hidden * method.model.layers)
    return max(1, min(len(graph.ids), int(CHUNK_BUDGET_BYTES / each)))


@dataclass
class _Journey:
    """Where a run stands. Everything here is in its checkpoint."""

    server: Record
    selection: Selection
    best_server: Record | None = None
    best_models: Model | None = None
    phase: int = 0
    iteration: int = 0
    seconds: float = 0.0


class _Runner:
    def __init__(
        self,
        prepared: Prepared,
        method: Method[Any, Any],
        protocol: Protocol,
        chunk_size: int,
        folder: RunFolder | None,
    ) -> None:
        if any(prepared.cut.partition.graphless) and not method.accepts_graphless:
            raise ConfigError(f"{method.name} cannot train clients without edges; choose a method that can")
        self.prepared, self.method, self.protocol, self.folder = prepared, method, protocol, folder
        self.ledger = RunLedger(folder.ledger if folder else None)
        graph = prepared.uncut if method.sees_uncut_graph else prepared.pieces_for(method)
        self.facts = facts_of(graph)
        if folder:
            folder.keep_facts([facts.as_json() for facts in self.facts])
        chunk_size = chunk_size or automatic_chunk(method, graph, prepared.task)
        self.cohort = EmbeddedCohort.start(method, graph, prepared.task, chunk_size=chunk_size, ledger=self.ledger)
        # The clients of the cut are tested even if they did not train.
        self.judges = self.cohort
        if method.sees_uncut_graph:
            self.judges = EmbeddedCohort.start(method, prepared.clients, prepared.task, chunk_size=chunk_size)
        self.local = protocol.evaluation.model == "local" and not method.sees_uncut_graph
        self.shared_model = method.one_model and not self.local
        self.journey = _Journey(method.init_server(prepared.task), Selection(protocol.evaluation))

    @property
    def plan(self) -> tuple[Phase[Any], ...]:
        return self.method.plan()

    def deployed(self) -> Message:
        return Nothing(self.judges.ids) if self.local else self.method.deploy(self.journey.server, self.judges.ids)

    def evaluate(self) -> Scores:
        """Test everybody; keep the models if this is the round to report."""
        journey, deployed = self.journey, self.deployed()
        scores = self.judges.evaluate(deployed)
        journey.selection, improved = journey.selection.update(scores, journey.iteration)
        if improved:
            journey.best_server = journey.server
            if not self.shared_model:
                models = self.judges.peek(lambda clients: self.method.assemble(clients, deployed.select(clients.ids)))
                kept = journey.best_models
                journey.best_models = models if kept is None else kept.replace_rows(models.select(improved))
        return scores

    def iterate(self) -> dict[str, object]:
        """One iteration of the current phase; returns its line of the metrics file."""
        journey = self.journey
        phase = self.plan[journey.phase]
        journey.server = phase.body(journey.server, self.cohort)
        journey.iteration += 1
        line: dict[str, object] = {"phase": phase.name, "round": journey.iteration, **self.cohort.take_reports()}
        kept = self.cohort.take_kept()
        if self.folder and kept:
            self.folder.keep(f"{phase.name}-{journey.iteration:05d}", kept)
        every = self.protocol.evaluation.every
        if phase.evaluate and (journey.iteration % every == 0 or journey.iteration == phase.times):
            scores = self.evaluate()
            how = self.protocol.evaluation.average
            for name, column in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST)):
                value = averaged(scores, column, how)
                line[name] = value if value == value else None
            line["client_validation"] = _rounded(scores, VALIDATION)
            line["client_test"] = _rounded(scores, TEST)
        return line

    def checkpoint(self) -> None:
        if self.folder is None:
            return
        journey = self.journey
        records = {"server": journey.server}
        records |= {f"clients-{i}": state for i, state in enumerate(self.cohort.states())}
        if journey.best_server is not None and journey.selection.scores is not None:
            records |= {"best_server": journey.best_server, "scores": journey.selection.scores}
        if journey.best_models is not None:
            records["best_models"] = journey.best_models
        rounds = journey.selection.rounds
        progress = {
            "phase": journey.phase,
            "iteration": journey.iteration,
            "asked": self.cohort.asked,
            "seconds": journey.seconds,
            "sent": dict(self.ledger.totals),
            "selected_round": journey.selection.round,
            "selected_rounds": rounds.tolist() if rounds is not None else [],
        }
        self.folder.checkpoint(progress, records)

    def restore(self, saved: Checkpoint) -> None:
        """Continue from `saved`; types come from the objects a fresh start has just made."""
        journey, progress, records = self.journey, saved.progress, saved.records
        states = self.cohort.states()
        self.cohort.restore(
            [records[f"clients-{i}"].as_record(type(state)) for i, state in enumerate(states)], _int(progress["asked"])
        )
        journey.server = records["server"].as_record(type(journey.server))
        journey.phase, journey.iteration = _int(progress["phase"]), _int(progress["iteration"])
        journey.seconds = float(str(progress["seconds"]))
        sent = progress["sent"]
        self.ledger.totals.update(sent if isinstance(sent, dict) else {})
        if self.ledger.file is not None:
            self.ledger.disclosure = disclosure_of(read_lines(self.ledger.file.path))
        if "scores" in records:
            rounds = torch.tensor(progress["selected_rounds"])
            scores = records["scores"].as_record(Scores)
            chosen = _int(progress["selected_round"])
            journey.selection = Selection(self.protocol.evaluation, scores, chosen, rounds)
            journey.best_server = records["best_server"].as_record(type(journey.server))
        if "best_models" in records:
            journey.best_models = records["best_models"].as_record(Model)

    def finish(self) -> Finished:
        journey, settings, task = self.journey, self.protocol.evaluation, self.prepared.task
        if journey.selection.scores is None or journey.best_server is None:
            raise RuntimeError(f"{self.method.name} was never evaluated; its plan has no phase with evaluate=True")
        shared: Model | None = None
        if self.method.one_model:
            deployed = self.method.deploy(journey.best_server, ("shared",))
            shared = deployed if isinstance(deployed, Model) else None
        tested = shared if shared is not None else journey.best_models
        on_global = global_accuracy(self.method, self.prepared.uncut, tested, settings, task) if tested is not None else None
        summary = Summary.of(journey.selection.scores)
        weakest = worst_of(account(self.method, self.facts, self.ledger.disclosure))
        outcome = Outcome(
            method=self.method.name,
            seed=task.seed,
            dataset=self.prepared.dataset,
            clients=len(self.prepared.clients.ids),
            protocol=self.protocol.name,
            accuracy_client_mean=summary.client_mean,
            accuracy_weighted=summary.weighted,
            accuracy_worst=summary.worst,
            accuracy_global=on_global,
            bytes_up=self.ledger.totals["up"],
            bytes_down=self.ledger.totals["down"],
            seconds=journey.seconds,
            rounds=sum(phase.times for phase in self.plan if phase.evaluate),
            best_round=journey.selection.round,
            metric="roc_auc" if self.protocol.task == "link" else "accuracy",
            mechanism=weakest.mechanism if weakest else None,
            epsilon=weakest.bound.epsilon if weakest and math.isfinite(weakest.bound.epsilon) else None,
            delta=weakest.bound.delta if weakest else None,
            privacy=weakest.in_words() if weakest else NO_GUARANTEE,
        )
        return Finished(outcome, shared, journey.best_models, self.prepared, self.method)


def execute(
    prepared: Prepared,
    method: Method[Any, Any],
    protocol: Protocol,
    *,
    folder: RunFolder | None = None,
    chunk_size: int = 0,
    watch: Callable[[Tick], None] = lambda tick: None,
    stop: Callable[[], bool] = lambda: False,
) -> Finished:
    """Run a method to its end, or from the folder's checkpoint to its end."""
    runner = _Runner(prepared, method, protocol, chunk_size, folder)
    saved = folder.saved if folder else None
    if saved is not None:
        runner.restore(saved)
    journey, plan = runner.journey, runner.plan
    total = sum(phase.times for phase in plan)
    validation: float | None = None
    while journey.phase < len(plan):
        phase = plan[journey.phase]
        while journey.iteration < phase.times:
            started = time.perf_counter()
            line = runner.iterate()
            journey.seconds += time.perf_counter() - started
            if folder:
                folder.metrics.append(line)
            value = line.get("validation")
            validation = value if isinstance(value, float) else validation
            loss = line.get("loss")
            done = sum(p.times for p in plan[: journey.phase]) + journey.iteration
            watch(Tick(phase.name, done, total, loss if isinstance(loss, float) else None, validation, journey.seconds))
            stopping = stop()
            if stopping or (folder and folder.checkpoint_due()):
                runner.checkpoint()
            if stopping:
                raise Interrupted(f"stopped after {phase.name} {journey.iteration} of {phase.times}")
        journey.phase, journey.iteration = journey.phase + 1, 0
    finished = runner.finish()
    if folder:
        folder.finish(finished.outcome.as_json(), [m for m in (finished.shared, finished.personal) if m is not None], method)
    return finished


def _rounded(scores: Scores, column: int) -> list[float | None]:
    """The value of every client, None where it has no such example."""
    pairs = zip(scores.value[:, column].tolist(), scores.total[:, column].tolist(), strict=True)
    return [round(value, 6) if total else None for value, total in pairs]


def _int(value: object) -> int:
    return int(str(value))
