"""Find the rows of each subject, a person who may have many rows. Only the equality of identities is kept.

Identities are text or integers, never floats, which merge long codes. They become numbers from 0 in
an order that says nothing, and nothing else of them is kept, sent, or named in an error.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.cells import READ_AS_MISSING
from flower_fedclust.data.identities import most_exact, text_of
from flower_fedclust.numerics.checks import DataError

Integers = NDArray[np.int32]

#: Files into which the hashes of identities are spread, so that only a part of them is in memory at a time.
N_BUCKETS = 64

#: The keys of the words from which a site's own key draws subjects: the same whenever it reads its rows.
_FOR_SAMPLES = ("subjects, first.", "subjects, other.")

#: Record of a row: two hashes of 64 bits for equality, two hashes for samples, and its number.
_RECORD = np.dtype(
    [(name, np.uint64) for name in ("one", "two", "first", "second")] + [("row", np.int64)]
)


@dataclass(frozen=True, eq=False)
class Subjects:
    """The subject of each row, as numbers that say nothing about who it is."""

    codes: Integers  #: A number from 0 for the subject of each row.
    words: NDArray[np.uint64]  #: Two hashes of each subject's identity, for samples.

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def n_subjects(self) -> int:
        """The number of subjects."""
        return len(self.words)

    def __getitem__(self, rows: Any) -> Subjects:
        """Return the subjects of some of the rows."""
        known, codes = np.unique(self.codes[rows], return_inverse=True)
        return Subjects(codes.astype(np.int32), self.words[known])

    @property
    def fingerprint(self) -> NDArray[np.uint64]:
        """Two numbers that follow from which rows share a subject, the same whenever the rows are read."""
        weights = 2 * np.arange(len(self.codes), dtype=np.uint64) + 1
        return np.asarray((self.words[self.codes] * weights[:, None]).sum(axis=0))

    @property
    def rows_each(self) -> Integers:
        """For each row, the number of rows that its subject has."""
        return np.bincount(self.codes).astype(np.int32)[self.codes]


def subjects_of(identities: Any, where: str) -> Subjects:
    """Return the subjects of rows.

    Parameters
    ----------
    identities : array-like of shape (n_rows,)
        Text or integers.
    where : str
        What they are, for messages.

    Raises
    ------
    DataError
        If an identity is missing, blank or a word for a gap (``READ_AS_MISSING``), or is a float
        that is not whole or too large to be told from its neighbors.
    """
    import pandas as pd

    codes, known = pd.factorize(_plain(identities, where, 0))
    return Subjects(codes.astype(np.int32), _hashes_of(known, _FOR_SAMPLES))


def subjects_in_batches(columns: Iterable[Any], where: str) -> Subjects:
    """Return the subjects of rows, as :func:`subjects_of` does, for a column that comes in batches.

    Keyed hashes of 128 bits are spread over files on disk, and counted one file after the other, so
    memory stays small. The key is forgotten afterwards; nobody who does not have it can construct
    two identities with one hash.
    """
    n_rows = 0
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(N_BUCKETS)]
        for records in _hashed(columns, where):
            n_rows += len(records)
            bucket = (records["one"] % np.uint64(N_BUCKETS)).astype(np.intp)
            for index in np.unique(bucket).tolist():
                files[index].write(records[bucket == index].tobytes())
        codes, words, n_subjects = np.empty(n_rows, dtype=np.int32), [], 0
        for file in files:
            file.seek(0)
            records = np.frombuffer(file.read(), dtype=_RECORD)
            known, first, subject_numbers = np.unique(
                records[["one", "two"]], return_index=True, return_inverse=True
            )
            codes[records["row"]] = subject_numbers + n_subjects
            n_subjects += len(known)
            words.append(np.column_stack([records[name][first] for name in ("first", "second")]))
    return Subjects(codes, np.concatenate(words))


def _hashed(columns: Iterable[Any], where: str) -> Iterator[NDArray[Any]]:
    """Yield, for each batch, records with the hashes and the numbers of its rows."""
    keys, first = (secrets.token_hex(8), secrets.token_hex(8)), 0
    for column in columns:
        plain = _plain(column, where, first)
        records = np.empty(len(plain), dtype=_RECORD)
        records["one"], records["two"] = _hashes_of(plain, keys).T
        records["first"], records["second"] = _hashes_of(plain, _FOR_SAMPLES).T
        records["row"] = np.arange(first, first + len(plain))
        first += len(plain)
        yield records


def _hashes_of(identities: Any, keys: tuple[str, str]) -> NDArray[np.uint64]:
    """Return two keyed hashes of the text of each identity."""
    import pandas as pd
    from pandas.util import hash_array

    texts = pd.Series(identities).astype(str).to_numpy(dtype=object)
    return np.column_stack([hash_array(texts, hash_key=key) for key in keys])


def _plain(identities: Any, where: str, first_row: int) -> Any:
    """Return identities as a Series of integers or of text; raise a DataError if one is missing or a float.

    Texts lose their surrounding spaces, so that "A1" and "A1 " are one person. A word for a gap,
    such as "NA", would make one person of all rows whose person is unknown; it is refused.
    """
    import pandas as pd

    series = pd.Series(identities, dtype=object if isinstance(identities, (list, tuple)) else None)
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.cat.categories.dtype)
    _check_given(series.isna().to_numpy(), where, first_row)
    kind = series.dtype.kind
    if series.dtype == object and pd.api.types.infer_dtype(series) == "floating":
        series = series.astype(np.float64)
        kind = "f"
    if kind == "f":
        floats = series.to_numpy(np.float64)
        if not (np.abs(floats) < most_exact(series.dtype)).all() or not np.array_equal(
            floats, np.trunc(floats)
        ):
            raise DataError(
                f"{where} holds floats, of which two persons may have one; give text or integers."
            )
        return pd.Series(floats.astype(np.int64))
    if kind in "iu":
        return series
    # So "A1" and "A1 " are one person.
    texts = series.map(text_of).str.strip()
    # "NA" or an empty text would make one person of all rows whose person is unknown.
    _check_given(texts.isin(READ_AS_MISSING).to_numpy(dtype=bool), where, first_row)
    return texts


def _check_given(missing: NDArray[np.bool_], where: str, first_row: int) -> None:
    """Raise a DataError that names the first row without a subject, if there is one."""
    if missing.any():
        at = first_row + int(missing.argmax())
        raise DataError(
            f"{where}: row {at} is missing, or a word for a gap such as NA; give every row its subject."
        )
