"""Measurements of a representation: gradient coverage, and its change by adaptation.

Gradient coverage of the next-state factor by one batch (Sec. Method, App. Ablation): for any score
s(phi_s, phi_a, M(s')), the gradient of the ranking loss with respect to the vectors M(s') is a
matrix with a row per candidate. For a trilinear score its rows lie in the span of the batch's N
products phi_a(a_i) (x) phi_s(s_i), so its rank is at most min(N, dim M): the directions outside of
it are not trained by this batch.

Adaptation to other actuators (Sec. Modular Reuse): similarity of features before and after it.
"""

import contextlib
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray

from fastr import envs
from fastr.agents.base import AgentConfig
from fastr.agents.spectral import Spectral
from fastr.core import EnvSpec, UserError
from fastr.representations.base import AbstractRepresentation
from fastr.representations.interactions import Factored
from fastr.representations.ranking import Contrastive, RankingConfig
from fastr.representations.scores import perturb, ranking_loss, vp_signal
from fastr.runs.directory import RunDirectory
from fastr.training.config import METHODS, TrainConfig, from_json
from fastr.training.learner import Learner
from fastr.training.state import saved_cohort
from fastr.transition import Transition

TOLERANCE = 1e-10
"""Singular values below this share of the largest count as zero; arithmetic is in float64."""
ENERGY = 0.99
"""Share of the gradient's squared norm in the effective directions."""
LARGEST_BATCH = 2**14
"""All pairs of a batch are scored in float64: 2 GiB for each noise level."""
HELD_OUT = 512
"""Random transitions of the shifted body on which representations are compared."""


class Rows(NamedTuple):
    """Packed transitions and the sizes to unpack them by."""

    values: Float64[np.ndarray, "batch row"]
    spec: EnvSpec


@dataclass(frozen=True)
class Coverage:
    """The directions of a representation's next-state factor that one batch can train."""

    method: str
    batch_size: int
    dimension: int
    """dim M, the effective NCE dimension."""
    bound: int
    """min(N, dim M); a score that is not linear in M may exceed it."""
    rank: int
    effective: int
    """Directions with 99 % of the gradient's squared norm."""


def coverage_of(config: TrainConfig) -> list[Coverage]:
    """Coverage of a run's fresh representation by a quarter, half and the whole of its batch.

    Transitions are those of a random policy.
    """
    if (representation := _ranking(config.agent)) is None:
        known = ", ".join(name for name, agent in METHODS.items() if _ranking(agent))
        raise UserError(
            f"--coverage is for methods that rank next states, and {config.method} does not; "
            f"choose among {known}."
        )
    batch_size, seed = config.agent.batch_size, config.seeds[0]
    if batch_size > LARGEST_BATCH:
        raise UserError(f"--coverage needs a --batch-size of at most {LARGEST_BATCH:,}.")
    rows = standardised(random_rows(config.task, config.frame_skip, batch_size, seed))
    sizes = tuple(sorted({max(2, batch_size // part) for part in (4, 2, 1)}))
    return measure(config.method, representation, rows, sizes, seed)


def _ranking(agent: AgentConfig) -> RankingConfig | None:
    representation = getattr(agent, "representation", None)
    return representation if isinstance(representation, RankingConfig) else None


def measure(
    method: str, config: RankingConfig, rows: Rows, sizes: tuple[int, ...], seed: int
) -> list[Coverage]:
    """The coverage of a freshly initialised representation, for batches of these sizes."""

    def fresh(key: PRNGKeyArray) -> Contrastive:
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float64), config.init(rows.spec, key))

    with jax.enable_x64(new_val=True):
        net, found, compiled = jax.jit(fresh)(jax.random.key(seed)), [], jax.jit(core_gradient)
        for size in sizes:
            batch = Transition.unpack(jnp.asarray(rows.values[:size]), rows.spec)
            gradient = np.asarray(compiled(net, batch, jax.random.key(seed)))
            dimension = gradient.shape[1]
            bound = min(size, dimension)
            found.append(Coverage(method, size, dimension, bound, *ranks(gradient)))
        return found


def core_gradient(
    net: Contrastive, batch: Transition, key: PRNGKeyArray
) -> Float[Array, "candidate dim"]:
    """d ranking loss / d M(s'_j) for each candidate j, at the lowest and highest noise level.

    At one level alone the rows sum to zero, because a softmax ignores what all candidates share,
    and that costs one direction.
    """
    contrast = net.contrast
    noise = jax.random.normal(key, (contrast.config.noise_levels, *batch.next_state.shape))
    at = jnp.arange(len(noise))
    states = perturb(batch.next_state, noise, vp_signal(len(noise)))
    levels = at[jnp.asarray([0, -1])]
    score = net.scored(batch).score

    def loss(candidates: Float[Array, "2 candidate dim"]) -> Float[Array, ""]:
        logits = score(candidates)
        if contrast.log_temperature is not None:
            logits = logits * jnp.exp(-contrast.log_temperature[levels])[None, :, None]
        return ranking_loss(logits)

    gradient = jax.grad(loss)(contrast.candidates(states, at)[levels])
    return gradient.reshape(-1, gradient.shape[-1])


def ranks(matrix: Float64[np.ndarray, "row column"]) -> tuple[int, int]:
    """The numerical rank, and the number of directions with 99 % of the squared norm."""
    values = np.linalg.svd(matrix, compute_uv=False)
    energy = np.cumsum(values**2) / max(np.sum(values**2), np.finfo(float).tiny)
    rank = int(np.sum(values > TOLERANCE * values[0])) if values[0] > 0 else 0
    return rank, min(rank, 1 + int(np.searchsorted(energy, ENERGY)))


def random_rows(task: str, frame_skip: int, count: int, seed: int) -> Rows:
    """Packed transitions of a uniformly random policy, in random order."""
    rng = np.random.default_rng(seed)
    with contextlib.closing(envs.load(task, frame_skip)) as environment:
        spec, rows, episode = environment.spec, [], 0
        while len(rows) < count:
            state, over = environment.reset(envs.episode_seed(seed, episode, "train")), False
            while not over and len(rows) < count:
                action = rng.uniform(-1.0, 1.0, spec.action_dim).astype(np.float32)
                step = environment.step(action)
                scalars = [step.reward, not step.terminated]
                rows.append(np.concatenate([state, action, step.next_state, scalars]))
                state, over = step.next_state, step.terminated or step.truncated
            episode += 1
    # Shuffled, because neighbours in time are nearly the same state.
    return Rows(np.asarray(rows, np.float64)[rng.permutation(count)], spec)


def standardised(rows: Rows) -> Rows:
    """The same transitions with observations of mean 0 and variance 1."""
    values, size = rows.values.copy(), rows.spec.state_dim
    mean, std = values[:, :size].mean(axis=0), values[:, :size].std(axis=0) + 1e-6
    for part in (slice(0, size), slice(-size - 2, -2)):
        values[:, part] = (values[:, part] - mean) / std
    return Rows(values, rows.spec)


def linear_cka(
    first: Float64[np.ndarray, "rows one"], second: Float64[np.ndarray, "rows two"]
) -> float:
    """Centred kernel alignment of two features of the same rows, for linear kernels.

    |Y^T X|_F^2 / (|X^T X|_F |Y^T Y|_F) of centred X and Y: from 0 to 1, invariant to rotation and
    scale of either.
    """
    x, y = (feature - feature.mean(axis=0) for feature in (first, second))
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(y.T @ x) ** 2 / norms) if norms > 0 else 0.0


def changes(source: RunDirectory, adapted: RunDirectory) -> dict[tuple[int, str], float]:
    """Compare the representations of two runs on the body of the adapted one, by seed and quantity.

    Quantities are the linear CKA of each component's features before and after adaptation (1 where
    nothing moved), and the ranking loss of both representations.
    """
    origin, config = (from_json(run.config["train"]) for run in (source, adapted))
    values = random_rows(config.task, config.frame_skip, HELD_OUT, 0).values
    rows = jnp.asarray(values, jnp.float32)
    cohorts = [saved_cohort(origin, source.latest())[0], saved_cohort(config, adapted.latest())[0]]
    found = {}
    for place, seed in enumerate(config.seeds):
        places = (origin.seeds.index(seed), place)
        (old, old_loss), (new, new_loss) = (
            _measured(jax.tree.map(lambda leaf, at=at: jnp.asarray(leaf[at]), one.learners), rows)
            for one, at in zip(cohorts, places, strict=True)
        )
        for name in old:
            parts = (np.asarray(one[name], np.float64) for one in (old, new))
            found[seed, f"CKA of the {name}"] = linear_cka(*parts)
        found[seed, "ranking loss, unadapted"] = float(old_loss)
        found[seed, "ranking loss, adapted"] = float(new_loss)
    return found


def components(net: AbstractRepresentation, batch: Transition) -> dict[str, Float[Array, "rows _"]]:
    """The features of every part of a representation."""
    found = {"feature": jax.vmap(net.feature)(batch.state, batch.action)}
    if isinstance(net, Factored):
        found["state factor"] = jax.vmap(net.context)(batch.state)
        found["action factor"] = jax.vmap(net.action_factor)(batch.action)
    if isinstance(net, Contrastive):
        clean = jnp.broadcast_to(batch.next_state, (1, *batch.next_state.shape))
        found["next-state factor"] = net.contrast.candidates(clean, jnp.zeros(1, int))[0]
    return found


@jax.jit
def _measured(learner: Learner, values: Float[Array, "rows row"]) -> tuple[dict, Array]:
    # Each learner sees the transitions in its own units.
    batch = learner.unpack(values)
    assert isinstance(learner.agent, Spectral)
    net = learner.agent.representation.net
    _, metrics = net.loss(batch, jax.random.key(0))
    return components(net, batch), metrics["nce_loss"]
