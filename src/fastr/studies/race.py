"""Greedy return against processor time: fastr's methods and other packages, on one core each.

Every contestant trains in a process that is bound to one core. Processor time counts from the
first step: networks and simulator, not evaluations. A step that takes more than a second compiles
a program, and does not count either.
"""

import csv
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from fastr.core import RunError, UserError, counted, write_errors
from fastr.envs import Environment, episode_seed, load
from fastr.report.page import Axes, Curve, curves
from fastr.report.table import Cell, Table
from fastr.runs.provenance import package_version, provenance

FRAME_SKIP = 2
EPISODES = 5
"""Of each evaluation."""
EVERY = 20.0
"""Processor-seconds between evaluations."""
LATE = 0.1
"""Processor-seconds that an evaluation may begin after its time: it waits for a step to end."""
CAPACITY = 400_000
"""Transitions of the replay: more than any contestant makes."""
COMPILING = 1.0
"""Processor seconds of a step that must have compiled a program."""
SMALL = {"pi": [256, 256], "qf": [256, 256]}
PEERS: dict[str, dict[str, Any]] = {
    # Its critics have 2,048 units by default, with which it takes five times as long on a CPU.
    "sbx-crossq": {"package": "sbx", "class": "CrossQ", "policy_kwargs": {"net_arch": SMALL}},
    "sbx-sac": {"package": "sbx", "class": "SAC"},
    "sbx-td3": {"package": "sbx", "class": "TD3"},
    "sb3-sac": {"package": "stable_baselines3", "class": "SAC"},
    "sb3-td3": {"package": "stable_baselines3", "class": "TD3"},
}
"""Settings that are not the package's defaults; those that are best at this size."""
DISTRIBUTIONS = {"sbx": "sbx-rl", "stable_baselines3": "stable-baselines3"}


class Lap(NamedTuple):
    """One evaluation of one contestant."""

    program: str
    task: str
    seed: int
    frames: int
    processor_seconds: float
    mean_return: float


def race(
    tasks: Sequence[str],
    programs: Sequence[str],
    seeds: Sequence[int],
    marks: Sequence[int],
    out: Path,
    told: Callable[[str], None],
) -> list[Lap]:
    """All laps of all contestants, taking turns on the cores; those in OUT/laps.csv are kept."""
    laps = read_laps(out / "laps.csv") if (out / "laps.csv").exists() else []
    with write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    finished = {(lap.program, lap.task, lap.seed) for lap in laps}
    everyone = entered(tasks, programs, seeds)
    waiting = [one for one in everyone if one not in finished]
    free: SimpleQueue[int] = SimpleQueue()
    for core in os.sched_getaffinity(0):
        free.put(core)

    def run(program: str, task: str, seed: int) -> list[Lap]:
        core = free.get()
        try:
            return contestant(program, task, seed, max(marks), core)
        finally:
            free.put(core)

    with ThreadPoolExecutor(free.qsize()) as threads:
        futures = {threads.submit(run, *one): one for one in waiting}
        for count, future in enumerate(as_completed(futures), start=1):
            found = future.result()
            laps += found
            write_laps(laps, out / "laps.csv")
            program, task, seed = futures[future]
            told(
                f"{program}, {task}, seed {seed}: return {found[-1].mean_return:.0f} after "
                f"{found[-1].processor_seconds:.0f} processor-seconds "
                f"({count} of {counted(len(waiting), 'contestant')})"
            )
    return [lap for lap in laps if (lap.program, lap.task, lap.seed) in set(everyone)]


def entered(
    tasks: Sequence[str], programs: Sequence[str], seeds: Sequence[int]
) -> list[tuple[str, str, int]]:
    """Every training of a race, seed by seed, so that a race that is stopped compares all."""
    return [(program, task, seed) for seed in seeds for task in tasks for program in programs]


def require_installed(program: str) -> None:
    """Raise UserError unless this program is known and its package is installed."""
    from fastr.training.config import METHODS

    if program in METHODS:
        return
    if program not in PEERS:
        known = ", ".join([*PEERS, *METHODS])
        raise UserError(f"--against {program} is unknown; it is one of {known}.")
    distribution = DISTRIBUTIONS[PEERS[program]["package"]]
    if package_version(distribution) is None:
        raise UserError(f"{program} needs {distribution}: pip install 'fastr-rl[race]'.")


def contestant(program: str, task: str, seed: int, seconds: int, core: int) -> list[Lap]:
    """The laps of one contestant, trained in a process of its own on this core."""
    words = [program, task, str(seed), str(seconds)]
    done = subprocess.run(
        [sys.executable, "-m", "fastr.studies.race", *words],
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    if done.returncode:
        raise RunError(f"{program} on {task} failed:\n{done.stderr[-2_000:]}")
    return [Lap(*values) for values in json.loads(done.stdout.splitlines()[-1])]


def compete(program: str, task: str, seed: int, seconds: float) -> list[Lap]:
    """Train until this much processor time is spent; one lap per evaluation."""
    found = peer_laps if program in PEERS else own_laps
    return [Lap(program, task, seed, *lap) for lap in found(program, task, seed, seconds)]


def own_laps(method: str, task: str, seed: int, seconds: float) -> list[tuple]:
    """Frames, processor seconds and returns of a method of fastr, in the loop of `fastr train`."""
    from fastr.runs.directory import RunWriter
    from fastr.training.config import preset, to_json
    from fastr.training.evaluate import Evaluator
    from fastr.training.loop import Trainer, engine_of, simulators

    config = replace(
        preset(task, method, "laptop"),
        seeds=(seed,),
        frames=2 * FRAME_SKIP * CAPACITY,
        frame_skip=FRAME_SKIP,
        eval_frames=2 * FRAME_SKIP * CAPACITY,
        eval_episodes=EPISODES,
        replay_capacity=CAPACITY,
        checkpoint_frames=0,
    )
    spent: dict[int, float] = {}
    returns: dict[int, float] = {}

    class Timed(Trainer):
        def start_evaluation(self, frames: int) -> None:
            spent[frames] = clock()
            super().start_evaluation(frames)

    def listen(row: dict[str, Any]) -> None:
        if row["kind"] == "evaluation":
            returns[row["frames"]] = row["return"]

    with (
        ExitStack() as exits,
        tempfile.TemporaryDirectory() as folder,
        RunWriter.create(Path(folder) / "run", {"train": to_json(config), "provenance": {}}) as run,
        simulators(config) as pool,
    ):
        (simulator,) = multiprocessing.active_children()
        evaluator = exits.enter_context(Evaluator(task, FRAME_SKIP, config.agent, workers=1))
        evaluator.wait_until_started()
        start, compiling = time.process_time() + processor_seconds(simulator.pid), 0.0

        def clock() -> float:
            spent = time.process_time() + processor_seconds(simulator.pid)
            return spent - start - compiling

        trainer = Timed(config, run, pool, evaluator, engine_of(config, pool.spec))
        trainer.listeners.append(listen)
        trainer.begin(None)
        due = EVERY
        while (before := clock()) < seconds:
            if before >= due:
                trainer.start_evaluation((trainer.state.next_step - 1) * FRAME_SKIP)
                due += EVERY
            trainer.block()
            if (step := clock() - before) > COMPILING:
                compiling += step
        trainer.start_evaluation((trainer.state.next_step - 1) * FRAME_SKIP)
        trainer.record_evaluation()
    return [(frames, round(spent[frames], 2), returns[frames]) for frames in returns]


def processor_seconds(process: int | None) -> float:
    """Processor time of another process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peer_laps(program: str, task: str, seed: int, seconds: float) -> list[tuple]:
    """Frames, processor seconds and returns of another package's program."""
    from importlib import import_module

    settings = dict(PEERS[program])
    package, name = settings.pop("package"), settings.pop("class")
    kind = getattr(import_module(package), name)
    import_module("torch").set_num_threads(1)
    laps: list[tuple] = []
    with closing(load(task, FRAME_SKIP)) as judge, closing(gymnasium_env(task)) as env:
        last = time.process_time()
        spent, due = 0.0, EVERY

        class Watch(import_module("stable_baselines3.common.callbacks").BaseCallback):
            def _on_step(self) -> bool:
                nonlocal last, spent, due
                frames, step = FRAME_SKIP * self.num_timesteps, time.process_time() - last
                spent += step if step < COMPILING else 0.0
                over = spent >= seconds
                if spent >= due or over:
                    due += EVERY
                    returns = [
                        greedy_return(judge, episode_seed(seed, episode, "evaluate"), self.act)
                        for episode in range(EPISODES)
                    ]
                    laps.append((frames, round(spent, 2), float(np.mean(returns))))
                last = time.process_time()
                return not over

            def act(self, state: np.ndarray) -> np.ndarray:
                return self.model.predict(state, deterministic=True)[0]

        model = kind("MlpPolicy", env, seed=seed, buffer_size=CAPACITY, **settings)
        model.learn(2 * CAPACITY, callback=Watch())
    return laps


def greedy_return(
    environment: Environment, seed: int, act: Callable[[np.ndarray], np.ndarray]
) -> float:
    """The return of one episode."""
    state, total, over = environment.reset(seed), 0.0, False
    while not over:
        step = environment.step(act(state))
        state, over = step.next_state, step.terminated or step.truncated
        total += step.reward
    return total


def gymnasium_env(task: str) -> Any:
    """The same simulator in Gymnasium's interface, for packages that take that."""
    import gymnasium

    class Env(gymnasium.Env):
        def __init__(self):
            self.inner = load(task, FRAME_SKIP)
            spec = self.inner.spec
            self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (spec.state_dim,))
            self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (spec.action_dim,))

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
            super().reset(seed=seed, options=options)
            return self.inner.reset(int(self.np_random.integers(2**31))), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            taken = self.inner.step(np.asarray(action))
            return taken.next_state, taken.reward, taken.terminated, taken.truncated, {}

        def close(self) -> None:
            self.inner.close()

    return Env()


# Results


def read_laps(path: Path) -> list[Lap]:
    """The laps in a file that `write_laps` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Lap(program, task, int(seed), int(frames), float(seconds), float(mean))
            for program, task, seed, frames, seconds, mean in list(csv.reader(file))[1:]
        ]


def write_laps(laps: Sequence[Lap], path: Path) -> None:
    """All laps as CSV."""
    with write_errors(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Lap._fields)
        writer.writerows(sorted(laps))


def at_mark(laps: Sequence[Lap], mark: int) -> float:
    """The return of the last evaluation that began before this much processor time was spent."""
    before = [lap for lap in laps if lap.processor_seconds <= mark + LATE]
    return max(before, key=lambda lap: lap.processor_seconds).mean_return if before else 0.0


def standings(laps: Sequence[Lap], marks: Sequence[int]) -> Table:
    """Mean and every seed's return of each program on each task at each mark."""
    rows = []
    for task in dict.fromkeys(lap.task for lap in laps):
        for program in dict.fromkeys(lap.program for lap in laps):
            seeds = contestants(laps, program, task)
            if not seeds:
                continue
            cells = []
            for mark in marks:
                returns = [at_mark(own, mark) for own in seeds]
                each = ", ".join(f"{value:.0f}" for value in returns)
                cells.append(Cell(f"{np.mean(returns):.0f} ({each})", float(np.mean(returns))))
            rows.append([task, program, *cells])
    columns = ("task", "program", *(f"{mark} s" for mark in marks))
    return Table("standings", "Return at each mark: mean and every seed", columns, rows)


def contestants(laps: Sequence[Lap], program: str, task: str) -> list[list[Lap]]:
    """The laps of a program on a task, seed by seed."""
    here = [lap for lap in laps if (lap.program, lap.task) == (program, task)]
    return [[lap for lap in here if lap.seed == seed] for seed in sorted({x.seed for x in here})]


def write_results(laps: Sequence[Lap], marks: Sequence[int], out: Path) -> Table:
    """The standings, a figure per task, and how they came about; the standings."""
    table = standings(laps, marks)
    with write_errors(out):
        (out / "standings.csv").write_text(table.csv(), "utf-8")
        (out / "standings.md").write_text(table.markdown(), "utf-8")
        for task in dict.fromkeys(lap.task for lap in laps):
            lines = [curve(laps, program, task, max(marks)) for program in racers(laps, task)]
            axes = Axes("processor-seconds", "greedy return, mean over seeds")
            curves(task, task, lines, axes).save(out / f"{task}.png")
        packages = {name: package_version(name) for name in (*DISTRIBUTIONS.values(), "torch")}
        about = {
            "provenance": provenance(),
            "packages": packages,
            "peers": {name: PEERS[name] for name in racers(laps) if name in PEERS},
            "evaluation": f"{EPISODES} greedy episodes every {EVERY:.0f} s, not counted",
            "frame_skip": FRAME_SKIP,
        }
        (out / "race.json").write_text(json.dumps(about, indent=1), "utf-8")
    return table


def racers(laps: Sequence[Lap], task: str | None = None) -> Iterator[str]:
    """The programs that ran, on this task."""
    return iter(dict.fromkeys(lap.program for lap in laps if task in (None, lap.task)))


def curve(laps: Sequence[Lap], program: str, task: str, longest: int) -> Curve:
    """Mean return over seeds, and the range of the seeds, at equal processor times."""
    times = np.arange(10.0, longest + 1, 10.0)
    seeds = contestants(laps, program, task)
    returns = np.array([[at_mark(own, int(now)) for now in times] for own in seeds])
    return Curve(program, times, returns.mean(0), returns.min(0), returns.max(0))


if __name__ == "__main__":
    import fastr.cli.main  # noqa: F401  (sets what JAX reads when it is imported)

    program, task, seed, seconds = sys.argv[1:]
    print(json.dumps(compete(program, task, int(seed), float(seconds))))
