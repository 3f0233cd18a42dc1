"""From a log ratio to a density: what random Fourier features of psi make linear.

The theory takes the density as a CP product: P = psi^T m, and then every Bellman backup is linear
in psi, Eq. (Q-linear). The ranking loss of Eq. (nce) fits the log ratio as one instead:
P(s'|s,a) = q(s') exp(psi^T m) / Z(s,a). Between the two stands

    exp(psi^T m) = exp(|psi|^2 / 2) E_w[cos(w^T psi - w^T m)] exp(|m|^2 / 2),   w ~ N(0, I),

so that P is linear, in the limit of many w, in exp(|psi|^2 / 2) / Z(s,a) times the sines and
cosines of w^T psi(s,a).
"""

import numpy as np
from jaxtyping import Float

from fastr.studies.theory.linearity import off_span

Feature = Float[np.ndarray, "state action feature"]


def waves_of(
    feature: Feature, frequencies: Float[np.ndarray, "feature wave"]
) -> Float[np.ndarray, "state action fourier"]:
    """The sines and cosines of w^T psi."""
    angles = feature @ frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def plain_fourier(
    feature: Feature, count: int, generator: np.random.Generator
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
    generator: np.random.Generator,
) -> Float[np.ndarray, "state action fourier"]:
    """`count` Fourier features times exp(|psi|^2 / 2) / Z: linear in the limit, by the identity.

    The scale between psi and m is free; psi and m are given the same mean square.
    """
    gauge = np.sqrt(np.square(target).mean(0) / np.maximum(np.square(feature).mean((0, 1)), 1e-12))
    psi, m = feature * np.sqrt(gauge), target / np.maximum(np.sqrt(gauge), 1e-12)
    log_weight = 0.5 * np.square(psi).sum(-1) - np.log(np.exp(psi @ m.T) @ base)
    weight = np.exp(log_weight - log_weight.max())
    return weight[..., None] * waves_of(psi, generator.normal(size=(psi.shape[-1], count // 2)))


def with_constant(feature: Feature) -> Float[np.ndarray, "state action more"]:
    """The feature and a one: a critic's bias."""
    return np.concatenate([feature, np.ones((*feature.shape[:2], 1))], axis=-1)


def bellman_residual(kernel: Float[np.ndarray, "state action next"], feature: Feature) -> float:
    """The share of E[V(s')|s,a] that no linear function of the feature explains.

    The root of the residual's over the total variance across (s,a), for V of independent standard
    normal values: the average form of Definition "approximate Bellman linearity".
    """
    centred = kernel - kernel.mean((0, 1))
    left = off_span(with_constant(feature), centred)
    return float(np.linalg.norm(left) / np.linalg.norm(centred))
