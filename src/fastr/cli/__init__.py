"""The command line.

main has the table of commands, configures JAX and says what is wrong in one sentence; training,
looking, comparing, studies and export have a group of commands each, imported when asked for.
show is shared by all; interrupts makes Ctrl-C a request to save.
"""

from fastr.cli.main import after_imports, command, run

__all__ = ["after_imports", "command", "run"]
