"""Every method by name, with the paper's settings; users register their own here."""

from fastr.agents.base import AgentConfig
from fastr.agents.sac import SACConfig
from fastr.agents.spectral import SpectralConfig
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
OWN = " Your own method needs `fastr --import MODULE` first, or in Python `import MODULE`."
"""A hint for a user whose method is unknown."""


def register(method: str, agent: AgentConfig) -> None:
    """Add a method: its agent's settings, known by this name to the command line and to runs."""
    if not isinstance(agent, AgentConfig):
        raise TypeError(
            f"{method}: {agent!r} is no AgentConfig; a representation goes into one: "
            "SpectralConfig(representation=...)"
        )
    if METHODS.setdefault(method, agent) != agent:
        raise UserError(f"The method {method} exists; register yours by another name.")


def named(method: str) -> AgentConfig:
    """Settings of the method of this name; UserError if it is unknown."""
    if method not in METHODS:
        raise UserError(
            f"The method {method} is unknown.{nearest(method, METHODS)} It is one of "
            f"{', '.join(METHODS)}.{OWN}"
        )
    return METHODS[method]
