"""Covering numbers: exactly for small finite classes, and the bound of Theorem 1 on products."""

import numpy as np
from jaxtyping import Bool, Float
from scipy import optimize


def distances(functions: Float[np.ndarray, "member point dim"]) -> Float[np.ndarray, "member m"]:
    """sup over points of the Euclidean distance, between all members (App. Notation)."""
    gaps = functions[:, None] - functions[None]
    return np.linalg.norm(gaps, axis=-1).max(-1)


def smallest_cover(near: Bool[np.ndarray, "member member"]) -> int:
    """The fewest members such that each member is near one of them, by integer programming."""
    members = len(near)
    found = optimize.milp(
        np.ones(members),
        constraints=optimize.LinearConstraint(near.astype(float), lb=1.0),
        integrality=np.ones(members),
        bounds=optimize.Bounds(0.0, 1.0),
    )
    return round(found.fun)


def covering_number(functions: Float[np.ndarray, "member point dim"], radius: float) -> int:
    """N(F, radius) of a finite class of vector-valued functions in the sup-l2 metric."""
    return smallest_cover(distances(functions) <= radius + 1e-12)


def factored_scores(
    of_states: Float[np.ndarray, "f state feature"],
    of_actions: Float[np.ndarray, "h action feature"],
    of_next: Float[np.ndarray, "m next feature"],
) -> Float[np.ndarray, "member point 1"]:
    """G_fac: every product (phi_s * phi_a)^T m of three finite classes, on all their points."""
    scores = np.einsum("fsk,hak,mxk->fhmsax", of_states, of_actions, of_next)
    members = scores.shape[0] * scores.shape[1] * scores.shape[2]
    return scores.reshape(members, -1, 1)


def product_bound(
    of_states: Float[np.ndarray, "f state feature"],
    of_actions: Float[np.ndarray, "h action feature"],
    of_next: Float[np.ndarray, "m next feature"],
    radius: float,
) -> int:
    """Theorem 1's bound on N(G_fac, radius): the product of the factors' covering numbers."""
    factor = max(np.linalg.norm(part, axis=-1).max() for part in (of_states, of_actions))
    next_state = np.linalg.norm(of_next, axis=-1).max()
    narrow = radius / (3.0 * next_state * factor)
    return (
        covering_number(of_states, narrow)
        * covering_number(of_actions, narrow)
        * covering_number(of_next, radius / (3.0 * factor**2))
    )
