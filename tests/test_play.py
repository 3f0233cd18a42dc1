"""Films and windows: every seed its tile, labelled, and one sentence for what cannot be shown."""

import os
import re
import shutil
import subprocess
import sys
import warnings

import imageio_ffmpeg
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fastr
import toy_envs  # noqa: F401  (a run on a module's task is only played if that is imported)
from fastr import envs
from fastr.cli import run
from fastr.core import UserError
from fastr.export.screens import Film, check_film
from fastr.export.tiles import Strongest, Tile, canvas_size, drawn, grid, mosaic, tile_height
from saved_runs import SEEDS, save_run

TASK = "toy_envs:Cliff-v0"  # terminates after three frames


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "cliff"
    save_run(path, task=TASK)
    return path


def pictures(path):
    reader = imageio_ffmpeg.read_frames(str(path))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"os\.fork", category=RuntimeWarning)
        width, height = next(reader)["size"]
    return [np.frombuffer(data, np.uint8).reshape(height, width, 3) for data in reader]


def play(saved, *arguments):
    return run(["play", str(saved), "--height", "80", "--width", "100", *map(str, arguments)])


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_a_film_shows_every_seed(saved, tmp_path, capsys, ending):
    film = tmp_path / f"film.{ending}"
    assert play(saved, "--video", film, "--overlay", "return", "factors") == 0
    shown = pictures(film)
    # The first state and one after each of three agent steps.
    assert len(shown) == 4
    assert shown[0].shape[:2] == canvas_size(2, tile_height(80, bars=True), 100)
    # Rows 26 to 105 are the picture, white above black, once per seed.
    assert shown[0][45, 50].min() > 150
    assert shown[0][45, 156].min() > 150
    trained = fastr.load(saved)
    said = capsys.readouterr().out
    for one in trained.every_seed():
        environment = envs.load(TASK, 1)
        state, total = environment.reset(envs.episode_seed(one.seed, 0, "evaluate")), 0.0
        for _ in range(3):
            step = environment.step(one.act(state))
            state, total = step.next_state, total + step.reward
        assert f"seed {one.seed}: return {total:.1f}" in said


def test_seeds_are_chosen(saved, tmp_path, capsys):
    film = tmp_path / "one.mp4"
    assert play(saved, "--video", film, "--seeds", SEEDS[1]) == 0
    assert pictures(film)[0].shape[:2] == canvas_size(1, 80, 100)
    assert re.findall(r"seed (\d+)", capsys.readouterr().out) == [str(SEEDS[1])]


WRONG = {
    "ending": (["--video", "film.avi"], ".mp4 or .gif"),
    "directory": (["--video", "nowhere/film.mp4"], "no directory nowhere"),
    "closed": (["--video", "/proc/film.mp4"], "--video /proc/film.mp4 cannot be written: No such"),
    "both": (["--video", "film.mp4", "--window"], "either --video FILE"),
    "seed": (["--video", "film.mp4", "--seeds", "6"], "Seed 6 is not in"),
    "twice": (["--video", "film.mp4", "--seeds", "5", "5"], "names 5 twice"),
    "small": (["--video", "film.mp4", "--height", "20"], "at least 64 pixels"),
    "large": (["--video", "film.mp4", "--width", "3000"], "the limit is 2160 x 3840"),
    "overlay": (["--video", "film.mp4", "--overlay", "factor"], "factor"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_filmed_gets_one_sentence(
    saved, tmp_path, monkeypatch, refused, arguments, said
):
    monkeypatch.chdir(tmp_path)
    refused(["play", str(saved), *arguments], said)
    assert list(tmp_path.iterdir()) == []


ENDLESS = "toy_envs:Endless-v0"
WHOLE = {
    "train": [ENDLESS, "--preset", "quick", "--out", "new"],
    "resume": ["run"],
    "eval": ["run"],
    "bench": [ENDLESS, "--preset", "quick"],
    "play": ["run", "--video", "film.mp4"],
    "export": ["run", "--format", "safetensors", "--out", "new/policy"],
}


@pytest.mark.parametrize(("command", "arguments"), WHOLE.items(), ids=WHOLE.keys())
def test_what_may_never_end_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, refused, command, arguments
):
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "run", task=ENDLESS)
    refused([command, *arguments], f"{ENDLESS} has no step limit", "max_episode_steps")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_method_without_factors_says_so(tmp_path, capsys):
    save_run(tmp_path / "run", method="ctrl-sr", task=TASK)
    arguments = ["--video", str(tmp_path / "film.mp4"), "--overlay", "factors"]
    assert run(["play", str(tmp_path / "run"), *arguments]) == 2
    assert "ctrl-sr has none" in capsys.readouterr().err


def test_without_a_display_one_sentence_offers_a_film(saved, monkeypatch, refused):
    monkeypatch.delenv("DISPLAY", raising=False)
    refused(["play", str(saved), "--window"], "--video FILE")


WINDOW = """
import numpy as np
from fastr.export.screens import Window
with Window("test") as window:
    for shade in (10, 200):
        assert window.show(np.full((40, 60, 3), shade, np.uint8))
    assert (window.image.width(), window.image.height()) == (60, 40)
    assert window.image.get(5, 5) == (200, 200, 200)
    window.root.focus_force()
    window.root.update()
    window.root.event_generate("<Escape>")
    assert not window.show(np.zeros((40, 60, 3), np.uint8))
"""


@pytest.mark.skipif(shutil.which("xvfb-run") is None, reason="needs a display: apt install xvfb")
def test_a_window_shows_pictures_until_it_is_left():
    pytest.importorskip("tkinter")
    command = ["xvfb-run", "-a", sys.executable, "-c", WINDOW]
    subprocess.run(command, check=True, timeout=60)


# Tiles


def tile(shade, **changes):
    return Tile(np.full((80, 100, 3), shade, np.uint8), **({"label": "seed 1"} | changes))


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3)), (10, (3, 4))]
)
def test_tiles_are_laid_out_in_rows(count, shape):
    assert grid(count) == shape
    shades = [20 + 10 * i for i in range(count)]
    picture = mosaic([tile(shade, label="") for shade in shades], "")
    assert picture.shape[:2] == canvas_size(count, 80, 100)
    assert all(size % 2 == 0 for size in picture.shape[:2])
    middles = [
        picture[22 + 86 * (i // shape[1]) + 40, 6 + 106 * (i % shape[1]) + 50, 0]
        for i in range(count)
    ]
    assert middles == shades


def test_labels_and_notes_are_drawn_and_over_is_dimmed():
    blank = np.asarray(drawn(tile(100, label="")))
    assert np.ptp(blank) == 0
    labelled, noted = (
        np.asarray(drawn(one)) for one in (tile(100), tile(100, label="", note="return 3"))
    )
    assert (labelled[:25, :50] > 220).any()
    assert (labelled[:, 60:] == 100).all()
    assert (noted[:25, 50:] > 220).any()
    assert np.asarray(drawn(tile(100, over=True)))[-1, 0, 0] < 70


def test_bars_point_up_or_down_from_zero():
    image = np.asarray(drawn(tile(0, bars=((3, 1.0), (9, -1.0)))))
    assert image.shape == (tile_height(80, bars=True), 100, 3)
    above, below = image[80 + 4], image[80 + 12]
    assert above[28].tolist() == [86, 180, 233]
    assert below[72].tolist() == [230, 159, 0]
    assert above[72].tolist() == below[28].tolist()


@given(
    st.lists(
        hnp.arrays(np.float32, 10, elements=st.floats(-5, 5, width=32)), min_size=1, max_size=6
    )
)
def test_the_strongest_are_the_largest_and_keep_their_places(vectors):
    strongest = Strongest(4)
    before = []
    for vector in vectors:
        bars = strongest.update(vector)
        places = [index for index, _ in bars]
        assert len(set(places)) == 4
        rest = np.delete(np.abs(vector), places)
        assert np.abs(vector)[places].min() >= rest.max()
        assert all(new == old for new, old in zip(places, before, strict=False) if old in places)
        assert all(-1 <= value <= 1 for _, value in bars)
        before = places


def test_fewer_coordinates_than_places_are_all_shown():
    assert [index for index, _ in Strongest(8).update(np.array([1.0, -2.0]))] == [1, 0]


def test_one_episode_has_no_deviation(saved, capsys):
    assert run(["eval", str(saved), "--episodes", "1"]) == 0
    assert capsys.readouterr().out.count("one episode") == len(SEEDS)
    assert run(["eval", str(saved), "--episodes", "2"]) == 0
    assert "one episode" not in capsys.readouterr().out


def test_a_pipe_in_the_place_of_a_film_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "film.mp4")
    with pytest.raises(UserError, match=r"film\.mp4 cannot be written: it is a pipe or a device"):
        check_film(tmp_path / "film.mp4")


def test_trying_whether_a_film_can_be_written_changes_nothing(tmp_path):
    old, link = tmp_path / "old.mp4", tmp_path / "link.mp4"
    old.write_bytes(b"film")
    link.symlink_to(tmp_path / "new.mp4")
    for path in (old, link, tmp_path / "other.mp4"):
        check_film(path)
    assert sorted(tmp_path.iterdir()) == [link, old]
    assert old.read_bytes() == b"film"


def test_a_film_that_breaks_off_is_named_with_its_cause(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("[Errno 32] Broken pipe\n\nFFMPEG COMMAND:\nx\n\nFFMPEG STDERR OUTPUT:\n")

    monkeypatch.setattr(Film, "begun", broken)
    with pytest.raises(UserError, match=r"film\.mp4 cannot be written.*Broken pipe\)\.$"):
        Film(tmp_path / "film.mp4", lambda _: None).show(np.zeros((4, 4, 3), np.uint8))
