"""The command line: which command, with which options, and what is said when they are wrong."""

import contextlib
import errno
import io
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, get_args

from fastr.cli import runtime
from fastr.cli.interrupts import end_at_once, raise_where_heard, stopped_by
from fastr.cli.wrong_options import one_sentence, refuse_bare, refuse_empty
from fastr.core import Preset, RunError, StoppedError, UserError, nearest
from fastr.runs.letters import open_closed, reserve_stdout, say, spell_out

runtime.configure()

USAGE = """\
fastr: factorized spectral representations for reinforcement learning

  fastr train TASK    train one agent per seed    fastr train walker-walk --preset quick
  fastr resume RUN    continue a stopped run      fastr resume runs/gait
  fastr eval RUN      play greedy episodes        fastr eval runs/gait --episodes 20
  fastr play RUN      show the learned policies   fastr play runs/gait --video gait.mp4
  fastr export RUN    a policy for elsewhere      fastr export runs/gait --out gait
  fastr info TASK     sizes, work and memory      fastr info humanoid-walk --method ctrl-sr
  fastr bench TASK    time the update             fastr bench humanoid-walk --seeds 0 1 2
  fastr transfer RUN  adapt to other actuators    fastr transfer runs/gait --shift permutation:7
  fastr theory        run the paper's claims      fastr theory separation --out pages/theory
  fastr collect TASK  write transitions           fastr collect walker-walk --out walker-v0
  fastr misfit DATA   does the factorization fit  fastr misfit walker-v0 --preset quick
  fastr report RUNS   tables, curves, statistics  fastr report runs --out report
  fastr sweep NAME    run a whole experiment      fastr sweep table1 --dry-run

TASK is a DM Control Suite task (humanoid-walk), a Gymnasium environment (gym:HalfCheetah-v5),
or an environment of your own (my_package:MyRobot-v0). `fastr COMMAND --help` explains every
option. Frames are simulator steps; an agent step is --frame-skip frames. `fastr --import MODULE
COMMAND ...` first imports a module of yours, which may register methods. `fastr --version`."""

CLOSED = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)
"""What the system says of paths that a user should not have given."""
ON_TASKS = {"train": "training.Train", "info": "sizing.Info", "bench": "sizing.Bench"}
OTHERS = {
    "resume": "training.Resume",
    "eval": "looking.Eval",
    "play": "looking.Play",
    "export": "export.Export",
    "theory": "theory.Theory",
    "transfer": "transfer.Transfer",
    "collect": "collect.Collect",
    "report": "report.Report",
}
"""Commands by the file and class of theirs in fastr.cli.

Only the one that was asked for is imported: most bring in JAX, and a report or a sweep needs none.
"""

TRAINING = {"train", "resume", "transfer"}
"""Commands that save when Ctrl-C comes, once they train; before, it ends them at once."""

Options = TypeVar("Options")
LONGEST = 4_000
"""Characters of a sentence; names in files may be longer."""


def main() -> None:
    """Run one command; bad input ends with one sentence and exit code 2."""
    open_closed()
    spell_out()
    if "--json" in sys.argv and {"-h", "--help"}.isdisjoint(sys.argv):
        reserve_stdout()
    code = 1
    asked: list[int] = []
    try:
        if name_in(sys.argv[1:]) in TRAINING:
            end_at_once()
        else:
            asked = raise_where_heard()
        code = run(sys.argv[1:])
    except BrokenPipeError:
        # The reader has seen enough (`fastr train --help | head`).
        pass
    except KeyboardInterrupt:
        # A second one need not wait for what is still tidied up.
        end_at_once()
        say("fastr: stopped.")
        code = stopped_by(asked[0] if asked else signal.SIGINT)
    sys.exit(flushed(code))


def flushed(code: int) -> int:
    """The exit code once everything is written: 1 for 0 where nobody has read to the end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            # Else Python tries again at its end, and says so.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            code = code or 1
    return code


def run(arguments: list[str]) -> int:
    """Run one command line; the exit code."""
    try:
        given, arguments = arguments, after_imports(arguments)
        imports = tuple(given[1 : len(given) - len(arguments) : 2])
        if len(arguments) > 1 and arguments[0] == "help":
            arguments = [arguments[1], "--help"]
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(USAGE)
            return 0 if arguments else 2
        if arguments[0] == "--version":
            if arguments[1:]:
                raise UserError(
                    f"{arguments[1]} is one word too many; `fastr --version` takes none."
                )
            print(f"fastr {version('fastr')}")
            return 0
        return command(*arguments, imports=imports).run()
    except (UserError, RunError, StoppedError) as error:
        say(f"fastr: {harmless(str(error))}")
        return error.code
    except OSError as error:
        if error.errno not in CLOSED or error.filename is None:
            raise
        say(f"fastr: {harmless(str(error.filename), 200)} cannot be opened ({error.strerror}).")
        return UserError.code


def harmless(said: str, longest: int = LONGEST) -> str:
    """What a terminal only shows: a name in a file may hold codes that it would obey."""
    shown = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in said[:longest])
    return shown if len(said) <= longest else f"{shown}…"


def after_imports(arguments: list[str]) -> list[str]:
    """What follows --import MODULE, once those modules are there with the methods they register.

    Only ever asked for by the user: a run that names a method of one's own imports nothing.
    """
    while arguments[:1] == ["--import"]:
        module, *rest = arguments[1:] or [""]
        if not module:
            raise UserError("--import needs the name of a Python module, and then a command.")
        try:
            import_module(module)
        except (Exception, SystemExit) as error:
            raise UserError(import_failure(module, error)) from None
        arguments = rest
    return arguments


def name_in(arguments: list[str]) -> str:
    """The command's name, behind all --import MODULE."""
    while arguments[:1] == ["--import"]:
        arguments = arguments[2:]
    return arguments[0] if arguments else ""


def import_failure(module: str, error: BaseException) -> str:
    """Why a module could not be imported, and where in it that is."""
    reason = error.msg if isinstance(error, SyntaxError) else str(error)
    said = " ".join(reason.split()).rstrip(".")
    if isinstance(error, SystemExit):
        said = f"it ended itself with sys.exit({said})"
    elif not isinstance(error, ImportError | UserError):
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if place := place_in_module(error):
        return f"--import {module} failed in {place}: {said}."
    return (
        f"--import {module} failed ({said}); it takes the name of a Python module that is "
        "installed, or lies in a directory on PYTHONPATH."
    )


def place_in_module(error: BaseException) -> str:
    """File and line of the module's own code that failed, not of what it called; else nothing."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{error.filename}, line {error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, import_module.__code__.co_filename)
        and not frame.filename.startswith("<frozen importlib")
    ]
    own = [f for f in frames if Path(f.filename).is_relative_to(Path(frames[0].filename).parent)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def command(name: str, *arguments: str, imports: tuple[str, ...] = ()) -> Any:
    """The command of this name with its options; commands that it names need the imports too."""
    known = [*ON_TASKS, *OTHERS, "misfit", "sweep"]
    if name in ON_TASKS:
        return task_command(name, imported(ON_TASKS[name]), list(arguments), imports)
    if name in OTHERS:
        return parsed(name, imported(OTHERS[name]), list(arguments))
    if name == "misfit":
        return misfit_command(list(arguments))
    if name == "sweep":
        return replace(sweep_command(list(arguments)), imports=imports)
    if behind := [word for word in arguments if word in known]:
        raise UserError(
            f"{name} stands before the command, which comes first: `fastr {behind[0]} ...`; "
            f"`fastr {behind[0]} --help` shows what follows it."
        )
    raise UserError(
        f"{name} is not a command of fastr.{nearest(name, known)} "
        f"The commands are {', '.join(known)}."
    )


def imported(place: str) -> Any:
    """The class of a command, FILE.CLASS."""
    module, _, name = place.partition(".")
    return getattr(import_module(f"fastr.cli.{module}"), name)


def task_command(name: str, kind: type[Any], arguments: list[str], imports: tuple[str, ...]) -> Any:
    """A command on a task: method and preset choose the defaults of all other options."""
    from fastr.studies.experiments import importing
    from fastr.training.config import METHODS, grounded, on_this_device, preset
    from fastr.training.methods import OWN

    method = choice(arguments, "--method", tuple(METHODS), "fastr", OWN)
    sizes = choice(arguments, "--preset", get_args(Preset), "paper")
    default = kind(config=on_this_device(preset("", method, sizes)))
    asking = ("fastr", *importing(imports), name, "--method", method)
    options = parsed(name, kind, arguments, default, () if method == "fastr" else asking)
    if not options.config.task:
        raise UserError(f"fastr {name} needs a TASK, for example `fastr {name} walker-walk`.")
    return replace(options, config=grounded(options.config))


def misfit_command(arguments: list[str]) -> Any:
    """fastr misfit: the preset chooses the defaults of all other options."""
    import jax

    from fastr.cli.data import Misfit
    from fastr.studies.misfit.config import preset as misfit_preset

    sizes = choice(arguments, "--preset", get_args(Preset), "paper")
    config = misfit_preset(sizes)
    if jax.default_backend() != "cpu":
        config = replace(config, predictor=replace(config.predictor, precision="tf32"))
    return parsed("misfit", Misfit, arguments, Misfit(config=config))


def sweep_command(arguments: list[str]) -> Any:
    """fastr sweep: what stands behind -- is for every training."""
    from fastr.cli.sweep import Sweep
    from fastr.cli.watching import Watching
    from fastr.studies.experiments import parted

    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, training = parsed("sweep", Sweep, arguments[:end]), tuple(arguments[end + 1 :])
    # The others are tried on each method, in processes that load JAX.
    parsed("train", Watching, list(parted(training)[1]))
    return replace(options, options=training)


def usage_of(name: str) -> str:
    """A command's line in USAGE."""
    return next(line for line in USAGE.splitlines() if line.startswith(f"  fastr {name} "))


def choice(
    arguments: list[str], option: str, known: tuple[str, ...], default: str, hint: str = ""
) -> Any:
    """The value of an option that decides how all the others are read."""
    value = default
    for i, argument in enumerate(arguments):
        if argument == option:
            value = arguments[i + 1] if i + 1 < len(arguments) else ""
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    if value not in known:
        wrong = f"{option} {value} is unknown.{nearest(value, known)}"
        wrong = wrong if value else f"{option} needs a name."
        raise UserError(f"{wrong} It is one of {', '.join(known)}.{hint}")
    return value


def parsed(
    name: str,
    kind: type[Options],
    arguments: list[str],
    default: Options | None = None,
    asking: Sequence[str] = (),
) -> Options:
    """Options from arguments; what the parser has to say comes as one sentence.

    With words to ask for help by where the command's name is not enough: methods differ in theirs.
    """
    import tyro

    from fastr.cli.paragraphs import Paragraphs, wrapped

    refuse_bare(arguments)
    said = io.StringIO()
    markers = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands, tyro.conf.DisallowNone)
    try:
        with contextlib.redirect_stderr(said):
            options = tyro.cli(
                kind,
                prog=f"fastr {name}",
                description=wrapped(kind.__doc__ or ""),
                args=arguments,
                default=default,
                config=markers,
                registry=Paragraphs(),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        wrong = one_sentence(said.getvalue(), usage_of(name))
        words = shlex.join([*(asking or ("fastr", name)), "--help"])
        of = f" of {asking[-1]}" if asking else ""
        raise UserError(f"{wrong} `{words}` lists all options{of}.") from None
    refuse_empty(arguments)
    return options  # pyright: ignore[reportReturnType]


if __name__ == "__main__":
    main()
