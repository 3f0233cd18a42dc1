"""Factors of factors: one encoder per body part, joined by products (Sec. Limitations)."""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.core import EnvSpec
from fastr.envs.anatomy import KINEMATIC, Group, parse, runs
from fastr.representations.interactions import CP, CPConfig
from fastr.representations.ranking import Contrast, Encoder, FactorEncoder, RankingConfig


@dataclass(frozen=True)
class TreeConfig(CPConfig):
    """FaStR whose state and action factors are themselves products over groups of entries."""

    groups: str = KINEMATIC
    """Which observation entries and actuators belong together. "kinematic": the limbs of the
    robot's MuJoCo model. By joint: 'torso=root,waist;legs=hip,knee'. By number, observation
    entries before actuators: 'torso=0-3;legs=4-8|legs=0-5'. What several groups move, or none,
    belongs to the first."""

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "Tree":
        """Fresh encoders for this environment, one per group."""
        groups = parse(self.groups, spec.state_dim, spec.action_dim)
        state_key, action_key, contrast_key = jax.random.split(key, 3)
        return Tree(
            Contrast(spec, self, key=contrast_key),
            ProductEncoder(groups.states, self, key=state_key),
            ProductEncoder(groups.actions, self, key=action_key),
        )


class ProductEncoder(Encoder):
    """The product of one encoder per group, each of which sees its own entries alone.

    They are so much narrower than a single encoder that together they have its parameters at most.
    """

    encoders: tuple[FactorEncoder, ...]
    groups: tuple[Group, ...] = eqx.field(static=True)

    def __init__(self, groups: tuple[Group, ...], config: RankingConfig, *, key: PRNGKeyArray):
        keys = jax.random.split(key, len(groups))
        sizes = replace(config, hidden_dim=matched_width([len(g.entries) for g in groups], config))
        self.groups = groups
        first, *others = (
            FactorEncoder(len(group.entries), config.feature_dim, sizes, key=group_key)
            for group, group_key in zip(groups, keys, strict=True)
        )
        self.encoders = (first, *map(around_one, others))

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " feature"]:
        """The factor of one input vector."""
        factors = [
            encoder(picked(x, group))
            for encoder, group in zip(self.encoders, self.groups, strict=True)
        ]
        product = factors[0]
        for factor in factors[1:]:
            product = product * factor
        return product


def around_one(encoder: FactorEncoder) -> FactorEncoder:
    """A fresh factor, moved so that it varies around one instead of zero.

    A product of factors around zero is concentrated in few coordinates: for humanoid's ten groups
    in about 4 of 512. Around one, the other groups scale the first.
    """
    if encoder.norm is None:
        return eqx.tree_at(lambda e: e.encoder.outlet.bias, encoder, replace_fn=lambda b: b + 1.0)
    # As much around it as the output of a fresh encoder without normalisation.
    scale = 0.25 * encoder.norm.weight, encoder.norm.bias + 1.0
    return eqx.tree_at(lambda e: (e.norm.weight, e.norm.bias), encoder, scale)


def picked(x: Float[Array, " input"], group: Group) -> Float[Array, " entry"]:
    """The entries of one group; as slices, because the gradient of a gather is a scatter."""
    return jnp.concatenate([x[first : last + 1] for first, last in runs(group.entries)])


def matched_width(inputs: list[int], config: RankingConfig) -> int:
    """Hidden units with which encoders of these inputs have one encoder's parameters at most."""

    def parameters(inputs: int, hidden: int) -> int:
        block = 2 * hidden + 2 * hidden * (hidden + 1)
        ends = hidden * (inputs + 1) + config.feature_dim * (hidden + 1)
        return ends + config.blocks * block

    budget = parameters(sum(inputs), config.hidden_dim)
    width = config.hidden_dim
    # In steps of 8, which accelerators read at once.
    while width > 8 and sum(parameters(size, width) for size in inputs) > budget:
        width -= 8
    return width


class Tree(CP):
    """FaStR with products of parts for phi_s and phi_a; a single part each is FaStR itself."""
