"""Diff-SR: a joint feature that predicts the noise on next states (App. Diff-SR)."""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from fastr.core import DEEPEST, MOST_LEVELS, EnvSpec, require, require_even
from fastr.nn.networks import TIME_DIM, FourierHead, Linear, ResidualMLP, TimeEmbedding
from fastr.nn.optim import Metrics
from fastr.nn.precision import Precision, lowered, widen
from fastr.representations.base import AbstractRepresentation, RepresentationConfig, emptied
from fastr.representations.scores import vp_signal
from fastr.transition import Transition

EMBEDDING = (256, 128)
"""Widths of the networks in front of the joint encoder (App. Diff-SR)."""


@dataclass(frozen=True)
class DiffusionConfig(RepresentationConfig):
    """Diff-SR's representation: eps(s, a, s'_t, t) = phi(s, a)^T mu(s'_t, t) (App. Diff-SR)."""

    feature_dim: int = 512
    """Coordinates d of the spectral feature (App. Diff-SR)."""
    hidden_dim: int = 512
    """Units in every layer of the two encoders (App. Diff-SR)."""
    blocks: int = 3
    """Residual blocks in each encoder (App. Diff-SR)."""
    noise_levels: int = 50
    """Levels T of the variance-preserving schedule; one is drawn per row (App. Diff-SR)."""
    reward_weight: float = 0.1
    """Weight of the reward regression, lambda_r (App. Diff-SR)."""
    fourier_dim: int = 1024
    """Random Fourier features, sines and cosines together, in critic and reward head."""
    head_dim: int = 512
    """Hidden units after the Fourier features, in critic and reward head."""
    noise_clip: float = 0.0
    """Bound on the noisy state, 0 for none (the paper states 10, which no code applies in
    training; docs/methods.md)."""
    precision: Precision = "float32"
    """Arithmetic of matrix products: float32, tf32 (on a CPU the same), or bfloat16 in hidden
    layers with float32 parameters, sums and outputs."""

    def __post_init__(self):
        require(self, "feature_dim", "hidden_dim", "head_dim", low=1)
        require(self, "noise_levels", low=1, high=MOST_LEVELS)
        require(self, "blocks", low=0, high=DEEPEST)
        require(self, "reward_weight", "noise_clip", low=0)
        require_even(self, "fourier_dim")

    def accelerated(self) -> "DiffusionConfig":
        """With products in bfloat16."""
        return replace(self, precision="bfloat16")

    def laptop(self) -> "DiffusionConfig":
        """A quarter as wide, with one residual block; levels cost nothing here."""
        sizes = {"hidden_dim": self.hidden_dim // 4, "feature_dim": 64, "blocks": 1}
        return replace(self, fourier_dim=256, head_dim=128, **sizes)

    def head(self, key: PRNGKeyArray) -> FourierHead:
        """A fresh head that makes a scalar of a feature: critics and reward."""
        return FourierHead(self.feature_dim, self.fourier_dim, self.head_dim, key=key)

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "Diffusion":
        """Fresh encoders for this environment."""
        keys = jax.random.split(key, 6)
        sizes = (self.hidden_dim, self.feature_dim)
        outputs = self.feature_dim * spec.state_dim
        return Diffusion(
            state_embedder=Embedder(spec.state_dim, key=keys[0]),
            action_embedder=Embedder(spec.action_dim, key=keys[1]),
            encoder=ResidualMLP(2 * EMBEDDING[1], *sizes, self.blocks, key=keys[2]),
            noise_encoder=ResidualMLP(
                spec.state_dim + TIME_DIM, self.hidden_dim, outputs, self.blocks, key=keys[3]
            ),
            time_embedding=TimeEmbedding(key=keys[4]),
            reward_head=self.head(keys[5]),
            config=self,
        )


class Embedder(eqx.Module):
    """Linear, Mish, Linear (App. Diff-SR)."""

    first: Linear
    second: Linear

    def __init__(self, inputs: int, *, key: PRNGKeyArray):
        first_key, second_key = jax.random.split(key)
        self.first = Linear(inputs, EMBEDDING[0], key=first_key)
        self.second = Linear(*EMBEDDING, key=second_key)

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " embedding"]:
        """The embedding of one vector."""
        return self.second(self.first.mish(x))


class Diffusion(AbstractRepresentation):
    """A joint encoder phi and a matrix-valued encoder mu of the noisy next state."""

    state_embedder: Embedder
    action_embedder: Embedder
    encoder: ResidualMLP
    noise_encoder: ResidualMLP
    time_embedding: TimeEmbedding
    reward_head: FourierHead
    config: DiffusionConfig = eqx.field(static=True)

    def context(self, state: Float[Array, " state"]) -> Float[Array, " embedding"]:
        """The state's embedding."""
        return self.state_embedder(lowered(state, self.config.precision)).astype(state.dtype)

    def combine(
        self, context: Float[Array, " embedding"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """phi(s, a); not normalised."""
        embedded = self.action_embedder(lowered(action, self.config.precision))
        pair = jnp.concatenate([lowered(context, self.config.precision), embedded])
        return self.encoder(pair).astype(action.dtype)

    def readable(self) -> "Diffusion":
        """Itself without the encoder of noisy next states and the reward head."""
        parts = lambda net: (net.noise_encoder, net.time_embedding, net.reward_head)  # noqa: E731
        return eqx.tree_at(parts, self, emptied(parts(self)))

    def predicted_noise(
        self,
        feature: Float[Array, " feature"],
        noisy: Float[Array, " state"],
        time: Float[Array, " time"],
    ) -> Float[Array, " state"]:
        """phi(s, a)^T mu(s'_t, t), summed in float32.

        The matrix is kept transposed: sums run along rows, as they lie in memory.
        """
        matrix = self.noise_encoder(jnp.concatenate([noisy, time]))
        transposed = widen(matrix.reshape(noisy.size, feature.size))
        return jnp.sum(transposed * widen(feature)[None], axis=1)

    def loss(self, batch: Transition, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """Squared error of the noise, summed over the state, plus reward (App. Diff-SR)."""
        level_key, noise_key = jax.random.split(key)
        rows = batch.reward.shape
        levels = jax.random.randint(level_key, rows, 0, self.config.noise_levels)
        noise = jax.random.normal(noise_key, batch.next_state.shape)
        features = jax.vmap(self.feature)(batch.state, batch.action)
        predicted = self.denoised(features, self.noisy(batch.next_state, noise, levels), levels)
        denoising = jnp.mean(jnp.sum(jnp.square(predicted - noise), axis=1))
        rewards = jax.vmap(self.reward_head)(lowered(features, self.config.precision))
        reward = jnp.mean(jnp.square(rewards - batch.reward))
        metrics = {"denoising_loss": denoising, "reward_loss": reward}
        return denoising + self.config.reward_weight * reward, metrics

    def noisy(
        self,
        states: Float[Array, "batch state"],
        noise: Float[Array, "batch state"],
        levels: Int[Array, " batch"],
    ) -> Float[Array, "batch state"]:
        """Each state at its own level: sqrt(abar) s' + sqrt(1 - abar) noise."""
        signal = vp_signal(self.config.noise_levels)[levels][:, None]
        perturbed = jnp.sqrt(signal) * states + jnp.sqrt(1.0 - signal) * noise
        bound = self.config.noise_clip
        return jnp.clip(perturbed, -bound, bound) if bound else perturbed

    def denoised(
        self,
        features: Float[Array, "batch feature"],
        noisy: Float[Array, "batch state"],
        levels: Int[Array, " batch"],
    ) -> Float[Array, "batch state"]:
        """The noise predicted in every row; time embeddings are computed once per level."""
        all_levels = jnp.arange(self.config.noise_levels, dtype=noisy.dtype)
        times = jax.vmap(self.time_embedding)(all_levels)[levels]
        inputs = [lowered(x, self.config.precision) for x in (features, noisy, times)]
        return jax.vmap(self.predicted_noise)(*inputs)

    def networks(self) -> dict[str, PyTree]:
        """Every parameter once, under the name of the network it belongs to."""
        return {
            "state_embedder": self.state_embedder,
            "action_embedder": self.action_embedder,
            "joint_encoder": self.encoder,
            "noise_encoder": self.noise_encoder,
            "time_embedding": self.time_embedding,
            "reward_head": self.reward_head,
        }
