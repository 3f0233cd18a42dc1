"""The tools behind the documentation's site."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


def test_pictures_are_what_the_script_draws():
    from pictures import FOLDER, PICTURES

    assert {path.name for path in FOLDER.iterdir()} == PICTURES.keys()
    for name, draw in PICTURES.items():
        assert (FOLDER / name).read_text() == draw().svg(), "run python tools/pictures.py"


def site(folder: Path, body: str) -> list[str]:
    from check_links import problems

    (folder / "other.html").write_text('<h1 id="top">Other</h1>')
    (folder / "index.html").write_text(body)
    return problems(folder)


def test_sound_links_pass(tmp_path):
    links = '<a href="other.html#top">x</a><a href="#here">x</a><p id="here">'
    outside = '<a href="https://example.org/a?b#c">x</a><img src="data:image/png;base64,AAAA">'
    assert site(tmp_path, links + outside) == []


@pytest.mark.parametrize(
    "body",
    [
        '<a href="nowhere.html">x</a>',
        '<a href="other.html#bottom">x</a>',
        '<a href="https://localhost-without-a-dot/">x</a>',
        '<script src="https://example.org/a.js"></script>',
    ],
)
def test_broken_links_and_loads_from_elsewhere_are_named(body, tmp_path):
    assert len(site(tmp_path, body)) == 1
