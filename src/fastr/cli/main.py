"""The command `fastr`: find the command, read its options, report what is wrong in one sentence."""

import argparse
import inspect
import os
import signal
import sys
import traceback
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple, get_args

import fastr
from fastr.cli.interrupts import stopped_by
from fastr.cli.show import Watching, reserve_stdout
from fastr.core import (
    Preset,
    RunError,
    StoppedError,
    UserError,
    configure_jax,
    nearest,
)


class Command(NamedTuple):
    """Group in the list of commands, FILE:CLASS in fastr.cli, and one line of description."""

    group: str
    place: str
    about: str


COMMANDS = {
    "train": Command("Learn", "training:Train", "train one agent per seed on a task"),
    "fit": Command("Learn", "training:Fit", "learn a representation from logged transitions"),
    "resume": Command("Learn", "training:Resume", "continue a stopped run"),
    "eval": Command("Look", "looking:Eval", "play greedy episodes of a run"),
    "play": Command("Look", "looking:Play", "film the learned policies, or watch one"),
    "info": Command("Look", "looking:Info", "sizes, work and memory of a run before it starts"),
    "bench": Command(
        "Look",
        "looking:Bench",
        "time the update and the loop; `bench race`: against other packages",
    ),
    "report": Command("Compare", "comparing:Report", "tables, curves and statistics of runs"),
    "sweep": Command("Compare", "comparing:Sweep", "run a whole experiment"),
    "misfit": Command("Study", "studies:Misfit", "test whether the factorization fits a dataset"),
    "transfer": Command("Study", "studies:Transfer", "adapt a run to other actuators"),
    "theory": Command("Study", "studies:Theory", "run the paper's claims"),
    "export": Command("Ship", "export:Export", "write a policy that runs without fastr"),
    "collect": Command("Ship", "export:Collect", "write transitions as a dataset"),
}

FOOT = """\
TASK is a DM Control Suite task (humanoid-walk), a Gymnasium environment (gym:HalfCheetah-v5), or
your own environment (my_package:MyRobot-v0). Frames are simulator steps; an agent step is
--frame-skip frames.

  fastr train walker-walk --preset laptop     learn to walk in minutes on a CPU
  fastr COMMAND --help                       all options of a command
  fastr --import MODULE COMMAND ...          import your module first: it may register methods
  fastr --version"""


configure_jax()


def main() -> None:
    """Run the command line that was typed, and exit with its code."""
    if "--json" in sys.argv:
        reserve_stdout()
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("fastr: stopped.", file=sys.stderr)
        code = stopped_by(signal.SIGINT)
    except BrokenPipeError:
        # The reader has seen enough (`fastr info ... | head`); Python would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line; its exit code. Bad input gets one sentence, and 2."""
    try:
        rest = after_imports(arguments)
        imports = tuple(arguments[1 : len(arguments) - len(rest) : 2])
        if not rest or rest[0] in ("-h", "--help", "help"):
            print(usage())
            return 0 if rest else 2
        if rest[0] == "--version":
            print(f"fastr {fastr.__version__}")
            return 0
        return command(*rest, imports=imports).run()
    except (UserError, RunError, StoppedError) as error:
        print(f"fastr: {printable(str(error))}", file=sys.stderr)
        return error.code
    except PermissionError as error:
        print(f"fastr: {printable(str(error))}.", file=sys.stderr)
        return UserError.code


def usage() -> str:
    """All commands by group."""
    lines = ["fastr: factorized spectral representations for reinforcement learning"]
    for group in dict.fromkeys(entry.group for entry in COMMANDS.values()):
        of_group = [(name, entry) for name, entry in COMMANDS.items() if entry.group == group]
        lines += ["", group, *(f"  {name:9} {entry.about}" for name, entry in of_group)]
    return "\n".join([*lines, "", FOOT])


def printable(message: str, longest: int = 4_000) -> str:
    """The message without control codes, which names in untrusted files may contain."""
    shown = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in message[:longest])
    return shown if len(message) <= longest else f"{shown}…"


def after_imports(arguments: list[str]) -> list[str]:
    """Import the module of each leading `--import MODULE`; the arguments after them."""
    while arguments[:1] == ["--import"]:
        if len(arguments) == 1:
            raise UserError("--import needs the name of a Python module, and then a command.")
        module, arguments = arguments[1], arguments[2:]
        try:
            import_module(module)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = "" if "importlib" in place.filename else f", {place.filename}:{place.lineno}"
            reason = " ".join(str(error).split())
            raise UserError(
                f"--import {module} failed ({type(error).__name__}: {reason}{where}); MODULE is "
                "the name of a Python module, installed or in a directory on PYTHONPATH."
            ) from error
    return arguments


def command(name: str, *arguments: str, imports: tuple[str, ...] = ()) -> Any:
    """The command of this name with its options."""
    if name not in COMMANDS:
        raise UserError(
            f"{name} is not a command of fastr.{nearest(name, COMMANDS)} `fastr --help` lists the "
            "commands; options come after the command."
        )
    if (name, *arguments[:1]) == ("bench", "race"):
        from fastr.cli.looking import Race

        return parsed("bench race", Race, arguments[1:])
    module, _, of_class = COMMANDS[name].place.partition(":")
    kind = getattr(import_module(f"fastr.cli.{module}"), of_class)
    if name == "fit":
        return fit_command(kind, arguments)
    if name in ("train", "info", "bench"):
        return task_command(name, kind, arguments)
    if name == "misfit":
        return misfit_command(kind, arguments)
    if name == "sweep":
        return replace(sweep_command(kind, arguments), imports=imports)
    return parsed(name, kind, arguments)


def task_command(name: str, kind: type[Any], arguments: tuple[str, ...]) -> Any:
    """A command on a task: --method and --preset choose the defaults of all other options."""
    from fastr.training.config import grounded, on_this_device, preset, usual_preset

    asked = chosen(arguments, usual_preset())
    default = kind(config=on_this_device(preset("", asked.method, asked.preset)))
    options = parsed(name, kind, arguments, default)
    if not options.config.task and not options.config.offline:
        raise UserError(f"fastr {name} needs a TASK, for example `fastr {name} walker-walk`.")
    return replace(options, config=grounded(options.config))


def fit_command(kind: type[Any], arguments: tuple[str, ...]) -> Any:
    """fastr fit LOG: training from the log alone, of the representation alone."""
    if {"-h", "--help"} & set(arguments):
        return task_command("fit", kind, ("--help",))
    if not arguments or arguments[0].startswith("-"):
        raise UserError(
            "fastr fit needs a LOG, and options after it: `fastr fit log.npz --out runs/fit`."
        )
    log, *options = arguments
    alone = ("--data", log, "--offline", "--learns", "representation")
    return task_command("fit", kind, (*options, *alone))


def misfit_command(kind: type[Any], arguments: tuple[str, ...]) -> Any:
    """fastr misfit: --preset chooses the defaults of all other options."""
    import jax

    from fastr.studies.misfit import preset

    config = preset(chosen(arguments, "paper").preset)
    if jax.default_backend() != "cpu":
        config = replace(config, predictor=replace(config.predictor, precision="tf32"))
    return parsed("misfit", kind, arguments, kind(config=config))


def sweep_command(kind: type[Any], arguments: tuple[str, ...]) -> Any:
    """fastr sweep: the options after -- are for every training."""
    from fastr.studies.experiments import parted

    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, training = parsed("sweep", kind, arguments[:end]), arguments[end + 1 :]
    # The sweep tries the others on each method, in processes that load JAX.
    parsed("train", Watching, tuple(parted(training)[1]))
    return replace(options, options=training)


def chosen(arguments: tuple[str, ...], usual: Preset) -> argparse.Namespace:
    """The method and the preset, which are read before all other options."""
    first = argparse.ArgumentParser(prog="fastr", add_help=False, allow_abbrev=False)
    first.add_argument("--method", default="fastr")
    first.add_argument("--preset", default=usual)
    asked, _ = first.parse_known_args(arguments)
    if asked.preset not in get_args(Preset):
        asked.preset = usual  # The other parser refuses what was written.
    return asked


def parsed(name: str, kind: type[Any], arguments: tuple[str, ...], default: Any = None) -> Any:
    """Options from arguments; for wrong ones the parser prints its own message and exits with 2."""
    import tyro

    markers = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands, tyro.conf.DisallowNone)
    return tyro.cli(
        kind,
        prog=f"fastr {name}",
        description=inspect.getdoc(kind),
        args=arguments,
        default=default,
        config=markers,
        registry=joined_help(),
    )


def joined_help() -> Any:
    """The parser's own rules, without its line breaks in help texts at the ends of source lines."""
    from tyro.constructors import ConstructorRegistry, StructConstructorSpec

    registry, asking = ConstructorRegistry(), []

    @registry.struct_rule
    def _(info: Any) -> StructConstructorSpec | None:
        # The other rules are asked through the same registry, which asks this one again.
        if asking:
            return None
        asking.append(info)
        spec = registry.get_struct_spec(info)
        asking.clear()
        if not isinstance(spec, StructConstructorSpec):
            return None
        texts = (f.helptext() if callable(f.helptext) else f.helptext for f in spec.fields)
        joined = [" ".join((text or "").split()) for text in texts]
        fields = zip(spec.fields, joined, strict=True)
        return replace(spec, fields=tuple(replace(f, helptext=text) for f, text in fields))

    return registry
