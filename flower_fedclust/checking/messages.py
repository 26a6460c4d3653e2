"""Messages that an honest server does not send, or sent in another run: what a client answers must be safe there, too.

A sensitivity rests on what the client enforces. So it has to hold whatever points or directions the server sends, and
an answer has to follow from the table and the messages of this run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from flwr.common import FitIns
from numpy.typing import NDArray

from flower_fedclust.checking.neighbours import shadow_answers, tied_tables
from flower_fedclust.checking.runs import Run
from flower_fedclust.engine import ClientData
from flower_fedclust.engine.wire import decode, encode
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.privacy.noise import Sendable

Floats = NDArray[np.float64]
Bits = tuple[tuple[int, bytes], ...]

#: Clients may keep what they have computed of a table that is large: one of at least so many numbers.
LARGE_TABLE = 2**13

#: What is sent in place of points or directions: arrays of two axes.
ALTERED: Mapping[str, Callable[[Floats], Floats]] = {
    "with all columns alike": lambda array: np.repeat(array[:, :1], array.shape[1], axis=1),
    "with all rows alike": lambda array: np.repeat(array[:1], array.shape[0], axis=0),
    "a thousand times as large": lambda array: 1e3 * array,
}


def altered_runs(run: Run) -> Iterator[tuple[str, Run]]:
    """Yield the run with other points and directions in its messages: which, and the run."""
    for what, alter in ALTERED.items():
        yield f"where the server sends points {what}", _altered(run, alter)


def mirrored_run(run: Run, client: str) -> tuple[Run, dict[int, list[Floats]]]:
    """Return the run with points of which each second one mirrors the first, and tables of rows between them.

    The columns of the one are those of the other in reverse, so that a row which is the same both ways is as far from
    the one as from the other, whatever digits they have. They have many: a product with them is rounded.

    Returns
    -------
    run : Run
    tables : dict of int to list of ndarray of shape (n_rows, n_columns)
        By round.
    """
    n_columns = run.data[client].rows.shape[1]

    def mirror(array: Floats) -> Floats:
        if array.shape[1] != n_columns or len(array) < 2:
            return array
        first = array[0] / 3.0
        return np.array([first, first[::-1]])[np.arange(len(array)) % 2]

    mirrored = _altered(run, mirror)
    return mirrored, tied_tables(mirrored, client, mirrored=True)


def _altered(run: Run, alter: Callable[[Floats], Floats]) -> Run:
    exchanges = []
    for exchange in run.exchanges:
        sent = decode(exchange.ins.parameters)
        arrays = [alter(one) if one.ndim == 2 and one.dtype.kind == "f" and one.size else one for one in sent]
        exchanges.append(replace(exchange, ins=FitIns(encode(arrays), exchange.ins.config)))
    return replace(run, exchanges=exchanges)


def remembered(run: Run, earlier: Run, client: str) -> list[str]:
    """Return which answers of a client depend on a run that it has answered before with the same table."""
    rows = run.data[client].rows
    rows = np.tile(rows, (-(-LARGE_TABLE // rows.size), 1))
    used = ClientData(rows, owner=f"client {client}")
    shadow_answers(earlier, client, used)
    fresh, again, after = (shadow_answers(run, client, table) for table in (rows, rows, used))
    return [
        f"the answer to '{run.rounds[number].task}' depends on a run that the client has answered before"
        for number, answer in fresh.items()
        if number in run.rounds
        and bits_of_answer(answer) == bits_of_answer(again[number]) != bits_of_answer(after[number])
    ]


def bits_of_answer(answer: list[Sendable] | None) -> Bits | None:
    """Return what two answers have in common if they are the same to the last bit; None of no answer."""
    return None if not answer else tuple(map(_bits, answer))


def _bits(array: Sendable) -> tuple[int, bytes]:
    return (array.exponent, array.integers.tobytes()) if isinstance(array, GridArray) else (0, array.tobytes())
