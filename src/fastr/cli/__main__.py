"""python -m fastr.cli: the command `fastr`."""

from fastr.cli import main

main()
