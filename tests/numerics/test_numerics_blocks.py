import numpy as np
import pytest

from flower_fedclust.numerics.blocks import blocks


@pytest.mark.parametrize("n_rows", [0, 1, 2, 7, 8, 9, 100])
@pytest.mark.parametrize("n_entries", [1, 3, 8, 1000])
@pytest.mark.parametrize("block_entries", [1, 8, 24, 10_000])
def test_blocks_hold_every_row_once_in_order(n_rows, n_entries, block_entries):
    rows = np.arange(n_rows)
    pieces = [rows[block] for block in blocks(n_rows, n_entries, block_entries=block_entries)]
    assert np.concatenate([rows[:0], *pieces]).tolist() == rows.tolist()
    assert all(len(piece) for piece in pieces)


@pytest.mark.parametrize(
    ("n_entries", "block_entries", "size"), [(3, 12, 4), (3, 14, 4), (3, 15, 5), (1, 7, 7)]
)
def test_block_has_as_many_rows_as_its_entries_allow(n_entries, block_entries, size):
    sizes = [
        block.stop - block.start for block in blocks(20, n_entries, block_entries=block_entries)
    ]
    assert set(sizes) == {size}
    assert len(sizes) == -(-20 // size)
