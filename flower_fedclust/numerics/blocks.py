"""Large arrays in pieces."""

from __future__ import annotations

from collections.abc import Iterable

#: Arrays with a row for each row of the data are made of so many entries at a time: 64 MB of float64.
BLOCK_ENTRIES = 8_000_000

#: The same where all that is done with a piece takes little time: 1 MB, which stays in a processor's cache.
CACHED_ENTRIES = 2**17


def blocks(n_rows: int, n_entries: int, *, block_entries: int | None = None) -> Iterable[slice]:
    """Give slices of the rows, so that an array with so many entries a row stays small."""
    step = max(1, (BLOCK_ENTRIES if block_entries is None else block_entries) // n_entries)
    if 0 < n_rows <= step:
        return (slice(0, n_rows),)
    return (slice(start, start + step) for start in range(0, n_rows, step))


def cached_blocks(n_rows: int, n_entries: int) -> Iterable[slice]:
    """Give slices of the rows that are small enough for a processor's cache, and of 64 rows at least."""
    return blocks(n_rows, n_entries, block_entries=max(CACHED_ENTRIES, 64 * n_entries))
