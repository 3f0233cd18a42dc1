"""index.json of a checkpoint; its checksum over itself is made right, so that the rest is read."""

import contextlib
import json

from harness import UserError, atheris, edited, folder, fuzz

with atheris.instrument_imports(include=["fastr"]):
    from fastr.runs import RunDirectory
    from fastr.runs.checkpoints import content_checksum
    from fastr.training.config import preset
    from fastr.training.state import check_host
from transitions import walk, write_run

PLACE = folder()
RUN = write_run(PLACE / "run", walk())
INDEX = RUN / "checkpoints" / "000000040" / "index.json"
HOST = {"next_step": 21, "seconds": 1.5, "episodes": [3], "returns": [0.5]}
SOUND = json.loads(INDEX.read_text()) | {"host": HOST | {"evaluated": 1, "evaluating": False}}
CONFIG = preset("walker-walk", "ctrl-sr", "laptop")


def signed(data: bytes) -> bytes:
    """The JSON object with the checksum that belongs to it; anything else as it is."""
    try:
        content = json.loads(data)
        content.pop("sha256", None)
        return json.dumps(content | {"sha256": content_checksum(content)}).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data


def read(data: bytes) -> None:
    """Everything that a resume asks of a checkpoint; a first byte of 1: edits of a sound index."""
    INDEX.write_bytes(signed(edited(SOUND, data[1:]) if data[:1] == b"\1" else data))
    run = RunDirectory.open(RUN)
    run.finished()
    checkpoint = run.latest_complete()
    with contextlib.suppress(UserError):
        check_host(checkpoint, CONFIG)
    checkpoint.arrays()
    for _ in checkpoint.replay_slices(8):
        pass


if __name__ == "__main__":
    fuzz(read, PLACE)
