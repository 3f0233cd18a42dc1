"""The one seam between representations and the actor-critic on top of them."""

import abc
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from fastr.core import EnvSpec
from fastr.nn.networks import Head
from fastr.nn.optim import Metrics
from fastr.nn.precision import Precision
from fastr.transition import Transition

Keep = Literal["nothing", "state-factor", "encoder"]
"""Parts of a representation that a run can keep as they are."""


class RepresentationConfig(abc.ABC):
    """Settings of a representation: the fields of a frozen dataclass are options of a run."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    keepable: ClassVar[Keep] = "nothing"
    """The largest part that depends on the state (Sec. Modular Reuse)."""
    precision: Precision
    """Arithmetic of matrix products."""

    @abc.abstractmethod
    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "AbstractRepresentation":
        """Fresh networks for this environment."""

    @abc.abstractmethod
    def head(self, key: PRNGKeyArray) -> Head:
        """A fresh head that makes a scalar of a feature: critics and reward."""

    @abc.abstractmethod
    def accelerated(self) -> "RepresentationConfig":
        """With the arithmetic that is fastest on an accelerator."""

    @abc.abstractmethod
    def laptop(self) -> "RepresentationConfig":
        """The same representation at a size that learns in minutes on a CPU."""


def emptied(net: PyTree) -> PyTree:
    """The same structure without a single parameter."""
    return jax.tree.map(lambda _: None, net)


class AbstractRepresentation(eqx.Module):
    """Learns a feature in which the dynamics are linear, Eq. (linear-mdp)."""

    product_features: ClassVar[bool] = False
    """Whether each coordinate of the feature is a product of a state's and an action's factor."""

    @abc.abstractmethod
    def context(self, state: Float[Array, " state"]) -> Float[Array, " context"]:
        """The part of the feature that depends on the state alone, shared by all actions."""

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
        """The representation without the parameters that only the loss needs.

        Critics and actor read features of a target copy, which holds this part alone.
        """

    @abc.abstractmethod
    def loss(self, batch: Transition, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """The objective whose minimiser is the factorization."""

    def components(self, batch: Transition) -> dict[str, Float[Array, "batch _"]]:
        """The features of every part, by name, to compare representations by."""
        return {"feature": jax.vmap(self.feature)(batch.state, batch.action)}

    @abc.abstractmethod
    def networks(self) -> dict[str, PyTree]:
        """Every parameter once, under the name of the network it belongs to."""
