"""A run as a whole: counters, rows, and that stopping leaves no trace in the result."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from checkpointing import replay_of
from fastr.cli import run
from fastr.cli.training import ANSWER, rows_of_all
from fastr.core import EnvSpec, RunError, StoppedError
from fastr.envs.processes import EnvPool
from fastr.runs import RunDirectory, RunWriter, checkpoints
from fastr.training import replay as ring
from fastr.training.config import TrainConfig, from_json, preset, to_json
from fastr.training.learner import Engine, held
from fastr.training.loop import Trainer, simulators, train
from fastr.training.state import named_leaves, with_leaves
from test_pool import eventually, gone

HERE, INHERITED = os.path.dirname(__file__), os.environ.get("PYTHONPATH")
PATHS = os.pathsep.join(filter(None, [HERE, INHERITED]))
"""Where a process of its own finds this file, and the fastr that is tested here."""


def tiny(task: str = "gym:Pendulum-v1", **changes) -> TrainConfig:
    config = preset(task, "fastr", "laptop")
    representation = replace(
        config.agent.representation,
        feature_dim=8,
        hidden_dim=8,
        noise_levels=2,
        fourier_dim=8,
        head_dim=8,
    )
    agent = replace(config.agent, representation=representation, batch_size=16, actor_dim=8)
    protocol = {
        "seeds": (3, 7),
        "frames": 500,
        "random_frames": 100,
        "eval_frames": 250,
        "eval_episodes": 2,
        "checkpoint_frames": 150,
        "block_steps": 1,
    }
    return replace(config, agent=agent, **(protocol | changes))


def start(config: TrainConfig, path) -> RunWriter:
    return RunWriter.create(path, {"train": to_json(config), "provenance": {}})


def identity(row: dict) -> str:
    return json.dumps({name: value for name, value in row.items() if name != "seconds"})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    with start(tiny(), path) as writer:
        train(tiny(), writer)
    return RunDirectory.open(path)


class Killed(BaseException):
    """As good as a SIGKILL: nothing of ours catches it."""


def kill_at(frames: int):
    def listen(row: dict) -> None:
        if row["frames"] >= frames:
            raise Killed

    return listen


def resume(path) -> None:
    run, checkpoint = RunWriter.resume(path)
    with run:
        train(from_json(run.config["train"]), run, checkpoint)


def assert_same_end(path, whole: RunDirectory) -> None:
    ended = RunDirectory.open(path)
    ours, theirs = ended.latest(), whole.latest()
    assert ours.frames == theirs.frames == 500
    expected = theirs.arrays()
    assert ours.arrays().keys() == expected.keys()
    for name, array in ours.arrays().items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    np.testing.assert_array_equal(replay_of(ours)[1], replay_of(theirs)[1])
    found = sorted(identity(row) for row in ended.rows())
    assert found == sorted(identity(row) for row in whole.rows())


def test_rows_hold_what_the_protocol_promises(uninterrupted):
    rows = uninterrupted.rows()
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    assert [(row["frames"], row["seed"]) for row in evaluations] == [
        (frames, seed) for frames in (0, 250, 500) for seed in (3, 7)
    ]
    assert all(row["return"] == pytest.approx(np.mean(row["returns"])) for row in evaluations)
    # Frame 250 is agent step 125, the 126th; the first update came at step 50.
    counters = {(row["agent_steps"], row["updates"]) for row in evaluations}
    assert counters == {(1, 0), (126, 76), (251, 201)}
    # Pendulum's episodes last 200 frames and pay between -16.3 and 0 a frame.
    episodes = [row for row in rows if row["kind"] == "episode"]
    assert [(row["frames"], row["seed"]) for row in episodes] == [
        (frames, seed) for frames in (200, 400) for seed in (3, 7)
    ]
    assert all(-3_260 < row["return"] < 0 for row in episodes)
    assert all(row["agent_steps_in_episode"] == 100 for row in episodes)
    assert all(row["nce_loss"] > 0 for row in episodes)
    text = (uninterrupted.path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in text] == rows


def test_counters_on_the_device(uninterrupted):
    arrays = uninterrupted.latest().arrays()
    # 251 agent steps; the last transition is still on its way; updates from step 50 on.
    assert (arrays["steps"], arrays["updates"]) == (250, 201)
    np.testing.assert_array_equal(arrays["learners.moments.count"], [250, 250])


def test_replay_holds_the_episodes_as_they_happened(uninterrupted):
    _, rows = replay_of(uninterrupted.latest())
    states, next_states = rows[..., :3], rows[..., 4:7]
    follows = np.all(states[1:] == next_states[:-1], axis=-1)
    # Every state is the next state of the row before, but for the first of an episode: the next
    # state of a truncated episode is its real last one.
    assert [list(np.flatnonzero(~follows[:, seed])) for seed in (0, 1)] == [[99, 199]] * 2
    assert np.all(rows[..., -1] == 1.0)


def test_seeds_differ_in_everything_random(uninterrupted):
    checkpoint = uninterrupted.latest()
    _, rows = replay_of(checkpoint)
    assert not np.any(np.all(rows[:, 0] == rows[:, 1], axis=-1))
    parameters = checkpoint.arrays()["learners.agent.actor.parameters.small"]
    assert np.mean(parameters[0] == parameters[1]) < 0.2


def test_stopped_and_resumed_equals_uninterrupted(tmp_path, uninterrupted):
    path = tmp_path / "stopped"
    calls = iter(range(10_000))
    with start(tiny(), path) as writer:
        train(tiny(), writer, stopped=lambda: next(calls) == 121)
    assert RunDirectory.open(path).latest().frames == 240
    resume(path)
    assert_same_end(path, uninterrupted)


SMALL = {
    "td7": {"embedding_dim": 8, "hidden_dim": 8, "target_updates": 20},
    "sac": {"hidden_dim": 8, "hidden_layers": 1},
    "td3": {"hidden_dim": 8},
    "diff-sr": {},
}


@pytest.mark.parametrize(
    "method",
    ["td7", "sac", *(pytest.param(name, marks=pytest.mark.slow) for name in ("td3", "diff-sr"))],
)
def test_every_method_resumes_bit_for_bit(method, tmp_path, monkeypatch):
    """TD7 with its priorities, copies and kept policies among them; the replay has begun anew.

    And the last frame is evaluated, wherever the evaluations before it fell.
    """
    # 25 agent steps of two seeds: many slices, some cut off by the ring's end.
    monkeypatch.setattr(ring, "SLICE_BYTES", 25 * 2 * EnvSpec(3, 1).row_dim * 4)
    config = preset("gym:Pendulum-v1", method, "laptop")
    agent = replace(config.agent, batch_size=16, **SMALL[method])
    config = replace(tiny(replay_capacity=96, eval_frames=400), method=method, agent=agent)
    with start(config, tmp_path / "whole") as writer:
        train(config, writer)
    with pytest.raises(Killed), start(config, tmp_path / "killed") as writer:
        train(config, writer, listeners=(kill_at(400),))
    resume(tmp_path / "killed")
    whole = RunDirectory.open(tmp_path / "whole")
    assert_same_end(tmp_path / "killed", whole)
    evaluations = [row for row in whole.rows() if row["kind"] == "evaluation"]
    assert [row["frames"] for row in evaluations] == [0, 0, 400, 400, 500, 500]
    assert config.evaluations == 3
    assert evaluations[-1]["critic_loss"] is not None


@pytest.mark.parametrize("frames", [250, 300])
def test_extended_equals_planned(frames, tmp_path, uninterrupted):
    """Apart from the evaluation at the first end, where the longer run has none."""
    path, config = tmp_path / "short", tiny(frames=frames)
    with start(config, path) as writer:
        train(config, writer)
    assert run(["resume", str(path), "--frames", "500"]) == 0
    rows = [json.loads(line) for line in (path / "rows.jsonl").read_text().splitlines()]
    kept = [row for row in rows if row["kind"] == "episode" or row["frames"] % 250 == 0]
    assert len(rows) - len(kept) == (2 if frames % 250 else 0)
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert_same_end(path, uninterrupted)


def test_a_run_with_priorities_is_extended(tmp_path):
    config = preset("gym:Pendulum-v1", "td7", "laptop")
    agent = replace(config.agent, batch_size=16, **SMALL["td7"])
    long, short = (
        replace(tiny(frames=frames, seeds=(3,)), method="td7", agent=agent) for frames in (500, 200)
    )
    for name, config in (("long", long), ("short", short)):
        with start(config, tmp_path / name) as writer:
            train(config, writer)
    assert run(["resume", str(tmp_path / "short"), "--frames", "500"]) == 0
    ours, theirs = (RunDirectory.open(tmp_path / name).latest() for name in ("short", "long"))
    priorities = "learners.replay.priorities"
    np.testing.assert_allclose(ours.arrays()[priorities], theirs.arrays()[priorities], rtol=1e-5)


def test_a_budget_does_not_shrink(tmp_path, refused):
    with start(tiny(), tmp_path / "run"):
        pass
    refused(["resume", str(tmp_path / "run"), "--frames", "500"], "must be larger")


def test_killed_and_resumed_equals_uninterrupted(tmp_path, uninterrupted):
    path = tmp_path / "killed"
    with pytest.raises(Killed), start(tiny(), path) as writer:
        train(tiny(), writer, listeners=(kill_at(400),))
    assert RunDirectory.open(path).latest().frames == 300
    resume(path)
    assert_same_end(path, uninterrupted)


def counters(run: RunDirectory) -> list[tuple]:
    names = ("kind", "seed", "frames", "updates")
    return sorted(tuple(row[name] for name in names) for row in run.rows())


def test_blocks_take_the_same_steps_and_resume_bit_for_bit(tmp_path, uninterrupted):
    """Stopped between two checkpoints, and killed in the middle of a block."""
    config = tiny(block_steps=12)
    with start(config, tmp_path / "whole") as writer:
        train(config, writer)
    whole = RunDirectory.open(tmp_path / "whole")
    assert counters(whole) == counters(uninterrupted)
    calls = iter(range(10_000))
    with start(config, tmp_path / "stopped") as writer:
        train(config, writer, stopped=lambda: next(calls) == 14)
    resume(tmp_path / "stopped")
    with pytest.raises(Killed), start(config, tmp_path / "killed") as writer:
        train(config, writer, listeners=(kill_at(400),))
    resume(tmp_path / "killed")
    for name in ("stopped", "killed"):
        assert_same_end(tmp_path / name, whole)


def test_a_checkpoint_is_of_its_moment_however_late_it_is_written(
    tmp_path, uninterrupted, monkeypatch
):
    """Training goes on in the same memory while the checkpoint waits for a slow disk."""

    def slowly(*arguments, write=checkpoints.write_checkpoint, **options):
        time.sleep(0.3)
        return write(*arguments, **options)

    under_way, fetch = [], ring.fetched

    def watching(*arguments):
        under_way.append(writer.saving)
        return fetch(*arguments)

    monkeypatch.setattr(checkpoints, "write_checkpoint", slowly)
    monkeypatch.setattr(ring, "fetched", watching)
    path = tmp_path / "late"
    with pytest.raises(Killed), start(tiny(), path) as writer:
        train(tiny(), writer, listeners=(kill_at(400),))
    # The host never holds the transitions of two checkpoints.
    assert under_way == [None, None]
    resume(path)
    assert_same_end(path, uninterrupted)


def test_a_task_that_does_not_repeat_itself_is_not_continued(tmp_path, uninterrupted, monkeypatch):
    shutil.copytree(uninterrupted.path, tmp_path / "run")

    def elsewhere(*arguments, restore=EnvPool.restore):
        return restore(*arguments) + np.float32(1e-6)

    monkeypatch.setattr(EnvPool, "restore", elsewhere)
    with pytest.raises(RunError, match="Pendulum-v1 is not deterministic"):
        resume(tmp_path / "run")


def test_killed_before_the_first_checkpoint_starts_again(tmp_path, uninterrupted):
    path = tmp_path / "early"
    with pytest.raises(Killed), start(tiny(), path) as writer:
        train(tiny(), writer, listeners=(kill_at(0),))
    resume(path)
    assert_same_end(path, uninterrupted)


def test_a_last_checkpoint_means_that_the_last_evaluation_is_recorded(tmp_path, uninterrupted):
    """Killed between the two, a run would look finished and lack its most important rows."""
    config = tiny(checkpoint_frames=250)
    path = tmp_path / "late"
    with pytest.raises(Killed), start(config, path) as writer:
        train(config, writer, listeners=(kill_at(500),))
    assert RunDirectory.open(path).latest().frames == 250
    resume(path)
    assert_same_end(path, uninterrupted)


def test_sigkill_of_the_whole_process_loses_nothing(tmp_path, uninterrupted):
    path = tmp_path / "sigkill"
    with start(tiny(), path):
        pass
    code = f"import test_train; test_train.resume({str(path)!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": PATHS},
    )
    deadline = time.monotonic() + 240
    while not list(path.glob("checkpoints/0*")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    resume(path)
    assert_same_end(path, uninterrupted)


def test_terminations_reach_the_replay(tmp_path):
    config = tiny("gym:InvertedPendulum-v5", frames=200, eval_frames=200, checkpoint_frames=0)
    path = tmp_path / "gym"
    with start(config, path) as writer:
        train(config, writer)
    rows = replay_of(RunDirectory.open(path).latest())[1]
    fallen = 1.0 - rows[..., -1]
    assert 0 < fallen.sum() < 0.5 * fallen.size
    ends = np.argwhere(fallen)
    # The pendulum has fallen where |angle| > 0.2: the next state says so, the state does not.
    assert all(abs(rows[i, seed, 6]) > 0.2 >= abs(rows[i, seed, 1]) for i, seed in ends)


def test_a_loss_that_turns_non_finite_stops_the_run(tmp_path):
    config = tiny(frames=1_200, eval_frames=1_200)
    agent = replace(config.agent, critic_learning_rate=1e30)
    config = replace(config, agent=agent)
    path = tmp_path / "broken"
    with pytest.raises(RunError) as failure, start(config, path) as writer:
        train(config, writer)
    message = str(failure.value)
    assert "Seed 3" in message
    assert "since update" in message
    assert str(path) in message


def poisoned(monkeypatch, name: str, value: float, frames: int) -> None:
    """Let the second seed's arrays of one name hold this value from an agent step on."""
    finish = Trainer.finish_update

    def spoil(trainer: Trainer) -> None:
        finish(trainer)
        if (trainer.state.next_step - 1) * trainer.config.frame_skip == frames:
            leaf = np.array(named_leaves(trainer.state.cohort.tree)[name])
            leaf[1] = value
            leaves = named_leaves(trainer.state.cohort.tree) | {name: leaf}
            trainer.state.cohort = held(with_leaves(trainer.state.cohort.tree, leaves))

    monkeypatch.setattr(Trainer, "finish_update", spoil)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("learners.broken_at", 99, r"a loss is not finite since update 99 \(frame 298\)"),
        ("learners.agent.actor.parameters.small", np.inf, r"actor.* is not finite at frame 300"),
        ("learners.agent.critics.moments.0.nu.small", np.nan, r"nu.* is not finite at frame 300"),
    ],
)
def test_nothing_broken_is_ever_saved(tmp_path, monkeypatch, name, value, says):
    """Not even if it broke in the very step of the checkpoint, with losses finite until then."""
    poisoned(monkeypatch, name, value, frames=300)
    with start(tiny(), tmp_path / "run") as writer:
        with pytest.raises(RunError, match=f"Seed 7: .*{says}; .* checkpoint is 000000150 in"):
            train(tiny(), writer)
        assert writer.latest().frames == 150


@pytest.mark.parametrize("method", ["fastr", "ctrl-sr", "diff-sr", "sac", "td3", "td7"])
def test_no_program_changes_the_types_of_what_the_others_are_compiled_for(method):
    spec = EnvSpec(3, 1)
    agent = preset("", method, "laptop").agent
    engine = Engine(agent, spec, (3, 7), capacity=64, random_steps=1)
    start = jax.eval_shape(engine.init)
    arrived = np.zeros((2, spec.row_dim + spec.state_dim), np.float32)
    returns, over = np.zeros(2, np.float32), np.zeros(2, bool)
    for after in (
        jax.eval_shape(lambda cohort: engine.interact(cohort, arrived, 1), start)[0],
        jax.eval_shape(lambda cohort: engine.improve(cohort, engine.no_metrics(), 1), start)[0],
        jax.eval_shape(engine.end_episodes, start, returns, over),
    ):
        assert types(after) == types(start)


def types(tree) -> list[tuple]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(str(path), leaf.shape, leaf.dtype, leaf.weak_type) for path, leaf in leaves]


@pytest.mark.parametrize(
    ("backend", "cores", "awake"),
    [("gpu", 16, True), ("gpu", 12, True), ("gpu", 11, False), ("cpu", 16, False)],
)
def test_simulators_stay_awake_only_where_cores_are_idle(monkeypatch, backend, cores, awake):
    made = Mock(return_value=Mock(spec=EnvPool))
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr("fastr.training.loop.usable_cores", lambda: cores)
    monkeypatch.setattr("fastr.training.loop.EnvPool", made)
    simulators(tiny(seeds=tuple(range(5))))
    assert (made.call_args.kwargs["awake_seconds"] > 0) == awake


def test_seeds_share_out_over_devices():
    code = """
import jax, numpy as np
from dataclasses import replace
from test_train import tiny
from fastr.training import replay as ring
from fastr.training.learner import Engine
from fastr.core import EnvSpec
agent, spec = tiny().agent, EnvSpec(3, 1)
engine = Engine(agent, spec, (3, 7), capacity=64, random_steps=0)
cohort = engine.init()
rows = np.random.default_rng(0).standard_normal((20, 2, spec.row_dim + 3), np.float32)
for row in rows:
    cohort, actions, _ = engine.interact(cohort, row, 1)
metrics = engine.no_metrics()
for _ in range(3):
    cohort, metrics = engine.improve(cohort, metrics, 1)
parameters = cohort.tree.learners.agent.critics.parameters.small
program = engine.update.lower(*engine.improved(cohort, metrics, 1)).compile().as_text()
print(len(parameters.sharding.device_set), engine.update._cache_size())
print(sum(word in program for word in ("all-reduce(", "all-gather(", "collective-permute(")))
ring.SLICE_BYTES = 7 * 2 * spec.row_dim * 4
held = ring.fetched(cohort.tree.learners.replay.rows, 0, 20)
print(np.array_equal(held, rows[:, :, : spec.row_dim]))
around = ring.written(cohort.tree.learners.replay.rows, 60, held)
print(around.sharding == engine.sharding and np.array_equal(ring.fetched(around, 60, 80), held))
print(np.asarray(actions).tobytes().hex())
print(np.asarray(parameters).tobytes().hex())
"""
    outputs, flags = [], os.environ.get("XLA_FLAGS", "")
    for devices in (1, 2):
        environment = {
            "PYTHONPATH": PATHS,
            "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={devices}",
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(done.stdout.split())
    (one, *single), (two, *sharded) = outputs
    # Spread over two devices, compiled once, without a word between them.
    assert (one, two) == ("1", "2")
    assert single[0] == sharded[0] == "1"
    assert sharded[1] == "0"
    # The replay comes to the host as it was observed, and goes back to where it lay.
    assert single[2:4] == sharded[2:4] == ["True", "True"]
    for alone, shared in zip(single[4:], sharded[4:], strict=True):
        numbers = [np.frombuffer(bytes.fromhex(text), np.float32) for text in (alone, shared)]
        np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-5)


def test_evaluation_repeats_itself(uninterrupted, capsys):
    reports = []
    for _ in range(2):
        assert run(["eval", str(uninterrupted.path), "--episodes", "2", "--json"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0] == reports[1]
    assert reports[0]["frames"] == 500
    assert [entry["seed"] for entry in reports[0]["seeds"]] == [3, 7]
    # Other episodes than those that training was evaluated on.
    known = {value for row in uninterrupted.rows() for value in row.get("returns", [])}
    assert known.isdisjoint(reports[0]["seeds"][0]["returns"])


def test_sigterm_ends_a_training_after_a_checkpoint(tmp_path, monkeypatch):
    asked = []

    def ask_at_the_first_row(*_):
        if not asked:
            asked.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("fastr.training.progress.TrainingProgress.__call__", ask_at_the_first_row)
    config = tiny(checkpoint_frames=0)
    with pytest.raises(StoppedError, match=f"the same command continues in {tmp_path}") as stop:
        rows_of_all({"run": config, "next": config}, tmp_path)
    assert stop.value.code == 143
    assert not (tmp_path / "next").exists()
    stopped = RunDirectory.open(tmp_path / "run")
    assert 0 < stopped.latest().frames < config.frames
    assert stopped.rows()
    assert not stopped.finished()


def test_a_stop_too_late_for_one_run_keeps_the_next_from_beginning(tmp_path, monkeypatch):
    def ask_at_the_last_row(_, row):
        if row["frames"] == config.frames:
            signal.raise_signal(signal.SIGTERM)

    config = tiny(checkpoint_frames=0)
    monkeypatch.setattr("fastr.training.progress.TrainingProgress.__call__", ask_at_the_last_row)
    with pytest.raises(StoppedError) as stop:
        rows_of_all({"run": config, "next": config}, tmp_path)
    assert stop.value.code == 143
    assert RunDirectory.open(tmp_path / "run").finished()
    assert not (tmp_path / "next").exists()


TWICE = """
import multiprocessing, os, signal, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
signal.signal(signal.SIGINT, signal.default_int_handler)  # these tests may run deaf, under nohup
import fastr.training.loop
from fastr.cli.training import train_and_draw
from fastr.training.config import preset
from fastr.envs.processes import EnvPool

def compiling(*_, **__):
    with EnvPool("toy_envs:Count-v0", 1, (0, 1)):
        print(*[child.pid for child in multiprocessing.active_children()], flush=True)
        ThreadPoolExecutor(1).submit(time.sleep, 60)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

fastr.training.loop.train = compiling
run = SimpleNamespace(path=Path("run"), config={})
train_and_draw(preset("gym:Pendulum-v1", "fastr", "laptop"), run, None)
"""


def test_a_second_interrupt_waits_for_nothing_and_leaves_nobody_behind():
    ended = subprocess.run(
        [sys.executable, "-c", TWICE],
        env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.splitlines()[2:] == ["", f"fastr: {ANSWER}"]
    processes = [int(word) for word in ended.stdout.split()]
    assert len(processes) == 2
    assert eventually(lambda: all(gone(process) for process in processes))
