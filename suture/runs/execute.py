"""One run in this process: a prepared graph, a method and a protocol in, everything a run leaves behind out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from suture.core.message import Nothing, Record, Rows
from suture.core.process import give_back_freed_pages
from suture.engines.debug import DebugCohort
from suture.engines.embedded import EmbeddedCohort, on_device
from suture.engines.robust import Robust, check_rule
from suture.engines.sealed import SealedCohort
from suture.errors import ConfigError, unknown
from suture.graph.batch import GraphBatch
from suture.method import Clients, Method, Task, check_target
from suture.methods.census import Census
from suture.methods.matching import Matching
from suture.methods.stitching import STITCH, Stitched, first_steps, heard_by
from suture.privacy.accountant import facts_of
from suture.privacy.ledger import RunLedger
from suture.runs import origin
from suture.runs.appraisal import Examples, appraise, examples_of, warnings_of
from suture.runs.card import DataCard
from suture.runs.drawings import keep_sketch, keep_views
from suture.runs.evaluation import global_accuracy, tested_on_uncut
from suture.runs.folder import EMBEDDED, MEMORY, STITCHED, RunFolder
from suture.runs.loop import Runner
from suture.runs.mended import mended_of
from suture.runs.origin import FEDERATION
from suture.runs.outcome import Finished, Tick
from suture.runs.prepare import Prepared
from suture.runs.views import scatter_of
from suture.settings import Protocol

# Memory the working copies of one chunk of clients may take when the chunk size is chosen automatically.
CHUNK_BUDGET_BYTES = 1 << 30
ENGINES: Mapping[str, type[EmbeddedCohort[Any]]] = {
    EMBEDDED: EmbeddedCohort,
    "debug": DebugCohort,
    "sealed": SealedCohort,
}
"""What can carry a run out in this process."""

log = logging.getLogger(__name__)


def check_engine(name: str) -> None:
    """Refuse an engine there is not."""
    if name == FEDERATION:
        raise ConfigError("a run between owners goes on between owners; continue it with `suture federation resume`")
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)


def automatic_chunk(method: Method[Any, Any], graph: GraphBatch, task: Task) -> int:
    """How many clients fit the budget: weights, gradients, two moments and their copies, and activations."""
    weights = sum(value.numel() for value in method.initial_params(task).values())
    nodes = graph.num_nodes / len(graph.ids)
    each = 4 * (6 * weights + 6 * nodes * method.model.hidden * method.model.layers)
    return max(1, min(len(graph.ids), int(CHUNK_BUDGET_BYTES / each)))


def _runner(
    prepared: Prepared,
    method: Method[Any, Any],
    protocol: Protocol,
    chunk_size: int,
    engine: type[EmbeddedCohort[Any]],
    folder: RunFolder | None,
) -> Runner:
    """A run with all clients in this process."""
    if any(prepared.cut.partition.graphless) and not method.accepts_graphless:
        raise ConfigError(f"{method.name} cannot train clients without edges; choose a method that can")
    if not prepared.task.link:
        check_target(method, prepared.clients.target)
    robust = robust_for(method, issubclass(engine, SealedCohort))
    ledger = RunLedger(*((folder.ledger, folder.tape) if folder else ()))
    graph = prepared.uncut if method.sees_uncut_graph else prepared.pieces_for(method)
    give_back_freed_pages()
    chunk_size = chunk_size or automatic_chunk(method, graph, prepared.task)
    log.info("%s: %d clients in chunks of %d, %s engine", method.name, len(graph.ids), chunk_size, engine.__name__)
    if not (folder and folder.saved):
        before = {Census.name: prepared.counts.sent if prepared.counts else (), Matching.name: prepared.matching}
        for name, messages in before.items():
            for sent in messages:
                ledger.record(0, f"{name}.{sent.step}", sent.direction, sent.message)
    cohort = engine.start(method, graph, prepared.task, chunk_size=chunk_size, ledger=ledger, robust=robust)
    # The clients of the cut are tested even if they did not train.
    judges = None
    if method.sees_uncut_graph:
        judges = engine.start(method, prepared.clients, prepared.task, chunk_size=chunk_size)
    return Runner(method, protocol, prepared.task, cohort, ledger, folder, judges, robust, facts_of(graph))


def robust_for(method: Method[Any, Any], secure: bool = False) -> Robust | None:
    """The aggregation that the training settings ask for; None is the method's own mean."""
    rule, steps = method.training.aggregation, frozenset(method.sums)
    check_rule(method.name, rule, steps, secure, method.beyond_sums())
    return Robust(rule, method.training.byzantine, steps) if rule != "mean" else None


def execute(
    prepared: Prepared,
    method: Method[Any, Any],
    protocol: Protocol,
    *,
    folder: RunFolder | None = None,
    chunk_size: int = 0,
    engine: str = EMBEDDED,
    watch: Callable[[Tick], None] = lambda tick: None,
    stop: Callable[[], bool] = lambda: False,
) -> Finished:
    """Run a method to its end, or from the folder's checkpoint to its end."""
    check_engine(engine)
    if folder:
        folder.keep_card(DataCard.of(prepared).as_json(), origin.schema_of(prepared.dataset))
        keep_sketch(folder, prepared)
    runner = _runner(prepared, method, protocol, chunk_size, ENGINES[engine], folder)
    runner.carry_on(watch, stop)
    shared, personal, history = runner.shared(), runner.journey.best_models, runner.history
    examples, memory, stitched = reported_examples(runner), _memory(runner), _stitched(runner)
    evaluation = appraise(examples, runner.metric, getattr(prepared.graph, "class_names", None) or ())
    outcome = runner.outcome(prepared.dataset, None, warnings_of(examples, evaluation))
    if folder:
        keep_views(folder, views_of(runner, prepared, examples))
    # The working copies of all clients may be larger than the uncut graph. A graph and its views hold each other.
    del runner, examples
    gc.collect()
    give_back_freed_pages()
    tested = shared if shared is not None else personal
    if tested is not None and tested_on_uncut(method, protocol):
        outcome = replace(outcome, accuracy_global=global_accuracy(method, prepared.uncut, tested, prepared.task))
    finished = Finished(outcome, shared, personal, prepared, method, protocol, history, evaluation, memory, stitched)
    if folder:
        memories = {MEMORY: memory, STITCHED: stitched}
        folder.finish(outcome, [m for m in (shared, personal) if m is not None], method, evaluation, memories)
    return finished


def _memory(runner: Runner) -> Record | None:
    """What is needed to mend graphs after the run."""
    method, clients = runner.method, runner.judges
    if method.memory is Nothing or not isinstance(clients, EmbeddedCohort):
        return None
    return clients.peek(method.remembered)


def _stitched(runner: Runner) -> Stitched | None:
    """What is needed to smooth predictions over known links after the run."""
    clients = runner.judges
    if not isinstance(clients, EmbeddedCohort) or not all(heard_by(state) is not None for state in clients.states()):
        return None
    return clients.peek(lambda some: Stitched(some.ids, _heard_when_reported(runner, some)))


def _heard_when_reported(runner: Runner, clients: Clients[Any]) -> Rows:
    """What these clients heard in the steps of stitching before their reported models were tested."""
    scores, numbers = runner.reported()[0], cast(Tensor, runner.journey.selection.rounds)
    before = runner.rounds() - sum(line["phase"] == STITCH for line in runner.history)
    number = dict(zip(scores.ids, numbers.tolist(), strict=True))
    heard = cast(Rows, heard_by(clients.state))
    return first_steps(heard, torch.tensor([number[name] - before for name in clients.ids], device=heard.values.device))


def try_out(
    prepared: Prepared,
    method: Method[Any, Any],
    protocol: Protocol,
    iterations: int,
    watch: Callable[[Tick], None],
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """The first iterations of every phase, to see how long they take; nothing is kept."""
    _runner(prepared, method, protocol, 0, ENGINES[EMBEDDED], None).carry_on(watch, stop, iterations)


def views_of(runner: Runner, prepared: Prepared, examples: Examples) -> dict[str, Any]:
    """What views.json holds: what the reported models say, and what the method made of the cut against the truth."""
    scatter = scatter_of(examples, getattr(prepared.graph, "class_names", None) or ())
    judges, method = runner.judges, runner.method
    if not isinstance(judges, EmbeddedCohort) or judges.ids != prepared.clients.ids:
        return {"scatter": scatter}
    with torch.no_grad():
        supposed = judges.peek(method.supposed)
    return {"scatter": scatter, "mended": mended_of(supposed, method.server_links(runner.reported()[1]), prepared)}


def reported_examples(runner: Runner) -> Examples:
    """What the reported models say of every example, on the graphs their clients see now, stitched as far as they were."""
    method, judges, kept = runner.method, runner.judges, runner.journey.best_models
    if not isinstance(judges, EmbeddedCohort):
        raise TypeError("only clients in this process show what their models predict")
    deployed = method.deploy(runner.reported()[1], judges.ids) if kept is None else Nothing(judges.ids)
    parts: list[Examples] = []

    def look(clients: Clients[Any]) -> Nothing:
        ids, device = clients.ids, clients.graph.device
        if heard_by(clients.state) is not None:
            state = replace(clients.state, stitch_heard=_heard_when_reported(runner, clients))
            clients = replace(clients, state=state)
        with torch.no_grad():
            model = method.assemble(clients, on_device(deployed.select(ids), device)) if kept is None else kept.select(ids)
            parts.append(examples_of(*method.outputs(clients, on_device(model, device))))
        return Nothing(ids)

    judges.peek(look)
    return Examples.joined(parts)
