"""Every method learns: five times a random policy's return within minutes on a CPU.

What these runs returned when they were last recorded is in `results/cpu/learning.csv`.
"""

from dataclasses import replace

import numpy as np
import pytest

from fastr.envs import episode_seed, load
from fastr.runs.directory import RunWriter
from fastr.runs.summary import summary
from fastr.training.config import preset, to_json
from fastr.training.evaluate import rewards
from fastr.training.loop import train

# TD7's small exploration noise finds no gait in 25,000 frames, but it swings the pole up.
TASKS = {"td7": "cartpole-swingup"}


def random_return(task):
    """The mean return of uniformly random actions over five episodes."""
    environment = load(task, 2)
    generator = np.random.default_rng(0)

    def act(_):
        return generator.uniform(-1, 1, environment.spec.action_dim).astype(np.float32)

    return np.mean(
        [sum(rewards(environment, act, episode_seed(0, i, "evaluate"))) for i in range(5)]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fastr", "ctrl-sr", "diff-sr", "sac", "sac-2layer", "td7", "td3"]
)
def test_it_learns(method, tmp_path):
    task = TASKS.get(method, "walker-walk")
    config = replace(preset(task, method, "laptop"), seeds=(0, 1), checkpoint_frames=0)
    with RunWriter.create(tmp_path / "run", {"train": to_json(config), "provenance": {}}) as run:
        train(config, run)
        found = summary(run.rows(), config.seeds)
    assert found["last_evaluation_return_mean"] > 5 * random_return(task)
