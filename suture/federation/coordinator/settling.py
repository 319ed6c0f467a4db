"""Before a run: what the owners' graphs have in common, what they count together, and the terms that follow.

Terms are settled once. They are kept with the run, statistics and all: a coordinator that was killed goes on with them, and
asks again only what it had not been told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from suture.config.strict import strict
from suture.core.metrics import metric_for
from suture.core.storage import LineFile, read_json, read_lines, write_json
from suture.errors import ConfigError, DataError
from suture.federation.coordinator.attendance import Attendance, reasons
from suture.federation.coordinator.bindings import Bindings
from suture.federation.coordinator.calls import Calls
from suture.federation.coordinator.cohort import OwnersCohort
from suture.federation.coordinator.secure import FEWEST
from suture.federation.wire.description import Description, fitting, in_common, without_few_masks
from suture.federation.wire.frames import ANSWERS
from suture.federation.wire.orders import Order
from suture.federation.wire.reasons import BadReply, Reason
from suture.federation.wire.terms import Terms, check_bounds, matches_privately, terms_before, terms_of
from suture.graph.target import Target
from suture.method import Task, check_target
from suture.methods.census import Census, Counted
from suture.methods.matching import Matching
from suture.privacy.ledger import RunLedger
from suture.runs.card import DataCard
from suture.runs.counting import Counts, concluded, found_in, needs_census
from suture.runs.folder import RunFolder
from suture.runs.loop import Interrupted
from suture.runs.matching import matching_of
from suture.runs.plan import Plan
from suture.seam import Audit, Cohort, Transport, sample_size

TERMS, BEFORE = "terms.json", (Census.name, Matching.name)
"""What was agreed on, and what is exchanged first, with a ledger of its own (`census.jsonl`)."""
NOT_NEGATIVE = frozenset({"size", "filled", "other", "label_size", "trained", "edges"})
"""Sums of a census that are of sizes and shares."""
Body = Callable[[Any, Cohort], Any]
"""One exchange, as the server carries it out."""


@dataclass(frozen=True)
class Concluding:
    """From what owners counted to statistics that every owner will accept."""

    made: Plan
    common: Description
    weighted: bool
    secure: bool

    def after(self, body: Callable[[Counted, Cohort], Counted]) -> Callable[[Counted, Cohort], Counted]:
        """An exchange whose outcome is tried at once: what nobody could train with is the fault of who counted so."""

        @wraps(body)
        def tried(server: Counted, cohort: Cohort) -> Counted:
            counted = body(server, cohort)
            self._check(counted)
            return counted

        return tried

    def _check(self, counted: Counted) -> None:
        totals = counted.totals
        if not float(totals["trained"]) > 0:
            raise DataError("no owner has a labelled node that trains; label more nodes, or give masks with some of each")
        counts = {name: value for name, value in totals.items() if name in NOT_NEGATIVE}
        if self.common.kind != "value":
            counts["label"] = totals["label"]
        if self.weighted:
            counts["edge_weight"] = totals["edge_weight"]
        counts |= {"square": counted.square, "label_square": counted.label_square}
        for name, value in counts.items():
            if bool((value < 0).any()):
                raise DataError(f"together the owners counted {name} below zero")
        if counted.square.numel():
            terms = terms_of(self.made, self.common, self.secure, self.counts(counted))
            terms.handling.check(terms.features, terms.classes)

    def counts(self, counted: Counted) -> Counts:
        """What follows from the census."""
        schema = self.common.agreement
        marked = None if schema is None else schema.standardise
        found = found_in(counted, self.made.protocol, self.common.kind, marked, self.weighted)
        return concluded(found, self.made.protocol, self.common.kind, () if schema is None else schema.classes)


@dataclass(frozen=True)
class Settling:
    """Settles the terms of one order with the owners behind a transport."""

    order: Order
    made: Plan
    folder: RunFolder
    transport: Transport
    audit: Audit
    watched: Callable[[OwnersCohort[Any]], None] = lambda cohort: None
    """Told who is asked, as somebody may want to know who is absent."""
    ends: Callable[[], bool] = lambda: False
    """Whether nothing more is to be asked."""
    left_out: dict[str, Reason] = field(default_factory=dict)
    """Owners that cannot be used, found on the way; the run goes without them."""

    @property
    def path(self) -> Path:
        """Of the run's folder."""
        return self.folder.path

    def terms(self) -> Terms:
        """Those of before, or new ones."""
        if (self.path / TERMS).exists():
            return strict(Terms, read_json(self.path / TERMS, "terms"), "terms")
        self._refuse_small_sums()
        self._go_on()
        common, protocol = self._described(), self.made.protocol
        if protocol.task == "node":
            check_target(self.made.methods[0], Target(common.kind))
            metric_for(protocol.evaluation.metric, common.kind)
        weighted, counts = bool(common.weighted), None
        if needs_census(protocol, common.kind, weighted):
            counts = self._counted(common, weighted)
        if matches_privately(self.made):
            self._matched(common)
        terms = terms_of(self.made, common, self.order.secure, counts, self.transport.owners)
        check_bounds(terms)
        self._keep_card(common, terms, counts)
        write_json(self.path / TERMS, terms.as_json())
        return terms

    def _refuse_small_sums(self) -> None:
        """Before anything is asked: a sample of one owner has no sum that hides it."""
        share, owners = self.made.methods[0].training.participation, len(self.transport.owners)
        if self.order.secure and sample_size(share, owners) < FEWEST:
            raise ConfigError(
                f"a secure sum of one owner is that owner's update: training.participation={share:g} of {owners} asks "
                "one alone; let more take part"
            )

    def _go_on(self) -> None:
        if self.ends():
            raise Interrupted("stopped before the first round")

    def record_census(self, ledger: RunLedger) -> None:
        """What was sent for the terms belongs to the run."""
        for name in BEFORE:
            lines = self.path / f"{name}.jsonl"
            if self.folder.saved is None and lines.exists():
                ledger.replay({**line, "ask": 0, "step": f"{name}.{line['step']}"} for line in read_lines(lines))

    def _described(self) -> Description:
        """What all owners say of their graphs; with `on_loss` continue, all but those that do not fit the most."""
        calls = Calls(self.transport, self.order.run, self.order.faults)
        attendance = Attendance(calls, self.audit)
        answers, bad = calls.all(dict.fromkeys(self.transport.owners, ({"verb": "describe"}, b"")))
        calls.close()
        told: dict[str, Description] = {}
        for owner, frame in answers.items():
            try:
                told[owner] = Description.read({key: value for key, value in frame.header.items() if key != ANSWERS})
            except BadReply as error:
                bad[owner] = BadReply(f"it does not describe its graph as expected: {error}")
        if told and self.order.faults.on_loss == "continue":
            told, odd = fitting(told)
            told, having = without_few_masks(told)
            if having:
                self.audit.note("masks are not used", run=self.order.run, owners=[*having], reason="most owners have none")
            bad |= {owner: BadReply(why) for owner, why in odd.items()}
        attendance.settle(bad, "describe", 0)
        attendance.absent = {}
        attendance.miss(bad, 0)
        self._leave_out(attendance.banned, reasons(bad))
        return in_common(told)

    def _leave_out(self, owners: Collection[str], why: Mapping[str, Reason]) -> None:
        """Whoever cannot be used before the run is not asked in it."""
        self.left_out.update({owner: why[owner] for owner in owners})

    def _counted(self, common: Description, weighted: bool) -> Counts:
        """The census between the owners, and what follows from it."""
        concluding = Concluding(self.made, common, weighted, self.order.secure)
        counted = self._exchanged(Census(), common, concluding.after)
        counts = concluding.counts(counted)
        self.audit.note("counted", run=self.order.run, secure=self.order.secure, nodes=counts.statistics.nodes)
        return counts

    def _matched(self, common: Description) -> None:
        """Who holds which id, found out between the owners; nothing of it stays here but sizes."""
        self._exchanged(matching_of(self.made.protocol.partition), common, lambda body: body)
        self.audit.note("matched", run=self.order.run, pad=self.made.protocol.partition.matching_pad)

    def _exchanged(self, method: Any, common: Description, tried: Callable[[Body], Body]) -> Any:
        """Carry out what comes before the run, under terms of its own; what its server knows in the end."""
        terms = terms_before(method, self.made, common, self.order.secure, self.transport.owners)
        task, lines = Task(terms.features, terms.classes, terms.seed), LineFile(self.path / f"{method.name}.jsonl", 0)
        cohort: OwnersCohort[Any] = OwnersCohort.start(
            method,
            task,
            f"{self.order.run}.{method.name}",
            self.transport,
            terms.as_json(),
            self.audit,
            faults=self.order.faults,
            ledger=RunLedger(lines),
            secure=self.order.secure,
            bindings=Bindings.of(self.path),
            left_out=self.left_out,
        )
        self.watched(cohort)
        try:
            server = method.init_server(task)
            for phase in method.plan():
                self._go_on()
                cohort.begin(phase.name, 1)
                server = cohort.carry_out(tried(phase.body), server)
        finally:
            lines.close()
            cohort.close()
        self._leave_out(cohort.banned, cohort.banned)
        return server

    def _keep_card(self, common: Description, terms: Terms, counts: Counts | None) -> None:
        """What is known here of the owners' graphs; how many nodes each has is not."""
        schema = common.agreement
        card = DataCard(
            dataset=self.order.dataset,
            fingerprint="",
            nodes=round(counts.statistics.nodes) if counts else None,
            edges=None,
            features=terms.features,
            outputs=terms.classes,
            kind=common.kind,
            metric=terms.metric,
            owners=self.transport.owners,
            directed=bool(common.directed) and self.made.protocol.preprocess.direction == "keep",
            weighted=bool(common.weighted) and self.made.protocol.preprocess.edge_weights != "drop",
            class_names=() if schema is None else schema.classes,
            feature_names=() if schema is None else schema.feature_names,
            statistics=terms.handling.statistics,
            notes=counts.notes if counts else (),
        )
        self.folder.keep_card(card.as_json(), None if schema is None else json.dumps(schema.to_json(), indent=2).encode())
