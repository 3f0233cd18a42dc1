"""Density or log ratio: what is linear in psi, or in its random Fourier features.

exp(psi^T m) = exp(|psi|^2 / 2) E_w[cos(w^T psi - w^T m)] exp(|m|^2 / 2),   w ~ N(0, I)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from fastr.report.page import Figure
from fastr.report.table import Table as Rows
from fastr.studies.theory import Section, Verdict, curve, interval, judge, log_plot
from fastr.studies.theory.fits import Descent, factored_fit, ranking_fits
from fastr.studies.theory.linearity import off_span
from fastr.studies.theory.mdp import FactoredMDP, Feature, Table, energy, mixture, population

STATEMENT = (
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
class Study:
    """Sizes of the study."""

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
        return Section("ratio", title, STATEMENT, verdicts, (self.table(found),), plots)

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
