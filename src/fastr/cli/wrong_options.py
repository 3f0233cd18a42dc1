"""What is said of options that are wrong: one sentence where the parser has a box."""

import re
from itertools import pairwise

from fastr.core import UserError, nearest

SEVERAL = {
    "--batch-sizes": "whole numbers",
    "--compare": "NAME TASK FILE, and more such threes",
    "--methods": "names of methods",
    "--overlay": "return, factors or both",
    "--reach": "numbers",
    "--returns": "CSV files and run directories",
    "--seeds": "whole numbers",
    "--tasks": "names of tasks",
    "--track": "tensorboard, wandb or both",
}
"""What options with several values take; the parser does not say it."""


def refuse_bare(arguments: list[str]) -> None:
    """Raise UserError for an option of several values that has none; the parser would take it."""
    if {"-h", "--help"} & set(arguments):
        return
    for word, following in pairwise([*arguments, "--"]):
        name, equals, value = word.partition("=")
        option, bare = name.replace("_", "-"), not value if equals else following.startswith("--")
        if option in SEVERAL and bare:
            raise UserError(f"{option} needs a value: it takes {SEVERAL[option]}.")


def refuse_empty(arguments: list[str]) -> None:
    """Raise UserError for a value that is nothing: as a path it is the directory one is in."""
    for before, word in pairwise(["", *arguments]):
        if re.fullmatch("--[^=]+=", word) or not word:
            option = word[:-1] or (before if before.startswith("--") else "A word of the command")
            raise UserError(f"{option} is empty; give it a value, or leave it out.")


def one_sentence(box: str, usage: str) -> str:
    """The first paragraph and the suggested options of a boxed message.

    Where stdout is not UTF-8 the box is two rules of dashes, the first under the title.
    """
    lines = [line.strip("│ ").strip() for line in box.splitlines()]
    body = [line for line in lines if line][1:]
    body = body[1:] if body and set(body[0]) == {"-"} else body
    end = next((i for i, line in enumerate(body) if set(line) <= set("─╰╯-")), len(body))
    said = in_words(" ".join(body[:end]).rstrip(".")).removeprefix("Error parsing ")
    if said.startswith("Missing from"):
        return missing(said, usage)
    suggested = [line.split()[0] for line in body[end:] if line.startswith("--")]
    typed = next((word.strip(",:") for word in said.split() if word.startswith("--")), "")
    return f"{said}.{nearest(typed, suggested)}" if typed not in suggested else f"{said}."


def missing(said: str, usage: str) -> str:
    """What a command needs, by the names in its line of usage, with the example there."""
    _, name, place, *_ = usage.split()
    example = usage[usage.index("fastr", 8) :]
    listed = said.partition(": ")[2].split("(required)")
    words = [part.split()[0] for part in listed if part.strip()]
    needed = [word if word.startswith("--") else place for word in words]
    return f"fastr {name} needs {' and '.join(needed)}, for example `{example}`."


def in_words(said: str) -> str:
    """What the parser and Python say of a value that cannot be, as a user would."""
    several = r"Error parsing (--\S+): Could not find valid parse for arguments: (.+)"
    said = re.sub(several, misfitting, said)
    said = re.sub(r"Unrecognized options: ([^\s,]+).*", superfluous, said)
    no_value = "an option that takes no value has a =, or a word is empty"
    said = re.sub(r"Unrecognized options:$", f"There is one thing too many: {no_value}", said)
    said = re.sub(
        r"invalid choice '(.*)' for argument '(.+)'\. Expected one of (.+)",
        lambda found: unlisted(found[2], found[1], found[3]),
        said,
    )
    said = re.sub(r"Missing value for argument '(.+)'\. Expected .+", r"\1 needs a value", said)
    whole = r"invalid literal for int\(\) with base 10: (.+)"
    said = re.sub(whole, r"\1 is not a whole number in digits", said)
    said = re.sub(r"could not convert string to float: (.+)", r"\1 is not a number", said)
    # A value that may also be left out.
    of_names = r"Error parsing (--\S+): no type .*\['(.*)'\] does not match choices \((.+)\)"
    said = re.sub(of_names, lambda found: unlisted(found[1], found[2], found[3]), said)
    return re.sub(r"no type matching .* - <class '(?:int|float)'>: ", "", said)


def superfluous(found: re.Match[str]) -> str:
    """An option that there is not, or a word that belongs to none; the first of them."""
    name = found[1].partition("=")[0]
    return f"There is no option {name}" if name[0] == "-" else f"{name} is one word too many"


def misfitting(found: re.Match[str]) -> str:
    """Values that an option with several of them does not take."""
    option, values = found[1], " ".join(re.findall(r"'([^']*)'", found[2])) or found[2]
    takes = f"takes {SEVERAL[option]}; {values} is not that" if option in SEVERAL else ""
    takes += ", with commas instead of spaces" if takes and "," in values else ""
    return f"{option} {takes or f'cannot be {values}'}"


def unlisted(option: str, value: str, listed: str) -> str:
    """A name that is none of those an option knows, which the parser lists in quotes."""
    known = [name for name in re.findall(r"'([^']+)'", listed) if name != "None"]
    if not value:
        return f"{option} needs a value: it is one of {', '.join(known)}"
    said = f"{option} {value}" if option.startswith("--") else value
    return f"{said} is unknown.{nearest(value, known)} It is one of {', '.join(known)}"
