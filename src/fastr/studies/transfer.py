"""What becomes of a representation when the actuators change (Sec. Modular Reuse)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from fastr.agents.spectral import Spectral
from fastr.representations.base import AbstractRepresentation
from fastr.representations.factored import Factored
from fastr.representations.ranking import Contrastive
from fastr.studies.coverage import Rows
from fastr.training.learner import Cohort, Learner
from fastr.transition import Transition


class Moved(NamedTuple):
    """What adaptation did to one seed's representation, seen on the same transitions."""

    similarity: dict[str, float]
    """Linear CKA of each component's features before and after: 1 where nothing moved."""
    source_loss: float
    """Ranking loss of the source's representation on the shifted body, unadapted."""
    adapted_loss: float
    """Ranking loss after adaptation."""


def linear_cka(
    first: Float64[np.ndarray, "rows one"], second: Float64[np.ndarray, "rows two"]
) -> float:
    """Centred kernel alignment of two features of the same rows, for linear kernels.

    |Y^T X|_F^2 / (|X^T X|_F |Y^T Y|_F) of centred X and Y: from 0 to 1, whatever rotation or scale
    either of them is given in.
    """
    x, y = (feature - feature.mean(axis=0) for feature in (first, second))
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(y.T @ x) ** 2 / norms) if norms > 0 else 0.0


def components(net: AbstractRepresentation, batch: Transition) -> dict[str, Float[Array, "rows _"]]:
    """The features of every part of a representation."""
    found = {"feature": jax.vmap(net.feature)(batch.state, batch.action)}
    if isinstance(net, Factored):
        found["state factor"] = jax.vmap(net.context)(batch.state)
        found["action factor"] = jax.vmap(net.action_factor)(batch.action)
    if isinstance(net, Contrastive):
        clean = jnp.broadcast_to(batch.next_state, (1, *batch.next_state.shape))
        found["next-state factor"] = net.contrast.candidates(clean)[0]
    return found


def of_seed(cohort: Cohort, place: int) -> Learner:
    """One learner of all."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[place]), cohort.learners)


def moved(source: Learner, adapted: Learner, rows: Rows) -> Moved:
    """Compare one seed before and after; each sees the transitions in its own units."""
    before, after = (_seen(learner, rows) for learner in (source, adapted))
    similarity = {name: linear_cka(before[0][name], after[0][name]) for name in before[0]}
    return Moved(similarity, before[1], after[1])


@jax.jit
def _measured(learner: Learner, values: Float[Array, "rows row"]) -> tuple[dict, Array]:
    batch = learner.unpack(values)
    assert isinstance(learner.agent, Spectral)
    net = learner.agent.representation.net
    _, metrics = net.loss(batch, jax.random.key(0))
    return components(net, batch), metrics["nce_loss"]


def _seen(learner: Learner, rows: Rows) -> tuple[dict[str, np.ndarray], float]:
    found, loss = _measured(learner, jnp.asarray(rows.values, jnp.float32))
    return {name: np.asarray(part, np.float64) for name, part in found.items()}, float(loss)
