"""Datasets of transitions from a task or a run, in Minari's format: what `fastr collect` writes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fastr.core import UserError, counted
from fastr.data.dataset import spool
from fastr.data.formats import RunReplay
from fastr.data.minari import PROVENANCE, Episode, MinariWriter
from fastr.envs import episode_seed, require_imported
from fastr.envs.processes import EnvPool
from fastr.runs import RunDirectory
from fastr.runs.provenance import provenance
from fastr.runs.untrusted import whole_numbers
from fastr.training.config import from_json
from fastr.training.learner import Learner
from fastr.training.progress import stage
from fastr.training.state import saved_cohort

Act = Callable[[np.ndarray, int], np.ndarray]
"""The actions of all seeds in these states at this step."""


def from_replay(run: Path, out: Path) -> dict[str, Any]:
    """Write a run's replay, seed by seed; a seed's first and last episodes may be incomplete."""
    source = RunReplay(run)
    about = described(source.about.provenance | {"policy": "replay", "seeds": source.seeds})
    with (
        MinariWriter(out, source.about.spec, about) as writer,
        TemporaryDirectory(prefix=".rows-", dir=out) as folder,
        stage(f"copying {run.name}", source.about.rows, "transitions") as advance,
    ):
        data = spool(source, Path(folder) / "rows", observed_bounds=False, advance=advance)
        ends = [*data.episode_starts[1:], len(data.rows)]
        for part in map(slice, data.episode_starts, ends):
            observations = np.concatenate([data.state[part], data.next_state[part][-1:]])
            reward, over = (np.asarray(column)[part] for column in (data.reward, data.terminated))
            writer.add(Episode(observations, data.action[part], reward, bool(over[-1]), None))
    return summary(writer)


def from_task(
    task: str, frame_skip: int, seeds: Sequence[int], transitions: int, out: Path
) -> dict[str, Any]:
    """Write transitions of uniformly random actions."""
    facts = {"task": task, "frame_skip": frame_skip, "policy": "random", "seeds": list(seeds)}
    with EnvPool(task, frame_skip, seeds) as pool:
        act = random_actions(seeds, pool.spec.action_dim)
        return write(pool, act, [0] * len(seeds), transitions, out, facts)


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
    if unknown := [seed for seed in seeds if seed not in config.seeds]:
        raise UserError(f"--seeds {unknown[0]} is not in {run}; it has {list(config.seeds)}.")
    places = [config.seeds.index(seed) for seed in seeds]
    cohort, spec = saved_cohort(config, checkpoint)
    if policy == "random":
        act = random_actions(seeds, spec.action_dim)
    else:
        learners = jax.tree.map(lambda leaf: leaf[np.array(places)], cohort.learners)
        act = learned_actions(learners, policy, int(cohort.steps))
    # Episodes that the run has not seen.
    seen: Any = checkpoint.host.get("episodes")
    if not whole_numbers(seen, len(config.seeds)):
        raise UserError(f"{run}: checkpoint {checkpoint.name} does not say which episodes it saw.")
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
        first = [seen[place] + 1 for place in places]
        return write(pool, act, first, transitions, out, facts)


def random_actions(seeds: Sequence[int], action_dim: int) -> Act:
    """Uniform actions, each seed from its own stream."""
    streams = [np.random.default_rng(seed) for seed in seeds]
    return lambda *_: np.stack(
        [stream.uniform(-1.0, 1.0, action_dim).astype(np.float32) for stream in streams]
    )


def learned_actions(
    learners: Learner, policy: Literal["greedy", "exploring"], steps_before: int
) -> Act:
    """The actions of trained policies, with the noise of training if exploring."""

    def action(learner: Learner, state: jax.Array, step: jax.Array) -> jax.Array:
        return learner.policy()(state) if policy == "greedy" else learner.explore(state, step, 0)

    together = jax.jit(jax.vmap(action, in_axes=(0, 0, None)))
    return lambda states, step: np.asarray(
        together(learners, jnp.asarray(states), jnp.asarray(steps_before + step))
    )


def write(
    pool: EnvPool,
    act: Act,
    first_episodes: list[int],
    transitions: int,
    out: Path,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Play with the seeds named in the facts, and write each episode as it ends."""
    seeds = facts["seeds"]
    steps = -(-transitions // len(seeds))
    with (
        MinariWriter(out, pool.spec, described(facts)) as writer,
        stage(f"playing {facts['task']}", steps * len(seeds), "transitions") as advance,
    ):
        for episode in play(pool, act, first_episodes, seeds, steps):
            writer.add(episode)
            advance(len(episode.actions))
    return summary(writer)


def play(
    pool: EnvPool, act: Act, first_episodes: list[int], seeds: Sequence[int], steps: int
) -> Iterator[Episode]:
    """Episodes in the order they end; unfinished ones are truncated after the last step."""
    states = pool.reset(first_episodes)
    numbers = list(first_episodes)
    observed: list[list[np.ndarray]] = [[state] for state in states]
    taken: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in seeds]
    for step in range(steps):
        actions = act(states, step)
        pool.send(actions)
        arrived = pool.receive()
        states = arrived.state
        for i, seed in enumerate(seeds):
            observed[i].append(arrived.next_state[i])
            taken[i].append((actions[i], arrived.reward[i]))
            if arrived.over[i] or step == steps - 1:
                columns = (observed[i], *zip(*taken[i], strict=True))
                observations, acted, rewards = (np.array(c, np.float32) for c in columns)
                terminated = bool(arrived.continues[i] == 0.0)
                reset_seed = episode_seed(seed, numbers[i], "train")
                yield Episode(observations, acted, rewards, terminated, reset_seed)
                observed[i], taken[i] = [states[i]], []
                numbers[i] += 1


def described(facts: dict[str, Any]) -> dict[str, Any]:
    """A dataset's metadata: a description in words, and its provenance."""
    how = {"replay": "the replay of a training run", "random": "uniformly random actions"}
    policy = how.get(facts["policy"], f"the {facts['policy']} policy of a trained run")
    return {
        "description": f"{facts['task']}, {policy}; actions in [-1, 1], each held for "
        f"{counted(facts['frame_skip'], 'frame')}.",
        "algorithm_name": str(facts.get("method") or facts["policy"]),
        PROVENANCE: facts | {"collected_by": provenance()},
    }


def summary(writer: MinariWriter) -> dict[str, Any]:
    """Sizes of a written dataset."""
    return {
        "dataset": str(writer.path),
        "episodes": writer.episodes,
        "transitions": writer.steps,
        "state_dim": writer.spec.state_dim,
        "action_dim": writer.spec.action_dim,
    }
