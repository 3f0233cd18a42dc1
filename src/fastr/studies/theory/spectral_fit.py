"""Empirical minimisers of the spectral L2 objective, Eq. (per-sample-loss), on tables.

The loss of g is -2 E[g(s,a,s')] + E[integral of g(s,a,u)^2 dnu(u)], nu uniform. On tables it is a
weighted least-squares fit of the empirical density by a table of low rank.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

_RIDGE = 1e-9
_TRIAL = 20


class Fit(NamedTuple):
    """A fitted score: offset + feature^T next_factor."""

    feature: Float[np.ndarray, "state action feature"]
    next_factor: Float[np.ndarray, "next feature"]
    offset: float
    """What the score is known to contain: 1, the density of nu itself, or 0."""

    @property
    def score(self) -> Float[np.ndarray, "state action next"]:
        """g, everywhere."""
        return self.offset + self.feature @ self.next_factor.T


def empirical_loss(fit: Fit, shares: Float[np.ndarray, "state action next"]) -> float:
    """Eq. (empirical-risk) of a score on observed shares of transitions."""
    score = fit.score
    squares = np.square(score).mean(-1)
    return float(-2.0 * np.vdot(shares, score) + np.vdot(shares.sum(-1), squares))


def risk(
    score: Float[np.ndarray, "state action next"], density: Float[np.ndarray, "state action next"]
) -> float:
    """L(g) of Eq. (L2-risk-pop), with uniform rho and nu."""
    return float(np.square(score - density).mean())


def joint_fit(
    shares: Float[np.ndarray, "state action next"], features: int, offset: float = 0.0
) -> Fit:
    """The exact minimiser over the joint class: a singular value decomposition (Eckart-Young).

    A pair never seen gets the feature zero.
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
    shares: Float[np.ndarray, "state action next"],
    features: int,
    generator: np.random.Generator,
    *,
    offset: float = 0.0,
    starts: int = 10,
    sweeps: int = 200,
) -> Fit:
    """A minimiser over the factored class by alternating least squares.

    The problem is not convex: several short descents, the best of which is continued.
    """
    shapes = [(size, features) for size in shares.shape]
    trials = [
        _alternate(shares, [generator.normal(size=shape) for shape in shapes], offset, _TRIAL)
        for _ in range(starts)
    ]
    best = min(trials, key=lambda trial: trial.loss)
    state, action, target = _alternate(shares, best.factors, offset, sweeps).factors
    return Fit(state[:, None] * action[None], target, offset)


class _Descent(NamedTuple):
    """Where alternating least squares came to."""

    factors: list[Float[np.ndarray, "_ feature"]]
    loss: float


def _alternate(
    shares: Float[np.ndarray, "state action next"],
    factors: list[Float[np.ndarray, "_ feature"]],
    offset: float,
    sweeps: int,
) -> _Descent:
    """One descent: each factor in turn is the least-squares solution given the other two."""
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
    return _Descent([state, action, target], loss)


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
