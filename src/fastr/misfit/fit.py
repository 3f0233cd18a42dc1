"""Both predictors trained on the same batches, all datasets and seeds of one shape side by side.

Rows are gathered from disk on the host, some batches at a time, while the device works on the ones
before; every axis of a program is (dataset, seed, ...).
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from fastr.datasets.store import Store
from fastr.errors import RunError, UserError
from fastr.misfit.config import KINDS, Kind, MisfitConfig
from fastr.misfit.predictors import SAMPLE_ROWS, Predictor, Scales, scales_of
from fastr.misfit.splits import Split, split
from fastr.optim import Adam, Parameters, Trainable
from fastr.spec import EnvSpec

CHUNK_BYTES = 2**25
"""Rows handed to the device at a time."""
# Random streams: what is drawn for one purpose is never drawn for another.
INITIALISATION, NOISE, VALIDATION, TEST = range(4)
SPLIT, PROJECTIONS, SAMPLE, ORDER, HELD_OUT_ORDER = range(5)


@dataclass(frozen=True)
class Prepared:
    """A dataset ready for training."""

    store: Store
    split: Split
    scales: Scales
    """On the host."""

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


class Fitted(NamedTuple):
    """What training one dataset gave."""

    curves: list[dict[str, Any]]
    """One row per predictor, seed and epoch."""
    losses: Float32[np.ndarray, "kind seed 2 test"]
    """Ranking and moment loss of each test row, by the selected parameters."""
    selected: Int[np.ndarray, "kind seed"]
    """The epoch with the lowest ranking loss on the validation part."""
    parameters: dict[Kind, int]


def prepare(store: Store, config: MisfitConfig) -> Prepared:
    """Split a dataset and take its statistics; UserError if a part is too small to rank in."""
    parts = split(
        store.episodes, config.split, generator(config.split_seed, SPLIT), limit=config.limit
    )
    for name, rows in zip(parts._fields, parts, strict=True):
        if len(rows) < config.predictor.batch_size:
            raise UserError(
                f"{store.about.name}: the {name} part has {len(rows):,} transitions, fewer than "
                f"one batch of {config.predictor.batch_size}: give more data or a smaller "
                "--batch-size."
            )
    sample = generator(config.split_seed, SAMPLE).permutation(parts.train)[:SAMPLE_ROWS]
    scales = scales_of(
        store.rows[np.sort(sample)],
        (store.action_low, store.action_high),
        store.about,
        config.predictor.fourier_targets,
        generator(config.split_seed, PROJECTIONS),
    )
    return Prepared(store, parts, scales)


def generator(*numbers: int) -> np.random.Generator:
    """A random stream named by numbers."""
    return np.random.default_rng(np.random.SeedSequence(numbers))


class Program:
    """The compiled steps of one predictor for every dataset and seed of a group."""

    def __init__(self, config: MisfitConfig, kind: Kind, spec: EnvSpec):
        self.config, self.spec = config.predictor, spec
        self.kind: Kind = kind
        self.seeds = jnp.asarray(config.seeds, jnp.int32)
        self.train = jax.jit(self._train, donate_argnums=0)
        self.held_out = jax.jit(self._held_out)
        self.keep_better = jax.jit(self._keep_better, donate_argnums=0)

    def start(self, datasets: int) -> Trainable[Predictor]:
        """Fresh predictors; a seed starts from the same parameters on every dataset."""
        # Not compiled as one program: that takes longer than the whole of it.
        fresh = [self._fresh(seed) for seed in self.seeds]
        return jax.tree.map(
            lambda *leaves: jnp.array(np.stack([np.stack(leaves)] * datasets)), *fresh
        )

    def _fresh(self, seed: Int[Array, ""]) -> Trainable[Predictor]:
        key = stream(seed, INITIALISATION, 0)
        predictor = Predictor.init(self.config, self.kind, self.spec, key)
        return Trainable.of(predictor, Adam(self.config.learning_rate))

    def _train(
        self,
        trainables: Trainable[Predictor],
        scales: Scales,
        rows: Float[Array, "dataset seed step batch packed"],
        first: Int[Array, ""],
        count: Int[Array, ""],
    ) -> tuple[Trainable[Predictor], Float[Array, "dataset seed 2"]]:
        """As many updates of every predictor; the sums of their two losses."""

        def one(trainable: Any, scale: Scales, content: Array, seed: Array) -> tuple:
            def update(step: Array, carry: tuple) -> tuple:
                trainable, sums = carry
                batch = scale.batch(content[step], self.spec)
                key = stream(seed, NOISE, first + step)
                trainable, metrics = trainable.step(
                    lambda net: net.loss(batch, self.config.moment_weight, key)
                )
                return trainable, sums + jnp.stack([metrics["nce"], metrics["moment"]])

            return jax.lax.fori_loop(0, count, update, (trainable, jnp.zeros(2)))

        with self.precision():
            over_seeds = jax.vmap(one, in_axes=(0, None, 0, 0))
            return jax.vmap(over_seeds, in_axes=(0, 0, 0, None))(
                trainables, scales, rows, self.seeds
            )

    def _held_out(
        self,
        trainables: Trainable[Predictor],
        scales: Scales,
        rows: Float[Array, "dataset step batch packed"],
        first: Int[Array, ""],
        purpose: Int[Array, ""],
    ) -> Float[Array, "dataset seed step 2 batch"]:
        """Both losses of every row, with noise that is the same for all predictors and seeds."""

        def one(trainable: Trainable[Predictor], scale: Scales, content: Array) -> Array:
            predictor = trainable.net
            keys = jax.vmap(partial(stream, jnp.zeros((), jnp.int32), purpose))(
                first + jnp.arange(content.shape[0])
            )
            return jax.lax.map(
                lambda batch: predictor.held_out(scale.batch(batch[0], self.spec), batch[1]),
                (content, keys),
            )

        with self.precision():
            over_seeds = jax.vmap(one, in_axes=(0, None, None))
            return jax.vmap(over_seeds)(trainables, scales, rows)

    def _keep_better(
        self,
        best: tuple[Parameters, Float[Array, "dataset seed"]],
        parameters: Parameters,
        loss: Float[Array, "dataset seed"],
    ) -> tuple[Parameters, Float[Array, "dataset seed"]]:
        """The parameters with the lower validation loss, for each dataset and seed."""
        kept, lowest = best
        better = loss < lowest

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(better.reshape(better.shape + (1,) * (new.ndim - 2)), new, old)

        return jax.tree.map(choose, parameters, kept), jnp.where(better, loss, lowest)

    def precision(self) -> Any:
        """The arithmetic of all float32 products traced inside."""
        exact = self.config.precision == "float32"
        return jax.default_matmul_precision("float32" if exact else "tensorfloat32")


def stream(
    seed: Int[Array, ""], purpose: Int[Array, ""] | int, index: Int[Array, ""] | int
) -> Array:
    """The key of one seed for one purpose at one moment."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), index)


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

    def chunks(self, orders: Int[np.ndarray, "dataset *seed rows"]) -> Iterator["Piece"]:
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


def groups(prepared: Sequence[Prepared], batch_size: int) -> list[tuple[list[int], list[Prepared]]]:
    """Datasets that can train in one program, with their places in the list."""
    found: dict[tuple[int, ...], tuple[list[int], list[Prepared]]] = {}
    for place, one in enumerate(prepared):
        places, members = found.setdefault(one.shape(batch_size), ([], []))
        places.append(place)
        members.append(one)
    return list(found.values())


def updates_of(group: Sequence[Prepared], config: MisfitConfig) -> int:
    """Updates of one predictor in a group: the unit of the progress display."""
    batch = config.predictor.batch_size
    return config.predictor.epochs * (len(group[0].split.train) // batch)


def fit(
    group: Sequence[Prepared], config: MisfitConfig, advance: Callable[[int, str], None]
) -> list[Fitted]:
    """Train, select and test both predictors on every dataset of a group.

    `advance` hears of updates done and of how the losses stand.
    """
    batches = Batches(group, config.predictor.batch_size)
    try:
        return Fit(group, config, batches, advance).run()
    finally:
        batches.close()


class Fit:
    """One group in training."""

    def __init__(
        self,
        group: Sequence[Prepared],
        config: MisfitConfig,
        batches: Batches,
        advance: Callable[[int, str], None],
    ):
        self.group, self.config, self.batches, self.advance = group, config, batches, advance
        self.programs = {kind: Program(config, kind, group[0].spec) for kind in KINDS}
        self.scales = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(g.scales for g in group))
        self.trainables = {kind: self.programs[kind].start(len(group)) for kind in KINDS}
        # Copies: training works in the memory of the parameters it is given.
        self.best = {
            kind: (
                jax.tree.map(jnp.copy, self.trainables[kind].parameters),
                jnp.full((len(group), len(config.seeds)), jnp.inf),
            )
            for kind in KINDS
        }
        self.selected = np.zeros((len(KINDS), len(group), len(config.seeds)), int)
        self.curves: list[list[dict[str, Any]]] = [[] for _ in group]
        self.began = time.monotonic()

    def run(self) -> list[Fitted]:
        """All epochs, then the test."""
        nothing = np.full((len(self.group), len(self.config.seeds), 2), np.nan)
        self.validate(0, dict.fromkeys(KINDS, nothing))
        for epoch in range(1, self.config.predictor.epochs + 1):
            self.validate(epoch, self.epoch(epoch))
        losses = self.test()
        return [
            Fitted(self.curves[i], losses[i], self.selected[:, i], self.parameter_counts())
            for i in range(len(self.group))
        ]

    def epoch(self, epoch: int) -> dict[Kind, Float[np.ndarray, "dataset seed 2"]]:
        """One pass over the training part; the mean losses on the way."""
        order = training_order(self.group, self.config.seeds, epoch)
        before = (epoch - 1) * (order.shape[-1] // self.config.predictor.batch_size)
        sums: dict[Kind, Any] = dict.fromkeys(KINDS, 0.0)
        done = 0
        for piece in self.batches.chunks(order):
            rows = jax.device_put(piece.content)
            for kind in KINDS:
                self.trainables[kind], losses = self.programs[kind].train(
                    self.trainables[kind], self.scales, rows, before + piece.first, piece.batches
                )
                sums[kind] += losses
            done += piece.batches
            # Waits for the device, so that the display tells the truth and no queue builds up.
            cp, joint = (float(jnp.mean(sums[kind][..., 0])) / done for kind in KINDS)
            self.advance(piece.batches, f"epoch {epoch}: CP {cp:.3f}, joint {joint:.3f}")
        return {kind: np.asarray(sums[kind]) / done for kind in KINDS}

    def validate(self, epoch: int, training: dict[Kind, np.ndarray]) -> None:
        """Write down an epoch, and select; what is untrained is written down alone."""
        parts = [prepared.split.validation for prepared in self.group]
        for number, kind in enumerate(KINDS):
            losses = self.held_out(kind, self.trainables[kind], parts, VALIDATION)
            means = np.stack([loss.mean(axis=-1) for loss in losses])
            self.record(kind, epoch, training[kind], means)
            if epoch:
                self.select(number, epoch, means[..., 0])

    def select(self, number: int, epoch: int, losses: Float[np.ndarray, "dataset seed"]) -> None:
        """Keep the parameters of each dataset and seed that rank the validation part best."""
        kind = KINDS[number]
        self.selected[number][losses < np.asarray(self.best[kind][1])] = epoch
        self.best[kind] = self.programs[kind].keep_better(
            self.best[kind], self.trainables[kind].parameters, jnp.asarray(losses)
        )

    def record(self, kind: Kind, epoch: int, training: np.ndarray, means: np.ndarray) -> None:
        """One row per dataset and seed; RunError if a loss is no longer finite."""
        for i in range(len(self.group)):
            for j, seed in enumerate(self.config.seeds):
                if not np.isfinite(means[i, j]).all():
                    raise RunError(
                        f"{self.group[i].store.about.name}: the {kind} predictor's loss is not "
                        f"finite after epoch {epoch} with seed {seed}; a smaller --learning-rate "
                        "may help."
                    )
                self.curves[i].append(
                    {
                        "predictor": kind,
                        "seed": seed,
                        "epoch": epoch,
                        "train_nce": float(training[i, j, 0]),
                        "train_moment": float(training[i, j, 1]),
                        "validation_nce": float(means[i, j, 0]),
                        "validation_moment": float(means[i, j, 1]),
                        "seconds": round(time.monotonic() - self.began, 3),
                    }
                )

    def test(self) -> list[Float32[np.ndarray, "kind seed 2 _"]]:
        """Losses of every test row under the selected parameters, in the order of the split."""
        parts = [prepared.split.test for prepared in self.group]
        by_kind = []
        for kind in KINDS:
            moments, layout = self.trainables[kind].moments, self.trainables[kind].layout
            chosen = Trainable(self.best[kind][0], moments, layout, self.trainables[kind].adam)
            by_kind.append(self.held_out(kind, chosen, parts, TEST))
        return [np.stack(losses) for losses in zip(*by_kind, strict=True)]

    def held_out(
        self,
        kind: Kind,
        trainables: Trainable[Predictor],
        parts: Sequence[Int[np.ndarray, " _"]],
        purpose: int,
    ) -> list[Float32[np.ndarray, "seed 2 _"]]:
        """Both losses of these rows of each dataset, in the order given."""
        batch_size = self.config.predictor.batch_size
        orders = held_out_order(parts, batch_size, self.config.split_seed)
        pieces = []
        for piece in self.batches.chunks(orders):
            rows = jax.device_put(piece.content)
            losses = self.programs[kind].held_out(
                trainables, self.scales, rows, piece.first, purpose
            )
            pieces.append(np.asarray(losses)[:, :, : piece.batches])
        # dataset seed step 2 batch -> dataset seed 2 rows
        every = np.moveaxis(np.concatenate(pieces, axis=2), 3, 2)
        every = every.reshape(*every.shape[:3], -1)
        return [in_order(every[i], orders[i], part) for i, part in enumerate(parts)]

    def parameter_counts(self) -> dict[Kind, int]:
        """Parameters of one predictor of each kind."""
        cells = len(self.group) * len(self.config.seeds)
        return {
            kind: sum(leaf.size for leaf in jax.tree.leaves(self.trainables[kind].parameters))
            // cells
            for kind in KINDS
        }


def in_order(
    losses: Float32[np.ndarray, "seed 2 padded"],
    order: Int[np.ndarray, " padded"],
    part: Int[np.ndarray, " rows"],
) -> Float32[np.ndarray, "seed 2 rows"]:
    """Losses in the rising order of the part's rows; repeated rows count once, as first seen."""
    once = order[: len(part)]
    return losses[..., : len(part)][..., np.argsort(once)]
