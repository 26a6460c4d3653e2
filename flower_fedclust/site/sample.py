"""A fixed random sample of a site's rows, which does not depend on the order of the rows.

A site with many rows can take part with a sample, so that it has no more weight than it wants. All
runs must get the same sample, because different samples would reveal more rows with every run. And
if one row is added or removed, the sample must change as little as possible, because the privacy
guarantee is about one such row.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from flower_fedclust.data.cells import numbers_in
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.secure.keys import Words, drawn

#: The two words of 64 bits that stand for a missing entry.
_MISSING = np.array([0, 1], dtype=np.uint64)


def sampled(data: ClientData, most: int, key: bytes) -> ClientData:
    """Return ``most`` rows, which a secret key determines; rows without ids get their numbers as ids.

    The key gives every row a random number that depends on no other row, and the ``most`` rows with
    the smallest numbers are taken. So if one row is added, removed or replaced, at most one other
    row of the sample changes. The number follows from the row's id. If there are no ids, or if rows
    have the same id, it follows from the row's entries. Rows that are equal in everything are
    interchangeable.

    If a person may have several rows, ``most`` persons are drawn in the same way, each with all
    rows.

    Parameters
    ----------
    data : ClientData
    most : int
        How many rows or persons to take.
    key : bytes
        A secret of the site, so that nobody else can compute which rows are in the sample.
    """
    if data.subjects is not None:
        places = drawn(key, data.subjects.words)
        taken = np.zeros(len(places), dtype=bool)
        taken[np.argsort(places, kind="stable")[:most]] = True
        return data.chosen(np.flatnonzero(taken[data.subjects.codes]))
    text_keys = (
        hashlib.blake2b(key, person=b"sample %d" % index, digest_size=8).hexdigest()
        for index in range(2)
    )
    hashed = _Hashed(tuple(text_keys))
    has_ids = data.row_ids is not None
    first = drawn(key, hashed.exactly(data.row_ids)) if has_ids else _of_rows(data, key, hashed)
    last = np.partition(first, most - 1)[most - 1]
    taken, at_the_edge = first < last, np.flatnonzero(first == last)
    n_more = most - int(taken.sum())
    if n_more < len(at_the_edge):
        exact = _of_rows(data, key, hashed, exactly=True)[at_the_edge]
        at_the_edge = at_the_edge[np.argsort(exact, kind="stable")]
    taken[at_the_edge[:n_more]] = True
    return data.chosen(np.flatnonzero(taken))


def _of_rows(data: ClientData, key: bytes, hashed: _Hashed, *, exactly: bool = False) -> Words:
    """Return a number for each row that follows from its entries and, with ``exactly``, from its class."""
    hash_of, matches = hashed.exactly if exactly else hashed.alike, []
    for batch in data.batches():
        columns = (batch.table.iloc[:, index] for index in range(batch.table.shape[1]))
        matches.append(drawn(key, np.hstack([hash_of(column) for column in columns])))
    numbers = np.concatenate(matches)
    if data.labels is None or not exactly:
        return numbers
    return drawn(
        key, np.column_stack([numbers, np.zeros_like(numbers), hashed.exactly(data.labels)])
    )


class _Hashed:
    """Computes two words of 64 bits for each entry of a column; for a text, these are a keyed hash."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys

    def alike(self, column: Any) -> Words:
        """Return words for each entry; 1.5 and "1.5" get the same, so that the format of a file changes no sample."""
        if _is_number(column):
            return _words_of_floats(column)
        words = self.exactly(column)
        numbers, _ = numbers_in(_texts_of(column))
        is_number = ~np.isnan(numbers)
        words[is_number] = _words_of_floats(numbers[is_number])
        return words

    def exactly(self, column: Any) -> Words:
        """Return words that are the same only for equal entries; each follows from the entry's own text."""
        import pandas as pd
        from pandas.util import hash_array

        texts = _texts_of(column).to_numpy(dtype=object)
        words = np.column_stack([hash_array(texts, hash_key=key) for key in self._keys])
        words[pd.Series(column).isna().to_numpy()] = _MISSING
        return np.asarray(words, dtype=np.uint64)


def _texts_of(column: Any) -> Any:
    """Return the text of each entry, whatever the other entries are.

    In pandas, one entry can change the type of its whole column: beside "x", 7 becomes a text;
    beside a gap, it becomes 7.0; and beside a time of day, dates get the time midnight. So 7, 7.0
    and "7" must have the same text, and each time is written by itself.
    """
    import pandas as pd

    series = pd.Series(column)
    texts = series.map(str) if series.dtype.kind in "mM" else series
    texts = texts.astype(str).str.removesuffix(".0").str.removesuffix(" 00:00:00")
    return texts.replace({"True": "true", "False": "false"})


def _is_number(column: Any) -> bool:
    """Tell whether a column holds real numbers."""
    from pandas.api import types

    return bool(types.is_numeric_dtype(column.dtype) and not types.is_complex_dtype(column.dtype))


def _words_of_floats(column: Any) -> Words:
    """Return the bits of each number, with 0 as a second word; a gap has two words of its own."""
    import pandas as pd

    floats = pd.Series(column).to_numpy(dtype=np.float64, na_value=np.nan) + 0.0  # -0.0 is 0.0
    words = np.column_stack([floats.view(np.uint64), np.zeros(len(floats), dtype=np.uint64)])
    words[np.isnan(floats)] = _MISSING
    return words
