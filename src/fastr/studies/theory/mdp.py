"""MDPs that are known exactly: random finite families and cosines on a cube; samples from them.

`Waves` leave CP by an amount known exactly. On [0,1]^ds x [0,1]^da with uniform rho and nu,

    P(s'|s,a) = 1 + sum_k (sigma_k f_k(s) h_k(a) + tau_k f'_k(s) h'_k(a)) e_k(s'),

all f and f' orthonormal, all h and h' orthonormal, all e_k orthonormal and of mean zero. The first
products are CP with d = 1 + K terms. The second ones share the e_k: a joint feature of the same d
still represents P exactly, a CP product of d terms does not.
"""

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from numpy.random import Generator

Table = Float[np.ndarray, "state action next"]
"""A kernel, a density, a score or shares of transitions."""
Feature = Float[np.ndarray, "state action feature"]
Policy = Float[np.ndarray, "state action"]
Numbers = Int[np.ndarray, "term dim"]
"""Wave vectors."""


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
class FactoredMDP:
    """An MDP on finite sets with one factor per mode; its reward is psi^T theta_r, Eq. (reward).

    A CP-factored MDP, Eq. (cp), has P = psi^T m. An energy-based one has exp(psi^T m) / Z(s,a): its
    log ratio to any q(s') is a CP product up to log Z(s,a), to which the ranking loss of Eq. (nce)
    is invariant; its density is not a CP product.
    """

    state_factor: Float[np.ndarray, "state feature"]
    """phi_s"""
    action_factor: Float[np.ndarray, "action feature"]
    """phi_a"""
    next_factor: Float[np.ndarray, "state feature"]
    """m"""
    reward_weight: Float[np.ndarray, " feature"]
    """theta_r"""
    discount: float
    energy: bool = False

    @property
    def feature(self) -> Feature:
        """psi(s,a) = phi_s(s) * phi_a(a)."""
        return self.state_factor[:, None] * self.action_factor[None]

    @cached_property
    def mdp(self) -> FiniteMDP:
        """The same MDP as a table."""
        kernel = self.feature @ self.next_factor.T
        if self.energy:
            weights = np.exp(kernel - kernel.max(-1, keepdims=True))
            kernel = weights / weights.sum(-1, keepdims=True)
        return FiniteMDP(kernel, self.feature @ self.reward_weight, self.discount)


def mixture(
    states: int,
    actions: int,
    generator: Generator,
    *,
    modes: int = 3,
    outcomes: int = 2,
    discount: float = 0.9,
) -> FactoredMDP:
    """The state chooses a mode, the action gates the mode's outcomes (Sec. The FaStR Framework).

    P(s'|s,a) = sum_i p_i(s) sum_b u_ib(a) m_ib(s') with distributions p(s), u_i(a), m_ib: a CP
    product of d = modes x outcomes terms whose probabilities are valid by construction.
    """
    chosen = generator.dirichlet(np.full(modes, 0.5), size=states)
    gates = generator.dirichlet(np.full(outcomes, 0.5), size=(actions, modes))
    landings = generator.dirichlet(np.full(states, 0.3), size=modes * outcomes)
    reward = generator.uniform(-1.0, 1.0, size=modes * outcomes)
    state_factor = np.repeat(chosen, outcomes, axis=1)
    return FactoredMDP(state_factor, gates.reshape(actions, -1), landings.T, reward, discount)


def energy(
    states: int, actions: int, generator: Generator, *, features: int = 6, scale: float = 1.5
) -> FactoredMDP:
    """Gaussian factors; `scale` is the standard deviation of the log ratio psi^T m.

    The first coordinate of psi is 1, so that m can hold log q: without it the log ratio to q would
    need one more CP term.
    """
    spread = (scale / np.sqrt(features - 1)) ** (1 / 3)
    of_states, of_actions, of_next = (
        spread * generator.normal(size=(size, features)) for size in (states, actions, states)
    )
    of_states[:, 0] = of_actions[:, 0] = 1.0
    weight = generator.normal(size=features)
    return FactoredMDP(of_states, of_actions, of_next, weight, 0.9, energy=True)


def lock(
    generator: Generator, *, regions: int = 3, width: int = 5, actions: int = 48
) -> FactoredMDP:
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
        parts = (0.5 * (onward + back), np.cos(key) * pull, np.sin(key) * pull)
        landings[:, region] = np.stack(parts, axis=1)
    reward = np.zeros((regions, 3))
    reward[-1] = 0.5, 0.45 * np.cos(keys[-1]), 0.45 * np.sin(keys[-1])
    factors = np.repeat(chosen, 3, axis=1), np.tile(turned, (1, regions))
    return FactoredMDP(*factors, landings.reshape(states, -1), reward.ravel(), 1.0)


def random_policy(states: int, actions: int, generator: Generator) -> Policy:
    """A stationary policy: nearly deterministic in some states, nearly uniform in others."""
    sharpness = generator.uniform(0.05, 2.0, size=states)
    return np.stack([generator.dirichlet(np.full(actions, alpha)) for alpha in sharpness])


@dataclass(frozen=True)
class Waves:
    """Products of cosines with their amplitudes; those of the CP part come first."""

    numbers: tuple[Int[np.ndarray, "term _"], ...]
    """The wave vectors of states, actions and next states."""
    amplitudes: Float[np.ndarray, " term"]
    cp_terms: int
    """K: the number of terms of the CP part."""

    @property
    def feature_dim(self) -> int:
        """d: the constant and the CP part."""
        return 1 + self.cp_terms

    @property
    def cp_error(self) -> float:
        """epsilon_CP^2 = inf over CP products of d terms of L (App. Notation, Best-in-class).

        All but the d largest squared amplitudes, the constant's being 1. No CP product does
        better: as a matrix of states against the rest it has rank d, and the singular values of
        that matrix are 1 and the amplitudes. The d largest terms attain it.
        """
        squares = np.sort(np.append(np.square(self.amplitudes), 1.0))[::-1]
        return float(squares[self.feature_dim :].sum())

    @property
    def second_moment(self) -> float:
        """C_P of Eq. (CP-constant): E_rho of the integral of P^2."""
        return float(1.0 + np.square(self.amplitudes).sum())

    def values(self, points: int) -> list[Float[np.ndarray, "point term"]]:
        """f, h and e of all terms on the midpoints of a grid with `points` per axis.

        Cosines below the grid's resolution are orthonormal there too, so that a table of these
        values has the same `cp_error`.
        """
        return [cosines(numbers, grid(points, numbers)) for numbers in self.numbers]

    def feature(self, points: int) -> Feature:
        """The CP part's psi on the same midpoints: the constant and f_k(s) h_k(a)."""
        of_states, of_actions, _ = self.values(points)
        products = of_states[:, None, : self.cp_terms] * of_actions[None, :, : self.cp_terms]
        return np.concatenate([np.ones((*products.shape[:2], 1)), products], axis=-1)

    def table(
        self, points: int, weight: Float[np.ndarray, " feature"], discount: float
    ) -> FiniteMDP:
        """The MDP on the same midpoints, again exactly a kernel; its reward is psi^T weight."""
        kernel = self.tensor(*self.values(points))
        return FiniteMDP(kernel / kernel.shape[2], self.feature(points) @ weight, discount)

    def density(self, points: int) -> Table:
        """P(s'|s,a) on the same midpoints."""
        return self.table(points, np.zeros(self.feature_dim), 0.0).density

    def energy_density(self, points: int) -> Table:
        """A density on the same midpoints whose *log* is these waves, up to log Z(s,a)."""
        weights = np.exp(self.tensor(*self.values(points)))
        return weights / weights.mean(-1, keepdims=True)

    def cp_model(
        self, points: int, weight: Float[np.ndarray, " feature"], discount: float
    ) -> FactoredMDP:
        """The CP part alone on the same midpoints, as factors: equal to `table` at dial 0."""
        of_states, of_actions, of_next = (part[:, : self.cp_terms] for part in self.values(points))
        parts = (of_states, of_actions, of_next * self.amplitudes[: self.cp_terms])
        left, right, target = (np.insert(part, 0, 1.0, axis=1) for part in parts)
        return FactoredMDP(left, right, target / len(of_states), weight, discount)

    def tensor(
        self,
        of_states: Float[np.ndarray, "s term"],
        of_actions: Float[np.ndarray, "a term"],
        of_next: Float[np.ndarray, "x term"],
    ) -> Float[np.ndarray, "s a x"]:
        """The density from the values of its factors."""
        anchors = of_states[:, None] * of_actions[None] * self.amplitudes
        return 1.0 + anchors @ of_next.T

    def cell_means(self, cells: int) -> Table:
        """The density's mean over each cell of a grid with `cells` per axis, in closed form."""
        return self.tensor(*(cell_cosines(numbers, cells) for numbers in self.numbers))


def waves(state_dim: int, action_dim: int, *, terms: int = 3, dial: float = 0.0) -> Waves:
    """Waves of low frequency; `dial`, from 0 to 1/2, is the share of amplitude off CP."""
    of_states, of_actions = frequencies(state_dim, 2 * terms), frequencies(action_dim, 2 * terms)
    of_next = np.concatenate([of_states[:terms]] * 2)
    shares = np.repeat([1.0 - dial, dial], terms) / terms
    numbers = of_states, of_actions, of_next
    return Waves(numbers, shares / np.prod([peak(part) for part in numbers], axis=0), terms)


def peak(numbers: Numbers) -> Float[np.ndarray, " term"]:
    """The largest value of each wave: sqrt(2) for every axis along which it oscillates."""
    return np.sqrt(2.0) ** np.count_nonzero(numbers, axis=1)


def frequencies(dim: int, count: int) -> Int[np.ndarray, "count dim"]:
    """The first `count` wave vectors without zero, lowest frequencies first."""
    side = next(n for n in itertools.count(2) if n**dim > count)
    vectors = [v for v in itertools.product(range(side), repeat=dim) if any(v)]
    return np.array(sorted(vectors, key=lambda v: (sum(v), max(v), v))[:count])


def cosines(numbers: Numbers, x: Float[np.ndarray, "point dim"]) -> Float[np.ndarray, "point term"]:
    """Orthonormal cosines: the product over axes of sqrt(2) cos(pi k x), or 1 where k = 0."""
    factors = np.where(numbers > 0, np.sqrt(2.0) * np.cos(np.pi * x[:, None] * numbers), 1.0)
    return factors.prod(-1)


def cell_cosines(numbers: Numbers, cells: int) -> Float[np.ndarray, "cell term"]:
    """The means of `cosines` over the cells of a grid, by the integral of each cosine."""
    edges = np.linspace(0.0, 1.0, cells + 1)
    turns = np.pi * np.maximum(numbers, 1)[..., None]
    means = np.sqrt(2.0) * np.diff(np.sin(turns * edges)) * cells / turns
    per_axis = np.where(numbers[..., None] > 0, means, 1.0)
    places = np.array(list(itertools.product(range(cells), repeat=numbers.shape[1])))
    axes = range(numbers.shape[1])
    return np.prod([per_axis[:, axis, places[:, axis]].T for axis in axes], axis=0)


def grid(points: int, numbers: Numbers) -> Float[np.ndarray, "point dim"]:
    """The midpoints of a grid over the unit cube of these wave vectors."""
    axis = (np.arange(points) + 0.5) / points
    return np.array(list(itertools.product(axis, repeat=numbers.shape[1])))


def draw(density: Table, n: int, generator: Generator) -> Table:
    """The share of n i.i.d. transitions in each cell, (s,a) uniform."""
    chances = np.clip(density, 0.0, None).ravel()
    counts = generator.multinomial(n, chances / chances.sum())
    return counts.reshape(density.shape) / n


def population(density: Table) -> Table:
    """The same at n = infinity."""
    return density / density.sum()
