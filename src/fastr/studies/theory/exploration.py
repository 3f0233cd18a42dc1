"""Exploration: LSVI-UCB (Jin et al. 2020) with the true feature and with learned ones.

App. Conditional Implication for LSVI-UCB: episodes of fixed length, the elliptical bonus, and
Definition "approximate Bellman linearity" as the measure of a feature's error. Many runs in
parallel, exact regret.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.random import Generator
from scipy import optimize

from fastr.report.page import Figure
from fastr.report.table import Table
from fastr.studies.theory import (
    Section,
    Verdict,
    curve,
    exponents,
    how_often,
    interval,
    judge,
    log_interval,
    log_plot,
)
from fastr.studies.theory.fits import KINDS, factored_fit, joint_fit
from fastr.studies.theory.mdp import FactoredMDP, Feature, FiniteMDP, draw, lock

STATEMENT = (
    "Claim (App. Conditional Implication for LSVI-UCB): with a feature that makes Bellman backups "
    "linear up to eta, the regret of LSVI-UCB is of order sqrt(T) plus T times eta, "
    "Eq. (misspecified-regret); and a factored feature reaches a small eta with fewer transitions.",
    "Measured on a chain of regions, each opened by turning a dial near its own key: exactly CP "
    "with d = 9, another chain for every seed. Features of the same d are learned by the L2 "
    "objective from n transitions. Linear programs give eta for V of LSVI-UCB's dynamic program in "
    "four episodes (against n: for the optimal V); regret is exact. The bonus is a constant, far "
    "below the proof's. An exponent well above one half contradicts the bound, a smaller one "
    "never does.",
)
STEEPEST = 0.6
"""The largest fitted exponent of the regret that counts as a square root, up to logarithms."""
COLORS = {"true": 0, "factored": 1, "joint": 2}


@dataclass(frozen=True)
class Explore:
    """Settings of exploration; every episode starts in state 0."""

    episodes: int = 3_000
    horizon: int = 6
    bonus: float = 1.0
    """beta: the width of the optimistic bonus in standard deviations of the regression."""
    ridge: float = 0.01
    """lambda: the regression's prior precision."""


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
    mdp: FiniteMDP, choices: Int[np.ndarray, "run step state"]
) -> Float[np.ndarray, "run state"]:
    """The exact expected return of deterministic policies, one per run, from every state."""
    everywhere = np.arange(len(mdp.reward))
    value = np.zeros((len(choices), len(everywhere)))
    for h in reversed(range(choices.shape[1])):
        chosen = choices[:, h]
        moved = mdp.kernel[everywhere, chosen] @ value[..., None]
        value = mdp.reward[everywhere, chosen] + moved[..., 0]
    return value


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
    """LSVI-UCB in every run, each with its own feature.

    App. Conditional Implication for LSVI-UCB.
    """
    best = optimal_values(mdp, config.horizon)[0, 0]
    regression = _Regression(features, config)
    regret = np.zeros((len(features), config.episodes))
    marks = set(np.linspace(0, config.episodes - 1, 4).astype(int))
    values = []
    for episode in range(config.episodes):
        choices, planned = _plan(regression, config)
        regret[:, episode] = best - policy_value(mdp, choices)[:, 0]
        regression.observe(*_play(mdp, choices, generator))
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
    mdp: FiniteMDP, choices: np.ndarray, generator: Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One episode of every run: its pairs (s,a), rewards and next states."""
    runs, horizon, _ = choices.shape
    state = np.zeros(runs, int)
    pairs, rewards, nexts = (np.zeros((runs, horizon), dtype) for dtype in (int, float, int))
    for h in range(horizon):
        action = choices[np.arange(runs), h, state]
        pairs[:, h] = state * mdp.reward.shape[1] + action
        rewards[:, h] = mdp.reward[state, action]
        passed = mdp.kernel[state, action].cumsum(-1) <= generator.uniform(size=(runs, 1))
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


EXPLORE = Explore()


class Regret(NamedTuple):
    """Regret with one feature."""

    curve: Float[np.ndarray, "seed episode"]
    """Cumulative regret."""
    eta: Float[np.ndarray, " seed"]
    """For the values of LSVI-UCB's dynamic program."""


def name(kind: str, n: int) -> str:
    """A learned feature's name."""
    return f"{kind}, n = {n:,}"


def learned(model: FactoredMDP, n: int, generator: Generator) -> dict[str, Feature]:
    """Both classes' features, learned from the same n transitions."""
    shares, size = draw(model.mdp.density, n, generator), model.feature.shape[-1]
    fits = (factored_fit(shares, size, generator), joint_fit(shares, size))
    return {kind: unit_features(fit.feature) for kind, fit in zip(KINDS, fits, strict=True)}


@dataclass(frozen=True)
class Study:
    """Sizes of the study."""

    seeds: tuple[int, ...]
    config: Explore = EXPLORE
    samples: tuple[int, ...] = (10_000, 100_000)
    """Numbers of transitions from which the features of the regret curves are learned."""
    repeats: int = 4
    """Runs per seed and feature on the seed's MDP, each with its own data; their mean counts as
    one."""
    powers: tuple[float, ...] = (4.0, 4.5, 5.0, 5.5, 6.0, 6.5)
    first: int = 200
    """The episode from which exponents are fitted."""

    def run(self) -> Section:
        """eta against n and regret, on every seed's own MDP."""
        etas, regrets = [], []
        for seed in self.seeds:
            generator = np.random.default_rng(seed)
            model = lock(generator)
            etas.append(self.etas(model, generator))
            regrets.append(self.regrets(model, generator))
        etas = dict(zip(KINDS, np.stack(etas, axis=1), strict=True))
        features = ["true", *(name(kind, n) for n in self.samples for kind in KINDS)]
        curves, errors = (np.stack(part, axis=1) for part in zip(*regrets, strict=True))
        found = dict(zip(features, map(Regret, curves, errors), strict=True))
        title, verdicts = "LSVI-UCB with true and learned features", self.verdicts(etas, found)
        grids = self.regret_table(found), self.eta_table(etas)
        plots = self.regret_plot(found), self.eta_plot(etas)
        return Section("exploration", title, STATEMENT, verdicts, grids, plots)

    def etas(self, model: FactoredMDP, generator: Generator) -> Float[np.ndarray, "2 n"]:
        """eta for the optimal values, by class and n."""
        values = optimal_values(model.mdp, self.config.horizon)
        pairs = [learned(model, int(10.0**power), generator) for power in self.powers]
        return np.array(
            [[misspecification(model.mdp, pair[kind], values) for pair in pairs] for kind in KINDS]
        )

    def regrets(self, model: FactoredMDP, generator: Generator) -> tuple[np.ndarray, np.ndarray]:
        """Regret and eta of every feature, all runs in parallel, as means over the repeats."""
        features = [unit_features(model.feature)] * self.repeats
        for n in self.samples:
            pairs = [learned(model, n, generator) for _ in range(self.repeats)]
            features += [pair[kind] for kind in KINDS for pair in pairs]
        outcome = explore(model.mdp, np.stack(features), self.config, generator)
        pairs = zip(features, outcome.values, strict=True)
        etas = np.array([misspecification(model.mdp, *pair) for pair in pairs])
        regret = outcome.regret.reshape(-1, self.repeats, self.config.episodes)
        return regret.mean(1), etas.reshape(-1, self.repeats).mean(1)

    def slopes(self, found: Regret) -> Float[np.ndarray, " seed"]:
        """Each seed's exponent of regret in the number of episodes."""
        episodes = np.arange(1, self.config.episodes + 1)
        return exponents(episodes[self.first :].astype(float), found.curve[:, self.first :])

    def late(self, found: Regret) -> Float[np.ndarray, " seed"]:
        """Regret per episode in the last quarter."""
        quarter = self.config.episodes // 4
        return (found.curve[:, -1] - found.curve[:, -1 - quarter]) / quarter

    def verdicts(
        self, etas: dict[str, Float[np.ndarray, "seed n"]], found: dict[str, Regret]
    ) -> tuple[Verdict, ...]:
        """At most a square root with the true feature, fewer transitions with the factored one."""
        slopes, horizon = self.slopes(found["true"]), self.config.horizon
        of_factored, of_joint = (log_interval(etas[kind]) for kind in KINDS)
        below, ratio = of_factored.below(of_joint), of_joint.mean / of_factored.mean
        bounds = {group: 2 * horizon * found[group].eta for group in found if group != "true"}
        largest = max((self.late(found[group]) / bound).max() for group, bound in bounds.items())
        listed = ", ".join(f"{bound.mean():.1f} ({group})" for group, bound in bounds.items())
        return (
            judge(
                "With the true feature regret grows at most like the square root of the episodes "
                f"(fitted exponent at most {STEEPEST} on every MDP).",
                f"exponent {interval(slopes):.2f} from episode {self.first} on, from "
                f"{slopes.min():.2f} to {slopes.max():.2f} by MDP; "
                f"eta = {found['true'].eta.max():.1e}",
                slopes.max() <= STEEPEST,
            ),
            judge(
                "At the same n the factored feature has the smaller eta.",
                f"{how_often(below)}; eta of the joint over that of the factored feature from "
                f"{ratio.min():.1f} to {ratio.max():.1f}",
                below,
            ),
            *(self.less_regret(n, found) for n in self.samples),
            judge(
                "Late regret per episode is within the misspecification term, 2 H eta.",
                f"at most {largest:.2f} of it; 2 H eta is {listed}, while no episode can lose more "
                f"than {horizon}",
                largest <= 1.0,
            ),
        )

    def less_regret(self, n: int, found: dict[str, Regret]) -> Verdict:
        """Whether the factored feature explores with less regret on the same data."""
        groups = ("true", *(name(kind, n) for kind in KINDS))
        true, factored, joint = (found[group].curve[:, -1] for group in groups)
        ratio = log_interval(joint / factored)
        return judge(
            f"Learned from the same n = {n:,} transitions, the factored feature explores with "
            "less regret than the joint one (interval of the ratio above 1).",
            f"joint over factored {ratio:.2f}; after {self.config.episodes:,} episodes true "
            f"{interval(true):.0f}, factored {interval(factored):.0f}, joint {interval(joint):.0f}",
            None if ratio.low is None else ratio.low > 1.0,
        )

    def regret_table(self, found: dict[str, Regret]) -> Table:
        """Regret, its exponent and eta by feature."""
        rows = []
        for group, regret in found.items():
            total, late = interval(regret.curve[:, -1]), interval(self.late(regret))
            slope, eta = interval(self.slopes(regret)), interval(regret.eta)
            rows.append((group, f"{total:.0f}", f"{late:.3f}", f"{slope:.2f}", f"{eta:.3f}"))
        columns = ("feature", "regret", "late regret per episode", "exponent", "eta")
        return Table(
            "exploration-1", f"{self.config.episodes:,} episodes of LSVI-UCB", columns, rows
        )

    def eta_table(self, etas: dict[str, np.ndarray]) -> Table:
        """eta by n."""
        rows = [(k, *(f"{log_interval(column):.3f}" for column in etas[k].T)) for k in KINDS]
        columns = ("feature", *(f"n = 10^{power}" for power in self.powers))
        return Table("exploration-2", "eta for the optimal values", columns, rows)

    def regret_plot(self, found: dict[str, Regret]) -> Figure:
        """Regret against episodes."""
        shown = np.unique(np.geomspace(1, self.config.episodes, 60).astype(int)) - 1
        curves = []
        for i, (group, regret) in enumerate(found.items()):
            color, dash = COLORS[group.split(",")[0]], "--" if i > 2 else "-"
            summary = log_interval(regret.curve[:, shown])
            curves.append(curve(group, shown + 1, summary, color, dash))
        middle = len(shown) // 2
        guide = curves[0].y[middle] * np.sqrt((shown + 1) / (shown[middle] + 1))
        curves.append(curve("square root", shown + 1, guide, 7, ":"))
        return log_plot("regret", "LSVI-UCB", "episodes", "regret", curves)

    def eta_plot(self, etas: dict[str, np.ndarray]) -> Figure:
        """eta against n."""
        n = [10.0**power for power in self.powers]
        curves = [curve(k, n, log_interval(etas[k]), COLORS[k]) for k in KINDS]
        return log_plot("eta", "Bellman misspecification of learned features", "n", "eta", curves)
