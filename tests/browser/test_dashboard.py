"""The dashboard in a real browser, while a real run goes on."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the dashboard is not installed")

from dashboards import GRAPH, Served, serving_at

from suture import api

NewPage = Callable[..., Any]
Axe = Callable[[Any], list[str]]
WAIT = 300_000
"""Milliseconds: a machine may be busy with other things."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("runs")
    api.run(GRAPH, "fedavg", clients=3, seed=0, rounds=6, out=root / "one")
    api.compare(GRAPH, ["local", "fedavg"], clients=3, seeds=[0, 1], rounds=6, out=root / "both")
    broken = Path(shutil.copytree(root / "one", root / '<img src=x onerror="document.title=1">'))
    (broken / "run.json").write_text("{")
    with ExitStack() as stack:
        yield stack.enter_context(serving_at(root))


def opened(page: Any, served: Served, route: str = "#/") -> Any:
    page.set_default_timeout(WAIT)
    page.goto(f"{served.address}/?token={served.dashboard.gate.token}")
    page.wait_for_url(f"{served.address}/")
    page.goto(f"{served.address}/{route}")
    page.wait_for_selector("h1")
    return page


def press(page: Any, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def until(page: Any, standing: str) -> None:
    page.wait_for_selector(f".state .badge.{standing}")


def wait(page: Any, happened: Callable[[], bool]) -> None:
    """Asked from here: a function that Playwright would look for in the page needs `eval`, which the page does not allow."""
    while not happened():
        page.wait_for_timeout(200)


def points(page: Any) -> int:
    return int(page.get_attribute("figure.curves", "data-points") or 0)


def path_of_line(page: Any) -> str:
    """What is drawn: the outlines of all lines."""
    return page.eval_on_selector_all("figure.curves .stage path", "all => all.map(one => one.getAttribute('d')).join('|')")


def test_from_the_form_to_the_end(new_page: NewPage, served: Served, accessible: Axe) -> None:
    page = opened(new_page(1600), served, "#/new")
    page.fill("#field-dataset", GRAPH)
    page.fill("#field-clients", "3")
    page.fill("#field-overrides", "round=5")
    press(page, "Start")
    page.wait_for_selector("#problem-overrides:visible")
    assert "rounds" in page.inner_text("#problem-overrides")  # what was probably meant
    assert page.evaluate("document.activeElement.id") == "field-overrides"
    assert page.get_attribute("#field-overrides", "aria-invalid") == "true"
    assert accessible(page) == []
    page.fill("#field-overrides", "rounds=100000")
    press(page, "Check")
    page.wait_for_selector(".preview code")
    press(page, "Start")
    page.wait_for_url(re.compile("#/run/"))

    until(page, "running")
    wait(page, lambda: points(page) > 3)
    page.wait_for_selector("figure.curves .stage svg path")
    before, drawn = points(page), path_of_line(page)
    wait(page, lambda: points(page) > before and path_of_line(page) != drawn)
    assert page.locator("figure.curves .stage svg").count() == 1  # changed, not drawn anew
    assert "left" in page.inner_text(".state .now")
    assert accessible(page) == []

    page.uncheck("figure.curves .legend input")
    wait(page, lambda: points(page) == 0)
    page.check("figure.curves .legend input")
    wait(page, lambda: points(page) > 3)

    press(page, "Stop after this round")
    until(page, "stopped")
    assert "Stopped after round" in page.inner_text(".state")
    press(page, "Resume")
    until(page, "running")
    press(page, "Stop after this round")
    until(page, "stopped")


def test_two_runs_side_by_side(new_page: NewPage, served: Served, accessible: Axe) -> None:
    page = opened(new_page(1600), served)
    page.wait_for_selector("tr[data-id]")
    assert page.get_by_role("button", name="Compare").is_disabled()
    page.check('input[aria-label="Choose one"]')
    page.check('input[aria-label="Choose both"]')
    press(page, "Compare 2")
    page.wait_for_selector("figure.curves .stage svg path")
    legend = page.inner_text("figure.curves .legend")
    assert "fedavg @ one" in legend and "fedavg @ both" in legend and "local" in legend
    assert page.locator("table tbody tr").count() == 3
    assert points(page) == 18
    assert accessible(page) == []


@pytest.mark.parametrize(("width", "dark"), [(380, False), (380, True), (1600, False), (1600, True)])
def test_every_view_fits(new_page: NewPage, served: Served, width: int, dark: bool, accessible: Axe) -> None:
    id = served.row("both")["id"]
    page = opened(new_page(width, dark=dark), served)
    for route, there in (("#/", "tr[data-id]"), ("#/new", "form"), (f"#/run/{id}", "figure.curves .stage svg path")):
        page.goto(f"{served.address}/{route}")
        page.wait_for_selector(there)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, route
        assert accessible(page) == [], route


def test_a_name_is_text(new_page: NewPage, served: Served) -> None:
    page = opened(new_page(), served)
    page.wait_for_selector("tr[data-id]")
    assert page.locator("tbody img").count() == 0
    row = page.locator("tr", has_text="<img src=x")
    assert "damaged" in row.inner_text()
    assert page.title() == "Suture"
    row.locator("a").click()
    until(page, "damaged")
    assert page.locator("main img").count() == 0 and page.locator("button:has-text('Resume')").count() == 0


def test_the_keyboard_alone(new_page: NewPage, served: Served) -> None:
    page = opened(new_page(), served)
    page.reload()
    page.wait_for_selector("tr[data-id]")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    names = []
    for _ in range(40):
        page.keyboard.press("Tab")
        names.append(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")
        )
        if names[-1] == "both":
            break
    assert "Choose both" in names and names[-1] == "both"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("#/run/"))
    page.wait_for_selector("h1:focus")
    assert page.inner_text("h1") == "both"


def test_a_report_opens_and_can_ask_nothing(new_page: NewPage, served: Served) -> None:
    id = served.row("both")["id"]
    page = opened(new_page(), served)
    page.goto(f"{served.address}/runs/{id}/report")
    page.wait_for_selector("h1")
    assert page.evaluate("self.origin") == "null"


def test_nobody_comes_in_without_the_token(new_page: NewPage, served: Served) -> None:
    page = new_page()
    answer = page.request.get(served.address)
    assert answer.status == 401 and "token" in answer.text()
