"""A report in a real browser: no complaints, legend, slider, keyboard, both widths and themes, and a large one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_comparison

import suture
from suture.core.metrics import ACCURACY
from suture.report.gathering import gather
from suture.report.page import Page, written
from suture.report.records import Curve, Gathered, Iterations, RunRecord
from suture.report.report import report_page
from suture.report.theme import KNOWN

MARKS = "figure[data-figure='curves'] .mark-line path"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_comparison(tmp_path_factory.mktemp("browser") / "mine")


@pytest.fixture(scope="session")
def report(folder: Path) -> Path:
    return suture.write_report(folder)


def _draw_everything(page: Any) -> None:
    """Scroll down until every figure has been drawn."""
    for figure in page.locator("figure[data-figure]").all():
        figure.scroll_into_view_if_needed()
        page.wait_for_function("figure => figure.dataset.drawn === 'yes'", arg=figure.element_handle())


def _open(page: Any, path: Path) -> Any:
    page.goto(path.as_uri())
    return page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [380, 1600])
def test_every_figure_is_drawn_and_nothing_scrolls_sideways(
    new_page: Callable[..., Any], report: Path, width: int, dark: bool
) -> None:
    page = _open(new_page(width=width, dark=dark), report)
    _draw_everything(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    figures = page.locator("figure[data-figure]")
    assert figures.count() == len(report_page(gather([report.parent])).figures())
    for box in [one.bounding_box() for one in page.locator("figure .stage > *").all() if one.is_visible()]:
        assert box["x"] >= 0 and box["x"] + box["width"] <= width


def test_axe_finds_no_serious_fault(
    new_page: Callable[..., Any], report: Path, accessible: Callable[[Any], list[str]]
) -> None:
    for dark in (False, True):
        page = _open(new_page(width=1280, dark=dark), report)
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        _draw_everything(page)
        assert accessible(page) == []


def test_the_legend_hides_a_method_in_figures_and_tables(page: Any, report: Path) -> None:
    _open(page, report)
    _draw_everything(page)
    lines = page.locator(MARKS)
    before, rows = lines.count(), page.locator("tr[data-method='fedpub']:visible").count()
    assert before == 5 and rows > 0
    page.get_by_role("checkbox", name="fedpub").uncheck()
    page.wait_for_function("([marks, count]) => document.querySelectorAll(marks).length === count", arg=[MARKS, before - 1])
    assert page.locator("tr[data-method='fedpub']:visible").count() == 0
    page.get_by_role("checkbox", name="fedpub").check()
    page.wait_for_function("([marks, count]) => document.querySelectorAll(marks).length === count", arg=[MARKS, before])
    colours = {line.get_attribute("stroke") for line in lines.all()}
    assert len(colours) == 5


@pytest.mark.parametrize("width", [380, 1600])
def test_a_long_legend_shows_whole_rows(new_page: Callable[..., Any], tmp_path: Path, width: int) -> None:
    (tmp_path / "many.html").write_text(written(Page("many", (), (), tuple(KNOWN))))
    page = _open(new_page(width=width), tmp_path / "many.html")
    inside, tall, row = page.evaluate(
        "(() => { const box = document.querySelector('.bar .boxes'); const one = box.children[0];"
        " return [box.clientHeight, box.scrollHeight, one.getBoundingClientRect().height]; })()"
    )
    assert tall > inside and row > 0 and inside % row == pytest.approx(0, abs=0.5)
    page.get_by_role("checkbox").last.focus()
    assert page.get_by_role("checkbox").last.is_visible()
    assert page.evaluate("document.querySelector('.bar .boxes').scrollTop % 28") == pytest.approx(0, abs=0.5)


def _numbers(page: Any, figure: str) -> list[str]:
    texts: list[str] = page.locator(f"figure[data-figure='{figure}'] .mark-text text").all_text_contents()
    return texts


def test_the_slider_moves_through_rounds(page: Any, report: Path) -> None:
    _open(page, report)
    _draw_everything(page)
    slider = page.locator("figure[data-figure='similarity'] input[type=range]")
    told = page.locator("figure[data-figure='similarity'] output")
    last, seen = told.inner_text(), _numbers(page, "similarity")
    assert last == "4"
    slider.focus()
    page.keyboard.press("Home")
    assert told.inner_text() == "1"
    page.wait_for_function(
        "before => JSON.stringify([...document.querySelectorAll(\"figure[data-figure='similarity'] .mark-text text\")]"
        ".map((one) => one.textContent)) !== before",
        arg=str(seen).replace("'", '"').replace(", ", ","),
    )
    assert _numbers(page, "similarity") != seen


def test_a_choice_changes_what_is_drawn(page: Any, report: Path) -> None:
    _open(page, report)
    _draw_everything(page)
    path = page.locator(MARKS).first
    before = path.get_attribute("d")
    page.get_by_label("Scored on").select_option(label="test nodes")
    page.wait_for_function("([marks, d]) => document.querySelector(marks).getAttribute('d') !== d", arg=[MARKS, before])


def test_the_keyboard_alone_suffices(page: Any, report: Path) -> None:
    """Every control is reached by Tab, shows where it is, and works by Space and arrows."""
    _open(page, report)
    reached: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        told = page.evaluate(
            "(() => { const one = document.activeElement; const style = getComputedStyle(one);"
            " return [one.dataset.method || one.dataset.field || one.className || one.tagName, style.outlineStyle]; })()"
        )
        if told[0] == "BODY":  # behind the last one
            break
        assert told[1] != "none", f"{told[0]} does not show that it has the focus"
        reached.append(told[0])
        if told[0] == "fedavg":
            page.keyboard.press("Space")
            assert page.get_by_role("checkbox", name="fedavg").is_checked() is False
    assert {"skip", "local", "fedavg", "fedpub", "set", "cut"} <= set(reached)


def test_the_theme_is_chosen_and_figures_follow(page: Any, report: Path) -> None:
    _open(page, report)
    _draw_everything(page)
    stroke = page.locator(MARKS).first.get_attribute("stroke")
    page.get_by_role("combobox", name="Theme").select_option("dark")
    page.wait_for_function(
        "([marks, was]) => document.querySelector(marks).getAttribute('stroke') !== was", arg=[MARKS, stroke]
    )
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 29)"


def test_print_shows_all_figures_on_white(page: Any, report: Path) -> None:
    _open(page, report)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function("!document.querySelector('figure[data-figure]:not([data-drawn])')")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_names_of_others_run_nothing(page: Any, folder: Path, tmp_path: Path) -> None:
    evil = "<img src=x onerror='window.hit=1'>"
    copy = shutil.copytree(folder / "fedpub-seed0", tmp_path / "run")
    for name in ("data.json", "sketch.json", "evaluation.json", "views.json", "run.json"):
        text = (copy / name).read_text().replace("client-01", evil).replace('"fedpub"', f'"{evil}"')
        (copy / name).write_text(text)
    _open(page, suture.write_report(copy))
    _draw_everything(page)
    page.locator("figure[data-figure='labels'] .mark-rect path").first.hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert page.evaluate("window.hit") is None and page.locator("main img").count() == 0
    assert evil in page.locator("h1").inner_text()


def _large(one: RunRecord) -> Gathered:
    """Twenty runs of 200 rounds and 50 clients, of a real one's other parts."""
    clients = tuple(f"client-{k:02d}" for k in range(50))
    rounds = tuple(range(1, 201))
    runs = []
    for place in range(20):
        value = [0.3 + 0.6 * (1 - 1 / (1 + number / 20)) - 0.002 * place for number in rounds]
        each = tuple(tuple((v * 0.9 + 0.002 * k + 0.0001 * place * k) for k in range(50)) for v in value)
        curve = Curve(rounds, tuple(value), tuple(value), tuple(value), each, each)
        sent = tuple(1e6 + place for _ in rounds)
        told = Iterations(("round",) * 200, rounds, {"loss": tuple(1 - v for v in value)}, sent, sent)
        similarity = {
            number: tuple(tuple(1 / (1 + abs(i - j)) for j in range(50)) for i in range(50)) for number in rounds[:60]
        }
        outcome = (
            replace(one.outcome, method=f"method_{place % 5}", seed=place // 5, best_rounds=(), best_round=200)
            if one.outcome
            else None
        )
        kept = replace(one.kept, similarity=similarity) if place < 4 else one.kept
        runs.append(
            replace(
                one,
                method=f"method_{place % 5}",
                seed=place // 5,
                clients=clients,
                curve=curve,
                iterations=told,
                outcome=outcome,
                kept=kept,
            )
        )
    return Gathered(tuple(runs), (), ACCURACY)


def test_a_large_report_is_small_enough_and_opens_at_once(page: Any, folder: Path, tmp_path: Path) -> None:
    text = written(report_page(_large(gather([folder / "fedpub-seed0"]).runs[0])))
    assert len(text.encode()) < 8_000_000
    (tmp_path / "large.html").write_text(text)
    _open(page, tmp_path / "large.html")
    page.wait_for_selector("figure[data-drawn]")
    # What the browser itself measured, from the click to the page being usable: told, not asserted.
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    print(f"{len(text) / 1e6:.2f} MB, usable after {loaded:.0f} ms")
    assert page.locator("figure[data-figure]").count() > 10
