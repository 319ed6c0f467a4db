"""An owner: its file, its policy, its budget, its folder, and the desk that answers for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from suture.core.storage import Json, make_folder, read_json, real_path, write_json
from suture.core.trusted import absolute
from suture.errors import ConfigError, DataError, IntegrityError, PartitionError
from suture.federation.audit import AUDIT, AuditLog
from suture.federation.identity import Identity
from suture.federation.owner.account import SPENT, Account
from suture.federation.owner.cost import Cost, cost_of, noised_few, noisy_steps
from suture.federation.owner.desk import Desk
from suture.federation.owner.holding import Holding, read_holding
from suture.federation.owner.keys import lasting_key
from suture.federation.owner.matching import MatchingAtOwner, found_before, found_for
from suture.federation.owner.policy import Policy, load_policy
from suture.federation.owner.run import Agreement
from suture.federation.owner.secrecy import Secrecy
from suture.federation.owner.weighing import weigh
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.terms import Terms, read_terms
from suture.graph.batch import GraphBatch
from suture.graph.boundary import Boundary, addresses_in
from suture.graph.data import MOST_CLASSES, fingerprint
from suture.method import Method, Task, check_target
from suture.methods import DOOR, Methods, door_with
from suture.methods.matched import private_boundary
from suture.privacy.accountant import facts_of
from suture.privacy.keystream import Keystream
from suture.runs.card import DataCard
from suture.runs.matching import uses_links
from suture.runs.piece import OwnersPiece

OWNER = "owner.json"


@dataclass(frozen=True)
class Owner:
    """One owner. `home` holds its audit log, its ledgers, its journals and, after a run, its model and predictions."""

    name: str
    data: Path
    policy: Policy
    home: Path
    door: Methods = DOOR
    """The methods it has: installed ones, and those its own start command let in."""
    kit: Path | None = None
    """The start-up kit with its key and certificate; without one it takes part in no secure run."""

    @staticmethod
    def at(home: Path) -> Owner:
        """As `set_up` wrote it down."""
        about = read_json(home / OWNER, "owner's settings")
        name, data, policy, plugins, kit = (about.get(key) for key in ("owner", "data", "policy", "plugins", "kit"))
        known = isinstance(name, str) and isinstance(data, str) and isinstance(policy, str | None)
        if not known or not isinstance(kit, str | None) or not isinstance(plugins, list):
            raise IntegrityError(f"{home / OWNER} is not complete; start the owner again with its --data")
        door = door_with(map(str, plugins))
        rules = load_policy(Path(policy), door) if isinstance(policy, str) else Policy()
        return Owner(str(name), Path(str(data)), rules, home, door, Path(kit) if kit else None)

    @staticmethod
    def set_up(
        name: str, data: Path, policy: Path | None, home: Path, plugins: Sequence[str] = (), kit: Path | None = None
    ) -> Owner:
        """Check the owner's files and write down where they are; the files themselves are not copied.

        `plugins` are methods of its own, such as `fedamp.py:FedAMP`. Nobody else can add to them. `kit` is its start-up kit.
        """
        make_folder(home).chmod(0o700)
        read_holding(data)
        others = {"policy": policy, "kit": kit}
        paths = {
            "data": str(real_path(data)),
            **{what: str(real_path(path)) if path else None for what, path in others.items()},
        }
        write_json(home / OWNER, {"owner": name, **paths, "plugins": [absolute(one, "method") for one in plugins]})
        return Owner.at(home)

    @cached_property
    def holding(self) -> Holding:
        """The owner's graph, read once."""
        return read_holding(self.data)

    @property
    def identity(self) -> Identity | None:
        """Its key and certificate, and whom it believes; read for every run, as certificates are revoked and renewed."""
        return None if self.kit is None else Identity.of_kit(self.kit)

    @property
    def audit(self) -> AuditLog:
        """The owner's audit log."""
        return AuditLog(self.home / AUDIT, self.name)

    def desk(self) -> Desk:
        """What answers the coordinator."""
        return Desk(self.name, self.home, self.describe, self.agree, self.audit, self.fingerprint)

    def fingerprint(self) -> str:
        """Of the owner's data, as they are before any run."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return self.holding.fingerprint()

    def describe(self) -> dict[str, Json]:
        """What everybody must know before a run."""
        return self.holding.described().as_json()

    def agree(self, run: str, content: dict[str, Json]) -> Agreement:
        """Accept or refuse the terms of a run."""
        terms, method = read_terms(content, self.door)
        self._check_fit(terms)
        link = terms.task == "link"
        task = Task(terms.features, terms.classes, terms.seed, link=link, metric=terms.metric)
        weigh(self.policy, terms, method, task)
        try:
            if not link and not terms.is_before_run:
                check_target(method, terms.handling.target)
            piece = self.holding.piece(self.name, terms.handling, terms.seed, link)
        except (ConfigError, DataError, PartitionError) as error:
            raise Refused(f"the terms do not fit this owner's graph: {error}", Code.TERMS) from error
        graph = replace(piece.graph, secret=Keystream(lasting_key(self.home)))
        if terms.is_matching or uses_links(method):
            graph = self._linked(run, terms, piece, graph)
        if not method.accepts_graphless and graph.edge_index.shape[1] == 0:
            raise Refused(f"{method.name} cannot train an owner without edges", Code.TERMS)
        if terms.secure and not terms.is_matching and (why := method.beyond_sums()):
            raise Refused(f"{method.name} {why}, so secure aggregation cannot hide this owner's updates", Code.TERMS)
        self.policy.check_method(terms, method)
        secrecy = Secrecy.of(self.name, self.identity, terms, content, self.policy) if terms.secure and method.sums else None
        self._charge(run, content, terms, method, graph)
        return Agreement(
            method=method,
            graph=graph,
            task=task,
            policy=self.policy,
            data=piece.data,
            card=self._card(piece, terms),
            account=Account(self.home).of_run(run, self.policy.caps(terms, method)),
            secrecy=secrecy,
            noisy=frozenset(noised_few(method)) | {used.step for used in noisy_steps(method)},
            before=found_before(self.home, self.name) if terms.is_matching else None,
            gate=self._gate(run) if terms.is_matching else None,
        )

    def _gate(self, run: str) -> MatchingAtOwner:
        """What counts and signs in a matching."""
        return MatchingAtOwner(self.home, run, self.policy.matching, self.audit, self.identity)

    def _linked(self, run: str, terms: Terms, piece: OwnersPiece, graph: GraphBatch) -> GraphBatch:
        """The graph with links to others' nodes, by the addresses that the terms speak of."""
        if graph.boundary is None:  # it knows of none, but others may know of its nodes
            none = torch.empty(0, dtype=torch.int64)
            graph = replace(graph, boundary=Boundary(none, none, addresses_in(piece.data, graph.node_id)))
        if terms.is_matching:
            return graph
        if not terms.matching and self.policy.matching.required:
            raise Refused("the policy requires private matching, and this run compares hashes of ids openly", Code.POLICY)
        if not terms.matching:
            return graph
        state = found_for(self.home, self.home / "runs" / run, self.name)
        return replace(graph, boundary=private_boundary(graph, state, terms.seed, run))

    def _check_fit(self, terms: Terms) -> None:
        """Refuse terms that speak of other features or labels than this owner has."""
        mine = self.holding.described()
        if terms.features != mine.features:
            raise Refused(
                f"the terms speak of {terms.features} features, this owner's nodes have {mine.features}", Code.TERMS
            )
        # Owners may lack classes that others have; labels and numbers are columns, and the same at all of them.
        most = MOST_CLASSES if mine.kind == "class" else mine.classes
        if (terms.task == "node" or terms.is_before_run) and not mine.classes <= terms.classes <= most:
            raise Refused(f"the terms speak of {terms.classes} classes, this owner has {mine.classes}", Code.TERMS)
        if terms.handling.target.kind != mine.kind:
            raise Refused(
                f"the terms speak of labels of the kind {terms.handling.target.kind!r}, this owner's are {mine.kind!r}",
                Code.TERMS,
            )

    def _charge(self, run: str, content: dict[str, Json], terms: Terms, method: Method[Any, Any], graph: GraphBatch) -> None:
        """Ask the policy, and write down what the run takes from the budgets; what comes before it takes rounds alone."""
        facts, tests = facts_of(graph)[0], self.policy.noise_of_tests()
        cost = Cost(terms.rounds) if terms.is_before_run else cost_of(terms, method, facts, self.fingerprint(), tests)
        carried = Account(self.home).open(run, content, cost, lambda earlier: self.policy.check(terms, cost, earlier))
        if carried:
            self.audit.note("account carried over", source=SPENT, runs=list[Json](carried))

    def _card(self, piece: OwnersPiece, terms: Terms) -> DataCard:
        """What this owner's own record of the run says of its graph."""
        data = piece.data
        return DataCard(
            dataset=str(self.data),
            fingerprint=fingerprint(data),
            nodes=int(data.num_nodes),
            edges=int(data.edge_index.shape[1]),
            features=terms.features,
            outputs=terms.classes,
            kind=terms.handling.target.kind,
            metric=terms.metric,
            owners=(self.name,),
            directed=bool(data.get("directed")),
            weighted=data.get("edge_weight") is not None,
            class_names=tuple(data.get("class_names") or ()),
            feature_names=tuple(data.get("feature_names") or ()),
            statistics=terms.handling.statistics,
            notes=piece.notes,
        )
