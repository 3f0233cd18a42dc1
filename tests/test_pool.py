"""The pool of simulators: what it gives, and what it says when a worker fails."""

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fastr.core import EnvSpec, UserError
from fastr.envs import episode_seed, load
from fastr.envs.processes import EnvPool, Steps, WorkerError
from toy_envs import EPISODE, FAULTS

SEEDS = (3, 8)


def actions(pool: EnvPool, steps: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    shape = (steps, len(SEEDS), pool.spec.action_dim)
    return generator.uniform(-1, 1, shape).astype(np.float32)


def rollout(pool: EnvPool, taken: np.ndarray) -> list[Steps]:
    steps = []
    for action in taken:
        pool.send(action)
        steps.append(pool.receive())
    return steps


def bits(steps: list[Steps]) -> list[bytes]:
    return [array.tobytes() for step in steps for array in step]


def gone(process_id: int) -> bool:
    try:
        status = pathlib.Path(f"/proc/{process_id}/stat").read_text()
    except FileNotFoundError:
        return True
    # A container's first process may never reap: a zombie has ended too.
    return status.rpartition(")")[2].split()[0] == "Z"


def eventually(condition) -> bool:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def workers(pool: EnvPool) -> list[int]:
    return [worker.process.pid for worker in pool._workers]


@pytest.fixture(scope="module")
def cheetahs():
    with EnvPool("cheetah-run", 2, SEEDS) as pool:
        yield pool


@pytest.fixture(scope="module")
def counts():
    with EnvPool("toy_envs:Count-v0", 1, SEEDS) as pool:
        yield pool


# Steps and episodes


def test_a_pool_gives_what_each_environment_gives_alone(cheetahs):
    assert cheetahs.spec == EnvSpec(17, 6)
    states = cheetahs.reset([4, 5])
    taken = actions(cheetahs, 10)
    steps = rollout(cheetahs, taken)
    for i, (seed, episode) in enumerate(zip(SEEDS, [4, 5], strict=True)):
        alone = load("cheetah-run", 2)
        assert states[i].tobytes() == alone.reset(episode_seed(seed, episode, "train")).tobytes()
        for action, step in zip(taken[:, i], steps, strict=True):
            expected = alone.step(action)
            assert step.next_state[i].tobytes() == expected.next_state.tobytes()
            assert step.reward[i] == np.float32(expected.reward)


def test_restoring_equals_never_having_stopped(cheetahs):
    episodes, taken = [0, 2], actions(cheetahs, 20)
    cheetahs.reset(episodes)
    uninterrupted = rollout(cheetahs, taken)
    # Each environment is taken back to another point of its own episode.
    states = cheetahs.restore(episodes, [taken[:12, 0], taken[:7, 1]])
    np.testing.assert_array_equal(states[0], uninterrupted[11].state[0])
    np.testing.assert_array_equal(states[1], uninterrupted[6].state[1])
    with EnvPool("cheetah-run", 2, SEEDS) as another:
        another.restore(episodes, [taken[:10, 0], taken[:10, 1]])
        assert bits(rollout(another, taken[10:])) == bits(uninterrupted[10:])


def test_restoring_continues_into_the_next_episode(counts):
    taken = actions(counts, 10)
    counts.reset([5, 6])
    uninterrupted = rollout(counts, taken)
    # After six steps both are two steps into their second episode; a step in flight is dropped.
    counts.send(taken[0])
    counts.restore([6, 7], [taken[4:6, 0], taken[4:6, 1]])
    assert bits(rollout(counts, taken[6:])) == bits(uninterrupted[6:])


def test_an_episode_that_ends_early_when_restored_is_an_error():
    with (
        EnvPool("toy_envs:Count-v0", 1, SEEDS) as pool,
        pytest.raises(WorkerError, match=r"seed 3 .*episode 9 ended early"),
    ):
        pool.restore([9, 9], [np.zeros((EPISODE, 1), np.float32)] * 2)


def test_the_end_of_an_episode_keeps_its_real_last_state(counts):
    first = counts.reset([0, 0])
    *before, last = rollout(counts, np.ones((EPISODE, 2, 1), np.float32))
    assert not any(step.over.any() for step in before)
    for step in before:
        np.testing.assert_array_equal(step.state, step.next_state)
    assert last.over.all()
    np.testing.assert_array_equal(last.continues, [1, 1])  # truncated, so it could have gone on
    np.testing.assert_array_equal(last.next_state[:, 0], [EPISODE, EPISODE])
    np.testing.assert_array_equal(last.next_state[:, 1], first[:, 1])
    np.testing.assert_array_equal(last.state, counts.reset([1, 1]))
    assert (last.state[:, 1] != first[:, 1]).all()


def test_a_terminal_state_does_not_continue():
    with EnvPool("toy_envs:Cliff-v0", 1, SEEDS) as pool:
        pool.reset([0, 0])
        steps = rollout(pool, np.ones((4, 2, 1), np.float32))
    assert [step.continues.tolist() for step in steps] == [[1, 1], [1, 1], [0, 0], [1, 1]]
    assert [step.over.all() for step in steps] == [False, False, True, False]
    assert [step.next_state[0, 0] for step in steps] == [1, 2, 3, 1]


def test_awake_simulators_give_the_same_steps(counts):
    taken = actions(counts, 10)
    counts.reset([5, 6])
    with EnvPool("toy_envs:Count-v0", 1, SEEDS, awake_seconds=60.0) as awake:
        awake.reset([5, 6])
        assert bits(rollout(awake, taken)) == bits(rollout(counts, taken))
        processes = workers(awake)
    assert all(gone(process) for process in processes)


# Failures


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("exit", "seed 8 died: its process ended with exit code 7"),
        ("kill", "seed 8 died: it was killed by SIGKILL"),
        ("hang", r"seed 8 was silent for 1\.0 seconds"),
        ("raise", r"failed at STEP: ValueError: the wheel came off \(.*toy_envs.py, line \d+\)"),
        ("state", "seed 8 failed at STEP: the state is not finite: its number 1 is nan"),
        ("large", r"seed 8 failed at STEP: the reward is 1e\+300"),
    ],
)
def test_a_failed_worker_says_which_and_why(fault, says):
    patience = 1.0 if fault == "hang" else 60.0
    with EnvPool("toy_envs:Faulty-v0", 1, SEEDS, patience_seconds=patience) as pool:
        pool.reset([0, 0])
        rollout(pool, np.zeros((2, 2, 1), np.float32))
        pool.send(np.array([[0.0], [FAULTS.index(fault) / 10]], np.float32))
        with pytest.raises(WorkerError, match=says.replace("STEP", "agent step 3 of episode 0")):
            pool.receive()
        start, processes = time.monotonic(), workers(pool)
        pool.close()
        assert time.monotonic() - start < 5
        assert all(gone(process) for process in processes)


@pytest.mark.parametrize(
    ("task", "frame_skip", "error", "says"),
    [
        ("humanoid-wlak", 2, UserError, "Did you mean humanoid-walk"),
        ("cartpole-balance", 3, UserError, "does not divide"),
        ("toy_envs:DeadStart-v0", 1, WorkerError, "seed 3 died: .* exit code 3"),
    ],
)
def test_what_cannot_be_loaded_is_reported_at_the_start(task, frame_skip, error, says):
    before = set(multiprocessing.active_children())
    with pytest.raises(error, match=says):
        EnvPool(task, frame_skip, SEEDS)
    assert set(multiprocessing.active_children()) == before


# Processes


def test_workers_leave_interrupts_to_the_parent(counts):
    counts.reset([0, 0])
    for process in workers(counts):
        os.kill(process, signal.SIGINT)
        os.kill(process, signal.SIGTERM)  # a batch system's, to the whole group
    time.sleep(0.05)
    assert len(rollout(counts, actions(counts, 3))) == 3


def test_workers_are_light():
    import jax  # noqa: F401  The parent has it: the workers must not get it from there.

    before = os.environ.get("OMP_NUM_THREADS"), sys.modules["__main__"]
    with EnvPool("toy_envs:Process-v0", 1, SEEDS) as pool:
        has_jax, has_main, threads = pool.reset([0, 0])[0]
    assert (has_jax, has_main, threads) == (0, 0, 1)
    assert before == (os.environ.get("OMP_NUM_THREADS"), sys.modules["__main__"])


def blocks_interrupts(process_id: int) -> bool:
    """Whether the signals are blocked, as they must be from a worker's first instruction on."""
    status = pathlib.Path(f"/proc/{process_id}/status").read_text()
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk"))
    numbers = (signal.SIGINT, signal.SIGTERM)
    return all(int(blocked.split()[1], 16) >> (number - 1) & 1 for number in numbers)


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    # The script has no `if __name__ == "__main__"`: it must not run again in its workers.
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, time\n"
        "from fastr.envs.processes import EnvPool\n"
        "import numpy as np\n"
        "pool = EnvPool('toy_envs:Faulty-v0', 1, (0, 1))\n"
        "pool.reset([0, 0])\n"
        "pool.send(np.float32([[0.0], [0.3]]))\n"  # the second one hangs: see toy_envs.FAULTS
        "print(*[p.pid for p in multiprocessing.active_children()], flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    processes = [int(word) for word in parent.stdout.readline().split()]
    assert len(processes) == 2
    assert not any(gone(process) for process in processes)
    # Also the very first one that a process starts.
    assert all(blocks_interrupts(process) for process in processes)
    parent.kill()
    assert parent.communicate(timeout=10) == ("", "")
    assert eventually(lambda: all(gone(process) for process in processes))
