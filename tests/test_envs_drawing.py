"""Drawing, and what importing and loading environments costs a process."""

import ctypes.util
import os
import subprocess
import sys

import pytest

from fastr.core import UserError
from fastr.envs import load


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    path = os.pathsep.join(filter(None, [os.path.dirname(__file__), inherited.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | {"PYTHONPATH": path} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_importing_is_cheap_and_loading_is_quiet():
    found = run_python(
        "import sys, os, fastr.envs, fastr.envs.pool\n"
        "print([m for m in ('jax','dm_control','mujoco','gymnasium') if m in sys.modules])\n"
        "fastr.envs.load('cheetah-run', 1).step\n"
        "print('jax' in sys.modules, os.environ.get('MUJOCO_GL'))"
    )
    assert found.stdout.split("\n")[:2] == ["[]", "False None"]
    assert found.stderr == ""


DRAW = """
import sys
from fastr import envs
from fastr.core import UserError
for task in sys.argv[1:] or ["quadruped-escape", "gym:HalfCheetah-v5"]:
    try:
        environment = envs.load(task, 1, render_mode="rgb_array")
        environment.reset(0)
        image = environment.frame(600, 700)
        print(image.shape, image.dtype, image.std() > 5)
        environment.close()
    except UserError as error:
        print(error)
"""


def test_frames_are_drawn_without_a_screen():
    found = run_python(DRAW)
    lines = found.stdout.splitlines()
    assert len(lines) == 2, found.stderr
    if ctypes.util.find_library("EGL"):
        assert lines == ["(600, 700, 3) uint8 True"] * 2
    else:
        assert all("libegl1 libgl1" in line for line in lines)


def test_a_failure_to_draw_names_the_fix():
    found = run_python(DRAW, MUJOCO_GL="nonsense")
    assert found.stdout.count("apt-get install libegl1 libgl1) and set MUJOCO_GL=egl") == 1
    assert found.stdout.splitlines()[0].startswith("quadruped-escape cannot be drawn (")
    assert "Traceback" not in found.stderr


def test_a_process_without_a_renderer_says_so(monkeypatch):
    load("pendulum-swingup", 1)
    from dm_control import _render

    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(_render, "BACKEND", "disable")
    with pytest.raises(UserError, match="in a new process"):
        load("pendulum-swingup", 1, render_mode="rgb_array")


def test_gym_frames_have_the_size_asked_for():
    environment = load("toy_envs:Count-v0", 1, render_mode="rgb_array")
    environment.reset(0)
    image = environment.frame(24, 16)
    assert image.shape == (24, 16, 3)
    # Drawn 6 x 8, white above black: twice as large, in the middle, not stretched.
    assert (image[:6] == 0).all()
    assert (image[6:11] == 200).all()
    assert (image[13:] == 0).all()
    with pytest.raises(UserError, match="the limit is 1080 x 1920"):
        environment.frame(5_000, 4)


def test_frames_must_be_asked_for_at_load():
    with pytest.raises(RuntimeError, match="render_mode"):
        load("toy_envs:Count-v0", 1).frame(8, 8)
