"""What adaptation to other actuators does to a representation (Sec. Modular Reuse)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from fastr.agents.spectral import Spectral
from fastr.representations.base import AbstractRepresentation
from fastr.representations.interactions import Factored
from fastr.representations.ranking import Contrastive
from fastr.runs.directory import RunDirectory
from fastr.studies.coverage import random_rows
from fastr.training.config import from_json
from fastr.training.learner import Learner
from fastr.training.state import saved_cohort
from fastr.transition import Transition

HELD_OUT = 512
"""Random transitions of the shifted body on which representations are compared."""


def linear_cka(
    first: Float64[np.ndarray, "rows one"], second: Float64[np.ndarray, "rows two"]
) -> float:
    """Centred kernel alignment of two features of the same rows, for linear kernels.

    |Y^T X|_F^2 / (|X^T X|_F |Y^T Y|_F) of centred X and Y: from 0 to 1, invariant to rotation and
    scale of either.
    """
    x, y = (feature - feature.mean(axis=0) for feature in (first, second))
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(y.T @ x) ** 2 / norms) if norms > 0 else 0.0


def changes(source: RunDirectory, adapted: RunDirectory) -> dict[tuple[int, str], float]:
    """Compare the representations of two runs on the body of the adapted one, by seed and quantity.

    Quantities are the linear CKA of each component's features before and after adaptation (1 where
    nothing moved), and the ranking loss of both representations.
    """
    origin, config = (from_json(run.config["train"]) for run in (source, adapted))
    values = random_rows(config.task, config.frame_skip, HELD_OUT, 0).values
    rows = jnp.asarray(values, jnp.float32)
    cohorts = [saved_cohort(origin, source.latest())[0], saved_cohort(config, adapted.latest())[0]]
    found = {}
    for place, seed in enumerate(config.seeds):
        places = (origin.seeds.index(seed), place)
        (old, old_loss), (new, new_loss) = (
            _measured(jax.tree.map(lambda leaf, at=at: jnp.asarray(leaf[at]), one.learners), rows)
            for one, at in zip(cohorts, places, strict=True)
        )
        for name in old:
            parts = (np.asarray(one[name], np.float64) for one in (old, new))
            found[seed, f"CKA of the {name}"] = linear_cka(*parts)
        found[seed, "ranking loss, unadapted"] = float(old_loss)
        found[seed, "ranking loss, adapted"] = float(new_loss)
    return found


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


@jax.jit
def _measured(learner: Learner, values: Float[Array, "rows row"]) -> tuple[dict, Array]:
    # Each learner sees the transitions in its own units.
    batch = learner.unpack(values)
    assert isinstance(learner.agent, Spectral)
    net = learner.agent.representation.net
    _, metrics = net.loss(batch, jax.random.key(0))
    return components(net, batch), metrics["nce_loss"]
