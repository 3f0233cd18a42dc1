"""Groups of observations and actuators: torso=0-3,9;legs=4-8|legs=0-5."""

from harness import atheris, fuzz

with atheris.instrument_imports(include=["fastr"]):
    from fastr.envs import anatomy


def read(data: bytes) -> None:
    """Parse; what is written of it means the same."""
    text = data.decode(errors="replace")
    found = anatomy.parse(text, 10, 6)
    entries = [sorted(entry for group in side for entry in group.entries) for side in found]
    if entries != [list(range(10)), list(range(6))]:
        raise AssertionError(f"{text!r} became {found}")


if __name__ == "__main__":
    fuzz(read)
