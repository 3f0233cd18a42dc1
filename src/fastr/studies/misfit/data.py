"""The rows of a diagnosis on the host: split 70/15/15, checked, ordered and gathered from disk.

Nothing here depends on the predictors: both see the same batches in the same order.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int

from fastr.core import EnvSpec, UserError, counted
from fastr.data import Dataset
from fastr.studies.misfit.config import MisfitConfig, SplitBy
from fastr.studies.misfit.predictors import SAMPLE_ROWS, Scales, scales_of

HELD_OUT = 0.15
"""Share of the validation part, and of the test part."""
CHUNK_BYTES = 2**25
"""Size of the pieces in which rows go to the device."""
# Each purpose has a random stream of its own.
SPLIT, PROJECTIONS, SAMPLE, ORDER, HELD_OUT_ORDER = range(5)


def generator(*numbers: int) -> np.random.Generator:
    """A random stream named by numbers."""
    return np.random.default_rng(np.random.SeedSequence(numbers))


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
    """70/15/15 of the episodes, or of the transitions; UserError if there are too few.

    With a limit, randomly chosen whole episodes with at most that many transitions are used.
    """
    rows = np.arange(len(episodes)) if limit is None else _limited(episodes, limit, generator)
    if by == "transition":
        parts = _cut(rows, generator, "transitions")
        return Split(*(np.sort(part) for part in parts))
    numbers = np.unique(episodes[rows])
    parts = _cut(numbers, generator, "episodes" if limit is None else "episodes within --limit")
    return Split(*(rows[np.isin(episodes[rows], part)] for part in parts))


def _cut(items: np.ndarray, generator: np.random.Generator, what: str) -> list[np.ndarray]:
    if len(items) < 3:
        advice = "" if what == "transitions" else ", or use --split transition"
        raise UserError(
            f"The split into training, validation and test needs at least three {what}, and the "
            f"number here is {len(items)}: give more data{advice}."
        )
    held = max(1, round(HELD_OUT * len(items)))
    shuffled = generator.permutation(items)
    return [shuffled[2 * held :], shuffled[:held], shuffled[held : 2 * held]]


def _limited(
    episodes: Int[np.ndarray, " rows"], limit: int, generator: np.random.Generator
) -> Int[np.ndarray, " kept"]:
    numbers, sizes = np.unique(episodes, return_counts=True)
    order = generator.permutation(len(numbers))
    kept = order[np.cumsum(sizes[order]) <= limit]
    kept = kept if len(kept) else order[:1]
    return np.flatnonzero(np.isin(episodes, numbers[kept]))


@dataclass(frozen=True)
class Prepared:
    """A dataset ready for training."""

    store: Dataset
    split: Split
    scales: Scales
    constant_actions: tuple[int, ...]
    """Action coordinates that do not vary in the training part."""

    @property
    def spec(self) -> EnvSpec:
        """Sizes of states and actions."""
        return self.store.about.spec

    @property
    def name(self) -> str:
        """The dataset's name in reports."""
        return self.store.about.name


def prepare(store: Dataset, config: MisfitConfig) -> Prepared:
    """Split a dataset and take its statistics; UserError if it cannot answer the question."""
    name, spec, seed = store.about.name, store.about.spec, config.split_seed
    if config.split == "episode" and store.episode_count == len(store.rows) > 1:
        raise UserError(
            f"{name}: every transition has its own episode number, so that a split by episode "
            "would test on neighbours of training transitions: give all rows of an episode the "
            "same number, or use --split transition if they are independent."
        )
    parts = split(store.episodes, config.split, generator(seed, SPLIT), limit=config.limit)
    for part, rows in parts._asdict().items():
        if len(rows) < config.predictor.batch_size:
            raise UserError(
                f"{name}: the {part} part has {counted(len(rows), 'transition')}, "
                f"fewer than one batch of {config.predictor.batch_size}: give more data or "
                "a smaller --batch-size."
            )
    sample = generator(seed, SAMPLE).permutation(parts.train)[:SAMPLE_ROWS]
    sampled = store.rows[np.sort(sample)]
    bounds = store.action_low, store.action_high
    scales = scales_of(
        sampled, bounds, spec, config.predictor.fourier_targets, generator(seed, PROJECTIONS)
    )
    state, action, next_state = np.split(
        sampled, [spec.state_dim, spec.state_dim + spec.action_dim], axis=1
    )
    # What does not depend on the action has CP form: it would pass for a good fit.
    constant = np.flatnonzero(np.ptp(action, axis=0) == 0.0)
    problems = [
        (
            not np.any(scales.target_weight),
            "no coordinate of the next states varies in the training part, so there is nothing to "
            "predict: check how the data was recorded",
        ),
        (
            np.array_equal(state, next_state),
            "the next state equals the state in every row: shift the next states by one step "
            "within each episode",
        ),
        (
            len(constant) == spec.action_dim,
            "no coordinate of the actions varies in the training part, so the data does not show "
            "their effect: check how the data was recorded",
        ),
    ]
    for found, problem in problems:
        if found:
            raise UserError(f"{name}: {problem}.")
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
    starts = range(0, steps, stride)

    def gather(start: int) -> np.ndarray:
        return rows[batches.take(np.arange(start, start + stride) % steps, len(lead))]

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(gather, 0)
        for start in starts:
            content = waiting.result()
            if start + stride < steps:
                waiting = thread.submit(gather, start + stride)
            yield Piece(content, start, min(stride, steps - start))


def training_order(
    rows: Int[np.ndarray, " rows"], seeds: Sequence[int], epoch: int
) -> Int[np.ndarray, "seed rows"]:
    """Every training row once, in another order for each seed and epoch."""
    return np.array([generator(seed, ORDER, epoch).permutation(rows) for seed in seeds])


def held_out_order(
    rows: Int[np.ndarray, " rows"], batch_size: int, seed: int
) -> Int[np.ndarray, " padded"]:
    """Every held-out row once in a fixed order, then the first ones again to fill a batch."""
    order = generator(seed, HELD_OUT_ORDER).permutation(rows)
    return np.concatenate([order, order[: -len(order) % batch_size]])


def in_order(
    losses: Float32[np.ndarray, "seed 2 padded"],
    order: Int[np.ndarray, " padded"],
    rows: Int[np.ndarray, " rows"],
) -> Float32[np.ndarray, "seed 2 rows"]:
    """Losses in the rising order of the rows, without the padding."""
    return losses[..., : len(rows)][..., np.argsort(order[: len(rows)])]
