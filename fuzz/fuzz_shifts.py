"""Tasks with shifted actuators: walker-walk@permutation:7+latency=2."""

import numpy as np

from harness import atheris, fuzz

with atheris.instrument_imports(include=["fastr"]):
    from fastr import envs
    from fastr.envs import shifts


def read(data: bytes) -> None:
    """Parse a task; draw and apply its shifts."""
    text = data.decode(errors="replace")
    envs.module_of(text)
    envs.parse(text)
    _, shifted = shifts.split(text)
    if shifted is not None:
        action = np.linspace(-1, 1, 6, dtype=np.float32)
        for shift in shifts.draw(shifted, 6):
            action = shift(action)
        if action.shape != (6,) or not np.isfinite(action).all():
            raise AssertionError(f"{shifted} made {action}")


if __name__ == "__main__":
    fuzz(read)
