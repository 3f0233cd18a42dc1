"""fastr train and fastr resume."""

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastr.cli.interrupts import end_at_once, stop_requests, stopped_by
from fastr.cli.show import USUAL, Json, Maybe, Run, Watching, print_json, print_table
from fastr.core import RunError, StoppedError, UserError, counted, write_errors
from fastr.envs import module_of, require_imported
from fastr.envs.processes import WorkerError
from fastr.runs.checkpoints import Checkpoint, saved_frames
from fastr.runs.directory import (
    CONFIG,
    RunDirectory,
    RunWriter,
    first_difference,
    refuse_taken,
    run_name,
)
from fastr.runs.summary import LAST, evaluations, summary
from fastr.training.config import TrainConfig, from_json, to_json
from fastr.training.progress import duration, say

if TYPE_CHECKING:
    from fastr.data.logs import Log

ANSWER = "saving; Ctrl-C again ends at once, without a checkpoint."


@dataclass(frozen=True)
class Train:
    """Train one agent per seed on one task, all seeds side by side in one program."""

    config: TrainConfig
    out: Maybe[Path] = None
    """Run directory for all seeds (default: runs/TASK-METHOD-DATE)."""
    watching: Watching = USUAL
    json: Json = False

    def run(self) -> int:
        """Train from frame 0."""
        from fastr.training.loop import begin

        out = self.out or Path("runs") / run_name(self.config.title, self.config.method)
        if saved_frames(out):
            run = RunDirectory.open(out)
            refuse_other(run, self.config)
            advice = in_shell(self.config, "eval" if run.finished() else "resume", out)
            state = "is finished: play it" if run.finished() else "was started before: continue it"
            raise UserError(f"{out} {state} with `{advice}`, or choose another --out.")
        log = opened_log(self.config)
        with begin(self.config, out, log) as writer:
            say_preset(self.config)
            return train_and_report(self, self.config, writer, None, log)


@dataclass(frozen=True)
class Fit(Train):
    """Learn a representation from logged transitions alone: fastr fit LOG [OPTIONS].

    Options are those of fastr train. A training takes the result over with --init RUN --init-parts
    representation.
    """


@dataclass(frozen=True)
class Resume:
    """Continue a stopped run from its last checkpoint, bit for bit on the same CPU."""

    run_directory: Run
    frames: Maybe[int] = None
    """A new budget in frames, larger than the run's: a finished run goes on. The result is that of
    a run that had this budget from the beginning, but for the evaluation at the old end, if the
    old budget ends with a block (a multiple of frame-skip times block-steps)."""
    watching: Watching = USUAL
    json: Json = False

    def run(self) -> int:
        """Train from the newest sound checkpoint."""
        from fastr.library import check_longer
        from fastr.training.loop import check_possible

        # Checked before anything of the run is touched.
        run = RunDirectory.open(self.run_directory)
        config = from_json(run.config["train"])
        config = check_longer(config, self.frames, self.run_directory)
        require_imported(config.task, self.run_directory)
        log = opened_log(config, run)
        check_possible(config, self.run_directory, log)
        writer, checkpoint = RunWriter.resume(self.run_directory, self.frames)
        with writer:
            for message in checkpoint.skipped if checkpoint else ():
                print(f"fastr: {message}", file=sys.stderr)
            if checkpoint:
                say(f"fastr: continuing from the checkpoint at frame {checkpoint.frames:,}")
            return train_and_report(self, config, writer, checkpoint, log)


def opened_log(config: TrainConfig, run: RunDirectory | None = None) -> "Log | None":
    """The log that a training mixes in, or that a run began with; what looks wrong is said."""
    from fastr.data.logs import log_of
    from fastr.training.loop import LOG_SHA256

    log = log_of(config, run and run.config["provenance"].get(LOG_SHA256))
    if log is not None:
        share = f"{config.logged_rows} of {config.agent.batch_size} rows of every batch"
        say(f"fastr: {share} are from {config.data} ({len(log.rows):,} transitions)")
        if log.doubt:
            say(f"fastr: warning, {log.doubt}")
    return log


def say_preset(config: TrainConfig) -> None:
    """Without an accelerator: which preset this is, or how long the paper's takes."""
    import jax

    from fastr.envs import ending_spec
    from fastr.training.cost import cpu_seconds

    if jax.default_backend() != "cpu":
        return
    if config.preset == "laptop":
        say("fastr: no accelerator, so preset laptop; --preset paper has the paper's sizes.")
    else:
        seconds = cpu_seconds(config, ending_spec(config.task, config.frame_skip))
        say(
            f"fastr: the paper's sizes without an accelerator take roughly {duration(seconds)} "
            "here; --preset laptop learns in minutes."
        )


def refuse_other(run: RunDirectory, config: TrainConfig) -> None:
    """Raise UserError unless this run has this configuration."""
    wanted = json.loads(json.dumps(to_json(config)))
    if different := first_difference(run.config["train"], wanted):
        longer = f", or extend it with `{in_shell(config, 'resume', run.path)} --frames N`"
        extend = longer if different.startswith("frames ") else ""
        raise UserError(f"{run.path} holds another run: {different}; choose another --out{extend}.")


def rows_of_all(configs: dict[str, TrainConfig], out: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of every run in OUT/NAME, trained to its end unless it is finished already.

    All are checked first; StoppedError if one was asked to stop.
    """
    from fastr.training.loop import begin, check_possible

    for name, config in configs.items():
        refuse_taken(out / name)
        if (out / name / CONFIG).exists():
            refuse_other(RunDirectory.open(out / name), config)
        check_possible(config, out / name)
    found = {}
    for number, (name, config) in enumerate(configs.items(), start=1):
        # The lines of a training name its task alone, which all of them share.
        say(f"{name}: run {number} of {len(configs)}")
        if (out / name / CONFIG).exists():
            writer, checkpoint = RunWriter.resume(out / name)
        else:
            writer, checkpoint = begin(config, out / name), None
        with writer:
            if not ended(config, writer) and (asked := train_and_draw(config, writer, checkpoint)):
                message = f"stopped; the same command continues in {out}."
                raise StoppedError(message, stopped_by(asked))
            found[name] = writer.rows()
    return found


def ended(config: TrainConfig, writer: RunWriter) -> bool:
    """Whether the run's last checkpoint is at the end of its budget."""
    return writer.last is not None and writer.last.frames >= config.frames


def train_and_draw(
    config: TrainConfig,
    writer: RunWriter,
    checkpoint: Checkpoint | None,
    watching: Watching = USUAL,
    log: "Log | None" = None,
) -> int:
    """Train with live progress, then draw the learning curve in the run directory.

    The number of the first signal that asked to stop, even one too late for this run; else 0.
    """
    from fastr.runs.summary import trackers
    from fastr.training.loop import train
    from fastr.training.progress import TrainingProgress

    trackings = trackers(watching.track, writer.path, writer.config)
    with stop_requests(ANSWER, then=end_at_once) as asked:
        with TrainingProgress(config) as progress:
            try:
                train(
                    config,
                    writer,
                    checkpoint,
                    listeners=(progress, *trackings),
                    stopped=lambda: bool(asked),
                    patience=watching.patience,
                    estimate=progress.estimate,
                    log=log,
                )
            except WorkerError as error:
                raise RunError(f"{str(error).removesuffix('.')}; {writer.standing()}.") from error
        draw(config, writer)
    return asked[0] if asked else 0


def draw(config: TrainConfig, writer: RunWriter) -> None:
    """The learning curve, as a picture and as numbers, once every seed has an evaluation."""
    from fastr.report.page import learning_curve
    from fastr.runs.summary import curve_csv

    rows, title = writer.rows(), f"{config.title}, {config.method}"
    if all(evaluations(rows, seed) for seed in config.seeds):
        with write_errors(writer.path / "curve.png"):
            learning_curve(rows, config.seeds, title, writer.path / "curve.png")
            (writer.path / "curve.csv").write_text(curve_csv(rows, config.seeds))


def train_and_report(
    options: Train | Resume,
    config: TrainConfig,
    writer: RunWriter,
    checkpoint: Checkpoint | None,
    log: "Log | None" = None,
) -> int:
    """Train, then print the returns and where everything is."""
    asked = 0
    if ended(config, writer):
        # A run killed after its last checkpoint has no picture yet.
        draw(config, writer)
    else:
        asked = train_and_draw(config, writer, checkpoint, options.watching, log)
    result = {
        "run": str(writer.path),
        "task": config.title,
        "method": config.method,
        "finished": ended(config, writer),
        **summary(writer.rows(), config.seeds),
    }
    count = min(entry["evaluations"] for entry in result["seeds"])
    if not result["finished"]:
        when = "" if count else " before the first evaluation"
        say(f"fastr: stopped{when}; continue with `{in_shell(config, 'resume', writer.path)}`.")
    if options.json:
        print_json(result)
    elif count:
        show(result, count)
    elif result["finished"]:
        print(f"run directory   {result['run']}")
    return stopped_by(asked) if asked and not result["finished"] else 0


def show(result: dict[str, Any], count: int) -> None:
    """Print the returns of every seed after so many evaluations, and where everything is."""
    rows = [
        (e["seed"], e["frames"], e["last_evaluation_return"], e["last_10_evaluations_return"])
        for e in result["seeds"]
    ]
    means = (result["last_evaluation_return_mean"], result["last_10_evaluations_return_mean"])
    mean = f"mean of last {counted(min(count, LAST), 'evaluation')}"
    columns = ("seed", "frames", "last evaluation", mean)
    title = f"{result['task']}, {result['method']}: return"
    print_table(title, columns, [*rows, ("mean", "", *means)])
    print(f"training took {result['seconds']:,.0f} s")
    print(f"run directory   {result['run']}")
    print(f"learning curve  {Path(result['run'], 'curve.png')}")


def in_shell(config: TrainConfig, command: str, path: Path) -> str:
    """A command on this run as a shell takes it, with the task's module if it needs one."""
    module = module_of(config.task)
    return shlex.join(("fastr", *(("--import", module) if module else ()), command, str(path)))
