"""The state of a run: everything its continuation depends on, saved to and restored from disk."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from fastr.agents.spectral import SpectralConfig
from fastr.core import EnvSpec, UserError, option
from fastr.envs.processes import Steps
from fastr.runs import Checkpoint, Snapshot
from fastr.runs.directory import RunDirectory
from fastr.runs.untrusted import number, whole_numbers
from fastr.training import replay as ring
from fastr.training.config import TrainConfig, from_json
from fastr.training.learner import Cohort, Engine, Held, held

REPLAY = "learners.replay.rows"
LEARNED = "learners.agent."
"""Prefix of the names of parameters and optimiser moments."""


@dataclass
class RunState:
    """Where a run is: the cohort on the device, and the episodes of the simulators."""

    config: TrainConfig
    engine: Engine
    cohort: Held
    metrics: jax.Array | None = None
    """Metrics of the last update; the next one writes over them."""
    next_step: int = 0
    """The next agent step."""
    saved_steps: int = 0
    """Agent steps in the last snapshot."""
    episodes: list[int] = field(default_factory=list)
    """Number of each seed's current episode."""
    returns: list[float] = field(default_factory=list)
    """Return of each seed's current episode so far."""
    actions: list[list[np.ndarray]] = field(default_factory=list)
    """Actions of each seed's current episode; replaying them restores the simulator."""
    rows: list[Float32[np.ndarray, "seed row"]] = field(default_factory=list)
    """The last transitions, not yet on the device."""
    states: Float32[np.ndarray, "seed state"] = field(
        default_factory=lambda: np.zeros((0, 0), np.float32)
    )
    """Each seed's current observation."""
    started: float = field(default_factory=time.monotonic)
    """When the run began, on this process's clock, interruptions left out."""

    @classmethod
    def start(cls, config: TrainConfig, engine: Engine) -> "RunState":
        """Before the first step."""
        seeds = len(config.seeds)
        nothing = {"episodes": [0] * seeds, "returns": [0.0] * seeds}
        return cls(config, engine, engine.init(), actions=[[] for _ in range(seeds)], **nothing)

    @property
    def seconds(self) -> float:
        """Wall-clock time of the run so far, interruptions left out."""
        return time.monotonic() - self.started

    def measured(self) -> Float[np.ndarray, "seed metric"] | None:
        """Metrics of the last update, once it is done; None before the first."""
        # A copy: on a CPU the next update works in this memory.
        return None if self.metrics is None else np.array(self.metrics)

    def add(self, actions: Float32[np.ndarray, "seed action"], steps: Steps) -> None:
        """Keep the transitions for the device, and add them to the episodes."""
        row = self.engine.spec.pack(
            state=self.states,
            action=actions,
            next_state=steps.next_state,
            reward=steps.reward,
            continues=steps.continues,
        )
        self.rows.append(row)
        self.states = steps.state.copy()
        for i, reward in enumerate(steps.reward):
            self.returns[i] += float(reward)
            self.actions[i].append(actions[i])

    def next_episode(self, i: int) -> None:
        """Begin the next episode of one seed."""
        self.episodes[i] += 1
        self.returns[i] = 0.0
        self.actions[i] = []

    def episode_actions(self) -> list[Float32[np.ndarray, "_ action"]]:
        """Actions of each seed's current episode as one array."""
        size = self.engine.spec.action_dim
        return [np.array(actions, np.float32).reshape(-1, size) for actions in self.actions]

    def hand_over(self, count: int) -> tuple[jax.Array, list[jax.Array]]:
        """Put the first `count` kept transitions into the replay and the statistics.

        The actions in the current states, and the copies that `Engine.act` reads.
        """
        arrived, count = self.engine.arrived(self.rows[:count], self.states)
        self.cohort, actions, actors = self.engine.interact(self.cohort, arrived, count)
        self.rows = self.rows[count:]
        return actions, actors

    def catch_up(self) -> None:
        """Hand over all transitions but the last; the actions found on the way are dropped."""
        if len(self.rows) > 1:
            self.hand_over(len(self.rows) - 1)

    def snapshot(self, *, evaluating: bool) -> Snapshot:
        """Everything to save; of the replay, the rows since the last snapshot.

        With `evaluating`, an evaluation has just started and is to be started again.
        """
        self.catch_up()
        # Copies: on a CPU the next update works in this memory.
        leaves = named_leaves(self.cohort.tree)
        del leaves[REPLAY]
        arrays = {name: np.array(leaf) for name, leaf in jax.device_get(leaves).items()}
        if (metrics := self.measured()) is not None:
            arrays["metrics"] = metrics
        for i, actions in enumerate(self.episode_actions()):
            arrays[f"episode_actions.{i}"] = actions
        pending = self.rows[0] if self.rows else self.engine.no_rows()
        arrays |= {"pending_rows": pending, "pending_states": self.states}
        start, end = max(0, self.saved_steps - 1), self.next_step - 1
        capacity = 0 if self.config.offline else self.config.capacity
        start = max(start, end - capacity)
        self.saved_steps = self.next_step
        host = {
            "next_step": self.next_step,
            "seconds": self.seconds,
            "episodes": list(self.episodes),
            "returns": list(self.returns),
            "evaluating": evaluating,
        }
        return Snapshot(
            frames=end * self.config.frame_skip,
            arrays=arrays,
            host=host,
            replay_rows=ring.fetched(self.cohort.tree.learners.replay.rows, start, end),
            replay_start=start,
            capacity=capacity,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint; UserError unless it belongs to such a run."""
        config, spec = self.config, self.engine.spec
        check_host(checkpoint, config)
        arrays, host = widened(checkpoint.arrays(), self.cohort.tree), checkpoint.host
        check_arrays(self.cohort.tree, arrays, spec)
        stored = checkpoint.replay.end - checkpoint.replay.start
        if checkpoint.row_shape != (len(config.seeds), spec.row_dim) or stored > config.capacity:
            raise UserError("The checkpoint's replay does not fit this run's configuration.")
        replay = self.cohort.tree.learners.replay.rows
        for start, rows in checkpoint.replay_slices(ring.steps_at_once(replay)):
            replay = ring.written(replay, start, rows)
        self.cohort = held(with_leaves(self.cohort.tree, arrays | {REPLAY: replay}))
        shape = len(config.seeds), len(self.engine.metric_names)
        if arrays.get("metrics", np.empty(0)).shape == shape:
            self.metrics = jax.device_put(arrays["metrics"], self.engine.sharding)
        self.next_step = self.saved_steps = host["next_step"]
        self.episodes = list(host["episodes"])
        self.returns = [float(value) for value in host["returns"]]
        self.actions = [list(arrays[f"episode_actions.{i}"]) for i in range(len(config.seeds))]
        self.rows, self.states = [arrays["pending_rows"]], arrays["pending_states"]
        self.started = time.monotonic() - host["seconds"]


def widened(arrays: dict[str, np.ndarray], cohort: Cohort) -> dict[str, np.ndarray]:
    """A checkpoint's arrays with room for the priorities of a longer run."""
    name = "learners.replay.priorities"
    wanted, saved = named_leaves(cohort).get(name), arrays.get(name)
    if wanted is None or saved is None or saved.size >= wanted.size or saved.ndim != wanted.ndim:
        return arrays
    rows = saved.reshape(len(saved), -1)
    room = np.zeros((len(saved), wanted[0].size), saved.dtype)
    room[:, : rows.shape[1]] = rows
    return arrays | {name: room.reshape(len(saved), *wanted.shape[1:])}


def check_host(checkpoint: Checkpoint, config: TrainConfig) -> None:
    """Raise UserError unless the checkpoint's numbers are those of a run of this configuration."""
    host, seeds = checkpoint.host, len(config.seeds)
    returns = host.get("returns")
    sound = (
        whole_numbers([host.get("next_step")], 1)
        and whole_numbers(host.get("episodes"), seeds)
        and isinstance(returns, list)
        and len(returns) == seeds
        and all(map(number, [host.get("seconds"), *returns]))
        and host["next_step"] == checkpoint.frames // config.frame_skip + 1
        and host["next_step"] == checkpoint.replay.end + 1
        and type(host.get("evaluating")) is bool
    )
    if not sound:
        raise UserError(f"Checkpoint {checkpoint.name} does not fit this run's configuration.")


def check_arrays(cohort: Cohort, arrays: dict[str, np.ndarray], spec: EnvSpec) -> None:
    """Raise UserError unless a checkpoint's arrays have the shapes of this cohort's."""
    floats = np.dtype(np.float32)
    wanted = {name: (leaf.shape, leaf.dtype) for name, leaf in named_leaves(cohort).items()}
    del wanted[REPLAY]
    seeds = len(cohort.learners.seed)
    wanted["pending_rows"] = (seeds, spec.row_dim), floats
    wanted["pending_states"] = (seeds, spec.state_dim), floats
    for i in range(seeds):
        name = f"episode_actions.{i}"
        steps = len(arrays[name]) if name in arrays and arrays[name].ndim else 0
        wanted[name] = (steps, spec.action_dim), floats
    for name, (shape, dtype) in wanted.items():
        fitting(arrays, name, shape, dtype)


def fitting(
    arrays: dict[str, np.ndarray], name: str, shape: Sequence[int], dtype: np.dtype
) -> np.ndarray:
    """The saved array of this name; UserError unless it has this shape and type."""
    found = arrays.get(name)
    if found is None or found.shape != tuple(shape) or found.dtype != dtype:
        raise UserError(f"The checkpoint's {name} does not fit this run's configuration.")
    return found


def leaf_name(path: tuple) -> str:
    """A dotted path, as in learners.agent.critics.parameters."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def named_leaves(cohort: Cohort) -> dict[str, jax.Array]:
    """Every array of the cohort under its dotted path."""
    paths, _ = jax.tree_util.tree_flatten_with_path(cohort)
    return {leaf_name(path): leaf for path, leaf in paths}


def with_leaves(cohort: Cohort, arrays: Mapping[str, np.ndarray | jax.Array]) -> Cohort:
    """The cohort with its arrays replaced by name, each on the device of the old one."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.device_put(arrays[leaf_name(path)], leaf.sharding), cohort
    )


def saved_cohort(config: TrainConfig, checkpoint: Checkpoint) -> tuple[Cohort, EnvSpec]:
    """All seeds at a checkpoint, without their replay; and the environment's sizes."""
    arrays = checkpoint.arrays()
    spec = saved_spec(arrays)
    shapes = jax.eval_shape(
        lambda seeds: Cohort.init(config.agent, spec, 1, seeds),
        jax.ShapeDtypeStruct((len(config.seeds),), jnp.int32),
    )

    def array(path: tuple, leaf: jax.ShapeDtypeStruct) -> Any:
        name = leaf_name(path)
        # Priorities too: their shape follows the capacity, which is 1 here.
        if name.startswith("learners.replay."):
            return jnp.zeros(leaf.shape, leaf.dtype)
        return fitting(arrays, name, leaf.shape, leaf.dtype)

    return jax.tree_util.tree_map_with_path(array, shapes), spec


def saved_spec(arrays: dict[str, np.ndarray]) -> EnvSpec:
    """The environment's sizes in a checkpoint; no simulator is loaded."""
    rows, states = arrays.get("pending_rows"), arrays.get("pending_states")
    if rows is None or states is None or rows.ndim != 2 or states.ndim != 2:
        raise UserError("The checkpoint does not hold the state of a training run.")
    spec = EnvSpec.of_row(rows.shape[1], states.shape[1])
    if spec.state_dim < 1 or spec.action_dim < 1:
        raise UserError("The checkpoint's transitions do not fit its states.")
    return spec


SEED = jax.ShapeDtypeStruct((1,), jnp.int32)
NOT_KEPT = ("noise_levels", "reward_weight", "fourier_dim", "head_dim", "precision")
"""Settings of a representation that its encoders do not depend on."""


def inherited(cohort: Held, config: TrainConfig, spec: EnvSpec) -> Held:
    """The cohort with parts of the run it starts from, seed by seed."""
    if not config.init:
        return cohort
    ours = cohort.tree
    old, origin = legacy(config, spec)
    alone = len(origin.seeds) == 1
    chosen = np.asarray([0 if alone else origin.seeds.index(seed) for seed in config.seeds])
    old = jax.tree.map(lambda leaf: leaf[chosen], old.learners)
    inherit = jax.vmap(lambda ours, theirs: ours.inherit(theirs, config.init_parts))
    moved = jax.jit(inherit)(ours.learners, old)
    placed = jax.tree.map(lambda new, was: jax.device_put(new, was.sharding), moved, ours.learners)
    return held(Cohort(placed, ours.steps, ours.updates))


def legacy(config: TrainConfig, spec: EnvSpec) -> tuple[Cohort, TrainConfig]:
    """All seeds of the run to start from, and its configuration; UserError unless they fit."""
    source, origin = heritage(config)
    old, body = saved_cohort(origin, source.latest())
    if body != spec:
        raise UserError(
            f"{config.init} was trained on another robot: it has {body.in_words}, "
            f"{config.task} has {spec.state_dim} and {spec.action_dim}."
        )
    # Tried without arrays: a part that this method lacks, or sizes that differ, are found here.
    agents = [
        jax.eval_shape(lambda seeds, c=c: Cohort.init(c.agent, spec, 1, seeds), SEED).learners
        for c in (config, origin)
    ]
    inherit = jax.vmap(lambda ours, theirs: ours.inherit(theirs, config.init_parts))
    moved = jax.eval_shape(inherit, *agents)
    shapes = [[leaf.shape for leaf in jax.tree.leaves(one)] for one in (agents[0], moved)]
    if shapes[0] != shapes[1]:
        raise UserError(
            f"{config.init} has networks of other sizes: {different_settings(config, origin)}."
        )
    return old, origin


def different_settings(config: TrainConfig, origin: TrainConfig) -> str:
    """The settings of the agent that differ, both values of each."""
    ours, theirs = (leaves_of(asdict(each.agent)) for each in (config, origin))
    return "; ".join(
        f"{option(name)} is {theirs.get(name)} there and {ours.get(name)} here"
        for name in ours | theirs
        if ours.get(name) != theirs.get(name)
    )


def leaves_of(values: dict[str, Any]) -> dict[str, Any]:
    """The settings of an agent and of its representation by name."""
    inner = [value for value in values.values() if isinstance(value, dict)]
    flat = {name: value for name, value in values.items() if not isinstance(value, dict)}
    return {name: value for part in (flat, *inner) for name, value in part.items()}


def heritage(config: TrainConfig) -> tuple[RunDirectory, TrainConfig]:
    """The run to start from and its configuration; UserError unless this run can."""
    source = RunDirectory.open(Path(config.init))
    origin = from_json(source.config["train"])
    check_heritage(config, origin)
    return source, origin


def check_heritage(config: TrainConfig, origin: TrainConfig) -> None:
    """Raise UserError unless a run of this configuration can inherit from one of `origin`."""
    if config.method != origin.method:
        raise UserError(
            f"{config.init} was trained by {origin.method}, this run is by {config.method}: "
            "only the same method has the same parts."
        )
    missing = [seed for seed in config.seeds if seed not in origin.seeds]
    if missing and len(origin.seeds) > 1:
        raise UserError(
            f"{config.init} has no seed {missing[0]}; its seeds are {list(origin.seeds)}."
        )
    ours, theirs = (shaping(each) for each in (config, origin))
    for name, value in theirs.items():
        if ours.get(name) != value:
            raise UserError(
                f"{config.init} was trained with {option(name)} {value}, this run has "
                f"{ours.get(name)}: what is taken needs the same sizes and inputs."
            )


def shaping(config: TrainConfig) -> dict[str, Any]:
    """Settings that an encoder depends on: its form, and the units of its inputs."""
    agent = config.agent
    form = asdict(agent.representation) if isinstance(agent, SpectralConfig) else {}
    return {name: form[name] for name in form if name not in NOT_KEPT} | {
        "normalize_observations": agent.normalize_observations,
        "frame_skip": config.frame_skip,
    }
