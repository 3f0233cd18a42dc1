"""The pages of studies and diagnoses: names are text, nothing is fetched, they fit any screen."""

import io
from functools import partial

import pytest
from jinja2 import UndefinedError
from PIL import Image

from browsing import DESK, PHONE, background, widths
from fastr.report.pages.rendering import page
from fastr.studies.misfit.drawing import draw_misfits
from fastr.studies.misfit.page import page as misfit_page
from fastr.studies.theory.page import write_page
from fastr.studies.theory.report import Curve, Grid, Plot, Section, Verdict
from report_inputs import HOSTILE

MISFIT = {"value": 0.1, "low": 0.05, "high": 0.2}
PLOT = Plot("numbers", "a plot", "x", "y", (Curve("one", (1.0, 2.0), (3.0, 4.0)),))
SENTENCES = ("a misfit", f"expect {HOSTILE}")


def entry(name):
    """What a diagnosis knows of one dataset."""
    return {
        "name": name,
        "state_dim": 3,
        "action_dim": 1,
        "split": {"train": {"transitions": 1_000, "episodes": 10}},
        "parameters": {"cp": 4_239_530, "joint": 2_923_690},
        "test_losses": {"cp_nce": 1.5, "cp_moment": 0.25, "joint_nce": 1.4, "joint_moment": 0.2},
        "nce_misfit": MISFIT,
        "moment_misfit": MISFIT,
        "seeds": [{"nce_misfit": 0.1, "moment_misfit": 0.1}],
        "verdict": {"sentences": SENTENCES, "doubts": [f"few episodes in {name}"]},
    }


def diagnosis(folder):
    """A page on two datasets, one of whose names is no formula, either."""
    datasets = [entry(HOSTILE), entry(r"half a $\frac$")]
    draw_misfits(datasets, folder / "misfit.png")
    provenance = {"fastr": "0", "started": "today"}
    report = {"config": {"note": HOSTILE}, "datasets": datasets, "provenance": provenance}
    text = misfit_page(report | {"seconds": 1234.5}, [folder / "misfit.png"] * 3)
    (folder / "report.html").write_text(text)
    return folder / "report.html"


def study(folder):
    """A page on two claims, with a plot and a table wider than a phone."""
    verdicts = (Verdict(HOSTILE, "1 < 2", holds=True), Verdict("b", "c", holds=False))
    grid = Grid("a table", ("a long heading",) * 9, (("1.2345",) * 9,))
    sections = [Section(name, HOSTILE, (HOSTILE,), verdicts, (grid,), (PLOT,)) for name in "xy"]
    return write_page(sections, f"fastr theory {HOSTILE}", folder)


MADE = {"diagnosis": (diagnosis, 3), "study": (study, 2)}


@pytest.fixture(scope="module", params=MADE)
def made(request, tmp_path_factory):
    """The address of a page, and how many pictures it has."""
    make, pictures = MADE[request.param]
    return f"file://{make(tmp_path_factory.mktemp(request.param))}", pictures


@pytest.fixture
def opened(visit, made):
    """A function that opens the page."""
    return partial(visit, made[0])


def test_names_are_text_and_every_picture_is_there(opened, made):
    page = opened()
    assert page.evaluate("window.broken") is None
    sizes = page.locator("img").evaluate_all("all => all.map(image => image.naturalWidth)")
    assert len(sizes) == made[1]
    assert min(sizes) > 100
    assert all(page.locator("img").evaluate_all("all => all.map(image => image.alt.length > 5)"))
    assert page.get_by_role("heading", name=HOSTILE, exact=True).count() >= 1
    links = page.locator("nav a")
    assert links.count() == 2
    for link in links.all():
        assert page.locator(f"section{link.get_attribute('href')}").count() == 1


def test_no_scrolling_sideways_on_a_phone(opened):
    page = opened()
    for size in (PHONE, DESK):
        page.set_viewport_size(size)
        inner, outer = widths(page)
        assert inner <= outer == size["width"]


@pytest.mark.parametrize(("scheme", "paper"), [("light", (255,) * 3), ("dark", (20, 24, 29))])
def test_dark_and_light(opened, scheme, paper):
    page = opened(color_scheme=scheme)
    assert background(page) == f"rgb{paper}"
    shot = Image.open(io.BytesIO(page.locator("img").first.screenshot())).convert("RGB")
    # Pictures lie on the page itself, and their ink is the page's.
    assert shot.getpixel((2, 2)) == paper
    darkest, lightest = zip(*shot.getextrema(), strict=True)
    assert max(darkest) < 60
    assert min(lightest) > 200


def test_no_script_runs(chromium, made):
    """Not even one that had found its way into the page."""
    page = chromium.new_page()
    page.goto(made[0])
    inject = """text => document.body.append(
        Object.assign(document.createElement("script"), {textContent: text}))"""
    page.evaluate(inject, "window.broken = 1")
    assert page.evaluate("window.broken") is None
    page.close()


def test_what_a_diagnosis_says(tmp_path):
    text = diagnosis(tmp_path).read_text()
    assert "<p>a misfit</p>" in text
    assert r'<p class="doubt">few episodes in half a $\frac$</p>' in text
    losses = '<th scope="row">CP</th><td>1.5000</td><td>0.2500</td><td>4,239,530</td>'
    assert text.count(losses) == 2
    assert "<p>3 state and 1 action coordinates. Transitions in episodes: train 1,000 in 10" in text
    assert "Made by fastr 0 · today · 1,234 s" in text


def test_a_page_that_lacks_content_is_not_written():
    parts = [Section("x", "T", (), (), (), (PLOT,))]
    with pytest.raises(UndefinedError, match="pictures"):
        page("fastr.studies.theory", parts=parts, command="")
