"""The study of density against log ratio: what is linear in psi or in its Fourier features."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fastr.studies.theory.families import EnergyMDP, energy, mixture
from fastr.studies.theory.fourier import bellman_residual, normalised_fourier, plain_fourier
from fastr.studies.theory.intervals import interval
from fastr.studies.theory.mdp import CPMDP
from fastr.studies.theory.ranking_fit import Descent, ranking_fits
from fastr.studies.theory.report import Grid, Plot, Progress, Section, Verdict, banded
from fastr.studies.theory.sampling import population
from fastr.studies.theory.spectral_fit import factored_fit

STATEMENT = (
    "Said by the paper: Eq. (cp) takes the density as a CP product, and then psi is a linear-MDP "
    "feature. Also said: the ranking loss of Eq. (nce) fits the log ratio as one. Not said: these "
    "are different assumptions, and neither implies the other. If log P(s'|s,a)/q(s') = psi^T m - "
    "log Z(s,a), the density is q exp(psi^T m) / Z, which is not linear in psi.",
    "What connects them is the Fourier critic. exp(psi^T m) = exp(|psi|^2/2) exp(|m|^2/2) "
    "exp(-|psi - m|^2/2), and the last factor is a Gaussian kernel: the mean over w ~ N(0, I) of "
    "cos(w^T psi - w^T m). So E[V(s')|s,a] is, in the limit of many frequencies, linear in "
    "exp(|psi|^2/2) / Z(s,a) times the sines and cosines of w^T psi. A critic on plain sines and "
    "cosines lacks the factor in front; since Z depends on (s,a) through psi alone, enough of them "
    "still approximate the product, by no identity but by their density among functions of psi.",
    "Measured: psi of d coordinates learned at n = infinity by the L2 objective (density) and by "
    "the ranking loss (log ratio), on exact CP-MDPs and on energy-based MDPs whose log ratio is "
    "exactly CP. The residual is the share of E[V(s')|s,a] over random V that no linear function "
    "of the features explains: 0 is a linear-MDP feature, 1 is useless. `best d` is the smallest "
    "residual that any d features can have (singular values), `random` is as many random numbers "
    "per (s,a) as there are Fourier features.",
)
LABELS = {
    "l2": "psi of the L2 objective",
    "ranking": "psi of the ranking loss",
    "l2 fourier": "Fourier features of the L2 psi",
    "ranking fourier": "Fourier features of the ranking psi",
    "ranking normalised": "the same times exp(|psi|^2/2)/Z",
    "best d": "best d features",
    "random": "random features",
}
DESCENT = Descent(steps=1500, rate=0.05, starts=4, penalty=0.0)
FLOOR = 1e-5
"""Below this a residual is drawn as this."""
CP, ENERGY = "exact CP", "energy-based"
Residuals = dict[str, Float[np.ndarray, "seed count"]]


@dataclass(frozen=True)
class RatioStudy:
    """Sizes of the study."""

    seeds: tuple[int, ...]
    states: int = 30
    actions: int = 20
    counts: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    descent: Descent = DESCENT

    def run(self, progress: Progress) -> Section:
        """Both families, all seeds."""
        families = {CP: mixture, ENERGY: energy}
        found = {}
        for i, (name, family) in enumerate(families.items()):
            generators = [np.random.default_rng(seed) for seed in self.seeds]
            models = [family(self.states, self.actions, generator) for generator in generators]
            found[name] = self.residuals(models, generators)
            progress((i + 1) / len(families))
        return Section(
            "ratio",
            "Density or log ratio?",
            STATEMENT,
            tuple(verdicts(found, self.counts)),
            (table(found, self.counts),),
            tuple(plot(name, found[name], self.counts) for name in families),
        )

    def residuals(
        self, models: list[CPMDP] | list[EnergyMDP], generators: list[np.random.Generator]
    ) -> Residuals:
        """Every feature's residual by seed and count; those without a count repeat."""
        shares = np.stack([population(model.mdp.density) for model in models])
        features = models[0].feature.shape[-1]
        n = np.full(len(models), np.inf)
        ranked = ranking_fits("factored", shares, n, features, generators, self.descent)
        rows = []
        for i, (model, generator) in enumerate(zip(models, generators, strict=True)):
            spectral = factored_fit(shares[i], features, generator, sweeps=500)
            learned = (ranked.feature[i], ranked.target[i], ranked.base[i])
            rows.append(self.of_model(model, spectral.feature, learned, generator))
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def of_model(
        self,
        model: CPMDP | EnergyMDP,
        spectral: Float[np.ndarray, "state action feature"],
        ranked: tuple[np.ndarray, np.ndarray, np.ndarray],
        generator: np.random.Generator,
    ) -> dict[str, np.ndarray]:
        """Residuals on one MDP."""
        kernel, psi = model.mdp.kernel, ranked[0]
        made = {
            "l2 fourier": lambda count: plain_fourier(spectral, count, generator),
            "ranking fourier": lambda count: plain_fourier(psi, count, generator),
            "ranking normalised": lambda count: normalised_fourier(*ranked, count, generator),
            "random": lambda count: generator.normal(size=(*psi.shape[:2], count)),
        }
        plain = {
            "l2": bellman_residual(kernel, spectral),
            "ranking": bellman_residual(kernel, psi),
            "best d": best_residual(kernel, psi.shape[-1]),
        }
        curves = {
            name: np.array([bellman_residual(kernel, features(c)) for c in self.counts])
            for name, features in made.items()
        }
        return {n: np.full(len(self.counts), v) for n, v in plain.items()} | curves


def best_residual(kernel: Float[np.ndarray, "state action next"], features: int) -> float:
    """The smallest `bellman_residual` of any feature with this many coordinates (Eckart-Young)."""
    centred = (kernel - kernel.mean((0, 1))).reshape(-1, kernel.shape[-1])
    sizes = np.linalg.svd(centred, compute_uv=False)
    return float(np.sqrt(np.square(sizes[features:]).sum() / np.square(sizes).sum()))


def verdicts(found: dict[str, Residuals], counts: tuple[int, ...]) -> list[Verdict]:
    """What is a linear-MDP feature where."""

    def at(index: int, family: str, name: str) -> tuple[float, str]:
        summary = interval(found[family][name][:, index])
        return float(summary.mean), summary.text(".3f")

    def last(family: str, name: str) -> tuple[float, str]:
        return at(-1, family, name)

    count, middle = counts[-1], len(counts) // 2

    on_cp, on_energy = last(CP, "l2"), last(ENERGY, "l2")
    ranked_cp, ranked_energy = last(CP, "ranking"), last(ENERGY, "ranking")
    waves_cp, waves_energy = last(CP, "ranking fourier"), last(ENERGY, "ranking fourier")
    exact, spectral = at(middle, ENERGY, "ranking normalised"), last(ENERGY, "l2 fourier")
    plain, exact_last = at(middle, ENERGY, "ranking fourier"), last(ENERGY, "ranking normalised")
    return [
        Verdict(
            "Where the density is CP, psi of the L2 objective is a linear-MDP feature.",
            f"residual {on_cp[1]}",
            on_cp[0] < 0.01,
        ),
        Verdict(
            "Where the density is CP, psi of the ranking loss is a linear-MDP feature.",
            f"residual {ranked_cp[1]}",
            ranked_cp[0] < 0.01,
        ),
        Verdict(
            "Where the log ratio is CP, psi of the ranking loss is a linear-MDP feature.",
            f"residual {ranked_energy[1]}; psi of the L2 objective: {on_energy[1]}",
            ranked_energy[0] < 0.01,
        ),
        Verdict(
            "Fourier features of the ranking psi close the gap in both families "
            f"(below a fifth of psi's own residual at {count} features).",
            f"{waves_cp[1]} on exact CP, {waves_energy[1]} on energy-based MDPs",
            waves_cp[0] < 0.2 * ranked_cp[0] and waves_energy[0] < 0.2 * ranked_energy[0],
        ),
        Verdict(
            "With the factor exp(|psi|^2/2)/Z of the identity, Fourier features leave less than "
            f"without it ({counts[middle]} features, energy-based).",
            f"{exact[1]} with, {plain[1]} without; at {count} features {exact_last[1]} and "
            f"{waves_energy[1]}",
            exact[0] < plain[0],
        ),
        Verdict(
            "On energy-based MDPs Fourier features of the ranking psi beat those of the L2 psi.",
            f"{waves_energy[1]} against {spectral[1]} at {count} features",
            waves_energy[0] < spectral[0],
        ),
    ]


def table(found: dict[str, Residuals], counts: tuple[int, ...]) -> Grid:
    """Residuals at every other count."""
    shown = [i for i in range(len(counts)) if i % 2 == 1]
    rows = [
        (family, LABELS[name], *(interval(values[:, i]).text(".3f") for i in shown))
        for family, residuals in found.items()
        for name, values in residuals.items()
    ]
    columns = ("MDP", "feature", *(f"{counts[i]} features" for i in shown))
    return Grid(
        "Bellman-linearity residual, mean over seeds and 95 % interval", columns, tuple(rows)
    )


def plot(family: str, residuals: Residuals, counts: tuple[int, ...]) -> Plot:
    """Residuals against the number of Fourier features."""
    flat, x = {"l2", "ranking", "best d"}, [float(count) for count in counts]
    curves = []
    for color, (name, values) in enumerate(residuals.items()):
        look = "dashed" if name in flat else "dotted" if name == "random" else "line"
        summary = interval(values).under(lambda part: np.maximum(part, FLOOR))
        curves.append(banded(LABELS[name], x, summary, look, color))
    return Plot(
        f"ratio-{family.split()[-1].lower()}",
        f"{family} MDPs",
        "Fourier features",
        "Bellman-linearity residual",
        tuple(curves),
    )
