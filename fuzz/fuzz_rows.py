"""rows.jsonl of a run directory, and what is made of its rows."""

from harness import atheris, folder, fuzz

with atheris.instrument_imports(include=["fastr"]):
    from fastr.report.reading import evaluations
    from fastr.runs.directory import RunDirectory
    from fastr.runs.summary import curve_csv, summary

PLACE = folder()
(PLACE / "config.json").write_text('{"train": {}, "provenance": {}}')


def read(data: bytes) -> None:
    """All rows, their summary and their curves."""
    (PLACE / "rows.jsonl").write_bytes(data)
    rows = RunDirectory.open(PLACE).rows()
    summary(rows, (0, 1))
    curve_csv(rows, (0, 1))
    evaluations(rows, "rows")


if __name__ == "__main__":
    fuzz(read, PLACE)
