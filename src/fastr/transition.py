"""Transitions: what flows between replay, representations and agents.

Axis names in shape annotations that mean the same everywhere (others are local to their file):

    seed       the runs trained side by side in one program
    batch      transitions in one mini-batch
    level      noise levels of the perturbation schedule
    state      entries of an observation vector
    action     entries of an action vector
    feature    coordinates of the spectral feature
    hidden     units of a hidden layer
    fourier    random Fourier features (sines and cosines together)
    row        numbers in one packed transition
    capacity   rows the replay can hold
    parameter  entries of a flat parameter vector
    row_state  packed transitions and the state to act on next
    metric     scalars logged per update
    dataset    datasets of one shape, trained side by side
    step       batches in one piece of an epoch
    packed     state, action and next state side by side
    target     next-state features that the moment head predicts
"""

from dataclasses import replace

import equinox as eqx
from jaxtyping import Array, Float

from fastr.core import EnvSpec
from fastr.nn.precision import Precision, lowered


class Transition(eqx.Module):
    """One transition, or a batch of them: every field may carry the same leading axes."""

    state: Float[Array, "*batch state"]
    action: Float[Array, "*batch action"]
    next_state: Float[Array, "*batch state"]
    reward: Float[Array, "*batch"]
    continues: Float[Array, "*batch"]
    """1 unless next_state is terminal: the factor on the bootstrapped value."""

    @classmethod
    def unpack(cls, rows: Float[Array, "*batch row"], spec: EnvSpec) -> "Transition":
        """Transitions from packed rows."""
        return cls(**{name: rows[..., place] for name, place in spec.row.items()})

    def seen_in(self, precision: Precision) -> "Transition":
        """Lower the states to the precision of the networks."""
        state, next_state = lowered(self.state, precision), lowered(self.next_state, precision)
        return replace(self, state=state, next_state=next_state)
