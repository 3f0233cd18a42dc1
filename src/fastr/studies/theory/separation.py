"""The separation: both classes, both objectives, growing n, on CP and off it.

First on tables, then on continuous spaces by sieves, which grow with n as Lipschitz classes do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from fastr.report.page import Curve, Figure
from fastr.report.table import Table as Rows
from fastr.studies.theory import (
    Section,
    Verdict,
    crossing,
    curve,
    exponents,
    how_often,
    interval,
    judge,
    log_interval,
    log_plot,
)
from fastr.studies.theory.certificates import TEN, Problem, log_certificate
from fastr.studies.theory.fits import (
    KINDS,
    Descent,
    empirical_loss,
    factored_fit,
    joint_fit,
    ranking_fits,
    risk,
)
from fastr.studies.theory.mdp import Table, Waves, draw, peak, waves

STATEMENT = (
    "Claim (Propositions 1 and 2; remark Non-realizable case): on an exact CP-MDP the factored "
    "class needs fewer samples than the joint class for the same L; off CP it stops improving at "
    "epsilon_CP^2, and for large n the joint class overtakes it.",
    "Measured on tables of 27 states and 27 actions, whose kernel is a sum of K = 3 products of "
    "cosines; in `log ratio CP` its logarithm is. Prediction: L = (degrees of freedom) / n, with "
    "K (|S||A| + |S| - K) for the joint and K (2|S| + |A| - 2) for the factored class, plus "
    "epsilon_CP^2 for the latter, so that the curves cross at n = (difference) / epsilon_CP^2.",
    "Measured on continuous spaces: encoders constant on the cells of a grid whose resolution "
    "held-out data choose. Balancing bias k^-2 against k^D numbers to estimate gives L of order "
    "n^(-2/(2+D)), D = max(d_s, d_a) or d_s + d_a. The certificates' n^(-1/D) is an upper bound.",
)
DESCENT = Descent()
POINTS = 3
"""Grid points per axis of the tables."""
Errors = dict[str, Float[np.ndarray, "seed n"]]
"""L of both classes, by seed and n."""


def merged(
    shares: Float[np.ndarray, "s a x"], dims: tuple[int, int], times: int
) -> Float[np.ndarray, "s2 a2 x2"]:
    """The shares in cells `times` as wide along every axis."""
    state_dim, action_dim = dims
    axes = 2 * state_dim + action_dim
    kept = round(shares.shape[0] ** (1 / state_dim)) // times
    sums = shares.reshape((kept, times) * axes).sum(tuple(range(1, 2 * axes, 2)))
    return sums.reshape(kept**state_dim, kept**action_dim, kept**state_dim)


@dataclass(frozen=True)
class Sieve:
    """A measurement on continuous spaces."""

    state_dim: int
    action_dim: int
    finest: int
    """The finest resolution: cells per axis, a power of two."""
    powers: tuple[float, float]
    """The range of log10 n, before the finest resolution binds."""

    @property
    def n(self) -> Float[np.ndarray, " n"]:
        """The sample sizes."""
        low, high = self.powers
        return np.floor(10.0 ** np.arange(low, high + 0.01, 0.5))

    @property
    def dims(self) -> dict[str, int]:
        """The D of both classes."""
        largest, total = max(self.state_dim, self.action_dim), self.state_dim + self.action_dim
        return {"factored": largest, "joint": total}

    @property
    def predicted(self) -> dict[str, float]:
        """-2 / (2 + D) of both classes."""
        return {kind: -2.0 / (2.0 + size) for kind, size in self.dims.items()}

    @property
    def truth(self) -> Waves:
        """The kernel."""
        return waves(self.state_dim, self.action_dim, terms=2)

    def errors(self, seeds: Sequence[int]) -> Errors:
        """L of both classes, their resolution chosen by held-out data."""
        found = {kind: [] for kind in KINDS}
        for seed in seeds:
            generator = np.random.default_rng(seed)
            samples = [self.sample(int(n), generator) for n in self.n]
            for kind in KINDS:
                found[kind].append([self.fit(kind, data, generator)[0] for data in samples])
        return {kind: np.array(rows) for kind, rows in found.items()}

    def sample(self, n: int, generator: Generator) -> tuple[Table, Table]:
        """Shares of n transitions in the finest cells: four fifths to fit, one fifth held out."""
        means, held_out = self.truth.cell_means(self.finest), max(n // 5, 1)
        return draw(means, n - held_out, generator), draw(means, held_out, generator)

    def fit(self, kind: str, data: tuple[Table, Table], generator: Generator) -> tuple[float, int]:
        """L of the fit at the resolution with the smallest held-out loss, and that resolution."""
        truth, dims = self.truth, (self.state_dim, self.action_dim)
        terms, cells, tried = truth.cp_terms, self.finest, []
        while cells >= 1:
            shares, held_out = (merged(part, dims, self.finest // cells) for part in data)
            if kind == "joint":
                fitted = joint_fit(shares, terms, 1.0)
            else:
                fitted = factored_fit(shares, terms, generator, offset=1.0, starts=3, sweeps=60)
            tried.append((empirical_loss(fitted, held_out), cells, fitted))
            cells //= 2
        _, cells, fitted = min(tried, key=lambda trial: trial[0])
        means = truth.cell_means(cells)
        within = truth.second_moment - np.square(means).mean()
        return risk(fitted.score, means) + float(within), cells

    def verdict(self, errors: Errors) -> Verdict:
        """Whether the classes differ in the exponent."""
        factored, joint = (interval(exponents(self.n, errors[kind])) for kind in KINDS)
        return judge(
            "On continuous spaces the classes differ in the exponent "
            f"(d_s, d_a = {self.state_dim}, {self.action_dim}).",
            f"factored {factored:.2f} for {self.predicted['factored']:.2f}, "
            f"joint {joint:.2f} for {self.predicted['joint']:.2f}",
            factored.below(joint),
        )

    def rows(self, errors: Errors) -> list[tuple[str, ...]]:
        """For each class the measured exponent, that of balancing and that of the certificates."""
        rows = []
        for kind, size in self.dims.items():
            slope = interval(exponents(self.n, errors[kind]))
            certified = f"{-1 / size:.3f}" if size >= 3 else "none: D < 3"
            dims = f"{self.state_dim}, {self.action_dim}"
            rows.append((dims, kind, f"{slope:.3f}", f"{self.predicted[kind]:.3f}", certified))
        return rows

    def plot(self, errors: Errors) -> Figure:
        """L against n."""
        curves = []
        for color, kind in enumerate(KINDS):
            summary, power = log_interval(errors[kind]), self.predicted[kind]
            guide = float(summary.mean[0]) * (self.n / self.n[0]) ** power
            curves.append(curve(kind, self.n, summary, color))
            curves.append(curve(f"slope {power:.2f}", self.n, guide, color, ":"))
        dims = f"d_s = {self.state_dim}, d_a = {self.action_dim}"
        title = f"Continuous, {dims}, resolution by held-out loss"
        return log_plot(f"sieve-{self.state_dim}-{self.action_dim}", title, "n", "L(g_n)", curves)


SIEVES = (Sieve(1, 1, finest=64, powers=(3.5, 6.5)), Sieve(2, 2, finest=8, powers=(3.5, 5.5)))


@dataclass(frozen=True)
class Study:
    """Sizes of the study."""

    seeds: tuple[int, ...]
    dims: tuple[int, int] = (3, 3)
    powers: tuple[float, ...] = (3.5, 4.25, 5.0, 5.75, 6.5, 7.25, 8.0)
    dials: tuple[float, ...] = (0.2, 0.3, 0.4, 0.5)
    shown: float = 0.3
    """The dial whose curves are plotted, one of `dials`."""
    descent: Descent = DESCENT
    sieves: tuple[Sieve, ...] = SIEVES

    def run(self) -> Section:
        """Tables on CP and off, then the sieves."""
        spectral = {dial: self.spectral_errors(dial) for dial in (0.0, *self.dials)}
        on_cp, terms = self.truth(0.0), self.truth(0.0).cp_terms
        ranked = {
            dial: self.ranking_errors(self.truth(dial).density(POINTS), terms)
            for dial in (0.0, self.shown)
        }
        on_energy = self.ranking_errors(on_cp.energy_density(POINTS), terms + 1)
        measured = [(sieve, sieve.errors(self.seeds)) for sieve in self.sieves]
        verdicts = (
            self.ahead("L2 objective", spectral[0.0]),
            self.ahead("ranking loss", ranked[0.0]),
            *self.on_cp(spectral[0.0], ranked[0.0], on_energy),
            *self.off_cp(spectral, ranked[self.shown]),
            *(sieve.verdict(errors) for sieve, errors in measured),
        )
        columns = ("d_s, d_a", "class", "fitted exponent", "-2/(2+D)", "certificate -1/D")
        rows = [row for sieve, errors in measured for row in sieve.rows(errors)]
        grids = (
            self.table(spectral, ranked, on_energy),
            self.crossing_table(spectral),
            Rows("separation-3", "Exponents of L in n on continuous spaces", columns, rows),
        )
        predicted = [
            curve(f"{k}: degrees of freedom / n", self.n, self.freedom[k] / self.n, color, ":")
            for color, k in enumerate(KINDS)
        ]
        plots = (
            self.plot("separation-l2", "L2 objective", spectral, predicted),
            self.plot("separation-ranking", "ranking loss", ranked, []),
            *(sieve.plot(errors) for sieve, errors in measured),
        )
        return Section("separation", "The separation, measured", STATEMENT, verdicts, grids, plots)

    @property
    def n(self) -> Float[np.ndarray, " n"]:
        """The sample sizes."""
        return np.floor(10.0 ** np.array(self.powers))

    def truth(self, dial: float) -> Waves:
        """The kernel at one dial."""
        return waves(*self.dims, dial=dial)

    @property
    def freedom(self) -> dict[str, int]:
        """The degrees of freedom of both classes of tables."""
        terms, (states, actions) = self.truth(0.0).cp_terms, (POINTS**dim for dim in self.dims)
        return {
            "factored": terms * (2 * states + actions - 2),
            "joint": terms * (states * actions + states - terms),
        }

    def spectral_errors(self, dial: float) -> Errors:
        """L of both classes fitted by the L2 objective, by seed and n."""
        density, terms = self.truth(dial).density(POINTS), self.truth(dial).cp_terms
        found = {kind: np.zeros((len(self.seeds), len(self.n))) for kind in KINDS}
        for i, seed in enumerate(self.seeds):
            generator = np.random.default_rng(seed)
            for j, n in enumerate(self.n):
                shares = draw(density, int(n), generator)
                factored = factored_fit(shares, terms, generator, offset=1.0)
                found["factored"][i, j] = risk(factored.score, density)
                found["joint"][i, j] = risk(joint_fit(shares, terms, 1.0).score, density)
        return found

    def ranking_errors(self, density: Table, features: int) -> Errors:
        """The same by the ranking loss."""
        generators = [np.random.default_rng(seed) for seed in self.seeds]
        shares = np.stack([draw(density, int(n), g) for g in generators for n in self.n])
        sizes = np.tile(self.n, len(self.seeds))
        starting = [g for g in generators for _ in self.n]
        found = {}
        for kind in KINDS:
            fits = ranking_fits(kind, shares, sizes, features, starting, self.descent)
            errors = [risk(estimate, density) for estimate in fits.density]
            found[kind] = np.array(errors).reshape(len(self.seeds), -1)
        return found

    def ahead(self, objective: str, errors: Errors) -> Verdict:
        """Whether the factored class is ahead at small n on exact CP, intervals apart."""
        small = self.n <= 1e6
        of_factored, of_joint = (log_interval(errors[kind][:, small]) for kind in KINDS)
        ratio = log_interval(errors["joint"] / errors["factored"]).mean
        below = of_factored.below(of_joint)
        return judge(
            f"On exact CP the factored class is ahead at small n (n <= 1e6, {objective}).",
            f"{how_often(below)}; L of the joint over that of the factored class from "
            f"{ratio[small].min():.1f} to {ratio[small].max():.1f}, "
            f"at n = {self.n[-1]:.0e} {ratio[-1]:.2f}",
            below,
        )

    def on_cp(self, spectral: Errors, ranked: Errors, on_energy: Errors) -> tuple[Verdict, ...]:
        """Verdicts where the density is CP: exponents and degrees of freedom."""
        n, last, freedom = self.n, self.n[-1], self.freedom
        certified = {"factored": max(self.dims), "joint": sum(self.dims)}
        slopes = {k: interval(exponents(n[2:], spectral[k][:, 2:])) for k in KINDS}
        sizes = {k: interval((spectral[k] * n)[:, 2:].mean(1)) for k in KINDS}
        ends = {k: log_interval(ranked[k][:, -1]).mean for k in KINDS}
        of_energy = {k: log_interval(on_energy[k][:, -1]).mean for k in KINDS}
        least = {k: freedom[k] / last for k in KINDS}
        return (
            judge(
                "On tables L falls with the certificates' exponents, "
                f"-1/{certified['factored']} and -1/{certified['joint']}.",
                f"from n = {n[2]:.0e} on: factored {slopes['factored']:.2f}, "
                f"joint {slopes['joint']:.2f}",
                [abs(slopes[k].mean + 1 / certified[k]) < 0.05 for k in KINDS],
            ),
            judge(
                "On tables n L is the number of degrees of freedom (within 10 %).",
                f"factored {sizes['factored']:.0f} for {freedom['factored']}, "
                f"joint {sizes['joint']:.0f} for {freedom['joint']}",
                [abs(sizes[k].mean / freedom[k] - 1.0) < 0.1 for k in KINDS],
            ),
            judge(
                "Under the ranking loss, too, L falls to zero on exact CP (within 10 times the "
                f"degrees of freedom over n at n = {last:.0e}).",
                f"L = {ends['factored']:.1e} (factored) and {ends['joint']:.1e} (joint), where "
                f"degrees of freedom allow {least['factored']:.1e} and {least['joint']:.1e}; where "
                f"the log ratio is CP, {of_energy['factored']:.1e} and {of_energy['joint']:.1e}",
                [ends[k] < 10 * least[k] for k in KINDS],
            ),
        )

    def off_cp(self, spectral: dict[float, Errors], ranked: Errors) -> tuple[Verdict, ...]:
        """Verdicts where the density is not CP: the bias and the crossings."""
        dial, bias = self.shown, self.truth(self.shown).cp_error
        stop = log_interval(spectral[dial]["factored"][:, -1:]).mean[0]
        measured = {d: log_interval(self.crossings(spectral[d])) for d in self.dials}
        predicted = {d: self.predicted_crossing(d) for d in self.dials}
        off = max(abs(math.log(measured[d].mean / predicted[d])) for d in self.dials)
        by_ranking = log_interval(self.crossings(ranked))
        unit = Problem(*self.dims, feature_dim=self.truth(dial).feature_dim)
        certified = certified_crossing(unit, bias)
        wider = certified_crossing(holding(self.truth(dial), unit), bias)
        return (
            judge(
                "Off CP the factored class stops at epsilon_CP^2.",
                f"dial {dial}: L = {stop:.3e} at n = {self.n[-1]:.0e}, epsilon_CP^2 = {bias:.3e}",
                abs(stop / bias - 1.0) < 0.05,
            ),
            judge(
                "Off CP the joint class overtakes where the remark's tradeoff says it does.",
                f"crossings within a factor {math.exp(off):.2f} of the prediction at all dials "
                f"(dial {dial}: {measured[dial]:.2e} for {predicted[dial]:.2e})",
                math.exp(off) < 1.25,
            ),
            judge(
                f"The joint class overtakes under the ranking loss too (dial {dial}).",
                f"at n = {by_ranking:.2e}",
                np.isfinite(by_ranking.mean),
            ),
            judge(
                "The certificates' ordering agrees with the measured one: they cross where the "
                f"measured errors do (d_s, d_a = {unit.state_dim}, {unit.action_dim}).",
                f"with all norms at 1 certificates cross at n = 10^{certified:.1f}, with norms "
                f"that hold this kernel at 10^{wider:.1f}, measured errors at "
                f"10^{math.log10(measured[dial].mean):.1f}; in between the certificates order the "
                "classes the wrong way round",
                abs(certified - math.log10(predicted[dial])) < 1.0,
            ),
        )

    def crossings(self, errors: Errors) -> Float[np.ndarray, " seed"]:
        """Each seed's n at which the joint class overtakes."""
        rows = zip(errors["factored"], errors["joint"], strict=True)
        return np.array([crossing(self.n, factored, joint) for factored, joint in rows])

    def predicted_crossing(self, dial: float) -> float:
        """The n at which epsilon_CP^2 makes up for the difference in degrees of freedom."""
        return (self.freedom["joint"] - self.freedom["factored"]) / self.truth(dial).cp_error

    def table(
        self, spectral: dict[float, Errors], ranked: dict[float, Errors], on_energy: Errors
    ) -> Rows:
        """L by n for every class, objective and MDP of the plots."""
        groups = {
            ("exact CP", "L2"): spectral[0.0],
            ("exact CP", "ranking"): ranked[0.0],
            (f"dial {self.shown}", "L2"): spectral[self.shown],
            (f"dial {self.shown}", "ranking"): ranked[self.shown],
            ("log ratio CP", "ranking"): on_energy,
        }
        rows = [
            (*group, kind, *(f"{value:.2e}" for value in log_interval(errors[kind]).mean))
            for group, errors in groups.items()
            for kind in KINDS
        ]
        columns = ("MDP", "objective", "class", *(f"n = {n:.1e}" for n in self.n))
        return Rows("separation-1", "L on tables, geometric mean over seeds", columns, rows)

    def crossing_table(self, spectral: dict[float, Errors]) -> Rows:
        """Measured and predicted crossings by dial."""
        rows = []
        for dial in self.dials:
            bias, predicted = self.truth(dial).cp_error, self.predicted_crossing(dial)
            measured = log_interval(self.crossings(spectral[dial]))
            rows.append((f"{dial}", f"{bias:.2e}", f"{measured:.2e}", f"{predicted:.2e}"))
        columns = ("dial", "epsilon_CP^2", "n of the crossing, measured", "predicted")
        return Rows("separation-2", "Where the joint class overtakes (L2 objective)", columns, rows)

    def plot(
        self, name: str, objective: str, errors: dict[float, Errors], more: list[Curve]
    ) -> Figure:
        """L against n on CP and at the dial shown."""
        shown = (0.0, "exact CP", "-"), (self.shown, f"dial {self.shown}", "--")
        curves = [
            curve(f"{kind}, {label}", self.n, log_interval(errors[dial][kind]), color, dash)
            for dial, label, dash in shown
            for color, kind in enumerate(KINDS)
        ]
        return log_plot(name, f"Tables, {objective}", "n", "L(g_n)", [*curves, *more])


def certified_crossing(problem: Problem, cp_error: float) -> float:
    """The log10 n at which the joint certificate falls below the factored one."""
    powers = np.arange(0.0, 200.0, 0.1)
    gaps = [
        log_certificate(problem, "joint", p * TEN, 0.05)
        - log_certificate(problem, "factored", p * TEN, 0.05, cp_error)
        for p in powers
    ]
    return float(powers[np.nonzero(np.array(gaps) > 0.0)[0][-1]])


def holding(truth: Waves, unit: Problem) -> Problem:
    """The problem with norms and a Lipschitz constant that the best CP product satisfies.

    Each of its products divides its height evenly among its three cosines, which then reach c; a
    wave vector k makes slopes of up to pi c |k|, all of them together at most the root of the sum
    of their squares. With norms of 1 no score is above 1, and this density is.
    """
    waves = [numbers[: truth.cp_terms] for numbers in truth.numbers]
    height = np.prod([peak(part) for part in waves], axis=0)
    reach = np.cbrt(truth.amplitudes[: truth.cp_terms] * height)
    slopes = [np.linalg.norm(reach * np.linalg.norm(part, axis=1)) for part in waves]
    norm = math.sqrt(1.0 + float(np.square(reach).sum()))
    lipschitz = math.pi * float(max(slopes))
    return replace(unit, factor_norm=norm, next_norm=norm, lipschitz=lipschitz)
