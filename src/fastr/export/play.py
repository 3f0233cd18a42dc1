"""Trained policies at work: greedy returns, films of several seeds, the simulator's viewer."""

import contextlib
import itertools
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from fastr import envs
from fastr.core import EnvSpec, UserError, write_errors
from fastr.training.evaluate import Evaluator, evaluation_workers
from fastr.training.progress import stage
from fastr.training.trained import Trained

Overlay = Literal["return", "factors"]
Picture = UInt8[np.ndarray, "_ _ 3"]
PICTURES_PER_SECOND = 25
BACKGROUND, WHITE, GREY = (24, 26, 31), (255, 255, 255), (176, 182, 194)
POSITIVE, NEGATIVE = (86, 180, 233), (230, 159, 0)
"""Sky blue and orange, which every kind of colour vision tells apart."""
STRONGEST = 8
"""Coordinates that `--overlay factors` shows."""
FADING = 0.98
"""Decay of the bars' scale per picture, so that one spike does not flatten the rest of a film."""


# Returns


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
        pending = evaluator.submit([one.leaves for one in policies], seeds, episodes)
        return pending.returns(advance)


def require_body(trained: Trained, task: str, here: EnvSpec) -> None:
    """Raise UserError unless a task has the sizes of the policy's training."""
    there = trained.spec
    if here != there:
        raise UserError(
            f"{task} has {here.in_words} here, but {there.state_dim} and {there.action_dim} in "
            f"{trained.path}: it is not the same environment."
        )


# Films


def film(
    path: Path, policies: Sequence[Trained], size: tuple[int, int], overlay: Sequence[Overlay]
) -> list[float]:
    """Write one greedy episode of every policy, side by side in step; their returns."""
    config = policies[0].config
    if path.suffix.lower() not in (".mp4", ".gif"):
        raise UserError(f"--video {path} must end in .mp4 or .gif.")
    if "factors" in overlay and not policies[0].has_factors:
        raise UserError(
            f"--overlay factors shows products of state and action factors, and {config.method} "
            "has none; fastr, low-rank, block and tree have."
        )
    with contextlib.ExitStack() as stack:
        episodes = [Episode(one, size, overlay) for one in policies]
        for episode in episodes:
            stack.callback(episode.environment.close)
        frames = envs.frame_limit(config.task, episodes[0].environment)
        show = stack.enter_context(screen(path))
        advance = stack.enter_context(stage("filming", frames // config.frame_skip + 1, "pictures"))
        show(side_by_side([episode.picture() for episode in episodes]))
        while not all(episode.over for episode in episodes):
            for episode in episodes:
                episode.step()
            show(side_by_side([episode.picture() for episode in episodes]))
            advance(1)
    return [episode.total for episode in episodes]


@contextlib.contextmanager
def screen(path: Path) -> Iterator[Callable[[Picture], None]]:
    """A function that adds a picture to the film at this path."""
    import imageio.v2

    with write_errors(path):
        path.open("ab").close()
    gif = path.suffix.lower() == ".gif"
    mp4 = {"fps": PICTURES_PER_SECOND, "quality": 7, "macro_block_size": 2}
    options: dict[str, Any] = {"duration": 1e3 / PICTURES_PER_SECOND, "loop": 0} if gif else mp4
    palettes: list[Image.Image] = []

    def show(picture: Picture) -> None:
        if gif:
            # The first picture's 256 colours for all, undithered: a fifth of the file's size.
            image = Image.fromarray(picture)
            if not palettes:
                palettes.append(image.quantize(256))
            image = image.quantize(palette=palettes[0], dither=Image.Dither.NONE)
            picture = np.asarray(image.convert("RGB"))
        writer.append_data(picture)

    with warnings.catch_warnings():
        # Python warns of any fork beside JAX's threads; ffmpeg is another program.
        warnings.filterwarnings("ignore", message=r"os\.fork", category=RuntimeWarning)
        try:
            writer: Any = imageio.v2.get_writer(path, **options)
            with contextlib.closing(writer):
                yield show
        except OSError as error:
            # imageio appends ffmpeg's whole command to its first line.
            reason = str(error).partition("\n")[0]
            raise UserError(f"{path} cannot be written ({reason}).") from error


class Episode:
    """One policy's greedy episode, in a simulator that draws."""

    def __init__(self, trained: Trained, size: tuple[int, int], overlay: Sequence[Overlay]):
        self.trained, self.size, self.overlay = trained, size, overlay
        config = trained.config
        self.environment = envs.load(config.task, config.frame_skip, render_mode="rgb_array")
        self.strongest = Strongest()
        self.total, self.over = 0.0, False
        self.state = self.environment.reset(envs.episode_seed(trained.seed, 0, "evaluate"))

    def step(self) -> None:
        """Take one action, unless the episode is over."""
        if not self.over:
            step = self.environment.step(self.trained.act(self.state))
            self.state, self.total = step.next_state, self.total + step.reward
            self.over = step.terminated or step.truncated

    def picture(self) -> Picture:
        """The scene, labelled; dimmed once the episode is over."""
        image = Image.fromarray(self.environment.frame(*self.size))
        if self.over:
            image = Image.blend(image, Image.new("RGB", image.size, BACKGROUND), 0.5)
        font = ImageFont.load_default(max(11, image.height // 17))
        label = f"seed {self.trained.seed}"
        if "return" in self.overlay:
            label += f"   return {self.total:.1f}"
        if self.over:
            label += "   episode over"
        pen = ImageDraw.Draw(image)
        pen.text((8, 6), label, WHITE, font, stroke_width=2, stroke_fill=BACKGROUND)
        if "factors" not in self.overlay:
            return np.asarray(image)
        feature = self.trained.features(self.state, self.trained.act(self.state))
        bars = strip(self.strongest.update(feature), image.width, max(30, image.height // 4))
        return np.concatenate([np.asarray(image), np.asarray(bars)])


class Strongest:
    """The largest coordinates of a changing vector, each in one place while it is among them."""

    def __init__(self, count: int = STRONGEST):
        self.count, self.scale = count, 1e-12
        self.places: list[int] = []

    def update(self, vector: Float[np.ndarray, " feature"]) -> list[tuple[int, float]]:
        """Coordinates and values, in units of the largest recent value."""
        size = np.abs(vector)
        self.scale = max(FADING * self.scale, float(size.max()))
        # Stable, so that equals do not change places.
        top = np.argsort(-size, kind="stable")[: self.count].tolist()
        new = iter([index for index in top if index not in self.places])
        self.places = [i if i in top else next(new) for i in self.places or top]
        return [(index, float(vector[index]) / self.scale) for index in self.places]


def strip(bars: Sequence[tuple[int, float]], width: int, height: int) -> Image.Image:
    """Bars up or down from zero, each above the number of its coordinate."""
    image = Image.new("RGB", (width, height), BACKGROUND)
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(max(9, height // 5))
    slot, zero = width / len(bars), 0.4 * height
    for i, (index, value) in enumerate(bars):
        centre, end = (i + 0.5) * slot, zero * (1 - 0.9 * value)
        box = (centre - 0.3 * slot, min(zero, end), centre + 0.3 * slot, max(zero, end))
        pen.rectangle(box, POSITIVE if value > 0 else NEGATIVE)
        pen.text((centre, height - 3), str(index), GREY, font, anchor="ms")
    return image


def side_by_side(pictures: Sequence[Picture]) -> Picture:
    """One picture: up to three in a row, then nearly square; its sides even, as video needs."""
    count = len(pictures)
    columns = count if count <= 3 else math.ceil(math.sqrt(count))
    blank = np.full_like(pictures[0], BACKGROUND)
    filled = [*pictures, *[blank] * (-count % columns)]
    rows = [np.concatenate(filled[i : i + columns], 1) for i in range(0, len(filled), columns)]
    whole = np.concatenate(rows)
    return np.pad(whole, ((0, len(whole) % 2), (0, whole.shape[1] % 2), (0, 0)))


# The simulator's viewer


def watch(trained: Trained) -> None:
    """Show greedy episodes in MuJoCo's viewer, in real time, until its window is closed."""
    config = trained.config
    instead = "write a film with --video FILE (.mp4 or .gif)."
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        raise UserError(f"There is no display for a viewer: {instead}")
    with contextlib.closing(envs.load(config.task, config.frame_skip)) as environment:
        robot = environment.robot()
        if robot is None:
            raise UserError(f"{config.task} has no viewer of its own: {instead}")
        import mujoco.viewer

        with mujoco.viewer.launch_passive(robot.model, robot.data) as viewer:
            for number in itertools.count():
                state = environment.reset(envs.episode_seed(trained.seed, number, "evaluate"))
                over = False
                while not over:
                    due, before = time.monotonic(), robot.data.time
                    step = environment.step(trained.act(state))
                    state, over = step.next_state, step.terminated or step.truncated
                    viewer.sync()
                    if not viewer.is_running():
                        return
                    time.sleep(max(0.0, due + robot.data.time - before - time.monotonic()))
