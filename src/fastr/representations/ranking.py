"""Ranking perturbed noise-contrastive estimation, Eq. (nce-prelim) and Eq. (nce).

Shared by all contrastive representations: sizes, encoders, the next-state factor conditioned on
the noise level, and the reward head.
"""

import abc
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from fastr.core import DEEPEST, MOST_LEVELS, EnvSpec, require, require_even
from fastr.nn.activations import l2_normalize, standardize
from fastr.nn.networks import TIME_DIM, FourierHead, Head, LayerNorm, ResidualMLP, TimeEmbedding
from fastr.nn.optim import Metrics
from fastr.nn.precision import Precision, lowered, widen
from fastr.representations.base import (
    AbstractRepresentation,
    Keep,
    RepresentationConfig,
    emptied,
)
from fastr.representations.scores import (
    InnerProduct,
    Score,
    perturb,
    ranking_loss,
    scaled,
    vp_signal,
)
from fastr.transition import Transition

ScoreForm = Literal["l2", "raw", "layernorm"]


@dataclass(frozen=True)
class RankingConfig(RepresentationConfig):
    """Sizes and weights every contrastive representation shares (App. FaStR, Table hyperparams)."""

    keepable: ClassVar[Keep] = "state-factor"
    laptop_sizes: ClassVar[dict[str, int]] = {
        "feature_dim": 64,
        "blocks": 0,
        "noise_levels": 4,
        "levels_per_update": 1,
        "fourier_dim": 256,
        "head_dim": 128,
    }
    """Sizes at which the representation costs little more than critics and actor on a CPU."""

    feature_dim: int = 512
    """Coordinates d of the spectral feature (App. FaStR, Architecture)."""
    hidden_dim: int = 512
    """Units in every layer of the encoders (App. FaStR, Architecture)."""
    blocks: int = 2
    """Residual blocks in every encoder; "i->512->512->d" in the paper is 2 blocks."""
    noise_levels: int = 25
    """Levels M of the variance-preserving schedule (App. FaStR, Representation objective)."""
    levels_per_update: int = 0
    """Levels that an update uses, drawn anew for each, without replacement; 0 uses all, as the
    paper does (docs/deviations.md)."""
    score: ScoreForm = "l2"
    """Form of the contrastive score, where the paper is silent (docs/deviations.md): "l2"
    normalises the feature and learns a temperature per level, "raw" leaves the feature and puts
    tanh on the next-state factor, "layernorm" normalises each factor's output."""
    reward_weight: float = 1.0
    """Weight of the reward regression, lambda_r (App. FaStR, Representation objective)."""
    fourier_dim: int = 1024
    """Random Fourier features, sines and cosines together, in critic and reward head (App.
    FaStR, Architecture)."""
    head_dim: int = 512
    """Hidden units after the Fourier features, in critic and reward head (App. FaStR)."""
    precision: Precision = "float32"
    """Arithmetic of matrix products: float32, tf32 (on a CPU the same), or bfloat16 in hidden
    layers and scores with float32 parameters, sums, softmax and outputs."""

    @property
    def candidate_dim(self) -> int:
        """Dimension of the next-state factor in the score: the effective NCE dimension."""
        return self.feature_dim

    @property
    def unseen_dim(self) -> int:
        """How many of its first coordinates the loss cannot see a constant in.

        The ranking loss compares candidates: a constant that all of them share in an inner product
        shifts every logit of an anchor alike.
        """
        return self.candidate_dim

    def head(self, key: PRNGKeyArray) -> Head:
        """A fresh head that makes a scalar of a feature: critics and reward."""
        return FourierHead(self.feature_dim, self.fourier_dim, self.head_dim, key=key)

    @abc.abstractmethod
    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "Contrastive":
        """Fresh networks for this environment."""

    def accelerated(self) -> "RankingConfig":
        """With products in bfloat16."""
        return replace(self, precision="bfloat16")

    def laptop(self) -> "RankingConfig":
        """A quarter as wide, without residual blocks, one of four noise levels at a time."""
        return replace(self, hidden_dim=self.hidden_dim // 4, **self.laptop_sizes)

    def __post_init__(self):
        require(self, "feature_dim", "hidden_dim", "head_dim", low=1)
        require(self, "noise_levels", low=1, high=MOST_LEVELS)
        require(self, "levels_per_update", low=0, high=self.noise_levels)
        require(self, "blocks", low=0, high=DEEPEST)
        require(self, "reward_weight", low=0)
        require_even(self, "fourier_dim")


def aligned(
    rows: Float[Array, "row input"], weight: Float[Array, "input output"]
) -> tuple[Float[Array, "row padded"], Float[Array, "padded output"]]:
    """The factors of a product, with zeros up to the next size that accelerators read at once."""
    padding = -rows.shape[1] % 8
    return jnp.pad(rows, ((0, 0), (0, padding))), jnp.pad(weight, ((0, padding), (0, 0)))


class Encoder(eqx.Module):
    """Makes a factor of a state or of an action."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " feature"]:
        """The factor of one input vector."""


class FactorEncoder(Encoder):
    """A residual network whose output the "layernorm" score normalises."""

    encoder: ResidualMLP
    norm: LayerNorm | None

    def __init__(self, inputs: int, outputs: int, config: RankingConfig, *, key: PRNGKeyArray):
        self.encoder = ResidualMLP(inputs, config.hidden_dim, outputs, config.blocks, key=key)
        self.norm = LayerNorm(outputs) if config.score == "layernorm" else None

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " feature"]:
        """The factor of one input vector."""
        output = self.encoder(x)
        return output if self.norm is None else self.norm(output)


class Contrast(eqx.Module):
    """The next-state side of the score, m(s'; beta) or mu(s'; beta), and the reward head."""

    next_state_encoder: FactorEncoder
    time_embedding: TimeEmbedding
    log_temperature: Float[Array, " level"] | None
    reward_head: Head
    config: RankingConfig = eqx.field(static=True)

    def __init__(self, spec: EnvSpec, config: RankingConfig, *, key: PRNGKeyArray):
        encoder_key, time_key, reward_key = jax.random.split(key, 3)
        self.next_state_encoder = FactorEncoder(
            spec.state_dim + TIME_DIM, config.candidate_dim, config, key=encoder_key
        )
        self.time_embedding = TimeEmbedding(key=time_key)
        self.log_temperature = jnp.zeros(config.noise_levels) if config.score == "l2" else None
        self.reward_head = config.head(reward_key)
        self.config = config

    def anchor(self, feature: Float[Array, " feature"]) -> Float[Array, " feature"]:
        """The state-action feature in the form the score asks for."""
        return l2_normalize(feature) if self.config.score == "l2" else feature

    def encode(self, encoder: Encoder, x: Float[Array, " input"]) -> Float[Array, " feature"]:
        """The factor of one input, computed in the encoders' precision, given in the input's."""
        return encoder(lowered(x, self.config.precision)).astype(x.dtype)

    def perturbed(
        self, states: Float[Array, "batch state"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "level batch state"], Int[Array, " level"]]:
        """The states at the noise levels of one update, and these levels; the same for all states.

        Levels are drawn uniformly without replacement, so that the loss is an unbiased estimate of
        that of all levels, Eq. (nce).
        """
        levels, drawn = self.config.noise_levels, self.config.levels_per_update
        at = jnp.arange(levels)
        if drawn:
            at = jax.random.permutation(jax.random.fold_in(key, 0), levels)[:drawn]
        noise = jax.random.normal(key, (at.size, *states.shape))
        return perturb(states, noise, vp_signal(levels)[at]), at

    def hidden(
        self, states: Float[Array, "level batch state"], at: Int[Array, " level"]
    ) -> Float[Array, "level batch hidden"]:
        """The input of the next-state encoder's last layer, at these levels."""
        levels, batch, size = states.shape
        embedding = jax.vmap(self.time_embedding)(at.astype(jnp.float32))
        encoder = self.next_state_encoder.encoder.folded()
        # [s'; e(t)] W + b in two parts. The part of e(t) is the same for all rows of a level, so it
        # is appended to W as one row per level, which a one-hot input selects.
        state_weight, time_weight = jnp.split(encoder.inlet.weight, [size])
        level_rows = embedding @ time_weight + encoder.inlet.bias[None]
        places = jnp.broadcast_to(jnp.eye(levels)[:, None], (levels, batch, levels))
        inputs = jnp.concatenate([states, places], axis=-1)
        # One axis of rows: over two, the weights' gradients would need transposed copies.
        # The barrier keeps the sums of its gradient out of the optimiser's passes.
        weight = jax.lax.optimization_barrier(jnp.concatenate([state_weight, level_rows]))
        factors = aligned(inputs.reshape(levels * batch, -1), weight)
        rows, weight = (lowered(factor, self.config.precision) for factor in factors)
        hidden = jax.vmap(encoder.trunk)(rows @ weight)
        return hidden.reshape(levels, batch, -1)

    def candidates(
        self, states: Float[Array, "level batch state"], at: Int[Array, " level"]
    ) -> Float[Array, "level batch candidate"]:
        """The next-state factor m(s'; beta) of perturbed next states.

        Up to the constant that the ranking loss cannot see (`unseen_dim`). Left in, the gradient of
        that last bias would be rounding noise, which Adam scales up to full steps.
        """
        hidden = self.hidden(states, at)
        rows = hidden.reshape(-1, hidden.shape[-1])
        outlet, norm = self.next_state_encoder.encoder.outlet, self.next_state_encoder.norm
        if self.config.score == "raw":
            found = jnp.tanh(jax.vmap(outlet)(rows))
        else:
            if norm is None:
                scaled, bias = jax.vmap(outlet.product)(rows), outlet.bias
            else:
                unit = jax.vmap(lambda row: standardize(outlet(row)))(rows)
                scaled, bias = widen(unit) * norm.weight[None], norm.bias
            found = (widen(scaled) + self.seen(bias)).astype(hidden.dtype)
        return found.reshape(*states.shape[:2], -1)

    def seen(self, bias: Float[Array, " candidate"]) -> Float[Array, "1 candidate"] | float:
        """The part of a constant that the score can see, as a row to add."""
        unseen = self.config.unseen_dim
        if unseen == bias.size:
            return 0.0
        return jnp.pad(bias[unseen:], (unseen, 0))[None]

    def logits(
        self, score: Score, states: Float[Array, "level batch state"], at: Int[Array, " level"]
    ) -> Float[Array, "batch level batch"]:
        """The score of every anchor with every next state perturbed `at` levels, in float32.

        Up to a number per anchor and level, which no softmax sees.
        """
        if self.config.score == "l2" and isinstance(score, InnerProduct):
            # Then the last layer is linear and so is the score: it may as well act on the anchors,
            # of which there are fewer than candidates.
            outlet = self.next_state_encoder.encoder.outlet
            anchors, weight = (
                lowered(factor, self.config.precision) for factor in (score.anchors, outlet.weight)
            )
            scores = InnerProduct(anchors).before(weight)(self.hidden(states, at))
        else:
            scores = score(self.candidates(states, at))
        if self.log_temperature is None:
            return scores
        return scaled(scores, jnp.exp(-self.log_temperature[at]))

    def loss(
        self,
        score: Score,
        features: Float[Array, "batch feature"],
        batch: Transition,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Ranking loss of this score, plus weighted reward regression on these features."""
        nce = ranking_loss(self.logits(score, *self.perturbed(batch.next_state, key)))
        predicted = jax.vmap(self.reward_head)(lowered(features, self.config.precision))
        reward = jnp.mean(jnp.square(predicted - batch.reward))
        metrics = {"nce_loss": nce, "reward_loss": reward}
        if self.log_temperature is not None:
            metrics["temperature"] = jnp.mean(jnp.exp(self.log_temperature))
        return nce + self.config.reward_weight * reward, metrics

    def networks(self) -> dict[str, PyTree]:
        """Every parameter once, under the name of the network it belongs to."""
        return {
            "next_state_encoder": self.next_state_encoder,
            "time_embedding": self.time_embedding,
            "temperature": self.log_temperature,
            "reward_head": self.reward_head,
        }


class Scored(NamedTuple):
    """What a representation gives the ranking loss for a batch."""

    score: Score
    features: Float[Array, "batch feature"]
    """In the form that the reward head and the critics read."""
    metrics: Metrics


class Contrastive(AbstractRepresentation):
    """A representation learned by ranking next states."""

    contrast: Contrast

    def readable(self) -> "Contrastive":
        """Itself without the next-state factor and the reward head."""
        return eqx.tree_at(lambda net: net.contrast, self, emptied(self.contrast))

    def scored(self, batch: Transition) -> Scored:
        """The batch as anchors of a score that is bilinear in the feature, Eq. (nce-prelim)."""
        features = jax.vmap(self.feature)(batch.state, batch.action)
        return Scored(InnerProduct(features), features, {})

    def components(self, batch: Transition) -> dict[str, Float[Array, "batch _"]]:
        """The feature and the next-state factor at no noise."""
        factor = self.contrast.candidates(batch.next_state[None], jnp.zeros(1, int))[0]
        return super().components(batch) | {"next-state factor": factor}

    def loss(self, batch: Transition, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """Eq. (nce) for this score, plus reward regression, Eq. (reward)."""
        scored = self.scored(batch)
        loss, metrics = self.contrast.loss(scored.score, scored.features, batch, key)
        return loss, metrics | scored.metrics
