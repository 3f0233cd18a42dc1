"""The networks of all methods.

Modules take one example; batches come from `jax.vmap`. Matrix products are in the precision of the
input, whatever that of the parameters. Only the last layers of actors, critics and reward heads,
whose outputs are compared and bootstrapped, are always in float32. Sums over a batch are in
float32, forward and backward: over the 12,800 rows of a contrastive batch a sum in bfloat16 is
mostly rounding, and under the ranking loss the gradients of biases nearly cancel. Every leaf is an
array. Kernels and biases start uniform in +-1/sqrt(fan_in).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.nn.activations import elu, mish, rescaled, sines_and_cosines, standardize, unchanged
from fastr.nn.precision import wide_dtype, widen

TIME_DIM = 128


class Linear(eqx.Module):
    """x W + b, with W stored (inputs, outputs).

    Under vmap this is one product of row-major matrices; `eqx.nn.Linear`'s W x comes out
    transposed and has to be copied into place.
    """

    weight: Float[Array, "input output"]
    bias: Float[Array, " output"]

    def __init__(self, inputs: int, outputs: int, *, key: PRNGKeyArray):
        bound = inputs**-0.5
        # In one draw, the bias as the last row: every draw takes the compiler tenths of a second.
        drawn = jax.random.uniform(key, (inputs + 1, outputs), minval=-bound, maxval=bound)
        self.weight, self.bias = drawn[:-1], drawn[-1]

    def product(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        """x W, in the precision of x."""
        return x @ self.weight.astype(x.dtype)

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        """The image of one vector."""
        # The sum is in float32 so that the bias's gradient is, too.
        return (widen(self.product(x)) + self.bias).astype(x.dtype)

    def wide(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        """The image of one vector, not rounded to the precision of its product."""
        weight = self.weight.astype(x.dtype)
        return jnp.matmul(x, weight, preferred_element_type=wide_dtype(x)) + self.bias

    def mish(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        """The image of one vector, activated."""
        return mish(self.product(x), self.bias)


class LayerNorm(eqx.Module):
    """Layer normalisation with scale and bias."""

    weight: Float[Array, " hidden"]
    bias: Float[Array, " hidden"]

    def __init__(self, size: int):
        self.weight = jnp.ones(size)
        self.bias = jnp.zeros(size)

    def __call__(self, x: Float[Array, " hidden"]) -> Float[Array, " hidden"]:
        """x scaled to mean 0 and variance 1, then scaled and shifted."""
        return rescaled(unchanged, x, None, self.weight, self.bias)

    def after(
        self, layer: Linear, x: Float[Array, " input"], activation: Callable
    ) -> Float[Array, " hidden"]:
        """The layer's image of x, normalised and activated."""
        return rescaled(activation, layer.product(x), layer.bias, self.weight, self.bias)


class MLP(eqx.Module):
    """Hidden layers of Linear, LayerNorm (unless left out), activation; then a Linear."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm | None, ...]
    activation: Callable = eqx.field(static=True)

    def __init__(
        self,
        sizes: Sequence[int],
        activation: Callable,
        *,
        layer_norm: bool = True,
        key: PRNGKeyArray,
    ):
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(
            Linear(fan_in, fan_out, key=layer_key)
            for (fan_in, fan_out), layer_key in zip(pairwise(sizes), keys, strict=True)
        )
        self.norms = tuple(LayerNorm(size) if layer_norm else None for size in sizes[1:-1])
        self.activation = activation

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        """The last layer's output, in float32, without activation."""
        for layer, norm in zip(self.layers, self.norms, strict=False):
            act = self.activation
            x = act(layer(x)) if norm is None else norm.after(layer, x, act)
        return self.layers[-1](widen(x))


class ResidualBlock(eqx.Module):
    """x + W2 mish(W1 LN(x)): normalisation inside the branch, none on the skip."""

    norm: LayerNorm | None
    """None where `first` has taken in its scale and bias."""
    first: Linear
    second: Linear

    def __init__(self, size: int, *, key: PRNGKeyArray):
        first_key, second_key = jax.random.split(key)
        self.norm = LayerNorm(size)
        self.first = Linear(size, size, key=first_key)
        self.second = Linear(size, size, key=second_key)

    def __call__(self, x: Float[Array, " hidden"]) -> Float[Array, " hidden"]:
        """The input plus the branch."""
        normalized = standardize(x) if self.norm is None else self.norm(x)
        return x + self.second(self.first.mish(normalized))

    def folded(self) -> "ResidualBlock":
        """The same function without scale and bias of the normalisation.

        (u w + b) W + c = u (diag(w) W) + (b W + c): a few operations on parameters instead of a
        pass over every row, and in the gradient instead of two sums over all rows. It pays where
        rows are many times the parameters' width.
        """
        if self.norm is None:
            return self
        weight = self.norm.weight[:, None] * self.first.weight
        # The barriers keep these sums, and those of the gradient, out of passes that they slow.
        first = jax.lax.optimization_barrier(self.first.weight)
        bias = self.norm.bias @ first + self.first.bias
        weight, bias = jax.lax.optimization_barrier((weight, bias))
        return eqx.tree_at(
            lambda block: (block.norm, block.first.weight, block.first.bias),
            self,
            (None, weight, bias),
            is_leaf=lambda leaf: leaf is None,
        )


class ResidualMLP(eqx.Module):
    """Linear, residual blocks, mish, Linear: every encoder of the paper (App. Implementation)."""

    inlet: Linear
    blocks: tuple[ResidualBlock, ...]
    outlet: Linear

    def __init__(self, inputs: int, hidden: int, outputs: int, blocks: int, *, key: PRNGKeyArray):
        inlet_key, outlet_key, *block_keys = jax.random.split(key, blocks + 2)
        self.inlet = Linear(inputs, hidden, key=inlet_key)
        self.blocks = tuple(ResidualBlock(hidden, key=block_key) for block_key in block_keys)
        self.outlet = Linear(hidden, outputs, key=outlet_key)

    def folded(self) -> "ResidualMLP":
        """The same function in the form that is fastest over many rows."""
        blocks = tuple(block.folded() for block in self.blocks)
        return eqx.tree_at(lambda net: net.blocks, self, blocks)

    def trunk(self, hidden: Float[Array, " hidden"]) -> Float[Array, " hidden"]:
        """All between inlet and outlet."""
        for block in self.blocks:
            hidden = block(hidden)
        return mish(hidden, jnp.zeros_like(hidden))

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        """The encoding of one input vector."""
        return self.outlet(self.trunk(self.inlet(x)))


def sinusoid(level: Float[Array, ""]) -> Float[Array, " time"]:
    """[cos(t f), sin(t f)] with 64 frequencies f_k = 10000^(-k/63)."""
    half = TIME_DIM // 2
    angles = level * jnp.power(10_000.0, -jnp.arange(half) / (half - 1))
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)])


class TimeEmbedding(eqx.Module):
    """A noise level as a vector: sinusoids through a two-layer Mish network."""

    first: Linear
    second: Linear

    def __init__(self, *, key: PRNGKeyArray):
        first_key, second_key = jax.random.split(key)
        self.first = Linear(TIME_DIM, 2 * TIME_DIM, key=first_key)
        self.second = Linear(2 * TIME_DIM, TIME_DIM, key=second_key)

    def __call__(self, level: Float[Array, ""]) -> Float[Array, " time"]:
        """The embedding of one level index (0, 1, 2, ..., not rescaled)."""
        return self.second(self.first.mish(sinusoid(level)))


class FourierHead(eqx.Module):
    """A scalar from a spectral feature: LN, learnable Fourier features, one hidden layer.

    [sin(Wx + b), cos(Wx + b)] kernelises the feature (Sec. "Learning a trilinear transition-ratio
    score"); W starts random and is trained, as in all public code of this line of work.
    """

    norm: LayerNorm
    projection: Linear
    hidden: Linear
    hidden_norm: LayerNorm
    outlet: Linear

    def __init__(self, inputs: int, fourier: int, hidden: int, *, key: PRNGKeyArray):
        projection_key, hidden_key, outlet_key = jax.random.split(key, 3)
        self.norm = LayerNorm(inputs)
        self.projection = Linear(inputs, fourier // 2, key=projection_key)
        self.hidden = Linear(fourier, hidden, key=hidden_key)
        self.hidden_norm = LayerNorm(hidden)
        self.outlet = Linear(hidden, 1, key=outlet_key)

    def fourier(self, feature: Float[Array, " feature"]) -> Float[Array, " fourier"]:
        """Sines, then cosines, of the projected, normalised feature.

        Angles are in float32: they may be large, and rounded to 8 bits they would jump.
        """
        angles = self.projection.wide(self.norm(feature))
        return sines_and_cosines(angles).astype(feature.dtype)

    def __call__(self, feature: Float[Array, " feature"]) -> Float[Array, ""]:
        """The value of one feature, in float32."""
        hidden = self.hidden_norm.after(self.hidden, self.fourier(feature), elu)
        return self.outlet(widen(hidden))[0]


class BilinearHead(eqx.Module):
    """x^T W y plus a Fourier head on [x; y] (App. Ablation, condition c)."""

    weight: Float[Array, "factor factor"]
    residual: FourierHead

    def __init__(self, factor: int, fourier: int, hidden: int, *, key: PRNGKeyArray):
        weight_key, residual_key = jax.random.split(key)
        # Of the scale of a linear layer over all factor^2 products.
        self.weight = jax.random.uniform(
            weight_key, (factor, factor), minval=-1.0 / factor, maxval=1.0 / factor
        )
        self.residual = FourierHead(2 * factor, fourier, hidden, key=residual_key)

    def __call__(self, feature: Float[Array, " feature"]) -> Float[Array, ""]:
        """The value of two factors, given end to end."""
        first, second = jnp.split(widen(feature), 2)
        return first @ self.weight @ second + self.residual(feature)


Head = FourierHead | BilinearHead
