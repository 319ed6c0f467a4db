"""What `suture privacy` prints: every client's guarantee, what it is worth in words, and what left the clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from suture.attacks.attack import Finding
from suture.attacks.trials import read_findings
from suture.core.message import Kind
from suture.core.storage import read_json
from suture.errors import IntegrityError
from suture.method import Method
from suture.privacy.accountant import Bound, ClientFacts, Guarantee, account, worst_of
from suture.privacy.audited import AUDIT
from suture.privacy.disclosure import ENVELOPE, EVALUATION_STEP, Disclosure, read_disclosure
from suture.report.attacks import NONE_TRIED, attack_report, worst_in_words
from suture.report.console import grid, titled
from suture.report.text import NOTHING, byte_size, count
from suture.report.trusting import SENTENCE, listed, number, table, text
from suture.runs.folder import FACTS, is_comparison, place_of, read_asked, read_facts, read_plan
from suture.runs.origin import FEDERATION

MOST_CLIENTS, MOST_AUDITS = 30, 1000
NONE_AT_ALL = "No guarantee: what clients send is neither blurred nor thinned out, so nobody can say how much it tells."

KNOWN_TO_OWNERS = (
    "Each owner keeps the account of its own budget (suture owner ledger KIT): how many of its nodes train, from which "
    "epsilon follows, it tells nobody."
)


@dataclass(frozen=True)
class RunPrivacy:
    """The account and the disclosure of one run."""

    run: str
    method: Method[Any, Any]
    seed: int
    clients: tuple[str, ...]
    guarantees: tuple[Guarantee, ...]
    disclosure: Disclosure
    by_owners: bool = False
    """A run between owners: what accounts need to know of them is known to them alone."""
    audits: tuple[dict[str, Any], ...] = ()
    """What `suture audit` found, if it was asked."""
    findings: tuple[Finding, ...] = ()
    """What attacks made of its messages, if anybody tried."""

    @property
    def weakest(self) -> Guarantee | None:
        """The guarantee of the least protected client."""
        return worst_of(self.guarantees)

    def without_words(self) -> str:
        """What is said where there is no account."""
        return KNOWN_TO_OWNERS if self.by_owners and self.method.mechanisms() else NONE_AT_ALL

    def as_json(self) -> dict[str, object]:
        """For --json."""
        weakest = self.weakest
        return {
            "run": self.run,
            "method": self.method.name,
            "seed": self.seed,
            "in_words": weakest.in_words() if weakest else self.without_words(),
            "guarantees": [guarantee.as_json() for guarantee in self.guarantees],
            "audits": list(self.audits),
            "disclosure": [flow.as_json() for flow in self.disclosure.flows()],
            "bytes_left": {client: self.disclosure.of_client(client) for client in self.clients},
            "attacks": [finding.as_json() for finding in self.findings],
        }


def read_privacy(path: Path, delta: float) -> list[RunPrivacy]:
    """All runs of a folder that have begun."""
    made = read_plan(path)
    if not is_comparison(path):
        return [_read_run(path, made.methods[0], made.seeds[0], delta)]
    places = [(place_of(path, method.name, seed), method, seed) for method in made.methods for seed in made.seeds]
    return [_read_run(place, method, seed, delta) for place, method, seed in places if place.exists()]


def _read_run(path: Path, method: Method[Any, Any], seed: int, delta: float) -> RunPrivacy:
    if read_asked(path).engine == FEDERATION:
        sent = read_disclosure(path)
        clients = dict.fromkeys(client for _, direction, _, client in sent.bytes if direction == "up")
        return RunPrivacy(str(path), method, seed, tuple(clients), (), sent, by_owners=True)
    try:
        facts = [ClientFacts.from_json(client) for client in read_facts(path)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError(f"{path / FACTS} is damaged; start the run anew") from error
    disclosure = read_disclosure(path)
    found = account(method, facts, disclosure, delta)
    names, findings = tuple(client.client for client in facts), tuple(read_findings(path))
    return RunPrivacy(str(path), method, seed, names, found, disclosure, audits=read_audits(path), findings=findings)


def privacy_report(runs: list[RunPrivacy]) -> Group:
    """One run in full, or a line for each of several."""
    return _run(runs[0]) if len(runs) == 1 else _several(runs)


def _run(run: RunPrivacy) -> Group:
    parts: list[RenderableType] = [Text(f"{run.run}: {run.method.name}, seed {run.seed}", style="bold"), Text()]
    if not run.guarantees:
        parts += [Text(run.without_words()), Text()]
    for mechanism in dict.fromkeys(guarantee.mechanism for guarantee in run.guarantees):
        parts += _mechanism([guarantee for guarantee in run.guarantees if guarantee.mechanism == mechanism])
    if run.audits:
        parts += [audit_table(run.audits), Text()]
    parts += [_disclosed(run.disclosure), Text(), Text(_footnote(run.disclosure)), Text()]
    if not run.findings:
        return Group(*parts, Text(NONE_TRIED.format(run=run.run)))
    return Group(*parts, attack_report(run.findings, "What it told", run.disclosure))


def _mechanism(guarantees: list[Guarantee]) -> list[RenderableType]:
    """A table with a line for each client, and the verdict on the worst of them."""
    worst = worst_of(guarantees)
    if worst is None:
        return []
    accounts = list(dict.fromkeys(name for guarantee in guarantees for name in guarantee.detail))
    table = grid("client", "epsilon", "delta", *(f"{name}: epsilon, delta" for name in accounts), numbers_from=1)
    shown = guarantees
    if len(guarantees) > MOST_CLIENTS:
        shown = sorted(guarantees, key=lambda guarantee: -guarantee.bound.epsilon)[:MOST_CLIENTS]
    for guarantee in shown:
        others = [_pair(guarantee.detail.get(name)) for name in accounts]
        table.add_row(guarantee.client, _number(guarantee.bound.epsilon), _number(guarantee.bound.delta), *others)
    some = f", the {MOST_CLIENTS} with the highest epsilon" if len(shown) < len(guarantees) else ""
    parts: list[RenderableType] = [titled(f"{worst.mechanism} hides {worst.hides}{some}", table), Text()]
    if any(guarantee.by_degree for guarantee in guarantees):
        parts += [_by_degree(shown), Text()]
    return [*parts, Text(f"Least protected, {worst.client}: {worst.in_words()}."), Text()]


def read_audits(path: Path) -> tuple[dict[str, Any], ...]:
    """What a run folder's audits found, every value of its kind."""
    file = path / AUDIT
    if not file.exists():
        return ()
    try:
        return tuple(_audit(one) for one in listed(read_json(file, "audit")["audits"], MOST_AUDITS))
    except (KeyError, ValueError) as error:
        raise IntegrityError(f"{file} is damaged; delete it, and audit the run again") from error


def _audit(told: object) -> dict[str, Any]:
    one = table(told)
    names = {key: text(one[key], SENTENCE) for key in ("client", "mechanism", "run")}
    values: dict[str, Any] = {key: _value(one[key]) for key in ("lower", "upper", "delta")}
    values["least_delta"] = number(one.get("least_delta"))
    bounds = {text(name): _value(bound) for name, bound in table(one["bounds"]).items()}
    return {
        **names,
        **values,
        "least_delta": number(one.get("least_delta")),
        "bounds": bounds,
        "holds": one["holds"] is True,
    }


def _value(told: object) -> float:
    """A number, which may be infinite: nothing is promised."""
    return math.inf if told == math.inf else found if (found := number(told)) is not None else math.nan


def audit_table(audits: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Lower bounds beside the upper one, of exactly what was run."""
    names = list(dict.fromkeys(name for one in audits for name in one["bounds"]))
    table = grid("client", "mechanism", "at least", "at most", *names, "what was run", numbers_from=2)
    table.columns[-1].justify = "left"
    for one in audits:
        each = [_number(one["bounds"][name]) if name in one["bounds"] else NOTHING for name in names]
        shown = (one["client"], one["mechanism"], _number(one["lower"]), _number(one["upper"]), *each, one["run"])
        table.add_row(*shown)
    wrong = [one for one in audits if not one["holds"]]
    verdict = (
        f"REFUTED: {', '.join(one['mechanism'] for one in wrong)} hides less than its account says."
        if wrong
        else "No account is refuted: what canaries showed is below what was promised."
    )
    # An audit that an earlier version wrote down has no bound on delta.
    deltas = [
        Text(f"{one['mechanism']}: delta is at least {one['least_delta']:.3g}, promised is {one['delta']:.3g} at most.")
        for one in audits
        if one.get("least_delta") is not None
    ]
    return Group(titled("Audited epsilon, by canaries, 95 % sure", table), *deltas, Text(verdict))


def _by_degree(guarantees: list[Guarantee]) -> RenderableType:
    shares = [quantile for quantile, _, _ in guarantees[0].by_degree]
    names = ["fewest neighbours" if share == 0 else f"{100 * share:.0f} % have at most" for share in shares]
    table = grid("client", *names, numbers_from=1)
    for guarantee in guarantees:
        table.add_row(guarantee.client, *(f"{degree}: {_pair(bound)}" for _, degree, bound in guarantee.by_degree))
    return titled("The same by a node's number of neighbours: epsilon, delta", table)


def _disclosed(disclosure: Disclosure) -> RenderableType:
    table = grid("what", "to", "step", "clients", "times each", "bytes")
    for index in (3, 4, 5):
        table.columns[index].justify = "right"
    for flow in disclosure.flows():
        if flow.kind == ENVELOPE:
            continue
        step = f"{flow.step} (scores, outside epsilon)" if flow.step == EVALUATION_STEP else flow.step
        table.add_row(flow.kind, flow.receiver, step, str(flow.clients), str(flow.times), byte_size(flow.bytes))
    return titled("What was sent", table)


def _footnote(disclosure: Disclosure) -> str:
    envelope = sum(flow.bytes for flow in disclosure.flows() if flow.kind == ENVELOPE)
    sealed = any(flow.kind == Kind.SEALED for flow in disclosure.flows())
    sums = " Of what is sealed, only sums over clients were opened." if sealed else ""
    return f"Names and shapes around it: {byte_size(envelope)}. What comes down is made of what other clients sent up.{sums}"


def _several(runs: list[RunPrivacy]) -> Group:
    table = grid("method", "seed", "epsilon", "delta", "left the clients", "measured attack")
    for run in runs:
        bound = run.weakest.bound if run.weakest else None
        pair = (_number(bound.epsilon), _number(bound.delta)) if bound else ("none", "none")
        table.add_row(
            run.method.name,
            str(run.seed),
            *pair,
            ", ".join(run.disclosure.left()) or "nothing",
            worst_in_words(run.findings),
        )
    verdicts: dict[str, list[str]] = {}
    for run in runs:
        verdict = f"{run.weakest.mechanism}, {run.weakest.in_words()}" if run.weakest else "no guarantee of any kind"
        verdicts.setdefault(verdict, []).append(run.method.name)
    lines = [Text(f"{', '.join(dict.fromkeys(names))}: {verdict}.") for verdict, names in verdicts.items()]
    title = f"{count(len(runs), 'run')}, epsilon and delta of the least protected client"
    more = Text(f"More about one of them: suture privacy {runs[0].run}")
    return Group(titled(title, table), Text(), *lines, more)


def _pair(bound: Bound | None) -> str:
    return NOTHING if bound is None else f"{_number(bound.epsilon)}, {_number(bound.delta)}"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1e-3 or value >= 1000 else f"{value:.3f}".rstrip("0").rstrip(".")
