"""A real browser for pages: Chromium of the system's packages, driven by Playwright.

`page` fails a test whose page wrote an error to the console or threw one; `accessible` lets axe-core look at a page.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def _program() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in item.path.parts:
            item.add_marker("browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed; make test-browser does it")
    if (program := _program()) is None:
        pytest.skip("there is no Chromium; make test-browser installs it")
    with driver.sync_playwright() as playwright:
        # Containers mostly have no user namespaces, which Chromium's own sandbox needs.
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages of any size and theme; at the end of the test none of them may have complained."""
    complaints: list[str] = []
    opened: list[Any] = []

    def open_page(width: int = 1280, height: int = 900, dark: bool = False, **more: Any) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **more
        )
        page = context.new_page()
        page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        opened.append(context)
        return page

    yield open_page
    for context in opened:
        context.close()
    assert not complaints, complaints


@pytest.fixture
def page(new_page: Callable[..., Any]) -> Any:
    return new_page()


@pytest.fixture(scope="session")
def accessible() -> Callable[[Any], list[str]]:
    """The serious faults that axe-core finds in a page, each in a line."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed; make test-browser does it"
    )

    def serious(page: Any) -> list[str]:
        found = axe.Axe().run(page).response["violations"]
        return [
            f"{one['id']} ({one['impact']}): {one['help']}, {[node['html'][:120] for node in one['nodes'][:3]]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

    return serious
