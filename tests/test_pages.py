"""The page: names are text, nothing is fetched or run, it fits any screen, light and dark."""

import csv
import os
import re
import shutil

import pytest

from fastr.report.page import (
    Axes,
    Bar,
    Curve,
    Marker,
    Page,
    Section,
    curves,
    intervals,
    markers,
    write_page,
)
from fastr.report.table import Cell, Table
from report_inputs import HOSTILE

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
OPTIONS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
PHONE, DESK = {"width": 390, "height": 800}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def chromium():
    """The browser; without one the tests are skipped, or fail where it is required."""
    if BROWSER is None:
        if os.environ.get("FASTR_BROWSER") == "required":
            pytest.fail("chromium is not installed, and FASTR_BROWSER=required")
        pytest.skip("chromium is not installed (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield browser
        browser.close()


FIGURES = (
    curves(
        "curves",
        HOSTILE,
        [
            Curve(HOSTILE, [1, 10, 100], [1.0, 2.0, 3.0], [0.5] * 3, [4.0] * 3),
            Curve("_b", [1], [2]),
        ],
        Axes("size", "error", "log"),
        [("chance", 1.5)],
    ),
    intervals(
        "bars", "Estimates", [Bar(HOSTILE, 1.0, 0.5, 2.0), Bar("one seed", 2.0)], "nats", 0.0
    ),
    markers("points", "Gain", [Marker(HOSTILE, 0.1, 0.0, 0.2, -3.0, 6)], Axes("a", "b"), "dim A"),
)
TABLE = Table(
    "claims",
    f"Claims {HOSTILE}",
    ("claim", *["a long heading"] * 8),
    [
        [HOSTILE, 0.123456, 1_000_000, None, *["text"] * 4, Cell("holds", tone="good")],
        [Cell("b", bold=True, notes=(HOSTILE, "note")), 2.0, 3, *[""] * 6],
    ],
    [HOSTILE],
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    sections = [
        Section("x", HOSTILE, [HOSTILE], FIGURES, [TABLE], code=HOSTILE),
        Section("y", "Another", ["text"]),
    ]
    page = Page(HOSTILE, HOSTILE, sections, f"fastr {HOSTILE}", "fastr 0")
    write_page(page, folder / "index.html")
    return folder / "index.html"


@pytest.fixture
def opened(chromium, path):
    """A function that opens the page; at the end nothing else was fetched or went wrong."""
    asked, said, contexts = [], [], []

    def visit(**options):
        contexts.append(chromium.new_context(viewport=DESK, **options))
        page = contexts[-1].new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"file://{path}")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert {url for url in asked if not url.startswith("data:image/")} <= {f"file://{path}"}
    assert said == []


def test_every_figure_and_table_has_its_files(path):
    for figure in FIGURES:
        for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
            file = path.parent / "figures" / f"{figure.name}.{form}"
            assert file.read_bytes().startswith(start)
    with (path.parent / "figures" / "curves.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["curve", "size", "error", "low", "high"]
    assert rows[1][1:] == ["1", "1.0", "0.5", "4.0"]
    assert rows[-1] == ["chance", "", "1.5", "", ""]
    with (path.parent / "tables" / "claims.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[1][1:4] == ["0.123456", "1000000", ""]
    assert rows[2][-1] == f"{HOSTILE}; note"


def test_the_page_needs_nothing_else(path):
    text = path.read_text()
    assert "default-src 'none'" in text
    assert "script" not in re.sub("[Cc]ontent-[Ss]ecurity", "", text).lower()
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", text)
    # Light and dark: no colour of a picture is fixed but those of a colour map.
    assert not re.findall("(?:fill|stroke): #(?:000000|ffffff|0072b2)", text)


def test_names_are_text_and_figures_are_described(opened):
    page = opened()
    assert page.evaluate("window.broken") is None
    assert page.locator("img, script").count() == 0
    pictures = page.locator("figure svg")
    assert pictures.count() == len(FIGURES)
    for figure in page.locator("figure").all():
        assert len(figure.locator("[role=img]").get_attribute("aria-label")) > 30
        assert figure.locator("details tbody tr").count() > 0
    assert HOSTILE in pictures.first.locator("text").all_text_contents()
    assert page.get_by_role("heading", name=HOSTILE, exact=True).count() == 2
    for link in page.locator("nav a").all():
        assert page.locator(f"section{link.get_attribute('href')}").count() == 1


def test_no_script_runs(chromium, path):
    """Not even one that had found its way into the page."""
    page = chromium.new_page()
    page.goto(f"file://{path}")
    inject = """text => {
        document.body.append(Object.assign(document.createElement("script"), {textContent: text}));
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.broken=2'>");
    }"""
    page.evaluate(inject, "window.broken = 1")
    page.wait_for_timeout(100)
    assert page.evaluate("window.broken") is None
    page.close()
