"""An environment of one's own, trained from Python: a class and a function, no registration.

python examples/own_environment.py 20000 arm-policy

The first argument is the number of frames, the second a new folder for the policy, which
robot_loop.py then runs at 50 Hz.
"""

import sys
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

STEP, LINKS, GAIN, DAMPING = 0.02, np.array([0.5, 0.4]), 8.0, 2.0


class Arm(gymnasium.Env):
    """Two links on a table bring the hand to a target. The reward is 0 to 1 per frame."""

    # Units and the length of a frame (1 / render_fps) go into the run's contract.
    metadata: ClassVar = {
        "render_modes": [],
        "render_fps": 50,
        "units": {"joints": "rad", "speeds": "rad/s", "to_target": "m", "action": "N m"},
    }
    action_space = Box(-2.0, 2.0, (2,), np.float32)
    # A list of pairs keeps this order; Gymnasium sorts a dict by name.
    observation_space = Dict(
        [
            ("joints", Box(-np.pi, np.pi, (2,), np.float32)),
            ("speeds", Box(-np.inf, np.inf, (2,), np.float32)),
            ("to_target", Box(-2.0, 2.0, (2,), np.float32)),
        ]
    )

    def reset(self, *, seed=None, options=None):
        """Both joints and the target anywhere in reach: all randomness is self.np_random's."""
        super().reset(seed=seed, options=options)
        self.joints, self.speeds = self.np_random.uniform(-2, 2, 2), np.zeros(2)
        self.target = hand(self.np_random.uniform(-2, 2, 2))
        return self.observed(), {}

    def step(self, action):
        """One fiftieth of a second; half a turn is a joint's end, where it stops."""
        speeds = self.speeds + STEP * (GAIN * action - DAMPING * self.speeds)
        before, self.joints = self.joints, np.clip(self.joints + STEP * speeds, -np.pi, np.pi)
        self.speeds = (self.joints - before) / STEP
        distance = np.linalg.norm(self.target - hand(self.joints))
        return self.observed(), float(np.exp(-4 * distance)), False, False, {}

    def observed(self):
        """The observation, by name."""
        parts = self.joints, self.speeds, self.target - hand(self.joints)
        values = (np.asarray(part, np.float32) for part in parts)
        return dict(zip(self.observation_space, values, strict=True))


def hand(joints):
    """Where the hand is, in metres."""
    angles = np.cumsum(joints)
    return np.array([LINKS @ np.cos(angles), LINKS @ np.sin(angles)])


def arm():
    """What fastr trains on: the environment with a limit of 200 frames, four seconds."""
    return gymnasium.wrappers.TimeLimit(Arm(), 200)


def main(frames="20000", folder=None):
    """Train, act in newton metres, and check a recording."""
    import fastr  # not at the top: robot_loop.py takes Arm without fastr

    # Each action is held for one frame: the policy acts 50 times a second.
    run = fastr.train(arm, frames=int(frames), frame_skip=1)
    print(run.curve().to_string(index=False))

    policy, environment, seen = run.policy(), arm(), []
    observation, _ = environment.reset(seed=0)
    for _ in range(100):
        seen.append(observation)
        action, _ = policy.predict(observation)
        observation, *_ = environment.step(action)
    print(f"{observation['joints']} rad, {policy.predict(observation)[0]} N m")

    recording = {name: np.stack([one[name] for one in seen]) for name in seen[0]}
    print("unlike training:", policy.check(recording) or "nothing")
    recording["joints"] = np.rad2deg(recording["joints"])
    print("the same in degrees:", *policy.check(recording), sep="\n  ")

    if folder:
        run.export(folder, "safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
