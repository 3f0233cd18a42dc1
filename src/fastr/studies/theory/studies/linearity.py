"""The study of Q-linearity: on CP for random policies, and off CP against the dial."""

from dataclasses import dataclass

import numpy as np

from fastr.studies.theory.families import mixture
from fastr.studies.theory.intervals import exponents, interval, log_interval
from fastr.studies.theory.linearity import Linearity, policy_residual, random_checks
from fastr.studies.theory.mdp import random_policy
from fastr.studies.theory.report import Curve, Grid, Plot, Progress, Section, Verdict, banded
from fastr.studies.theory.waves import grid, waves

STATEMENT = (
    "Claim (Eq. (Q-linear); App. Derivation of the Q-linearity): where the kernel and the reward "
    "are CP products, P = psi^T m and r = psi^T theta_r, the Q-function of every policy is "
    "psi^T w with w = theta_r + gamma times the integral of m V, and |w| is at most "
    "|theta_r| + gamma B_m1 R_max / (1 - gamma).",
    "Measured: Q by solving the Bellman equation, in float64, for random policies on random "
    "mixtures (the state chooses a mode, the action gates its outcomes) and on the grid of a "
    "continuous family of cosines. Then a dial adds products that no CP kernel of the same d "
    "holds. epsilon_CP is known exactly there, and with g the best CP product "
    "Q - psi^T w = gamma times the integral of (P - g) V, so that the rms residual is at most "
    "gamma epsilon_CP times the standard deviation of V.",
)


@dataclass(frozen=True)
class LinearityStudy:
    """Sizes of the study."""

    seeds: tuple[int, ...]
    policies: int = 100
    states: int = 30
    actions: int = 12
    points: int = 16
    dials: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)

    def run(self, progress: Progress) -> Section:
        """On CP, then off it."""
        on_cp = {"mixture": self.on_mixtures(), "cosines": self.on_waves()}
        progress(0.3)
        residual, allowed = np.moveaxis(np.array([self.off_cp(seed) for seed in self.seeds]), -1, 0)
        errors = np.sqrt([waves(1, 1, dial=dial).cp_error for dial in self.dials])
        progress(1.0)
        return Section(
            "linearity",
            "Q is linear in the feature",
            STATEMENT,
            (*verdicts_on_cp(on_cp), *verdicts_off_cp(errors, residual, allowed)),
            (self.table(on_cp),),
            (plot(errors, residual, allowed),),
        )

    def on_mixtures(self) -> list[Linearity]:
        """Random policies on one random mixture per seed."""
        checks = []
        for seed in self.seeds:
            generator = np.random.default_rng(seed)
            model = mixture(self.states, self.actions, generator)
            checks += random_checks(model, self.policies, generator)
        return checks

    def on_waves(self) -> list[Linearity]:
        """Random policies and rewards on the cosines' grid."""
        checks = []
        for seed in self.seeds:
            generator = np.random.default_rng(seed)
            weight = generator.normal(size=4)
            model = waves(1, 1).cp_model(self.points, weight, 0.9)
            checks += random_checks(model, self.policies, generator)
        return checks

    def off_cp(self, seed: int) -> list[tuple[float, float]]:
        """The largest ratio's residual and allowance over policies, for each dial."""
        generator = np.random.default_rng(seed)
        weight = generator.normal(size=4)
        policies = [random_policy(self.points, self.points, generator) for _ in range(20)]
        rows = []
        for dial in self.dials:
            truth = waves(1, 1, dial=dial)
            mdp = truth.table(self.points, weight, 0.9)
            places = grid(self.points, truth.state_waves), grid(self.points, truth.action_waves)
            psi = truth.psi(*truth.factors(*places))
            pairs = [policy_residual(mdp, psi, policy, truth.cp_error) for policy in policies]
            rows.append(max(pairs, key=lambda pair: pair[0] / pair[1]))
        return rows

    def table(self, on_cp: dict[str, list[Linearity]]) -> Grid:
        """The worst of all policies by family."""
        rows = [
            (
                name,
                str(len(checks)),
                f"{max(check.residual for check in checks):.1e}",
                f"{max(check.norm / check.bound for check in checks):.3f}",
            )
            for name, checks in on_cp.items()
        ]
        columns = ("family", "policies", "largest |Q - psi^T w|", "largest |w| / bound")
        return Grid("Exact CP-MDPs", columns, tuple(rows))


def verdicts_on_cp(on_cp: dict[str, list[Linearity]]) -> list[Verdict]:
    """Linearity to rounding, and the norm bound."""
    checks = [check for group in on_cp.values() for check in group]
    worst = max(check.residual for check in checks)
    tightest = max(check.norm / check.bound for check in checks)
    return [
        Verdict(
            "On exact CP-MDPs Q is linear in psi for every policy.",
            f"largest residual {worst:.1e} over {len(checks)} random policies",
            worst < 1e-10,
        ),
        Verdict(
            "The norm bound on w is never violated.",
            f"|w| is at most {tightest:.3f} of the bound: it holds and is loose",
            tightest <= 1.0,
        ),
    ]


def verdicts_off_cp(errors: np.ndarray, residual: np.ndarray, allowed: np.ndarray) -> list[Verdict]:
    """The residual against what epsilon_CP allows, and its growth."""
    worst = float((residual / allowed).max())
    slope = interval(exponents(errors, residual))
    return [
        Verdict(
            "Off CP the rms residual stays below gamma epsilon_CP std(V).",
            f"at most {worst:.2f} of it over all dials, policies and seeds",
            worst <= 1.0,
        ),
        Verdict(
            "Off CP the residual grows in proportion to epsilon_CP.",
            f"fitted exponent {slope.text()}",
            abs(float(slope.mean) - 1.0) < 0.1,
        ),
    ]


def plot(errors: np.ndarray, residual: np.ndarray, allowed: np.ndarray) -> Plot:
    """Residual and allowance against epsilon_CP."""
    x = errors.tolist()
    measured, bound = log_interval(residual), log_interval(allowed)
    return Plot(
        "linearity",
        "Q off the span of psi, worst of 20 policies",
        "epsilon_CP",
        "rms over (s, a)",
        (
            banded("residual of Q", x, measured, "line", 0),
            Curve("gamma epsilon_CP std(V)", x, bound.mean.tolist(), look="dashed", color=1),
        ),
    )
