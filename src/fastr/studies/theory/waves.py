"""Continuous MDPs of cosines, with a dial that leaves CP by an amount known exactly.

On [0,1]^ds x [0,1]^da with uniform rho and nu,

    P(s'|s,a) = 1 + sum_k (sigma_k f_k(s) h_k(a) + tau_k f'_k(s) h'_k(a)) e_k(s'),

all f and f' orthonormal, all h and h' orthonormal, all e_k orthonormal and of mean zero. The first
products are CP with d = 1 + K terms. The second ones share the e_k: a joint feature of the same d
still represents P exactly, a CP product of d terms does not.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fastr.studies.theory.mdp import CPMDP, Feature, FiniteMDP, Table

Weight = Float[np.ndarray, " feature"]
Numbers = Int[np.ndarray, "term dim"]


@dataclass(frozen=True)
class Waves:
    """Products of cosines with their amplitudes; those of the CP part come first."""

    state_waves: Int[np.ndarray, "term state"]
    action_waves: Int[np.ndarray, "term action"]
    next_waves: Int[np.ndarray, "term state"]
    amplitudes: Float[np.ndarray, " term"]
    cp_terms: int
    """K: the number of terms of the CP part."""

    @property
    def feature_dim(self) -> int:
        """d: the constant and the CP part."""
        return 1 + self.cp_terms

    @property
    def numbers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The wave vectors of states, actions and next states."""
        return self.state_waves, self.action_waves, self.next_waves

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

    def values(self, points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """f, h and e of all terms on the midpoints of a grid with `points` per axis.

        Cosines below the grid's resolution are orthonormal there too, so that a table of these
        values has the same `cp_error`.
        """
        f, h, e = (cosines(numbers, grid(points, numbers)) for numbers in self.numbers)
        return f, h, e

    def feature(self, points: int) -> Feature:
        """The CP part's psi on the same midpoints: the constant and f_k(s) h_k(a)."""
        of_states, of_actions, _ = self.values(points)
        products = of_states[:, None, : self.cp_terms] * of_actions[None, :, : self.cp_terms]
        return np.concatenate([np.ones((*products.shape[:2], 1)), products], axis=-1)

    def table(self, points: int, weight: Weight, discount: float) -> FiniteMDP:
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

    def cp_model(self, points: int, weight: Weight, discount: float) -> CPMDP:
        """The CP part alone on the same midpoints, as factors: equal to `table` at dial 0."""
        of_states, of_actions, of_next = (part[:, : self.cp_terms] for part in self.values(points))
        parts = (of_states, of_actions, of_next * self.amplitudes[: self.cp_terms])
        left, right, target = (np.insert(part, 0, 1.0, axis=1) for part in parts)
        return CPMDP(left, right, target / len(of_states), weight, discount)

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
    heights = [peak(part) for part in (of_states, of_actions, of_next)]
    return Waves(of_states, of_actions, of_next, shares / np.prod(heights, axis=0), terms)


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
