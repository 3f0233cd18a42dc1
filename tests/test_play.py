"""Films and the viewer: every seed a picture, and one sentence for what cannot be shown."""

import re
from unittest.mock import Mock

import imageio.v3 as iio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import toy_envs  # A run on a module's task is only played if that is imported.
from fastr import envs
from fastr.cli import run
from fastr.export.play import Strongest
from fastr.training.trained import load
from saved_runs import SEEDS, save_run

TASK = "toy_envs:Cliff-v0"  # terminates after three frames
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "cliff"
    save_run(path, task=TASK)
    return path


def play(saved, *arguments):
    return run(["play", str(saved), "--height", "80", "--width", "100", *map(str, arguments)])


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_a_film_shows_every_seed(saved, tmp_path, capsys, ending):
    film = tmp_path / f"film.{ending}"
    assert play(saved, "--video", film, "--overlay", "return", "factors") == 0
    # The first state and one after each of three agent steps; 30 rows of bars below each picture.
    shown = iio.imread(film)
    assert shown.shape == (4, 110, 200, 3)
    # The simulator draws white above black, the last picture is dimmed, in both tiles.
    for column in (50, 150):
        assert shown[0, 30, column].min() > 150
        assert shown[0, 60, column].max() < 60
        assert shown[3, 30, column].max() < shown[0, 30, column].min()
    said = capsys.readouterr().out
    for one in load(saved).every_seed():
        environment = envs.load(TASK, 1)
        state, total = environment.reset(envs.episode_seed(one.seed, 0, "evaluate")), 0.0
        for _ in range(3):
            step = environment.step(one.act(state))
            state, total = step.next_state, total + step.reward
        assert f"seed {one.seed}: return {total:.1f}" in said


def test_seeds_are_chosen(saved, tmp_path, capsys):
    film = tmp_path / "one.mp4"
    assert play(saved, "--video", film, "--seeds", SEEDS[1]) == 0
    assert iio.imread(film).shape[1:3] == (80, 100)
    assert re.findall(r"seed (\d+)", capsys.readouterr().out) == [str(SEEDS[1])]


WRONG = {
    "ending": (["--video", "film.avi"], ".mp4 or .gif"),
    "directory": (["--video", "nowhere/film.mp4"], "nowhere/film.mp4 cannot be written (No such"),
    "seed": (["--video", "film.mp4", "--seeds", "6"], "Seed 6 is not in"),
    "no display": ([], "There is no display for a viewer: write a film with --video FILE"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_shown_gets_one_sentence(
    saved, tmp_path, monkeypatch, refused, arguments, said
):
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    refused(["play", str(saved), *arguments], said)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_without_a_viewer_says_so(saved, monkeypatch, refused):
    monkeypatch.setenv("DISPLAY", ":0")
    refused(["play", str(saved)], f"{TASK} has no viewer of its own", "--video FILE")


def test_an_environment_without_render_says_so(saved, tmp_path, monkeypatch, refused):
    monkeypatch.setattr(toy_envs.Count, "render", Mock(side_effect=NotImplementedError))
    arguments = ["play", str(saved), "--video", str(tmp_path / "film.mp4")]
    refused(arguments, f"{TASK} cannot be drawn (NotImplementedError)", "docs/own-robot.md")


ENDLESS = "toy_envs:Endless-v0"
WHOLE = {
    "train": [ENDLESS, "--preset", "laptop", "--out", "new"],
    "resume": ["run"],
    "eval": ["run"],
    "bench": [ENDLESS, "--preset", "laptop"],
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
