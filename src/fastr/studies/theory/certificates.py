"""Class sizes and certificates: Theorem 1, Propositions 1 and 2, on small classes and on tasks."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from fastr.studies.theory.bounds import (
    KINDS,
    TASKS,
    TEN,
    Problem,
    covering_number,
    factored_scores,
    log_certificate,
    log_ratio,
    log_sufficient_n,
    of_task,
    product_bound,
)
from fastr.studies.theory.page import Claim, Curve, Grid, Plot, Progress, Section, judge

STATEMENT = (
    "Theorem 1: the logarithm of the factored class's covering number is at most the sum of its "
    "encoders', at radii epsilon/(3 B_m B_phi), epsilon/(3 B_m B_phi) and epsilon/(3 B_phi^2). "
    "With L-Lipschitz encoders the exponent is D_max = max(d_s, d_a) instead of "
    "D_sum = d_s + d_a (App. Lipschitz Instantiation).",
    "Proposition 1: with probability 1 - delta, L(g_n) is at most epsilon_CP^2 + 8 R_n(G) + "
    "4 R_n(H) + 2 (2 B_g + B_g^2) sqrt(2 log(1/delta)/n), Eq. (finite-sample). Proposition 2: the "
    "sample sizes at which these certificates reach epsilon^2 have the ratio "
    "Theta(epsilon^(-2 min(d_s, d_a))), Eq. (sample-ratio), as epsilon goes to 0; at a given n "
    "the constants decide which certificate is the smaller one.",
    "Two constants differ from the paper's. The joint encoder has the Lipschitz constant sqrt(2) "
    "B_phi L, which the inclusion of the factored in the joint class needs. The entropy constant "
    "covers radii up to B_g, as the lemma on entropy integrals asks. The constant c of the "
    "Lipschitz entropy bound, open in the paper, is 1; so are all norms and L. Domains are unit "
    "cubes, d = 512, delta = 0.05.",
)
CLAIMS = (
    Claim(
        "Theorem 1: the covering number of a product class is at most the product of its "
        "factors' at the stated radii.",
        "exact number over bound at most {cover:.2f} in {classes} random classes",
        lambda found: found.cover <= 1.0,
    ),
    Claim(
        "Proposition 2: the ratio of sample sizes has slope -2 min(d_s, d_a) in epsilon.",
        "at epsilon = 1e-6 the slope is within {off:.1e} of it for every task",
        lambda found: found.off < 0.01,
    ),
    Claim(
        "With all norms at 1 the factored certificate is the smaller one at n = {samples:.0e} for "
        "every task.",
        "for {ordered} of {tasks} tasks; with the factors' own L for the joint encoder, as the "
        "paper has it, for {as_stated}; with B_phi = {long:g} for {longer}",
        lambda found: found.ordered == found.tasks,
    ),
    Claim(
        "At n = {samples:.0e} a certificate says more than L <= B_g^2 = 1, which is known without "
        "data.",
        "the smallest certificate of all tasks is 10^{smallest:.1f}",
        lambda found: found.smallest < 0.0,
    ),
)
LONG = 3.0
"""A larger B_phi, for which the certificates at a usual n have the other order."""


@dataclass(frozen=True)
class Study:
    """Sizes of the study."""

    seeds: tuple[int, ...]
    classes: int = 20
    """Small random classes per seed whose covering numbers are computed exactly."""
    epsilon: float = 0.1
    delta: float = 0.05
    samples: float = 1e6

    def run(self, progress: Progress) -> Section:
        """Exact covering numbers, then the formulas."""
        cover = 0.0
        for i, seed in enumerate(self.seeds):
            cover = max(cover, *covering_ratios(self.classes, np.random.default_rng(seed)))
            progress((i + 1) / len(self.seeds))
        problems = {name: of_task(name) for name in TASKS}
        verdicts = judge(
            CLAIMS,
            cover=cover,
            classes=self.classes * len(self.seeds),
            off=max(
                abs(limit_slope(problem, self.delta) + 2.0 * min(TASKS[name]))
                for name, problem in problems.items()
            ),
            samples=self.samples,
            tasks=len(TASKS),
            ordered=self.ordered(problems),
            as_stated=self.ordered(problems, joint_stretch=1.0),
            long=LONG,
            longer=self.ordered(problems, factor_norm=LONG),
            smallest=min(self.certificates(problem)[0] for problem in problems.values()),
        )
        title, plots = "Class sizes and certificates", (self.certificate_plot(), self.ratio_plot())
        return Section("certificates", title, STATEMENT, verdicts, (self.table(problems),), plots)

    def certificates(self, problem: Problem) -> list[float]:
        """log10 of both classes' certificates at the usual n."""
        log_n = math.log(self.samples)
        return [log_certificate(problem, kind, log_n, self.delta) / TEN for kind in KINDS]

    def ordered(self, problems: dict[str, Problem], **changes: float) -> int:
        """The number of problems whose factored certificate is at most the joint one."""
        pairs = [self.certificates(replace(problem, **changes)) for problem in problems.values()]
        return sum(factored <= joint for factored, joint in pairs)

    def table(self, problems: dict[str, Problem]) -> Grid:
        """Each task's dimensions, sufficient sample sizes and certificates."""
        rows = []
        for name, problem in problems.items():
            needed = [log_sufficient_n(problem, k, self.epsilon, self.delta) / TEN for k in KINDS]
            dims = (*TASKS[name], *(problem.dimension(kind) for kind in KINDS))
            sizes = [f"10^{value:,.0f}" for value in (*needed, needed[1] - needed[0])]
            bounds = [f"10^{value:.1f}" for value in self.certificates(problem)]
            rows.append((name, *map(str, dims), *sizes, *bounds))
        columns = (
            *("task", "d_s", "d_a", "D_max", "D_sum", "n, factored", "n, joint", "ratio"),
            *("certificate, factored", "certificate, joint"),
        )
        title = (
            f"Sample sizes sufficient for L <= {self.epsilon}^2, and the certificate on L at "
            f"n = {self.samples:.0e} (tasks of Table 1)"
        )
        return Grid(title, columns, tuple(rows))

    def certificate_plot(self) -> Plot:
        """Both certificates against n, on the smallest problem that is covered and on a task."""
        powers = np.linspace(0.0, 60.0, 61)
        problems = {"d_s = d_a = 3, d = 8": Problem(3, 3), "cheetah": of_task("cheetah-run")}
        curves = []
        for color, (label, problem) in enumerate(problems.items()):
            for kind, look in (("factored", "line"), ("joint", "dashed")):
                y = [log_certificate(problem, kind, p * TEN, self.delta) / TEN for p in powers]
                name = f"{kind}, {label}"
                curves.append(Curve(name, powers.tolist(), y, look=look, color=color))
        known = Curve("known without data", (0.0, 60.0), (0.0, 0.0), look="dotted", color=7)
        axes = "log10 n", "log10 of the certificate"
        title = "Certificates on L(g_n), Proposition 1"
        return Plot("certificates", title, *axes, (*curves, known), "linear", "linear")

    def ratio_plot(self) -> Plot:
        """The ratio of sufficient sample sizes against epsilon for one task of each body."""
        powers = np.linspace(-4.0, 0.0, 17)
        curves = []
        for color, task in enumerate(("cheetah-run", "quadruped-run", "humanoid-run", "dog-run")):
            ratios = np.array([log_ratio(of_task(task), 10.0**p, self.delta) for p in powers])
            label = f"{task}, min(d_s, d_a) = {min(TASKS[task])}"
            grown = (ratios - ratios[-1]) / TEN
            curves.append(Curve(label, powers.tolist(), grown.tolist(), color=color))
        axes = "log10 epsilon", "log10 of the ratio over that at epsilon = 1"
        title = "Sufficient n, joint over factored, Proposition 2"
        return Plot("sample-ratio", title, *axes, tuple(curves), "linear", "linear")


def limit_slope(problem: Problem, delta: float) -> float:
    """The slope of the log ratio of sample sizes in log epsilon, near zero."""
    epsilon, step = 1e-6, 2.0
    rise = log_ratio(problem, epsilon * step, delta) - log_ratio(problem, epsilon, delta)
    return rise / math.log(step)


def covering_ratios(classes: int, generator: Generator) -> list[float]:
    """Exact covering number over Theorem 1's bound for random small classes and radii."""
    ratios = []
    for _ in range(classes):
        states, actions, nexts = (generator.normal(size=(4, size, 2)) for size in (3, 2, 3))
        radius = float(generator.uniform(0.5, 12.0))
        exact = covering_number(factored_scores(states, actions, nexts), radius)
        ratios.append(exact / product_bound(states, actions, nexts, radius))
    return ratios
