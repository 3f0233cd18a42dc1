"""A training run as one value, and every method by name; users register their own here."""

import dataclasses
import sys
import typing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fastr.agents.base import AgentConfig, Part
from fastr.agents.sac import SACConfig
from fastr.agents.spectral import SpectralConfig
from fastr.agents.td3 import TD3Config
from fastr.agents.td7 import TD7Config
from fastr.core import Preset, UserError, nearest, option, require, require_seeds
from fastr.envs import anatomy
from fastr.envs.names import spelled
from fastr.representations.diffusion import DiffusionConfig
from fastr.representations.interactions import (
    BlockConfig,
    ConcatConfig,
    CPConfig,
    LowRankConfig,
    TuckerConfig,
)
from fastr.representations.joint import JointConfig
from fastr.representations.tree import TreeConfig

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
BLOCK_STEPS = 4
"""The longest block that learned no more slowly than single steps (docs/deviations.md)."""
IMITATION = 0.4
"""Weight of imitation with --offline: 1 / 2.5, as in TD3+BC."""
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


WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list of whole numbers",
}
"""What JSON has for each kind of field."""


@dataclass(frozen=True)
class TrainConfig:
    """Train one agent per seed on one task (App. Shared Training Protocol)."""

    task: Annotated[
        str,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="TASK", help_behavior_hint="(required)"),
    ]
    """DM Control Suite task (humanoid-walk), Gymnasium environment (gym:HalfCheetah-v5), or an
    environment of your own (my_package:MyRobot-v0); with shifted actuators after an @
    (humanoid-walk@permutation:7+latency=2)."""
    method: str
    """What to train: fastr (the paper's factorized representation), ctrl-sr (its joint one),
    diff-sr, sac, sac-2layer, td7, td3 (FaStR without a representation), or FaStR with another
    interaction of its factors: concat, tucker, tucker-22, block, low-rank, tree
    (docs/methods.md). -matched: with FaStR's number of parameters. Or one of your own, which a
    module registers: fastr --import MODULE (docs/own-representation.md)."""
    preset: Preset
    """Sizes and budget: paper (the paper's) or laptop (learns in minutes on a CPU; the default
    without an accelerator)."""
    agent: AgentConfig
    seeds: tuple[int, ...] = (0, 1, 2, 3, 42)
    """Seeds, all trained side by side in one program (App. Shared Training Protocol)."""
    frames: int = 1_000_000
    """Budget in frames, i.e. simulator steps; one agent step is frame-skip frames."""
    frame_skip: int = 2
    """Frames each action is repeated for; their rewards are summed (action repeat)."""
    random_frames: int = 10_000
    """Frames before the first update (warm start); their actions are uniformly random, unless
    --init gives a whole policy."""
    eval_frames: int = 10_000
    """Frames between evaluations of the deterministic policy; the last frame has one, too."""
    eval_episodes: int = 10
    """Episodes per evaluation and seed."""
    replay_capacity: int = 1_000_000
    """Transitions the replay holds per seed; the oldest make room."""
    checkpoint_frames: int = 100_000
    """Frames between checkpoints; 0 keeps only the one at the end."""
    keep_checkpoints: int = 2
    """Newest checkpoints that are kept."""
    init: Annotated[str, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = ""
    """Run to start from: its networks and observation statistics, seed by seed (a run of one seed
    serves all). With a whole policy no action is uniformly random; the first update still comes
    after --random-frames."""
    init_parts: Part = "all"
    """What to take from it: all networks, the representation alone, or of that the state factor
    (fastr) or the joint encoder (ctrl-sr)."""
    data: Annotated[str, tyro.conf.arg(metavar="LOG", help_behavior_hint="")] = ""
    """Logged transitions to learn from besides the fresh ones: a Minari or LeRobot dataset, a run
    directory, an .npz or a .parquet file (docs/library.md). Observation statistics start at the
    log's, or at those of --init."""
    data_share: float = 0.5
    """Share of every batch that is drawn from --data."""
    offline: bool = False
    """Learn from --data alone, an update for every agent step of the budget. TASK is where the
    policy is evaluated; without one it is not."""
    block_steps: int = 1
    """Agent steps, and updates, handed to the device at once: faster, with actions of a policy that
    is up to as many steps old."""

    def __post_init__(self):
        counts = ("frames", "frame_skip", "eval_frames", "eval_episodes", "replay_capacity")
        require(self, *counts, "keep_checkpoints", "block_steps", low=1)
        # Before the first update there must be something to learn from.
        require(self, "random_frames", low=self.frame_skip)
        require(self, "checkpoint_frames", low=0)
        for name in ("frames", "random_frames", "eval_frames", "checkpoint_frames"):
            if getattr(self, name) % self.frame_skip:
                raise UserError(
                    f"{option(name)} is {getattr(self, name)}; it must be a multiple of "
                    f"--frame-skip {self.frame_skip}."
                )
        require_seeds(self.seeds)
        require(self, "data_share", low=0, high=1)
        if self.offline and not self.data:
            raise UserError("--offline needs --data LOG, the transitions to learn from.")
        if self.offline and not hasattr(self.agent, "imitation"):
            raise UserError(
                f"--offline is not possible with {self.method}, whose actor cannot imitate; it is "
                "with td3, fastr, and every other method that learns a representation but td7."
            )
        if self.logged_rows == self.agent.batch_size and not self.offline:
            raise UserError(
                f"--data-share {self.data_share:g} leaves no row for fresh transitions."
            )
        keep = getattr(self.agent, "keep", "nothing")
        if keep != "nothing" and not self.init:
            raise UserError(f"--keep {keep} needs --init RUN, the run to take it from.")

    @property
    def title(self) -> str:
        """The task; the log of a run without one."""
        return self.task or Path(self.data).stem

    @property
    def agent_steps(self) -> int:
        """Steps of the loop: frame 0 and the last frame both count, 500,001 for 1M frames."""
        return self.frames // self.frame_skip + 1

    @property
    def random_steps(self) -> int:
        """Agent steps before the first update."""
        return 0 if self.offline else self.random_frames // self.frame_skip

    @property
    def uniform_steps(self) -> int:
        """Agent steps with uniformly random actions: none if there is a policy from the start."""
        return 0 if self.init and self.init_parts == "all" else self.random_steps

    @property
    def logged_rows(self) -> int:
        """Rows of every batch that are drawn from --data."""
        if self.offline:
            return self.agent.batch_size
        return round(self.data_share * self.agent.batch_size) if self.data else 0

    @property
    def updates(self) -> int:
        """Updates in the whole run: one per agent step after the random ones."""
        return max(0, self.agent_steps - self.random_steps)

    @property
    def evaluations(self) -> int:
        """Evaluations in the whole run: from frame 0 on in equal steps, and at the last frame."""
        return -(-self.frames // self.eval_frames) + 1

    @property
    def capacity(self) -> int:
        """Rows of replay to allocate: at most as many as the run writes."""
        if self.offline:
            return 1
        return min(self.replay_capacity, self.agent_steps)


def preset(task: str, method: str, name: Preset) -> TrainConfig:
    """The configuration of a method under a preset."""
    paper = TrainConfig(
        task=task,
        method=method,
        preset=name,
        agent=named(method),
        random_frames=named(method).random_frames,
    )
    if name == "paper":
        return paper
    return replace(
        paper,
        agent=paper.agent.laptop(),
        seeds=(0,),
        frames=100_000,
        random_frames=2_000,
        eval_frames=5_000,
        checkpoint_frames=20_000,
        block_steps=BLOCK_STEPS,
    )


def usual_preset() -> Preset:
    """The preset of a command that names none: the paper's needs an accelerator."""
    import jax

    return "laptop" if jax.default_backend() == "cpu" else "paper"


def on_this_device(config: TrainConfig) -> TrainConfig:
    """The configuration with what is fastest on this device (docs/deviations.md)."""
    import jax

    if jax.default_backend() == "cpu":
        return config
    return replace(config, agent=config.agent.accelerated(), block_steps=BLOCK_STEPS)


def grounded(config: TrainConfig) -> TrainConfig:
    """The configuration with everything that depends on this machine and task written out.

    Groups of body parts are resolved for the task's robot, the task has its canonical spelling, and
    the paths of the run and the log it starts from are absolute.
    """
    init = config.init and str(Path(config.init).resolve())
    there = config.data and Path(config.data).exists()
    data = str(Path(config.data).resolve()) if there else config.data
    task = spelled(config.task) if config.task or not config.offline else ""
    config = replace(config, task=task, init=init, data=data)
    if config.offline and not getattr(config.agent, "imitation", 1.0):
        config = replace(config, agent=replace(config.agent, imitation=IMITATION))
    representation = getattr(config.agent, "representation", None)
    if not isinstance(representation, TreeConfig) or "|" in representation.groups:
        return config
    groups = str(anatomy.partition(config.task, config.frame_skip, representation.groups))
    agent = replace(config.agent, representation=replace(representation, groups=groups))
    return replace(config, agent=agent)


def to_json(config: TrainConfig) -> dict[str, Any]:
    """The configuration as plain values."""
    return dataclasses.asdict(config)


def from_json(values: object) -> TrainConfig:
    """The configuration that `to_json` wrote; UserError if it is not one."""
    if not isinstance(values, dict):
        raise UserError("The configuration is not a JSON object.")
    for name, known in (("method", METHODS), ("preset", typing.get_args(Preset))):
        if values.get(name) not in tuple(known):
            raise UserError(
                f"The configuration's {name} is {values.get(name)!r}; "
                f"it must be one of {', '.join(known)}.{OWN if name == 'method' else ''}"
            )
    return _filled(preset("", values["method"], values["preset"]), values, "")


def _filled(default: Any, values: dict[str, Any], path: str) -> Any:
    """The dataclass with each field taken from the values, checked against its default's type."""
    fields = {field.name for field in dataclasses.fields(default)}
    if odd := (fields ^ values.keys()):
        raise UserError(
            f"The configuration lacks or has one too many of: {', '.join(sorted(odd))}."
        )
    hints = typing.get_type_hints(type(default))
    for name, value in values.items():
        choices = typing.get_args(hints[name])
        if typing.get_origin(hints[name]) is Literal and value not in choices:
            raise UserError(
                f"The configuration's {path}{name} is {value!r}; "
                f"it must be one of {', '.join(choices)}."
            )
    return replace(
        default,
        **{
            name: _checked(getattr(default, name), value, f"{path}{name}")
            for name, value in values.items()
        },
    )


def _checked(default: Any, value: Any, path: str) -> Any:
    """The value with the type of its default; UserError if it has another."""
    if dataclasses.is_dataclass(default) and isinstance(value, dict):
        return _filled(default, value, f"{path}.")
    if isinstance(default, tuple) and isinstance(value, list | tuple):
        if all(type(item) is int for item in value):
            return tuple(value)
    elif isinstance(default, float) and type(value) in (int, float):
        if abs(value) <= sys.float_info.max:
            return float(value)
    elif type(value) is type(default):
        return value
    raise UserError(
        f"The configuration's {path} is {value!r}, which is not "
        f"{WORDS.get(type(default), 'an object')}."
    )
