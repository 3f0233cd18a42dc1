"""Learn from a log besides the fresh experience: write one, train with it and without it.

python examples/from_logs.py 6000
"""

import sys

import gymnasium
import numpy as np

import fastr

TASK, ROWS, LOG = "gym:Pendulum-v1", 10_000, "swings.npz"


def scripted(observation, generator):
    """What wrote the log: a controller that swings the pendulum up and holds it, with noise."""
    cosine, sine, speed = observation
    if cosine > 0.8:
        torque = -12.0 * sine - 3.0 * speed
    else:
        torque = np.sign(speed) * (1.0 if speed**2 < 30.0 * (1.0 - cosine) else -1.0) * 2.0
    return np.clip([torque + generator.normal(0, 0.5)], -2.0, 2.0).astype(np.float32)


def write_log(path):
    """A row per step, one episode after the other; actions in the environment's own units."""
    environment, generator = gymnasium.make("Pendulum-v1"), np.random.default_rng(0)
    rows, episode, over = [], -1, True
    for _ in range(ROWS):
        if over:
            episode += 1
            state, _ = environment.reset(seed=episode)
        action = scripted(state, generator)
        next_state, reward, terminated, truncated, _ = environment.step(action)
        rows.append((state, action, next_state, reward, episode, terminated))
        state, over = next_state, terminated or truncated
    names = "state", "action", "next_state", "reward", "episode", "terminated"
    columns = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    np.savez(path, **columns)
    mean = columns["reward"].sum() / (episode + 1)
    print(f"{path}: {episode + 1} episodes, mean return {mean:.0f}")


def main(frames="6000"):
    """Print both learning curves, side by side."""
    write_log(LOG)
    # The log has one row per frame, so an action must be held for one frame in training, too.
    options = {"frames": int(frames), "frame_skip": 1, "eval_frames": int(frames) // 4}
    curves = fastr.train(TASK, **options).curve()
    curves["with the log"] = fastr.train(TASK, data=LOG, **options).curve()["return"]
    print(curves.to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
