"""Trained policies at work: greedy returns, and films of several seeds side by side."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from fastr import envs
from fastr.core import EnvSpec, UserError, counted
from fastr.export.screens import Screen
from fastr.export.tiles import STRONGEST, Strongest, Tile, canvas_size, mosaic, tile_height
from fastr.training.evaluate import Evaluator, evaluation_workers
from fastr.training.progress import stage
from fastr.training.trained import Trained

Overlay = Literal["return", "factors"]
SMALLEST = 64
LARGEST = (2_160, 3_840)
"""Height and width of the smallest tile and of the largest film, in pixels."""


def unseen_episodes(trained: Trained, count: int) -> range:
    """Numbers of evaluation episodes that training has not been evaluated on."""
    first = trained.config.evaluations * trained.config.eval_episodes
    return range(first, first + count)


def greedy_returns(
    policies: Sequence[Trained], task: str, episodes: range
) -> Float[np.ndarray, "seed episode"]:
    """The undiscounted return of every episode of this task, played in worker processes."""
    config = policies[0].config
    require_body(policies[0], task, envs.ending_spec(task, config.frame_skip))
    seeds = [one.seed for one in policies]
    workers = evaluation_workers(len(seeds), len(episodes))
    total = len(seeds) * len(episodes)
    with (
        Evaluator(task, config.frame_skip, config.agent, workers=workers) as evaluator,
        stage(f"playing {task}", total, "episodes") as advance,
    ):
        under_way = evaluator.submit([one.leaves for one in policies], seeds, episodes)
        return under_way.returns(advance)


def require_body(trained: Trained, task: str, here: EnvSpec) -> None:
    """Raise UserError unless a task has the sizes of the policy's training."""
    there = trained.spec
    if here != there:
        raise UserError(
            f"{task} has {here.in_words} here, but {there.state_dim} and {there.action_dim} in "
            f"{trained.path}: it is not the same environment."
        )


class Episode:
    """One seed's greedy episode under way."""

    def __init__(self, trained: Trained, size: tuple[int, int], overlay: Sequence[Overlay]):
        self.trained, self.size, self.overlay = trained, size, overlay
        config = trained.config
        self.environment = envs.load(config.task, config.frame_skip, render_mode="rgb_array")

    def begin(self, number: int) -> None:
        """Start the evaluation episode of this number."""
        seed = envs.episode_seed(self.trained.seed, number, "evaluate")
        self.strongest = Strongest()
        self.total, self.over = 0.0, False
        self._arrive(self.environment.reset(seed))

    def step(self) -> None:
        """Take one action, unless the episode is over."""
        if self.over:
            return
        step = self.environment.step(self.action)
        self.total += step.reward
        self.over = step.terminated or step.truncated
        self._arrive(step.next_state)

    def _arrive(self, state: np.ndarray) -> None:
        self.action = self.trained.act(state)
        self.picture = self.environment.frame(*self.size)
        self.bars = ()
        if "factors" in self.overlay:
            self.bars = self.strongest.update(self.trained.features(state, self.action))

    def tile(self) -> Tile:
        """The episode at this moment."""
        note = f"return {self.total:.1f}" if "return" in self.overlay else ""
        return Tile(self.picture, f"seed {self.trained.seed}", note, self.bars, self.over)


def check_picture(count: int, size: tuple[int, int], overlay: Sequence[Overlay]) -> None:
    """Raise UserError unless so many pictures of this height and width make a film."""
    if min(size) < SMALLEST:
        raise UserError(f"--height and --width must be at least {SMALLEST} pixels.")
    height, width = size
    tall, wide = canvas_size(count, tile_height(height, bars="factors" in overlay), width)
    if tall > LARGEST[0] or wide > LARGEST[1]:
        raise UserError(
            f"{counted(count, 'picture')} of {height} x {width} pixels would make one of {tall} x "
            f"{wide}, and the limit is {LARGEST[0]} x {LARGEST[1]} (height x width): choose fewer "
            "--seeds or a smaller --height and --width."
        )


def check_overlay(trained: Trained, overlay: Sequence[Overlay]) -> None:
    """Raise UserError unless the run has what is to be shown."""
    if "factors" in overlay and not trained.has_factors:
        raise UserError(
            f"--overlay factors shows products of state and action factors, and "
            f"{trained.config.method} has none; fastr, low-rank, block and tree have."
        )


class Performance:
    """Greedy episodes of several policies in step, each in its own simulator."""

    def __init__(
        self, policies: Sequence[Trained], size: tuple[int, int], overlay: Sequence[Overlay]
    ):
        self.episodes = [Episode(one, size, overlay) for one in policies]
        config = policies[0].config
        self.title = f"{config.task}   {config.method}   {counted(policies[0].frames, 'frame')}"
        if "factors" in overlay:
            self.title += f"   bars: the {STRONGEST} strongest coordinates of phi_s * phi_a"

    def most_pictures(self) -> int:
        """Of one episode; UserError if there is no end to them."""
        config = self.episodes[0].trained.config
        frames = envs.frame_limit(config.task, self.episodes[0].environment)
        return frames // config.frame_skip + 1

    def play(self, screen: Screen, number: int) -> list[float] | None:
        """One episode of each, a picture per agent step; their returns, None if cut short."""
        for episode in self.episodes:
            episode.begin(number)
        while screen.show(mosaic([episode.tile() for episode in self.episodes], self.title)):
            if all(episode.over for episode in self.episodes):
                return [episode.total for episode in self.episodes]
            for episode in self.episodes:
                episode.step()
        return None

    def close(self) -> None:
        """Free what the simulators hold."""
        for episode in self.episodes:
            episode.environment.close()
