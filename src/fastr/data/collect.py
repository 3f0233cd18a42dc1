"""Datasets of transitions from a task or a run: what `fastr collect` writes."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from fastr.core import EnvSpec, UserError, counted
from fastr.data.minari import PROVENANCE
from fastr.data.minari_writing import Episode, MinariWriter
from fastr.data.replay import RunReplay, episode_begins, unpacked
from fastr.envs import episode_seed, require_imported
from fastr.envs.pool import EnvPool
from fastr.runs.checkpoints import whole_numbers
from fastr.runs.directory import RunDirectory
from fastr.runs.provenance import provenance
from fastr.training.config import from_json
from fastr.training.learner import Learner
from fastr.training.progress import stage
from fastr.training.state import saved_cohort

Policy = Literal["replay", "greedy", "exploring", "random"]
Act = Callable[[np.ndarray, int], np.ndarray]
"""The actions of all seeds in these states at this step."""


def from_replay(run: Path, out: Path) -> dict[str, Any]:
    """Write all transitions that a run's replay holds, every seed's."""
    source = RunReplay(run)
    about = described(source.about.provenance | {"policy": "replay", "seeds": source.seeds})
    with (
        MinariWriter(out, source.spec, about) as writer,
        stage(f"copying {run.name}", source.about.rows, "transitions") as advance,
    ):
        for seed in range(source.checkpoint.row_shape[0]):
            for episode in replay_episodes(source, seed):
                writer.add(episode)
                advance(len(episode.actions))
    return summary(writer)


def replay_episodes(source: RunReplay, seed: int) -> Iterator[Episode]:
    """The episodes of one seed; the last one may be cut short."""
    held: list[np.ndarray] = []
    last = None
    for rows in source.pieces(seed):
        state, _, next_state, _ = unpacked(rows, source.spec)
        begins = np.flatnonzero(episode_begins(state, next_state, last))
        rest, *begun = np.split(rows, begins)
        held += [rest] if len(rest) else []
        for part in begun:
            if held:
                yield packed_episode(np.concatenate(held), source.spec)
            held = [part]
        last = next_state[-1]
    yield packed_episode(np.concatenate(held), source.spec)


def packed_episode(rows: Float32[np.ndarray, "rows row"], spec: EnvSpec) -> Episode:
    """One episode from its packed transitions."""
    state, action, next_state, scalars = unpacked(rows, spec)
    observations = np.concatenate([state, next_state[-1:]])
    return Episode(observations, action, scalars[:, 0], bool(scalars[-1, 1] == 0.0), None)


def from_task(
    task: str, frame_skip: int, seeds: Sequence[int], transitions: int, out: Path
) -> dict[str, Any]:
    """Write transitions of uniformly random actions."""
    facts = {"task": task, "frame_skip": frame_skip, "policy": "random", "seeds": list(seeds)}
    with EnvPool(task, frame_skip, seeds) as pool:
        act = random_actions(seeds, pool.spec.action_dim)
        return written(pool, act, [0] * len(seeds), transitions, out, facts)


def from_run(
    run: Path,
    policy: Literal["greedy", "exploring", "random"],
    chosen: Sequence[int],
    transitions: int,
    out: Path,
) -> dict[str, Any]:
    """Write transitions of a run's task under the policies of its newest checkpoint."""
    directory = RunDirectory.open(run)
    config, checkpoint = from_json(directory.config["train"]), directory.latest()
    require_imported(config.task, run)
    seeds = list(chosen) or list(config.seeds)
    if strange := [seed for seed in seeds if seed not in config.seeds]:
        raise UserError(f"--seeds {strange[0]} is not in {run}; it has {list(config.seeds)}.")
    places = [config.seeds.index(seed) for seed in seeds]
    cohort, spec = saved_cohort(config, checkpoint)
    if policy == "random":
        act = random_actions(seeds, spec.action_dim)
    else:
        learners = jax.tree.map(lambda leaf: leaf[np.array(places)], cohort.learners)
        act = learned_actions(learners, policy, int(cohort.steps))
    # Episodes that the run has not seen.
    begun: Any = checkpoint.host.get("episodes")
    if not whole_numbers(begun, len(config.seeds)):
        raise UserError(f"{run}: checkpoint {checkpoint.name} does not say which episodes it saw.")
    first = [begun[place] + 1 for place in places]
    facts = {
        "task": config.task,
        "frame_skip": config.frame_skip,
        "policy": policy,
        "seeds": seeds,
        "run": str(run),
        "method": config.method,
        "frames": checkpoint.frames,
        "run_provenance": directory.config["provenance"],
    }
    with EnvPool(config.task, config.frame_skip, seeds) as pool:
        return written(pool, act, first, transitions, out, facts)


def random_actions(seeds: Sequence[int], action_dim: int) -> Act:
    """Uniform actions, each seed from a stream of its own."""
    streams = [np.random.default_rng(seed) for seed in seeds]
    return lambda *_: np.stack(
        [stream.uniform(-1.0, 1.0, action_dim).astype(np.float32) for stream in streams]
    )


def learned_actions(
    learners: Learner, policy: Literal["greedy", "exploring"], steps_before: int
) -> Act:
    """The actions of trained policies, with the noise of training if exploring."""

    def greedy(learner: Learner, state: jax.Array, _: jax.Array) -> jax.Array:
        return learner.policy()(state)

    def exploring(learner: Learner, state: jax.Array, step: jax.Array) -> jax.Array:
        return learner.explore(state, step, 0)

    one = greedy if policy == "greedy" else exploring
    together = jax.jit(jax.vmap(one, in_axes=(0, 0, None)))
    return lambda states, step: np.asarray(
        together(learners, jnp.asarray(states), jnp.asarray(steps_before + step))
    )


def written(
    pool: EnvPool,
    act: Act,
    first_episodes: list[int],
    transitions: int,
    out: Path,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Play with the seeds that the facts name, and write each episode as it ends."""
    seeds = facts["seeds"]
    steps = -(-transitions // len(seeds))
    if steps * len(seeds) > transitions:
        print(
            f"fastr: {len(seeds)} seeds play {counted(steps, 'transition')} each, which makes "
            f"{steps * len(seeds):,} where {transitions:,} were asked for.",
            file=sys.stderr,
        )
    with (
        MinariWriter(out, pool.spec, described(facts)) as writer,
        stage(f"playing {facts['task']}", steps * len(seeds), "transitions") as advance,
    ):
        for episode in played(pool, act, first_episodes, seeds, steps):
            writer.add(episode)
            advance(len(episode.actions))
    return summary(writer)


def played(
    pool: EnvPool, act: Act, first_episodes: list[int], seeds: Sequence[int], steps: int
) -> Iterator[Episode]:
    """Episodes in the order they end; those under way after the last step are cut there."""
    states = pool.reset(first_episodes)
    numbers = list(first_episodes)
    under_way = [Recording(state) for state in states]
    for step in range(steps):
        actions = act(states, step)
        pool.send(actions)
        arrived = pool.receive()
        states = arrived.state
        for i, recording in enumerate(under_way):
            recording.add(actions[i], float(arrived.reward[i]), arrived.next_state[i])
            if arrived.over[i] or step == steps - 1:
                reset_with = episode_seed(seeds[i], numbers[i], "train")
                terminated = bool(arrived.continues[i] == 0.0)
                yield recording.episode(terminated=terminated, seed=reset_with)
                under_way[i] = Recording(states[i])
                numbers[i] += 1


class Recording:
    """An episode under way."""

    def __init__(self, state: np.ndarray):
        self.observations, self.actions, self.rewards = [state], [], []

    def add(self, action: np.ndarray, reward: float, next_state: np.ndarray) -> None:
        """One more transition."""
        self.observations.append(next_state)
        self.actions.append(action)
        self.rewards.append(reward)

    def episode(self, *, terminated: bool, seed: int) -> Episode:
        """All so far."""
        arrays = (self.observations, self.actions, self.rewards)
        observations, actions, rewards = (np.array(array, np.float32) for array in arrays)
        return Episode(observations, actions, rewards, terminated, seed)


def described(facts: dict[str, Any]) -> dict[str, Any]:
    """A dataset's metadata: what it is in words, and where it comes from."""
    how = {"replay": "the replay of a training run", "random": "uniformly random actions"}
    policy = how.get(facts["policy"], f"the {facts['policy']} policy of a trained run")
    return {
        "description": f"{facts['task']}, {policy}; actions in [-1, 1], each held for "
        f"{counted(facts['frame_skip'], 'frame')}.",
        "algorithm_name": str(facts.get("method") or facts["policy"]),
        PROVENANCE: facts | {"collected_by": provenance()},
    }


def summary(writer: MinariWriter) -> dict[str, Any]:
    """What was written."""
    return {
        "dataset": str(writer.path),
        "episodes": writer.episodes,
        "transitions": writer.steps,
        "state_dim": writer.spec.state_dim,
        "action_dim": writer.spec.action_dim,
    }
