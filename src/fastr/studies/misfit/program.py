"""The compiled steps of a predictor, for all datasets and seeds of one shape side by side.

Every axis of a program is (dataset, seed, ...).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fastr.core import EnvSpec
from fastr.nn.optim import Adam, Parameters, Trainable
from fastr.nn.precision import matmul_precision
from fastr.nn.streams import stream
from fastr.studies.misfit.config import Kind, MisfitConfig
from fastr.studies.misfit.predictors import Predictor, Scales

# Random streams: what is drawn for one purpose is never drawn for another.
INITIALISATION, NOISE, VALIDATION, TEST = range(4)


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
        fresh = [self.fresh(seed) for seed in self.seeds]
        return jax.tree.map(
            lambda *leaves: jnp.array(np.stack([np.stack(leaves)] * datasets)), *fresh
        )

    def fresh(self, seed: Int[Array, ""]) -> Trainable[Predictor]:
        """The predictor that a seed starts with."""
        key = stream(seed, INITIALISATION, 0)
        predictor = Predictor.init(self.config, self.kind, self.spec, key)
        return Trainable.of(predictor, Adam(self.config.learning_rate))

    def update(
        self,
        trainable: Trainable[Predictor],
        scale: Scales,
        rows: Float[Array, "batch packed"],
        seed: Int[Array, ""],
        number: Int[Array, ""],
    ) -> tuple[Trainable[Predictor], Float[Array, "2"]]:
        """One update of one predictor, and its two losses."""
        batch, key = scale.batch(rows, self.spec), stream(seed, NOISE, number)
        trainable, metrics = trainable.step(
            lambda net: net.loss(batch, self.config.moment_weight, key)
        )
        return trainable, jnp.stack([metrics["nce"], metrics["moment"]])

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
                trainable, losses = self.update(trainable, scale, content[step], seed, first + step)
                return trainable, sums + losses

            return jax.lax.fori_loop(0, count, update, (trainable, jnp.zeros(2)))

        with matmul_precision(self.config.precision):
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

        with matmul_precision(self.config.precision):
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
