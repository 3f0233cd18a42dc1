"""fastr in Python: train a run or load one, and use what it learned.

run = fastr.train("walker-walk", frames=40_000)
action, _ = run.policy().predict(observation)
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Float32

from fastr import envs
from fastr.core import Preset, RunError, UserError, nearest
from fastr.data.logs import log_of
from fastr.envs.processes import WorkerError
from fastr.export.export import Format, statistics, write_policy
from fastr.export.numpy_policy import flat, unlike
from fastr.export.play import greedy_returns, unseen_episodes
from fastr.runs import RunDirectory, RunWriter
from fastr.runs.contract import CONTRACT, Contract
from fastr.runs.directory import run_name
from fastr.runs.summary import evaluations
from fastr.training.config import (
    TrainConfig,
    from_json,
    grounded,
    on_this_device,
    to_json,
    usual_preset,
)
from fastr.training.config import preset as preset_of
from fastr.training.log import Log
from fastr.training.loop import LOG_SHA256, begin, check_possible
from fastr.training.loop import train as train_run
from fastr.training.progress import TrainingProgress
from fastr.training.trained import Trained
from fastr.training.trained import load as load_trained

if TYPE_CHECKING:
    from pandas import DataFrame

Env = str | Callable[[], Any]
"""A task (walker-walk, my_package:MyRobot-v0), an id that is registered with Gymnasium, or a
function that makes a Gymnasium environment."""
Callback = Callable[[dict[str, Any]], bool | None]
"""Gets every row of a training as it is recorded; False stops the training, which is saved."""


class Policy:
    """The greedy policy of one seed, in the environment's own units."""

    def __init__(self, trained: Trained, contract: Contract):
        self.trained, self.contract = trained, contract

    def predict(
        self,
        observation: object,
        state: object = None,  # noqa: ARG002  (here and below: Stable-Baselines3's signature)
        episode_start: object = None,  # noqa: ARG002
        deterministic: object = True,  # noqa: ARG002, FBT002
    ) -> tuple[Float32[np.ndarray, "*batch action"], None]:
        """The action for an observation, or actions for several; with None, as it has no memory.

        An observation is what the environment returns: an array, or a dict of arrays by name. Each
        new number of observations compiles once.
        """
        normalized = self.trained.act(_flat(observation, self.contract))
        return self.contract.commands(normalized), None

    def check(self, observations: object) -> list[str]:
        """One line for each entry of a recording (100 steps, say) that is unlike training.

        An entry is named if its mean is far from training's, or its spread much larger: it may be
        in another unit, or in another's place.
        """
        facts = self.contract.to_json() | {"statistics": statistics(self.trained)}
        return unlike(_flat(observations, self.contract), facts)


class Run:
    """A training run, finished or not: what it learned until its newest checkpoint."""

    def __init__(self, path: Path, trained: Trained, contract: Contract):
        self.path, self.contract, self._trained = path, contract, trained

    @property
    def config(self) -> TrainConfig:
        """What was trained: task, method, every hyperparameter."""
        return self._trained.config

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that were trained."""
        return self.config.seeds

    @property
    def frames(self) -> int:
        """Simulator steps that the training had seen."""
        return self._trained.frames

    def __repr__(self) -> str:
        config = self.config
        return f"Run({str(self.path)!r}: {config.method} on {config.task}, {self.frames:,} frames)"

    def policy(self, seed: int | None = None) -> Policy:
        """The policy of this seed, or of the first."""
        return Policy(self.trained(seed), self.contract)

    def trained(self, seed: int | None = None) -> Trained:
        """One seed with its networks as JAX functions."""
        return self._trained if seed is None else self._trained.with_seed(seed)

    def features(
        self, observations: object, actions: object, seed: int | None = None
    ) -> Float32[np.ndarray, "*batch feature"]:
        """The features psi(s, a) that the critics read; actions in the environment's own units."""
        normalized = self.contract.normalized(actions)
        return self.trained(seed).features(_flat(observations, self.contract), normalized)

    def curve(self) -> "DataFrame":
        """Every evaluation as a row: frames, seed, return."""
        from pandas import DataFrame

        rows = RunDirectory.open(self.path).rows()
        found = [
            (frames, seed, value)
            for seed in self.seeds
            for frames, value in evaluations(rows, seed)
        ]
        return DataFrame(found, columns=["frames", "seed", "return"])

    def evaluate(self, episodes: int = 10) -> Float[np.ndarray, "seed episode"]:
        """Undiscounted returns of greedy episodes that training has not been evaluated on."""
        chosen = unseen_episodes(self._trained, episodes)
        return greedy_returns(self._trained.every_seed(), self.config.task, chosen)

    def export(
        self, path: str | Path, kind: Format = "onnx", seed: int | None = None
    ) -> dict[str, Any]:
        """Write a policy that needs neither fastr nor JAX into a new folder; its facts."""
        return write_policy(self.trained(seed), RunDirectory.open(self.path), Path(path), kind)[0]

    def resume(self, frames: int | None = None, callback: Callback | None = None) -> "Run":
        """Train on: to the end of the budget, or to a larger one."""
        config = check_longer(self.config, frames, self.path)
        log = _opened_log(config, RunDirectory.open(self.path))
        check_possible(config, self.path, log)
        writer, checkpoint = RunWriter.resume(self.path, frames)
        _trained(config, writer, checkpoint, callback, log)
        return _opened(self.path, config.task)


def train(
    env: Env | None,
    method: str = "fastr",
    *,
    seeds: Sequence[int] = (0,),
    frames: int | None = None,
    preset: Preset | None = None,
    out: str | Path | None = None,
    callback: Callback | None = None,
    **options: Any,
) -> Run:
    """Train a method, all seeds side by side, and return the run.

    `preset` is laptop without an accelerator, else paper. `out` is a new folder, by default
    runs/TASK-METHOD-DATE. Any other setting of `fastr train` is an option by its name:
    frame_skip=1, eval_frames=2_000, discount=0.98, noise_levels=10. Simulators and evaluations run
    in processes of their own, also from a notebook or a script without a guarded main part. Without
    an environment (None) it learns from a log: data="log.npz", offline=True.
    """
    task = "" if env is None else task_of(env)
    config = on_this_device(preset_of(task, method, preset or usual_preset()))
    wanted = {"seeds": tuple(seeds)} | ({} if frames is None else {"frames": frames}) | options
    config = grounded(with_options(config, wanted))
    path = Path(out) if out is not None else Path("runs") / run_name(config.title, config.method)
    log = _opened_log(config)
    _trained(config, begin(config, path, log), None, callback, log)
    return _opened(path, config.task)


def load(path: str | Path, *, env: Env | None = None) -> Run:
    """The run in this folder at its newest sound checkpoint.

    Files are checked and nothing in them is executed; whatever is wrong with them is a
    `fastr.core.UserError`. A damaged checkpoint is passed over for the one before, with a warning.
    A run on an environment that a function made needs that function as `env` to be evaluated,
    exported or resumed.
    """
    return _opened(path, None if env is None else task_of(env))


def _opened(path: str | Path, task: str | None) -> Run:
    """The run, on an environment that this program knows by another name, if one is given."""
    trained = load_trained(path)
    if task is not None:
        trained = replace(trained, config=replace(trained.config, task=task))
    return Run(trained.path, trained, Contract.read(trained.path / CONTRACT))


def _flat(observation: object, contract: Contract) -> np.ndarray:
    """An observation's entries in order; UserError unless it has the contract's parts."""
    try:
        return flat(observation, contract.to_json()["observation"])
    except ValueError as error:
        raise UserError(str(error)) from None


def task_of(env: Env) -> str:
    """The task that this environment is to a run."""
    if callable(env):
        return envs.make(env, getattr(env, "__name__", type(env).__name__))
    import gymnasium

    # What this program has registered is unknown to its worker processes: they get its entry.
    found = gymnasium.registry.get(env)
    if found is None:
        return env
    if str(found.entry_point).startswith("gymnasium."):
        return f"gym:{env}"
    return envs.make(lambda **options: gymnasium.make(found, **options), env)


def with_options(config: TrainConfig, options: Mapping[str, Any]) -> TrainConfig:
    """The configuration with settings changed by name, wherever in it they are."""
    values = to_json(config)
    for name, value in options.items():
        places = [place for place in _places(config, values) if name in place]
        if not places or is_dataclass(places[0][name]):
            known = [name for place in _places(config, values) for name in place]
            raise UserError(f"There is no option {name}.{nearest(name, known)}")
        places[0][name] = value
    return from_json(values)


def _places(node: Any, values: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of a configuration and of every one inside it."""
    inner = [name for name in (f.name for f in fields(node)) if is_dataclass(getattr(node, name))]
    parts = (_places(getattr(node, name), values[name]) for name in inner)
    return [values, *(place for part in parts for place in part)]


def check_longer(config: TrainConfig, frames: int | None, path: Path) -> TrainConfig:
    """The configuration with a larger budget, if one is given; UserError if it is not larger."""
    if frames is None:
        return config
    if frames <= config.frames:
        raise UserError(
            f"--frames is {frames:,}; {path} has a budget of {config.frames:,} frames, and the new "
            "one must be larger."
        )
    return replace(config, frames=frames)


def _opened_log(config: TrainConfig, run: RunDirectory | None = None) -> Log | None:
    log = log_of(config, run and run.config["provenance"].get(LOG_SHA256))
    if log is not None and log.doubt:
        warnings.warn(log.doubt, stacklevel=3)
    return log


def _trained(
    config: TrainConfig,
    writer: RunWriter,
    checkpoint: Any,
    callback: Callback | None,
    log: Log | None,
) -> None:
    """Train to the end, or until the callback returns False or Ctrl-C is pressed; both save."""
    stop = []

    def listen(row: dict[str, Any]) -> None:
        if callback is not None and callback(row) is False:
            stop.append(row)

    with writer, TrainingProgress(config) as progress:
        try:
            train_run(
                config,
                writer,
                checkpoint,
                listeners=(progress, listen),
                stopped=lambda: bool(stop),
                estimate=progress.estimate,
                log=log,
            )
        except WorkerError as error:
            raise RunError(f"{str(error).removesuffix('.')}; {writer.standing()}.") from error
