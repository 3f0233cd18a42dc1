"""The command line.

main has the table of commands and says what is wrong in one sentence; every other file is one group
of commands: training, looking, sizing, report, sweep, data (misfit), transfer, theory, export,
collect. show is shared by all; interrupts makes Ctrl-C a request to save; runtime configures JAX.
Only the command that is asked for is imported: most need JAX, a report or a sweep does not.
"""

from fastr.cli.main import after_imports, command, run

__all__ = ["after_imports", "command", "run"]
