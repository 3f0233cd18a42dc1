"""One colour per method, the same in every figure, apart for every kind of colour vision.

Made from Okabe and Ito's set, darkened on white and lightened on black until each has a contrast
of at least 3 to 1 with its background. Variants of a method ("FaStR, quick") share its colour and
differ in their dashes; from the ninth method on, colours come again with dots.
"""

from collections.abc import Sequence

LIGHT = ("#0072b2", "#d55e00", "#00845f", "#aa3377", "#8f6a00", "#2f93c9", "#555555", "#7f4b1e")
DARK = ("#58a9e6", "#f28b4b", "#3cc79a", "#e680b8", "#e0b341", "#9bd3f5", "#bdbdbd", "#cfa17c")
DASHES = (
    ("", "7 3", "9 3 2 3", "14 4", "9 3 2 3 2 3", "5 2 5 8", "20 3 3 3", "5 2 5 2 5 8", "14 3 6 3"),
    ("2 3", "4 2", "2 3 2 7", "2 7", "4 2 4 6", "2 3 2 3 2 9", "4 2 2 2", "2 12", "4 2 4 2 4 8"),
)
"""Of a method and its variants: while colours are new, and when they come again."""


def names_of(lines: Sequence[str], methods: Sequence[str]) -> list[str]:
    """The names that share a chart's palette: the report's, and after them what it lacks."""
    known = [label for label in methods if set(lines) & set(methods)]
    return list(dict.fromkeys([*known, *lines]))


def color(label: str, methods: Sequence[str]) -> tuple[int, str]:
    """Place in the palette and dash pattern; what is no method of the report is grey."""
    if label not in methods:
        return 6, ""
    families = [family(name) for name in methods]
    known = list(dict.fromkeys(families))
    turn, place = divmod(known.index(family(label)), len(LIGHT))
    variant = families[: list(methods).index(label)].count(family(label))
    dashes = DASHES[turn % len(DASHES)]
    return place, dashes[variant % len(dashes)]


def family(label: str) -> str:
    """The method's own name, without what makes a variant of it."""
    return label.partition(", ")[0]
