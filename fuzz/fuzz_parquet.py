"""Parquet tables."""

from harness import atheris, folder, fuzz

with atheris.instrument_imports(include=["fastr"]):
    from fastr.data.formats import Parquet
from loading import spooled

PLACE = folder()
FILE = PLACE / "log.parquet"


def read(data: bytes) -> None:
    """Open, check and copy all rows."""
    FILE.write_bytes(data)
    spooled(Parquet(FILE), PLACE / "rows")


if __name__ == "__main__":
    fuzz(read, PLACE)
