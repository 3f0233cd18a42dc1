"""Scores of every anchor with every candidate, and the ranking loss of them, Eq. (nce).

A score takes part in a softmax over candidates alone, so it is free up to a number per anchor and
level. Gradients are written out: for fewer passes over all the scores of a large batch, and so that
what the loss cannot see gets none.
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fastr.nn.precision import wide_dtype, widen


def vp_signal(levels: int) -> Float[Array, " level"]:
    """Share of the signal's variance at t = 1..T: exp(-0.1 t/T - 4.95 (t/T)^2); no clean level."""
    time = jnp.arange(1, levels + 1) / levels
    return jnp.exp(-0.1 * time - 4.95 * jnp.square(time))


def perturb(
    states: Float[Array, "batch state"],
    noise: Float[Array, "level batch state"],
    signal: Float[Array, " level"],
) -> Float[Array, "level batch state"]:
    """Each state at each level: sqrt(abar) s' + sqrt(1 - abar) noise."""
    signal = signal[:, None, None]
    return jnp.sqrt(signal) * states[None] + jnp.sqrt(1.0 - signal) * noise


Score = Callable[[Float[Array, "level candidate dim"]], Float[Array, "anchor level candidate"]]
"""Every anchor of a batch with every candidate, up to a number per anchor and level."""


@jax.custom_vjp
def ranking_loss(logits: Float[Array, "batch level batch"]) -> Float[Array, ""]:
    """Mean over anchors and levels of -log softmax at the true candidate, Eq. (nce).

    Anchor i's logits at one level are its scores with every next state of the batch; its own is i.
    """
    return _ranking_forward(logits)[0]


def _ranking_forward(logits: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    # Subtract the true candidate's logit, not the maximum: finding that costs another pass. Exact
    # while no lead exceeds `furthest_lead`; beyond it the largest lead, off by at most ln(batch).
    own = positives(logits)
    leads = logits - own[..., None]
    total = jnp.sum(jnp.exp(jnp.minimum(leads, furthest_lead(logits.shape[-1]))), axis=-1)
    losses = jnp.maximum(jnp.log(total), jnp.max(leads, axis=-1))
    return jnp.mean(losses), (logits, own, losses)


def furthest_lead(candidates: int) -> float:
    """Nats by which every candidate may lead while the sum of their exponentials is a float32."""
    return 87.0 - math.log(candidates)


def _ranking_backward(residuals: tuple[Array, Array, Array], cotangent: Array) -> tuple[Array]:
    logits, own, losses = residuals
    softmax = jnp.exp(logits - (own + losses)[..., None])
    identity = jnp.eye(logits.shape[-1])[:, None]
    return ((softmax - identity) * (cotangent / losses.size),)


ranking_loss.defvjp(_ranking_forward, _ranking_backward)


def positives(logits: Float[Array, "batch level batch"]) -> Float[Array, "batch level"]:
    """The logits of the true candidates."""
    own = jnp.arange(logits.shape[0])
    return logits[own, :, own]


def ranking_losses(logits: Float[Array, "batch level batch"]) -> Float[Array, "batch level"]:
    """-log softmax at the true candidate, of each anchor at each level."""
    return jax.nn.logsumexp(logits, axis=-1) - positives(logits)


@jax.custom_vjp
def contrasted(
    anchors: Float[Array, "anchor dim"], candidates: Float[Array, "level candidate dim"]
) -> Float[Array, "anchor level candidate"]:
    """Every anchor's inner product with every candidate, for a loss that only compares those.

    Products are in the candidates' precision, summed and returned in float32. What all candidates
    of a level share shifts the logits of an anchor alike, so it may have no gradient. Rounding
    gives it one: a row of softmax - own sums to zero, and in bfloat16 it does not (-511/512 rounds
    to -1, while 1/512 stays). Times a mean that all candidates share, this was a force on what the
    loss cannot see, and it drove factors to norms of 1e9 (docs/deviations.md). So the backward pass
    subtracts each row's rounding error from both gradients, as if candidates were centred.
    """
    levels, size, dim = candidates.shape
    narrow = anchors.astype(candidates.dtype)
    flat = candidates.reshape(levels * size, dim)
    products = jnp.matmul(narrow, flat.T, preferred_element_type=wide_dtype(flat))
    return products.reshape(-1, levels, size)


def _contrasted_forward(anchors: Array, candidates: Array) -> tuple[Array, tuple[Array, Array]]:
    return contrasted(anchors, candidates), (anchors, candidates)


def _contrasted_backward(
    residuals: tuple[Array, Array], cotangent: Float[Array, "anchor level candidate"]
) -> tuple[Array, Array]:
    # The barrier keeps the mean out of the pass that makes the candidates, which it would slow.
    anchors, candidates = jax.lax.optimization_barrier(residuals)
    levels, size, dim = candidates.shape
    # Round explicitly: XLA may remove a cast to bfloat16 and back.
    kind = jnp.finfo(candidates.dtype)
    rounded = jax.lax.reduce_precision(cotangent, kind.nexp, kind.nmant)
    excess = jnp.sum(rounded, axis=-1)
    narrow = rounded.astype(candidates.dtype).reshape(-1, levels * size)
    flat = candidates.reshape(levels * size, dim)
    to_anchors = jnp.matmul(narrow, flat, preferred_element_type=wide_dtype(flat))
    shared = jnp.mean(widen(candidates), axis=1)
    to_candidates = (narrow.T @ anchors.astype(flat.dtype)).reshape(candidates.shape)
    pulled = jnp.matmul(excess.T / size, anchors, precision="highest")
    return (
        (to_anchors - jnp.matmul(excess, shared, precision="highest")).astype(anchors.dtype),
        (widen(to_candidates) - pulled[:, None]).astype(candidates.dtype),
    )


contrasted.defvjp(_contrasted_forward, _contrasted_backward)


@jax.custom_vjp
def scaled(
    scores: Float[Array, "anchor level candidate"], factors: Float[Array, " level"]
) -> Float[Array, "anchor level candidate"]:
    """The scores of each level times its factor."""
    return scores * factors[None, :, None]


def _scaled_forward(scores: Array, factors: Array) -> tuple[Array, tuple[Array, Array]]:
    return scaled(scores, factors), (scores, factors)


def _scaled_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    scores, factors = residuals
    # Over candidates first, like all sums of this array: then one pass makes them all.
    by_anchor = jax.lax.optimization_barrier(jnp.sum(cotangent * scores, axis=-1))
    return scaled(cotangent, factors), jnp.sum(by_anchor, axis=0)


scaled.defvjp(_scaled_forward, _scaled_backward)


class InnerProduct(eqx.Module):
    """A score that is linear in the candidates: their inner product with an anchor."""

    anchors: Float[Array, "anchor dim"]

    def __call__(
        self, candidates: Float[Array, "level candidate dim"]
    ) -> Float[Array, "anchor level candidate"]:
        """Every anchor with every candidate, up to a number per anchor and level."""
        return contrasted(self.anchors, candidates)

    def before(self, weight: Float[Array, "hidden dim"]) -> "InnerProduct":
        """The same score of vectors x that this matrix makes candidates of: a (x W) = (a W^T) x."""
        return InnerProduct(self.anchors @ weight.T)
