"""Tasks by name: the DM Control Suite and Gymnasium behind one small interface.

Light on purpose: environments run in worker processes, which must not pay for jax, and dm_control
and gymnasium are imported only when one of theirs is loaded.
"""

from fastr.envs.base import (
    Bounds,
    Environment,
    MalformedError,
    NotFiniteError,
    Part,
    Robot,
    Step,
    finite_state,
    finite_step,
)
from fastr.envs.loading import ending_spec, frame_limit, load, spec
from fastr.envs.names import GymTask, SuiteTask, module_of, parse, require_imported, tasks
from fastr.envs.seeds import episode_seed

__all__ = [
    "Bounds",
    "Environment",
    "GymTask",
    "MalformedError",
    "NotFiniteError",
    "Part",
    "Robot",
    "Step",
    "SuiteTask",
    "ending_spec",
    "episode_seed",
    "finite_state",
    "finite_step",
    "frame_limit",
    "load",
    "module_of",
    "parse",
    "require_imported",
    "spec",
    "tasks",
]
