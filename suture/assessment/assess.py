"""Look at a graph, try what fits in the time there is, and say what federation would bring."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from torch_geometric.data import Data

from suture import api
from suture.assessment.budget import FEWEST_ROUNDS, FEWEST_SEEDS, PILOT_SHARE, SEEDS, Limits, Trial, fit, measure
from suture.assessment.candidates import ALONE, Candidate, candidates
from suture.assessment.facts import Facts, look
from suture.assessment.judging import Evidence, Judged, preferred
from suture.assessment.sampling import sampled
from suture.assessment.words import Verdict, described, limits, recommendation, verdict_of
from suture.core.metrics import Metric, metric_for
from suture.core.progress import each
from suture.errors import ConfigError, DataError, IntegrityError
from suture.runs import folder as folders
from suture.runs import origin
from suture.runs.comparison import Comparison
from suture.runs.intake import Overrides, graph_of, override_texts, path_of
from suture.runs.plan import Plan, plan
from suture.runs.prepare import Source

Planner = Callable[[Sequence[str], Sequence[str], Sequence[int] | None], Plan]
"""(methods, further overrides, seeds or None for the user's own) to a plan."""
MINUTES = 5.0
DAMAGED = "is not complete; it is damaged, assess the graph anew"


@dataclass(frozen=True)
class Known:
    """What is known before the runs: what assess.json holds."""

    dataset: str
    facts: Facts
    tried: tuple[Candidate, ...]
    left_out: tuple[str, ...]
    reduced: tuple[str, ...]
    rounds: int
    minutes: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Assessment:
    """What federation would bring."""

    known: Known
    methods: tuple[Judged, ...]
    chosen: str | None
    """The federated method to prefer; see `judging.preferred`."""
    verdict: Verdict
    recommendation: tuple[str, ...]
    limits: tuple[str, ...]
    """What the figures do not say."""
    metric: Metric
    seeds: tuple[int, ...]
    comparison: Comparison
    folder: Path | None = None

    @property
    def facts(self) -> Facts:
        """What the graph looks like."""
        return self.known.facts

    @property
    def text(self) -> str:
        """The recommendation as one paragraph."""
        return " ".join(self.recommendation)

    def of(self, method: str) -> Judged:
        """What was found of one method."""
        found = {one.method: one for one in self.methods}
        if method not in found:
            raise ConfigError(f"{method} was not tried; there are {', '.join(found)}")
        return found[method]

    def as_json(self) -> dict[str, object]:
        """For --json."""
        return {
            "dataset": self.known.dataset,
            "metric": self.metric.name,
            "greater_is_better": self.metric.greater_is_better,
            "verdict": self.verdict,
            "chosen": self.chosen,
            "recommendation": list(self.recommendation),
            "limits": list(self.limits),
            "seeds": list(self.seeds),
            "rounds": self.known.rounds,
            "facts": asdict(self.facts) | {"outside_share": self.facts.outside_share},
            "tried": {candidate.name: candidate.why for candidate in self.known.tried},
            "left_out": list(self.known.left_out),
            "reduced": list(self.known.reduced),
            "notes": list(self.known.notes),
            "methods": [asdict(one) for one in self.methods],
            "runs": self.comparison.as_json(),
        }


def assess(
    data: object,
    minutes: float = MINUTES,
    *,
    methods: Sequence[str] | None = None,
    protocol: str | Path | None = None,
    clients: int | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Overrides = (),
    config: str | Path | None = None,
    out: str | Path | None = None,
    options: api.Options | None = None,
    x: object = None,
    y: object = None,
    **values: object,
) -> Assessment:
    """Say in a few minutes what federation would bring on a graph; `data` and keywords as for `suture.run`.

    `methods` are tried beside local and fedavg, in place of those that rules choose; seeds, and rounds if they are set, are
    not reduced for want of time.
    """
    name, graph = graph_of(data, x, y)
    texts, file = override_texts(overrides, values), path_of(config, "config")

    def planner(names: Sequence[str], more: Sequence[str], chosen: Sequence[int] | None) -> Plan:
        wanted = seeds if chosen is None else chosen
        return plan(name, names, protocol=protocol, clients=clients, seeds=wanted, overrides=(*texts, *more), config=file)

    pinned = Pinned(None if methods is None else tuple(methods), seeds is not None, sets_rounds(texts))
    return assess_plan(planner, graph, minutes=minutes, pinned=pinned, out=path_of(out, "out"), options=options)


@dataclass(frozen=True)
class Pinned:
    """What the user asked for, and is not reduced."""

    methods: tuple[str, ...] | None = None
    seeds: bool = False
    rounds: bool = False


def sets_rounds(overrides: Sequence[str]) -> bool:
    """Whether the user says how many rounds there are."""
    return any(text.partition("=")[0].strip() in ("rounds", "training.rounds") for text in overrides)


def assess_plan(
    planner: Planner,
    data: Data | None = None,
    *,
    minutes: float = MINUTES,
    pinned: Pinned | None = None,
    out: Path | None = None,
    options: api.Options | None = None,
    say: Callable[[Sequence[str]], None] = lambda lines: None,
) -> Assessment:
    """Assess a graph whose plans `planner` makes; `say` hears what was seen and what will be tried before it is."""
    begun = time.monotonic()
    if not minutes > 0:
        raise ConfigError(f"minutes must be above 0, got {minutes:g}")
    options, pinned = options or api.Options(), pinned or Pinned()
    made = planner((ALONE,), (), None)
    if made.protocol.task == "link":
        raise ConfigError(f"assess is for labels of nodes; protocol {made.protocol.name} predicts links")
    loaded = data if data is not None else origin.load(made.dataset, path_of(options.data_root, "data_root"))
    known, trial = _look_and_plan(planner, made, loaded, pinned, 60 * minutes, begun, options)
    say(_announced(known, trial))
    seeds = None if pinned.seeds else tuple(range(trial.seeds))
    final = planner(trial.methods, (f"training.rounds={trial.rounds}",), seeds)
    if trial.share < 1:
        # The part is in no file, so that nobody may go on with it by the name of the whole.
        final, loaded = replace(final, dataset=origin.IN_MEMORY), sampled(loaded, trial.share, final.seeds[0])
    with ExitStack() as stack:
        place = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="suture-assess-"))) / "runs"
        folders.begin_assessment(place, asdict(known))
        quiet = replace(options, tell=lambda notes: None)
        comparison = api.compare_plan(final, loaded, out=place, options=quiet)
        return replace(concluded(known, final, comparison, place), folder=out)


def _look_and_plan(
    planner: Planner, made: Plan, loaded: Data, pinned: Pinned, seconds: float, begun: float, options: api.Options
) -> tuple[Known, Trial]:
    """What the graph looks like, and what of it can be tried in the time there is."""
    one = replace(made, seeds=made.seeds[:1])
    source = Source(one, loaded, device=options.device)
    prepared = source.prepared(one.seeds[0])
    if len(prepared.clients.ids) < 2:
        raise DataError(
            f"the graph has one owner, {prepared.clients.ids[0]}: assess compares training alone with federation, "
            "which takes two or more"
        )
    if prepared.notes:
        options.tell(prepared.notes)
    facts = look(prepared)
    tried, left_out = candidates(facts, pinned.methods)
    methods = planner([candidate.name for candidate in tried], (), None).methods
    allowed = PILOT_SHARE * seconds / len(methods)
    tested = each("pilot", "trying how long a round takes", methods, "methods", lambda method: method.name)
    paces = [measure(prepared, method, made.protocol, allowed, options.stop) for method in tested]
    rounds, seeds = made.protocol.training.rounds, len(made.seeds) if pinned.seeds else SEEDS
    limits = Limits(
        seconds=max(seconds - (time.monotonic() - begun), 0.0),
        rounds=rounds,
        nodes=int(source.graph.num_nodes),
        seeds=seeds,
        fewest_seeds=seeds if pinned.seeds else FEWEST_SEEDS,
        fewest_rounds=rounds if pinned.rounds else FEWEST_ROUNDS,
        patience=made.protocol.training.patience,
    )
    trial = fit(paces, tried, limits)
    kept = tuple(candidate for candidate in tried if candidate.name in trial.methods)
    known = Known(made.dataset, facts, kept, left_out, trial.reduced, trial.rounds, seconds / 60, tuple(prepared.notes))
    return known, trial


def _announced(known: Known, trial: Trial) -> list[str]:
    methods = [f"{candidate.name}: {candidate.why}" for candidate in known.tried]
    wait = f"about {trial.seconds / 60:.1f} minutes" if trial.seconds >= 60 else f"about {max(trial.seconds, 1):.0f} seconds"
    runs = f"{trial.seeds} seeds, {trial.rounds} rounds, {wait}"
    reduced = [f"for want of time: {'; '.join(trial.reduced)}"] if trial.reduced else []
    return [*described(known.facts), *known.left_out, f"trying, {runs}:", *(f"  {line}" for line in methods), *reduced]


def concluded(known: Known, made: Plan, comparison: Comparison, out: Path) -> Assessment:
    """What follows from finished runs that are kept in `out`."""
    metric = metric_for(known.facts.metric, known.facts.kind)
    ids = tuple(owner.name for owner in known.facts.owners)
    judged = Evidence(comparison, made, metric, ids, known.facts.resampled, out).judged()
    if not known.facts.given:
        # Another seed cuts another way, so that owners of the same name are not the same.
        judged = tuple(replace(one, owner_gains={}) for one in judged)
    federated = [one.method for one in judged if one.method != ALONE and not one.central]
    by_name = {one.method: one for one in judged}
    sent = {name: one.bytes_per_owner for name, one in by_name.items()}
    chosen = preferred(comparison, federated, metric.sign, sent, known.facts.resampled)
    best = by_name.get(chosen) if chosen is not None else None
    verdict = verdict_of(best, by_name[ALONE], metric)
    return Assessment(
        known,
        judged,
        chosen,
        verdict,
        tuple(recommendation(verdict, best, judged, metric, comparison.chosen(federated, metric.sign))),
        tuple(limits(known.facts, len(made.seeds), known.reduced, known.rounds)),
        metric,
        made.seeds,
        comparison,
        out,
    )


def read_known(path: Path) -> Known | None:
    """What the assessment in a folder knew before its runs; None: it holds none."""
    content = folders.read_assessed(path)
    if content is None:
        return None
    try:
        return TypeAdapter(Known).validate_python(content)
    except ValidationError as error:
        raise IntegrityError(f"{path / folders.ASSESSMENT} {DAMAGED}") from error


def read_assessment(path: Path) -> Assessment | None:
    """The assessment in a folder; None: it holds none, or its runs are not finished."""
    known = read_known(path)
    if known is None or not folders.is_comparison(path):
        return None
    made = folders.read_plan(path)
    runs = [folders.place_of(path, method, seed) for method in made.names for seed in made.seeds]
    outcomes = [outcome for run in runs if (outcome := folders.read_outcome(run)) is not None]
    if len(outcomes) < len(runs):
        return None
    return concluded(known, made, Comparison(tuple(outcomes), tuple(folders.read_metrics(run) for run in runs)), path)
