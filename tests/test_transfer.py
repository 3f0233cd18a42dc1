"""Runs that keep what another has learned, on the same body with other actuators."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fastr.config import from_json, preset, to_json
from fastr.errors import UserError
from fastr.runs import RunDirectory, RunWriter
from fastr.train import train

TASK = "gym:Pendulum-v1"


def tiny(method="fastr", keep="nothing", task=TASK, **changes):
    config = preset(task, method, "quick")
    sizes = {"feature_dim": 8, "hidden_dim": 8, "noise_levels": 2, "fourier_dim": 8, "head_dim": 8}
    representation = replace(config.agent.representation, **sizes)
    agent = replace(
        config.agent, representation=representation, batch_size=16, actor_dim=8, keep=keep
    )
    protocol = {
        "seeds": (3, 7),
        "frames": 300,
        "random_frames": 100,
        "eval_frames": 300,
        "eval_episodes": 1,
        "checkpoint_frames": 200,
    }
    return replace(config, agent=agent, **(protocol | changes))


def trained(config, path, stopped=lambda: False):
    with RunWriter.create(path, {"train": to_json(config), "provenance": {}}) as writer:
        train(config, writer, stopped=stopped)
    return RunDirectory.open(path)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return trained(tiny(), tmp_path_factory.mktemp("source") / "run")


def heir(origin, **changes):
    options = {"keep": "state-factor", "task": f"{TASK}@degradation:1", "source": str(origin.path)}
    return tiny(**(options | changes))


@pytest.fixture(scope="module")
def adapted(source, tmp_path_factory):
    return trained(heir(source), tmp_path_factory.mktemp("adapted") / "run")


def same_arrays(ours, theirs):
    first, second = ours.latest().arrays(), theirs.latest().arrays()
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


def rows(run):
    return [json.dumps({k: v for k, v in row.items() if k != "seconds"}) for row in run.rows()]


def test_observation_statistics_are_those_of_the_source(source, adapted):
    ours, theirs = adapted.latest().arrays(), source.latest().arrays()
    names = [name for name in ours if name.startswith("learners.moments")]
    assert names
    assert all(np.array_equal(ours[name], theirs[name]) for name in names)


def test_resuming_in_the_middle_is_exact(source, adapted, tmp_path):
    count = iter(range(10_000))
    stopped = trained(heir(source), tmp_path / "run", stopped=lambda: next(count) >= 120)
    assert stopped.latest().frames < 300
    writer, checkpoint = RunWriter.resume(tmp_path / "run")
    with writer:
        train(from_json(writer.config["train"]), writer, checkpoint)
    assert same_arrays(RunDirectory.open(tmp_path / "run"), adapted)
    assert rows(RunDirectory.open(tmp_path / "run")) == rows(adapted)


def test_some_seeds_of_the_source_are_enough(source, adapted, tmp_path):
    one = trained(heir(source, seeds=(7,)), tmp_path / "run")
    ours, theirs = one.latest().arrays(), adapted.latest().arrays()
    assert np.array_equal(ours["learners.moments.mean"][0], theirs["learners.moments.mean"][1])


def test_a_shift_that_is_none_changes_nothing(source, tmp_path):
    shifted = trained(tiny(task=f"{TASK}@dead-band=0"), tmp_path / "run")
    assert same_arrays(shifted, source)
    assert rows(shifted) == rows(source)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "ctrl-sr", "keep": "encoder"}, "was trained by fastr, this run is by ctrl-sr"),
        ({"seeds": (3, 8)}, "has no seed 8"),
        ({"task": "cartpole-swingup"}, "another body: it has 3 observation entries and 1"),
        ({"source": "nowhere"}, "nowhere is not a run directory"),
    ],
)
def test_what_cannot_be_inherited_is_one_sentence(source, tmp_path, changes, said):
    with pytest.raises(UserError, match=said) as error:
        trained(heir(source, **changes), tmp_path / "run")
    assert "\n" not in str(error.value)


def test_a_source_without_anything_to_keep_is_refused():
    with pytest.raises(UserError, match="without --keep"):
        tiny(source="runs/gait")
