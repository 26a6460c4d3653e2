import numpy as np
import pytest

from flower_fedclust.numerics.blocks import BLOCK_ENTRIES, CACHED_ENTRIES, blocks, cached_blocks


@pytest.mark.parametrize("n_rows", [0, 1, 2, 7, 8, 9, 100])
@pytest.mark.parametrize("n_entries", [1, 3, 8, 1000])
@pytest.mark.parametrize("block_entries", [1, 8, 24, 10_000])
def test_blocks_hold_every_row_once_in_order(n_rows, n_entries, block_entries):
    rows = np.arange(n_rows)
    pieces = [rows[block] for block in blocks(n_rows, n_entries, block_entries=block_entries)]
    assert np.concatenate([rows[:0], *pieces]).tolist() == rows.tolist()
    assert all(len(piece) for piece in pieces)


@pytest.mark.parametrize(("n_entries", "block_entries", "size"), [(3, 12, 4), (3, 14, 4), (3, 15, 5), (1, 7, 7)])
def test_block_has_as_many_rows_as_its_entries_allow(n_entries, block_entries, size):
    sizes = [block.stop - block.start for block in blocks(20, n_entries, block_entries=block_entries)]
    assert set(sizes) == {size}
    assert len(sizes) == -(-20 // size)


@pytest.mark.parametrize("n_entries", [8, 9, 10**9])
def test_block_has_one_row_at_least(n_entries):
    assert list(blocks(3, n_entries, block_entries=8)) == [slice(0, 1), slice(1, 2), slice(2, 3)]


def test_block_is_of_64_megabytes_where_nothing_is_said():
    assert BLOCK_ENTRIES * np.dtype(np.float64).itemsize == 64_000_000
    (first, second) = blocks(1000 + 1, 8000)
    assert (first, second.start) == (slice(0, 1000), 1000)


def test_array_that_is_small_enough_is_one_block():
    (only,) = blocks(1000, 8000)
    assert np.arange(1000)[only].tolist() == list(range(1000))


def test_no_rows_are_no_block():
    assert list(blocks(0, 5)) == []


@pytest.mark.parametrize(("n_entries", "size"), [(CACHED_ENTRIES // 1000, 1000), (CACHED_ENTRIES, 64), (10**9, 64)])
def test_block_for_the_cache_has_64_rows_at_least(n_entries, size):
    assert next(cached_blocks(5000, n_entries)) == slice(0, size)
