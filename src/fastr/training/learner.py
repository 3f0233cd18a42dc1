"""One seed's state on the device, and the compiled programs that move all seeds at once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Float32, Int

from fastr.agents.base import AbstractAgent, AbstractPolicy, AgentConfig, FeatureMap, Part, chosen
from fastr.core import EnvSpec
from fastr.nn import stream
from fastr.nn.moments import Moments
from fastr.nn.optim import Metrics
from fastr.nn.precision import matmul_precision
from fastr.training.replay import PrioritizedReplay, Replay, empty_replay
from fastr.transition import Transition

Result = TypeVar("Result")
Tree = TypeVar("Tree")

# Random streams of one seed: each is folded in once, then the clock.
INITIALISATION, EXPLORATION, UPDATES = range(3)


class NormalizedPolicy(AbstractPolicy):
    """A policy that sees observations through fixed statistics."""

    policy: AbstractPolicy
    mean: Float[Array, " state"]
    std: Float[Array, " state"]

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " action"]:
        """The action for a raw observation."""
        return self.policy((state - self.mean) / self.std)

    def write(self, program: Any, value: str, action_dim: int) -> str:
        """Standardisation, then the policy."""
        statistics = {"mean": self.mean, "std": self.std}
        value = program.add("standardize", (value,), "statistics", statistics)
        return self.policy.write(program, value, action_dim)


class RawFeatures(eqx.Module):
    """The features that a run's critics read, of raw observations."""

    network: FeatureMap
    mean: Float[Array, " state"]
    std: Float[Array, " state"]

    def __call__(
        self, state: Float[Array, " state"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """The feature of one state and action."""
        return self.network.feature((state - self.mean) / self.std, action)


class Logged(eqx.Module):
    """Transitions that are there from the start, the same for all seeds."""

    rows: Float[Array, "logged row"]
    per_batch: int = eqx.field(static=True)


class Learner(eqx.Module):
    """One seed: its agent, its transitions, its observation statistics."""

    agent: AbstractAgent
    replay: Replay | PrioritizedReplay
    moments: Moments
    seed: Int[Array, ""]
    broken_at: Int[Array, ""]
    """The first update with a metric that is not finite, or -1."""
    config: AgentConfig = eqx.field(static=True)
    spec: EnvSpec = eqx.field(static=True)

    @classmethod
    def init(
        cls, config: AgentConfig, spec: EnvSpec, capacity: int, seed: Int[Array, ""]
    ) -> "Learner":
        """A fresh learner; everything random in its life follows from the seed."""
        agent = config.init(spec, stream(seed, INITIALISATION, jnp.zeros((), int)))
        replay = empty_replay(capacity, spec.row_dim, config.priority_updates)
        broken_at = jnp.full((), -1, jnp.int32)
        return cls(agent, replay, Moments.empty(spec.state_dim), seed, broken_at, config, spec)

    def observe(self, row: Float[Array, " row"], steps: Int[Array, ""]) -> "Learner":
        """Add one transition, after `steps` others."""
        learner = replace(self, replay=self.replay.add(row, steps))
        if self.agent.kept_networks:
            # What is kept was learned on observations in these units.
            return learner
        return replace(learner, moments=self.moments.update(row[self.spec.row["state"]]))

    def inherit(self, source: "Learner", part: Part) -> "Learner":
        """The learner with a part of another, and with its observation statistics."""
        return replace(self, agent=self.agent.inherit(source.agent, part), moments=source.moments)

    def explore(
        self, state: Float[Array, " state"], steps: Int[Array, ""], random_steps: int
    ) -> Float[Array, " action"]:
        """The behaviour action at this agent step; uniform during the random phase."""
        key = stream(self.seed, EXPLORATION, steps)
        uniform_key, policy_key = jax.random.split(key)
        uniform = jax.random.uniform(uniform_key, (self.spec.action_dim,), minval=-1.0, maxval=1.0)
        # Both, then one of them: an accelerator would stop for the host to take a branch.
        return jnp.where(
            steps < random_steps, uniform, self.agent.explore(self.normalize(state), policy_key)
        )

    def improve(
        self, steps: Int[Array, ""], updates: Int[Array, ""], log: Logged | None = None
    ) -> tuple["Learner", Metrics]:
        """One update on a batch of the `steps` transitions seen, after `updates` others.

        A part of the batch is drawn from the log, if there is one.
        """
        sample_key, update_key = jax.random.split(stream(self.seed, UPDATES, updates))
        with jax.named_scope("replay"):
            if log is None:
                rows, slots = self.replay.sample(self.config.batch_size, steps, sample_key)
            elif log.per_batch == self.config.batch_size:
                slots = jnp.zeros(0, jnp.int32)
                rows = log.rows[jax.random.randint(sample_key, (log.per_batch,), 0, len(log.rows))]
            else:
                fresh_key, log_key = jax.random.split(sample_key)
                fresh = self.config.batch_size - log.per_batch
                rows, slots = self.replay.sample(fresh, steps, fresh_key)
                chosen = jax.random.randint(log_key, (log.per_batch,), 0, len(log.rows))
                rows = jnp.concatenate([rows, log.rows[chosen]])
            batch = self.unpack(rows)
        agent, td_error, metrics = self.agent.update(batch, update_key, updates)
        with jax.named_scope("replay"):
            replay = self.replay.reweigh(slots, td_error[: len(slots)], updates)
        metrics["observation_max"] = jnp.max(jnp.abs(batch.state))
        finite = jnp.all(jnp.isfinite(jnp.stack(list(metrics.values()))))
        broken_at = jnp.where((self.broken_at < 0) & ~finite, updates, self.broken_at)
        return replace(self, agent=agent, replay=replay, broken_at=broken_at), metrics

    def end_episode(
        self, episode_return: Float[Array, ""], over: Bool[Array, ""], updates: Int[Array, ""]
    ) -> "Learner":
        """Tell the agent the return of a training episode that is over."""
        after = self.agent.end_episode(episode_return, updates)
        return replace(self, agent=chosen(over, after, self.agent))

    def unpack(self, rows: Float[Array, "batch row"]) -> Transition:
        """Transitions from packed rows, with states as the agent sees them."""
        raw = Transition.unpack(rows, self.spec)
        return replace(
            raw, state=self.normalize(raw.state), next_state=self.normalize(raw.next_state)
        )

    def normalize(self, states: Float[Array, "*batch state"]) -> Float[Array, "*batch state"]:
        """States as the agent sees them."""
        if self.config.normalize_observations:
            return self.moments.normalize(states)
        return states

    def feature_map(self) -> "RawFeatures | None":
        """Features of raw observations, if the agent has any."""
        network = self.agent.feature_map()
        if network is None:
            return None
        mean, std = self.moments.mean, self.moments.std
        if not self.config.normalize_observations:
            mean, std = jnp.zeros_like(mean), jnp.ones_like(std)
        return RawFeatures(network, mean, std)

    def policy(self) -> AbstractPolicy:
        """The greedy policy on raw observations."""
        if self.config.normalize_observations:
            return NormalizedPolicy(self.agent.policy(), self.moments.mean, self.moments.std)
        return self.agent.policy()


class Cohort(eqx.Module):
    """All seeds of a run, and the clock they share."""

    learners: Learner
    """Every array has a leading seed axis."""
    steps: Int[Array, ""]
    """Transitions each seed has observed."""
    updates: Int[Array, ""]
    """Updates of each seed so far."""

    @classmethod
    def init(
        cls, config: AgentConfig, spec: EnvSpec, capacity: int, seeds: Int[Array, " seed"]
    ) -> "Cohort":
        """All seeds at their beginning."""
        learners = jax.vmap(lambda seed: Learner.init(config, spec, capacity, seed))(seeds)
        return cls(learners, jnp.zeros((), int), jnp.zeros((), int))


@jax.tree_util.register_pytree_node_class
class Held:
    """The arrays of a cohort in a row, as the programs of an engine take and return them."""

    def __init__(self, leaves: Sequence[Any], structure: Any):
        self.leaves, self.structure = tuple(leaves), structure

    @property
    def tree(self) -> Cohort:
        """The cohort."""
        return jax.tree.unflatten(self.structure, self.leaves)

    def at(self, places: Sequence[int]) -> list[Any]:
        """The arrays at these places."""
        return [self.leaves[i] for i in places]

    def placed(self, places: Sequence[int], arrays: Sequence[Any]) -> "Held":
        """With other arrays at these places."""
        changed = dict(zip(places, arrays, strict=True))
        leaves = [changed.get(i, leaf) for i, leaf in enumerate(self.leaves)]
        return Held(leaves, self.structure)

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """For JAX."""
        return self.leaves, self.structure

    @classmethod
    def tree_unflatten(cls, structure: Any, leaves: Sequence[Any]) -> "Held":
        """For JAX."""
        return cls(leaves, structure)


def held(cohort: Cohort) -> Held:
    """The arrays of this cohort."""
    return Held(*jax.tree.flatten(cohort))


class Touched(NamedTuple):
    """Places of the arrays of a cohort that a program changes, and of those it only reads."""

    changed: list[int]
    read: list[int]

    @classmethod
    def by(cls, function: Callable[..., Any], cohort: Cohort, *more: Any) -> "Touched":
        """Those of a function of the cohort; its first result is the cohort, if it changes any."""
        program = jax.make_jaxpr(function)(cohort, *more).jaxpr
        before = program.invars[: len(jax.tree.leaves(cohort))]
        after = program.outvars[: len(before)]
        if len(after) < len(before):
            after = before
        used = {id(variable) for equation in program.eqns for variable in equation.invars}
        changed = [i for i, (was, now) in enumerate(zip(before, after, strict=True)) if was != now]
        read = [i for i, was in enumerate(before) if id(was) in used and i not in changed]
        return cls(changed, read)


class Engine:
    """The compiled programs of a run: each moves every seed, in place.

    They take up to `block_steps` transitions, or updates, at once. A program is handed the arrays
    that it changes or reads: each costs time on the host, whether it is used or not.
    """

    def __init__(  # noqa: PLR0913  (all of a run that its programs depend on)
        self,
        config: AgentConfig,
        spec: EnvSpec,
        seeds: Sequence[int],
        *,
        capacity: int,
        random_steps: int,
        block_steps: int = 1,
        log: Float32[np.ndarray, "logged row"] | None = None,
        logged_rows: int = 0,
    ):
        self.config, self.spec, self.seeds = config, spec, tuple(seeds)
        self.capacity, self.random_steps = capacity, random_steps
        self.block_steps = block_steps
        self.sharding = seed_sharding(len(seeds))
        everywhere = NamedSharding(self.sharding.mesh, PartitionSpec())
        self._log, self._known = None, None
        if log is not None:
            self._log = Logged(jax.device_put(log, everywhere), logged_rows)
            self._known = log[:, spec.row["state"]]
        # Traced here for its shapes and inlined into a program below: not traced a second time.
        start, self._learn = (jax.jit(f, inline=True) for f in (self._init, self._learn_all))
        seed_shape = jax.ShapeDtypeStruct((len(seeds),), jnp.int32, sharding=self.sharding)
        shapes = jax.tree.map(self._placed, jax.eval_shape(start, seed_shape))
        self.metric_names = tuple(jax.eval_shape(self._learn, shapes, self._log)[1])
        state, row = (np.zeros((len(seeds), n), np.float32) for n in (spec.state_dim, spec.row_dim))
        observed = Touched.by(self._observe_all, shapes, row)
        acted = Touched.by(self._explore, shapes, state)
        self._learned = Touched.by(self._learn, shapes, self._log)
        if block_steps > 1:
            # What a loop only reads, and may not write over, is copied before it: the whole replay.
            self._learned = Touched(sorted(self._learned.changed + self._learned.read), [])
        read = sorted({*observed.read, *acted.read} - {*observed.changed})
        self._met = Touched(observed.changed, read)
        # Copies: updates go on in the memory of the others.
        self._acting = acted.read if block_steps > 1 else []
        self._shapes = held(shapes)
        # Fix the shardings once for all programs: inferred, they may differ between programs, and
        # the first call after another program compiles again.
        self._places = placed = jax.tree.map(lambda leaf: leaf.sharding, self._shapes)
        # The initial state is built under jit, so that a target and its online network are two
        # buffers: donation needs that.
        self._start = jax.jit(lambda seeds: held(start(seeds)), out_shardings=placed)
        self.explore = jax.jit(lambda cohort, states: self._explore(cohort.tree, states))
        # On an accelerator a loop of unknown length waits for the device at each turn.
        known = () if jax.default_backend() == "cpu" else (3,)
        self._meet = jax.jit(
            self._interact,
            donate_argnums=0,
            static_argnums=known,
            out_shardings=(placed.at(self._met.changed), self.sharding, placed.at(self._acting)),
        )
        self.act = jax.jit(self._act)
        self.update = self.update_program(update_options())
        self.end_episodes = jax.jit(self._end_episodes, donate_argnums=0, out_shardings=placed)
        self.policies = jax.jit(lambda cohort: jax.vmap(Learner.policy)(cohort.tree.learners))

    def update_program(self, options: dict[str, str]) -> Any:
        """Updates of every seed, compiled under these options: what `improve` calls."""
        places = self._places.at(self._learned.changed)
        return jax.jit(
            self._improve,
            donate_argnums=(0, 2),
            out_shardings=(places, self.sharding),
            compiler_options=options,
        )

    def init(self) -> Held:
        """All seeds at their beginning."""
        return self._start(jax.device_put(np.asarray(self.seeds, np.int32), self.sharding))

    def interact(
        self, cohort: Held, arrived: Float32[np.ndarray, "seed row_state"], count: int
    ) -> tuple[Held, Float[Array, "seed action"], list[Array]]:
        """Add the last transitions, then act on the current states; and what `act` needs."""
        changed, read = map(cohort.at, self._met)
        changed, actions, actors = self._meet(changed, read, arrived, count)
        return cohort.placed(self._met.changed, changed), actions, actors

    def improve(
        self, cohort: Held, last: Float[Array, "seed metric"], count: int, update: Any = None
    ) -> tuple[Held, Float[Array, "seed metric"]]:
        """Updates of every seed; the metrics of the last, in the order of `metric_names`."""
        changed, metrics = (update or self.update)(*self.improved(cohort, last, count))
        return cohort.placed(self._learned.changed, changed), metrics

    def improved(self, cohort: Held, last: Float[Array, "seed metric"], count: int) -> tuple:
        """What the program of the updates takes."""
        changed, read = map(cohort.at, self._learned)
        return changed, read, last, count, self._log

    def arrived(
        self,
        rows: Sequence[Float32[np.ndarray, "seed row"]],
        states: Float32[np.ndarray, "seed state"],
    ) -> tuple[Float32[np.ndarray, "seed row_state"], int]:
        """What `interact` takes: all in one array, with room for a full block; and the count.

        A transfer to an accelerator costs more than its content.
        """
        room = (self.block_steps - len(rows)) * self.spec.row_dim
        rest = np.zeros((len(self.seeds), room), np.float32)
        return np.concatenate([*rows, rest, states], axis=1), len(rows)

    def no_rows(self) -> Float32[np.ndarray, "seed row"]:
        """Placeholder for transitions where there is no simulator."""
        return np.zeros((len(self.seeds), self.spec.row_dim), np.float32)

    def no_metrics(self) -> Float[Array, "seed metric"]:
        """Placeholder for the metrics of an update before the first."""
        nothing = np.full((len(self.seeds), len(self.metric_names)), np.nan, np.float32)
        return jax.device_put(nothing, self.sharding)

    def _placed(self, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Divided by seeds; only the clock, which all seeds share, has no axis to divide."""
        everywhere = NamedSharding(self.sharding.mesh, PartitionSpec())
        place = self.sharding if leaf.ndim else everywhere
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)

    def _init(self, seeds: Int[Array, " seed"]) -> Cohort:
        cohort = Cohort.init(self.config, self.spec, self.capacity, seeds)
        if self._known is None:
            return cohort
        # Statistics start at the log's and go on from there; `inherit` puts others in their place.
        known = Moments(
            jnp.int32(len(self._known)),
            jnp.asarray(self._known.mean(0, np.float64), jnp.float32),
            jnp.asarray(self._known.var(0, np.float64), jnp.float32),
        )
        learners = jax.vmap(lambda learner: replace(learner, moments=known))(cohort.learners)
        return Cohort(learners, cohort.steps, cohort.updates)

    def _explore(
        self, cohort: Cohort, states: Float[Array, "seed state"]
    ) -> Float[Array, "seed action"]:
        """The actions in these states."""
        act = jax.vmap(Learner.explore, in_axes=(0, 0, None, None))
        with matmul_precision(self.config.precision):
            return act(cohort.learners, states, cohort.steps, self.random_steps)

    def _repeat(self, count: Any, step: Callable[[Any, Tree], Tree], tree: Tree) -> Tree:
        """Take a number of steps; in blocks of one that is always one, and needs no loop."""
        if self.block_steps == 1 or (isinstance(count, int) and count == 1):
            return step(0, tree)
        return jax.lax.fori_loop(0, count, step, tree)

    def _tree(self, places: Touched, changed: list[Array], read: list[Array]) -> Cohort:
        """A cohort of these arrays; the others, which are not looked at, are zeros."""
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._shapes)
        return blank.placed([*places.changed, *places.read], [*changed, *read]).tree

    def _interact(
        self,
        changed: list[Array],
        read: list[Array],
        arrived: Float[Array, "seed row_state"],
        count: Any,
    ) -> tuple[list[Array], Float[Array, "seed action"], list[Array]]:
        rows, states = jnp.split(arrived, [self.block_steps * self.spec.row_dim], axis=1)
        rows = rows.reshape(len(self.seeds), self.block_steps, self.spec.row_dim)

        def step(i: Any, changed: list[Array]) -> list[Array]:
            cohort = self._observe_all(self._tree(self._met, changed, read), rows[:, i])
            return held(cohort).at(self._met.changed)

        changed = self._repeat(count, step, changed)
        cohort = self._tree(self._met, changed, read)
        return changed, self._explore(cohort, states), held(cohort).at(self._acting)

    def _observe_all(self, cohort: Cohort, row: Float[Array, "seed row"]) -> Cohort:
        """Add a transition of every seed."""
        observe = jax.vmap(Learner.observe, in_axes=(0, 0, None))
        learners = observe(cohort.learners, row, cohort.steps)
        return Cohort(learners, cohort.steps + 1, cohort.updates)

    def _act(
        self, actors: list[Array], states: Float[Array, "seed state"], steps: Int[Array, ""]
    ) -> Float[Array, "seed action"]:
        """Act with a copy of the actors, while updates change the original."""
        cohort = self._tree(Touched([], self._acting), [], actors)
        return self._explore(replace(cohort, steps=steps), states)

    def _improve(
        self,
        changed: list[Array],
        read: list[Array],
        last: Float[Array, "seed metric"],
        count: Any,
        log: Logged | None,
    ) -> tuple[list[Array], Float[Array, "seed metric"]]:
        """Metrics overwrite the last update's, so that every array stays at its address.

        An accelerator records addresses in its program, and each change of one changes the program.
        What an update did not measure keeps its last value.
        """

        def step(_: Any, moved: tuple[list[Array], Array]) -> tuple[list[Array], Array]:
            cohort, metrics = self._learn(self._tree(self._learned, moved[0], read), log)
            stacked = jnp.stack([metrics[name] for name in self.metric_names], axis=1)
            kept = jnp.where(stacked == 0.0, moved[1], stacked)
            return held(cohort).at(self._learned.changed), kept

        return self._repeat(count, step, (changed, last))

    def _learn_all(
        self, cohort: Cohort, log: Logged | None = None
    ) -> tuple[Cohort, dict[str, Float[Array, " seed"]]]:
        """One update of every seed, and the metrics by name."""
        with matmul_precision(self.config.precision):
            learners, metrics = each_seed(
                lambda learner: learner.improve(cohort.steps, cohort.updates, log), cohort.learners
            )
        return Cohort(learners, cohort.steps, cohort.updates + 1), metrics

    def _end_episodes(
        self, cohort: Held, returns: Float[Array, " seed"], over: Bool[Array, " seed"]
    ) -> Held:
        """Tell the agents of the seeds whose training episode is over what it returned."""
        found = cohort.tree
        end = jax.vmap(Learner.end_episode, in_axes=(0, 0, 0, None))
        learners = end(found.learners, returns, over, found.updates)
        return held(Cohort(learners, found.steps, found.updates))


def each_seed(function: Callable[[Learner], Result], learners: Learner) -> Result:
    """The function of every learner at once.

    One learner has no seed axis: compilers choose worse layouts around an axis of one.
    """
    if learners.seed.shape[0] > 1:
        return jax.vmap(function)(learners)
    alone = jax.tree.map(lambda leaf: leaf[0], learners)
    # What the function leaves as it is stays the array that it was.
    same = dict(zip(map(id, jax.tree.leaves(alone)), jax.tree.leaves(learners), strict=True))
    return jax.tree.map(lambda leaf: same.get(id(leaf), leaf[None]), function(alone))


def update_options() -> dict[str, str]:
    """Compiler settings of the update on this kind of device."""
    if jax.default_backend() != "gpu":
        return {}
    # Actor and critics read target features alone, so they can run beside the contrastive loss:
    # measured on an H200, 4.8 -> 4.1 ms for five seeds and 2.0 -> 1.5 ms for one.
    return {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}


def seed_sharding(seeds: int) -> NamedSharding:
    """The seed axis over as many local devices as divide it evenly."""
    devices = jax.local_devices()
    used = max(count for count in range(1, len(devices) + 1) if seeds % count == 0)
    return NamedSharding(Mesh(np.array(devices[:used]), ("seed",)), PartitionSpec("seed"))
