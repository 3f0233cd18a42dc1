"""One colour per method, the same in every figure, apart for every kind of colour vision.

Made from Okabe and Ito's set, darkened on white and lightened on black until each has a contrast
of at least 3 to 1 with its background. Variants of a method ("FaStR, quick") share its colour and
differ in their dashes, which are given out chart by chart: a report may have more variants than
there are patterns to tell apart. From the ninth method on, colours come again with dots.
"""

from collections.abc import Sequence

LIGHT = ("#0072b2", "#d55e00", "#00845f", "#aa3377", "#8f6a00", "#2f93c9", "#555555", "#7f4b1e")
DARK = ("#58a9e6", "#f28b4b", "#3cc79a", "#e680b8", "#e0b341", "#9bd3f5", "#bdbdbd", "#cfa17c")
DASHES = (
    ("", "7 3", "9 3 2 3", "14 4", "9 3 2 3 2 3", "5 2 5 8", "20 3 3 3", "5 2 5 2 5 8", "14 3 6 3"),
    ("2 3", "4 2", "2 3 2 7", "2 7", "4 2 4 6", "2 3 2 3 2 9", "4 2 2 2", "2 12", "4 2 4 2 4 8"),
)
"""Of a method and its variants: while colours are new, and when they come again."""


def looks(lines: Sequence[str], methods: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Of the lines of one chart: places in the report's palette, and dash patterns."""
    # Lines that are no methods (of a theory's study, say) have a palette of their own.
    known = [label for label in methods if set(lines) & set(methods)]
    names = list(dict.fromkeys([*known, *lines]))
    return {label: (place(label, names), dash(label, lines, names)) for label in lines}


def place(label: str, names: Sequence[str]) -> int:
    """Place in the palette; what is no method of the report is grey."""
    return _turn(label, names)[1] if label in names else 6


def dash(label: str, lines: Sequence[str], names: Sequence[str]) -> str:
    """Unbroken for a method itself, and a pattern for each of its variants in this chart."""
    patterns = DASHES[_turn(label, names)[0] % len(DASHES)]
    method = family(label)
    variants = [name for name in names if name in lines and family(name) == method != name]
    return patterns[(variants.index(label) + 1) % len(patterns) if label in variants else 0]


def _turn(label: str, names: Sequence[str]) -> tuple[int, int]:
    """How often the palette has been gone through before this method, and its place in it."""
    families = list(dict.fromkeys(family(name) for name in names))
    return divmod(families.index(family(label)), len(LIGHT))


def family(label: str) -> str:
    """The method's own name, without what makes a variant of it."""
    return label.partition(", ")[0]
