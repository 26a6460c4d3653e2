"""What came back from the clients: checked one by one, compared with one another, and added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.common import Parameters

from flower_fedclust.protocol.rounds import Array, Sent
from flower_fedclust.protocol.wire import decode


class ReplyError(Exception):
    """A reply that cannot be used; the message is one sentence that names the client."""


def client_order(name: str) -> tuple[int, int, str]:
    """Return the key by which clients are sorted: names that are numbers by their value, before all others."""
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


def checked_reply(name: str, parameters: Parameters, sends: Sequence[Sent], n_columns: int) -> list[Array]:
    """Return the arrays of one client's reply.

    Parameters
    ----------
    name : str
        The client.
    parameters : Parameters
    sends : sequence of Sent
        What was asked for.
    n_columns : int
        Of the rows.

    Raises
    ------
    ReplyError
        If the bytes are not arrays, if there are more or fewer than were asked for, or if one is not made of finite
        numbers or has other columns than the rows.
    """
    try:
        arrays = decode(parameters)
    except ValueError as error:
        raise ReplyError(f"client {name} sent {error}.") from None
    if len(arrays) != len(sends):
        raise ReplyError(f"client {name} sent {len(arrays)} arrays where {len(sends)} were asked for.")
    for array, sent in zip(arrays, sends, strict=True):
        if sent.has_columns and array.shape[-1:] != (n_columns,):
            raise ReplyError(
                f"client {name} sent an array of the shape {array.shape} where the rows have {n_columns} columns."
            )
        if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
            raise ReplyError(f"client {name} sent an array that is not made of finite numbers.")
    return arrays


def unlike_most(values: Mapping[str, object]) -> tuple[object, list[str]]:
    """Return the value that most clients have, and the clients that have another.

    Parameters
    ----------
    values : mapping of str to anything hashable
        By client, not empty; of values that are equally frequent, that of the first client wins.
    """
    common = Counter(values[name] for name in sorted(values, key=client_order)).most_common(1)[0][0]
    return common, sorted((name for name in values if values[name] != common), key=client_order)


def shapes_of(arrays: Sequence[Array], sends: Sequence[Sent] | None = None) -> str:
    """Return the shapes of arrays that must be alike, for messages.

    Parameters
    ----------
    arrays : sequence of ndarray
    sends : sequence of Sent, optional
        Where the replies are not summed: of an array with an entry for every row only the rest of the shape counts, and
        of others the number of dimensions.
    """
    if sends is None:
        return ", ".join(str(array.shape) for array in arrays)
    alike = [
        ("rows", *array.shape[1:]) if sent.per == "row" else ("any",) * array.ndim
        for array, sent in zip(arrays, sends, strict=True)
    ]
    return ", ".join(str(shape).replace("'", "") for shape in alike)


def add_up(replies: Sequence[Sequence[Array]]) -> list[Array]:
    """Add the replies up, array by array, in the order given."""
    total = [array.astype(np.float64) for array in replies[0]]
    for reply in replies[1:]:
        for accumulated, array in zip(total, reply, strict=True):
            accumulated += array
    return total
