"""NumPy archives: as they are, and packed anew so that only the arrays inside are strange."""

import zipfile

from harness import atheris, folder, fuzz

with atheris.instrument_imports(include=["fastr", "zipfile"]):
    from fastr.data.formats import Npz
from loading import spooled

PLACE = folder()
FILE = PLACE / "log.npz"
NAMES = ("state", "action", "next_state", "episode", "action_low", "action_high")
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
MARK = b"\x93NUMPY"


def read(data: bytes) -> None:
    """An even first byte: the rest is a file. An odd one: arrays, which are put into an archive."""
    if not data:
        return
    if data[0] % 2 == 0:
        FILE.write_bytes(data[1:])
    else:
        parts = data[1:].split(MARK)[1:]
        with zipfile.ZipFile(FILE, "w", METHODS[data[0] // 2 % 4]) as archive:
            for name, part in zip(NAMES, parts, strict=False):
                archive.writestr(f"{name}.npy", MARK + part)
    spooled(Npz(FILE), PLACE / "rows")


if __name__ == "__main__":
    fuzz(read, PLACE)
