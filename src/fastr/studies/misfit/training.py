"""Train both predictors on the same batches, select by the validation part, test."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from fastr.core import EnvSpec, RunError
from fastr.nn import stream
from fastr.nn.optim import Adam, Parameters, Trainable
from fastr.nn.precision import matmul_precision
from fastr.studies.misfit.config import KINDS, Kind, MisfitConfig, PredictorConfig
from fastr.studies.misfit.data import Prepared, held_out_order, in_order, pieces, training_order
from fastr.studies.misfit.predictors import Predictor, Scales
from fastr.training.cost import parameters

# Each purpose has a random stream of its own.
INITIALISATION, NOISE, VALIDATION, TEST = range(4)


@dataclass(frozen=True)
class Program:
    """The compiled steps of one kind of predictor, for all seeds at once."""

    config: PredictorConfig
    kind: Kind
    spec: EnvSpec
    seeds: tuple[int, ...]

    def start(self) -> Trainable[Predictor]:
        """Fresh predictors, one per seed."""
        # Compiling this as one program would take longer than running it.
        fresh = [self._fresh(seed) for seed in jnp.asarray(self.seeds, jnp.int32)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *fresh)

    def _fresh(self, seed: Int[Array, ""]) -> Trainable[Predictor]:
        key = stream(seed, INITIALISATION, 0)
        predictor = Predictor.init(self.config, self.kind, self.spec, key)
        return Trainable.of(predictor, Adam(self.config.learning_rate))

    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def train(
        self,
        trainables: Trainable[Predictor],
        scales: Scales,
        rows: Float[Array, "seed step batch packed"],
        first: Int[Array, ""],
        count: Int[Array, ""],
    ) -> tuple[Trainable[Predictor], Float[Array, "seed 2"]]:
        """One update per batch, `count` of them; the sums of ranking and moment loss."""

        def one(trainable: Any, content: Array, seed: Array) -> tuple:
            def update(step: Array, carry: tuple) -> tuple:
                trainable, sums = carry
                batch = scales.batch(content[step], self.spec)
                key = stream(seed, NOISE, first + step)
                trainable, metrics = trainable.step(
                    lambda net: net.loss(batch, self.config.moment_weight, key)
                )
                return trainable, sums + jnp.stack([metrics["nce"], metrics["moment"]])

            return jax.lax.fori_loop(0, count, update, (trainable, jnp.zeros(2)))

        with matmul_precision(self.config.precision):
            seeds = jnp.asarray(self.seeds, jnp.int32)
            return over_seeds(one, (0, 0, 0), trainables, rows, seeds)

    @partial(jax.jit, static_argnums=0)
    def held_out(
        self,
        trainables: Trainable[Predictor],
        scales: Scales,
        rows: Float[Array, "step batch packed"],
        first: Int[Array, ""],
        purpose: Int[Array, ""],
    ) -> Float[Array, "seed step 2 batch"]:
        """Both losses of every row, with the same noise for both predictors and all seeds."""
        numbers = first + jnp.arange(rows.shape[0])
        keys = jax.vmap(partial(stream, jnp.zeros((), jnp.int32), purpose))(numbers)

        def one(trainable: Trainable[Predictor], rows: Array, keys: Array) -> Array:
            net = trainable.net
            return jax.lax.map(
                lambda batch: net.held_out(scales.batch(batch[0], self.spec), batch[1]),
                (rows, keys),
            )

        with matmul_precision(self.config.precision):
            return over_seeds(one, (0, None, None), trainables, rows, keys)


def over_seeds(one: Callable[..., Any], in_axes: tuple[int | None, ...], *arguments: Any) -> Any:
    """vmap over the seeds, under an outer axis of length one.

    Without that axis XLA rounds some products differently, in the last digit.
    """
    outer = jax.vmap(jax.vmap(one, in_axes))
    found = outer(*jax.tree.map(lambda leaf: leaf[None], arguments))
    return jax.tree.map(lambda leaf: leaf[0], found)


@partial(jax.jit, donate_argnums=0)
def keep_better(best: Parameters, new: Parameters, better: Bool[Array, " seed"]) -> Parameters:
    """The new parameters of each seed that improved."""

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(better.reshape(better.shape + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, new, best)


class Fitted(NamedTuple):
    """The outcome of training on one dataset."""

    curves: list[dict[str, Any]]
    """One row per predictor, seed and epoch."""
    losses: Float32[np.ndarray, "kind seed 2 test"]
    """Ranking and moment loss of each test row under the selected parameters."""
    selected: Int[np.ndarray, "kind seed"]
    """The epoch with the lowest ranking loss on the validation part."""
    parameters: dict[Kind, int]


class Candidate:
    """One kind of predictor in training, and its best parameters so far."""

    def __init__(self, program: Program):
        self.program = program
        self.trainables = program.start()
        # A copy: training reuses the memory of its parameters.
        self.best = jax.tree.map(jnp.copy, self.trainables.parameters)
        self.lowest = np.full(len(program.seeds), np.inf, np.float32)
        self.selected = np.zeros(len(program.seeds), int)

    def select(self, epoch: int, losses: Float[np.ndarray, " seed"]) -> None:
        """Keep the parameters of each seed that rank the validation part better than before."""
        better = losses < self.lowest
        self.selected[better] = epoch
        self.lowest = np.where(better, losses, self.lowest)
        self.best = keep_better(self.best, self.trainables.parameters, jnp.asarray(better))

    @property
    def parameters(self) -> int:
        """Number of parameters of one predictor."""
        return parameters(self.best) // len(self.program.seeds)


class Fit:
    """Both predictors in training on one dataset.

    `advance` is called with the number of updates done and the current losses in words.
    """

    def __init__(
        self, prepared: Prepared, config: MisfitConfig, advance: Callable[[int, str], None]
    ):
        self.prepared, self.config, self.advance = prepared, config, advance
        self.candidates: dict[Kind, Candidate] = {
            kind: Candidate(Program(config.predictor, kind, prepared.spec, config.seeds))
            for kind in KINDS
        }
        self.curves: list[dict[str, Any]] = []
        self.start = time.monotonic()

    def run(self) -> Fitted:
        """All epochs, then the test."""
        self.validate(0, dict.fromkeys(KINDS, np.full((len(self.config.seeds), 2), np.nan)))
        for epoch in range(1, self.config.predictor.epochs + 1):
            self.validate(epoch, self.train(epoch))
        losses = []
        for one in self.candidates.values():
            chosen = replace(one.trainables, parameters=one.best)
            losses.append(self.held_out(one.program, chosen, self.prepared.split.test, TEST))
        return Fitted(
            self.curves,
            np.stack(losses),
            np.stack([one.selected for one in self.candidates.values()]),
            {kind: one.parameters for kind, one in self.candidates.items()},
        )

    def train(self, epoch: int) -> dict[Kind, Float[np.ndarray, "seed 2"]]:
        """One pass over the training part; the mean losses."""
        batch_size, packed = self.config.predictor.batch_size, self.prepared.store.rows
        order = training_order(self.prepared.split.train, self.config.seeds, epoch)
        before = (epoch - 1) * (order.shape[-1] // batch_size)
        sums: dict[Kind, Any] = dict.fromkeys(KINDS, 0.0)
        done = 0
        for piece in pieces(packed, order, batch_size):
            rows = jax.device_put(piece.content)
            for kind, one in self.candidates.items():
                one.trainables, losses = one.program.train(
                    one.trainables, self.prepared.scales, rows, before + piece.first, piece.batches
                )
                sums[kind] += losses
            done += piece.batches
            # Waits for the device, so that the display is right and no queue builds up.
            cp, joint = (float(jnp.mean(sums[kind][..., 0])) / done for kind in KINDS)
            self.advance(piece.batches, f"epoch {epoch}: CP {cp:.3f}, joint {joint:.3f}")
        return {kind: np.asarray(sums[kind]) / done for kind in KINDS}

    def validate(self, epoch: int, training: dict[Kind, np.ndarray]) -> None:
        """Record an epoch, and select unless the predictors are untrained."""
        for kind, one in self.candidates.items():
            rows = self.prepared.split.validation
            losses = self.held_out(one.program, one.trainables, rows, VALIDATION)
            means = losses.mean(axis=-1)
            self.record(kind, epoch, training[kind], means)
            if epoch:
                one.select(epoch, means[:, 0])

    def record(self, kind: Kind, epoch: int, training: np.ndarray, validation: np.ndarray) -> None:
        """Add a row per seed to the curves; RunError if a loss is not finite."""
        seconds = round(time.monotonic() - self.start, 3)
        for i, seed in enumerate(self.config.seeds):
            if not np.isfinite(validation[i]).all():
                raise RunError(
                    f"{self.prepared.name}: the {kind} predictor's loss is not finite after epoch "
                    f"{epoch} with seed {seed}; a smaller --learning-rate may help."
                )
            self.curves.append(
                {
                    "predictor": kind,
                    "seed": seed,
                    "epoch": epoch,
                    "train_nce": float(training[i, 0]),
                    "train_moment": float(training[i, 1]),
                    "validation_nce": float(validation[i, 0]),
                    "validation_moment": float(validation[i, 1]),
                    "seconds": seconds,
                }
            )

    def held_out(
        self,
        program: Program,
        trainables: Trainable[Predictor],
        rows: Int[np.ndarray, " rows"],
        purpose: int,
    ) -> Float32[np.ndarray, "seed 2 rows"]:
        """Both losses of these rows, in the order given."""
        order = held_out_order(rows, program.config.batch_size, self.config.split_seed)
        found = []
        for piece in pieces(self.prepared.store.rows, order, program.config.batch_size):
            content = jax.device_put(piece.content)
            losses = program.held_out(
                trainables, self.prepared.scales, content, piece.first, purpose
            )
            found.append(np.asarray(losses)[:, : piece.batches])
        # seed step 2 batch -> seed 2 rows
        every = np.moveaxis(np.concatenate(found, axis=1), 2, 1)
        return in_order(every.reshape(*every.shape[:2], -1), order, rows)
