"""Finite MDPs solved exactly, and those whose kernel is exactly a CP product (Eq. (cp))."""

import abc
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class FiniteMDP:
    """A discounted MDP with finitely many states and actions."""

    kernel: Float[np.ndarray, "state action state"]
    """P(s'|s,a) as probabilities: every row sums to one."""
    reward: Float[np.ndarray, "state action"]
    discount: float

    @property
    def density(self) -> Float[np.ndarray, "state action state"]:
        """P(s'|s,a) against the uniform measure nu (App. Notation)."""
        return self.kernel * len(self.kernel)

    def value(self, policy: Float[np.ndarray, "state action"]) -> Float[np.ndarray, " state"]:
        """V^pi, by solving the Bellman equation, Eq. (bellman-main)."""
        moves = np.einsum("sa,sax->sx", policy, self.kernel)
        gains = np.einsum("sa,sa->s", policy, self.reward)
        return np.linalg.solve(np.eye(len(gains)) - self.discount * moves, gains)

    def q_function(
        self, policy: Float[np.ndarray, "state action"]
    ) -> Float[np.ndarray, "state action"]:
        """Q^pi, by one backup of V^pi, Eq. (bellman-main)."""
        return self.reward + self.discount * self.kernel @ self.value(policy)


@dataclass(frozen=True)
class FactoredMDP(abc.ABC):
    """An MDP on finite sets that one factor per mode describes, Eq. (cp)."""

    state_factor: Float[np.ndarray, "state feature"]
    """phi_s"""
    action_factor: Float[np.ndarray, "action feature"]
    """phi_a"""
    next_factor: Float[np.ndarray, "state feature"]
    """m"""
    reward_weight: Float[np.ndarray, " feature"]
    """theta_r"""
    discount: float

    @property
    def feature(self) -> Float[np.ndarray, "state action feature"]:
        """psi(s,a) = phi_s(s) * phi_a(a)."""
        return self.state_factor[:, None] * self.action_factor[None]

    @abc.abstractmethod
    def kernel(self) -> Float[np.ndarray, "state action next"]:
        """P(s'|s,a)."""

    @cached_property
    def mdp(self) -> FiniteMDP:
        """The same MDP as a table."""
        return FiniteMDP(self.kernel(), self.feature @ self.reward_weight, self.discount)


@dataclass(frozen=True)
class CPMDP(FactoredMDP):
    """The CP-factored MDP of Eq. (cp) and Eq. (reward): P = psi^T m, m a density by counting."""

    def kernel(self) -> Float[np.ndarray, "state action next"]:
        """P(s'|s,a) = psi(s,a)^T m(s')."""
        return self.feature @ self.next_factor.T


def random_policy(
    states: int, actions: int, generator: np.random.Generator
) -> Float[np.ndarray, "state action"]:
    """A stationary policy: nearly deterministic in some states, nearly uniform in others."""
    sharpness = generator.uniform(0.05, 2.0, size=states)
    return np.stack([generator.dirichlet(np.full(actions, alpha)) for alpha in sharpness])
