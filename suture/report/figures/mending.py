"""What methods put in the place of what the cut took away, against the truth: neighbours, links, a server's graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suture.report.figures.figure import Control, Figure, category, columns, quantity, spec_of, tips
from suture.report.figures.heat import heat_layers, square
from suture.report.records import Gathered, RunRecord
from suture.report.text import count
from suture.report.theme import PAIRS, Spec
from suture.report.trusting import number, table, text, wholes
from suture.runs.mended import MOST_LOST, MOST_SUPPOSED

MOST_CLIENTS = 40
TRUE_ONES, WRONG_ONES, MISSED = "learned and true", "learned, not true", "true, not learned"


def _parts(gathered: Gathered, part: str) -> list[tuple[str, RunRecord, Any]]:
    """(name, run, what its views say of a part), of every method the first run that says anything."""
    found: dict[str, tuple[str, RunRecord, Any]] = {}
    for run in gathered.runs:
        told = (run.mended or {}).get(part)
        if told and run.method not in found:
            found[run.method] = (run.method, run, told)
    return list(found.values())


def neighbours(gathered: Gathered) -> Figure | None:
    """FedSage+ and FedDEP: how many neighbours nodes lost, and how many their generators suppose; None: no run says."""
    rows: list[tuple[Any, ...]] = []
    words = []
    for method, run, told in _parts(gathered, "neighbours"):
        counts = [wholes(row, MOST_SUPPOSED + 1) for row in table(told)["counts"]][: MOST_LOST + 1]
        for lost, row in enumerate(counts):
            total = sum(row)
            for said, nodes in enumerate(row if total else ()):
                rows.append((method, _named(lost, MOST_LOST), _named(said, MOST_SUPPOSED), 100 * nodes / total, nodes))
        correlation = number(told.get("correlation"))
        sure = "" if correlation is None else f", correlation {correlation:.2f}"
        words.append(f"{run.name}: {told['lost']:,} lost, {told['supposed']:,} supposed{sure}")
    if not rows:
        return None
    shown = tuple(dict.fromkeys(row[0] for row in rows))
    columns_of = sorted({row[1] for row in rows}, key=_number)
    made = max((_number(row[2]) for row in rows if row[4]), default=0)
    rows_of = [_named(number, MOST_SUPPOSED) for number in range(made + 1)]
    rows = [row for row in rows if row[2] in rows_of]
    x = category(
        "lost",
        "neighbours that a node lost",
        axis={"labelAngle": 0, "labelOverlap": True, "labelSeparation": 4},
        scale={"domain": columns_of},
    )
    y = category("said", "neighbours supposed", scale={"domain": rows_of[::-1]})
    hint = tips(lost="lost", said="supposed", share="% of such nodes|.1f", nodes="nodes")
    form = ".0f" if len(columns_of) <= 12 else None
    return Figure(
        "neighbours",
        "Missing neighbours: predicted against true",
        f"Of the nodes that lost so many neighbours, the share for which so many were generated, in %. {'; '.join(words)}.",
        f"A table of neighbours lost by neighbours generated; {'; '.join(words)}.",
        spec_of("neighbours", square(len(rows_of)), layer=heat_layers(x, y, "share", "% of column", hint, form, (0, 100))),
        {"neighbours": columns("shown lost said share nodes", rows)},
        (Control("shown", "Method", shown),),
    )


def _named(value: int, most: int) -> str:
    return f"{value}+" if value == most else str(value)


def _number(name: str) -> int:
    return int(name.rstrip("+"))


def learned(gathered: Gathered) -> Figure | None:
    """FedGLS: the links learned for clients without edges, and those hidden from them."""
    rows: list[tuple[Any, ...]] = []
    words = []
    for _, run, told in _parts(gathered, "learned"):
        for one in told[:MOST_CLIENTS]:
            right, made, hidden = (wholes([table(one)[key]], 1)[0] for key in ("right", "learned", "hidden"))
            name, share = text(one["client"]), number(one.get("inside_class"))
            for what, value in ((TRUE_ONES, right), (WRONG_ONES, made - right), (MISSED, hidden - right)):
                rows.append((name, what, value, None if share is None else 100 * share))
        words.append(_sums(told, run.name))
    if not rows:
        return None
    kinds = [TRUE_ONES, WRONG_ONES, MISSED]
    colours = {"domain": kinds, "range": [PAIRS["green"][0], PAIRS["vermilion"][0], PAIRS["grey"][0]]}
    clients = len({row[0] for row in rows})
    encoding: Spec = {
        "x": quantity("links", "links", axis={"grid": True}),
        "y": category("client", None),
        "color": {"field": "what", "type": "nominal", "scale": colours, "legend": {"title": None, "symbolType": "square"}},
        "order": {"field": "what", "sort": "ascending"},
        "tooltip": tips(client="client", what="which", links="links", inside="% of learned inside a class|.0f"),
    }
    return Figure(
        "learned",
        "Learned links against hidden ones",
        f"For each client without edges: links learned and true, learned and not true, and missed. {' '.join(words)}",
        f"Bars of links for {count(clients, 'client')}. {' '.join(words)}",
        spec_of("learned", max(140, 30 * clients + 30), mark={"type": "bar", "height": 16}, encoding=encoding),
        {"learned": columns("client what links inside", rows)},
    )


def _sums(told: list[Mapping[str, Any]], name: str) -> str:
    sums = {key: sum(float(one[key]) for one in told) for key in ("right", "learned", "hidden", "by_chance")}
    found = 100 * sums["right"] / max(sums["hidden"], 1)
    return (
        f"{name}: of {sums['learned']:,.0f} learned links {sums['right']:,.0f} are true (by chance "
        f"{sums['by_chance']:,.0f}), of {sums['hidden']:,.0f} hidden ones {found:.0f} % were found."
    )


def server_graph(gathered: Gathered) -> Figure | None:
    """FedGGR: where the links of the server's graph lie."""
    rows: list[tuple[Any, ...]] = []
    words = []
    for method, run, told in _parts(gathered, "server"):
        for what, key, chance in (
            ("inside a class", "inside_class", "inside_by_chance"),
            ("across owners", "across_owners", "across_by_chance"),
        ):
            share, guess = number(table(told).get(key)), number(told.get(chance))
            if share is not None and guess is not None:
                rows.append((method, what, 100 * share, 100 * guess))
        links, things = (f"{wholes([told[key]], 1)[0]:,}" for key in ("links", "things"))
        named = "groups of nodes" if told.get("groups") else "nodes"
        met = (
            f"no links; {links} pairs of nodes hear most of the same of its {things} anchors, and are counted in their place"
        )
        words.append(f"{run.name}: {met if told.get('places') else f'{links} links of {things} {named}'}.")
    if not rows:
        return None
    shown = tuple(dict.fromkeys(row[0] for row in rows))
    y = category("what", None, axis={"ticks": False, "domain": False})
    x = quantity("share", "% of the server's links", scale={"domain": [0, 100]}, axis={"grid": True})
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "height": 22, "color": PAIRS["red"][0], "opacity": 0.8},
            "encoding": {"x": x, "y": y, "tooltip": tips(what="links", share="%|.1f", guess="by chance|.1f")},
        },
        {
            "mark": {"type": "tick", "thickness": 3, "size": 34, "color": PAIRS["ink"][0]},
            "encoding": {"x": {**x, "field": "guess"}, "y": y},
        },
    ]
    told_all = "; ".join(f"{row[1]} {row[2]:.1f} % (by chance {row[3]:.1f} %)" for row in rows)
    return Figure(
        "server-graph",
        "The graph that the server learned",
        "Share of its links inside a class and between different owners; the tick is what links at random would have. "
        f"{' '.join(words)}",
        f"Two bars: {told_all}.",
        spec_of("server", 150, layer=layers),
        {"server": columns("shown what share guess", rows)},
        (Control("shown", "Method", shown),),
    )
