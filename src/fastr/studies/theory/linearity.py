"""Q-linearity: Eq. (Q-linear) and App. Derivation of the Q-linearity, with the norm bound."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fastr.studies.theory.mdp import CPMDP, FiniteMDP, random_policy


@dataclass(frozen=True)
class Linearity:
    """What one policy's exact Q says about Eq. (Q-linear)."""

    residual: float
    """max over (s,a) of |Q - psi^T w| with w of the appendix's formula."""
    norm: float
    """|w|"""
    bound: float
    """|theta_r| + gamma B_m1 R_max / (1 - gamma)"""


def value_weight(
    model: CPMDP, policy: Float[np.ndarray, "state action"]
) -> Float[np.ndarray, " feature"]:
    """w^pi = theta_r + gamma times the integral of m V^pi, Eq. (Q-linear)."""
    return model.reward_weight + model.discount * model.next_factor.T @ model.mdp.value(policy)


def norm_bound(model: CPMDP) -> float:
    """The bound on |w^pi| of App. Derivation of the Q-linearity."""
    mass = np.linalg.norm(model.next_factor, axis=1).sum()
    largest = np.abs(model.mdp.reward).max()
    past = model.discount * mass * largest / (1.0 - model.discount)
    return float(np.linalg.norm(model.reward_weight) + past)


def linearity(model: CPMDP, policy: Float[np.ndarray, "state action"]) -> Linearity:
    """Check Eq. (Q-linear) on one policy."""
    weight = value_weight(model, policy)
    error = np.abs(model.mdp.q_function(policy) - model.feature @ weight).max()
    return Linearity(float(error), float(np.linalg.norm(weight)), norm_bound(model))


def off_span(
    feature: Float[np.ndarray, "state action feature"],
    targets: Float[np.ndarray, "state action target"],
) -> Float[np.ndarray, "state action target"]:
    """What of each target no linear function of the feature explains (least squares)."""
    rows = feature.reshape(-1, feature.shape[-1])
    flat = targets.reshape(len(rows), -1)
    weights = np.linalg.lstsq(rows, flat, rcond=1e-12)[0]
    return (flat - rows @ weights).reshape(targets.shape)


def policy_residual(
    mdp: FiniteMDP,
    feature: Float[np.ndarray, "state action feature"],
    policy: Float[np.ndarray, "state action"],
    cp_error: float,
) -> tuple[float, float]:
    """The rms of Q off the feature's span, and what epsilon_CP allows it to be.

    With g the best CP product, Q - psi^T w = gamma times the integral of (P - g) V. Both P and g
    integrate to one, so that V may be centred, and the rms is at most gamma epsilon_CP times the
    standard deviation of V under nu (Cauchy-Schwarz).
    """
    residual = off_span(feature, mdp.q_function(policy)[..., None])
    allowed = mdp.discount * np.sqrt(cp_error) * mdp.value(policy).std()
    return float(np.sqrt(np.square(residual).mean())), float(allowed)


def random_checks(model: CPMDP, policies: int, generator: np.random.Generator) -> list[Linearity]:
    """`linearity` for random policies."""
    states, actions = model.mdp.reward.shape
    return [linearity(model, random_policy(states, actions, generator)) for _ in range(policies)]
