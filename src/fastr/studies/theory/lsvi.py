"""LSVI-UCB (Jin et al. 2020) with any feature, many runs in parallel, exact regret.

App. Conditional Implication for LSVI-UCB: episodes of fixed length, the elliptical bonus, and
Definition "approximate Bellman linearity" as the measure of a feature's error.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.random import Generator
from scipy import optimize

from fastr.studies.theory.mdp import Feature, FiniteMDP


@dataclass(frozen=True)
class Explore:
    """Settings of exploration."""

    episodes: int = 3_000
    horizon: int = 6
    bonus: float = 1.0
    """beta: the width of the optimistic bonus in standard deviations of the regression."""
    ridge: float = 0.01
    """lambda: the regression's prior precision."""
    start: int = 0
    """The first state of every episode."""


class Outcome(NamedTuple):
    """Results of the runs."""

    regret: Float[np.ndarray, "run episode"]
    """Cumulative, of the exact value of each episode's policy."""
    values: Float[np.ndarray, "run value state"]
    """V functions of the dynamic program in four episodes, from the first to the last: a sample of
    the class V_LSVI of the proposition."""


def unit_features(feature: Feature) -> Feature:
    """The same span, scaled: second moment a multiple of the identity, norms at most 1."""
    rows = feature.reshape(-1, feature.shape[-1])
    left, sizes, _ = np.linalg.svd(rows, full_matrices=False)
    white = np.where(sizes > 1e-9 * sizes[0], left, 0.0)
    return (white / np.linalg.norm(white, axis=1).max()).reshape(feature.shape)


def optimal_values(mdp: FiniteMDP, horizon: int) -> Float[np.ndarray, "step state"]:
    """V*_h for h = 0 ... horizon, by backward induction."""
    values = np.zeros((horizon + 1, len(mdp.reward)))
    for h in reversed(range(horizon)):
        values[h] = (mdp.reward + mdp.kernel @ values[h + 1]).max(-1)
    return values


def policy_value(
    mdp: FiniteMDP, choices: Int[np.ndarray, "run step state"], start: int
) -> Float[np.ndarray, " run"]:
    """The exact expected return of deterministic policies, one per run."""
    everywhere = np.arange(len(mdp.reward))
    value = np.zeros((len(choices), len(everywhere)))
    for h in reversed(range(choices.shape[1])):
        chosen = choices[:, h]
        moved = mdp.kernel[everywhere, chosen] @ value[..., None]
        value = mdp.reward[everywhere, chosen] + moved[..., 0]
    return value[:, start]


class _Regression:
    """Ridge regression per run and step on all episodes so far, by rank-one updates."""

    def __init__(self, features: Float[np.ndarray, "run state action feature"], config: Explore):
        horizon = config.horizon
        runs, states, actions, size = features.shape
        self.rows = features.reshape(runs, states * actions, size)
        self.columns = np.ascontiguousarray(self.rows.transpose(0, 2, 1))
        self.shape = (runs, states, actions)
        self.inverse = np.tile(np.eye(size) / config.ridge, (runs, horizon, 1, 1))
        self.landed = np.zeros((runs, horizon, size, states))
        self.gained = np.zeros((runs, horizon, size))
        self.spread = np.square(self.rows).sum(-1)[:, None].repeat(horizon, 1) / config.ridge

    def estimate(self, h: int, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The regression's backup of a value at step h, and its standard deviation."""
        pull = self.landed[:, h] @ value[..., None] + self.gained[:, h, :, None]
        mean = (self.rows @ (self.inverse[:, h] @ pull)).reshape(self.shape)
        return mean, np.sqrt(np.maximum(self.spread[:, h], 0.0)).reshape(self.shape)

    def observe(self, pairs: np.ndarray, rewards: np.ndarray, nexts: np.ndarray) -> None:
        """Add one episode of every run: (run, step) arrays."""
        runs, steps = np.indices(pairs.shape)
        seen = self.rows[runs, pairs]
        self.landed[runs, steps, :, nexts] += seen
        self.gained += seen * rewards[..., None]
        turned = (self.inverse @ seen[..., None])[..., 0]
        size = 1.0 + np.einsum("rhk,rhk->rh", turned, seen)
        self.inverse -= turned[..., :, None] * (turned / size[..., None])[..., None, :]
        scaled = turned / np.sqrt(size)[..., None]
        self.spread -= np.square(scaled @ self.columns)


def explore(
    mdp: FiniteMDP,
    features: Float[np.ndarray, "run state action feature"],
    config: Explore,
    generator: Generator,
) -> Outcome:
    """LSVI-UCB in every run, each with its own feature."""
    best = optimal_values(mdp, config.horizon)[0, config.start]
    chances = mdp.kernel.cumsum(-1)
    regression = _Regression(features, config)
    regret = np.zeros((len(features), config.episodes))
    marks = set(np.linspace(0, config.episodes - 1, 4).astype(int))
    values = []
    for episode in range(config.episodes):
        choices, planned = _plan(regression, config)
        regret[:, episode] = best - policy_value(mdp, choices, config.start)
        regression.observe(*_play(mdp, chances, choices, config.start, generator))
        if episode in marks:
            values.append(planned)
    return Outcome(regret.cumsum(1), np.concatenate(values, axis=1))


def _plan(regression: _Regression, config: Explore) -> tuple[np.ndarray, np.ndarray]:
    """Greedy choices and optimistic values, by backward induction."""
    runs, states, _ = regression.shape
    value = np.zeros((runs, states))
    choices = np.zeros((runs, config.horizon, states), dtype=int)
    values = np.zeros((runs, config.horizon, states))
    for h in reversed(range(config.horizon)):
        mean, spread = regression.estimate(h, value)
        optimistic = np.minimum(mean + config.bonus * spread, config.horizon - h)
        choices[:, h] = optimistic.argmax(-1)
        value = values[:, h] = np.maximum(optimistic.max(-1), 0.0)
    return choices, values


def _play(
    mdp: FiniteMDP, chances: np.ndarray, choices: np.ndarray, start: int, generator: Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One episode of every run: its pairs (s,a), rewards and next states."""
    runs, horizon, _ = choices.shape
    state = np.full(runs, start)
    pairs, rewards, nexts = (np.zeros((runs, horizon), dtype) for dtype in (int, float, int))
    for h in range(horizon):
        action = choices[np.arange(runs), h, state]
        pairs[:, h] = state * mdp.reward.shape[1] + action
        rewards[:, h] = mdp.reward[state, action]
        passed = chances[state, action] <= generator.uniform(size=(runs, 1))
        state = np.minimum(passed.sum(-1), len(mdp.reward) - 1)
        nexts[:, h] = state
    return pairs, rewards, nexts


def misspecification(
    mdp: FiniteMDP, feature: Feature, values: Float[np.ndarray, "value state"]
) -> float:
    """eta of Definition "approximate Bellman linearity" for these V.

    Eq. (approx-bellman-linearity): the largest over V of the smallest over w of
    max |r + gamma P V - psi^T w|, by linear programs.
    """
    rows = feature.reshape(-1, feature.shape[-1])
    backups = mdp.reward[..., None] + mdp.discount * mdp.kernel @ values.T
    return max(chebyshev(rows, target) for target in backups.reshape(len(rows), -1).T)


def chebyshev(rows: Float[np.ndarray, "pair feature"], target: Float[np.ndarray, " pair"]) -> float:
    """The smallest max |target - rows w| over w, by linear programming."""
    size = rows.shape[1]
    ones = np.ones((len(rows), 1))
    found = optimize.linprog(
        np.append(np.zeros(size), 1.0),
        A_ub=np.block([[rows, -ones], [-rows, -ones]]),
        b_ub=np.concatenate([target, -target]),
        bounds=[(None, None)] * size + [(0.0, None)],
    )
    return float(found.fun)
