"""The rows of a diagnosis: split 70/15/15, checked, scaled, ordered and gathered from disk.

App. Empirical CP Misfit Diagnostic. Nothing here depends on the predictors: both see the same
batches in the same order.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from fastr.core import EnvSpec, UserError, counted
from fastr.data import Dataset
from fastr.studies.misfit import MisfitConfig, SplitBy

HELD_OUT = 0.15
"""Share of the validation part, and of the test part."""
CHUNK_BYTES = 2**25
"""Size of the pieces in which rows go to the device."""
SAMPLE_ROWS = 65_536
"""At most this many training rows are used for statistics."""
CONSTANT = 1e-6
"""A coordinate whose standard deviation is below this share of its mean counts as constant."""
NOISE = 1e-9
"""Likewise below this share of the largest standard deviation: simulators round."""
# Each purpose has a random stream of its own.
SPLIT, PROJECTIONS, SAMPLE, ORDER, HELD_OUT_ORDER = range(5)


class Split(NamedTuple):
    """Rows of a dataset in rising order, each in one part at most."""

    train: Int[np.ndarray, " train"]
    validation: Int[np.ndarray, " validation"]
    test: Int[np.ndarray, " test"]


def split(
    episodes: Int[np.ndarray, " rows"],
    by: SplitBy,
    generator: np.random.Generator,
    limit: int | None = None,
) -> Split:
    """70/15/15 of the episodes or transitions (App. Empirical CP Misfit Diagnostic).

    With a limit, randomly chosen whole episodes with at most that many transitions are used.
    UserError if there are too few.
    """
    rows = np.arange(len(episodes)) if limit is None else _limited(episodes, limit, generator)
    items = rows if by == "transition" else np.unique(episodes[rows])
    if len(items) < 3:
        within = "" if limit is None else " within --limit"
        advice = "" if by == "transition" else ", or use --split transition"
        raise UserError(
            f"The split into training, validation and test needs at least three {by}s{within}, "
            f"and the number here is {len(items)}: give more data{advice}."
        )
    held = max(1, round(HELD_OUT * len(items)))
    shuffled = generator.permutation(items)
    parts = shuffled[2 * held :], shuffled[:held], shuffled[held : 2 * held]
    if by == "transition":
        return Split(*(np.sort(part) for part in parts))
    return Split(*(rows[np.isin(episodes[rows], part)] for part in parts))


def _limited(
    episodes: Int[np.ndarray, " rows"], limit: int, generator: np.random.Generator
) -> Int[np.ndarray, " kept"]:
    numbers, sizes = np.unique(episodes, return_counts=True)
    order = generator.permutation(len(numbers))
    kept = order[np.cumsum(sizes[order]) <= limit]
    kept = kept if len(kept) else order[:1]
    return np.flatnonzero(np.isin(episodes, numbers[kept]))


class Batch(eqx.Module):
    """Normalised transitions, and the targets of the moment head."""

    state: Float[Array, "batch state"]
    action: Float[Array, "batch action"]
    next_state: Float[Array, "batch state"]
    targets: Float[Array, "batch target"]
    weights: Float[Array, " target"]


class Scales(eqx.Module):
    """Map a dataset's packed rows to network inputs and targets; taken from training rows alone."""

    shift: Float[Array, " packed"]
    scale: Float[Array, " packed"]
    """Reciprocal standard deviations of states, reciprocal half widths of actions."""
    frequencies: Float[Array, "state fourier"]
    phases: Float[Array, " fourier"]
    target_mean: Float[Array, " target"]
    target_scale: Float[Array, " target"]
    target_weight: Float[Array, " target"]
    """Weights in the moment loss: half for the state, half for its waves, 0 for constants."""

    def batch(self, rows: Float[Array, "batch packed"], spec: EnvSpec) -> Batch:
        """Normalised inputs; targets are the next state s', then sqrt(2) cos(w^T s' + b)."""
        ends = (spec.state_dim, spec.state_dim + spec.action_dim)
        normalised = (rows - self.shift[None]) * self.scale[None]
        state, action, next_state = jnp.split(normalised, ends, axis=1)
        waves = math.sqrt(2.0) * jnp.cos(next_state @ self.frequencies + self.phases[None])
        targets = jnp.concatenate([next_state, waves], axis=1)
        standardised = (targets - self.target_mean[None]) * self.target_scale[None]
        return Batch(state, action, next_state, standardised, self.target_weight)


def scales_of(
    rows: Float[np.ndarray, "rows packed"],
    bounds: tuple[np.ndarray, np.ndarray],
    spec: EnvSpec,
    fourier: int,
    generator: np.random.Generator,
) -> Scales:
    """Statistics of a sample of training rows; constant coordinates are shifted, not scaled."""
    states = rows[:, : spec.state_dim].astype(np.float64)
    mean, scale = states.mean(axis=0), _reciprocal(states.std(axis=0), states.mean(axis=0))
    low, high = (bound.astype(np.float64) for bound in bounds)
    centre, half = (low + high) / 2, _reciprocal((high - low) / 2, np.zeros_like(low))
    # Of unit length on average: the kernel's width is the distance between two states.
    frequencies = generator.normal(size=(spec.state_dim, fourier)) / math.sqrt(spec.state_dim)
    phases = generator.uniform(0.0, 2.0 * np.pi, size=fourier)
    next_state = (rows[:, -spec.state_dim :] - mean) * scale
    waves = math.sqrt(2.0) * np.cos(next_state @ frequencies + phases)
    targets = np.concatenate([next_state, waves], axis=1)
    target_mean, spread = targets.mean(axis=0), targets.std(axis=0)
    # A constant needs no prediction: with a weight it would pass for variance explained.
    varies = np.split(~_constant(spread, target_mean), [spec.state_dim])
    arrays = (
        np.concatenate([mean, centre, mean]),
        np.concatenate([scale, half, scale]),
        frequencies,
        phases,
        target_mean,
        _reciprocal(spread, target_mean),
        np.concatenate([part / max(1, part.sum()) for part in varies]) / 2.0,
    )
    return Scales(*(jnp.asarray(array, jnp.float32) for array in arrays))


def _reciprocal(spread: np.ndarray, size: np.ndarray) -> np.ndarray:
    return 1.0 / np.where(_constant(spread, size), 1.0, spread)


def _constant(spread: np.ndarray, size: np.ndarray) -> np.ndarray:
    return spread <= np.maximum(CONSTANT * np.abs(size), NOISE * spread.max(initial=0.0))


@dataclass(frozen=True)
class Prepared:
    """A dataset ready for training."""

    store: Dataset
    split: Split
    scales: Scales
    constant_actions: tuple[int, ...]
    """Action coordinates that do not vary in the training part."""


def prepare(store: Dataset, config: MisfitConfig) -> Prepared:
    """Split a dataset and take its statistics; UserError if it cannot answer the question."""
    name, spec, seed = store.about.name, store.about.spec, config.split_seed
    if config.split == "episode" and store.episode_count == len(store.rows) > 1:
        raise UserError(
            f"{name}: every transition has its own episode number, so that a split by episode "
            "would test on neighbours of training transitions: give all rows of an episode the "
            "same number, or use --split transition if they are independent."
        )
    parts = split(
        store.episodes, config.split, np.random.default_rng([seed, SPLIT]), limit=config.limit
    )
    batch_size = config.predictor.batch_size
    for part, rows in parts._asdict().items():
        if len(rows) < batch_size:
            raise UserError(
                f"{name}: the {part} part has {counted(len(rows), 'transition')}, fewer than one "
                f"batch of {batch_size}: give more data or a smaller --batch-size."
            )
    sampler = np.random.default_rng([seed, SAMPLE])
    sample = sampler.permutation(parts.train)[:SAMPLE_ROWS]
    sampled = store.rows[np.sort(sample)]
    bounds, fourier = (store.action_low, store.action_high), config.predictor.fourier_targets
    scales = scales_of(sampled, bounds, spec, fourier, np.random.default_rng([seed, PROJECTIONS]))
    state, action, next_state = np.split(
        sampled, [spec.state_dim, spec.state_dim + spec.action_dim], axis=1
    )
    # What does not depend on the action has CP form: it would pass for a good fit.
    constant = np.flatnonzero(np.ptp(action, axis=0) == 0.0)
    problems = {
        "no coordinate of the next states varies in the training part, so there is nothing to "
        "predict: check how the data was recorded.": not np.any(scales.target_weight),
        "the next state equals the state in every row: shift the next states by one step within "
        "each episode.": np.array_equal(state, next_state),
        "no coordinate of the actions varies in the training part, so the data does not show "
        "their effect: check how the data was recorded.": len(constant) == spec.action_dim,
    }
    for problem, found in problems.items():
        if found:
            raise UserError(f"{name}: {problem}")
    return Prepared(store, parts, scales, tuple(constant.tolist()))


class Piece(NamedTuple):
    """Some batches of a pass over rows."""

    content: Float32[np.ndarray, "*seed step batch packed"]
    first: int
    """The number of the first batch in the pass."""
    batches: int
    """How many batches belong to the pass; the rest is padding."""


def pieces(
    rows: Float32[np.ndarray, "rows packed"], orders: Int[np.ndarray, "*seed used"], batch_size: int
) -> Iterator[Piece]:
    """All whole batches of these rows in equal pieces; a thread gathers while the device works."""
    *lead, used = orders.shape
    steps = used // batch_size
    at_once = max(1, CHUNK_BYTES // (math.prod(lead) * batch_size * rows.shape[1] * 4))
    # As even as possible, because the last piece is padded.
    stride = -(-steps // -(-steps // at_once))
    batches = orders[..., : steps * batch_size].reshape(*lead, steps, batch_size)

    def gather(start: int) -> np.ndarray:
        return rows[batches.take(np.arange(start, start + stride) % steps, len(lead))]

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(gather, 0)
        for start in range(0, steps, stride):
            content = waiting.result()
            if start + stride < steps:
                waiting = thread.submit(gather, start + stride)
            yield Piece(content, start, min(stride, steps - start))


def training_order(
    rows: Int[np.ndarray, " rows"], seeds: Sequence[int], epoch: int
) -> Int[np.ndarray, "seed rows"]:
    """Every training row once, in another order for each seed and epoch."""
    generators = (np.random.default_rng([seed, ORDER, epoch]) for seed in seeds)
    return np.array([generator.permutation(rows) for generator in generators])


def held_out_order(
    rows: Int[np.ndarray, " rows"], batch_size: int, seed: int
) -> Int[np.ndarray, " padded"]:
    """Every held-out row once in a fixed order, then the first ones again to fill a batch."""
    order = np.random.default_rng([seed, HELD_OUT_ORDER]).permutation(rows)
    return np.concatenate([order, order[: -len(order) % batch_size]])


def in_order(
    losses: Float32[np.ndarray, "seed 2 padded"],
    order: Int[np.ndarray, " padded"],
    rows: Int[np.ndarray, " rows"],
) -> Float32[np.ndarray, "seed 2 rows"]:
    """Losses in the rising order of the rows, without the padding."""
    return losses[..., : len(rows)][..., np.argsort(order[: len(rows)])]
