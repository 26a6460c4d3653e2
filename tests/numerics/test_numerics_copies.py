import numpy as np

from flower_fedclust.numerics.copies import copies_but_for_rounding, copies_of

RNG = np.random.default_rng(0)


def test_different_rows_come_in_the_order_of_their_first_copy():
    rows = np.array([[2.0, 1.0], [0.0, 5.0], [2.0, 1.0], [-0.0, 5.0], [1.0, 2.0]])
    found = copies_of(rows)
    assert found.first.tolist() == [0, 1, 4]
    assert found.index.tolist() == [0, 1, 0, 1, 2]
    assert found.counts.tolist() == [2.0, 2.0, 1.0]


def test_rows_that_all_differ_stay_as_they_are():
    rows = RNG.normal(size=(40, 3))
    for found in (copies_of(rows), copies_but_for_rounding(rows)):
        assert found.first.tolist() == found.index.tolist() == list(range(40))


def test_rows_are_told_apart_in_every_bit_or_but_for_rounding():
    row = np.array([1.0, -3.0])
    rows = np.array([row, np.nextafter(row, 9.0), row + 1e-9])
    assert copies_of(rows).index.tolist() == [0, 1, 2]
    assert copies_but_for_rounding(rows).index.tolist() == [0, 0, 1]
    assert copies_but_for_rounding(np.zeros((3, 2))).index.tolist() == [0, 0, 0]
