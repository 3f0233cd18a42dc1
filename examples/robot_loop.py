"""A control loop in the style of a ROS node, with an exported policy; needs NumPy, not fastr.

python examples/robot_loop.py arm-policy 5

The folder is what `run.export(folder, "safetensors")` wrote in own_environment.py, whose arm stands
in for the robot here. For another robot change EXPECTED, SAFE and FakeRobot.
"""

import math
import sys
import time
from pathlib import Path

import numpy as np

from own_environment import Arm

# What this robot's driver sends and takes. It is written down here, not read from the policy.
EXPECTED = {
    "observation": [
        {"name": "joints", "shape": [2], "unit": "rad"},
        {"name": "speeds", "shape": [2], "unit": "rad/s"},
        {"name": "to_target", "shape": [2], "unit": "m"},
    ],
    "action": [{"low": -2.0, "high": 2.0, "unit": "N m"}] * 2,
    "action_seconds": 0.02,
}
SAFE = np.zeros(2, np.float32)  # no torque: right for an arm on a table, not under gravity
STALE = 0.06  # seconds without an observation after which SAFE is sent
RECORDED = 50  # observations that are compared with training before the first command


class PolicyNode:
    """The newest observation comes by callback; a timer turns it into a command."""

    def __init__(self, policy, send):
        require_contract(policy.facts)
        self.policy, self.send = policy, send
        self.low, self.high = (
            np.array([entry[end] for entry in EXPECTED["action"]], np.float32)
            for end in ("low", "high")
        )
        self.newest, self.received = None, -math.inf
        self.recording, self.ready = [], False
        self.seconds, self.stops = [], 0

    def on_observation(self, observation):
        """Callback of the subscription: keep it, and the time it came."""
        self.newest, self.received = observation, time.monotonic()
        if not self.ready:
            self.recording.append(observation)

    def on_timer(self):
        """Callback of the timer, once per command."""
        if not self.ready:
            self.send(SAFE)
            if len(self.recording) >= RECORDED:
                self.check_recording()
            return
        if time.monotonic() - self.received > STALE:
            self.stops += 1
            self.send(SAFE)
            return
        begin = time.perf_counter()
        action, _ = self.policy.predict(self.newest)
        self.seconds.append(time.perf_counter() - begin)
        sound = np.isfinite(action).all()
        self.send(np.clip(action, self.low, self.high) if sound else SAFE)

    def check_recording(self):
        """Start to act, unless the recording is unlike training."""
        first = self.recording[0]
        lines = self.policy.check({k: np.stack([one[k] for one in self.recording]) for k in first})
        if lines:
            sys.exit("\n  ".join(["The observations are unlike training:", *lines]))
        print(f"{len(self.recording)} observations look like training: starting")
        self.ready = True


def require_contract(facts):
    """Stop unless the policy was trained for this robot."""
    for name, wanted in EXPECTED.items():
        found = facts[name]
        if isinstance(wanted, list):
            found = [{key: part[key] for key in wanted[0]} for part in found]
        if found != wanted:
            sys.exit(f"{name}: the policy has {found}, this robot {wanted}.")


class FakeRobot:
    """Stands in for the driver: the simulated arm, whose sensors fail in the middle."""

    def __init__(self):
        self.arm, self.command = Arm(), SAFE
        self.arm.reset(seed=0)

    def send(self, command):
        """What the driver does with a command."""
        self.command = command

    def spin(self, node, seconds):
        """What the executor does: observations and timer ticks, at the contract's rate."""
        period = EXPECTED["action_seconds"]
        ticks, due = round(seconds / period), time.monotonic()
        for tick in range(ticks):
            observation, reward, *_ = self.arm.step(self.command)
            if not 0.6 * ticks < tick < 0.6 * ticks + 10:
                node.on_observation(observation)
            node.on_timer()
            if tick % 50 == 49:
                print(f"second {tick // 50 + 1}: reward {reward:.2f}, command {self.command} N m")
            due += period
            time.sleep(max(0.0, due - time.monotonic()))


def main(folder, seconds="5"):
    """Run the arm and print how long the policy took for each command."""
    sys.path.insert(0, folder)  # the export brings its loader along
    from numpy_policy import load

    robot = FakeRobot()
    node = PolicyNode(load(Path(folder) / "policy.safetensors"), robot.send)
    robot.spin(node, float(seconds))
    assert not {"jax", "fastr"} & set(sys.modules)
    milliseconds = 1e3 * np.array(node.seconds)
    median, slow = np.percentile(milliseconds, [50, 99])
    print(f"{len(milliseconds)} commands, {node.stops} times none for want of observations")
    print(f"predict: median {median:.3f} ms, 99th percentile {slow:.3f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
