"""Minimisers of both objectives on tables of shares: spectral L2 and ranking.

The L2 objective, Eq. (per-sample-loss), of a score g is -2 E[g(s,a,s')] + E[integral of g(s,a,u)^2
dnu(u)], nu uniform: a weighted least-squares fit of the empirical density by a table of low rank.

The ranking loss, Eq. (nce), at one noise level with the data as one batch, of a score f is

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
from numpy.random import Generator

from fastr.studies.theory.mdp import Feature, Table

KINDS: tuple[str, str] = ("factored", "joint")
"""The classes of scores that are compared."""
_RIDGE = 1e-9
_TRIAL = 20
"""Sweeps of each start of alternating least squares, before the best one is continued."""


class Fit(NamedTuple):
    """A fitted score: offset + feature^T next_factor."""

    feature: Feature
    next_factor: Float[np.ndarray, "next feature"]
    offset: float
    """The known part of the score: 1, the density of nu itself, or 0."""

    @property
    def score(self) -> Table:
        """g(s,a,s') for all triples."""
        return self.offset + self.feature @ self.next_factor.T


def empirical_loss(fit: Fit, shares: Table) -> float:
    """Eq. (empirical-risk) of a score on observed shares of transitions."""
    score = fit.score
    squares = np.square(score).mean(-1)
    return float(-2.0 * np.vdot(shares, score) + np.vdot(shares.sum(-1), squares))


def risk(score: Table, density: Table) -> float:
    """L(g) of Eq. (L2-risk-pop), with uniform rho and nu."""
    return float(np.square(score - density).mean())


def joint_fit(shares: Table, features: int, offset: float = 0.0) -> Fit:
    """The exact minimiser over the joint class: a singular value decomposition (Eckart-Young).

    A pair without data gets the feature zero.
    """
    states, actions, nexts = shares.shape
    flat = shares.reshape(states * actions, nexts)
    seen = flat.sum(-1, keepdims=True)
    excess = flat * nexts - seen * offset
    centred = np.divide(excess, np.sqrt(seen), out=np.zeros_like(flat), where=seen > 0)
    basis = np.linalg.eigh(centred.T @ centred)[1][:, -features:]
    targets = np.divide(excess, seen, out=np.zeros_like(flat), where=seen > 0)
    return Fit((targets @ basis).reshape(states, actions, -1), basis, offset)


def factored_fit(
    shares: Table,
    features: int,
    generator: Generator,
    *,
    offset: float = 0.0,
    starts: int = 10,
    sweeps: int = 200,
) -> Fit:
    """A minimiser over the factored class by alternating least squares.

    The problem is not convex: several short descents, the best of which is continued.
    """
    trials = []
    for _ in range(starts):
        start = [generator.normal(size=(size, features)) for size in shares.shape]
        trials.append(_alternate(shares, start, offset, _TRIAL))
    best, _ = min(trials, key=lambda trial: trial[1])
    (state, action, target), _ = _alternate(shares, best, offset, sweeps)
    return Fit(state[:, None] * action[None], target, offset)


def _alternate(
    shares: Table, factors: list[np.ndarray], offset: float, sweeps: int
) -> tuple[list[np.ndarray], float]:
    """Factors and loss of one descent: each factor in turn is solved for."""
    seen = shares.sum(-1)
    nexts = shares.shape[2]
    excess = shares - seen[..., None] * offset / nexts
    state, action, target = factors
    last = loss = np.inf
    for _ in range(sweeps):
        projected, gram = excess @ target, target.T @ target / nexts
        state = _solve(_gram(seen, action) * gram, np.einsum("sak,ak->sk", projected, action))
        action = _solve(_gram(seen.T, state) * gram, np.einsum("sak,sk->ak", projected, state))
        feature = (state[:, None] * action[None]).reshape(-1, state.shape[1])
        moments = feature.T @ (seen.reshape(-1, 1) * feature) / nexts
        pull = excess.reshape(-1, nexts).T @ feature
        target = _solve(moments[None].repeat(nexts, 0), pull)
        loss = float(-np.vdot(pull, target))
        if last - loss <= 1e-10 * abs(loss):
            break
        last = loss
    return [state, action, target], loss


def _gram(
    weights: Float[np.ndarray, "row other"], factor: Float[np.ndarray, "other feature"]
) -> Float[np.ndarray, "row feature feature"]:
    """The weighted second moments of a factor, one matrix per row."""
    features = factor.shape[1]
    products = (factor[:, :, None] * factor[:, None]).reshape(len(factor), -1)
    return (weights @ products).reshape(-1, features, features)


def _solve(
    moments: Float[np.ndarray, "row feature feature"], pull: Float[np.ndarray, "row feature"]
) -> Float[np.ndarray, "row feature"]:
    """Least squares row by row, with a ridge that only matters where data are missing."""
    size = moments.shape[-1]
    scale = np.trace(moments, axis1=1, axis2=2).mean() / size
    ridge = _RIDGE * (scale + 1e-9) * np.eye(size)
    return np.linalg.solve(moments + ridge, pull[..., None])[..., 0]


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
    """How the ranking loss is minimised."""

    steps: int = 300
    rate: float = 0.1
    starts: int = 8
    """Descents of a quarter of the steps, the best of which is continued."""
    penalty: float = 1.0
    """Weight of |parameters|^2 / (2 n), which bounds the norms (App. Notation) at small n."""


def ranking_loss(
    tables: Tables, shares: Float[Array, "state action next"], decay: Float[Array, ""]
) -> Float[Array, ""]:
    """The ranking loss of Eq. (nce) on observed shares, with a penalty on the parameters."""
    score = jnp.einsum("...sak,...xk->...sax", tables.feature, tables.target)
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
    """Adam with a falling rate, for many samples in parallel: tables and their losses."""
    optimiser = optax.adam(optax.cosine_decay_schedule(descent.rate, descent.steps))

    def one(tables: Tables, observed: Array, size: Array) -> tuple[Tables, Array]:
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
    kind: str,
    shares: Float[np.ndarray, "fit state action next"],
    n: Float[np.ndarray, " fit"],
    features: int,
    generators: Sequence[Generator],
    descent: Descent,
) -> RankingFits:
    """For each sample the best of several short descents over one class, continued.

    Each sample's starts come from its own generator.
    """
    fits, starts = len(shares), descent.starts
    tables = [_start(kind, starts, shares.shape[1:], features, each) for each in generators]
    start = jax.tree.map(lambda *leaves: jnp.concatenate(jnp.stack(leaves, 1)), *tables)
    observed, sizes = jnp.asarray(shares, jnp.float32), jnp.asarray(n, jnp.float32)
    short = replace(descent, steps=descent.steps // 4)
    copies = jnp.tile(observed, (starts, 1, 1, 1))
    trials, losses = descend(start, copies, jnp.tile(sizes, starts), short)
    best = np.asarray(losses).reshape(starts, fits).argmin(0) * fits + np.arange(fits)
    fitted, _ = descend(jax.tree.map(lambda leaf: leaf[best], trials), observed, sizes, descent)
    feature, target = (np.asarray(part, float) for part in (fitted.feature, fitted.target))
    return RankingFits(feature, target, shares.sum((1, 2)))


def _start(
    kind: str, starts: int, sizes: tuple[int, ...], features: int, generator: Generator
) -> Tables:
    """Small random tables; in every second one the feature's first coordinate is one.

    With a constant coordinate m can hold the difference between q and the log ratio's own base,
    which descent from random numbers finds slowly.
    """
    states, actions, nexts = sizes

    def table(*shape: int, constant: bool = True) -> Array:
        values = 0.5 * generator.normal(size=(starts, *shape, features))
        if constant:
            values[1::2, ..., 0] = 1.0
        return jnp.asarray(values, jnp.float32)

    target = table(nexts, constant=False)
    if kind == "factored":
        return Factored(table(states), table(actions), target)
    return Joint(table(states, actions), target)
