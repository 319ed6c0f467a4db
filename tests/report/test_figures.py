"""Figures: every one compiles, its data is what the runs say, and methods keep colours that everybody can tell."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from suture.methods import METHODS
from suture.report import drawing, theme
from suture.report.figures.layout import placed
from suture.report.records import Curve, Gathered, Sketch
from suture.report.report import FIGURES

SHOWN = [name for name in FIGURES if name not in ("learned", "server-graph")]
"""Those that the small comparison holds."""


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("name", SHOWN)
def test_every_figure_is_drawn_with_marks(gathered: Gathered, name: str, mode: theme.Mode) -> None:
    figure = FIGURES[name](gathered)
    assert figure is not None and figure.caption and figure.alternative and re.fullmatch(r"[a-z-]+", figure.name)
    svg = drawing.picture(drawing.whole(figure, mode), "svg").decode()
    root = ElementTree.fromstring(svg)
    marks = [one for one in root.iter() if one.tag.endswith(("path", "text", "line", "rect"))]
    assert len(marks) > 10 and "undefined" not in svg and "NaN" not in svg and ">null<" not in svg
    assert (theme.PAGE["dark"]["background"] in svg) == (mode == "dark")


def test_figures_of_other_methods_are_left_out(gathered: Gathered) -> None:
    assert FIGURES["learned"](gathered) is None and FIGURES["server-graph"](gathered) is None


def test_png_and_pdf(gathered: Gathered, tmp_path: Path) -> None:
    figure = FIGURES["scores"](gathered)
    assert figure is not None
    assert drawing.write_picture(figure, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert drawing.write_picture(figure, tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(Exception, match=r"must end with \.svg, \.png, \.pdf"):
        drawing.write_picture(figure, tmp_path / "a.gif")


def test_bands_are_one_deviation_over_seeds(comparison: Path, gathered: Gathered) -> None:
    figure = FIGURES["curves"](gathered)
    assert figure is not None
    rows = [row for row in figure.chosen({"set": "test nodes"})["curves"] if row["method"] == "fedpub" and row["round"] == 3]
    lines = [
        json.loads((comparison / f"fedpub-seed{seed}" / "metrics.jsonl").read_text().splitlines()[2]) for seed in (0, 1, 2)
    ]
    values = [100 * line["test"] for line in lines]
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    assert len(rows) == 1 and (rows[0]["mean"], rows[0]["low"], rows[0]["high"]) == pytest.approx(
        (mean, mean - spread, mean + spread)
    )


def test_the_vertical_axis_says_what_is_chosen(gathered: Gathered) -> None:
    figure = FIGURES["reported"](gathered)
    assert figure is not None
    for what in figure.controls[0].values:
        assert drawing.whole(figure, start={"what": what})["encoding"]["y"]["title"] == what
    assert drawing.whole(figure)["encoding"]["y"]["title"] == figure.controls[0].values[0]


def test_links_are_scored_on_links(gathered: Gathered) -> None:
    runs = tuple(replace(run, settings={**run.settings, "": {"task": '"link"'}}) for run in gathered.runs)
    figure = FIGURES["curves"](replace(gathered, runs=runs))
    assert figure is not None and figure.controls[0].values == ("validation links", "test links", "training links")


def _points(svg: bytes) -> int:
    """That are drawn in the figure itself; those of a legend have another role."""
    groups = (one for one in ElementTree.fromstring(svg.decode()).iter() if "mark-symbol role-mark" in one.get("class", ""))
    return sum(map(len, groups))


@pytest.mark.parametrize("name", ["curves", "clients", "agreement", "traffic"])
def test_a_round_alone_is_seen(gathered: Gathered, name: str) -> None:
    """A line through one point is none."""
    runs = tuple(
        replace(
            run,
            curve=Curve(*(getattr(run.curve, field.name)[:1] for field in fields(Curve))),
            iterations=replace(run.iterations, up=run.iterations.up[:1], down=run.iterations.down[:1]),
            kept=replace(run.kept, similarity=dict(list(run.kept.similarity.items())[:1])),
        )
        for run in gathered.runs
    )
    figure = FIGURES[name](replace(gathered, runs=runs))
    assert figure is not None and _points(drawing.picture(drawing.whole(figure), "svg")) > 0


def test_a_cut_that_loses_no_link_says_so(gathered: Gathered) -> None:
    def unharmed(sketch: Sketch) -> Sketch:
        return replace(sketch, lost=tuple(tuple(0 for _ in row) for row in sketch.lost), lost_links=0)

    runs = tuple(replace(run, sketch=unharmed(run.sketch) if run.sketch else None) for run in gathered.runs)
    whole = replace(gathered, runs=runs)
    graph, between, agreement = (FIGURES[name](whole) for name in ("graph", "between", "agreement"))
    assert graph is not None and "none of them between owners" in graph.caption
    assert between is not None and between.controls[0].values == ("distance of mean features (1 - cosine)",)
    assert agreement is not None and "links lost" not in drawing.picture(drawing.whole(agreement), "svg").decode()


def test_confusions_are_summed_over_seeds(comparison: Path, gathered: Gathered) -> None:
    figure = FIGURES["confusion"](gathered)
    assert figure is not None
    told = [
        json.loads((comparison / f"local-seed{seed}" / "evaluation.json").read_text())["pooled"]["confusion"]
        for seed in (0, 1, 2)
    ]
    rows = figure.chosen({"shown": "local"})["confusion"]
    assert {(row["true"], row["said"]): row["number"] for row in rows} == {
        (str(i), str(j)): sum(one[i][j] for one in told) for i in range(3) for j in range(3)
    }


def test_a_packed_table_is_the_table(gathered: Gathered) -> None:
    figure = FIGURES["labels"](gathered)
    assert figure is not None
    packed = figure.as_json()["tables"]["labels"]
    unpacked = {name: [one["of"][at] for at in one["at"]] if isinstance(one, dict) else one for name, one in packed.items()}
    assert unpacked["owner"] == list(figure.tables["labels"]["owner"])
    assert unpacked["share"] == pytest.approx(list(figure.tables["labels"]["share"]), rel=1e-4)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", theme.PAIRS)
def test_colours_stand_out_from_their_page(name: str) -> None:
    light, dark = theme.PAIRS[name]
    assert (
        _contrast(light, theme.PAGE["light"]["background"]) >= 3 and _contrast(dark, theme.PAGE["dark"]["background"]) >= 3
    )


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_words_can_be_read(mode: theme.Mode) -> None:
    page = theme.PAGE[mode]
    assert min(_contrast(page[name], page["background"]) for name in ("text", "soft")) >= 4.5
    assert min(_contrast(page["text"], end) for end in theme.PALE_HEAT[mode]) >= 4.5


def test_every_registered_method_has_a_style_of_its_own() -> None:
    styles = {name: theme.style_of(name) for name in METHODS}
    assert set(theme.KNOWN) == set(METHODS)
    for one, other in combinations(styles, 2):
        assert (styles[one].colour, styles[one].dash) != (styles[other].colour, styles[other].dash), (one, other)


def test_a_method_of_somebody_else_always_looks_the_same_and_like_no_registered_one() -> None:
    style = theme.style_of("my_method")
    assert style == theme.style_of("my_method") and style.colour == theme.style_of("my_method").colour
    assert (style.colour, style.dash) not in {(theme.style_of(name).colour, theme.style_of(name).dash) for name in METHODS}


def test_methods_drawn_together_never_look_alike() -> None:
    """More methods than colours, two of others that would get the same style, and one method from several folders."""
    others = [f"mine_{number}" for number in range(20)]
    usual = [theme.style_of(name) for name in others]
    assert len({(one.colour, one.dash) for one in usual}) < len(others)
    folders = [f"fedavg{theme.IN_FOLDER}{name}" for name in "abc"]
    drawn = [*others[:8], *folders, "moon", "fedgraph"]
    for names in (others, drawn, list(METHODS)):
        styles = theme.styles_of(names)
        assert len({(styles[name].colour, styles[name].dash) for name in names}) == len(names)
        assert len({(styles[name].colour, styles[name].shape) for name in names}) == len(names)
    styles = theme.styles_of(drawn)
    assert {styles[name].colour for name in folders} == {theme.style_of("fedavg").colour}
    assert styles["moon"] == theme.style_of("moon") and styles["fedgraph"] == theme.style_of("fedgraph")
    scales = theme.point_scales(drawn, only=["fedgraph", folders[1]])
    assert scales["color"]["scale"]["range"] == [styles["fedgraph"].colour, styles[folders[1]].colour]


def test_a_layout_is_the_same_every_time_and_inside_its_frame() -> None:
    rng = np.random.default_rng(0)
    edges = tuple((int(a), int(b)) for a, b in rng.integers(0, 60, (120, 2)) if a != b)
    owners = tuple(int(one) for one in rng.integers(0, 4, 60))
    one, other = placed(owners, edges), placed.__wrapped__(owners, edges)
    assert (one == other).all() and one.min() >= -0.02 and one.max() <= 1.02
    linked = np.mean([np.linalg.norm(one[a] - one[b]) for a, b in edges])
    anybody = np.mean([np.linalg.norm(one[a] - one[b]) for a, b in combinations(range(60), 2)])
    assert linked < 0.8 * anybody
