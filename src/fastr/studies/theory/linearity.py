"""What is linear in psi: Q, Eq. (Q-linear), with its norm bound; the density, or the log ratio.

Random Fourier features of psi make a density linear whose log ratio is a CP product:

exp(psi^T m) = exp(|psi|^2 / 2) E_w[cos(w^T psi - w^T m)] exp(|m|^2 / 2),   w ~ N(0, I)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from fastr.report.page import Figure
from fastr.report.table import Table as Rows
from fastr.studies.theory import (
    Section,
    Verdict,
    curve,
    exponents,
    interval,
    judge,
    log_interval,
    log_plot,
)
from fastr.studies.theory.fits import Descent, factored_fit, ranking_fits
from fastr.studies.theory.mdp import (
    FactoredMDP,
    Feature,
    FiniteMDP,
    Policy,
    Table,
    energy,
    mixture,
    population,
    random_policy,
    waves,
)

STATEMENT = (
    "Claim (Eq. (Q-linear); App. Derivation of the Q-linearity): where kernel and reward are CP "
    "products, P = psi^T m and r = psi^T theta_r, the Q-function of every policy is psi^T w, and "
    "|w| is at most |theta_r| + gamma B_m1 R_max / (1 - gamma).",
    "Measured: exact Q of random policies, on random mixtures and on a grid of cosines. Then a "
    "dial adds products that no CP kernel of the same d contains, by a known epsilon_CP: the rms "
    "residual is at most gamma epsilon_CP std(V).",
)
POINTS = 16
"""Grid points per axis of the cosines."""
DIALS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)


def norm_bound(model: FactoredMDP) -> float:
    """|w^pi| <= |theta_r| + gamma B_m1 R_max / (1 - gamma) (App. Derivation of the Q-linearity)."""
    mass = np.linalg.norm(model.next_factor, axis=1).sum()
    largest = np.abs(model.mdp.reward).max()
    past = model.discount * mass * largest / (1.0 - model.discount)
    return float(np.linalg.norm(model.reward_weight) + past)


def linearity(model: FactoredMDP, policy: Policy) -> tuple[float, float]:
    """Eq. (Q-linear) on one policy: max |Q - psi^T w| over (s,a), and |w| over its bound.

    w^pi = theta_r + gamma times the integral of m V^pi.
    """
    weight = model.reward_weight + model.discount * model.next_factor.T @ model.mdp.value(policy)
    error = np.abs(model.mdp.q_function(policy) - model.feature @ weight).max()
    return float(error), float(np.linalg.norm(weight)) / norm_bound(model)


def random_checks(
    model: FactoredMDP, policies: int, generator: Generator
) -> Float[np.ndarray, "policy 2"]:
    """`linearity` of random policies."""
    states, actions = model.mdp.reward.shape
    chosen = (random_policy(states, actions, generator) for _ in range(policies))
    return np.array([linearity(model, policy) for policy in chosen])


def off_span(
    feature: Feature, targets: Float[np.ndarray, "state action target"]
) -> Float[np.ndarray, "state action target"]:
    """The residual of each target as a linear function of the feature (least squares)."""
    rows = feature.reshape(-1, feature.shape[-1])
    flat = targets.reshape(len(rows), -1)
    weights = np.linalg.lstsq(rows, flat, rcond=1e-12)[0]
    return (flat - rows @ weights).reshape(targets.shape)


def policy_residual(
    mdp: FiniteMDP, feature: Feature, policy: Policy, cp_error: float
) -> tuple[float, float]:
    """The rms of Q off the feature's span, and its bound by epsilon_CP.

    With g the best CP product, Q - psi^T w = gamma times the integral of (P - g) V. Both P and g
    integrate to one, so that V may be centred, and the rms is at most gamma epsilon_CP times the
    standard deviation of V under nu (Cauchy-Schwarz).
    """
    residual = off_span(feature, mdp.q_function(policy)[..., None])
    allowed = mdp.discount * np.sqrt(cp_error) * mdp.value(policy).std()
    return float(np.sqrt(np.square(residual).mean())), float(allowed)


def off_cp(seed: int) -> list[tuple[float, float]]:
    """For each dial the residual and its bound at the policy where they are closest."""
    generator = np.random.default_rng(seed)
    weight = generator.normal(size=4)
    policies = [random_policy(POINTS, POINTS, generator) for _ in range(20)]
    rows = []
    for dial in DIALS:
        truth = waves(1, 1, dial=dial)
        mdp, psi = truth.table(POINTS, weight, 0.9), truth.feature(POINTS)
        pairs = [policy_residual(mdp, psi, policy, truth.cp_error) for policy in policies]
        rows.append(max(pairs, key=lambda pair: pair[0] / pair[1]))
    return rows


@dataclass(frozen=True)
class Study:
    """Sizes of the study of Q."""

    seeds: tuple[int, ...]
    policies: int = 100

    def run(self) -> Section:
        """On CP, then off it."""
        families = {
            "mixture": lambda generator: mixture(30, 12, generator),
            "cosines": lambda generator: waves(1, 1).cp_model(
                POINTS, generator.normal(size=4), 0.9
            ),
        }
        on_cp = {}
        for name, family in families.items():
            generators = [np.random.default_rng(seed) for seed in self.seeds]
            on_cp[name] = np.concatenate(
                [random_checks(family(each), self.policies, each) for each in generators]
            )
        checks = np.concatenate(list(on_cp.values()))
        worst, tightest = checks.max(0)
        residual, allowed = np.moveaxis(np.array([off_cp(seed) for seed in self.seeds]), -1, 0)
        errors = np.sqrt([waves(1, 1, dial=dial).cp_error for dial in DIALS])
        slope, share = interval(exponents(errors, residual)), (residual / allowed).max()
        verdicts = (
            judge(
                "On exact CP-MDPs Q is linear in psi for every policy.",
                f"largest residual {worst:.1e} over {len(checks)} random policies",
                worst < 1e-10,
            ),
            judge(
                "The norm bound on w is never violated.",
                f"|w| is at most {tightest:.3f} of the bound: it holds and is loose",
                tightest <= 1.0,
            ),
            judge(
                "Off CP the rms residual stays below gamma epsilon_CP std(V).",
                f"at most {share:.2f} of it over all dials, policies and seeds",
                share <= 1.0,
            ),
            judge(
                "Off CP the residual grows in proportion to epsilon_CP.",
                f"fitted exponent {slope:.2f}",
                abs(slope.mean - 1.0) < 0.1,
            ),
        )
        curves = (
            curve("residual of Q", errors, log_interval(residual)),
            curve("gamma epsilon_CP std(V)", errors, log_interval(allowed).mean, 1, "--"),
        )
        title = "Q off the span of psi, worst of 20 policies"
        plot = log_plot("linearity", title, "epsilon_CP", "rms over (s, a)", curves)
        rows = [
            (name, str(len(found)), f"{found.max(0)[0]:.1e}", f"{found.max(0)[1]:.3f}")
            for name, found in on_cp.items()
        ]
        columns = ("family", "policies", "largest |Q - psi^T w|", "largest |w| / bound")
        table = Rows("linearity-1", "Exact CP-MDPs", columns, rows)
        title = "Q is linear in the feature"
        return Section("linearity", title, STATEMENT, verdicts, (table,), (plot,))


# Density or log ratio

RATIO_STATEMENT = (
    "The paper assumes that the density is a CP product, Eq. (cp), and trains psi by the ranking "
    "loss of Eq. (nce), which fits the log ratio as one. Neither implies the other: q exp(psi^T m) "
    "/ Z is not linear in psi. The Fourier critic connects them: exp(psi^T m) is exp(|psi|^2/2) "
    "exp(|m|^2/2) times a Gaussian kernel.",
    "Measured at n = infinity: the share of E[V(s')|s,a] over random V that no linear function of "
    "the features explains. 0 is a linear-MDP feature, 1 is useless; `best d` is the smallest of "
    "any d features, `random` is of as many random numbers as there are Fourier features.",
)
LABELS = {
    "l2": "psi of the L2 objective",
    "ranking": "psi of the ranking loss",
    "best d": "best d features",
    "l2 fourier": "Fourier features of the L2 psi",
    "ranking fourier": "Fourier features of the ranking psi",
    "ranking normalised": "the same times exp(|psi|^2/2)/Z",
    "random": "random features",
}
DASHES = {"l2": "--", "ranking": "--", "best d": "--", "random": ":"}
DESCENT = Descent(steps=1500, rate=0.05, starts=4, penalty=0.0)
FLOOR = 1e-5
"""Smaller residuals are plotted as this."""
CP, ENERGY = "exact CP", "energy-based"
Residuals = dict[str, Float[np.ndarray, "seed count"]]


def waves_of(
    feature: Feature, frequencies: Float[np.ndarray, "feature wave"]
) -> Float[np.ndarray, "state action fourier"]:
    """The sines and cosines of w^T psi."""
    angles = feature @ frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def plain_fourier(
    feature: Feature, count: int, generator: Generator
) -> Float[np.ndarray, "state action fourier"]:
    """`count` Fourier features, as in the Fourier critic: psi scaled, no normaliser.

    Each coordinate is centred and scaled to variance 1/d, so that typical distances are near 1.
    """
    rows = feature.reshape(-1, feature.shape[-1])
    scaled = (feature - rows.mean(0)) / (rows.std(0) + 1e-12) / np.sqrt(feature.shape[-1])
    return waves_of(scaled, generator.normal(size=(feature.shape[-1], count // 2)))


def normalised_fourier(
    feature: Feature,
    target: Float[np.ndarray, "next feature"],
    base: Float[np.ndarray, " next"],
    count: int,
    generator: Generator,
) -> Float[np.ndarray, "state action fourier"]:
    """`count` Fourier features times exp(|psi|^2 / 2) / Z: linear in the limit, by the identity.

    The scale between psi and m is free; psi and m are given the same mean square.
    """
    gauge = np.sqrt(np.square(target).mean(0) / np.maximum(np.square(feature).mean((0, 1)), 1e-12))
    psi, m = feature * np.sqrt(gauge), target / np.maximum(np.sqrt(gauge), 1e-12)
    log_weight = 0.5 * np.square(psi).sum(-1) - np.log(np.exp(psi @ m.T) @ base)
    weight = np.exp(log_weight - log_weight.max())
    return weight[..., None] * waves_of(psi, generator.normal(size=(psi.shape[-1], count // 2)))


def bellman_residual(kernel: Table, feature: Feature) -> float:
    """The share of E[V(s')|s,a] that no linear function of the feature and a constant explains.

    The root of the residual's over the total variance across (s,a), for V of independent standard
    normal values: the average form of Definition "approximate Bellman linearity".
    """
    centred = kernel - kernel.mean((0, 1))
    with_one = np.concatenate([feature, np.ones((*feature.shape[:2], 1))], axis=-1)
    return float(np.linalg.norm(off_span(with_one, centred)) / np.linalg.norm(centred))


def best_residual(kernel: Table, features: int) -> float:
    """The smallest `bellman_residual` of any feature with this many coordinates (Eckart-Young)."""
    centred = (kernel - kernel.mean((0, 1))).reshape(-1, kernel.shape[-1])
    sizes = np.linalg.svd(centred, compute_uv=False)
    return float(np.sqrt(np.square(sizes[features:]).sum() / np.square(sizes).sum()))


@dataclass(frozen=True)
class RatioStudy:
    """Sizes of the study of densities and log ratios."""

    seeds: tuple[int, ...]
    states: int = 30
    actions: int = 20
    counts: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    descent: Descent = DESCENT

    def run(self) -> Section:
        """Both families, all seeds."""
        found = {CP: self.residuals(mixture), ENERGY: self.residuals(energy)}
        plots = [self.plot(family, residuals) for family, residuals in found.items()]
        title, verdicts = "Density or log ratio?", self.verdicts(found)
        return Section("ratio", title, RATIO_STATEMENT, verdicts, (self.table(found),), plots)

    def residuals(self, family: Callable[..., FactoredMDP]) -> Residuals:
        """Every feature's residual by seed and count; those without a count repeat."""
        generators = [np.random.default_rng(seed) for seed in self.seeds]
        models = [family(self.states, self.actions, generator) for generator in generators]
        shares = np.stack([population(model.mdp.density) for model in models])
        size, n = models[0].feature.shape[-1], np.full(len(models), np.inf)
        ranked = ranking_fits("factored", shares, n, size, generators, self.descent)
        rows = []
        for i, (model, generator) in enumerate(zip(models, generators, strict=True)):
            spectral = factored_fit(shares[i], size, generator, sweeps=500).feature
            learned = (ranked.feature[i], ranked.target[i], ranked.base[i])
            rows.append(self.of_model(model.mdp.kernel, spectral, learned, generator))
        return {name: np.array([row[name] for row in rows]) for name in LABELS}

    def of_model(
        self,
        kernel: Table,
        spectral: Feature,
        ranked: tuple[np.ndarray, np.ndarray, np.ndarray],
        generator: Generator,
    ) -> dict[str, list[float]]:
        """Residuals on one MDP, by count."""
        psi = ranked[0]
        flat = {
            "l2": bellman_residual(kernel, spectral),
            "ranking": bellman_residual(kernel, psi),
            "best d": best_residual(kernel, psi.shape[-1]),
        }
        grown = {
            "l2 fourier": lambda count: plain_fourier(spectral, count, generator),
            "ranking fourier": lambda count: plain_fourier(psi, count, generator),
            "ranking normalised": lambda count: normalised_fourier(*ranked, count, generator),
            "random": lambda count: generator.normal(size=(*psi.shape[:2], count)),
        }
        found = {name: [residual] * len(self.counts) for name, residual in flat.items()}
        for name, features in grown.items():
            found[name] = [bellman_residual(kernel, features(count)) for count in self.counts]
        return found

    def verdicts(self, found: dict[str, Residuals]) -> tuple[Verdict, ...]:
        """What is linear in psi and in its Fourier features, at the largest number of features."""
        half, most = len(self.counts) // 2, self.counts[-1]
        cp, rest = ({k: interval(v[:, -1]) for k, v in found[name].items()} for name in found)
        fewer = {name: interval(values[:, half]) for name, values in found[ENERGY].items()}
        with_factor, without = "ranking normalised", "ranking fourier"
        return (
            judge(
                "Where the density is CP, psi of the L2 objective is a linear-MDP feature.",
                f"residual {cp['l2']:.3f}",
                cp["l2"].mean < 0.01,
            ),
            judge(
                "Where the density is CP, psi of the ranking loss is a linear-MDP feature.",
                f"residual {cp['ranking']:.3f}",
                cp["ranking"].mean < 0.01,
            ),
            judge(
                "Where the log ratio is CP, psi of the ranking loss is a linear-MDP feature.",
                f"residual {rest['ranking']:.3f}; psi of the L2 objective: {rest['l2']:.3f}",
                rest["ranking"].mean < 0.01,
            ),
            judge(
                "Fourier features of the ranking psi close the gap in both families "
                f"(below a fifth of psi's own residual at {most} features).",
                f"{cp[without]:.3f} on exact CP, {rest[without]:.3f} on energy-based MDPs",
                [part[without].mean < 0.2 * part["ranking"].mean for part in (cp, rest)],
            ),
            judge(
                "With the factor exp(|psi|^2/2)/Z of the identity, Fourier features leave less "
                f"than without it ({self.counts[half]} features, energy-based).",
                f"{fewer[with_factor]:.3f} with, {fewer[without]:.3f} without; at {most} features "
                f"{rest[with_factor]:.3f} and {rest[without]:.3f}",
                fewer[with_factor].mean < fewer[without].mean,
            ),
            judge(
                "On energy-based MDPs Fourier features of the ranking psi beat those of the L2 "
                "psi.",
                f"{rest[without]:.3f} against {rest['l2 fourier']:.3f} at {most} features",
                rest[without].mean < rest["l2 fourier"].mean,
            ),
        )

    def table(self, found: dict[str, Residuals]) -> Rows:
        """Residuals at every other count."""
        shown = range(1, len(self.counts), 2)
        rows = [
            (family, LABELS[name], *(f"{interval(values[:, i]):.3f}" for i in shown))
            for family, residuals in found.items()
            for name, values in residuals.items()
        ]
        columns = ("MDP", "feature", *(f"{self.counts[i]} features" for i in shown))
        title = "Bellman-linearity residual, mean over seeds and 95 % interval"
        return Rows("ratio-1", title, columns, rows)

    def plot(self, family: str, residuals: Residuals) -> Figure:
        """Residuals against the number of Fourier features."""
        curves = []
        for color, (name, values) in enumerate(residuals.items()):
            summary = interval(values).under(lambda part: np.maximum(part, FLOOR))
            dash = DASHES.get(name, "-")
            curves.append(curve(LABELS[name], self.counts, summary, color, dash))
        name, title = f"ratio-{family.split()[-1].lower()}", f"{family} MDPs"
        return log_plot(name, title, "Fourier features", "Bellman-linearity residual", curves)
