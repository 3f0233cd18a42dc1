"""Minimisers of the ranking loss of Eq. (nce) on tables, one noise level, the data as one batch.

With every observed next state as a candidate the loss of a score f is

    -E[f(s,a,s')] + E[log sum_u q(u) exp(f(s,a,u))],   q the shares of next states,

whose minimiser estimates P(s'|s,a) by q(s') exp f / Z(s,a) (remark "Relationship to the NCE
estimator": maximum likelihood at infinitely many negatives).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from fastr.studies.theory.certificates import Class


class Factored(NamedTuple):
    """Tables of phi_s, phi_a and m."""

    state: Float[Array, "*batch state feature"]
    action: Float[Array, "*batch action feature"]
    target: Float[Array, "*batch next feature"]

    @property
    def feature(self) -> Float[Array, "*batch state action feature"]:
        """The product psi."""
        return self.state[..., :, None, :] * self.action[..., None, :, :]


class Joint(NamedTuple):
    """Tables of varphi and mu."""

    feature: Float[Array, "*batch state action feature"]
    target: Float[Array, "*batch next feature"]


Tables = Factored | Joint


@dataclass(frozen=True)
class Descent:
    """How the loss is minimised."""

    steps: int = 300
    rate: float = 0.1
    starts: int = 8
    """Descents of a quarter of the steps, the best of which is continued."""
    penalty: float = 1.0
    """Weight of |parameters|^2 / (2 n): bounded norms (App. Notation), and nothing at large n."""


def scores(tables: Tables) -> Float[Array, "*batch state action next"]:
    """f, everywhere."""
    return jnp.einsum("...sak,...xk->...sax", tables.feature, tables.target)


def ranking_loss(
    tables: Tables, shares: Float[Array, "state action next"], decay: Float[Array, ""]
) -> Float[Array, ""]:
    """The ranking loss of Eq. (nce) on observed shares, with a penalty on the parameters."""
    score = scores(tables)
    pull = jax.nn.logsumexp(score, axis=-1, b=jnp.sum(shares, axis=(0, 1))[None, None])
    size = sum(jnp.sum(jnp.square(leaf)) for leaf in tables)
    fit = jnp.sum(jnp.sum(shares, axis=-1) * pull) - jnp.sum(shares * score)
    return fit + 0.5 * decay * size


@partial(jax.jit, static_argnames="descent")
def descend(
    start: Tables,
    shares: Float[Array, "fit state action next"],
    n: Float[Array, " fit"],
    descent: Descent,
) -> tuple[Tables, Float[Array, " fit"]]:
    """Adam with a falling rate, for many samples side by side: tables and their losses."""
    optimiser = optax.adam(optax.cosine_decay_schedule(descent.rate, descent.steps))

    def one(
        tables: Tables, observed: Float[Array, "state action next"], size: Float[Array, ""]
    ) -> tuple[Tables, Float[Array, ""]]:
        decay = descent.penalty / size

        def step(carry: tuple, _: None) -> tuple[tuple, None]:
            tables, state = carry
            slope = jax.grad(ranking_loss)(tables, observed, decay)
            change, state = optimiser.update(slope, state)
            return (optax.apply_updates(tables, change), state), None

        carry = (tables, optimiser.init(tables))
        tables = jax.lax.scan(step, carry, length=descent.steps)[0][0]
        return tables, ranking_loss(tables, observed, decay)

    return jax.vmap(one)(start, shares, n)


class RankingFits(NamedTuple):
    """Scores fitted by the ranking loss, one per sample."""

    feature: Float[np.ndarray, "fit state action feature"]
    target: Float[np.ndarray, "fit next feature"]
    base: Float[np.ndarray, "fit next"]
    """q: each sample's shares of next states."""

    @property
    def density(self) -> Float[np.ndarray, "fit state action next"]:
        """The estimates of P(s'|s,a) against the uniform measure: q exp f / Z."""
        score = np.einsum("isak,ixk->isax", self.feature, self.target)
        weights = self.base[:, None, None] * np.exp(score - score.max(-1, keepdims=True))
        return weights / weights.mean(-1, keepdims=True)


def ranking_fits(
    kind: Class,
    shares: Float[np.ndarray, "fit state action next"],
    n: Float[np.ndarray, " fit"],
    features: int,
    generators: Sequence[np.random.Generator],
    descent: Descent,
) -> RankingFits:
    """For each sample the best of several short descents over one class, continued.

    Each sample's descents begin where its own generator says.
    """
    fits, starts = len(shares), descent.starts
    begun = [_start(kind, starts, shares.shape[1:], features, each) for each in generators]
    start = jax.tree.map(lambda *leaves: jnp.concatenate(jnp.stack(leaves, 1)), *begun)
    observed, sizes = jnp.asarray(shares, jnp.float32), jnp.asarray(n, jnp.float32)
    short = replace(descent, steps=descent.steps // 4)
    copies = jnp.tile(observed, (starts, 1, 1, 1))
    trials, losses = descend(start, copies, jnp.tile(sizes, starts), short)
    best = np.asarray(losses).reshape(starts, fits).argmin(0) * fits + np.arange(fits)
    tables, _ = descend(jax.tree.map(lambda leaf: leaf[best], trials), observed, sizes, descent)
    feature, target = (np.asarray(part, float) for part in (tables.feature, tables.target))
    return RankingFits(feature, target, shares.sum((1, 2)))


def _start(
    kind: Class,
    starts: int,
    sizes: tuple[int, ...],
    features: int,
    generator: np.random.Generator,
) -> Tables:
    """Small random tables, in every second of which the feature's first coordinate is one.

    With a constant coordinate m can hold the difference between q and the log ratio's own base;
    found from random numbers it comes in slowly.
    """
    states, actions, nexts = sizes

    def table(*shape: int) -> np.ndarray:
        return 0.5 * generator.normal(size=(starts, *shape, features))

    def with_one(*shape: int) -> Float[Array, "start *size feature"]:
        values = table(*shape)
        values[1::2, ..., 0] = 1.0
        return jnp.asarray(values, jnp.float32)

    target = jnp.asarray(table(nexts), jnp.float32)
    if kind == "factored":
        return Factored(with_one(states), with_one(actions), target)
    return Joint(with_one(states, actions), target)
