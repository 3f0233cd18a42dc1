"""fastr train and fastr resume."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from fastr.commands.show import Flag, Run, print_json, print_table
from fastr.config import TrainConfig, from_json, to_json


@dataclass(frozen=True)
class Train:
    """Train one agent per seed on one task, all seeds side by side in one program."""

    config: TrainConfig
    out: Path | None = None
    """Run directory for all seeds (default: runs/TASK-METHOD-DATE)."""
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Also log to TensorBoard (into the run directory) or Weights & Biases."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Train from frame 0."""
        from fastr.runs import RunWriter, provenance

        date = datetime.now().strftime("%Y%m%d-%H%M%S")
        name = f"{self.config.task.replace(':', '-')}-{self.config.method}-{date}"
        out = self.out or Path("runs") / name
        check_possible(self.config)
        config = {"train": to_json(self.config), "provenance": provenance() | device()}
        with RunWriter.create(out, config) as writer:
            return train_to_the_end(self.config, writer, None, self.track, as_json=self.json)


@dataclass(frozen=True)
class Resume:
    """Continue a stopped run where its last checkpoint was made, bit for bit on the same CPU."""

    run_directory: Run
    """The run's directory."""
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Also log to TensorBoard (into the run directory) or Weights & Biases."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Train from the newest sound checkpoint."""
        from fastr.runs import RunWriter

        writer, checkpoint = RunWriter.resume(self.run_directory)
        with writer:
            config = from_json(writer.config["train"])
            for message in checkpoint.skipped if checkpoint else ():
                print(f"fastr: {message}", file=sys.stderr)
            return train_to_the_end(config, writer, checkpoint, self.track, as_json=self.json)


def check_possible(config: TrainConfig) -> None:
    """Raise UserError for a run that cannot be, before anything is written."""
    from fastr.envs import spec
    from fastr.memory import check_fits

    check_fits(config, spec(config.task, config.frame_skip))


def device() -> dict[str, Any]:
    """The accelerator, for the run's record."""
    import jax

    return {"devices": [entry.device_kind for entry in jax.local_devices()]}


def train_to_the_end(
    config: TrainConfig, writer: Any, checkpoint: Any, track: tuple[str, ...], *, as_json: bool
) -> int:
    """Train with a live display, then say how it went and where everything lies."""
    from fastr.plots import learning_curve
    from fastr.progress import TrainingProgress
    from fastr.summary import curve_csv, summary
    from fastr.track import trackers
    from fastr.train import train

    listeners = trackers(track, writer.path, writer.config)
    with TrainingProgress(config) as progress, stop_requests() as stopped:
        train(config, writer, checkpoint, listeners=(progress, *listeners), stopped=stopped)
    result = {
        "run": str(writer.path),
        "task": config.task,
        "method": config.method,
        "finished": writer.last is not None and writer.last.frames >= config.frames,
        **summary(writer.rows(), config.seeds),
    }
    title = f"{config.task}, {config.method}"
    learning_curve(writer.rows(), config.seeds, title, writer.path / "curve.png")
    (writer.path / "curve.csv").write_text(curve_csv(writer.rows(), config.seeds))
    if not result["finished"]:
        print(f"fastr: stopped; go on with `fastr resume {writer.path}`.", file=sys.stderr)
    if as_json:
        return print_json(result)
    columns = ("seed", "frames", "last evaluation", "mean of last 10 evaluations")
    rows = [
        (e["seed"], e["frames"], e["last_evaluation_return"], e["last_10_evaluations_return"])
        for e in result["seeds"]
    ]
    means = (result["last_evaluation_return_mean"], result["last_10_evaluations_return_mean"])
    print_table(f"{title}: return", columns, [*rows, ("mean", "", *means)])
    print(f"training took {result['seconds']:,.0f} s")
    print(f"run directory   {writer.path}")
    print(f"learning curve  {writer.path / 'curve.png'}")
    return 0


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM has asked to stop; a second Ctrl-C ends at once."""
    asked = []

    def ask(number: int, _: object) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
