"""Film exported policies in the DeepMind Control Suite, side by side; needs neither fastr nor JAX.

pip install dm_control pillow
python film_policies.py film.webp DIR DIR ...

Each DIR is what `fastr export --format safetensors` wrote, of a task such as humanoid-walk.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "egl")  # draws without a display; read at the next import

import numpy as np
from dm_control import suite
from PIL import Image

HEIGHT, WIDTH = 160, 160
SECONDS, PICTURES_PER_SECOND = 6, 10


def flat(observation):
    """One vector of what the suite gives by name."""
    return np.concatenate([np.ravel(part) for part in observation.values()])


def episode(policy, seed):
    """The return of one episode, and pictures of its first seconds."""
    domain, task = policy.facts["task"].split("-")
    environment = suite.load(domain, task, task_kwargs={"random": seed})
    step, total, pictures = environment.reset(), 0.0, []
    while not step.last():
        if len(pictures) / PICTURES_PER_SECOND <= min(environment.physics.time(), SECONDS):
            pictures.append(environment.physics.render(HEIGHT, WIDTH, camera_id=0))
        action = policy(flat(step.observation))
        for _ in range(policy.facts["frame_skip"]):
            step = environment.step(action)
            total += step.reward
            if step.last():
                break
    return total, pictures


def main(film, *folders):
    """Play one episode of every policy and write the pictures side by side."""
    for folder in folders:
        if not (Path(folder) / "policy.safetensors").is_file():
            sys.exit(f"{folder} has no policy.safetensors: export it with --format safetensors.")
    sys.path.insert(0, folders[0])
    from numpy_policy import load

    columns = []
    for folder in folders:
        policy = load(Path(folder) / "policy.safetensors")
        total, pictures = episode(policy, seed=0)
        print(f"{folder}: return {total:.1f}")
        columns.append(pictures)
    rows = [np.concatenate(pictures, axis=1) for pictures in zip(*columns, strict=True)]
    first, *others = map(Image.fromarray, rows)
    duration = 1_000 * SECONDS / len(others)
    first.save(film, save_all=True, append_images=others, duration=duration, loop=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
