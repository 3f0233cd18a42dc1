"""A network with its optimiser, both as flat vectors.

Adam and Polyak averaging touch every parameter once and do almost no arithmetic: over the ~60
leaves of a representation they cost a kernel launch each, over one vector they cost one pass.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from fastr.types import Metrics

Net = TypeVar("Net")


@dataclass(frozen=True)
class Layout(Generic[Net]):
    """How a network's leaves lie in one flat vector."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, net: Net) -> "Layout[Net]":
        """The layout of this network's leaves, in tree order."""
        leaves, structure = jax.tree.flatten(net)
        return cls(structure, tuple(leaf.shape for leaf in leaves))

    def ravel(self, net: PyTree) -> Float[Array, " parameter"]:
        """All leaves as one vector."""
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(net)])

    def unravel(self, vector: Float[Array, " parameter"]) -> Net:
        """The network whose leaves are slices of this vector."""
        leaves, start = [], 0
        for shape in self.shapes:
            stop = start + math.prod(shape)
            leaves.append(vector[start:stop].reshape(shape))
            start = stop
        return jax.tree.unflatten(self.structure, leaves)


@dataclass(frozen=True)
class Adam:
    """Adam with its usual constants, (0.9, 0.999) and 1e-8; no decay, no clipping."""

    learning_rate: float

    @property
    def transformation(self) -> optax.GradientTransformation:
        """The optimiser as Optax has it."""
        return optax.adam(self.learning_rate)


class Trainable(eqx.Module, Generic[Net]):
    """A network, its optimiser state, and how to improve the one with the other."""

    parameters: Float[Array, " parameter"]
    moments: optax.OptState
    layout: Layout[Net] = eqx.field(static=True)
    adam: Adam = eqx.field(static=True)

    @classmethod
    def of(cls, net: Net, adam: Adam) -> "Trainable[Net]":
        """The network at its initial parameters, with fresh optimiser state."""
        layout = Layout.of(net)
        parameters = layout.ravel(net)
        return cls(parameters, adam.transformation.init(parameters), layout, adam)

    @property
    def net(self) -> Net:
        """The network itself."""
        return self.layout.unravel(self.parameters)

    def step(
        self, loss: Callable[[Net], tuple[Float[Array, ""], Metrics]]
    ) -> tuple["Trainable[Net]", Metrics]:
        """One Adam step on the loss; its metrics pass through."""
        # The gradient is taken by leaf and then laid flat: differentiating through the slices
        # instead would pad every leaf to the whole vector and add them all up.
        gradient, metrics = jax.grad(loss, has_aux=True)(self.net)
        update, moments = self.adam.transformation.update(self.layout.ravel(gradient), self.moments)
        parameters = jnp.asarray(optax.apply_updates(self.parameters, update))
        return Trainable(parameters, moments, self.layout, self.adam), metrics


def polyak(
    target: Float[Array, " parameter"], online: Float[Array, " parameter"], rate: float
) -> Float[Array, " parameter"]:
    """(1 - rate) target + rate online."""
    return target + rate * (online - target)
