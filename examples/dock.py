"""A robot of one's own: a hovercraft with two thrusters and a rudder that has to dock.

PYTHONPATH=examples fastr train dock:Dock-v0 --preset laptop
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box

DRAG, TURNING, STEP = 0.4, 3.0, 0.1


class Dock(gymnasium.Env):
    """Reach the origin and stay: the state is place, heading and speeds; the reward 0 to 1."""

    observation_space = Box(-np.inf, np.inf, (7,), np.float32)
    # Left and right thruster in newton, rudder in radians: fastr maps them onto [-1, 1] itself.
    action_space = Box(np.array([0, 0, -0.5]), np.array([2, 2, 0.5]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        """Somewhere within two metres, at rest: all randomness comes from self.np_random."""
        super().reset(seed=seed, options=options)
        self.place = self.np_random.uniform(-2, 2, size=2)
        self.heading = self.np_random.uniform(-np.pi, np.pi)
        self.velocity, self.spin = np.zeros(2), 0.0
        return self.observation(), {}

    def step(self, action):
        """One tenth of a second."""
        left, right, rudder = action
        ahead = np.array([np.cos(self.heading), np.sin(self.heading)])
        self.velocity += STEP * ((left + right) * ahead - DRAG * self.velocity)
        self.spin += STEP * (right - left + rudder * (ahead @ self.velocity) - TURNING * self.spin)
        self.place = self.place + STEP * self.velocity
        self.heading += STEP * self.spin
        reward = float(np.exp(-np.linalg.norm(self.place)))
        # Over for good (terminated) if it drifts away; the limit of 200 steps is truncation.
        return self.observation(), reward, bool(np.linalg.norm(self.place) > 5), False, {}

    def observation(self):
        """Place, heading as a direction, velocity and spin."""
        direction = [np.cos(self.heading), np.sin(self.heading)]
        return np.array([*self.place, *direction, *self.velocity, self.spin], np.float32)


gymnasium.register("Dock-v0", entry_point=Dock, max_episode_steps=200)
