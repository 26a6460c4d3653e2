"""Find the rows of each subject: a person who may have many rows, and whom a column of identities names.

Identities are text or integers, and never floats, which cannot tell long codes apart. They become numbers from 0, and
hashes for drawing samples. The identities themselves are not kept, not sent, and not named in errors.
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

#: The number of files over which the hashes of identities are spread, so that only one file's are in memory at a time.
N_BUCKETS = 64

#: The keys of the two hashes of an identity that are used to draw samples of subjects. They are constant, so that a
#: subject has the same hashes whenever a site reads its rows; a site's secret key then decides who is drawn.
_FOR_SAMPLES = ("subjects, first.", "subjects, other.")

#: The record of a row: two hashes of 64 bits to tell subjects apart, two hashes to draw samples, and the row's number.
_RECORD = np.dtype(
    [(name, np.uint64) for name in ("one", "two", "first", "second")] + [("row", np.int64)]
)


@dataclass(frozen=True, eq=False)
class Subjects:
    """The subject of each row, as numbers that do not reveal who it is."""

    codes: Integers  #: A number from 0 for the subject of each row.
    words: NDArray[np.uint64]  #: Two hashes of each subject's identity, for drawing samples.

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
        """Two numbers that depend on the subjects of all rows, and are the same whenever the rows are read."""
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
        If an identity is missing, empty or a text such as "NA" (``READ_AS_MISSING``); or if it is a float that is not
        whole, or so large that neighboring whole numbers are the same float.
    """
    import pandas as pd

    codes, known = pd.factorize(_plain(identities, where, 0))
    return Subjects(codes.astype(np.int32), _hashes_of(known, _FOR_SAMPLES))


def subjects_in_batches(columns: Iterable[Any], where: str) -> Subjects:
    """Return the subjects of rows, as :func:`subjects_of` does, for a column that comes in batches.

    Keyed hashes of 128 bits are spread over files on disk, and compared one file after the other, so that little memory
    is used. The key is random and is not kept. Without it, nobody can construct two identities with the same hash.
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
    """Yield, for each batch, a record for each row, with its hashes and its number."""
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

    Texts lose their surrounding spaces, so that "A1" and "A1 " are one person. A text for missing values, such as "NA",
    is refused: it would make all rows whose person is unknown one person.
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
    # "A1" and "A1 " are the same person.
    texts = series.map(text_of).str.strip()
    # With "NA" or an empty text, all rows whose person is unknown would count as one person.
    _check_given(texts.isin(READ_AS_MISSING).to_numpy(dtype=bool), where, first_row)
    return texts


def _check_given(missing: NDArray[np.bool_], where: str, first_row: int) -> None:
    """Raise a DataError that names the first row without a subject, if there is one."""
    if missing.any():
        at = first_row + int(missing.argmax())
        raise DataError(
            f"{where}: row {at} is missing, or a word for a gap such as NA; give every row its subject."
        )
