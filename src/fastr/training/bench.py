"""How fast one update is: the yardstick behind every speed this project states."""

import resource
import sys
import time
from typing import Any

import jax
import numpy as np

from fastr.core import EnvSpec
from fastr.envs.processes import EnvPool
from fastr.training.config import TrainConfig
from fastr.training.count import Products, products
from fastr.training.evaluate import Evaluator, evaluation_workers
from fastr.training.learner import Cohort, Engine
from fastr.training.looptime import loop_times
from fastr.training.policies import snapshots
from fastr.training.profile import stages
from fastr.training.roofline import floors

SIMULATED_STEPS = 200
ROWS = 5_000
"""Of the replay that updates sample from."""


def bench(config: TrainConfig, spec: EnvSpec, *, updates: int, repeats: int) -> dict[str, Any]:
    """Times of updates of all seeds on random transitions, and of everything beside them."""
    engine = Engine(
        config.agent, spec, config.seeds, capacity=ROWS, random_steps=config.random_steps
    )
    cohort = engine.init()
    generator = np.random.default_rng(0)
    for _ in range(config.agent.batch_size):
        values = generator.standard_normal(
            (len(config.seeds), spec.row_dim + spec.state_dim), np.float32
        )
        cohort, _ = engine.interact(cohort, values)
    start = time.perf_counter()
    cohort, _ = jax.block_until_ready(engine.improve(cohort, engine.no_metrics()))
    compiled = time.perf_counter() - start
    cohort, milliseconds = update_times(engine, cohort, updates, repeats)
    memory = peak_memory()
    cohort, profile = stages(engine, cohort, min(updates, 10))
    profile["simulation"] = simulation_milliseconds(config)
    profile["evaluation"] = evaluation_milliseconds(config, engine, cohort)
    work = products(config, spec)
    report = speed(config, work, milliseconds) | {
        "compile_seconds": compiled,
        "peak_memory_bytes": memory,
        "stage_milliseconds_per_agent_step": profile,
    }
    loop = loop_times(config, engine, most_steps=updates * repeats)
    update = report["milliseconds_per_joint_update"]
    share = {"loop_rate_over_update_rate": update / loop["loop_milliseconds_per_agent_step"]}
    return report | loop | share | roofline(floors(config, spec, work), update)


def update_times(
    engine: Engine, cohort: Cohort, updates: int, repeats: int
) -> tuple[Cohort, list[float]]:
    """Mean milliseconds of one joint update, in each of several repeats."""
    on_cpu = jax.default_backend() == "cpu"
    milliseconds = []
    metrics = engine.no_metrics()
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(updates):
            cohort, metrics = engine.improve(cohort, metrics)
            if on_cpu:
                # It would hold the working memory of all updates in flight at once.
                jax.block_until_ready(metrics)
        jax.block_until_ready(metrics)
        milliseconds.append((time.perf_counter() - start) / updates * 1e3)
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


def evaluation_milliseconds(config: TrainConfig, engine: Engine, cohort: Cohort) -> float:
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


def roofline(limits: dict[str, Any], milliseconds: float) -> dict[str, Any]:
    """The measured time beside the machine's own limits."""
    floor = max(limits["arithmetic_floor_milliseconds"], limits["memory_floor_milliseconds"])
    return limits | {"measured_over_floor": milliseconds / floor}


def peak_memory() -> int:
    """Most memory held so far: on the accelerator, or by this process where there is none."""
    statistics = jax.devices()[0].memory_stats()
    if statistics:
        return int(statistics["peak_bytes_in_use"])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
