"""Time one update, the loop around it, and the limits of this machine (`fastr bench`)."""

import re
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.profiler import ProfileData

from fastr.core import EnvSpec
from fastr.envs.processes import EnvPool
from fastr.nn.precision import Precision, matmul_precision
from fastr.runs.directory import RunWriter
from fastr.training.config import TrainConfig, to_json
from fastr.training.cost import Products, products, state_bytes
from fastr.training.evaluate import Evaluator, evaluation_workers, snapshots
from fastr.training.learner import Engine, Held
from fastr.training.loop import Trainer, engine_of, simulators

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


def stages(engine: Engine, cohort: Held, updates: int) -> tuple[Held, dict[str, float]]:
    """Milliseconds per update in each stage; the cohort comes back that much older.

    Operations run one after the other here so that each can be timed; the update itself overlaps
    them and is faster than the sum.
    """
    program = engine.update_program(sequential_options())
    metrics = engine.no_metrics()
    compiled = program.lower(*engine.improved(cohort, metrics, 1)).compile()
    cohort, metrics = jax.block_until_ready(engine.improve(cohort, metrics, 1, compiled))

    def run() -> None:
        nonlocal cohort, metrics
        for _ in range(updates):
            cohort, metrics = jax.block_until_ready(engine.improve(cohort, metrics, 1, compiled))

    totals: dict[str, float] = dict.fromkeys(STAGES, 0.0)
    names = {match[1]: match[2] for match in INSTRUCTION.finditer(compiled.as_text())}
    for operation, milliseconds in traced(run).items():
        # What a loop or a branch runs is timed by itself.
        if not operation.startswith(("while", "conditional")):
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


SIMULATED_STEPS = 200
ROWS = 5_000
"""Capacity of the replay that updates sample from."""
WARM_BLOCKS = 3
LOOP_SECONDS = 15.0
"""Longest measurement of the loop."""


def bench(config: TrainConfig, spec: EnvSpec, *, updates: int, repeats: int) -> dict[str, Any]:
    """Time updates of all seeds on random transitions, and everything that runs with them."""
    engine = engine_of(replace(config, replay_capacity=ROWS), spec)
    cohort = engine.init()
    generator = np.random.default_rng(0)
    for _ in range(config.agent.batch_size):
        row, states = (
            generator.standard_normal((len(config.seeds), size), np.float32)
            for size in (spec.row_dim, spec.state_dim)
        )
        cohort, *_ = engine.interact(cohort, *engine.arrived([row], states))
    start = time.perf_counter()
    cohort, _ = jax.block_until_ready(engine.improve(cohort, engine.no_metrics(), 1))
    compiled = time.perf_counter() - start
    cohort, milliseconds = update_times(engine, cohort, updates, repeats)
    memory = peak_memory()
    cohort, profile = stages(engine, cohort, min(updates, 10))
    work = products(config, spec)
    report = speed(config, work, milliseconds) | {
        "compile_seconds": compiled,
        "peak_memory_bytes": memory,
        "stage_milliseconds_per_update": profile,
    }
    update = report["milliseconds_per_joint_update"]
    steps = {
        "update": update,
        "simulation": simulation_milliseconds(config),
        "evaluation": evaluation_milliseconds(config, engine, cohort),
    }
    slowest = max(steps, key=lambda name: steps[name])
    time_of_loop, loop = loop_times(config, engine, most_steps=updates * repeats)
    loop["milliseconds_per_agent_step"] = steps | {"loop": time_of_loop}
    ratio = time_of_loop / steps[slowest]
    loop["pace"] = f"the {slowest} sets it; a step of the loop takes {ratio:.2f} times as long"
    limits = floors(config, spec, work)
    floor = max(limits["arithmetic_floor_milliseconds"], limits["memory_floor_milliseconds"])
    return report | loop | limits | {"measured_over_floor": update / floor}


def update_times(
    engine: Engine, cohort: Held, updates: int, repeats: int
) -> tuple[Held, list[float]]:
    """Mean milliseconds of one joint update, in each of several repeats."""
    on_cpu = jax.default_backend() == "cpu"
    milliseconds = []
    metrics, block = engine.no_metrics(), engine.block_steps
    blocks = -(-updates // block)
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(blocks):
            cohort, metrics = engine.improve(cohort, metrics, block)
            if on_cpu:
                # It would hold the working memory of all updates in flight at once.
                jax.block_until_ready(metrics)
        jax.block_until_ready(metrics)
        milliseconds.append((time.perf_counter() - start) / (blocks * block) * 1e3)
    return cohort, milliseconds


def simulation_milliseconds(config: TrainConfig) -> float:
    """One agent step of all seeds' simulators, random actions, in processes side by side."""
    with EnvPool(config.task, config.frame_skip, config.seeds) as pool:
        pool.reset([0] * len(config.seeds))
        generator = np.random.default_rng(0)
        actions = generator.uniform(-1, 1, (len(config.seeds), pool.spec.action_dim))
        start = time.perf_counter()
        for _ in range(SIMULATED_STEPS):
            pool.send(actions.astype(np.float32))
            pool.receive()
        return (time.perf_counter() - start) / SIMULATED_STEPS * 1e3


def evaluation_milliseconds(config: TrainConfig, engine: Engine, cohort: Held) -> float:
    """One evaluation of all seeds, spread over the agent steps between two of them.

    One episode of every seed is played, and counted as often as an evaluation has episodes.
    """
    leaves = snapshots(engine.policies(cohort), len(config.seeds))
    workers = evaluation_workers(len(config.seeds), config.eval_episodes)
    with Evaluator(config.task, config.frame_skip, config.agent, workers=workers) as evaluator:
        evaluator.wait_until_started()
        start = time.perf_counter()
        evaluator.submit(leaves, config.seeds, range(1)).returns()
        seconds = time.perf_counter() - start
    side_by_side = max(1, workers // len(config.seeds))
    rounds = -(-config.eval_episodes // side_by_side)
    return 1e3 * seconds * rounds / (config.eval_frames / config.frame_skip)


def speed(config: TrainConfig, work: Products, milliseconds: list[float]) -> dict[str, Any]:
    """The times in the units people compare; the median of the repeats."""
    seeds, median = len(config.seeds), float(np.median(milliseconds))
    multiply_adds = sum(work.multiply_adds.values())
    return {
        "method": config.method,
        "preset": config.preset,
        "task": config.task,
        "seeds": seeds,
        "precision": config.agent.precision,
        "device": jax.devices()[0].device_kind,
        "milliseconds_per_joint_update": median,
        "milliseconds_each_repeat": milliseconds,
        "joint_updates_per_second": 1e3 / median,
        "seed_updates_per_second": 1e3 * seeds / median,
        "multiply_adds_per_seed_update": multiply_adds,
        "achieved_gflop_per_second": 2 * multiply_adds * seeds / median / 1e6,
    }


def peak_memory() -> int:
    """Most memory held so far: on the accelerator, or by this process where there is none."""
    statistics = jax.devices()[0].memory_stats()
    if statistics:
        return int(statistics["peak_bytes_in_use"])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def loop_times(
    config: TrainConfig, engine: Engine, *, most_steps: int
) -> tuple[float, dict[str, Any]]:
    """Time agent steps of the whole loop from the start of an evaluation on, and its host's parts.

    Simulators, evaluation and records are those of a training; nothing is saved. Where a short
    evaluation ends before the last step, the share of steps during it is given.
    """
    # Updates from the first steps on; what the networks learn does not matter to the time.
    config = replace(config, random_frames=config.frame_skip, checkpoint_frames=0)
    workers = evaluation_workers(len(config.seeds), config.eval_episodes)
    with (
        TemporaryDirectory() as folder,
        RunWriter.create(Path(folder) / "run", {"train": to_json(config), "provenance": {}}) as run,
        simulators(config) as pool,
        Evaluator(config.task, config.frame_skip, config.agent, workers=workers) as evaluator,
    ):
        evaluator.wait_until_started()
        trainer = Trainer(config, run, pool, evaluator, engine)
        warm_up(trainer)
        first, evaluating = trainer.state.next_step, 0
        start = time.perf_counter()
        while trainer.state.next_step < first + most_steps:
            before, pending = trainer.state.next_step, trainer.pending is not None
            trainer.block()
            evaluating += pending * (trainer.state.next_step - before)
            if time.perf_counter() - start > LOOP_SECONDS:
                break
        jax.block_until_ready(trainer.state.cohort)
        seconds, steps = time.perf_counter() - start, trainer.state.next_step - first
        host = {part: 1e3 * spent / steps for part, spent in trainer.host_seconds.items()}
        return 1e3 * seconds / steps, {
            "loop_share_beside_an_evaluation": evaluating / steps,
            "loop_host_milliseconds_per_agent_step": host,
        }


def warm_up(trainer: Trainer) -> None:
    """Take a few blocks, so that every program is compiled; then start an evaluation."""
    trainer.begin(None)
    for _ in range(WARM_BLOCKS):
        trainer.block()
    none = np.zeros(len(trainer.config.seeds))
    trainer.state.cohort = trainer.engine.end_episodes(
        trainer.state.cohort, none.astype(np.float32), none.astype(bool)
    )
    trainer.start_evaluation(0)
    jax.block_until_ready(trainer.state.cohort)
    trainer.host_seconds.clear()


def floors(config: TrainConfig, spec: EnvSpec, work: Products) -> dict[str, Any]:
    """Lower bounds on the time of an update of all seeds on this device, in milliseconds.

    Arithmetic: every matrix product at the speed of one large product of its precision. Memory:
    operands and results of all products once, and parameters, moments and targets read and
    written once, at the speed of one large copy.
    """
    seeds = len(config.seeds)
    rates = {name: product_rate(name, config.agent.precision) for name in work.multiply_adds}
    arithmetic = sum(count / rates[name] for name, count in work.multiply_adds.items())
    learned = state_bytes(config, spec)["networks_and_optimisers"]
    bandwidth = copy_rate()
    return {
        "multiply_adds_per_second": rates,
        "bytes_per_second": bandwidth,
        "arithmetic_floor_milliseconds": 1e3 * seeds * arithmetic,
        "memory_floor_milliseconds": 1e3 * seeds * (work.bytes + 2 * learned) / bandwidth,
    }


def product_rate(dtype: str, precision: Precision) -> float:
    """Multiply-adds per second of one large product of this precision."""
    size = 1024 if jax.default_backend() == "cpu" else 8192
    with matmul_precision(precision):
        operands = jnp.ones((2, size, size), dtype)
        seconds = best_seconds(jax.jit(lambda pair: pair[0] @ pair[1]), operands)
    return size**3 / seconds


def copy_rate() -> float:
    """Bytes per second read and written by one pass over a large array."""
    size = 2**25 if jax.default_backend() == "cpu" else 2**29
    seconds = best_seconds(jax.jit(partial(jnp.add, 1.0)), jnp.ones(size, jnp.float32))
    return 2 * 4 * size / seconds


def best_seconds(function: Callable[[jax.Array], jax.Array], argument: jax.Array) -> float:
    """The shortest time of several calls, after one to compile."""
    jax.block_until_ready(function(argument))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(function(argument))
        times.append(time.perf_counter() - start)
    return min(times)
