"""No random key is used twice: what two uses draw would not be independent."""

import jax
import jax.numpy as jnp
import pytest

from fastr.core import EnvSpec
from fastr.training.config import preset
from fastr.training.learner import Learner


@pytest.mark.parametrize("method", ["fastr", "ctrl-sr", "tucker", "diff-sr", "sac", "td7", "td3"])
def test_no_key_is_used_twice(method):
    config = preset("walker-walk", method, "laptop").agent

    @jax.jit
    def life(seed):
        learner = Learner.init(config, EnvSpec(3, 2), 8, seed)
        learner, _ = learner.improve(jnp.asarray(8), jnp.asarray(0))
        return learner.explore(jnp.zeros(3), jnp.asarray(9), 4)

    with jax.debug_key_reuse(new_val=True):
        jax.eval_shape(life, jax.ShapeDtypeStruct((), jnp.int32))


def test_a_key_that_is_used_twice_is_seen():
    twice = jax.jit(lambda key: jax.random.normal(key) + jax.random.uniform(key))
    with jax.debug_key_reuse(new_val=True), pytest.raises(jax.errors.KeyReuseError):
        jax.eval_shape(twice, jax.random.key(0))
