"""python -m fastr.cli: the command `fastr`."""

from fastr.cli.main import main

main()
