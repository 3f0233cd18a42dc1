"""Minimisers of the ranking loss of Eq. (nce) on tables, one noise level, the data as one batch.

With every observed next state as a candidate the loss of a score f is

    -E[f(s,a,s')] + E[log sum_u q(u) exp(f(s,a,u))],   q the shares of next states,

whose minimiser estimates P(s'|s,a) by q(s') exp f / Z(s,a) (remark "Relationship to the NCE
estimator": maximum likelihood at infinitely many negatives).
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float


class Factored(NamedTuple):
    """Tables of phi_s, phi_a and m."""

    state: Float[Array, "*batch state feature"]
    action: Float[Array, "*batch action feature"]
    target: Float[Array, "*batch next feature"]

    @property
    def feature(self) -> Float[Array, "*batch state action feature"]:
        """psi"""
        return self.state[..., :, None, :] * self.action[..., None, :, :]


class Joint(NamedTuple):
    """Tables of varphi and mu."""

    feature: Float[Array, "*batch state action feature"]
    target: Float[Array, "*batch next feature"]


Tables = Factored | Joint


@dataclass(frozen=True)
class Descent:
    """How the loss is minimised."""

    steps: int = 800
    rate: float = 0.05
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
    start: Tables, shares: Float[Array, "fit state action next"], n: Float[Array, " fit"], descent: Descent
) -> Tables:
    """Adam with a falling rate, for many samples side by side."""
    optimiser = optax.adam(optax.cosine_decay_schedule(descent.rate, descent.steps))

    def one(tables: Tables, observed: Array, size: Array) -> Tables:
        def step(carry, _):
            tables, state = carry
            slope = jax.grad(ranking_loss)(tables, observed, descent.penalty / size)
            change, state = optimiser.update(slope, state)
            return (optax.apply_updates(tables, change), state), None

        return jax.lax.scan(step, (tables, optimiser.init(tables)), length=descent.steps)[0][0]

    return jax.vmap(one)(start, shares, n)
