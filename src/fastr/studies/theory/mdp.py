"""Finite MDPs that are known exactly, random families of them, and samples from them."""

import abc
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

Table = Float[np.ndarray, "state action next"]
"""A kernel, a density, a score or shares of transitions."""
Feature = Float[np.ndarray, "state action feature"]
Policy = Float[np.ndarray, "state action"]


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

    def value(self, policy: Policy) -> Float[np.ndarray, " state"]:
        """V^pi, by solving the Bellman equation, Eq. (bellman-main)."""
        moves = np.einsum("sa,sax->sx", policy, self.kernel)
        gains = np.einsum("sa,sa->s", policy, self.reward)
        return np.linalg.solve(np.eye(len(gains)) - self.discount * moves, gains)

    def q_function(self, policy: Policy) -> Float[np.ndarray, "state action"]:
        """Q^pi, by one backup of V^pi, Eq. (bellman-main)."""
        return self.reward + self.discount * self.kernel @ self.value(policy)


@dataclass(frozen=True)
class FactoredMDP(abc.ABC):
    """An MDP on finite sets with one factor per mode; its reward is psi^T theta_r, Eq. (reward)."""

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
    def feature(self) -> Feature:
        """psi(s,a) = phi_s(s) * phi_a(a)."""
        return self.state_factor[:, None] * self.action_factor[None]

    @abc.abstractmethod
    def kernel(self) -> Table:
        """P(s'|s,a)."""

    @cached_property
    def mdp(self) -> FiniteMDP:
        """The same MDP as a table."""
        return FiniteMDP(self.kernel(), self.feature @ self.reward_weight, self.discount)


class CPMDP(FactoredMDP):
    """A CP-factored MDP, Eq. (cp): P = psi^T m."""

    def kernel(self) -> Table:
        """P(s'|s,a) = psi(s,a)^T m(s')."""
        return self.feature @ self.next_factor.T


class EnergyMDP(FactoredMDP):
    """An energy-based MDP: P(s'|s,a) = exp(psi(s,a)^T m(s')) / Z(s,a).

    Its log ratio to any distribution q(s') is a CP product up to log Z(s,a), to which the ranking
    loss of Eq. (nce) is invariant; its density is not a CP product.
    """

    def kernel(self) -> Table:
        """exp(psi(s,a)^T m(s')) / Z(s,a)."""
        energies = self.feature @ self.next_factor.T
        weights = np.exp(energies - energies.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)


def mixture(
    states: int,
    actions: int,
    generator: Generator,
    *,
    modes: int = 3,
    outcomes: int = 2,
    discount: float = 0.9,
) -> CPMDP:
    """The state chooses a mode, the action gates the mode's outcomes (Sec. The FaStR Framework).

    P(s'|s,a) = sum_i p_i(s) sum_b u_ib(a) m_ib(s') with distributions p(s), u_i(a), m_ib: a CP
    product of d = modes x outcomes terms whose probabilities are valid by construction.
    """
    chosen = generator.dirichlet(np.full(modes, 0.5), size=states)
    gates = generator.dirichlet(np.full(outcomes, 0.5), size=(actions, modes))
    landings = generator.dirichlet(np.full(states, 0.3), size=modes * outcomes)
    reward = generator.uniform(-1.0, 1.0, size=modes * outcomes)
    state_factor = np.repeat(chosen, outcomes, axis=1)
    return CPMDP(state_factor, gates.reshape(actions, -1), landings.T, reward, discount)


def energy(
    states: int, actions: int, generator: Generator, *, features: int = 6, scale: float = 1.5
) -> EnergyMDP:
    """Gaussian factors; `scale` is the standard deviation of the log ratio psi^T m.

    The first coordinate of psi is 1, so that m can hold log q: without it the log ratio to q would
    need one more CP term.
    """
    spread = (scale / np.sqrt(features - 1)) ** (1 / 3)
    of_states, of_actions, of_next = (
        spread * generator.normal(size=(size, features)) for size in (states, actions, states)
    )
    of_states[:, 0] = of_actions[:, 0] = 1.0
    return EnergyMDP(of_states, of_actions, of_next, generator.normal(size=features), 0.9)


def lock(generator: Generator, *, regions: int = 3, width: int = 5, actions: int = 48) -> CPMDP:
    """A chain of regions, each opened by turning a dial near its key; reward at the far end.

    Actions are angles; in region i the chain advances with probability
    (1 + 0.9 cos(angle - key_i)) / 2 and falls back to the start otherwise. With the state choosing
    its region (softly) and phi_a = (1, cos, sin) this is exactly CP with d = 3 x regions. Near a
    key the loss is quadratic in the angle, so that the gaps between neighbouring actions are small.
    Undiscounted: for episodes of finite length.
    """
    states = regions * width
    home = np.repeat(np.arange(regions), width)
    chosen = 0.9 * np.eye(regions)[home] + 0.1 / regions
    angles = 2.0 * np.pi * np.arange(actions) / actions
    turned = np.stack([np.ones(actions), np.cos(angles), np.sin(angles)], axis=1)
    keys = generator.uniform(0.0, 2.0 * np.pi, size=regions)
    landings = np.zeros((states, regions, 3))
    for region, key in enumerate(keys):
        onward, back = np.zeros(states), np.zeros(states)
        onward[home == min(region + 1, regions - 1)] = generator.dirichlet(np.ones(width))
        back[home == 0] = generator.dirichlet(np.ones(width))
        pull = 0.45 * (onward - back)
        waves = (0.5 * (onward + back), np.cos(key) * pull, np.sin(key) * pull)
        landings[:, region] = np.stack(waves, axis=1)
    reward = np.zeros((regions, 3))
    reward[-1] = 0.5, 0.45 * np.cos(keys[-1]), 0.45 * np.sin(keys[-1])
    factors = np.repeat(chosen, 3, axis=1), np.tile(turned, (1, regions))
    return CPMDP(*factors, landings.reshape(states, -1), reward.ravel(), 1.0)


def random_policy(states: int, actions: int, generator: Generator) -> Policy:
    """A stationary policy: nearly deterministic in some states, nearly uniform in others."""
    sharpness = generator.uniform(0.05, 2.0, size=states)
    return np.stack([generator.dirichlet(np.full(actions, alpha)) for alpha in sharpness])


def draw(density: Table, n: int, generator: Generator) -> Table:
    """The share of n i.i.d. transitions in each cell, (s,a) uniform."""
    chances = np.clip(density, 0.0, None).ravel()
    counts = generator.multinomial(n, chances / chances.sum())
    return counts.reshape(density.shape) / n


def population(density: Table) -> Table:
    """The same at n = infinity."""
    return density / density.sum()
