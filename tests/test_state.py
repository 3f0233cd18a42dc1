"""The state of a run, saved and restored without a simulator."""

from dataclasses import replace

import numpy as np
import pytest

from fastr.core import EnvSpec, UserError
from fastr.envs.processes import Steps
from fastr.runs.checkpoints import Checkpoint
from fastr.runs.directory import RunWriter
from fastr.training.config import to_json
from fastr.training.learner import Engine
from fastr.training.state import RunState, named_leaves
from test_train import tiny

CONFIG, SPEC, SEEDS = tiny(), EnvSpec(3, 1), 2
ACTOR = "learners.agent.actor.parameters.small"


@pytest.fixture(scope="module")
def engine():
    sizes = {"capacity": CONFIG.capacity, "random_steps": CONFIG.random_steps}
    return Engine(CONFIG.agent, SPEC, CONFIG.seeds, **sizes)


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def move(state: RunState, steps: int) -> None:
    """Take so many agent steps, in environments that are made up."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        if state.next_step == 0:
            state.states = drawn(rng, SEEDS, 3)
        else:
            state.hand_over(1)
        reward, next_state = drawn(rng, SEEDS), drawn(rng, SEEDS, 3)
        over, ones = np.zeros(SEEDS, bool), np.ones(SEEDS, np.float32)
        state.add(drawn(rng, SEEDS, 1), Steps(reward, next_state, ones, over, next_state))
        state.next_step += 1


@pytest.fixture(scope="module")
def saved(engine, tmp_path_factory):
    """A run's state, and the second checkpoint of it."""
    state = RunState.start(CONFIG, engine)
    path = tmp_path_factory.mktemp("runs") / "run"
    with RunWriter.create(path, {"train": to_json(CONFIG), "provenance": {}}) as run:
        for steps in (5, 3):
            move(state, steps)
            state.next_episode(1)
            run.begin_save(state.snapshot(evaluating=False), keep=1)
        run.finish_save()
        return state, run.latest()


def test_a_restored_state_equals_the_saved_one(engine, saved):
    state, checkpoint = saved
    again = RunState.start(CONFIG, engine)
    again.restore(checkpoint)
    leaves = named_leaves(state.cohort.tree)
    for name, leaf in named_leaves(again.cohort.tree).items():
        np.testing.assert_array_equal(leaf, leaves[name], err_msg=name)
    for name in ("next_step", "episodes", "returns"):
        assert getattr(again, name) == getattr(state, name), name
    for ours, theirs in ((again.rows, state.rows), (again.states, state.states)):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(again.episode_actions(), state.episode_actions(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [len(actions) for actions in again.actions] == [8, 0]


def test_a_snapshot_has_the_rows_since_the_last_one(engine, saved):
    again = RunState.start(CONFIG, engine)
    again.restore(saved[1])
    move(again, 4)
    snapshot = again.snapshot(evaluating=False)
    # Of twelve transitions the last one is still on its way to the device.
    assert (snapshot.added.start, snapshot.added.end) == (7, 11)


def test_interruptions_do_not_count_as_time(engine, saved):
    again = RunState.start(CONFIG, engine)
    again.restore(replace(saved[1], host=saved[1].host | {"seconds": 1_000.0}))
    assert 1_000 <= again.seconds < 1_060


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (ACTOR, lambda array: array[:, :-1]),
        (ACTOR, lambda array: array.astype(np.float64)),
        ("pending_rows", lambda array: array[:1]),
        ("pending_states", lambda array: array[:, :-1]),
        ("episode_actions.0", lambda array: np.tile(array, 2)),
    ],
)
def test_arrays_of_another_run_are_refused(engine, saved, monkeypatch, name, change):
    arrays = saved[1].arrays()
    changed = arrays | {name: change(arrays[name])}
    lacking = {other: array for other, array in arrays.items() if other != name}
    for wrong in (changed, lacking):
        monkeypatch.setattr(Checkpoint, "arrays", lambda _, wrong=wrong: wrong)
        with pytest.raises(UserError, match=f"{name} does not fit this run"):
            RunState.start(CONFIG, engine).restore(saved[1])


@pytest.mark.parametrize("shape", [(1, SPEC.row_dim), (SEEDS, SPEC.row_dim + 1)])
def test_transitions_of_another_run_are_refused(engine, saved, shape):
    with pytest.raises(UserError, match="replay does not fit this run"):
        RunState.start(CONFIG, engine).restore(replace(saved[1], seeds=shape[0], row_dim=shape[1]))


def test_more_transitions_than_a_run_keeps_are_refused(engine, saved):
    small = replace(CONFIG, replay_capacity=6)
    assert small.capacity < 7
    with pytest.raises(UserError, match="replay does not fit this run"):
        RunState.start(small, engine).restore(saved[1])
