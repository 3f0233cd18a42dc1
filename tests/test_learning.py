"""Every method learns: five times a random policy's return within minutes on a CPU.

What these runs returned when they were last recorded is in `results/cpu/learning.csv`.
"""

from dataclasses import replace

import numpy as np
import pytest

from fastr.config import preset, to_json
from fastr.envs import episode_seed, load
from fastr.evaluate import episode_return
from fastr.methods import METHODS
from fastr.runs import RunWriter
from fastr.summary import summary
from fastr.train import train

TASK = "walker-walk"


@pytest.fixture(scope="module")
def random_return():
    """The mean return of uniformly random actions over five episodes."""
    environment = load(TASK, 2)
    generator = np.random.default_rng(0)

    def act(_):
        return generator.uniform(-1, 1, environment.spec.action_dim).astype(np.float32)

    return np.mean(
        [episode_return(environment, act, episode_seed(0, i, "evaluate")) for i in range(5)]
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_it_learns_to_walk(method, tmp_path, random_return):
    config = replace(preset(TASK, method, "quick"), seeds=(0, 1), checkpoint_frames=0)
    with RunWriter.create(tmp_path / "run", {"train": to_json(config), "provenance": {}}) as run:
        train(config, run)
        found = summary(run.rows(), config.seeds)
    assert 10 < random_return < 100
    assert found["last_evaluation_return_mean"] > 5 * random_return
