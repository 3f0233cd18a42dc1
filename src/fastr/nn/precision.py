"""Precision of the networks' arithmetic; parameters are always in float32."""

from contextlib import AbstractContextManager
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Arithmetic = Literal["float32", "tf32"]
Precision = Literal["float32", "tf32", "bfloat16"]
Held = Array | np.ndarray
"""Parameters: in a policy read from a file they are NumPy's."""


def matmul_precision(precision: Precision) -> AbstractContextManager:
    """The arithmetic of all float32 matrix products traced inside."""
    exact = precision == "float32"
    return jax.default_matmul_precision("float32" if exact else "tensorfloat32")


def lowered(x: Float[Array, "*any"], precision: Precision) -> Float[Array, "*any"]:
    """x in the precision of a network's inputs."""
    return x.astype(jnp.bfloat16) if precision == "bfloat16" else x


def wide_dtype(x: Held) -> jnp.dtype:
    """The precision of sums of such numbers: float32, or their own where that is higher."""
    return jnp.promote_types(x.dtype, jnp.float32)


def widen(x: Float[Held, "*any"]) -> Float[Array, "*any"]:
    """x in the precision of its sums."""
    return jnp.asarray(x, wide_dtype(x))
