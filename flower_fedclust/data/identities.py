"""Names of rows, clients and classes: text or integers, and never floats, which cannot tell long codes apart."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError

#: Whole numbers up to this are exact as floats. Beyond it, two different codes may become the same float.
MOST_EXACT = 2**53

#: Larger integers stay text: they would be unsigned, and NumPy joins unsigned and signed integers as floats.
MOST_INTEGER = 2**63 - 1

#: Patterns of texts: integers that can be restored from their number, such as 7 (but not 007, +7 or 1e3), and whole
#: floats such as 7.0.
_INTEGER = r"0|-?[1-9]\d{0,17}"
_WHOLE = r"-?(?:0|[1-9]\d{0,14})\.0"


def identities(values: Any, where: str, *, are_classes: bool = False) -> NDArray[Any]:
    """Return the names of rows, clients or classes as integers, truth values or text.

    The name of an entry, which is the text of the returned value, depends on this entry alone. So the parts of a column
    have the names that the whole column has, and clients agree on the names of classes. The numbers 1 and 1.0 have the
    name 1, and text stays as it is written. The result is an array of integers if all names are written like integers,
    and none like 007.

    Parameters
    ----------
    values : array-like of one dimension, without missing entries
    where : str
        What they are, for messages.
    are_classes : bool, default=False
        Whether they are classes: then the text "1.0" has the name 1, too, because one client may have a file without
        types, and another client may have one with types.

    Raises
    ------
    DataError
        If they are floats, and one is infinite or so large that neighboring whole numbers are the same float.
    """
    import pandas as pd

    # A list of integers would become floats if one of them exceeds 64 bits.
    series = pd.Series(values, dtype=object if isinstance(values, (list, tuple)) else None)
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.cat.categories.dtype)
    kind = series.dtype.kind
    if series.dtype == object:
        kind = {"integer": "i", "boolean": "b", "floating": "f"}.get(
            pd.api.types.infer_dtype(series), "O"
        )
    if kind == "b":
        return np.asarray(series, dtype=bool)
    if kind in "iu" and (
        len(series) == 0 or (series.min() >= -MOST_INTEGER and series.max() <= MOST_INTEGER)
    ):
        return np.asarray(series, dtype=np.int64)
    if kind == "f":
        return _names_of_floats(series, where)
    # Dates are converted one by one: together, all would be written with a time of day if one of them has one.
    if kind in "mM":
        return np.asarray(series.map(str).astype(str).str.removesuffix(" 00:00:00"), dtype=str)
    texts = series.map(_name_of) if series.dtype == object else series.astype(str)
    if are_classes and len(texts):
        # A number -0.0 has the name 0.
        whole = texts.str.removesuffix(".0").where(texts != "-0.0", "0")
        texts = texts.where(~texts.str.fullmatch(_WHOLE), whole)
    return _as_integers(texts)


def _names_of_floats(series: Any, where: str) -> NDArray[Any]:
    """Return floats as integers if all are whole, and otherwise as text in which whole floats are integers."""
    floats: NDArray[np.float64] = series.to_numpy(np.float64)
    if not (np.abs(floats) < most_exact(series.dtype)).all():
        raise DataError(
            f"{where}: a number is too large to be told from its neighbors as a float; give text."
        )
    if np.array_equal(floats, np.trunc(floats)):
        return floats.astype(np.int64)
    positive_zero = series + 0.0  # -0.0 has the name of 0.0
    return np.asarray(positive_zero.astype(str).str.removesuffix(".0"), dtype=str)


def _name_of(value: object) -> str:
    """Return the name of an entry of a column of objects; a truth value has the name that it has in its own column."""
    return str(value) if isinstance(value, (bool, np.bool_)) else text_of(value)


def most_exact(dtype: Any) -> int:
    """Return the limit below which whole numbers are exact in a column of this type."""
    is_short = getattr(dtype, "kind", "O") == "f" and dtype.itemsize < 8
    return 2 ** (np.finfo(f"f{dtype.itemsize}").nmant + 1) if is_short else MOST_EXACT


def check_spellings(names: Iterable[str], where: str) -> None:
    """Raise a DataError if two names look the same: a client with two names would have two separate guarantees."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(_as_seen(name), name)
        if other != name:
            raise DataError(
                f"{where} has {_shown(other)} and {_shown(name)}, which differ only in spaces, in characters that do "
                "not show, or in how Unicode spells a letter; spell each client in one way."
            )


def _as_seen(name: str) -> str:
    """Return a name as it looks: without invisible characters, such as the byte order mark at the start of files."""
    letters = unicodedata.normalize("NFKC", name)
    shown = [
        letter
        for letter in letters
        if letter.isspace() or unicodedata.category(letter) not in ("Cf", "Cc")
    ]
    return " ".join("".join(shown).split())


def _shown(name: str) -> str:
    """Return a name in quotation marks, with escape codes in place of invisible characters."""
    return (
        "'"
        + "".join(
            character if character.isprintable() else ascii(character)[1:-1] for character in name
        )
        + "'"
    )


def _as_integers(texts: Any) -> NDArray[Any]:
    """Return texts as integers if each can be restored from its number, and otherwise as an array of text."""
    if len(texts) and texts.str.fullmatch(_INTEGER).all():
        return np.asarray(texts.astype(np.int64), dtype=np.int64)
    return np.asarray(texts, dtype=str)


def text_of(value: object) -> str:
    """Return the name of a category: 1, 1.0 and "1" are one category; so are True and "true"."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (float, np.floating)) and np.isfinite(value) and value == np.trunc(value):
        return str(int(value))
    return str(value)
