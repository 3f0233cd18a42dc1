"""The separation: both classes, both objectives, growing n, on CP and off it."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from fastr.studies.theory.bounds import KINDS, TEN, Problem, log_certificate
from fastr.studies.theory.fits import Descent, factored_fit, joint_fit, ranking_fits, risk
from fastr.studies.theory.intervals import crossing, exponents, interval, log_interval
from fastr.studies.theory.mdp import Table, draw
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
from fastr.studies.theory.sieves import SIEVES, Errors, Sieve, sieve_table
from fastr.studies.theory.waves import Waves, peak, waves

STATEMENT = (
    "Claim (Propositions 1 and 2; remark Non-realizable case): on an exact CP-MDP the factored "
    "class needs fewer samples than the joint class for the same L; off CP it stops improving at "
    "epsilon_CP^2, and for large n the joint class overtakes it.",
    "Measured on tables: 27 states and 27 actions, grids in three dimensions (the smallest D_max "
    "that Proposition 2 covers); the kernel is a sum of cosines with K = 3 products. L2 objective, "
    "Eq. (empirical-risk): the joint minimiser is exact, the factored one the best of several "
    "alternating descents. Ranking loss, Eq. (nce): the whole sample is one batch. In `log ratio "
    "CP` the log density is a sum of the same cosines. Prediction: L = (degrees of freedom) / n, "
    "with K (|S||A| + |S| - K) for the joint and K (2|S| + |A| - 2) for the factored class, plus "
    "epsilon_CP^2 for the latter, so that the curves cross at n = (difference) / epsilon_CP^2.",
    "Measured on continuous spaces: encoders constant on the cells of a grid whose resolution "
    "held-out data choose. Balancing bias k^-2 against k^D numbers to estimate gives L of order "
    "n^(-2/(2+D)), D = max(d_s, d_a) or d_s + d_a. The certificates' n^(-1/D) is an upper bound.",
)
AHEAD = Claim(
    "On exact CP the factored class is ahead at small n (n <= 1e6, {objective}).",
    "{apart}; L of the joint over that of the factored class from {least:.1f} to {most:.1f}, "
    "at n = {last:.0e} {ratio:.2f}",
    lambda found: found.below,
)
CLAIMS = (
    Claim(
        "On tables L falls with the certificates' exponents, -1/{dims[factored]} and "
        "-1/{dims[joint]}.",
        "from n = {n[2]:.0e} on: factored {slopes[factored]:.2f}, joint {slopes[joint]:.2f}",
        lambda found: [abs(found.slopes[k].mean + 1 / found.dims[k]) < 0.05 for k in KINDS],
    ),
    Claim(
        "On tables n L is the number of degrees of freedom (within 10 %).",
        "factored {sizes[factored]:.0f} for {freedom[factored]}, "
        "joint {sizes[joint]:.0f} for {freedom[joint]}",
        lambda found: [abs(found.sizes[k].mean / found.freedom[k] - 1.0) < 0.1 for k in KINDS],
    ),
    Claim(
        "Under the ranking loss, too, L falls to zero on exact CP (within 10 times the degrees of "
        "freedom over n at n = {last:.0e}).",
        "L = {on_cp[factored]:.1e} (factored) and {on_cp[joint]:.1e} (joint), where degrees of "
        "freedom allow {variance[factored]:.1e} and {variance[joint]:.1e}; where the log ratio is "
        "CP, {on_energy[factored]:.1e} and {on_energy[joint]:.1e}",
        lambda found: [found.on_cp[k] < 10 * found.variance[k] for k in KINDS],
    ),
    Claim(
        "Off CP the factored class stops at epsilon_CP^2.",
        "dial {dial}: L = {stop:.3e} at n = {last:.0e}, epsilon_CP^2 = {bias:.3e}",
        lambda found: abs(found.stop / found.bias - 1.0) < 0.05,
    ),
    Claim(
        "Off CP the joint class overtakes where the remark's tradeoff says it does.",
        "crossings within a factor {factor:.2f} of the prediction at all dials "
        "(dial {dial}: {measured:.2e} for {predicted:.2e})",
        lambda found: found.factor < 1.25,
    ),
    Claim(
        "The joint class overtakes under the ranking loss too (dial {dial}).",
        "at n = {by_ranking:.2e}",
        lambda found: np.isfinite(found.by_ranking.mean),
    ),
    Claim(
        "The certificates' ordering agrees with the measured one: they cross where the measured "
        "errors do (d_s, d_a = {problem.state_dim}, {problem.action_dim}).",
        "with all norms at 1 certificates cross at n = 10^{certified:.1f}, with norms that hold "
        "this kernel at 10^{wider:.1f}, measured errors at 10^{power:.1f}; in between the "
        "certificates order the classes the wrong way round",
        lambda found: abs(found.certified - math.log10(found.predicted)) < 1.0,
    ),
)
DESCENT = Descent()


@dataclass(frozen=True)
class Study:
    """Sizes of the study."""

    seeds: tuple[int, ...]
    dims: tuple[int, int] = (3, 3)
    points: int = 3
    powers: tuple[float, ...] = (3.5, 4.25, 5.0, 5.75, 6.5, 7.25, 8.0)
    dials: tuple[float, ...] = (0.2, 0.3, 0.4, 0.5)
    shown: float = 0.3
    """The dial whose curves are plotted, one of `dials`."""
    descent: Descent = DESCENT
    sieves: tuple[Sieve, ...] = SIEVES

    def run(self, progress: Progress) -> Section:
        """Tables on CP and off, then the sieves."""
        steps = len(self.dials) + 6
        spectral, ranked = {}, {}
        for i, dial in enumerate((0.0, *self.dials)):
            spectral[dial] = self.spectral_errors(dial)
            progress((i + 1) / steps)
        terms = self.truth(0.0).cp_terms
        for i, dial in enumerate((0.0, self.shown)):
            ranked[dial] = self.ranking_errors(self.density(dial), terms)
            progress((len(self.dials) + 2 + i) / steps)
        on_energy = self.ranking_errors(self.truth(0.0).energy_density(self.points), terms + 1)
        progress((steps - 2) / steps)
        measured = [(sieve, sieve.errors(self.seeds)) for sieve in self.sieves]
        progress(1.0)
        verdicts = (
            self.ahead("L2 objective", spectral[0.0]),
            self.ahead("ranking loss", ranked[0.0]),
            *judge(
                CLAIMS,
                **self.on_cp(spectral[0.0], ranked[0.0], on_energy),
                **self.off_cp(spectral, ranked),
            ),
            *(sieve.verdict(errors) for sieve, errors in measured),
        )
        grids = (
            self.table(spectral, ranked, on_energy),
            self.crossing_table(spectral),
            sieve_table(measured),
        )
        predicted = [
            Curve(
                f"{kind}: degrees of freedom / n",
                self.n.tolist(),
                (self.freedom[kind] / self.n).tolist(),
                look="dotted",
                color=color,
            )
            for color, kind in enumerate(KINDS)
        ]
        plots = (
            self.plot("separation-l2", "L2 objective", spectral, predicted),
            self.plot("separation-ranking", "ranking loss", ranked, []),
            *(sieve.plot(errors) for sieve, errors in measured),
        )
        title = "The separation, measured"
        return Section("separation", title, STATEMENT, verdicts, grids, plots)

    @property
    def n(self) -> Float[np.ndarray, " n"]:
        """The sample sizes."""
        return np.floor(10.0 ** np.array(self.powers))

    def truth(self, dial: float) -> Waves:
        """The kernel at one dial."""
        return waves(*self.dims, dial=dial)

    def density(self, dial: float) -> Table:
        """Its density on the grid."""
        return self.truth(dial).density(self.points)

    @property
    def freedom(self) -> dict[str, int]:
        """The degrees of freedom of both classes of tables."""
        terms = self.truth(0.0).cp_terms
        states, actions, nexts = self.density(0.0).shape
        return {
            "factored": terms * (states + actions + nexts - 2),
            "joint": terms * (states * actions + nexts - terms),
        }

    def spectral_errors(self, dial: float) -> Errors:
        """L of both classes fitted by the L2 objective, by seed and n."""
        density, terms = self.density(dial), self.truth(dial).cp_terms
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
        (verdict,) = judge(
            [AHEAD],
            objective=objective,
            below=below,
            apart=how_often(below),
            least=ratio[small].min(),
            most=ratio[small].max(),
            last=self.n[-1],
            ratio=ratio[-1],
        )
        return verdict

    def on_cp(self, spectral: Errors, ranked: Errors, on_energy: Errors) -> dict[str, Any]:
        """Results where the density is CP, for `CLAIMS`."""
        n, last = self.n, self.n[-1]
        return {
            "n": n,
            "last": last,
            "dims": {"factored": max(self.dims), "joint": sum(self.dims)},
            "freedom": self.freedom,
            "slopes": {k: interval(exponents(n[2:], spectral[k][:, 2:])) for k in KINDS},
            "sizes": {k: interval((spectral[k] * n)[:, 2:].mean(1)) for k in KINDS},
            "on_cp": {k: log_interval(ranked[k][:, -1]).mean for k in KINDS},
            "on_energy": {k: log_interval(on_energy[k][:, -1]).mean for k in KINDS},
            "variance": {k: self.freedom[k] / last for k in KINDS},
        }

    def off_cp(self, spectral: dict[float, Errors], ranked: dict[float, Errors]) -> dict[str, Any]:
        """Results where the density is not CP, for `CLAIMS`."""
        dial, truth = self.shown, self.truth(self.shown)
        measured = {d: log_interval(self.crossings(spectral[d])) for d in self.dials}
        predicted = {d: self.predicted_crossing(d) for d in self.dials}
        unit = Problem(*self.dims, feature_dim=truth.feature_dim)
        return {
            "dial": dial,
            "bias": truth.cp_error,
            "stop": log_interval(spectral[dial]["factored"][:, -1:]).mean[0],
            "factor": math.exp(
                max(abs(math.log(measured[d].mean / predicted[d])) for d in self.dials)
            ),
            "measured": measured[dial],
            "power": math.log10(measured[dial].mean),
            "predicted": predicted[dial],
            "by_ranking": log_interval(self.crossings(ranked[dial])),
            "problem": unit,
            "certified": certified_crossing(unit, truth.cp_error),
            "wider": certified_crossing(holding(truth, unit), truth.cp_error),
        }

    def crossings(self, errors: Errors) -> Float[np.ndarray, " seed"]:
        """Each seed's n at which the joint class overtakes."""
        rows = zip(errors["factored"], errors["joint"], strict=True)
        return np.array([crossing(self.n, factored, joint) for factored, joint in rows])

    def predicted_crossing(self, dial: float) -> float:
        """The n at which epsilon_CP^2 makes up for the difference in degrees of freedom."""
        return (self.freedom["joint"] - self.freedom["factored"]) / self.truth(dial).cp_error

    def table(
        self, spectral: dict[float, Errors], ranked: dict[float, Errors], on_energy: Errors
    ) -> Grid:
        """L by n for every class, objective and MDP of the plots."""
        groups = {
            ("exact CP", "L2"): spectral[0.0],
            ("exact CP", "ranking"): ranked[0.0],
            (f"dial {self.shown}", "L2"): spectral[self.shown],
            (f"dial {self.shown}", "ranking"): ranked[self.shown],
            ("log ratio CP", "ranking"): on_energy,
        }
        rows = tuple(
            (*group, kind, *(f"{value:.2e}" for value in log_interval(errors[kind]).mean))
            for group, errors in groups.items()
            for kind in KINDS
        )
        columns = ("MDP", "objective", "class", *(f"n = {n:.1e}" for n in self.n))
        return Grid("L on tables, geometric mean over seeds", columns, rows)

    def crossing_table(self, spectral: dict[float, Errors]) -> Grid:
        """Measured and predicted crossings by dial."""
        rows = tuple(
            (
                f"{dial}",
                f"{self.truth(dial).cp_error:.2e}",
                f"{log_interval(self.crossings(spectral[dial])):.2e}",
                f"{self.predicted_crossing(dial):.2e}",
            )
            for dial in self.dials
        )
        columns = ("dial", "epsilon_CP^2", "n of the crossing, measured", "predicted")
        return Grid("Where the joint class overtakes (L2 objective)", columns, rows)

    def plot(
        self, name: str, objective: str, errors: dict[float, Errors], more: list[Curve]
    ) -> Plot:
        """L against n on CP and at the dial shown."""
        curves = [
            banded(f"{kind}, {label}", self.n, log_interval(errors[dial][kind]), look, color)
            for dial, label, look in (
                (0.0, "exact CP", "line"),
                (self.shown, f"dial {self.shown}", "dashed"),
            )
            for color, kind in enumerate(KINDS)
        ]
        return Plot(name, f"Tables, {objective}", "n", "L(g_n)", (*curves, *more))


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
