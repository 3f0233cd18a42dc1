"""LeRobot datasets: meta/info.json with some of its values replaced, or the Parquet file."""

import json

from harness import atheris, edited, folder, fuzz

with atheris.instrument_imports(include=["fastr"]):
    from fastr.data.lerobot import LeRobot
from loading import spooled

from transitions import walk, write_lerobot

PLACE = folder()
PATH = write_lerobot(PLACE / "log", walk(episodes=2, steps=2))
INFO, FRAMES = PATH / "meta" / "info.json", PATH / "data" / "chunk-000" / "file-000.parquet"
SOUND = INFO.read_bytes(), FRAMES.read_bytes()


def read(data: bytes) -> None:
    """If the first byte is even the rest says what to edit, otherwise it is the Parquet file."""
    if not data:
        return
    odd = data[0] % 2
    INFO.write_bytes(SOUND[0] if odd else edited(json.loads(SOUND[0]), data[1:]))
    FRAMES.write_bytes(data[1:] if odd else SOUND[1])
    spooled(LeRobot(PATH), PLACE / "rows")


if __name__ == "__main__":
    fuzz(read, PLACE)
