"""The study of exploration: LSVI-UCB with the true feature and with learned ones."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fastr.studies.theory.families import lock
from fastr.studies.theory.intervals import exponents, interval, log_interval
from fastr.studies.theory.lsvi import (
    Explore,
    explore,
    misspecification,
    optimal_values,
    unit_features,
)
from fastr.studies.theory.mdp import CPMDP
from fastr.studies.theory.report import (
    Curve,
    Grid,
    Plot,
    Progress,
    Section,
    Verdict,
    all_apart,
    banded,
)
from fastr.studies.theory.sampling import draw
from fastr.studies.theory.spectral_fit import factored_fit, joint_fit

STATEMENT = (
    "Claim (App. Conditional Implication for LSVI-UCB): with a feature that makes Bellman backups "
    "linear up to eta (Definition approximate Bellman linearity), the regret of LSVI-UCB is of "
    "order sqrt(T) plus T times eta, Eq. (misspecified-regret); and a factored feature reaches a "
    "small eta with fewer transitions.",
    "Measured: a chain of three regions, each opened by turning a dial near its own key; the "
    "reward is at the far end. It is exactly CP with d = 9 on 15 states and 48 actions. Every seed "
    "has a chain of its own, so that intervals are over MDPs and data together. Features "
    "of the same d are learned by the L2 objective from n transitions with uniform (s,a), and "
    "frozen. "
    "eta is computed by linear programs: max over (s,a), the best w, the worst V among those of "
    "LSVI-UCB's own dynamic program in four episodes (or, against n, of the optimal one). The norm "
    "of w is not bounded. Regret is exact: each episode's policy is evaluated by backward "
    "induction.",
    "The bound on regret is an upper bound, for every MDP: an exponent above one half by more than "
    "logarithms explain speaks against it, on any of them, and a smaller one never does. Near a "
    "key the loss is quadratic in the angle, so that the gaps between neighbouring actions are "
    "small. The bonus is a constant, far below the one of the proof.",
)
STEEPEST = 0.6
"""The largest fitted exponent of the regret that counts as a square root, up to logarithms."""
EXPLORE = Explore()
FEATURES = ("true", "factored", "joint")
LEARNED = FEATURES[1:]


class Regret(NamedTuple):
    """What the runs with one feature came to, on one seed's MDP or by seed."""

    curve: Float[np.ndarray, "*seed episode"]
    """Cumulative regret."""
    eta: Float[np.ndarray, "*seed"]
    """For the values that LSVI-UCB met."""


def over_seeds(rows: list[dict[str, Regret]]) -> dict[str, Regret]:
    """Every feature's regret by seed, from one dictionary per seed."""
    return {
        group: Regret(
            np.stack([row[group].curve for row in rows]), np.stack([row[group].eta for row in rows])
        )
        for group in rows[0]
    }


def name(kind: str, n: int) -> str:
    """A learned feature's name."""
    return f"{kind}, n = {n:,}"


@dataclass(frozen=True)
class ExplorationStudy:
    """Sizes of the study."""

    seeds: tuple[int, ...]
    config: Explore = EXPLORE
    samples: tuple[int, ...] = (10_000, 100_000)
    """Transitions that the features of the regret curves are learned from."""
    repeats: int = 4
    """Runs per seed and feature on the seed's MDP, each with data of its own; their mean counts as
    one."""
    powers: tuple[float, ...] = (4.0, 4.5, 5.0, 5.5, 6.0, 6.5)
    first: int = 200
    """The episode from which exponents are fitted."""

    def run(self, progress: Progress) -> Section:
        """eta against n and regret, on every seed's own MDP."""
        etas_by_seed, regrets_by_seed = [], []
        for i, seed in enumerate(self.seeds):
            generator = np.random.default_rng(seed)
            model = lock(generator)
            etas_by_seed.append(self.etas(model, generator))
            regrets_by_seed.append(self.regrets(model, generator))
            progress((i + 1) / len(self.seeds))
        etas = {kind: np.stack([row[kind] for row in etas_by_seed]) for kind in LEARNED}
        found = over_seeds(regrets_by_seed)
        return Section(
            "exploration",
            "LSVI-UCB with true and learned features",
            STATEMENT,
            tuple(self.verdicts(etas, found)),
            (self.regret_table(found), self.eta_table(etas)),
            (self.regret_plot(found), self.eta_plot(etas)),
        )

    def learned(
        self, model: CPMDP, n: int, generator: np.random.Generator
    ) -> dict[str, Float[np.ndarray, "state action feature"]]:
        """Both classes' features, learned from the same n transitions."""
        shares = draw(model.mdp.density, n, generator)
        size = model.feature.shape[-1]
        factored, joint = factored_fit(shares, size, generator), joint_fit(shares, size)
        fits = zip(LEARNED, (factored, joint), strict=True)
        return {kind: unit_features(fit.feature) for kind, fit in fits}

    def etas(
        self, model: CPMDP, generator: np.random.Generator
    ) -> dict[str, Float[np.ndarray, " n"]]:
        """eta for the optimal values, by class and n."""
        values = optimal_values(model.mdp, self.config.horizon)
        found = {kind: np.zeros(len(self.powers)) for kind in LEARNED}
        for i, power in enumerate(self.powers):
            features = self.learned(model, int(10.0**power), generator)
            for kind, feature in features.items():
                found[kind][i] = misspecification(model.mdp, feature, values)
        return found

    def regrets(self, model: CPMDP, generator: np.random.Generator) -> dict[str, Regret]:
        """LSVI-UCB with every feature, all runs side by side, as means over the repeats."""
        features = {"true": [unit_features(model.feature)] * self.repeats}
        for n in self.samples:
            pairs = [self.learned(model, n, generator) for _ in range(self.repeats)]
            features |= {name(kind, n): [pair[kind] for pair in pairs] for kind in LEARNED}
        flat = np.stack([feature for group in features.values() for feature in group])
        outcome = explore(model.mdp, flat, self.config, generator)
        etas = np.array(
            [
                misspecification(model.mdp, feature, values)
                for feature, values in zip(flat, outcome.values, strict=True)
            ]
        )
        shape = (len(features), self.repeats)
        regret = outcome.regret.reshape(*shape, -1).mean(1)
        return dict(zip(features, map(Regret, regret, etas.reshape(shape).mean(1)), strict=True))

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
    ) -> list[Verdict]:
        """At most a square root with the true feature, fewer transitions with the factored one."""
        slopes = self.slopes(found["true"])
        of_factored, of_joint = (log_interval(etas[kind]) for kind in LEARNED)
        ratio = of_joint.mean / of_factored.mean
        return [
            Verdict(
                "With the true feature regret grows at most like the square root of the episodes "
                f"(fitted exponent at most {STEEPEST} on every MDP).",
                f"exponent {interval(slopes).text()} from episode {self.first} on, from "
                f"{slopes.min():.2f} to {slopes.max():.2f} by MDP; eta = "
                f"{found['true'].eta.max():.1e}",
                bool(slopes.max() <= STEEPEST),
            ),
            all_apart(
                "At the same n the factored feature has the smaller eta.",
                of_factored.below(of_joint),
                "eta of the joint over that of the factored feature from "
                f"{ratio.min():.1f} to {ratio.max():.1f}",
            ),
            *(self.less_regret(n, found) for n in self.samples),
            self.misspecification_verdict(found),
        ]

    def less_regret(self, n: int, found: dict[str, Regret]) -> Verdict:
        """Whether the factored feature explores with less regret on the same data."""
        groups = ("true", *(name(kind, n) for kind in LEARNED))
        totals = [found[group].curve[:, -1] for group in groups]
        ratio = log_interval(totals[2] / totals[1])
        said = ", ".join(
            f"{kind} {interval(total).text('.0f')}"
            for kind, total in zip(FEATURES, totals, strict=True)
        )
        return Verdict(
            f"Learned from the same n = {n:,} transitions, the factored feature explores with less "
            "regret than the joint one (interval of the ratio above 1).",
            f"joint over factored {ratio.text()}; after {self.config.episodes:,} episodes {said}",
            None if ratio.low is None else bool(ratio.low > 1.0),
        )

    def misspecification_verdict(self, found: dict[str, Regret]) -> Verdict:
        """Late regret against 2 H eta: an error of eta per step, once over and once under."""
        horizon = self.config.horizon
        learned = [group for group in found if group != "true"]
        shares = [self.late(found[group]) / (2 * horizon * found[group].eta) for group in learned]
        sizes = ", ".join(f"{2 * horizon * found[g].eta.mean():.1f} ({g})" for g in learned)
        return Verdict(
            "Late regret per episode is within the misspecification term, 2 H eta.",
            f"at most {np.max(shares):.2f} of it; 2 H eta is {sizes}, while no episode can lose "
            f"more than {horizon}",
            bool(np.max(shares) <= 1.0),
        )

    def regret_table(self, found: dict[str, Regret]) -> Grid:
        """Regret, its exponent and eta by feature."""
        rows = [
            (
                group,
                interval(regret.curve[:, -1]).text(".0f"),
                interval(self.late(regret)).text(".3f"),
                interval(self.slopes(regret)).text(),
                interval(regret.eta).text(".3f"),
            )
            for group, regret in found.items()
        ]
        columns = ("feature", "regret", "late regret per episode", "exponent", "eta")
        return Grid(f"{self.config.episodes:,} episodes of LSVI-UCB", columns, tuple(rows))

    def eta_table(self, etas: dict[str, np.ndarray]) -> Grid:
        """eta by n."""
        rows = [
            (kind, *(log_interval(etas[kind][:, i]).text(".3f") for i in range(len(self.powers))))
            for kind in LEARNED
        ]
        columns = ("feature", *(f"n = 10^{power}" for power in self.powers))
        return Grid("eta for the optimal values", columns, tuple(rows))

    def regret_plot(self, found: dict[str, Regret]) -> Plot:
        """Regret against episodes."""
        shown = np.unique(np.geomspace(1, self.config.episodes, 60).astype(int)) - 1
        episodes = (shown + 1.0).tolist()
        curves = []
        for i, (group, regret) in enumerate(found.items()):
            color, look = FEATURES.index(group.split(",")[0]), "dashed" if i > 2 else "line"
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
            banded(kind, n, log_interval(etas[kind]), "line", color)
            for color, kind in enumerate(LEARNED, start=1)
        )
        return Plot("eta", "Bellman misspecification of learned features", "n", "eta", curves)
