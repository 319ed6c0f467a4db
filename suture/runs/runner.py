"""One run: a prepared graph, a method, a protocol and a seed, from the first round to the reported number.

    graph -> preprocess -> cut -> clients -> phases of (ask clients, combine replies) -> evaluation -> outcome

`execute` is the loop everything goes through; with a `RunFolder` it leaves a complete, resumable record behind.
"""

from __future__ import annotations

import math
import time
import typing
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from suture.core.message import Message, Model, Nothing, Record
from suture.core.storage import read_lines
from suture.engines.embedded import EmbeddedCohort
from suture.engines.robust import Robust, check_rule
from suture.errors import ConfigError, SutureError
from suture.graph.batch import GraphBatch, batch_of, uncut
from suture.graph.cut import Cut, make_cut
from suture.graph.data import largest_component, num_classes, row_normalise, validate
from suture.graph.links import hide_from_uncut, hide_links
from suture.method import Cohort, Method, Phase, Scores, Task, V
from suture.nn.module import ModuleFactory
from suture.privacy.accountant import ClientFacts, Guarantee, account, facts_of, worst_of
from suture.privacy.disclosure import disclosure_of
from suture.privacy.ledger import RunLedger
from suture.runs.checkpoint import Checkpoint
from suture.runs.evaluation import TEST, TRAIN, VALIDATION, Selection, Summary, averaged, global_accuracy
from suture.runs.folder import RunFolder
from suture.settings import PreprocessSettings, Protocol

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
    suspects: tuple[str, ...] = ()
    """Clients whose updates did not fit the others', the worst first; only robust aggregation looks for them."""

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
    improved: tuple[str, ...] = ()
    """Clients whose model after this iteration is the one to report so far."""


class EngineCohort(Cohort, typing.Protocol):
    """What a run needs of its clients beyond what a method may ask; every engine has its own."""

    @property
    def asked(self) -> int:
        """How many times clients were asked so far."""

    def carry_out(self, body: Callable[[V, Cohort], V], server: V, test: Message | None = None, round: int = 0) -> V:
        """One iteration of a phase; `test` is what everybody will be tested with after it, if that is known before it."""

    def evaluate(self, deployed: Message) -> Scores:
        """Ask everybody how good its model is, without advancing anything."""

    def retain(self, deployed: Message, ids: Sequence[str]) -> Model | None:
        """Keep the complete models of these clients: here, if given back, else at the clients."""

    def states(self) -> Sequence[Record]:
        """What the clients keep, as far as it is in this process."""

    def restore(self, states: Sequence[Any], asked: int) -> None:
        """Continue from a checkpoint."""

    def committed(self) -> None:
        """A checkpoint has been written: nobody will ask for anything before it again."""

    def take_reports(self) -> dict[str, float]:
        """The numbers reported since the last call."""

    def take_kept(self) -> dict[str, Tensor]:
        """The tensors kept since the last call."""


class Runner:
    """One run, whatever the engine: carries the plan out, tests, keeps the best, saves and restores."""

    def __init__(
        self,
        method: Method[Any, Any],
        protocol: Protocol,
        task: Task,
        cohort: EngineCohort,
        ledger: RunLedger,
        folder: RunFolder | None,
        judges: EngineCohort | None = None,
        robust: Robust | None = None,
        facts: Sequence[ClientFacts] = (),
    ) -> None:
        self.robust = robust
        self.method, self.protocol, self.task, self.folder = method, protocol, task, folder
        self.cohort, self.ledger = cohort, ledger
        self.judges = judges or cohort
        self.facts = facts
        if folder and facts:
            folder.keep_facts([fact.as_json() for fact in facts])
        self.local = protocol.evaluation.model == "local" and not method.sees_uncut_graph
        self.shared_model = method.one_model and not self.local
        self.journey = _Journey(method.init_server(task), Selection(protocol.evaluation))

    @property
    def plan(self) -> tuple[Phase[Any], ...]:
        """The phases."""
        return self.method.plan()

    def deployed(self) -> Message:
        """What clients are tested with now."""
        return Nothing(self.judges.ids) if self.local else self.method.deploy(self.journey.server, self.judges.ids)

    def evaluate(self) -> Scores:
        """Test everybody; keep the models if this is the round to report."""
        journey, deployed = self.journey, self.deployed()
        scores = self.judges.evaluate(deployed)
        journey.selection, improved = journey.selection.update(scores, journey.iteration)
        journey.improved = tuple(improved)
        if improved:
            journey.best_server = journey.server
            self.retain()
        return scores

    def retain(self) -> None:
        """Keep the models that are to be reported, if there is not one for everybody."""
        journey = self.journey
        if journey.improved and not self.shared_model:
            models, kept = self.judges.retain(self.deployed(), journey.improved), journey.best_models
            if models is not None:
                journey.best_models = models if kept is None else kept.replace_rows(models)

    def iterate(self) -> dict[str, object]:
        """One iteration of the current phase; returns its line of the metrics file."""
        journey = self.journey
        phase = self.plan[journey.phase]
        every, number = self.protocol.evaluation.every, journey.iteration + 1
        due = phase.evaluate and (number % every == 0 or number == phase.times)
        # The server's reply to an iteration is not known before it; that clients test what they have is.
        test = Nothing(self.judges.ids) if due and self.local else None
        journey.server = self.cohort.carry_out(phase.body, journey.server, test, number)
        journey.iteration, journey.improved = number, ()
        line: dict[str, object] = {"phase": phase.name, "round": journey.iteration, **self.cohort.take_reports()}
        if self.robust:
            line["suspicion"] = {name: round(value, 3) for name, value in sorted(self.robust.suspicion().items())}
        kept = self.cohort.take_kept()
        if self.folder and kept:
            self.folder.keep(f"{phase.name}-{journey.iteration:05d}", kept)
        if due:
            scores = self.evaluate()
            how = self.protocol.evaluation.average
            for name, column in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST)):
                value = averaged(scores, column, how)
                line[name] = value if value == value else None
            line["client_validation"] = _rounded(scores, VALIDATION)
            line["client_test"] = _rounded(scores, TEST)
        return line

    def checkpoint(self) -> None:
        """Save where the run stands, if it has a folder."""
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
            "suspicion": self.robust.evidence() if self.robust else [],
            "improved": list(journey.improved),
        }
        self.folder.checkpoint(progress, records)
        self.cohort.committed()

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
        suspicion = progress.get("suspicion")
        if self.robust and isinstance(suspicion, list):
            self.robust.recall(suspicion)
        if "scores" in records:
            rounds = torch.tensor(progress["selected_rounds"])
            scores = records["scores"].as_record(Scores)
            chosen = _int(progress["selected_round"])
            journey.selection = Selection(self.protocol.evaluation, scores, chosen, rounds)
            journey.best_server = records["best_server"].as_record(type(journey.server))
        if "best_models" in records:
            journey.best_models = records["best_models"].as_record(Model)
        # Whether clients elsewhere have kept these models before the run was interrupted is not known here.
        improved = progress.get("improved")
        journey.improved = tuple(map(str, improved)) if isinstance(improved, list) else ()
        self.retain()

    def reported(self) -> tuple[Scores, Record]:
        """The scores to report and the server they belong to."""
        scores, server = self.journey.selection.scores, self.journey.best_server
        if scores is None or server is None:
            raise RuntimeError(f"{self.method.name} was never evaluated; its plan has no phase with evaluate=True")
        return scores, server

    def shared(self) -> Model | None:
        """The one reported model for everybody, if there is one."""
        deployed = self.method.deploy(self.reported()[1], ("shared",)) if self.method.one_model else None
        return deployed if isinstance(deployed, Model) else None

    def outcome(self, dataset: str, on_global: float | None) -> Outcome:
        """The line of this run in a table."""
        summary = Summary.of(self.reported()[0])
        weakest = worst_of(account(self.method, self.facts, self.ledger.disclosure))
        return Outcome(
            method=self.method.name,
            seed=self.task.seed,
            dataset=dataset,
            clients=len(self.judges.ids),
            protocol=self.protocol.name,
            accuracy_client_mean=summary.client_mean,
            accuracy_weighted=summary.weighted,
            accuracy_worst=summary.worst,
            accuracy_global=on_global,
            bytes_up=self.ledger.totals["up"],
            bytes_down=self.ledger.totals["down"],
            seconds=self.journey.seconds,
            rounds=sum(phase.times for phase in self.plan if phase.evaluate),
            best_round=self.journey.selection.round,
            metric="roc_auc" if self.protocol.task == "link" else "accuracy",
            mechanism=weakest.mechanism if weakest else None,
            epsilon=weakest.bound.epsilon if weakest and math.isfinite(weakest.bound.epsilon) else None,
            delta=weakest.bound.delta if weakest else None,
            privacy=self._in_words(weakest),
            suspects=tuple(self.robust.suspects()) if self.robust else (),
        )

    def _in_words(self, weakest: Guarantee | None) -> str:
        if weakest is None and self.method.mechanisms() and not self.facts:
            return "an account needs figures of every owner, which stay there"
        return weakest.in_words() if weakest else NO_GUARANTEE

    def carry_on(
        self,
        watch: Callable[[Tick], None] = lambda tick: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """All that is left of the plan, from the folder's checkpoint if it has one."""
        folder, journey, plan = self.folder, self.journey, self.plan
        saved = folder.saved if folder else None
        if saved is not None:
            self.restore(saved)
        total = sum(phase.times for phase in plan)
        validation: float | None = None
        while journey.phase < len(plan):
            phase = plan[journey.phase]
            while journey.iteration < phase.times:
                started = time.perf_counter()
                line = self.iterate()
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
                    self.checkpoint()
                if stopping:
                    raise Interrupted(f"stopped after {phase.name} {journey.iteration} of {phase.times}")
            journey.phase, journey.iteration = journey.phase + 1, 0


def _embedded(
    prepared: Prepared, method: Method[Any, Any], protocol: Protocol, chunk_size: int, folder: RunFolder | None
) -> Runner:
    """A run with all clients in this process."""
    if any(prepared.cut.partition.graphless) and not method.accepts_graphless:
        raise ConfigError(f"{method.name} cannot train clients without edges; choose a method that can")
    ledger, robust = RunLedger(folder.ledger if folder else None), robust_for(method)
    graph = prepared.uncut if method.sees_uncut_graph else prepared.pieces_for(method)
    chunk_size = chunk_size or automatic_chunk(method, graph, prepared.task)
    cohort = EmbeddedCohort.start(method, graph, prepared.task, chunk_size=chunk_size, ledger=ledger, robust=robust)
    # The clients of the cut are tested even if they did not train.
    judges = None
    if method.sees_uncut_graph:
        judges = EmbeddedCohort.start(method, prepared.clients, prepared.task, chunk_size=chunk_size)
    return Runner(method, protocol, prepared.task, cohort, ledger, folder, judges, robust, facts_of(graph))


def robust_for(method: Method[Any, Any], secure: bool = False) -> Robust | None:
    """The aggregation that the training settings ask for; None is the method's own mean."""
    rule, steps = method.training.aggregation, frozenset(method.sums)
    check_rule(method.name, rule, steps, secure)
    return Robust(rule, method.training.byzantine, steps) if rule != "mean" else None


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
    runner = _embedded(prepared, method, protocol, chunk_size, folder)
    runner.carry_on(watch, stop)
    shared, personal = runner.shared(), runner.journey.best_models
    tested, on_global = shared if shared is not None else personal, None
    if tested is not None:
        on_global = global_accuracy(method, prepared.uncut, tested, protocol.evaluation, prepared.task)
    finished = Finished(runner.outcome(prepared.dataset, on_global), shared, personal, prepared, method)
    if folder:
        folder.finish(finished.outcome.as_json(), [m for m in (shared, personal) if m is not None], method)
    return finished


def _rounded(scores: Scores, column: int) -> list[float | None]:
    """The value of every client, None where it has no such example."""
    pairs = zip(scores.value[:, column].tolist(), scores.total[:, column].tolist(), strict=True)
    return [round(value, 6) if total else None for value, total in pairs]


def _int(value: object) -> int:
    return int(str(value))
