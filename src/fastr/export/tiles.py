"""Pictures of several episodes side by side, labelled, with what a policy makes of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

GAP = 6
BACKGROUND, STRIP = (24, 26, 31), (36, 39, 46)
TEXT = (255, 255, 255)
MUTED = (176, 182, 194)
POSITIVE, NEGATIVE = (86, 180, 233), (230, 159, 0)
"""Sky blue and orange: told apart by every kind of colour vision."""
STRONGEST = 8
"""Coordinates in the strip of bars."""
FADING = 0.98
"""What a picture leaves of the bars' scale: one spike should not flatten the rest of a film."""


@dataclass(frozen=True)
class Tile:
    """One episode at one moment."""

    picture: UInt8[np.ndarray, "height width 3"]
    label: str
    note: str = ""
    """Shown at the right: the return so far, say."""
    bars: tuple[tuple[int, float], ...] = ()
    """Coordinates and their values in [-1, 1]."""
    over: bool = False


class Strongest:
    """The strongest coordinates of a changing vector, each in one place while it is among them."""

    def __init__(self, count: int = STRONGEST):
        self.count = count
        self.places: list[int] = []
        self.scale = 1e-12

    def update(self, vector: Float[np.ndarray, " feature"]) -> tuple[tuple[int, float], ...]:
        """Coordinates and values, in units of the largest value of late."""
        size = np.abs(vector)
        self.scale = max(FADING * self.scale, float(size.max()))
        # Stable, so that equals do not change places.
        top = np.argsort(-size, kind="stable")[: self.count].tolist()
        fresh = iter([index for index in top if index not in self.places])
        places = self.places or top
        self.places = [index if index in top else next(fresh) for index in places]
        return tuple((index, float(vector[index]) / self.scale) for index in self.places)


def grid(count: int) -> tuple[int, int]:
    """Rows and columns for so many tiles: up to three in a row, then as square as can be."""
    columns = count if count <= 3 else math.ceil(math.sqrt(count))
    return math.ceil(count / columns), columns


def canvas_size(count: int, height: int, width: int) -> tuple[int, int]:
    """Height and width of so many tiles of this size under a title; even, as video wants it."""
    rows, columns = grid(count)
    tall = _title_height(height) + rows * (height + GAP)
    wide = columns * (width + GAP) + GAP
    return tall + tall % 2, wide + wide % 2


def tile_height(height: int, *, bars: bool) -> int:
    """Pixels of a tile whose picture is so high, with bars under it or without."""
    return height + (height // 5 + _label_size(height) + 6 if bars else 0)


def mosaic(tiles: Sequence[Tile], title: str) -> UInt8[np.ndarray, "tall wide 3"]:
    """All tiles in one picture."""
    images = [drawn(tile) for tile in tiles]
    width, height = images[0].size
    tall, wide = canvas_size(len(tiles), height, width)
    _, columns = grid(len(tiles))
    canvas = Image.new("RGB", (wide, tall), BACKGROUND)
    top = _title_height(height)
    middle = (GAP + 4, top // 2)
    size = _fitting(title, _font_size(height), wide - 2 * middle[0])
    ImageDraw.Draw(canvas).text(middle, title, TEXT, _font(size), anchor="lm")
    for i, image in enumerate(images):
        row, column = divmod(i, columns)
        canvas.paste(image, (GAP + column * (width + GAP), top + row * (height + GAP)))
    return np.array(canvas)


def drawn(tile: Tile) -> Image.Image:
    """One tile: the picture with its label and note, bars under it."""
    height, width, _ = tile.picture.shape
    tall = tile_height(height, bars=bool(tile.bars))
    image = Image.new("RGB", (width, tall), STRIP)
    image.paste(Image.fromarray(tile.picture))
    if tile.bars:
        _draw_bars(image, height, tile.bars)
    if tile.over:
        image = Image.blend(image, Image.new("RGB", image.size, BACKGROUND), 0.5)
    draw, font = ImageDraw.Draw(image), _font(_font_size(height))
    outline = {"stroke_width": 2, "stroke_fill": BACKGROUND}
    draw.text((8, 6), tile.label, TEXT, font, **outline)
    draw.text((width - 8, 6), tile.note, TEXT, font, anchor="ra", **outline)
    if tile.over:
        draw.text((width / 2, height / 2), "episode over", TEXT, font, anchor="mm", **outline)
    return image


def _draw_bars(image: Image.Image, top: int, bars: Sequence[tuple[int, float]]) -> None:
    """Bars around zero from this row down, each over its coordinate's number."""
    draw, font = ImageDraw.Draw(image), _font(_label_size(top))
    reach = top // 10 - 3
    zero = top + top // 10
    draw.line((6, zero, image.width - 6, zero), MUTED)
    slot = (image.width - 12) / len(bars)
    for i, (index, value) in enumerate(bars):
        centre = 6 + (i + 0.5) * slot
        end = zero - value * reach
        box = (centre - slot * 0.3, min(zero, end), centre + slot * 0.3, max(zero, end))
        draw.rectangle(box, POSITIVE if value > 0 else NEGATIVE)
        draw.text((centre, image.height - 5), str(index), MUTED, font, anchor="ms")


def _label_size(height: int) -> int:
    return max(9, height // 22)


def _font_size(height: int) -> int:
    return max(11, height // 17)


def _title_height(height: int) -> int:
    return 2 * _font_size(height)


def _fitting(text: str, size: int, width: int) -> int:
    """The largest font size up to this one in which the text is no wider."""
    while size > 6 and _font(size).getlength(text) > width:
        size -= 1
    return size


def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)  # Pillow's wheels bring FreeType
    return font
