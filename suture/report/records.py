"""Run folders as plain records, which all figures and tables are made of.

    gathered = gather([Path("runs/mine")])      # suture.report.gathering
    gathered.runs[0].curve.test

A record holds what a folder told and could be understood; what could not is a sentence in `problems`. Texts in it are short
and without control characters, numbers finite or None. Nothing here computes a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from suture.attacks.attack import Finding
from suture.core.metrics import Metric
from suture.privacy.disclosure import Flow
from suture.runs.outcome import Outcome

Numbers = tuple[float | None, ...]


@dataclass(frozen=True)
class Curve:
    """Rounds that were tested, from metrics.jsonl; columns of equal length."""

    rounds: tuple[int, ...] = ()
    train: Numbers = ()
    validation: Numbers = ()
    test: Numbers = ()
    client_validation: tuple[Numbers, ...] = ()
    """[round][client]."""
    client_test: tuple[Numbers, ...] = ()


@dataclass(frozen=True)
class Iterations:
    """Every iteration of every phase, in order; columns of equal length."""

    phase: tuple[str, ...] = ()
    round: tuple[int, ...] = ()
    reported: Mapping[str, Numbers] = field(default_factory=dict)
    """What a method reported of its iterations, by name: loss, sent_share, ..."""
    up: Numbers = ()
    """Bytes from the clients in each iteration; None: that is not known."""
    down: Numbers = ()


@dataclass(frozen=True)
class Sketch:
    """What sketch.json says of the cut: a sample of the graph, and how unlike its owners are; see `suture.runs.sketch`."""

    owners: tuple[str, ...]
    sizes: tuple[int, ...]
    classes: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]
    """[owner][class]: nodes."""
    lost: tuple[tuple[int, ...], ...]
    """[owner][owner]: links that nobody holds."""
    distances: tuple[Numbers, ...]
    """[owner][owner]: of mean features, 0 alike to 1 nothing in common; empty: not told."""
    nodes: int
    links: int
    lost_links: int
    boundary_links: int
    node_owner: tuple[int, ...] = ()
    """Of the sampled nodes."""
    node_class: tuple[int, ...] = ()
    """-1: not known."""
    edges: tuple[tuple[int, int], ...] = ()
    """Between sampled nodes, by their place."""
    boundary: tuple[int, ...] = ()
    """Sampled nodes with a link that leads out of the graph, as often as they have one."""


@dataclass(frozen=True)
class Scatter:
    """Test nodes in two dimensions, from views.json."""

    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    label: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    client: tuple[str, ...] = ()
    explained: float | None = None
    """Share of the variance that the two dimensions hold."""


@dataclass(frozen=True)
class Kept:
    """Matrices of rounds that a method kept, [client][client], by round."""

    similarity: Mapping[int, tuple[Numbers, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """One run, finished or not."""

    name: str
    """The folder as people call it."""
    method: str
    seed: int
    dataset: str
    protocol: str = ""
    engine: str = ""
    clients: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """config.toml: sections and their values, as texts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What was dropped or assumed of the graph."""
    outcome: Outcome | None = None
    """None: not finished."""
    curve: Curve = Curve()
    iterations: Iterations = Iterations()
    flows: tuple[Flow, ...] = ()
    evaluation: Mapping[str, Any] | None = None
    """evaluation.json; whoever reads it checks the parts it draws."""
    findings: tuple[Finding, ...] = ()
    audits: tuple[Mapping[str, Any], ...] = ()
    sketch: Sketch | None = None
    scatter: Scatter | None = None
    kept: Kept = Kept()
    mended: Mapping[str, Any] | None = None
    """What a method that makes neighbours or links made, against the truth, from views.json."""
    roles: str = ""
    """A hash of who trains and who is tested: the same in runs that test the same nodes."""
    problems: tuple[str, ...] = ()
    """What could not be read, one sentence each."""


@dataclass(frozen=True)
class Gathered:
    """Several runs, in the order they were given; of a comparison method by method, seed by seed."""

    runs: tuple[RunRecord, ...]
    problems: tuple[str, ...] = ()
    metric: Metric | None = None
    """By what they are scored; None: by one that is not known here."""

    @property
    def methods(self) -> tuple[str, ...]:
        """In the order of their first run."""
        return tuple(dict.fromkeys(run.method for run in self.runs))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of all runs, ascending."""
        return tuple(sorted({run.seed for run in self.runs}))

    def of(self, method: str) -> tuple[RunRecord, ...]:
        """The runs of one method."""
        return tuple(run for run in self.runs if run.method == method)

    @property
    def share(self) -> bool:
        """Whether scores are shares, shown in percent."""
        return self.metric is None or self.metric.is_share

    @property
    def examples(self) -> str:
        """What models are trained and tested on."""
        tasks = {run.settings.get("", {}).get("task", "").strip('"') for run in self.runs}
        return "links" if tasks == {"link"} else "nodes"

    @property
    def sign(self) -> float:
        """What a score is multiplied with, so that greater is better."""
        return 1.0 if self.metric is None else self.metric.sign

    @property
    def score(self) -> str:
        """What scores are called in titles of axes."""
        name = "score" if self.metric is None else self.metric.title.removeprefix("Test ")
        return f"{name} in %" if self.share else name
