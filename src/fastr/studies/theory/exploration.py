"""Exploration: LSVI-UCB with the true feature and with learned ones."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from fastr.studies.theory.bounds import KINDS
from fastr.studies.theory.fits import factored_fit, joint_fit
from fastr.studies.theory.intervals import exponents, interval, log_interval
from fastr.studies.theory.lsvi import (
    Explore,
    explore,
    misspecification,
    optimal_values,
    unit_features,
)
from fastr.studies.theory.mdp import CPMDP, Feature, draw, lock
from fastr.studies.theory.page import (
    Claim,
    Curve,
    Grid,
    Plot,
    Progress,
    Section,
    Verdict,
    banded,
    how_often,
    judge,
)

STATEMENT = (
    "Claim (App. Conditional Implication for LSVI-UCB): with a feature that makes Bellman backups "
    "linear up to eta, the regret of LSVI-UCB is of order sqrt(T) plus T times eta, "
    "Eq. (misspecified-regret); and a factored feature reaches a small eta with fewer transitions.",
    "Measured on a chain of three regions, each opened by turning a dial near its own key, with "
    "the reward at the far end: exactly CP with d = 9, a different chain for every seed. Features "
    "of the same d are learned by the L2 objective from n transitions, and frozen. eta is computed "
    "by linear programs: max over (s,a), the best w of any norm, the worst V of LSVI-UCB's own "
    "dynamic program in four episodes (or, against n, of the optimal one). Regret is exact.",
    "The bound holds for every MDP: an exponent above one half by more than logarithms explain "
    "contradicts it, a smaller one never does. The bonus is a constant, far below the proof's.",
)
STEEPEST = 0.6
"""The largest fitted exponent of the regret that counts as a square root, up to logarithms."""
# slopes and ratio are the smallest and the largest exponent by MDP, and ratio of eta by n.
CLAIMS = (
    Claim(
        "With the true feature regret grows at most like the square root of the episodes (fitted "
        "exponent at most {steepest} on every MDP).",
        "exponent {slope:.2f} from episode {first} on, from {slopes[0]:.2f} to {slopes[1]:.2f} by "
        "MDP; eta = {eta:.1e}",
        lambda found: found.slopes[1] <= found.steepest,
    ),
    Claim(
        "At the same n the factored feature has the smaller eta.",
        "{apart}; eta of the joint over that of the factored feature from {ratio[0]:.1f} to "
        "{ratio[1]:.1f}",
        lambda found: found.below,
    ),
    Claim(
        "Late regret per episode is within the misspecification term, 2 H eta.",
        "at most {largest:.2f} of it; 2 H eta is {terms}, while no episode can lose more than "
        "{horizon}",
        lambda found: found.largest <= 1.0,
    ),
)
LESS_REGRET = Claim(
    "Learned from the same n = {n:,} transitions, the factored feature explores with less regret "
    "than the joint one (interval of the ratio above 1).",
    "joint over factored {ratio:.2f}; after {episodes:,} episodes true {true:.0f}, "
    "factored {factored:.0f}, joint {joint:.0f}",
    lambda found: None if found.ratio.low is None else found.ratio.low > 1.0,
)
EXPLORE = Explore()
COLORS = {"true": 0, "factored": 1, "joint": 2}


class Regret(NamedTuple):
    """Regret with one feature."""

    curve: Float[np.ndarray, "seed episode"]
    """Cumulative regret."""
    eta: Float[np.ndarray, " seed"]
    """For the values of LSVI-UCB's dynamic program."""


def name(kind: str, n: int) -> str:
    """A learned feature's name."""
    return f"{kind}, n = {n:,}"


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

    def run(self, progress: Progress) -> Section:
        """eta against n and regret, on every seed's own MDP."""
        etas, regrets = [], []
        for i, seed in enumerate(self.seeds):
            generator = np.random.default_rng(seed)
            model = lock(generator)
            etas.append(self.etas(model, generator))
            regrets.append(self.regrets(model, generator))
            progress((i + 1) / len(self.seeds))
        etas = dict(zip(KINDS, np.stack(etas, axis=1), strict=True))
        curves, errors = (np.stack(part, axis=1) for part in zip(*regrets, strict=True))
        found = dict(zip(self.features, map(Regret, curves, errors), strict=True))
        return Section(
            "exploration",
            "LSVI-UCB with true and learned features",
            STATEMENT,
            self.verdicts(etas, found),
            (self.regret_table(found), self.eta_table(etas)),
            (self.regret_plot(found), self.eta_plot(etas)),
        )

    @property
    def features(self) -> list[str]:
        """Names of the features whose regret is measured."""
        return ["true", *(name(kind, n) for n in self.samples for kind in KINDS)]

    def learned(self, model: CPMDP, n: int, generator: Generator) -> dict[str, Feature]:
        """Both classes' features, learned from the same n transitions."""
        shares = draw(model.mdp.density, n, generator)
        size = model.feature.shape[-1]
        fits = (factored_fit(shares, size, generator), joint_fit(shares, size))
        return {kind: unit_features(fit.feature) for kind, fit in zip(KINDS, fits, strict=True)}

    def etas(self, model: CPMDP, generator: Generator) -> Float[np.ndarray, "2 n"]:
        """eta for the optimal values, by class and n."""
        values = optimal_values(model.mdp, self.config.horizon)
        pairs = [self.learned(model, int(10.0**power), generator) for power in self.powers]
        return np.array(
            [[misspecification(model.mdp, pair[kind], values) for pair in pairs] for kind in KINDS]
        )

    def regrets(self, model: CPMDP, generator: Generator) -> tuple[np.ndarray, np.ndarray]:
        """Regret and eta of every feature, all runs in parallel, as means over the repeats."""
        features = [unit_features(model.feature)] * self.repeats
        for n in self.samples:
            pairs = [self.learned(model, n, generator) for _ in range(self.repeats)]
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
        slopes = self.slopes(found["true"])
        of_factored, of_joint = (log_interval(etas[kind]) for kind in KINDS)
        below, ratio = of_factored.below(of_joint), of_joint.mean / of_factored.mean
        term = {g: 2 * self.config.horizon * found[g].eta for g in found if g != "true"}
        *first, last = judge(
            CLAIMS,
            steepest=STEEPEST,
            first=self.first,
            slope=interval(slopes),
            slopes=(slopes.min(), slopes.max()),
            eta=found["true"].eta.max(),
            below=below,
            apart=how_often(below),
            ratio=(ratio.min(), ratio.max()),
            largest=max((self.late(found[group]) / term[group]).max() for group in term),
            terms=", ".join(f"{term[group].mean():.1f} ({group})" for group in term),
            horizon=self.config.horizon,
        )
        return (*first, *(self.less_regret(n, found) for n in self.samples), last)

    def less_regret(self, n: int, found: dict[str, Regret]) -> Verdict:
        """Whether the factored feature explores with less regret on the same data."""
        groups = {"true": "true"} | {kind: name(kind, n) for kind in KINDS}
        totals = {kind: found[group].curve[:, -1] for kind, group in groups.items()}
        ratio = log_interval(totals["joint"] / totals["factored"])
        means = {kind: interval(total) for kind, total in totals.items()}
        return judge([LESS_REGRET], n=n, ratio=ratio, episodes=self.config.episodes, **means)[0]

    def regret_table(self, found: dict[str, Regret]) -> Grid:
        """Regret, its exponent and eta by feature."""
        rows = tuple(
            (
                group,
                f"{interval(regret.curve[:, -1]):.0f}",
                f"{interval(self.late(regret)):.3f}",
                f"{interval(self.slopes(regret)):.2f}",
                f"{interval(regret.eta):.3f}",
            )
            for group, regret in found.items()
        )
        columns = ("feature", "regret", "late regret per episode", "exponent", "eta")
        return Grid(f"{self.config.episodes:,} episodes of LSVI-UCB", columns, rows)

    def eta_table(self, etas: dict[str, np.ndarray]) -> Grid:
        """eta by n."""
        rows = tuple(
            (kind, *(f"{log_interval(column):.3f}" for column in etas[kind].T)) for kind in KINDS
        )
        columns = ("feature", *(f"n = 10^{power}" for power in self.powers))
        return Grid("eta for the optimal values", columns, rows)

    def regret_plot(self, found: dict[str, Regret]) -> Plot:
        """Regret against episodes."""
        shown = np.unique(np.geomspace(1, self.config.episodes, 60).astype(int)) - 1
        episodes = (shown + 1.0).tolist()
        curves = []
        for i, (group, regret) in enumerate(found.items()):
            color, look = COLORS[group.split(",")[0]], "dashed" if i > 2 else "line"
            summary = log_interval(regret.curve[:, shown])
            curves.append(banded(group, episodes, summary, look, color))
        middle = len(shown) // 2
        guide = curves[0].y[middle] * np.sqrt((shown + 1) / (shown[middle] + 1))
        root = Curve("square root", episodes, guide.tolist(), look="dotted", color=7)
        return Plot("regret", "LSVI-UCB", "episodes", "regret", (*curves, root))

    def eta_plot(self, etas: dict[str, np.ndarray]) -> Plot:
        """eta against n."""
        n = [10.0**power for power in self.powers]
        curves = tuple(
            banded(kind, n, log_interval(etas[kind]), "line", COLORS[kind]) for kind in KINDS
        )
        return Plot("eta", "Bellman misspecification of learned features", "n", "eta", curves)
