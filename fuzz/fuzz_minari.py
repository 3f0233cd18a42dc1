"""Minari datasets: the HDF5 file, or the metadata beside it."""

from harness import atheris, folder, fuzz

with atheris.instrument_imports(include=["fastr"]):
    from fastr.data.minari import Minari
from loading import spooled

from transitions import walk, write_minari

PLACE = folder()
PATH = write_minari(PLACE / "log-v0", walk(episodes=2, steps=2))
FILES = (PATH / "data" / "main_data.hdf5", PATH / "data" / "metadata.json")
CONTENTS = [file.read_bytes() for file in FILES]


def read(data: bytes) -> None:
    """If the first byte is a multiple of 8 the rest is metadata, otherwise the HDF5 file."""
    if not data:
        return
    victim = int(data[0] % 8 == 0)
    for i, file in enumerate(FILES):
        file.write_bytes(data[1:] if i == victim else CONTENTS[i])
    spooled(Minari(PATH), PLACE / "rows")


if __name__ == "__main__":
    fuzz(read, PLACE)
