"""Slices of rows, to compute large arrays piece by piece."""

from __future__ import annotations

from collections.abc import Iterable

#: The number of entries in a piece: 64 MB of float64.
BLOCK_ENTRIES = 8_000_000

#: The number of entries in a piece that fits into a processor's cache (1 MB), for quick computations.
CACHED_ENTRIES = 2**17


def blocks(n_rows: int, n_entries: int, *, block_entries: int | None = None) -> Iterable[slice]:
    """Yield slices of the rows, so that an array with ``n_entries`` entries for each row of a slice stays small."""
    step = max(1, (BLOCK_ENTRIES if block_entries is None else block_entries) // n_entries)
    if 0 < n_rows <= step:
        return (slice(0, n_rows),)
    return (slice(start, start + step) for start in range(0, n_rows, step))


def cached_blocks(n_rows: int, n_entries: int) -> Iterable[slice]:
    """Yield slices of the rows that fit a processor's cache, but have at least 64 rows."""
    return blocks(n_rows, n_entries, block_entries=max(CACHED_ENTRIES, 64 * n_entries))
