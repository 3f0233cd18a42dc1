"""Counts with what they count."""


def counted(count: int, one: str, many: str = "") -> str:
    """1 seed, 2 seeds; 1 entry, 2 entries where `many` says so."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
