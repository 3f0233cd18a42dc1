"""Tiny Gymnasium environments, registered by importing this module: toy_envs:Count-v0."""

import multiprocessing
import os
import signal
import sys
import time
from collections import OrderedDict
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

EPISODE = 4


class Count(gymnasium.Env):
    """State (frame, seed's number, sum of actions); the reward is the action that arrived."""

    metadata: ClassVar = {"render_modes": ["rgb_array"]}
    observation_space = Box(-np.inf, np.inf, (3,), np.float64)
    action_space = Box(-2.0, 6.0, (1,), np.float32)

    def __init__(self, last_frame=None, render_mode=None):
        self.last_frame, self.render_mode = last_frame, render_mode

    def observation(self):
        return np.array([self.frames, self.number, self.total])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.frames, self.total, self.number = 0, 0.0, self.np_random.uniform()
        return self.observation(), {}

    def step(self, action):
        assert action in self.action_space
        self.frames += 1
        self.total += float(action[0])
        over = self.frames == self.last_frame
        return self.observation(), float(action[0]), over, False, {}

    def render(self):
        image = np.zeros((6, 8, 3), np.uint8)
        image[:3] = 200
        return image


class Parts(Count):
    observation_space = Dict(
        OrderedDict(
            second=Box(-1, 1, (2, 2)), first=Box(-1, 1, ()), count=Box(0, 255, (1,), np.uint8)
        )
    )

    def observation(self):
        return {
            "first": np.float32(5.0),
            "second": np.arange(4.0).reshape(2, 2),
            "count": np.array([self.frames], np.uint8),
        }


class Cameras(Count):
    observation_space = Dict(joints=Box(-1, 1, (2,)), left=Box(0, 255, (8, 8, 3), np.uint8))


class Nested(Count):
    observation_space = Dict(inner=Dict(part=Box(-1, 1, (1,))))


class Unbounded(Count):
    action_space = Box(-np.inf, np.inf, (1,))


class Choice(Count):
    action_space = Discrete(3)


class Faulty(Count):
    """Breaks in the way that the action names: see FAULTS."""

    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action):
        observation, reward, over, truncated, information = super().step(action)
        fault = FAULTS[round(float(action[0]) * 10)]
        if fault == "exit":
            os._exit(7)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hang":
            time.sleep(60)
        if fault == "raise":
            raise ValueError("the wheel came off")
        if fault == "state":
            observation[1] = np.nan
        if fault == "large":
            reward = 1e300
        return observation, reward, over, truncated, information


FAULTS = ["none", "exit", "kill", "hang", "raise", "state", "large"]


class FaultyStart(Count):
    def __init__(self):
        raise OSError("no\nrobot")


class DeadStart(Count):
    def __init__(self):
        os._exit(3)


class DeadEvaluation(Count):
    """Dies as it starts where a policy is to be run beside it."""

    def __init__(self):
        super().__init__()
        if multiprocessing.parent_process() is not None and "jax" in sys.modules:
            os._exit(3)


class Process(Count):
    """States tell about the process: whether it has jax, whether it ran main, its OMP threads."""

    def observation(self):
        ran_main = hasattr(sys.modules["__mp_main__"], "__file__")
        return np.array(["jax" in sys.modules, ran_main, int(os.environ["OMP_NUM_THREADS"])])


def register(name, entry_point, limit=EPISODE, **kwargs):
    gymnasium.register(
        f"{name}-v0", entry_point=entry_point, max_episode_steps=limit, kwargs=kwargs
    )


register("Count", Count)
register("Endless", Count, limit=None)
register("Cliff", Count, last_frame=3)
for toy in (Parts, Cameras, Nested, Unbounded, Choice, Process):
    register(toy.__name__, toy)
for toy in (Faulty, FaultyStart, DeadStart, DeadEvaluation):
    register(toy.__name__, toy)
