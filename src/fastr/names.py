"""Names that a user types: every method and preset, for programs that do not load JAX too."""

from typing import Literal

Method = Literal[
    "fastr",
    "ctrl-sr",
    "diff-sr",
    "sac",
    "sac-2layer",
    "td7",
    "td3",
    "concat",
    "tucker",
    "tucker-22",
    "block",
    "low-rank",
    "tree",
    "ctrl-sr-matched",
    "tucker-matched",
]
Preset = Literal["paper", "quick"]
