"""The rows of a diagnosis: prepared, put in order, and gathered from disk beside the device's work.

All of it is on the host; what is drawn here does not depend on the predictors.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int

from fastr.core import EnvSpec, UserError, counted
from fastr.data import Dataset as Store
from fastr.studies.misfit.config import MisfitConfig
from fastr.studies.misfit.predictors import SAMPLE_ROWS, Scales, scales_of
from fastr.studies.misfit.splits import Split, split

CHUNK_BYTES = 2**25
"""Rows handed to the device at a time."""
# Random streams: what is drawn for one purpose is never drawn for another.
SPLIT, PROJECTIONS, SAMPLE, ORDER, HELD_OUT_ORDER = range(5)


@dataclass(frozen=True)
class Prepared:
    """A dataset ready for training."""

    store: Store
    split: Split
    scales: Scales
    """On the host."""
    still: tuple[int, ...]
    """Action coordinates that never vary over the training part's sample."""

    @property
    def spec(self) -> EnvSpec:
        """Sizes of states and actions."""
        return self.store.about.spec

    def shape(self, batch_size: int) -> tuple[int, ...]:
        """What datasets must have in common to train in one program."""
        return (
            self.spec.state_dim,
            self.spec.action_dim,
            len(self.split.train) // batch_size,
            -(-len(self.split.validation) // batch_size),
            -(-len(self.split.test) // batch_size),
        )


def prepare(store: Store, config: MisfitConfig) -> Prepared:
    """Split a dataset and take its statistics; UserError if a part is too small to rank in."""
    if config.split == "episode":
        refuse_lonely(store)
    parts = split(
        store.episodes, config.split, generator(config.split_seed, SPLIT), limit=config.limit
    )
    for name, rows in zip(parts._fields, parts, strict=True):
        if len(rows) < config.predictor.batch_size:
            raise UserError(
                f"{store.about.name}: the {name} part has {counted(len(rows), 'transition')}, "
                f"fewer than one batch of {config.predictor.batch_size}: give more data or "
                "a smaller --batch-size."
            )
    sample = generator(config.split_seed, SAMPLE).permutation(parts.train)[:SAMPLE_ROWS]
    sampled = store.rows[np.sort(sample)]
    scales = scales_of(
        sampled,
        (store.action_low, store.action_high),
        store.about,
        config.predictor.fourier_targets,
        generator(config.split_seed, PROJECTIONS),
    )
    if not np.any(scales.target_weight):
        raise UserError(
            f"{store.about.name}: no coordinate of its next states varies over the training part, "
            "so there is nothing to predict: check how the data was recorded."
        )
    refuse_unmoved(store, sampled)
    return Prepared(store, parts, scales, still_actions(store, sampled))


def refuse_lonely(store: Store) -> None:
    """Raise UserError if no two transitions share an episode: what numbers them is something else.

    Split by them, neighbours of the training part are tested on, and pass for unseen.
    """
    if store.episode_count == len(store.rows) > 1:
        raise UserError(
            f"{store.about.name}: every transition has an episode of its own, as if `episode` were "
            "a row's number or a time: give all rows of an episode the same number, or use "
            "--split transition if they are independent."
        )


def refuse_unmoved(store: Store, sampled: Float32[np.ndarray, "rows packed"]) -> None:
    """Raise UserError if every next state is the state itself."""
    width = store.about.spec.state_dim
    if np.array_equal(sampled[:, :width], sampled[:, -width:]):
        raise UserError(
            f"{store.about.name}: its next states are its states in every row, so there is "
            "nothing to predict: shift them by one step within each episode."
        )


def still_actions(store: Store, sampled: Float32[np.ndarray, "rows packed"]) -> tuple[int, ...]:
    """Action coordinates that never vary in these rows; UserError if none does.

    What does not depend on the action is of CP form: it would pass for a factorization that fits.
    """
    spec = store.about.spec
    actions = sampled[:, spec.state_dim : spec.state_dim + spec.action_dim]
    still = np.flatnonzero(np.ptp(actions, axis=0) == 0.0)
    if len(still) == spec.action_dim:
        raise UserError(
            f"{store.about.name}: no coordinate of its actions varies over the training part, so "
            "it cannot show what they do: check how the data was recorded."
        )
    return tuple(still.tolist())


def generator(*numbers: int) -> np.random.Generator:
    """A random stream named by numbers."""
    return np.random.default_rng(np.random.SeedSequence(numbers))


def groups(prepared: Sequence[Prepared], batch_size: int) -> list[tuple[list[int], list[Prepared]]]:
    """Datasets that can train in one program, with their places in the list."""
    found: dict[tuple[int, ...], tuple[list[int], list[Prepared]]] = {}
    for place, one in enumerate(prepared):
        places, members = found.setdefault(one.shape(batch_size), ([], []))
        places.append(place)
        members.append(one)
    return list(found.values())


class Piece(NamedTuple):
    """Some batches of a pass over rows."""

    content: Float32[np.ndarray, "dataset *seed step batch packed"]
    first: int
    """The number of the first batch in the pass."""
    batches: int
    """How many batches belong to the pass; the others only fill up the array."""


class Batches:
    """Rows of a group of datasets, gathered beside the device's work."""

    def __init__(self, group: Sequence[Prepared], batch_size: int):
        self.group, self.batch_size = group, batch_size
        self.thread = ThreadPoolExecutor(1)

    def close(self) -> None:
        """End the thread."""
        self.thread.shutdown(cancel_futures=True)

    def chunks(self, orders: Int[np.ndarray, "dataset *seed rows"]) -> Iterator[Piece]:
        """All whole batches of these rows, some at a time, every piece of one size."""
        *lead, rows = orders.shape
        steps = rows // self.batch_size
        packed = self.group[0].store.rows.shape[1]
        at_once = max(1, CHUNK_BYTES // (math.prod(lead) * self.batch_size * packed * 4))
        # As even as can be: what fills up the last piece is work for nothing.
        stride = -(-steps // -(-steps // at_once))
        shaped = orders[..., : steps * self.batch_size].reshape(*lead, steps, self.batch_size)
        places = [np.arange(start, start + stride) % steps for start in range(0, steps, stride)]
        parts = [shaped.take(place, len(lead)) for place in places]
        waiting = self.thread.submit(self._gather, parts[0])
        for number, following in enumerate([*parts[1:], None]):
            content = waiting.result()
            if following is not None:
                waiting = self.thread.submit(self._gather, following)
            yield Piece(content, number * stride, min(stride, steps - number * stride))

    def _gather(self, indices: np.ndarray) -> np.ndarray:
        """The packed rows of each dataset at these places."""
        pairs = zip(self.group, indices, strict=True)
        return np.stack([prepared.store.rows[places] for prepared, places in pairs])


def training_order(
    group: Sequence[Prepared], seeds: Sequence[int], epoch: int
) -> Int[np.ndarray, "dataset seed rows"]:
    """Every training row once, in an order of its own for each seed and epoch.

    Parts of one shape may differ by less than a batch: all are cut to the shortest.
    """
    orders = [
        [generator(seed, ORDER, epoch).permutation(prepared.split.train) for seed in seeds]
        for prepared in group
    ]
    shortest = min(len(order) for parts in orders for order in parts)
    return np.array([[order[:shortest] for order in parts] for parts in orders])


def held_out_order(
    parts: Sequence[Int[np.ndarray, " _"]], batch_size: int, seed: int
) -> Int[np.ndarray, "dataset padded"]:
    """Every held-out row once, in a fixed order; the first ones again to fill the last batch."""
    padded = []
    for part in parts:
        order = generator(seed, HELD_OUT_ORDER).permutation(part)
        padded.append(np.concatenate([order, order[: -len(order) % batch_size]]))
    return np.array(padded)


def in_order(
    losses: Float32[np.ndarray, "seed 2 padded"],
    order: Int[np.ndarray, " padded"],
    part: Int[np.ndarray, " rows"],
) -> Float32[np.ndarray, "seed 2 rows"]:
    """Losses in the rising order of the part's rows; repeated rows count once, as first seen."""
    once = order[: len(part)]
    return losses[..., : len(part)][..., np.argsort(once)]
