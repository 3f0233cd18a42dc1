"""Both predictors trained on the same batches, selected on the validation part, then tested."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int

from fastr.core import RunError
from fastr.nn.optim import Trainable
from fastr.studies.misfit.batches import Batches, Prepared, held_out_order, in_order, training_order
from fastr.studies.misfit.config import KINDS, Kind, MisfitConfig
from fastr.studies.misfit.predictors import Predictor
from fastr.studies.misfit.program import TEST, VALIDATION, Program
from fastr.training.cost import parameters


class Fitted(NamedTuple):
    """What training one dataset gave."""

    curves: list[dict[str, Any]]
    """One row per predictor, seed and epoch."""
    losses: Float32[np.ndarray, "kind seed 2 test"]
    """Ranking and moment loss of each test row, by the selected parameters."""
    selected: Int[np.ndarray, "kind seed"]
    """The epoch with the lowest ranking loss on the validation part."""
    parameters: dict[Kind, int]


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
    with closing(Batches(group, config.predictor.batch_size)) as batches:
        return Fit(group, config, batches, advance).run()


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
            chosen = replace(self.trainables[kind], parameters=self.best[kind][0])
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
        return {kind: parameters(self.trainables[kind].parameters) // cells for kind in KINDS}
