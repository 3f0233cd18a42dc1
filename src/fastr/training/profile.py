"""Time of an update by stage, from a trace of its operations."""

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import jax
from jax.profiler import ProfileData

from fastr.training.learner import Cohort, Engine

STAGES = (
    "representation forward",
    "representation backward",
    "critic",
    "actor",
    "optimiser",
    "replay",
    "other",
)
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?(\S+) = .*?op_name=\"([^\"]*)\"", re.MULTILINE)


def stage(operation: str) -> str:
    """The stage an operation belongs to, by the scopes in its name."""
    for scope in ("optimiser", "replay", "critic", "actor"):
        if re.search(rf"\b{scope}\b", operation):
            return scope
    if re.search(r"\brepresentation\b", operation):
        return f"representation {'backward' if 'transpose(' in operation else 'forward'}"
    return "other"


def stages(engine: Engine, cohort: Cohort, updates: int) -> tuple[Cohort, dict[str, float]]:
    """Milliseconds per update in each stage; the cohort comes back that much older.

    Operations run one after the other here so that each can be timed; the update itself overlaps
    them and is faster than the sum.
    """
    program = engine.update_program(sequential_options())
    metrics = engine.no_metrics()
    compiled = program.lower(cohort, metrics).compile()
    cohort, metrics = jax.block_until_ready(compiled(cohort, metrics))

    def run() -> None:
        nonlocal cohort, metrics
        for _ in range(updates):
            cohort, metrics = jax.block_until_ready(compiled(cohort, metrics))

    totals: dict[str, float] = dict.fromkeys(STAGES, 0.0)
    names = {match[1]: match[2] for match in INSTRUCTION.finditer(compiled.as_text())}
    for operation, milliseconds in traced(run).items():
        totals[stage(names.get(operation, ""))] += milliseconds / updates
    return cohort, totals


def sequential_options() -> dict[str, str]:
    """Compiler settings under which a GPU's operations keep their names and do not overlap."""
    return {"xla_gpu_enable_command_buffer": ""} if jax.default_backend() == "gpu" else {}


def traced(run: Callable[[], None]) -> dict[str, float]:
    """Milliseconds of every compiled operation while this runs, by its name in the program."""
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            run()
        (path,) = Path(directory).glob("**/*.xplane.pb")
        profile = ProfileData.from_file(str(path))
    totals: dict[str, float] = defaultdict(float)
    for plane in profile.planes:
        for line in plane.lines:
            for event in line.events:
                operation = dict(event.stats).get("hlo_op")
                if operation is not None:
                    totals[str(operation)] += event.duration_ns / 1e6
    return totals
