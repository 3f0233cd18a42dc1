"""The two predictors, their losses, and their fit: train, select by the validation part, test.

App. Empirical CP Misfit Diagnostic: the ranking loss of Eq. (nce), plus 0.1 times the squared error
of a linear head on the feature that predicts standardised next-state features.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, PRNGKeyArray

from fastr.core import EnvSpec, RunError
from fastr.nn import stream
from fastr.nn.networks import Linear
from fastr.nn.optim import Adam, Metrics, Parameters, Trainable
from fastr.nn.precision import matmul_precision
from fastr.representations.interactions import CP
from fastr.representations.joint import Joint
from fastr.representations.scores import InnerProduct, ranking_loss, ranking_losses
from fastr.studies.misfit import KINDS, Kind, MisfitConfig, PredictorConfig
from fastr.studies.misfit.data import (
    Batch,
    Prepared,
    Scales,
    held_out_order,
    in_order,
    pieces,
    training_order,
)
from fastr.training.cost import parameters

# Each purpose has a random stream of its own.
INITIALISATION, NOISE, VALIDATION, TEST = range(4)
LOSSES = ("nce", "moment")


class Predictor(eqx.Module):
    """A representation and a linear head that predicts moments of the next state."""

    representation: CP | Joint
    moment_head: Linear

    @classmethod
    def init(
        cls, config: PredictorConfig, kind: Kind, spec: EnvSpec, key: PRNGKeyArray
    ) -> "Predictor":
        """Fresh networks without the reward head, which is not trained here."""
        representation_key, head_key = jax.random.split(key)
        representation = config.representation(kind).init(spec, representation_key)
        representation = eqx.tree_at(lambda net: net.contrast.reward_head, representation, None)
        targets = spec.state_dim + config.fourier_targets
        return cls(representation, Linear(config.feature_dim, targets, key=head_key))

    def features(self, batch: Batch) -> Float[Array, "batch feature"]:
        """The spectral feature of each transition."""
        return jax.vmap(self.representation.feature)(batch.state, batch.action)

    def logits(
        self, features: Float[Array, "batch feature"], batch: Batch, key: PRNGKeyArray
    ) -> Float[Array, "batch level batch"]:
        """Each transition's score with every perturbed next state of the batch, Eq. (nce)."""
        contrast = self.representation.contrast
        return contrast.logits(InnerProduct(features), *contrast.perturbed(batch.next_state, key))

    def moment_losses(
        self, features: Float[Array, "batch feature"], batch: Batch
    ) -> Float[Array, " batch"]:
        """Weighted squared errors of the predicted moments."""
        # The head reads features of unit mean square, as "layernorm" gives them, not unit length.
        if self.representation.contrast.config.score == "l2":
            features = features * math.sqrt(features.shape[1])
        errors = jnp.square(jax.vmap(self.moment_head)(features) - batch.targets)
        return jnp.sum(errors * batch.weights[None], axis=1)

    def loss(
        self, batch: Batch, moment_weight: float, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], Metrics]:
        """The training objective (App. Empirical CP Misfit Diagnostic)."""
        features = self.features(batch)
        nce = ranking_loss(self.logits(features, batch, key))
        moment = jnp.mean(self.moment_losses(features, batch))
        return nce + moment_weight * moment, {"nce": nce, "moment": moment}

    def held_out(self, batch: Batch, key: PRNGKeyArray) -> Float[Array, "2 batch"]:
        """Each transition's ranking loss, averaged over levels, and its moment loss."""
        features = self.features(batch)
        nce = jnp.mean(ranking_losses(self.logits(features, batch, key)), axis=1)
        return jnp.stack([nce, self.moment_losses(features, batch)])


@dataclass(frozen=True)
class Program:
    """The compiled steps of one kind of predictor, for all seeds at once."""

    config: PredictorConfig
    kind: Kind
    spec: EnvSpec
    seeds: tuple[int, ...]

    def start(self) -> Trainable[Predictor]:
        """Fresh predictors, one per seed."""

        def fresh(seed: Int[Array, ""]) -> Trainable[Predictor]:
            key = stream(seed, INITIALISATION, 0)
            predictor = Predictor.init(self.config, self.kind, self.spec, key)
            return Trainable.of(predictor, Adam(self.config.learning_rate))

        # Compiling this as one program would take longer than running it.
        each = [fresh(seed) for seed in jnp.asarray(self.seeds, jnp.int32)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)

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
            return _over_seeds(one, (0, 0, 0), trainables, rows, seeds)

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
            return _over_seeds(one, (0, None, None), trainables, rows, keys)


def _over_seeds(one: Callable[..., Any], in_axes: tuple[int | None, ...], *arguments: Any) -> Any:
    # The outer axis has length one: without it XLA rounds some products differently, in the last
    # digit.
    outer = jax.vmap(jax.vmap(one, in_axes))
    found = outer(*jax.tree.map(lambda leaf: leaf[None], arguments))
    return jax.tree.map(lambda leaf: leaf[0], found)


@partial(jax.jit, donate_argnums=0)
def _keep_better(best: Parameters, new: Parameters, better: Bool[Array, " seed"]) -> Parameters:
    def choose(new: Array, old: Array) -> Array:
        return jnp.where(better.reshape(better.shape + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, new, best)


class Fitted(NamedTuple):
    """The outcome of training on one dataset; the last axis of losses is ranking, then moment."""

    train: Float[np.ndarray, "kind epoch seed 2"]
    """Mean losses of each pass over the training part; NaN for epoch 0, before the first."""
    validation: Float[np.ndarray, "kind epoch seed 2"]
    """Mean losses of the validation part after each epoch."""
    seconds: list[float]
    """Time since the start after each epoch."""
    losses: Float32[np.ndarray, "kind seed 2 test"]
    """Losses of each test row under the selected parameters."""
    selected: Int[np.ndarray, "kind seed"]
    """The epoch with the lowest ranking loss on the validation part."""
    parameters: dict[Kind, int]


class _Candidate:
    """One kind of predictor in training, and its best parameters so far."""

    def __init__(self, prepared: Prepared, config: MisfitConfig, kind: Kind):
        self.prepared, self.config = prepared, config
        self.program = Program(config.predictor, kind, prepared.store.about.spec, config.seeds)
        self.trainables = self.program.start()
        # A copy: training reuses the memory of its parameters.
        self.best = jax.tree.map(jnp.copy, self.trainables.parameters)
        self.lowest = np.full(len(config.seeds), np.inf, np.float32)
        self.selected = np.zeros(len(config.seeds), int)

    def select(self, epoch: int, losses: Float[np.ndarray, " seed"]) -> None:
        """Keep the parameters of each seed that rank the validation part better than before."""
        better = losses < self.lowest
        self.selected[better] = epoch
        self.lowest = np.where(better, losses, self.lowest)
        self.best = _keep_better(self.best, self.trainables.parameters, jnp.asarray(better))

    def held_out(
        self, trainables: Trainable[Predictor], rows: Int[np.ndarray, " rows"], purpose: int
    ) -> Float32[np.ndarray, "seed 2 rows"]:
        """Both losses of these rows, in the order given."""
        batch_size, scales = self.config.predictor.batch_size, self.prepared.scales
        order = held_out_order(rows, batch_size, self.config.split_seed)
        found = []
        for piece in pieces(self.prepared.store.rows, order, batch_size):
            content = jax.device_put(piece.content)
            losses = self.program.held_out(trainables, scales, content, piece.first, purpose)
            found.append(np.asarray(losses)[:, : piece.batches])
        # seed step 2 batch -> seed 2 rows
        every = np.moveaxis(np.concatenate(found, axis=1), 2, 1)
        return in_order(every.reshape(*every.shape[:2], -1), order, rows)

    def test(self) -> Float32[np.ndarray, "seed 2 rows"]:
        """Both losses of the test part under the best parameters."""
        chosen = replace(self.trainables, parameters=self.best)
        return self.held_out(chosen, self.prepared.split.test, TEST)


def fit(prepared: Prepared, config: MisfitConfig, advance: Callable[[int, str], None]) -> Fitted:
    """Train both predictors on one dataset, select and test.

    `advance` is called with the number of updates done and the current losses in words.
    """
    start, seconds = time.monotonic(), []
    candidates = [_Candidate(prepared, config, kind) for kind in KINDS]
    shape = len(KINDS), config.predictor.epochs + 1, len(config.seeds), len(LOSSES)
    train, validation = np.full(shape, np.nan), np.empty(shape)
    for epoch in range(config.predictor.epochs + 1):
        if epoch:
            train[:, epoch] = _train(candidates, epoch, advance)
        for i, one in enumerate(candidates):
            rows = prepared.split.validation
            losses = one.held_out(one.trainables, rows, VALIDATION).mean(axis=-1)
            finite = np.isfinite(losses).all(axis=1)
            if not finite.all():
                raise RunError(
                    f"{prepared.store.about.name}: the {one.program.kind} predictor's loss is not "
                    f"finite after epoch {epoch} with seed {config.seeds[finite.argmin()]}; a "
                    "smaller --learning-rate may help."
                )
            validation[i, epoch] = losses
            # The untrained predictor is never selected.
            if epoch:
                one.select(epoch, losses[:, 0])
        seconds.append(round(time.monotonic() - start, 3))
    return Fitted(
        train,
        validation,
        seconds,
        np.stack([one.test() for one in candidates]),
        np.stack([one.selected for one in candidates]),
        {one.program.kind: parameters(one.best) // len(config.seeds) for one in candidates},
    )


def _train(
    candidates: Sequence[_Candidate], epoch: int, advance: Callable[[int, str], None]
) -> Float[np.ndarray, "kind seed 2"]:
    """One pass over the training part; the mean losses."""
    prepared, config = candidates[0].prepared, candidates[0].config
    batch_size = config.predictor.batch_size
    order = training_order(prepared.split.train, config.seeds, epoch)
    before = (epoch - 1) * (order.shape[-1] // batch_size)
    sums: list[Any] = [0.0] * len(candidates)
    done = 0
    for piece in pieces(prepared.store.rows, order, batch_size):
        rows = jax.device_put(piece.content)
        for i, one in enumerate(candidates):
            one.trainables, losses = one.program.train(
                one.trainables, prepared.scales, rows, before + piece.first, piece.batches
            )
            sums[i] += losses
        done += piece.batches
        # Waits for the device, so that the display is right and no queue builds up.
        cp, joint = (float(jnp.mean(each[..., 0])) / done for each in sums)
        advance(piece.batches, f"epoch {epoch}: CP {cp:.3f}, joint {joint:.3f}")
    return np.stack([np.asarray(each) / done for each in sums])
