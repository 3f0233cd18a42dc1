"""Activations and normalisations, some with their own gradients.

A backward pass over the 12,800 rows of a contrastive batch is bound by memory: it keeps the results
of matrix products and computes the rest again.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fastr.nn.precision import Held, widen

LAYER_NORM_EPSILON = 1e-6


def unchanged(x: Array) -> Array:
    """x itself."""
    return x


def elu(x: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """x where it is positive, exp(x) - 1 elsewhere.

    `jax.nn.elu` uses expm1: more work, and more exact only below the rounding of the next sum.
    """
    negative = jnp.where(x > 0, 0.0, x)
    return jnp.where(x > 0, x, jnp.exp(negative) - 1.0)


def quick_reciprocal(x: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """1 / x of positive numbers to 21 bits: two instructions on a GPU, where a division is ten."""
    return jnp.square(jax.lax.rsqrt(x))


def mish_gate(x: Float[Array, "*any"]) -> tuple[Float[Array, "*any"], Float[Array, "*any"]]:
    """tanh(softplus(x)) and its derivative, from one exponential u = exp(x).

    tanh(softplus(x)) = u(u+2) / (u(u+2) + 2); beyond 20 it is 1 in float32.
    """
    u = jnp.exp(jnp.minimum(x, 20.0))
    product = u * (u + 2.0)
    reciprocal = jax.lax.platform_dependent(
        product + 2.0, cpu=jnp.reciprocal, default=quick_reciprocal
    )
    return product * reciprocal, 4.0 * u * (u + 1.0) * reciprocal * reciprocal


def recalled(residuals: tuple) -> tuple:
    """Residuals at the start of a backward pass: the large array first, then parameters.

    The barrier keeps the compiler from storing what forward and backward have in common.
    """
    x, *parameters = residuals
    return (jax.lax.optimization_barrier(x), *parameters)


@jax.custom_vjp
def mish(x: Float[Array, " hidden"], bias: Float[Array, " hidden"]) -> Float[Array, " hidden"]:
    """The activation z tanh(softplus(z)) at z = x + bias.

    The bias of the previous layer is added here so that its product is the only large array kept
    for the backward pass, which is bound by memory: adding and exponentiating again is cheaper than
    reading stored results.
    """
    z = widen(x) + widen(bias)
    return (z * mish_gate(z)[0]).astype(x.dtype)


def _mish_forward(x: Array, bias: Array) -> tuple[Array, tuple[Array, Array]]:
    return mish(x, bias), (x, bias)


def _mish_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, bias = recalled(residuals)
    z = widen(x) + widen(bias)
    gate, slope = mish_gate(z)
    # Stored before it is summed for the bias: else the compiler sums over a copy in float32.
    gradient = jax.lax.optimization_barrier((cotangent * (gate + z * slope)).astype(x.dtype))
    return gradient, gradient.astype(bias.dtype)


mish.defvjp(_mish_forward, _mish_backward)


def centred(
    x: Float[Array, " hidden"], bias: Float[Held, " hidden"] | None
) -> tuple[Float[Array, " hidden"], Float[Array, ""]]:
    """x + bias minus its mean, and the reciprocal of its standard deviation, in float32."""
    wide = widen(x) if bias is None else widen(x) + widen(bias)
    shifted = wide - jnp.mean(wide)
    return shifted, jax.lax.rsqrt(jnp.mean(jnp.square(shifted)) + LAYER_NORM_EPSILON)


def through_centred(
    unit: Float[Array, " hidden"], scale: Float[Array, ""], slope: Float[Array, " hidden"]
) -> Float[Array, " hidden"]:
    """The gradient of x where unit = (x - mean) scale has this slope."""
    flat = slope - jnp.mean(slope)
    return (flat - unit * jnp.mean(flat * unit)) * scale


@jax.custom_vjp
def standardize(x: Float[Array, " hidden"]) -> Float[Array, " hidden"]:
    """One vector scaled to mean 0 and variance 1; statistics in float32."""
    shifted, scale = centred(x, None)
    return (shifted * scale).astype(x.dtype)


def _standardize_forward(x: Array) -> tuple[Array, tuple[Array]]:
    return standardize(x), (x,)


def _standardize_backward(residuals: tuple[Array], cotangent: Array) -> tuple[Array]:
    # From the input alone: the statistics cost less to compute again than to keep.
    (x,) = recalled(residuals)
    shifted, scale = centred(x, None)
    return (through_centred(shifted * scale, scale, widen(cotangent)).astype(x.dtype),)


standardize.defvjp(_standardize_forward, _standardize_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def rescaled(
    activation: Callable,
    x: Float[Array, " hidden"],
    bias: Float[Held, " hidden"] | None,
    weight: Float[Held, " hidden"],
    shift: Float[Held, " hidden"],
) -> Float[Array, " hidden"]:
    """x + bias scaled to mean 0 and variance 1, then by a weight, shifted and activated.

    The bias of the previous layer is added here for the same reason as in `mish`.
    """
    shifted, scale = centred(x, bias)
    return activation(shifted * scale * weight + shift).astype(x.dtype)


def _rescaled_forward(
    activation: Callable, *arguments: Held | None
) -> tuple[Array, tuple[Held | None, ...]]:
    return rescaled(activation, *arguments), arguments


def _rescaled_backward(
    activation: Callable,
    residuals: tuple[Array, Held | None, Held, Held],
    cotangent: Array,
) -> tuple[Array | None, ...]:
    x, bias, weight, shift = recalled(residuals)
    shifted, scale = centred(x, bias)
    unit = shifted * scale
    slope = jax.vjp(activation, unit * weight + shift)[1](widen(cotangent))[0]
    # Stored in the activations' precision before they are summed over a batch, as in `mish`.
    of_shift = jax.lax.optimization_barrier(slope.astype(x.dtype))
    of_weight = jax.lax.optimization_barrier((widen(of_shift) * unit).astype(x.dtype))
    of_x = through_centred(unit, scale, widen(of_shift) * weight).astype(x.dtype)
    of_bias = None
    if bias is not None:
        of_x = jax.lax.optimization_barrier(of_x)
        of_bias = of_x.astype(bias.dtype)
    return of_x, of_bias, of_weight.astype(weight.dtype), of_shift.astype(shift.dtype)


rescaled.defvjp(_rescaled_forward, _rescaled_backward)


@jax.custom_vjp
def sines_and_cosines(angles: Float[Array, " angle"]) -> Float[Array, " fourier"]:
    """All sines, then all cosines."""
    # cos x = sin(x + pi/2): one function of one array, where joining two arrays takes copies.
    quarter_turns = jnp.asarray([0.0, math.pi / 2], angles.dtype)
    return jnp.ravel(jnp.sin(angles[None] + quarter_turns[:, None]))


def _sines_forward(angles: Array) -> tuple[Array, Array]:
    return sines_and_cosines(angles), angles


def _sines_backward(angles: Array, cotangent: Array) -> tuple[Array]:
    # From the angles: kept for both passes, the shifted ones would be written and read again.
    angles = jax.lax.optimization_barrier(angles)
    of_sines, of_cosines = jnp.split(cotangent, 2)
    return (of_sines * jnp.cos(angles) - of_cosines * jnp.sin(angles),)


sines_and_cosines.defvjp(_sines_forward, _sines_backward)


def inverse_norm(x: Float[Array, " feature"]) -> Float[Array, ""]:
    """1 / |x|, finite with a finite gradient at zero."""
    return jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(x)), 1e-16))


def l2_normalize(x: Float[Array, " feature"]) -> Float[Array, " feature"]:
    """The vector divided by its Euclidean norm; zero stays zero."""
    return x * inverse_norm(x)


def average_l1_norm(x: Float[Array, " feature"]) -> Float[Array, " feature"]:
    """AvgL1Norm of TD7: the vector divided by the mean of its absolute values."""
    return x / jnp.maximum(jnp.mean(jnp.abs(x)), 1e-8)
