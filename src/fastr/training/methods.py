"""Every method by name, each with the paper's settings, and its scaled-down form."""

from dataclasses import replace

from fastr.agents.sac import SACConfig
from fastr.agents.spectral import RepresentationConfig, SpectralConfig
from fastr.agents.td3 import TD3Config
from fastr.agents.td7 import TD7Config
from fastr.core import UserError, nearest
from fastr.representations.block import BlockConfig
from fastr.representations.concat import ConcatConfig
from fastr.representations.cp import CPConfig
from fastr.representations.diffusion import DiffusionConfig
from fastr.representations.joint import JointConfig
from fastr.representations.low_rank import LowRankConfig
from fastr.representations.tree import TreeConfig
from fastr.representations.tucker import TuckerConfig

AgentConfig = SpectralConfig | SACConfig | TD7Config | TD3Config

METHODS: dict[str, AgentConfig] = {
    "fastr": SpectralConfig(representation=CPConfig()),
    "ctrl-sr": SpectralConfig(representation=JointConfig()),
    "diff-sr": SpectralConfig(representation=DiffusionConfig()),
    "sac": SACConfig(),
    "sac-2layer": SACConfig(hidden_layers=2),
    "td7": TD7Config(),
    "td3": TD3Config(),
    "concat": SpectralConfig(representation=ConcatConfig()),
    "tucker": SpectralConfig(representation=TuckerConfig()),
    "tucker-22": SpectralConfig(representation=TuckerConfig(feature_dim=22)),
    "block": SpectralConfig(representation=BlockConfig()),
    "low-rank": SpectralConfig(representation=LowRankConfig()),
    "tree": SpectralConfig(representation=TreeConfig()),
    # With FaStR's parameters on humanoid to within half a percent: the paper says that all have.
    "ctrl-sr-matched": SpectralConfig(representation=JointConfig(hidden_dim=640)),
    "tucker-matched": SpectralConfig(representation=TuckerConfig(feature_dim=52)),
}
RANDOM_FRAMES: dict[str, int] = {"td7": 50_000}
"""Warm-up where it is not the protocol's 10,000 frames (Table hyperparams)."""
OWN = " One of your own needs `fastr --import MODULE` first, or in Python `import MODULE`."
"""What to tell a user whose method is not there."""


def register(method: str, agent: AgentConfig) -> None:
    """Make a method of one's own known by name, to the command line and to runs of it."""
    if not isinstance(agent, AgentConfig):
        raise TypeError(f"{method}: {agent!r} is no agent; try SpectralConfig(representation=...)")
    if METHODS.setdefault(method, agent) != agent:
        raise UserError(f"There is a method {method} already; register yours by another name.")


def named(method: str) -> AgentConfig:
    """The method of this name, with the paper's settings; UserError if there is none."""
    if method not in METHODS:
        raise UserError(
            f"The method {method} is unknown.{nearest(method, METHODS)} It is one of "
            f"{', '.join(METHODS)}.{OWN}"
        )
    return METHODS[method]


def quick(agent: AgentConfig) -> AgentConfig:
    """The same method at sizes and rates that learn in minutes on a CPU.

    Networks this small take larger steps, and on a CPU their many small operations cost more than
    their arithmetic: one residual block and few noise levels, rather than narrower layers.
    """
    rates = {"critic_learning_rate": 1e-3, "actor_learning_rate": 1e-3, "target_rate": 0.01}
    if isinstance(agent, SpectralConfig):
        return replace(
            agent,
            representation=quick_representation(agent.representation),
            batch_size=128,
            actor_dim=128,
            representation_learning_rate=3e-4,
            **rates,
        )
    if isinstance(agent, TD7Config):
        return replace(agent, embedding_dim=128, hidden_dim=128, batch_size=128, learning_rate=1e-3)
    small = replace(agent, hidden_dim=128, batch_size=128, **rates)
    return replace(small, temperature_learning_rate=1e-3) if isinstance(small, SACConfig) else small


def quick_representation(config: RepresentationConfig) -> RepresentationConfig:
    """The same representation, a quarter as wide, with one residual block and few noise levels."""
    sizes = {"hidden_dim": config.hidden_dim // 4, "blocks": 1, "fourier_dim": 256, "head_dim": 128}
    if not isinstance(config, DiffusionConfig):
        sizes["noise_levels"] = 4
    if isinstance(config, TuckerConfig):
        return replace(config, feature_dim=config.feature_dim // 4, **sizes)
    if isinstance(config, BlockConfig):
        sizes |= {"factor_dim": config.factor_dim // 4}
    return replace(config, feature_dim=128, **sizes)
