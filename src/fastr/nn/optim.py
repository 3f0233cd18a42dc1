"""A network with its optimiser, stored so that an update is fast.

Adam and Polyak averaging touch every parameter once and do almost no arithmetic, so that over the
dozens of small vectors of a representation (biases, scales) they cost a kernel launch each. Those
are packed into one vector. Matrices stay separate: inside a vector, each would be copied before a
product could read it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

Net = TypeVar("Net")
Tree = TypeVar("Tree")
Metrics = dict[str, Float[Array, ""]]
"""Scalars to log, by name."""

SMALL = 8192
"""Leaves of fewer parameters than this are packed together."""


class Parameters(eqx.Module):
    """All parameters of a network: matrices apart, everything small in one vector."""

    large: tuple[Array, ...]
    small: Float[Array, " small"]


@dataclass(frozen=True)
class Layout(Generic[Net]):
    """Where a network's leaves lie among its packed parameters."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, net: Net) -> "Layout[Net]":
        """The layout of this network's leaves, in tree order."""
        leaves, structure = jax.tree.flatten(net)
        return cls(structure, tuple(leaf.shape for leaf in leaves))

    def pack(self, net: PyTree) -> Parameters:
        """The leaves of a network of this structure."""
        leaves = jax.tree.leaves(net)
        large = tuple(leaf for leaf in leaves if leaf.size >= SMALL)
        small = [jnp.ravel(leaf) for leaf in leaves if leaf.size < SMALL]
        return Parameters(large, jnp.concatenate(small) if small else jnp.zeros(0))

    def unpack(self, parameters: Parameters) -> Net:
        """The network whose leaves these are."""
        leaves, start = [], 0
        large = iter(parameters.large)
        for shape in self.shapes:
            size = math.prod(shape)
            if size >= SMALL:
                leaves.append(next(large))
            else:
                leaves.append(parameters.small[start : start + size].reshape(shape))
                start += size
        return jax.tree.unflatten(self.structure, leaves)


@dataclass(frozen=True)
class Adam:
    """Adam with its usual constants, (0.9, 0.999) and 1e-8; no decay, no clipping."""

    learning_rate: float

    def init(self, parameters: Any) -> optax.OptState:
        """The moments before the first step."""
        return optax.adam(self.learning_rate).init(parameters)

    def step(self, parameters: Any, gradient: Any, moments: optax.OptState) -> tuple[Any, Any]:
        """The parameters and moments after one step."""
        update, moments = optax.adam(self.learning_rate).update(gradient, moments)
        return optax.apply_updates(parameters, update), moments


class Trainable(eqx.Module, Generic[Net]):
    """A network, its optimiser state, and how to improve the one with the other."""

    parameters: Parameters
    moments: optax.OptState
    layout: Layout[Net] = eqx.field(static=True)
    adam: Adam = eqx.field(static=True)

    @classmethod
    def of(cls, net: Net, adam: Adam) -> "Trainable[Net]":
        """The network at its initial parameters, with fresh optimiser state."""
        layout = Layout.of(net)
        parameters = layout.pack(net)
        return cls(parameters, adam.init(parameters), layout, adam)

    @property
    def net(self) -> Net:
        """The network itself."""
        return self.layout.unpack(self.parameters)

    def step(
        self, loss: Callable[[Net], tuple[Float[Array, ""], Metrics]]
    ) -> tuple["Trainable[Net]", Metrics]:
        """One Adam step on the loss; its metrics pass through."""
        # The gradient is taken by leaf and then packed: differentiating through the slices
        # instead would pad every leaf to the whole vector and add them all up.
        gradient, metrics = jax.grad(loss, has_aux=True)(self.net)
        packed = self.layout.pack(gradient)
        # Wait for the whole gradient: an earlier update in place would force XLA to copy matrices
        # that are still to be read.
        old, small = jax.lax.optimization_barrier((self.parameters, packed.small))
        packed = replace(packed, small=small)
        with jax.named_scope("optimiser"):
            parameters, moments = self.adam.step(old, packed, self.moments)
        return Trainable(parameters, moments, self.layout, self.adam), metrics

    def step_every(
        self,
        period: int,
        count: Int[Array, ""],
        loss: Callable[[Net], tuple[Float[Array, ""], Metrics]],
    ) -> tuple["Trainable[Net]", Metrics]:
        """`step` at every `period`-th count, and zeros for its metrics in between."""
        if period == 1:
            return self.step(loss)
        _, metrics = jax.eval_shape(lambda: self.step(loss))
        zeros = {name: jnp.zeros(metric.shape, metric.dtype) for name, metric in metrics.items()}
        return jax.lax.cond(count % period == 0, lambda: self.step(loss), lambda: (self, zeros))


def polyak(target: Tree, online: Tree, rate: float) -> Tree:
    """(1 - rate) target + rate online."""
    return jax.tree.map(lambda old, new: old + rate * (new - old), target, online)
