"""An owner: its file, its policy, its budget, its folder, and the desk that answers for it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from suture.core.storage import Json, make_folder, read_json, write_json
from suture.errors import IntegrityError
from suture.federation.audit import AUDIT, AuditLog
from suture.federation.owner.desk import Desk
from suture.federation.owner.policy import Cost, Policy, cost_of, load_policy, noisy_steps
from suture.federation.owner.run import Agreement
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.terms import read_terms
from suture.graph.links import hide_links
from suture.graph.shard import Shard, load_shard
from suture.method import Task
from suture.methods import DOOR, Methods, door_with
from suture.plugins import absolute
from suture.privacy.accountant import facts_of

OWNER = "owner.json"
SPENT = "spent.json"
SECRET = "secret.json"


@dataclass(frozen=True)
class Owner:
    """One owner. `home` holds its audit log, its ledgers, its journals and, after a run, its model and predictions."""

    name: str
    data: Path
    policy: Policy
    home: Path
    door: Methods = DOOR
    """The methods it has: installed ones, and those its own start command let in."""

    @staticmethod
    def at(home: Path) -> Owner:
        """As `set_up` wrote it down."""
        about = read_json(home / OWNER, "owner's settings")
        name, data, policy, plugins = (about.get(key) for key in ("owner", "data", "policy", "plugins"))
        known = isinstance(name, str) and isinstance(data, str) and isinstance(policy, str | None)
        if not known or not isinstance(plugins, list):
            raise IntegrityError(f"{home / OWNER} is not complete; start the owner again with its --data")
        door = door_with(map(str, plugins))
        return Owner(str(name), Path(str(data)), load_policy(Path(str(policy)), door) if policy else Policy(), home, door)

    @staticmethod
    def set_up(name: str, data: Path, policy: Path | None, home: Path, plugins: Sequence[str] = ()) -> Owner:
        """Check the owner's files and write down where they are; the files themselves are not copied.

        `plugins` are methods of its own, such as `fedgta.py:FedGTA`. Nobody else can add to them.
        """
        make_folder(home).chmod(0o700)
        load_shard(data)
        paths = {"data": str(data.resolve()), "policy": str(policy.resolve()) if policy else None}
        write_json(home / OWNER, {"owner": name, **paths, "plugins": [absolute(one, "method") for one in plugins]})
        return Owner.at(home)

    @cached_property
    def shard(self) -> Shard:
        """The owner's graph, read once."""
        return load_shard(self.data)

    @property
    def audit(self) -> AuditLog:
        """The owner's audit log."""
        return AuditLog(self.home / AUDIT, self.name)

    def desk(self) -> Desk:
        """What answers the coordinator."""
        return Desk(self.name, self.home, self.describe, self.agree, self.audit)

    def describe(self) -> dict[str, Json]:
        """What everybody must know before a run: the width of the features and the number of classes."""
        return {"features": self.shard.features, "classes": self.shard.classes}

    def agree(self, run: str, content: dict[str, Json]) -> Agreement:
        """Accept or refuse the terms of a run."""
        terms, method = read_terms(content, self.door)
        if terms.features != self.shard.features:
            raise Refused(
                f"the terms speak of {terms.features} features, this owner's nodes have {self.shard.features}", Code.TERMS
            )
        if terms.task == "node" and terms.classes < self.shard.classes:
            raise Refused(f"the terms speak of {terms.classes} classes, this owner has {self.shard.classes}", Code.TERMS)
        graph = self.shard.batch(self.name, terms.row_normalise)
        if not method.accepts_graphless and graph.edge_index.shape[1] == 0:
            raise Refused(f"{method.name} cannot train an owner without edges", Code.TERMS)
        if terms.task == "link":
            graph = hide_links(graph, terms.split, terms.seed)
        if terms.secure and not method.sums:
            raise Refused(
                f"{method.name} needs more than sums, so secure aggregation cannot hide this owner's updates", Code.TERMS
            )
        cost, spent = cost_of(terms, method, facts_of(graph)[0]), Cost.read(self.home / SPENT)
        self.policy.check(terms, cost, [other for name, other in spent.items() if name != run])
        write_json(self.home / SPENT, {name: asdict(one) for name, one in {**spent, run: cost}.items()})
        noisy = {used.step: terms.rounds for used in noisy_steps(method)}
        # The run's seed is public. Noise that everybody could draw again would hide nothing.
        salt = self._secret() if noisy else ""
        task = Task(terms.features, terms.classes, terms.seed, link=terms.task == "link", metric=terms.metric)
        return Agreement(method, graph, task, self.policy.permit, terms.secure, salt, noisy)

    def _secret(self) -> str:
        path = self.home / SECRET
        if not path.exists():
            write_json(path, {"salt": secrets.token_hex(32)})
            path.chmod(0o600)
        return str(read_json(path, "secret")["salt"])
