"""Which sums may be narrow: none that runs over a batch."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from fastr.core import EnvSpec
from fastr.training.config import METHODS, grounded, preset
from fastr.training.cost import equations, update_program

SUMS = {"reduce_sum", "cumsum", "scatter-add", "reduce_window_sum"}


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_summed_in_bfloat16(method):
    """On a GPU such a sum really is in bfloat16: over thousands of rows, mostly rounding."""
    config = grounded(preset("walker-walk", method, "laptop"))
    config = replace(config, agent=config.agent.accelerated())
    program = update_program(config, EnvSpec(24, 6))
    narrow = [
        equation
        for equation in equations(program)
        if equation.primitive.name in SUMS
        and any(variable.aval.dtype == jnp.bfloat16 for variable in equation.invars)
    ]
    assert not narrow
