"""Pages in a real browser, opened from disk: what the tests of pages share."""

import os
import shutil

import pytest

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


@pytest.fixture
def visit(chromium):
    """A function that opens an address; at the end nothing else was fetched or went wrong."""
    asked, said, contexts, visited = [], [], [], set()

    def visit(address, **options):
        visited.add(address)
        context = chromium.new_context(viewport=DESK, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert {url for url in asked if not url.startswith("data:image/")} <= visited
    assert said == []


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def widths(page):
    return page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
