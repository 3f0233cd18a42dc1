"""Tables and sidecars that `fastr report` reads, and reports of `fastr misfit`."""

from harness import atheris, folder, fuzz

with atheris.instrument_imports(include=["fastr"]):
    from fastr.report.gains import table_series
    from fastr.report.reading import Found, coverage_lines, jsonl_evaluations, take_table
    from fastr.report.scatter import points
    from fastr.report.sidecar import read_sidecar
    from fastr.report.tables import csv_evaluations

PLACE = folder()
READERS = (
    ("curve.csv", csv_evaluations),
    ("coverage.csv", coverage_lines),
    ("rows.jsonl", jsonl_evaluations),
    ("curve.json", read_sidecar),
    ("table.csv", lambda path: take_table(path, Found())),
    ("returns.csv", table_series),
    ("report.json", lambda path: points([path], {})),
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
