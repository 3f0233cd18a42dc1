"""The one seam between representations and the actor-critic on top of them."""

import abc

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from fastr.transition import Metrics, Transition


def emptied(net: PyTree) -> PyTree:
    """The same structure without a single parameter."""
    return jax.tree.map(lambda _: None, net)


class AbstractRepresentation(eqx.Module):
    """Learns a feature in which the dynamics are linear, Eq. (linear-mdp)."""

    @abc.abstractmethod
    def context(self, state: Float[Array, " state"]) -> Float[Array, " context"]:
        """What the feature needs of a state alone; with it, other actions cost little."""

    @abc.abstractmethod
    def combine(
        self, context: Float[Array, " context"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """The spectral feature of an action in a state of this context."""

    def feature(
        self, state: Float[Array, " state"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """The spectral feature of one state-action pair."""
        return self.combine(self.context(state), action)

    @abc.abstractmethod
    def readable(self) -> "AbstractRepresentation":
        """Itself without the parameters that no feature needs, such as those of the loss.

        Critics and actor read features of a slowly moving copy: it is kept of this part alone.
        """

    @abc.abstractmethod
    def loss(self, batch: Transition, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """The objective whose minimiser is the factorization."""

    @abc.abstractmethod
    def networks(self) -> dict[str, PyTree]:
        """Every parameter once, under the name of the network it belongs to."""
