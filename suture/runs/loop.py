"""The loop of every run, whatever the engine: phases of (ask clients, combine replies), tests, checkpoints."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from suture.core.message import Message, Model, Nothing, Record
from suture.core.metrics import metric_for
from suture.core.storage import read_lines
from suture.engines.robust import Robust
from suture.errors import SutureError
from suture.method import Method, Phase, Scores, Task
from suture.privacy.accountant import ClientFacts, Guarantee, account, worst_of
from suture.privacy.disclosure import disclosure_of
from suture.privacy.ledger import RunLedger
from suture.runs.checkpoint import Checkpoint
from suture.runs.evaluation import TEST, TRAIN, VALIDATION, Selection, Summary, averaged, out_of_patience, validation_loss
from suture.runs.folder import RunFolder
from suture.runs.outcome import NO_GUARANTEE, SHARED, Line, Outcome, Tick
from suture.seam import EngineCohort
from suture.settings import Protocol

NOTHING_TESTED = (
    "no client has enough test examples to measure {}, so there is no test score; give more nodes the role test "
    "(split.test, or your own test mask) or choose another evaluation.metric"
)

log = logging.getLogger(__name__)


class Interrupted(SutureError):
    """The user asked the run to stop; everything up to the last finished round is kept."""


@dataclass
class Journey:
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
        self.metric = metric_for(task.metric, "link" if task.link else "node")
        self.journey = Journey(method.init_server(task), Selection(protocol.evaluation, self.metric))
        self.history: list[Line] = []

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
        journey.selection, improved = journey.selection.update(scores, self._number(journey.iteration))
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

    def iterate(self) -> Line:
        """One iteration of the current phase; returns its line of the metrics file."""
        journey = self.journey
        phase = self.plan[journey.phase]
        every, number = self.protocol.evaluation.every, journey.iteration + 1
        for cohort in (self.cohort, self.judges):
            cohort.begin(phase.name, number)
        due = phase.evaluate and (number % every == 0 or number == phase.times)
        # The server's reply to an iteration is not known before it; that clients test what they have is.
        test = Nothing(self.judges.ids) if due and self.local else None
        journey.server = self.cohort.carry_out(phase.body, journey.server, test)
        journey.iteration, journey.improved = number, ()
        line: Line = {"phase": phase.name, "round": self._number(number), **self.cohort.take_reports()}
        line["asked"] = self.cohort.asked  # messages of the ledger up to this number are of this iteration or before
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
            loss = validation_loss(scores, how)
            line["validation_loss"] = loss if math.isfinite(loss) else None
            line["client_validation"] = _rounded(scores, VALIDATION)
            line["client_test"] = _rounded(scores, TEST)
        return line

    def _number(self, iteration: int) -> int:
        """What this iteration of the current phase is called: tested ones are counted on from phase to phase."""
        phase, earlier = self.plan[self.journey.phase], {one.name for one in self.plan[: self.journey.phase] if one.evaluate}
        return iteration + (sum(line["phase"] in earlier for line in self.history) if phase.evaluate and earlier else 0)

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
        kinds = [type(state) for state in self.cohort.states()]
        states = [records[name] for name in records if name.startswith("clients-")]
        self.cohort.restore([state.as_record(kinds[0]) for state in states], _int(progress["asked"]))
        self.history = self.folder.read_metrics() if self.folder else []
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
            journey.selection = Selection(self.protocol.evaluation, self.metric, scores, chosen, rounds)
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
        deployed = self.method.deploy(self.reported()[1], (SHARED,)) if self.method.one_model else None
        return deployed if isinstance(deployed, Model) else None

    def rounds(self) -> int:
        """How many rounds with a test in reach were carried out so far."""
        tested = {phase.name for phase in self.plan if phase.evaluate}
        return sum(line["phase"] in tested for line in self.history)

    def outcome(self, dataset: str, on_global: float | None, warnings: Sequence[str] = ()) -> Outcome:
        """The line of this run in a table."""
        scores, _ = self.reported()
        summary, validation = Summary.of(scores, self.metric), averaged(scores, VALIDATION, self.protocol.evaluation.average)
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
            rounds=self.rounds(),
            best_round=self.journey.selection.round,
            metric=self.metric.name,
            mechanism=weakest.mechanism if weakest else None,
            epsilon=weakest.bound.epsilon if weakest and math.isfinite(weakest.bound.epsilon) else None,
            delta=weakest.bound.delta if weakest else None,
            privacy=self._in_words(weakest),
            suspects=tuple(self.robust.suspects()) if self.robust else (),
            validation=None if math.isnan(validation) else validation,
            best_rounds=tuple(rounds.tolist()) if (rounds := self.journey.selection.rounds) is not None else (),
            warnings=(*warnings, *([NOTHING_TESTED.format(self.metric.name)] if math.isnan(summary.client_mean) else [])),
        )

    def _in_words(self, weakest: Guarantee | None) -> str:
        if weakest is None and self.method.mechanisms() and not self.facts:
            return "an account needs figures of every owner, which stay there"
        return weakest.in_words() if weakest else NO_GUARANTEE

    def carry_on(
        self,
        watch: Callable[[Tick], None] = lambda tick: None,
        stop: Callable[[], bool] = lambda: False,
        at_most: int | None = None,
    ) -> None:
        """All that is left of the plan, from the folder's checkpoint if it has one; `at_most` iterations of every phase."""
        folder, journey, plan = self.folder, self.journey, self.plan
        if folder and folder.saved is not None:
            self.restore(folder.saved)
            log.info("going on after %s %d", plan[journey.phase].name, journey.iteration)
        while journey.phase < len(plan):
            phase = plan[journey.phase]
            while not self._is_over(phase) and journey.iteration != at_most:
                started = time.perf_counter()
                line = self.iterate()
                journey.seconds += time.perf_counter() - started
                self.history.append(line)
                if folder:
                    folder.metrics.append(line)
                    for file in (folder.metrics, folder.ledger):
                        file.flush()  # somebody may be watching
                tick = self._tick(phase, line)
                _log_round(self.method.name, tick, time.perf_counter() - started)
                watch(tick)
                stopping = stop()
                if stopping or (folder and folder.checkpoint_due()):
                    self.checkpoint()
                if stopping:
                    raise Interrupted(f"stopped after {phase.name} {journey.iteration} of {phase.times}")
            if journey.iteration < phase.times and journey.iteration != at_most:
                log.info("%s ended after %d of %d: patience ran out", phase.name, journey.iteration, phase.times)
            journey.phase, journey.iteration = journey.phase + 1, 0

    def _is_over(self, phase: Phase[Any]) -> bool:
        """Whether a phase has been carried out, or nothing got better for so long that it ends here."""
        done, patience = self.journey.iteration, self.method.training.patience
        of_phase = self.history[len(self.history) - done :]
        return done >= phase.times or (phase.evaluate and out_of_patience(of_phase, patience, self.metric))

    def _tick(self, phase: Phase[Any], line: Line) -> Tick:
        journey, done = self.journey, len(self.history)
        tested = (one["validation"] for one in reversed(self.history) if one.get("validation") is not None)
        left = 0 if self._is_over(phase) else phase.times - journey.iteration
        left += sum(later.times for later in self.plan[journey.phase + 1 :])
        score = (next(tested, None), self.metric.is_share, self.metric.name)
        return Tick(phase.name, done, done + left, journey.seconds, line, *score, dict(self.ledger.totals))


def _log_round(method: str, tick: Tick, seconds: float) -> None:
    if not log.isEnabledFor(logging.INFO):
        return
    told = {"loss": tick.loss, "validation": tick.validation}
    numbers = "".join(f", {name} {value:.4f}" for name, value in told.items() if value is not None)
    log.info("%s %s %d/%d%s, %.3f s", method, tick.phase, tick.done, tick.total, numbers, seconds)


def _rounded(scores: Scores, column: int) -> list[float | None]:
    """The value of every client, None where it has no such example."""
    pairs = zip(scores.value[:, column].tolist(), scores.total[:, column].tolist(), strict=True)
    return [round(value, 6) if total else None for value, total in pairs]


def _int(value: object) -> int:
    return int(str(value))
