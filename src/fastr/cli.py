"""The commands. Each is a dataclass whose fields are its options and whose `run` does the work."""

import contextlib
import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import tyro
from rich.console import Console
from rich.table import Table

from fastr import runtime
from fastr.errors import RunError, UserError, nearest

runtime.configure()

# These bring in JAX, which reads what runtime.configure has set.
from fastr.config import (  # noqa: E402
    METHODS,
    Preset,
    TrainConfig,
    from_json,
    preset,
    to_json,
)

USAGE = """\
fastr: factorized spectral representations for reinforcement learning

  fastr train TASK    train one agent per seed    fastr train walker-walk --preset quick
  fastr resume RUN    continue a stopped run      fastr resume runs/gait
  fastr eval RUN      play greedy episodes        fastr eval runs/gait --episodes 20
  fastr play RUN      film the learned policy     fastr play runs/gait --video gait.mp4
  fastr info TASK     sizes, work and memory      fastr info humanoid-walk --method ctrl-sr
  fastr bench TASK    time the update             fastr bench humanoid-walk --seeds 0 1 2

TASK is a DM Control Suite task (humanoid-walk), a Gymnasium environment (gym:HalfCheetah-v5),
or an environment of your own (my_package:MyRobot-v0). `fastr COMMAND --help` explains every
option. Frames are simulator steps; an agent step is --frame-skip frames."""

Options = TypeVar("Options")
Run = Annotated[Path, tyro.conf.Positional]
Flag = tyro.conf.FlagCreatePairsOff[bool]


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


@dataclass(frozen=True)
class Eval:
    """Play greedy episodes with every seed's policy at the newest checkpoint."""

    run_directory: Run
    """The run's directory."""
    episodes: int = 10
    """Episodes per seed."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Play the episodes in worker processes."""
        from fastr.evaluate import Evaluator, evaluation_workers

        if self.episodes < 1:
            raise UserError(f"--episodes is {self.episodes}; it must be at least 1.")
        config, frames, policies = trained(self.run_directory)
        workers = evaluation_workers(len(config.seeds), self.episodes)
        with Evaluator(config.task, config.frame_skip, config.agent, workers=workers) as evaluator:
            # Episodes that training has not been evaluated on.
            first = config.evaluations * config.eval_episodes
            episodes = range(first, first + self.episodes)
            returns = evaluator.submit(policies, config.seeds, episodes).returns()
        result = {
            "run": str(self.run_directory),
            "task": config.task,
            "method": config.method,
            "frames": frames,
            "episodes": self.episodes,
            "seeds": [
                {
                    "seed": seed,
                    "return_mean": float(row.mean()),
                    "return_std": float(row.std()),
                    "returns": row.tolist(),
                }
                for seed, row in zip(config.seeds, returns, strict=True)
            ],
            "return_mean": float(returns.mean()),
        }
        if self.json:
            return print_json(result)
        columns = ("seed", "mean return", "std over episodes")
        rows = [(e["seed"], e["return_mean"], e["return_std"]) for e in result["seeds"]]
        title = f"{config.task}, {config.method}, {frames:,} frames, {self.episodes} episodes"
        print_table(title, columns, [*rows, ("all", result["return_mean"], "")])
        return 0


@dataclass(frozen=True)
class Play:
    """Film one greedy episode of a trained policy."""

    run_directory: Run
    """The run's directory."""
    video: Path
    """File to write; its ending chooses the format (mp4)."""
    seed: int | None = None
    """The seed whose policy is shown (default: the run's first)."""
    height: int = 240
    """Picture height in pixels."""
    width: int = 320
    """Picture width in pixels."""

    def run(self) -> int:
        """Render in this process."""
        from fastr.play import film

        config, frames, policies = trained(self.run_directory)
        seed = config.seeds[0] if self.seed is None else self.seed
        if seed not in config.seeds:
            raise UserError(f"--seed {seed} is not in this run; it has {list(config.seeds)}.")
        leaves = policies[config.seeds.index(seed)]
        total = film(config, leaves, seed, self.video, (self.height, self.width))
        print(f"{self.video}: seed {seed} after {frames:,} frames, return {total:.1f}")
        return 0


@dataclass(frozen=True)
class Info:
    """Dimensions, parameters, multiply-adds and device memory of a run, before it is started."""

    config: TrainConfig
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Count without allocating."""
        from fastr.count import info
        from fastr.envs import spec

        result = info(self.config, spec(self.config.task, self.config.frame_skip))
        if self.json:
            return print_json(result)
        title = f"{result['task']}, {result['method']}, preset {result['preset']}"
        rows = [(name.replace("_", " "), f"{n:,}") for name, n in result["parameters"].items()]
        rows.append(("all online networks", f"{result['parameters_total']:,}"))
        print_table(title, ("network", "parameters"), rows)
        memory = result["device_bytes_per_seed"]
        facts = [
            ("state and action dimensions", f"{result['state_dim']}, {result['action_dim']}"),
            ("agent steps, updates", f"{result['agent_steps']:,}, {result['updates']:,}"),
            ("multiply-adds per update and seed", f"{result['multiply_adds_per_update']:,}"),
            *(
                (f"device memory per seed: {k.replace('_', ' ')}", mib(v))
                for k, v in memory.items()
            ),
            (f"device memory, {result['seeds']} seed(s)", mib(result["device_bytes_total"])),
        ]
        print_table("", ("", ""), facts)
        return 0


@dataclass(frozen=True)
class Bench:
    """Time the update of all seeds, where its time goes, and what this machine could do at best."""

    config: TrainConfig
    updates: int = 20
    """Updates per repeat."""
    repeats: int = 5
    """Repeats; the median is reported."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Compile, warm up, measure."""
        from fastr.bench import bench
        from fastr.envs import spec

        if min(self.updates, self.repeats) < 1:
            raise UserError("--updates and --repeats must be at least 1.")
        sizes = spec(self.config.task, self.config.frame_skip)
        result = bench(self.config, sizes, updates=self.updates, repeats=self.repeats)
        if self.json:
            return print_json(result)
        facts = [
            (name.replace("_", " "), f"{value:,.3f}" if isinstance(value, float) else f"{value}")
            for name, value in result.items()
            if not isinstance(value, list | dict)
        ]
        print_table("fastr bench", ("", ""), facts)
        stages = result["stage_milliseconds_per_agent_step"]
        print_table(
            "Stages, each by itself; the update overlaps them, the last two run beside it",
            ("stage", "ms per agent step"),
            [(name, f"{value:.3f}") for name, value in stages.items()],
        )
        arithmetic, memory = (
            result[f"{kind}_floor_milliseconds"] for kind in ("arithmetic", "memory")
        )
        print(
            f"roofline: {result['milliseconds_per_joint_update']:.2f} ms measured, "
            f"{result['measured_over_floor']:.1f} times the higher of {arithmetic:.2f} ms "
            f"(arithmetic) and {memory:.2f} ms (memory) at this machine's measured best"
        )
        return 0


def main() -> None:
    """Run one command; bad input ends with one sentence and exit code 2."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if arguments else 2
    try:
        return command(*arguments).run()
    except UserError as error:
        print(f"fastr: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"fastr: {error}", file=sys.stderr)
        return 1


def command(name: str, *arguments: str) -> Any:
    """The command of this name with its options."""
    on_tasks = {"train": Train, "info": Info, "bench": Bench}
    on_runs = {"resume": Resume, "eval": Eval, "play": Play}
    known = [*on_tasks, *on_runs]
    if name in on_tasks:
        return task_command(name, on_tasks[name], list(arguments))
    if name in on_runs:
        return parsed(name, on_runs[name], list(arguments))
    raise UserError(
        f"{name} is not a command of fastr.{nearest(name, known)} "
        f"The commands are {', '.join(known)}."
    )


def task_command(
    name: str, kind: type[Train | Info | Bench], arguments: list[str]
) -> Train | Info | Bench:
    """A command on a task: method and preset choose the defaults of all other options."""
    method = choice(arguments, "--method", tuple(METHODS), "fastr")
    sizes = choice(arguments, "--preset", get_args(Preset), "paper")
    default = kind(config=on_this_device(preset("", method, sizes)))
    options = parsed(name, kind, arguments, default)
    if not options.config.task:
        raise UserError(f"fastr {name} needs a TASK, for example `fastr {name} walker-walk`.")
    return options


def choice(arguments: list[str], option: str, known: tuple[str, ...], default: str) -> Any:
    """The value of an option that decides how all the others are read."""
    value = default
    for i, argument in enumerate(arguments):
        if argument == option:
            value = arguments[i + 1] if i + 1 < len(arguments) else ""
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    if value not in known:
        raise UserError(
            f"{option} {value} is unknown.{nearest(value, known)} It is one of {', '.join(known)}."
        )
    return value


def on_this_device(config: TrainConfig) -> TrainConfig:
    """With the arithmetic that is fastest here at no loss in return (docs/deviations.md)."""
    import jax

    if jax.default_backend() == "cpu":
        return config
    return replace(config, agent=config.agent.accelerated())


def parsed(
    name: str, kind: type[Options], arguments: list[str], default: Options | None = None
) -> Options:
    """Options from arguments; what the parser has to say comes as one sentence."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(  # pyright: ignore[reportReturnType]
                kind,
                prog=f"fastr {name}",
                args=arguments,
                default=default,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(
            f"{one_sentence(said.getvalue())} `fastr {name} --help` lists all options."
        ) from None


def one_sentence(box: str) -> str:
    """The first paragraph and the suggested options of a boxed message."""
    lines = [line.strip("│ ").strip() for line in box.splitlines()]
    body = [line for line in lines if line and not line.startswith("╭")]
    end = next((i for i, line in enumerate(body) if set(line) <= set("─╰╯")), len(body))
    said = " ".join(body[:end]).rstrip(".")
    suggested = [line.split()[0] for line in body[end:] if line.startswith("--")]
    typed = next((word.strip(",:") for word in said.split() if word.startswith("--")), "")
    return f"{said}.{nearest(typed, suggested)}" if typed not in suggested else f"{said}."


def trained(path: Path) -> tuple[TrainConfig, int, list]:
    """A run's configuration, the frames of its newest checkpoint, and its seeds' policies."""
    from fastr.play import trained_policies
    from fastr.runs import RunDirectory

    directory = RunDirectory.open(path)
    config = from_json(directory.config["train"])
    checkpoint = directory.latest()
    for message in checkpoint.skipped:
        print(f"fastr: {message}", file=sys.stderr)
    return config, checkpoint.frames, trained_policies(config, checkpoint)


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


def print_json(result: dict[str, Any]) -> int:
    """One JSON object on stdout."""
    print(json.dumps(result))
    return 0


def print_table(title: str, columns: tuple[str, ...], rows: list[tuple]) -> None:
    """A table on stdout."""
    table = Table(*columns, title=title or None, show_header=any(columns), title_justify="left")
    for row in rows:
        table.add_row(*(f"{v:.1f}" if isinstance(v, float) else str(v) for v in row))
    Console().print(table)


def mib(size: int) -> str:
    """Bytes for people."""
    return f"{size / 2**20:,.0f} MiB"


if __name__ == "__main__":
    main()
