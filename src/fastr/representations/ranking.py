"""Ranking perturbed noise-contrastive estimation, Eq. (nce-prelim) and Eq. (nce).

What all contrastive representations share: the variance-preserving perturbation of next states, the
next-state factor conditioned on the noise level, the ranking loss, and the reward head.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from fastr.checks import DEEPEST, MOST_LEVELS, require, require_even
from fastr.networks import (
    TIME_DIM,
    FourierHead,
    Head,
    LayerNorm,
    ResidualMLP,
    TimeEmbedding,
    l2_normalize,
    standardize,
    widen,
)
from fastr.representations.base import AbstractRepresentation
from fastr.representations.schedule import perturb
from fastr.spec import EnvSpec
from fastr.types import Metrics, Precision, Transition

ScoreForm = Literal["l2", "raw", "layernorm"]
Score = Callable[[Float[Array, "candidate dim"]], Float[Array, "anchor candidate"]]
"""Every anchor of a batch with every candidate."""


@dataclass(frozen=True)
class RankingConfig(abc.ABC):
    """Sizes and weights every contrastive representation shares (App. FaStR, Table hyperparams)."""

    feature_dim: int = 512
    """Coordinates d of the spectral feature (App. FaStR, Architecture)."""
    hidden_dim: int = 512
    """Units in every layer of the encoders (App. FaStR, Architecture)."""
    blocks: int = 2
    """Residual blocks in every encoder; "i->512->512->d" in the paper is 2 blocks."""
    noise_levels: int = 25
    """Levels M of the variance-preserving schedule (App. FaStR, Representation objective)."""
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
    """Arithmetic of matrix products: float32, tf32 (accelerators only), or bfloat16 in the encoders
    and scores with float32 parameters, sums and softmax (tf32 elsewhere)."""

    @property
    def candidate_dim(self) -> int:
        """Numbers that stand for one next state in the score: the effective NCE dimension."""
        return self.feature_dim

    @property
    def unseen_dim(self) -> int:
        """How many of these numbers, from the first, may have any constant added.

        The ranking loss compares candidates: what all of them share in a plain inner product shifts
        every logit of an anchor alike.
        """
        return self.candidate_dim

    def head(self, key: PRNGKeyArray) -> Head:
        """A fresh head that makes a scalar of a feature: critics and reward."""
        return FourierHead(self.feature_dim, self.fourier_dim, self.head_dim, key=key)

    @abc.abstractmethod
    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "Contrastive":
        """Fresh networks for this environment."""

    def __post_init__(self):
        require(self, "feature_dim", "hidden_dim", "head_dim", low=1)
        require(self, "noise_levels", low=1, high=MOST_LEVELS)
        require(self, "blocks", low=0, high=DEEPEST)
        require(self, "reward_weight", low=0)
        require_even(self, "fourier_dim")


@jax.custom_vjp
def ranking_loss(logits: Float[Array, "batch level batch"]) -> Float[Array, ""]:
    """Mean over anchors and levels of -log softmax at the true candidate, Eq. (nce).

    Anchor i's logits at one level are its scores with every next state of the batch; its own is i.
    """
    return _ranking_forward(logits)[0]


def _ranking_forward(logits: Array) -> tuple[Array, tuple[Array, Array]]:
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    return jnp.mean(normalizer - positives(logits)), (logits, normalizer)


def _ranking_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array]:
    logits, normalizer = residuals
    softmax = jnp.exp(logits - normalizer[..., None])
    own = jnp.eye(logits.shape[-1])[:, None]
    return ((softmax - own) * (cotangent / normalizer.size),)


ranking_loss.defvjp(_ranking_forward, _ranking_backward)


def positives(logits: Float[Array, "batch level batch"]) -> Float[Array, "batch level"]:
    """The logits of the true candidates; a masked sum, which fuses where a gather would not."""
    own = jnp.eye(logits.shape[-1], dtype=bool)[:, None]
    return jnp.sum(jnp.where(own, logits, 0.0), axis=-1)


def ranking_losses(logits: Float[Array, "batch level batch"]) -> Float[Array, "batch level"]:
    """-log softmax at the true candidate, of each anchor at each level."""
    return jax.nn.logsumexp(logits, axis=-1) - positives(logits)


@jax.custom_vjp
def inner_products(
    anchors: Float[Array, "anchor feature"], candidates: Float[Array, "candidate feature"]
) -> Float[Array, "anchor candidate"]:
    """Every anchor with every candidate, summed and returned in float32."""
    wide = jnp.promote_types(anchors.dtype, jnp.float32)
    return jnp.matmul(anchors, candidates.T, preferred_element_type=wide)


def _inner_products_forward(anchors: Array, candidates: Array) -> tuple[Array, tuple]:
    return inner_products(anchors, candidates), (anchors, candidates)


def _inner_products_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple:
    # In the operands' precision, like the products forward.
    anchors, candidates = residuals
    narrow = cotangent.astype(anchors.dtype)
    return narrow @ candidates, narrow.T @ anchors


inner_products.defvjp(_inner_products_forward, _inner_products_backward)


def block_products(
    first: Float[Array, " factor"], second: Float[Array, " factor"], size: int
) -> Float[Array, " product"]:
    """x_i y_j for all i and j of the same block of this size, block by block, row by row."""
    blocks = first.reshape(-1, size, 1) * second.reshape(-1, 1, size)
    return jnp.ravel(blocks)


def aligned(
    rows: Float[Array, "row input"], weight: Float[Array, "input output"]
) -> tuple[Float[Array, "row padded"], Float[Array, "padded output"]]:
    """The factors of a product, with zeros up to the next size that accelerators read at once."""
    padding = -rows.shape[1] % 8
    return jnp.pad(rows, ((0, 0), (0, padding))), jnp.pad(weight, ((0, padding), (0, 0)))


def centre(
    candidates: Float[Array, "level candidate dim"], size: int
) -> Float[Array, "level candidate dim"]:
    """Candidates less their mean over those they compete with, in the first `size` numbers.

    It shifts every logit of an anchor alike, so the ranking loss and its gradients stay as they
    are; but not their rounding. A row of softmax - own sums to zero, and in bfloat16 it does not:
    -511/512 rounds to -1, while 1/512 stays. Times a mean that all candidates share, this is a
    force on what the loss cannot see, and it drove factors to norms of 1e9 (docs/deviations.md).
    """
    wide = widen(candidates)
    mean = jnp.mean(wide, axis=1, keepdims=True)
    unseen = jnp.arange(candidates.shape[2]) < size
    return (wide - jnp.where(unseen, mean, 0.0)).astype(candidates.dtype)


def against(anchors: Float[Array, "anchor feature"]) -> Score:
    """The inner product of these anchors with candidates, in the candidates' precision."""
    return lambda candidates: inner_products(anchors.astype(candidates.dtype), candidates)


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
        return encoder(x.astype(self.dtype(x))).astype(x.dtype)

    def dtype(self, inputs: Array) -> jnp.dtype:
        """The precision of the encoders."""
        return jnp.dtype(jnp.bfloat16 if self.config.precision == "bfloat16" else inputs.dtype)

    def candidates(
        self, states: Float[Array, "level batch state"]
    ) -> Float[Array, "level_batch feature"]:
        """The next-state factor m(s'; beta) of perturbed next states, level by level.

        Up to the constant that the ranking loss cannot see (`unseen_dim`). Left in, the gradient of
        that last bias would be rounding noise, which Adam scales up to full steps.
        """
        levels, batch, size = states.shape
        embedding = jax.vmap(self.time_embedding)(jnp.arange(levels, dtype=jnp.float32))
        encoder, norm = self.next_state_encoder.encoder.folded(), self.next_state_encoder.norm
        # [s'; e(t)] W + b by parts: the level's part is the same for the whole batch.
        state_weight, time_weight = jnp.split(encoder.inlet.weight, [size])
        offset = embedding @ time_weight + encoder.inlet.bias[None]
        # One axis of rows: over two, the weights' gradients would need transposed copies.
        rows, state_weight = aligned(states.reshape(levels * batch, size), state_weight)
        narrow = self.dtype(states)
        product = rows.astype(narrow) @ state_weight.astype(narrow)
        hidden = widen(product) + jnp.repeat(offset, batch, axis=0)
        features = jax.vmap(encoder.trunk)(hidden.astype(narrow))
        if self.config.score == "raw":
            return jnp.tanh(jax.vmap(encoder.outlet)(features))
        if norm is None:
            scaled, bias = jax.vmap(encoder.outlet.product)(features), encoder.outlet.bias
        else:
            unit = jax.vmap(lambda row: standardize(encoder.outlet(row)))(features)
            scaled, bias = widen(unit) * norm.weight[None], norm.bias
        return (widen(scaled) + self.seen(bias)).astype(narrow)

    def seen(self, bias: Float[Array, " candidate"]) -> Float[Array, "1 candidate"] | float:
        """The part of a constant that the score can see, as a row to add."""
        unseen = self.config.unseen_dim
        if unseen == bias.size:
            return 0.0
        return jnp.pad(bias[unseen:], (unseen, 0))[None]

    def logits(
        self, score: Score, states: Float[Array, "level batch state"]
    ) -> Float[Array, "batch level batch"]:
        """The score of every anchor with every perturbed next state of every level, in float32.

        Up to a number per anchor and level, which no softmax sees.
        """
        levels, batch, _ = states.shape
        candidates = self.candidates(states)
        centred = centre(candidates.reshape(levels, batch, -1), self.config.unseen_dim)
        scores = score(centred.reshape(candidates.shape)).reshape(batch, levels, batch)
        if self.log_temperature is None:
            return scores
        return scores * jnp.exp(-self.log_temperature)[None, :, None]

    def loss(
        self,
        score: Score,
        features: Float[Array, "batch feature"],
        batch: Transition,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Ranking loss of this score, plus weighted reward regression on these features."""
        noise = jax.random.normal(key, (self.config.noise_levels, *batch.next_state.shape))
        nce = ranking_loss(self.logits(score, perturb(batch.next_state, noise)))
        reward = jnp.mean(jnp.square(jax.vmap(self.reward_head)(features) - batch.reward))
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
    """What the ranking loss asks of a representation about a batch."""

    score: Score
    features: Float[Array, "batch feature"]
    """In the form that the reward head and the critics read."""
    metrics: Metrics


class Contrastive(AbstractRepresentation):
    """A representation learned by ranking next states."""

    contrast: Contrast

    def scored(self, batch: Transition) -> Scored:
        """The batch as anchors of a score that is bilinear in the feature, Eq. (nce-prelim)."""
        features = jax.vmap(self.feature)(batch.state, batch.action)
        return Scored(against(features), features, {})

    def loss(self, batch: Transition, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """Eq. (nce) for this score, plus reward regression, Eq. (reward)."""
        scored = self.scored(batch)
        loss, metrics = self.contrast.loss(scored.score, scored.features, batch, key)
        return loss, metrics | scored.metrics
