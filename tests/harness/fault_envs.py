"""A small environment that breaks when told to: fault_envs:Spring-v0.

FASTR_FAULT holds {"kind": ..., "stream": "train" or "evaluate", "step": n}: at its n-th step of
that stream in this process, the environment fails in that way. Without the variable all is well.
"""

import json
import os
import time
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box

EPISODE = 40


class Spring(gymnasium.Env):
    """A mass on a spring, pushed by the action; it is paid for staying near the middle."""

    metadata: ClassVar = {"render_modes": []}
    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.fault = json.loads(os.environ.get("FASTR_FAULT", "{}"))
        self.steps = 0
        self.stream = ""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        # Even seeds are those of training episodes, odd ones those of evaluations.
        self.stream = "evaluate" if (seed or 0) % 2 else "train"
        self.state = self.np_random.uniform(-1, 1, 2)
        return self.state.copy(), {}

    def step(self, action):
        position, velocity = self.state
        velocity += 0.1 * (float(action[0]) - position) - 0.01 * velocity
        self.state = np.array([position + 0.1 * velocity, velocity])
        observation, reward = self.state.copy(), -float(self.state @ self.state)
        if self.fault and self.stream == self.fault["stream"]:
            self.steps += 1
            if self.steps == self.fault["step"]:
                observation, reward = broken(self.fault["kind"], observation, reward)
        return observation, reward, False, False, {}


def broken(kind, observation, reward):
    """What the environment gives instead, if it still gives anything."""
    if kind == "exit":
        os._exit(7)
    if kind == "raise":
        raise ValueError("the wheel came off")
    if kind == "hang":
        time.sleep(3_600)
    if kind == "large reward":
        reward = 1e300
    if kind == "state":
        observation[1] = np.nan
    return observation, reward


gymnasium.register("Spring-v0", entry_point=Spring, max_episode_steps=EPISODE)
