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
from fastr.studies.theory.page import Grid, Plot, Section, Verdict, curve, judge

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
LONG = 3.0
"""A larger B_phi, for which the certificates at a usual n have the other order."""
EPSILON, DELTA = 0.1, 0.05
SAMPLES = 1e6
"""A usual n."""
PROBLEMS = {name: of_task(name) for name in TASKS}


@dataclass(frozen=True)
class Study:
    """Sizes of the study."""

    seeds: tuple[int, ...]
    classes: int = 20
    """Small random classes per seed whose covering numbers are computed exactly."""

    def run(self) -> Section:
        """Exact covering numbers, then the formulas."""
        generators = [np.random.default_rng(seed) for seed in self.seeds]
        cover = max(max(covering_ratios(self.classes, generator)) for generator in generators)
        title, plots = "Class sizes and certificates", (certificate_plot(), ratio_plot())
        verdicts = self.verdicts(cover)
        return Section("certificates", title, STATEMENT, verdicts, (task_table(),), plots)

    def verdicts(self, cover: float) -> tuple[Verdict, ...]:
        """Theorem 1, the slope of Proposition 2, and both certificates at a usual n."""
        slopes = {name: limit_slope(problem) for name, problem in PROBLEMS.items()}
        off = max(abs(slope + 2.0 * min(TASKS[name])) for name, slope in slopes.items())
        smallest = min(certificates(problem)[0] for problem in PROBLEMS.values())
        return (
            judge(
                "Theorem 1: the covering number of a product class is at most the product of its "
                "factors' at the stated radii.",
                f"exact number over bound at most {cover:.2f} in "
                f"{self.classes * len(self.seeds)} random classes",
                cover <= 1.0,
            ),
            judge(
                "Proposition 2: the ratio of sample sizes has slope -2 min(d_s, d_a) in epsilon.",
                f"at epsilon = 1e-6 the slope is within {off:.1e} of it for every task",
                off < 0.01,
            ),
            judge(
                "With all norms at 1 the factored certificate is the smaller one at "
                f"n = {SAMPLES:.0e} for every task.",
                f"for {ordered()} of {len(TASKS)} tasks; with the factors' own L for the joint "
                f"encoder, as the paper has it, for {ordered(joint_stretch=1.0)}; with "
                f"B_phi = {LONG:g} for {ordered(factor_norm=LONG)}",
                ordered() == len(TASKS),
            ),
            judge(
                f"At n = {SAMPLES:.0e} a certificate says more than L <= B_g^2 = 1, which is known "
                "without data.",
                f"the smallest certificate of all tasks is 10^{smallest:.1f}",
                smallest < 0.0,
            ),
        )


def certificates(problem: Problem) -> list[float]:
    """log10 of both classes' certificates at the usual n."""
    return [log_certificate(problem, kind, math.log(SAMPLES), DELTA) / TEN for kind in KINDS]


def ordered(**changes: float) -> int:
    """The number of tasks whose factored certificate is at most the joint one."""
    pairs = [certificates(replace(problem, **changes)) for problem in PROBLEMS.values()]
    return sum(factored <= joint for factored, joint in pairs)


def task_table() -> Grid:
    """Each task's dimensions, sufficient sample sizes and certificates."""
    rows = []
    for name, problem in PROBLEMS.items():
        needed = [log_sufficient_n(problem, kind, EPSILON, DELTA) / TEN for kind in KINDS]
        dims = (*TASKS[name], *(problem.dimension(kind) for kind in KINDS))
        sizes = [f"10^{value:,.0f}" for value in (*needed, needed[1] - needed[0])]
        rows.append(
            (name, *map(str, dims), *sizes, *(f"10^{bound:.1f}" for bound in certificates(problem)))
        )
    columns = (
        *("task", "d_s", "d_a", "D_max", "D_sum", "n, factored", "n, joint", "ratio"),
        *("certificate, factored", "certificate, joint"),
    )
    title = (
        f"Sample sizes sufficient for L <= {EPSILON}^2, and the certificate on L at "
        f"n = {SAMPLES:.0e} (tasks of Table 1)"
    )
    return Grid(title, columns, rows)


def certificate_plot() -> Plot:
    """Both certificates against n, on the smallest problem that is covered and on a task."""
    powers = np.linspace(0.0, 60.0, 61)
    problems = {"d_s = d_a = 3, d = 8": Problem(3, 3), "cheetah": of_task("cheetah-run")}
    curves = []
    for color, (label, problem) in enumerate(problems.items()):
        for kind, look in zip(KINDS, ("line", "dashed"), strict=True):
            y = [log_certificate(problem, kind, p * TEN, DELTA) / TEN for p in powers]
            curves.append(curve(f"{kind}, {label}", powers, np.array(y), look, color))
    curves.append(curve("known without data", (0, 60), np.zeros(2), "dotted", 7))
    title, axes = "Certificates on L(g_n), Proposition 1", ("log10 n", "log10 of the certificate")
    return Plot("certificates", title, *axes, curves, "linear", "linear")


def ratio_plot() -> Plot:
    """The ratio of sufficient sample sizes against epsilon for one task of each body."""
    powers = np.linspace(-4.0, 0.0, 17)
    curves = []
    for color, task in enumerate(("cheetah-run", "quadruped-run", "humanoid-run", "dog-run")):
        ratios = np.array([log_ratio(PROBLEMS[task], 10.0**p, DELTA) for p in powers])
        label = f"{task}, min(d_s, d_a) = {min(TASKS[task])}"
        curves.append(curve(label, powers, (ratios - ratios[-1]) / TEN, color=color))
    axes = "log10 epsilon", "log10 of the ratio over that at epsilon = 1"
    title = "Sufficient n, joint over factored, Proposition 2"
    return Plot("sample-ratio", title, *axes, curves, "linear", "linear")


def limit_slope(problem: Problem) -> float:
    """The slope of the log ratio of sample sizes in log epsilon, near zero."""
    epsilon, step = 1e-6, 2.0
    rise = log_ratio(problem, epsilon * step, DELTA) - log_ratio(problem, epsilon, DELTA)
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
