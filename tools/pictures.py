"""Draws the pictures of docs/method.md, when called.

Each is one SVG without scripts or fonts of its own. Colours are variables: standing alone a picture
follows the reader's system, on the site (where it is part of the page) the page's scheme.
"""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
STYLE = """\
.fastr-picture{--ink:#1c2733;--soft:#5b6875;--state:#1f6fb2;--action:#b5521b;--next:#2b7d4f;--fill:.1}
@media(prefers-color-scheme:dark){.fastr-picture{--ink:#e4e9ef;--soft:#a3afbb;--state:#6fb3ee;\
--action:#f09a66;--next:#74c796;--fill:.2}}
.fastr-picture text{font:15px system-ui,sans-serif;fill:var(--ink);stroke:none}
.fastr-picture .small{font-size:12.5px;fill:var(--soft)}
.fastr-picture .formula{font:italic 17px Georgia,serif}"""


@dataclass
class Picture:
    """Shapes on a canvas of this size, in the order in which they are drawn."""

    width: int
    height: int
    shapes: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        """One line, centred at a point unless anchored otherwise."""
        mark = f' class="{kind}"' if kind else ""
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{mark}>{escape(words)}</text>'
        )

    def box(self, x: float, y: float, size: tuple[float, float], color: str, *lines: str) -> None:
        """A rounded box with a line or two of text; the second one smaller."""
        width, height = size
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" '
            f'fill="var(--{color})" fill-opacity="var(--fill)" stroke="var(--{color})" '
            'stroke-width="1.6"/>'
        )
        first = y + height / 2 + 5 - 9 * (len(lines) - 1)
        for i, line in enumerate(lines):
            self.text(x + width / 2, first + 19 * i, line, "small" if i else "")

    def cell(self, x: float, y: float, side: float, color: str, strength: float) -> None:
        """A small square, the more opaque the stronger."""
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{side:g}" height="{side:g}" fill="var(--{color})" '
            f'fill-opacity="{strength:.2f}" stroke="var(--soft)" stroke-width=".8"/>'
        )

    def arrow(self, *points: tuple[float, float], color: str = "soft", dashed: str = "") -> None:
        """A line through these points, with a head at the last one."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        self.shapes.append(
            f'<path d="M{path}" fill="none" stroke="var(--{color})" stroke-width="1.7"'
            f"{f' stroke-dasharray={chr(34)}{dashed}{chr(34)}' if dashed else ''}/>"
        )
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        corners = [(x, y)] + [(x - 9 * dx + 5 * s * dy, y - 9 * dy + 5 * s * dx) for s in (1, -1)]
        ends = " ".join(f"{a:g},{b:g}" for a, b in corners)
        self.shapes.append(f'<polygon points="{ends}" fill="var(--{color})"/>')

    def svg(self) -> str:
        """The file's text."""
        body = "\n".join(self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="fastr-picture" '
            f'viewBox="0 0 {self.width} {self.height}">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
        )


def encoders() -> Picture:
    """One encoder per mode of the transition tensor, and the score they make."""
    p = Picture(760, 300)
    rows = [
        ("state", 30, "state s", "φₛ", "state encoder"),
        ("action", 120, "action a", "φₐ", "action encoder"),
        ("next", 225, "next state s′", "m(· ; β)", "next-state encoder"),
    ]
    for color, y, name, encoder, said in rows:
        p.text(62, y + 33, name)
        p.arrow((118, y + 28), (155, y + 28))
        p.box(158, y, (170, 56), color, encoder, said)
    p.text(62, 276, "noised at level β", "small")
    p.arrow((328, 58), (395, 58), (395, 88), color="state")
    p.arrow((328, 148), (395, 148), (395, 122), color="action")
    p.text(395, 112, "⊙", "formula")
    p.arrow((409, 105), (452, 105))
    p.box(455, 77, (120, 56), "ink", "ψ(s, a)", "the feature")
    p.arrow((575, 105), (640, 105), (640, 158))
    p.arrow((328, 253), (640, 253), (640, 202), color="next")
    p.box(575, 160, (130, 40), "ink", "score ψ ᵀ m")
    p.text(515, 64, "also read by critic and actor", "small")
    return p


def product() -> Picture:
    """The Hadamard product, coordinate by coordinate."""
    p = Picture(760, 250)
    first = [0.9, 0.15, 0.6, 0.8, 0.1, 0.7, 0.4, 0.95]
    second = [0.2, 0.9, 0.7, 0.85, 0.8, 0.1, 0.5, 0.9]
    joined = [a * b for a, b in zip(first, second, strict=True)]
    rows = [("state", 25, first), ("action", 95, second), ("ink", 175, joined)]
    for color, y, values in rows:
        for i, value in enumerate(values):
            p.cell(250 + 42 * i, y, 36, color, value)
    for i in range(8):
        p.arrow((268 + 42 * i, 137), (268 + 42 * i, 170))
        p.text(268 + 42 * i, 84, "×")
    p.text(225, 48, "φₛ(s)", "formula", "end")
    p.text(225, 118, "φₐ(a)", "formula", "end")
    p.text(225, 198, "ψ(s, a)", "formula", "end")
    p.text(605, 40, "which motions the", "small", "start")
    p.text(605, 56, "body can make here", "small", "start")
    p.text(605, 110, "which of them this", "small", "start")
    p.text(605, 126, "action drives", "small", "start")
    p.text(605, 190, "what happens:", "small", "start")
    p.text(605, 206, "both must be there", "small", "start")
    p.text(418, 238, "512 coordinates in the paper; eight are drawn", "small")
    return p


def ranking() -> Picture:
    """The loss: every anchor ranks all next states of its batch, at every noise level."""
    p = Picture(760, 330)
    scores = [
        [0.9, 0.2, 0.1, 0.35, 0.1, 0.2],
        [0.1, 0.8, 0.3, 0.1, 0.15, 0.1],
        [0.2, 0.1, 0.95, 0.2, 0.4, 0.1],
        [0.1, 0.3, 0.1, 0.75, 0.1, 0.3],
        [0.35, 0.1, 0.2, 0.1, 0.85, 0.15],
        [0.1, 0.2, 0.1, 0.3, 0.1, 0.9],
    ]
    for back in (2, 1):  # the tables behind: only what shows of them
        left, top = 180 + 14 * back, 70 - 14 * back
        p.shapes.append(
            f'<path d="M{left} {top + 14} V{top} H{left + 216} V{top + 216} h-14" fill="none" '
            'stroke="var(--soft)" stroke-width="1"/>'
        )
    for i, row in enumerate(scores):
        for j, value in enumerate(row):
            p.cell(180 + 36 * j, 70 + 36 * i, 36, "next" if i == j else "soft", value * 0.85)
    p.text(168, 93, "(s, a) of row 1", "small", "end")
    p.text(168, 129, "row 2", "small", "end")
    p.text(168, 273, "row N", "small", "end")
    p.text(288, 308, "next states of the same batch, 1 … N", "small")
    p.text(288, 26, "one table of scores per noise level, 25 of them", "small")
    p.shapes.append(
        '<rect x="178" y="140" width="220" height="40" fill="none" stroke="var(--ink)" '
        'stroke-width="2.4" rx="3"/>'
    )
    p.arrow((398, 160), (452, 160), color="ink")
    p.box(455, 125, (270, 70), "ink", "−log softmax at the true one", "mean over rows and levels")
    p.text(590, 225, "knows nothing: ln N = 6.24 for N = 512", "small")
    p.text(590, 245, "always right: 0", "small")
    p.box(455, 38, (20, 20), "next")
    p.text(485, 53, "what really came next", "small", "start")
    p.box(455, 66, (20, 20), "soft")
    p.text(485, 81, "what came next elsewhere", "small", "start")
    return p


def control() -> Picture:
    """Critics and actor on the feature, and where gradients stop."""
    p = Picture(760, 330)
    p.text(45, 75, "state s")
    p.arrow((82, 70), (207, 70))
    p.box(210, 44, (120, 52), "state", "φₛ", "parameters fixed")
    p.arrow((45, 85), (45, 206), (67, 206))
    p.box(70, 180, (110, 52), "ink", "actor π", "3 layers, tanh")
    p.arrow((180, 206), (207, 206))
    p.box(210, 180, (120, 52), "action", "φₐ", "parameters fixed")
    p.arrow((330, 70), (381, 70), (381, 121), color="state")
    p.arrow((330, 206), (381, 206), (381, 157), color="action")
    p.text(381, 145, "⊙", "formula")
    p.arrow((395, 139), (432, 139))
    p.box(435, 113, (130, 52), "ink", "ψ(s, π(s))", "target copy")
    p.arrow((565, 139), (602, 139))
    p.box(605, 100, (130, 78), "ink", "Q₁, Q₂", "Fourier features,", "one hidden layer")
    p.arrow((670, 178), (670, 290), (125, 290), (125, 236), color="ink", dashed="6 4")
    p.text(398, 282, "the actor's gradient: back through ψ and φₐ into the action", "small")
    p.text(670, 60, "target: r + γ min Q", "small")
    p.text(670, 78, "no gradient into ψ", "small")
    p.text(398, 315, "φₛ and φₐ learn from the ranking loss and the reward alone", "small")
    return p


PICTURES = {
    "encoders.svg": encoders,
    "product.svg": product,
    "ranking.svg": ranking,
    "control.svg": control,
}


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw().svg())


if __name__ == "__main__":
    main()
