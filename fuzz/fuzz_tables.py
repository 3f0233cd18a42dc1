"""Tables and sidecars that `fastr report` reads, and reports of `fastr misfit`."""

from harness import atheris, folder, fuzz

with atheris.instrument_imports(include=["fastr"]):
    from fastr.report.reading import Found, file_evaluations, read_misfits, read_sidecar, take

PLACE = folder()
READERS = (
    ("curve.csv", file_evaluations),
    ("rows.jsonl", file_evaluations),
    ("curve.json", read_sidecar),
    ("table.csv", lambda path: take(path, Found())),
    ("report.json", read_misfits),
)


def read(data: bytes) -> None:
    """The first byte chooses the reader."""
    if not data:
        return
    name, reader = READERS[data[0] % len(READERS)]
    (PLACE / name).write_bytes(data[1:])
    reader(PLACE / name)


if __name__ == "__main__":
    fuzz(read, PLACE)
