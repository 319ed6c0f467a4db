"""FED-PUB: which clients' models behave alike, round by round, against their labels and the links lost between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from suture.methods.fedpub.communities import correlations
from suture.methods.fedpub.method import label_similarity
from suture.report.figures.figure import Control, Figure, category, columns, dotted, quantity, spec_of, tips
from suture.report.figures.heat import heat_layers, slanted, square
from suture.report.records import Gathered, Numbers, RunRecord
from suture.report.text import count
from suture.report.theme import PAIRS

MOST_CLIENTS = 50
CELLS = 40_000
LABELS, LINKS = "with label similarity", "with links lost"


def _run(gathered: Gathered) -> RunRecord | None:
    return next((run for run in gathered.runs if run.kept.similarity and run.clients), None)


def similarity(gathered: Gathered) -> Figure | None:
    """The similarities that decide whom a client learns from, with a slider over rounds; None: no run kept them."""
    run = _run(gathered)
    if run is None:
        return None
    names = run.clients[:MOST_CLIENTS]
    rounds = sorted(run.kept.similarity)
    step = max(1, -(-len(rounds) * len(names) ** 2 // CELLS))
    rounds = [*rounds[:-1:step], rounds[-1]]
    rows: list[tuple[Any, ...]] = []
    for number in rounds:
        matrix = run.kept.similarity[number]
        if len(matrix) == len(run.clients):
            rows += [(number, a, b, matrix[i][j]) for i, a in enumerate(names) for j, b in enumerate(names)]
    if not rows:
        return None
    known = [value for *_, value in rows if value is not None]
    told = tips(one="client", other="client", value="similarity|.3f")
    x = category("other", None, axis=slanted(len(names)))
    form = ".2f" if len(names) <= 8 else None
    domain = (min(known, default=0.0), max(known, default=1.0))
    shown = tuple(dict.fromkeys(row[0] for row in rows))
    return Figure(
        "similarity",
        "FED-PUB: whose models behave alike",
        f"Cosine of what two clients' models say of the same random graph; {run.name}. Alike ones are averaged more.",
        f"A square of {count(len(names), 'client')} by {count(len(names), 'client')}, one for each round.",
        spec_of(
            "similarity", square(len(names)), layer=heat_layers(x, category("one", None), "value", None, told, form, domain)
        ),
        {"similarity": columns("round one other value", rows)},
        (Control("round", "Round", shown, "range", len(shown) - 1),),
    )


def agreement(gathered: Gathered) -> Figure | None:
    """Whether those similarities find the communities: their correlation with the truth, by round."""
    run = _run(gathered)
    if run is None or run.sketch is None or len(run.sketch.labels) != len(run.clients) or len(run.clients) < 3:
        return None
    truth = _truth(run)
    rows: list[tuple[Any, ...]] = []
    for number, matrix in sorted(run.kept.similarity.items()):
        if len(matrix) != len(run.clients):
            continue
        for what, other in truth.items():
            pearson, rank = correlations(_tensor(matrix), other)
            if pearson is not None:
                rows.append((number, what, pearson, rank))
    if not rows:
        return None
    known = [what for what in (LABELS, LINKS) if any(row[1] == what for row in rows)]
    colours = {"domain": known, "range": [{LABELS: PAIRS["vermilion"][0], LINKS: PAIRS["blue"][0]}[what] for what in known]}
    legend = {"title": None, "symbolType": "stroke", "symbolSize": 300}
    encoding = {
        "x": quantity("round", "round", axis={"tickMinStep": 1}, scale={"nice": False, "zero": False}),
        "y": quantity("pearson", "correlation over pairs of clients"),
        "color": {"field": "what", "type": "nominal", "scale": colours, "legend": legend},
        "strokeDash": {
            "field": "what",
            "type": "nominal",
            "scale": {"domain": known, "range": [{LABELS: [1, 0], LINKS: [6, 3]}[what] for what in known]},
            "legend": legend,
        },
        "tooltip": tips(what="correlation", round="round", pearson="Pearson|.3f", rank="Spearman|.3f"),
    }
    last = "; ".join(f"{what} {value:.2f}" for number, what, value, _ in rows if number == rows[-1][0])
    return Figure(
        "agreement",
        "FED-PUB: do similar models find similar owners?",
        "Correlation (Pearson) of the models' similarity with that of the owners' labels, and with the number of links that "
        f"the cut took away between them, over all pairs of clients; {run.name}. The method sees neither.",
        f"Lines of correlation by round; in the last one {last}.",
        spec_of("agreement", mark={"type": "line", "point": dotted(len({row[0] for row in rows}))}, encoding=encoding),
        {"agreement": columns("round what pearson rank", rows)},
    )


def _truth(run: RunRecord) -> Mapping[str, Tensor]:
    sketch = run.sketch
    if sketch is None:
        return {}
    truth = {LABELS: label_similarity(torch.tensor(sketch.labels, dtype=torch.float64))}
    return truth | ({LINKS: torch.tensor(sketch.lost)} if sketch.lost else {})


def _tensor(matrix: tuple[Numbers, ...]) -> Tensor:
    return torch.tensor([[float("nan") if value is None else value for value in row] for row in matrix])
