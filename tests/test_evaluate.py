"""Evaluations that go wrong: whatever happens to a worker, it is said, soon, and with its place."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from fastr.core import EnvSpec
from fastr.envs.pool import WorkerError
from fastr.training.evaluate import Evaluator
from fastr.training.methods import METHODS, quick
from fastr.training.policies import template
from test_pool import eventually, gone

AGENT = quick(METHODS["td3"])
TASK = "fault_envs:Spring-v0"


@pytest.fixture
def leaves():
    """A policy of ones: its actions are finite, which is all that is asked of them."""
    import jax

    shapes = jax.tree.leaves(template(AGENT, EnvSpec(2, 1)))
    return [np.ones(shape.shape, shape.dtype) for shape in shapes]


@pytest.fixture
def evaluator(monkeypatch):
    """A function that starts one whose environment has this fault at its 50th step."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "harness")
    started = []

    def start(kind: str, patience: float) -> Evaluator:
        fault = {"kind": kind, "stream": "evaluate", "step": 50}
        monkeypatch.setenv("FASTR_FAULT", json.dumps(fault))
        started.append(Evaluator(TASK, 1, AGENT, workers=1, patience_seconds=patience))
        return started[-1]

    yield start
    for one in started:
        one.close()


# Episodes have 40 steps: the 50th is the 10th of the second one, whose number is 6.
PLACE = "evaluation of seed 4 {} at agent step 10 of episode 6"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("exit", PLACE.format("died") + ": its process ended with exit code 7"),
        ("state", PLACE.format("failed") + ": the state is not finite: its number 1 is nan"),
    ],
)
def test_a_failed_evaluation_says_where_and_why(kind, says, evaluator, leaves):
    under_way = evaluator(kind, 120.0).submit([leaves], [4], range(5, 8))
    with pytest.raises(WorkerError, match=says):
        under_way.returns()


def test_a_stuck_evaluation_is_reported_and_ended(evaluator, leaves, monkeypatch):
    one = evaluator("hang", 3.0)
    one.ready[0].result()
    # The policy is compiled before the clock is looked at.
    one.submit([leaves], [4], range(1)).returns()
    under_way = one.submit([leaves], [4], range(6, 8))
    assert eventually(lambda: one.pulses.all()[0].step == 9)
    assert not under_way.done()
    # A pause of all processes, in which their clock goes on, makes none of them late.
    monkeypatch.setattr(time, "monotonic", lambda clock=time.monotonic: clock() + 1_000)
    assert not under_way.done()
    begun = time.monotonic()
    with pytest.raises(WorkerError, match=r"seed 4 was silent for [3-5]\.\d seconds at agent step"):
        eventually(under_way.done)
    assert time.monotonic() - begun < 30
    [process] = one.processes
    assert process.pid is not None
    one.close()
    assert eventually(lambda: gone(process.pid))


def test_a_worker_killed_from_outside_is_noticed_before_it_has_work(evaluator, leaves):
    one = evaluator("none", 120.0)
    os.kill(one.ready[0].result(), signal.SIGKILL)
    assert eventually(lambda: one.executor._broken)
    with pytest.raises(WorkerError, match="plays evaluations died: it was killed by SIGKILL"):
        one.submit([leaves], [4], range(1))


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("toy_envs:FaultyStart-v0", "Gymnasium cannot make .*: no robot\\.$"),
        ("toy_envs:Endless-v0", "toy_envs:Endless-v0 has no step limit"),
    ],
)
def test_a_worker_that_cannot_start_says_why(task, reason, capfd, leaves):
    said = f"A process that plays evaluations cannot start: {reason}"
    with Evaluator(task, 1, AGENT, workers=1) as one:
        with pytest.raises(WorkerError, match=said):
            one.wait_until_started()
        with pytest.raises(WorkerError, match=said):
            one.submit([leaves], [4], range(1)).returns()
    assert capfd.readouterr().err == ""
