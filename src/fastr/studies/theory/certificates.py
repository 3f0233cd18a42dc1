"""Class sizes and certificates: Theorem 1, Propositions 1 and 2, on small classes and on tasks.

Certificates have all constants, and are natural logarithms: with 67 states a covering number's
logarithm is itself of the order of 10^60.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.random import Generator
from scipy import optimize

from fastr.report.page import Axes, Figure, curves
from fastr.report.table import Table
from fastr.studies.theory import Section, Verdict, curve, judge
from fastr.studies.theory.fits import KINDS

STATEMENT = (
    "Theorem 1: the logarithm of the factored class's covering number is at most the sum of its "
    "encoders'. With L-Lipschitz encoders the exponent is D_max = max(d_s, d_a) instead of "
    "D_sum = d_s + d_a (App. Lipschitz Instantiation).",
    "Proposition 1, Eq. (finite-sample), bounds L(g_n) with probability 1 - delta. Proposition 2, "
    "Eq. (sample-ratio): the sample sizes at which these certificates reach epsilon^2 have the "
    "ratio Theta(epsilon^(-2 min(d_s, d_a))) as epsilon goes to 0; at a given n constants decide.",
    "All norms, L and the constant c that the paper leaves open are 1, domains are unit cubes, "
    "d = 512, delta = 0.05. The joint encoder's Lipschitz constant is sqrt(2) B_phi L, which the "
    "inclusion of the classes needs; the entropy constant covers radii up to B_g.",
)
LONG = 3.0
"""A larger B_phi, for which the certificates at a usual n have the other order."""
EPSILON, DELTA = 0.1, 0.05
SAMPLES = 1e6
"""A usual n."""
Functions = Float[np.ndarray, "_ _ _"]
"""A finite class of vector-valued functions: members, points, coordinates."""
TEN = math.log(10.0)

# State and action dimensions of the tasks of the paper's Table 1 (tab:full-results).
TASKS = {
    "cheetah-run": (17, 6),
    **dict.fromkeys(("walker-walk", "walker-run"), (24, 6)),
    **dict.fromkeys(("quadruped-walk", "quadruped-run"), (78, 12)),
    **dict.fromkeys(("humanoid-stand", "humanoid-walk", "humanoid-run"), (67, 21)),
    **dict.fromkeys(("dog-stand", "dog-run"), (223, 38)),
}


def distances(functions: Functions) -> Float[np.ndarray, "member m"]:
    """sup over points of the Euclidean distance, between all members (App. Notation)."""
    gaps = functions[:, None] - functions[None]
    return np.linalg.norm(gaps, axis=-1).max(-1)


def covering_number(functions: Functions, radius: float) -> int:
    """N(F, radius) of a finite class in the sup-l2 metric, by integer programming.

    The fewest members such that each member is within the radius of one of them.
    """
    near = distances(functions) <= radius + 1e-12
    found = optimize.milp(
        np.ones(len(near)),
        constraints=optimize.LinearConstraint(near.astype(float), lb=1.0),
        integrality=np.ones(len(near)),
        bounds=optimize.Bounds(0.0, 1.0),
    )
    return round(found.fun)


def factored_scores(
    of_states: Functions, of_actions: Functions, of_next: Functions
) -> Float[np.ndarray, "scores points 1"]:
    """G_fac: every product (phi_s * phi_a)^T m of three finite classes, on all their points."""
    scores = np.einsum("fsk,hak,mxk->fhmsax", of_states, of_actions, of_next)
    return scores.reshape(math.prod(scores.shape[:3]), -1, 1)


def product_bound(
    of_states: Functions, of_actions: Functions, of_next: Functions, radius: float
) -> int:
    """Theorem 1's bound on N(G_fac, radius): the product of the factors' covering numbers."""
    factor = max(np.linalg.norm(part, axis=-1).max() for part in (of_states, of_actions))
    next_state = np.linalg.norm(of_next, axis=-1).max()
    narrow = radius / (3.0 * next_state * factor)
    return (
        covering_number(of_states, narrow)
        * covering_number(of_actions, narrow)
        * covering_number(of_next, radius / (3.0 * factor**2))
    )


@dataclass(frozen=True)
class Problem:
    """Dimensions and norms in the bounds (App. Notation; App. Lipschitz Instantiation)."""

    state_dim: int
    """d_s"""
    action_dim: int
    """d_a"""
    feature_dim: int = 8
    """d"""
    factor_norm: float = 1.0
    """B_phi, at least 1"""
    next_norm: float = 1.0
    """B_m,inf, at least 1"""
    lipschitz: float = 1.0
    """L of the factors phi_s, phi_a and m"""
    joint_stretch: float = math.sqrt(2.0)
    """The joint encoder's Lipschitz constant over B_phi L.

    |phi_s(s) * phi_a(a) - phi_s(t) * phi_a(b)| <= B_phi L (|s - t| + |a - b|), and the sum is up to
    sqrt(2) times the distance of the pairs: below sqrt(2), Theorem 1's inclusion can fail.
    """

    @property
    def score_bound(self) -> float:
        """B_g = B_phi^2 B_m,inf, what the norms imply."""
        return self.factor_norm**2 * self.next_norm

    def dimension(self, kind: str) -> int:
        """D_max = max(d_s, d_a) or D_sum = d_s + d_a, the entropy's exponent."""
        if kind == "factored":
            return max(self.state_dim, self.action_dim)
        return self.state_dim + self.action_dim


def entropy_terms(problem: Problem, kind: str) -> list[tuple[float, int]]:
    """log A_i, p_i in log N(G, epsilon) <= sum_i A_i epsilon^-p_i (App. Lipschitz Instantiation).

    Theorem 1, or its two-term form for the joint class, with log N(F, epsilon / k) <=
    c d (L diam k / epsilon)^p for each encoder. The domain is a unit cube of p dimensions, with
    diameter sqrt(p); c, open in the paper, is 1.
    """
    factor, nexts, lipschitz = problem.factor_norm, problem.next_norm, problem.lipschitz
    states, actions = problem.state_dim, problem.action_dim
    if kind == "factored":
        encoders = [
            (states, lipschitz, 3.0 * nexts * factor),
            (actions, lipschitz, 3.0 * nexts * factor),
            (states, lipschitz, 3.0 * factor**2),
        ]
    else:
        encoders = [
            (states + actions, problem.joint_stretch * factor * lipschitz, 2.0 * nexts),
            (states, lipschitz, 2.0 * factor**2),
        ]
    scale = math.log(problem.feature_dim)
    return [(scale + p * math.log(reach * math.sqrt(p) * k), p) for p, reach, k in encoders]


def log_sum(logs: list[float]) -> float:
    """log of the sum of exponentials."""
    largest = max(logs)
    return largest + math.log(sum(math.exp(value - largest) for value in logs))


def log_scale(problem: Problem, kind: str) -> float:
    """log A with log N(G, tau) <= A tau^-D for every tau up to B_g (Eq. (Gfac-lip-rate)).

    A smaller power p of 1/tau is at most B_g^(D-p) tau^-D there. The paper's A covers tau <= 1
    only, while its lemma on entropy integrals asks for tau up to B_g.
    """
    dimension, reach = problem.dimension(kind), math.log(problem.score_bound)
    return log_sum([a + (dimension - p) * reach for a, p in entropy_terms(problem, kind)])


def log_rademacher(log_scale: float, dimension: int, radius: float) -> float:
    """log K of the lemma "Polynomial entropy implies a Rademacher rate": R_n <= K n^(-1/D).

    K = 4 R + 24 sqrt(A) R^(1 - D/2) / (D - 2).
    """
    if dimension <= 2:
        raise ValueError(f"the rate n^(-1/D) needs D > 2; D is {dimension}.")
    integral = math.log(24.0 / (dimension - 2)) + 0.5 * log_scale
    return log_sum([math.log(4.0 * radius), integral + (1 - dimension / 2) * math.log(radius)])


def log_rate_constant(problem: Problem, kind: str) -> float:
    """log of 8 K(G) + 4 K(H), the coefficient of n^(-1/D) in Eq. (finite-sample).

    H is the integrated quadratic class: its entropy is that of G at tau / (2 B_g)
    (Eq. (H-cover)), its radius B_g^2.
    """
    bound, dimension = problem.score_bound, problem.dimension(kind)
    scale = log_scale(problem, kind)
    of_scores = log_rademacher(scale, dimension, bound)
    of_squares = log_rademacher(scale + dimension * math.log(2.0 * bound), dimension, bound**2)
    return log_sum([math.log(8.0) + of_scores, math.log(4.0) + of_squares])


def deviation(problem: Problem, delta: float) -> float:
    """2 (2 B_g + B_g^2) sqrt(2 log(1/delta)): over sqrt(n), the tail of Eq. (finite-sample)."""
    bound = problem.score_bound
    return 2.0 * (2.0 * bound + bound**2) * math.sqrt(2.0 * math.log(1.0 / delta))


def log_certificate(
    problem: Problem, kind: str, log_n: float, delta: float, cp_error: float = 0.0
) -> float:
    """log of Proposition 1's bound on L(g_n) for Lipschitz encoders, with both terms in n.

    `cp_error` is epsilon_CP^2 (remark "Non-realizable case"); the joint class has none.
    """
    rate = log_rate_constant(problem, kind) - log_n / problem.dimension(kind)
    parts = [rate, math.log(deviation(problem, delta)) - log_n / 2.0]
    if kind == "factored" and cp_error > 0.0:
        parts.append(math.log(cp_error))
    return log_sum(parts)


def log_sufficient_n(problem: Problem, kind: str, epsilon: float, delta: float) -> float:
    """log of the smallest n whose certificate is at most epsilon^2 (Proposition 2).

    By bisection on the full certificate; each class gets delta / 2, as in the proof's union bound.
    """

    def certified(log_n: float) -> bool:
        return log_certificate(problem, kind, log_n, delta / 2.0) <= 2.0 * math.log(epsilon)

    low, high = 0.0, 1.0
    if certified(low):
        return low
    while not certified(high):
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if certified(middle) else (middle, high)
    return high


def log_ratio(problem: Problem, epsilon: float, delta: float) -> float:
    """log of n_joint / n_fac, Eq. (sample-ratio): slope -2 min(d_s, d_a) in log epsilon at 0."""
    joint = log_sufficient_n(problem, "joint", epsilon, delta)
    return joint - log_sufficient_n(problem, "factored", epsilon, delta)


PROBLEMS = {name: Problem(*dims, feature_dim=512) for name, dims in TASKS.items()}
"""Each task's dimensions, the paper's feature size and all norms at 1."""


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


def task_table() -> Table:
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
    return Table("certificates-1", title, columns, rows)


def certificate_plot() -> Figure:
    """Both certificates against n, on the smallest problem that is covered and on a task."""
    powers = np.linspace(0.0, 60.0, 61)
    problems = {"d_s = d_a = 3, d = 8": Problem(3, 3), "cheetah": PROBLEMS["cheetah-run"]}
    lines = []
    for color, (label, problem) in enumerate(problems.items()):
        for kind, dash in zip(KINDS, ("-", "--"), strict=True):
            y = [log_certificate(problem, kind, p * TEN, DELTA) / TEN for p in powers]
            lines.append(curve(f"{kind}, {label}", powers, np.array(y), color, dash))
    lines.append(curve("known without data", (0, 60), np.zeros(2), 7, ":"))
    title, axes = "Certificates on L(g_n), Proposition 1", ("log10 n", "log10 of the certificate")
    return curves("certificates", title, lines, Axes(*axes))


def ratio_plot() -> Figure:
    """The ratio of sufficient sample sizes against epsilon for one task of each body."""
    powers = np.linspace(-4.0, 0.0, 17)
    lines = []
    for color, task in enumerate(("cheetah-run", "quadruped-run", "humanoid-run", "dog-run")):
        ratios = np.array([log_ratio(PROBLEMS[task], 10.0**p, DELTA) for p in powers])
        label = f"{task}, min(d_s, d_a) = {min(TASKS[task])}"
        lines.append(curve(label, powers, (ratios - ratios[-1]) / TEN, color))
    axes = "log10 epsilon", "log10 of the ratio over that at epsilon = 1"
    title = "Sufficient n, joint over factored, Proposition 2"
    return curves("sample-ratio", title, lines, Axes(*axes))


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
