"""The version of everything that one copy of this package writes and another reads."""

from __future__ import annotations

from flower_fedclust.numerics.checks import DataError

#: Of messages, replies, journals, ledgers, saved results, models and comparisons. A change to any of them raises it.
FORMAT = 4


class FormatError(DataError):
    """A message or a file that another version of this package wrote."""


def check_format(stated: object, what: str, reader: str = "this version", remedy: str = "") -> None:
    """Raise a FormatError unless the format that a message or a file states is the one that this version reads."""
    if type(stated) is int and stated == FORMAT:
        return
    has = f"has format {stated}" if type(stated) is int and 0 <= stated < 10**6 else "states no known format"
    remedy = remedy or "install the same version of flower-fedclust on both"
    raise FormatError(f"{what} {has}, and {reader} reads format {FORMAT}; {remedy}.")
