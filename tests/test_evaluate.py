"""Evaluations: their returns, and what is said when a worker fails."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from fastr.core import EnvSpec, UserError
from fastr.envs import episode_seed, load
from fastr.envs.processes import WorkerError
from fastr.training.config import METHODS
from fastr.training.evaluate import Evaluator, compiled, rewards, template
from test_pool import eventually, gone

AGENT = METHODS["td3"].laptop()
TASK = "fault_envs:Spring-v0"


@pytest.fixture(scope="module")
def leaves():
    """A policy of ones: its actions are finite."""
    import jax

    shapes = jax.tree.leaves(template(AGENT, EnvSpec(2, 1)))
    return [np.ones(shape.shape, shape.dtype) for shape in shapes]


@pytest.fixture
def evaluator(monkeypatch):
    """A function that starts one whose environment has this fault at its 50th step."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "harness")
    started = []

    def start(kind: str, patience: float = 120.0, workers: int = 1) -> Evaluator:
        fault = {"kind": kind, "stream": "evaluate", "step": 50}
        monkeypatch.setenv("FASTR_FAULT", json.dumps(fault))
        options = {"workers": workers, "patience_seconds": patience}
        started.append(Evaluator(TASK, 1, AGENT, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_returns_are_those_of_the_episodes_alone(evaluator, leaves):
    one, counted = evaluator("none", workers=2), []
    half = [leaf / 2 for leaf in leaves]
    under_way = one.submit([leaves, half], [4, 7], range(5, 8))
    returns = under_way.returns(counted.append)
    assert under_way.done()
    assert sum(counted) == 6
    act, environment = compiled(AGENT, EnvSpec(2, 1)), load(TASK, 1)
    for seed, policy, row in zip([4, 7], [leaves, half], returns, strict=True):
        for episode, value in zip(range(5, 8), row, strict=True):
            number = episode_seed(seed, episode, "evaluate")
            total = 0.0
            for reward in rewards(environment, lambda state, p=policy: act(p, state), number):
                total += reward
            assert value == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        # Episodes have 40 steps: the 50th is the 10th of the second one, whose number is 6.
        ("exit", "seed 4 in episode 6 died: its process ended with exit code 7"),
        ("state", "seed 4 failed at agent step 10 of episode 6: the state is not .* number 1 is"),
    ],
)
def test_a_failed_evaluation_says_where_and_why(kind, says, evaluator, leaves):
    under_way = evaluator(kind).submit([leaves], [4], range(5, 8))
    with pytest.raises(WorkerError, match=f"The evaluation of {says}"):
        under_way.returns()


def test_a_stuck_evaluation_is_reported_and_ended(evaluator, leaves):
    one = evaluator("hang", patience=3.0)
    under_way = one.submit([leaves], [4], range(5, 8))
    start = time.monotonic()
    with pytest.raises(WorkerError, match=r"seed 4 in episode 6 was silent for 4\.0 seconds"):
        eventually(under_way.done)
    assert time.monotonic() - start < 30
    [worker] = one.workers
    one.close()
    assert gone(worker.process.pid or 0)


def test_a_worker_killed_before_it_has_work_is_noticed(evaluator, leaves):
    one = evaluator("none")
    one.wait_until_started()
    os.kill(one.workers[0].process.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="seed 4 died: it was killed by SIGKILL"):
        one.submit([leaves], [4], range(1)).returns()


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("toy_envs:FaultyStart-v0", "Gymnasium cannot make .*: no robot$"),
        ("toy_envs:Endless-v0", "toy_envs:Endless-v0 has no step limit"),
    ],
)
def test_a_worker_that_cannot_start_says_why(task, reason, capfd, leaves):
    with Evaluator(task, 1, AGENT, workers=1) as one:
        with pytest.raises(UserError, match=reason):
            one.wait_until_started()
        with pytest.raises(UserError, match=reason):
            one.submit([leaves], [4], range(1)).returns()
    assert capfd.readouterr().err == ""
