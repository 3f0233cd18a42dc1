"""The report's page in a real browser, opened from disk."""

from functools import partial

import pytest

from browsing import DESK, PHONE, background, widths
from fastr.report.finals import labels
from fastr.report.page import page as page_text
from fastr.report.reading import read
from fastr.report.writing import Choices, sections
from report_inputs import HOSTILE, grid_of_runs

NAMED = f"[data-name='{HOSTILE}']"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    parts, numbers = sections(read([grid_of_runs(folder / "runs")]), Choices())
    text = page_text(parts, labels(numbers), f"fastr report {HOSTILE}", "fastr 0, today")
    (folder / "index.html").write_text(text)
    return f"file://{folder / 'index.html'}"


@pytest.fixture
def opened(visit, address):
    """A function that opens the page."""
    return partial(visit, address)


def test_every_chart_is_drawn_and_described(opened):
    page = opened()
    charts = page.locator("[data-chart]")
    page.wait_for_selector(".plot > svg")
    assert charts.count() == 8
    for i in range(charts.count()):
        drawing = charts.nth(i).locator(".plot > svg")
        assert drawing.count() == 1
        assert len(drawing.get_attribute("aria-label")) > 30
        assert charts.nth(i).locator("details table tbody tr").count() > 0
    assert "frames (simulator steps)" in charts.first.locator(".plot").text_content()


def test_a_name_is_text_and_runs_nothing(opened):
    page = opened()
    page.wait_for_selector(".plot > svg")
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert page.locator(f".legend button{NAMED}").first.inner_text() == HOSTILE
    assert page.get_by_role("heading", name=HOSTILE, exact=True).count() == 1


def test_no_other_script_runs(chromium, address):
    """Not even one that had found its way into the page."""
    page = chromium.new_page()
    page.goto(address)
    inject = """text => {
        document.body.append(Object.assign(document.createElement("script"), {textContent: text}));
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.broken=2'>");
    }"""
    page.evaluate(inject, "window.broken = 1")
    page.wait_for_timeout(100)
    assert page.evaluate("window.broken") is None
    page.close()


def test_the_legend_takes_a_method_out_of_every_chart(opened):
    page = opened()
    curves = page.locator(".plot path.curve[data-name='FaStR']")
    button = page.get_by_role("button", name="FaStR", exact=True).first
    page.wait_for_selector(".plot > svg")
    assert curves.count() == 1
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert curves.count() == 0
    assert page.locator(".plot path.curve[data-name='CTRL-SR']").count() == 1
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert curves.count() == 1


def test_the_table_sorts(opened):
    page = opened()
    table = page.locator("#returns table")
    heading = table.locator("th[aria-sort]", has_text="last 10 evaluations")
    values = "rows => rows.map(row => Number(row.cells[4].dataset.value))"

    def shown():
        return table.locator("tbody tr").evaluate_all(values)

    before = shown()
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert shown() == sorted(before, reverse=True)
    heading.get_by_role("button").press("Space")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert shown() == sorted(before)
    method = table.locator("th[aria-sort]", has_text="method")
    method.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "none"
    names = table.locator("tbody tr td:nth-child(2)").all_inner_texts()
    assert names.index("CTRL-SR") < names.index("FaStR") < names.index("TD3")
    # In Table 1 dashes stay below, whichever way the numbers run.
    walker = page.locator("#table1 th[aria-sort]", has_text="Walker Walk")
    column = "rows => rows.map(row => row.cells[4].textContent)"
    for _ in range(2):
        walker.get_by_role("button").click()
        assert page.locator("#table1 tbody tr").evaluate_all(column)[-1].strip() != "–"


def test_no_scrolling_sideways_on_a_phone(opened):
    page = opened()
    for size in (PHONE, DESK):
        page.set_viewport_size(size)
        page.wait_for_timeout(100)
        inner, outer = widths(page)
        assert inner <= outer == size["width"]
    page.set_viewport_size(PHONE)
    for details in page.locator("details summary").all():
        details.click()
    assert widths(page)[0] <= 390


def test_dark_and_light(opened):
    light, dark = opened(color_scheme="light"), opened(color_scheme="dark")
    assert background(light) == "rgb(255, 255, 255)"
    assert background(dark) == "rgb(20, 24, 29)"
    for wanted in ("rgb(255, 255, 255)", "rgb(20, 24, 29)", "rgb(255, 255, 255)"):
        light.get_by_role("button", name="Theme").click()
        assert background(light) == wanted
    assert "automatic" in light.get_by_role("button", name="Theme").inner_text()


def test_values_by_keyboard(opened):
    page = opened()
    plot = page.locator("[data-chart=curves-walker-walk] .plot")
    plot.focus()
    plot.press("End")
    said = plot.get_by_role("status").inner_text()
    assert "11,000 frames" in said
    assert "FaStR: 601 ± 0.5" in said
    plot.press("ArrowLeft")
    assert "10,000 frames" in plot.get_by_role("status").inner_text()
    plot.press("Escape")
    assert plot.get_by_role("status").inner_text() == ""


def test_without_scripts_the_numbers_are_there(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("#returns tbody tr").count() == 4
    assert "need JavaScript" in page.locator("noscript").inner_text()
