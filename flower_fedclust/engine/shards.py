"""A shard: many simulated clients in one process. It answers a round of sums for all of them at once.

The sum has the same bits as if the clients answered one after the other. Some clients are still asked one by one: large
clients, clients that fail, and all clients if the answer is not by row or clients add noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Status
from numpy.typing import NDArray

from flower_fedclust.data.batches import BATCH_ENTRIES
from flower_fedclust.engine.by_row import ByRow
from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.fields import ENROL, SECURE, read_question
from flower_fedclust.engine.messages import Summed
from flower_fedclust.engine.rounds import Array, Question, Sent
from flower_fedclust.engine.wire import (
    EMPTY,
    PROBE,
    as_numbers,
    decode,
    encode,
    hashed,
    sent_arrays,
    size_of,
)
from flower_fedclust.exact.grid import MOST_ROWS, GridArray
from flower_fedclust.exact.stacks import MOST_ROWS_OF_ONE
from flower_fedclust.exact.subjects import COUNT_BITS
from flower_fedclust.format import FORMAT

Integers = NDArray[np.int64]

#: The most entries of single replies that are in memory at a time.
REPLY_ENTRIES = 2**20

#: Clients answer together only if their class overrides none of these methods.
OWN = (
    "__init__",
    "fit",
    "source",
    "data",
    "rows_in_batches",
    "_answered",
    "_parsed",
    "_columns",
    "_computed",
)

OK = Status(Code.OK, "")

#: Replies by client (a reply may be an exception), and the clients to ask one by one.
Replies: TypeAlias = tuple[list[tuple[int, Any]], list[int]]


class Shard:
    """Clients of one process: their data, the seeds of their noise, and what they remember.

    Parameters
    ----------
    client_type : type of ProtocolClient
    clients : mapping of str to ClientData
    noise_seeds : sequence of (int or None)
    first : int, default=0
        The node id of the first client; the others follow.
    """

    def __init__(
        self,
        client_type: type[ProtocolClient],
        clients: Mapping[str, ClientData],
        noise_seeds: Sequence[int | None],
        first: int = 0,
    ) -> None:
        self._type, self._first = client_type, first
        self._names, self._data, self._seeds = list(clients), list(clients.values()), noise_seeds
        self._contexts: dict[int, Context] = {}  # of clients that were asked one by one
        self._apart: set[int] = set()  # clients whose replies the server must inspect one by one
        self._can_join = all(
            getattr(client_type, name) is getattr(ProtocolClient, name) for name in OWN
        )
        self._message: tuple[Parameters, list[Array]] | None = None

    # One client, made anew for every message, as Flower does.

    def client(self, index: int) -> ProtocolClient:
        """Return one client."""
        if index not in self._contexts:
            self._contexts[index] = Context(
                0, self._first + index, UserConfig(), RecordDict(), UserConfig()
            )
        return self._type(
            self._data[index],
            name=self._names[index],
            context=self._contexts[index],
            noise_seed=self._seeds[index],
        )

    def __len__(self) -> int:
        return len(self._names)

    def fit(self, index: int, ins: FitIns) -> FitRes:
        """Return one client's reply."""
        arrays, n_examples, metrics = self.client(index).fit(
            self._decoded(ins.parameters), ins.config
        )
        return FitRes(OK, encode(arrays), n_examples, metrics)

    def evaluate(self, index: int, ins: EvaluateIns) -> EvaluateRes:
        """Return one client's evaluation of a model."""
        loss, n_examples, metrics = self.client(index).evaluate(
            self._decoded(ins.parameters), ins.config
        )
        return EvaluateRes(OK, loss, n_examples, metrics)

    def _decoded(self, parameters: Parameters) -> list[Array]:
        """Decode a message once for all its clients; the arrays are read-only."""
        if self._message is None or self._message[0] is not parameters:
            self._message = parameters, decode(parameters)
        return list(self._message[1])

    def memory(self, index: int) -> dict[str, list[Array]]:
        """Return what one client remembers, by key."""
        if index not in self._contexts:
            return {}
        state = self._contexts[index].state
        return {
            key: record.to_numpy_ndarrays()
            for key, record in state.items()
            if isinstance(record, ArrayRecord)
        }

    def remind(self, index: int, memory: Mapping[str, list[Array]]) -> None:
        """Give one client a memory again."""
        self.client(index)
        state = self._contexts[index].state
        for key, arrays in memory.items():
            state[key] = ArrayRecord(arrays)

    # Many clients.

    def begin(
        self, ins: FitIns | EvaluateIns, members: Sequence[int], *, adds_up: bool
    ) -> Callable[[], Replies]:
        """Return a function that asks clients."""
        if isinstance(ins, EvaluateIns):
            return lambda: ([], list(members))
        return partial(self.together, ins, members, adds_up=adds_up)

    def answered(
        self, ins: FitIns | EvaluateIns, members: Sequence[int], *, adds_up: bool
    ) -> tuple[list[tuple[int, Any]], dict[int, dict[str, list[Array]]]]:
        """Return the replies of all these clients, and the memories that have changed, by client."""
        before = {index: self._records(index) for index in members}
        replies, rest = self.begin(ins, members, adds_up=adds_up)()
        for index in rest:
            try:
                res = self.fit(index, ins) if isinstance(ins, FitIns) else self.evaluate(index, ins)
                replies.append((index, res))
            except Exception as error:
                replies.append((index, error))
        changed = [index for index, records in before.items() if records != self._records(index)]
        return replies, {index: self.memory(index) for index in changed}

    def _records(self, index: int) -> dict[str, int]:
        """Return the identity of each record that a client keeps, which changes when the record is replaced."""
        context = self._contexts.get(index)
        return {} if context is None else {key: id(record) for key, record in context.state.items()}

    def together(self, ins: FitIns, members: Sequence[int], *, adds_up: bool) -> Replies:
        """Return the replies of clients that can answer together, and the clients that have to be asked one by one.

        ``adds_up`` tells whether the server wants the sum over the clients. A sum is listed under its first client.
        """
        if not self._can_join or len(members) < 2:
            return [], list(members)
        if ins.config["task"] == ENROL:
            return self._enrolled(ins, members)
        question = self._question(ins) if adds_up else None
        if question is None:
            return [], list(members)
        joined, rest = [_Joined(question)], list[int]()
        for batch in self._batches(question, ins.config, members, rest):
            indices, rows = zip(*batch, strict=True)
            if joined[-1].total_rows + sum(map(len, rows)) > MOST_ROWS:
                joined.append(_Joined(question))  # a sum over more rows could exceed 63 bits
            try:
                arrays = question.asks.replies_of_many(question, rows) if len(batch) > 1 else None
            except Exception:
                arrays = None  # then each client is asked by itself, and the failing one says why
            if arrays is None:
                rest += indices
            else:
                places = joined[-1].add(indices, list(map(len, rows)), arrays)
                odd = [indices[place] for place in places.tolist()]
                self._apart.update(odd)
                rest += odd

        def ask_again(nodes: list[str]) -> list[FitRes]:
            return [self.fit(int(node) - self._first, ins) for node in nodes]

        return [
            (
                part.members[0],
                part.summed([str(self._first + index) for index in part.members], ask_again),
            )
            for part in joined
            if part.members
        ], sorted(rest)

    def _enrolled(self, ins: FitIns, members: Sequence[int]) -> Replies:
        """Return names and columns of clients whose rows are plain numbers."""
        replies, rest = list[tuple[int, Any]](), list[int]()
        texts, probe = dict[Any, str](), encode(PROBE)
        expected = ins.config.get("n_columns")
        for index in members:
            data = self._data[index]
            is_plain = data.is_plain and expected in (None, data.n_columns)
            if "schema" in ins.config or ins.config.get("goes_on") or not is_plain:
                rest.append(index)
                continue
            self._contexts.pop(index, None)
            columns = data.n_columns if data.columns is None else tuple(data.columns)
            if columns not in texts:
                texts[columns] = json.dumps(columns)
            facts: dict[str, Any] = {
                "format": FORMAT,
                "client": self._names[index],
                "columns": texts[columns],
            }
            replies.append((index, FitRes(OK, probe, 1, hashed(PROBE, facts))))
        return replies, rest

    def _question(self, ins: FitIns) -> Question | None:
        """Return the question of a message if many clients can answer it together; otherwise None."""
        config, asked = ins.config, getattr(self._type, str(ins.config["task"]), None)
        if not isinstance(asked, ByRow) or type(asked).reply_of is not ByRow.reply_of:
            return None
        if '"unit": "subject"' in str(config.get("plan", "")):
            return None  # a client divides each row's terms by its subject's number of rows, so each is asked by itself
        if (
            SECURE in config
            or config.get("rows")
            or "parts" in config
            or asked.answer.keeps
            or not asked.answer.sends
        ):
            return None
        try:
            arrays = [] if config.get(EMPTY) else self._decoded(ins.parameters)
            return read_question(asked, list(map(as_numbers, arrays)), config, self._type)
        except Exception:
            return None  # then each client is asked by itself, and says why the message is wrong

    def _rows(self, index: int, config: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return the rows that one client would add up; raise an error if they are not in memory."""
        if "columns" not in config and index not in self._contexts and self._data[index].is_plain:
            return self._data[index].rows
        client = self.client(index)
        rows = client._in_order_of(config).rows_in_batches
        return rows if isinstance(rows, np.ndarray) else rows.rows_in_memory

    def _batches(
        self, question: Question, config: Mapping[str, Any], members: Sequence[int], rest: list[int]
    ) -> Iterator[list[tuple[int, NDArray[np.float64]]]]:
        """Yield batches of small clients with their rows; add all other clients to ``rest``."""
        try:
            sent = max(math.prod(term.form[0]) for terms in question.of_no_rows for term in terms)
        except Exception:
            rest += members
            return
        most = max(1, REPLY_ENTRIES // max(sent, 1))
        batch, n_entries = list[tuple[int, NDArray[np.float64]]](), 0
        for index in members:
            try:
                rows = self._rows(index, config)
            except Exception:
                rest.append(index)
                continue
            is_small = 0 < len(rows) <= MOST_ROWS_OF_ONE and rows.size <= BATCH_ENTRIES // 4
            # Without an epsilon a client refuses rows that are too large, and says which.
            is_refused = not config.get("plan") and bool(self._data[index].too_large)
            if index in self._apart or not is_small or is_refused:
                rest.append(index)
                continue
            if batch and (len(batch) == most or n_entries + rows.size > BATCH_ENTRIES):
                yield batch
                batch, n_entries = [], 0
            batch.append((index, rows))
            n_entries += rows.size
        if batch:
            yield batch


class _Joined:
    """The sum of the replies of several batches of clients."""

    def __init__(self, question: Question) -> None:
        self._sends = question.answer.sends
        self.members: list[int] = []
        self._totals: list[GridArray] = []
        self._largest: list[list[Integers]] = [[] for _ in self._sends]
        self._n_rows: list[Integers] = []
        self.total_rows = 0  #: The number of rows in all batches.
        self._n_bytes = 0

    def add(
        self, members: Sequence[int], n_rows: Sequence[int], arrays: Sequence[GridArray]
    ) -> NDArray[np.intp]:
        """Add the replies of a batch; return the places of replies left out, which the server must check one by one."""
        sizes = np.array(n_rows, dtype=np.int64)
        self.total_rows += int(sizes.sum())
        flat = [array.integers.reshape(len(sizes), -1) for array in arrays]
        pairs = zip(self._sends, arrays, flat, strict=True)
        fits = np.logical_and.reduce(
            [_fits(sent, integers, array.exponent, sizes) for sent, array, integers in pairs]
        )
        sums = [
            GridArray(
                (array.integers if fits.all() else array.integers[fits]).sum(axis=0), array.exponent
            )
            for array in arrays
        ]
        if self._totals:
            sums = [
                GridArray(before.integers + added.integers, before.exponent)
                for before, added in zip(self._totals, sums, strict=True)
            ]
        else:
            plain, _ = sent_arrays(
                [GridArray(array.integers[0], array.exponent) for array in arrays]
            )
            self._n_bytes = size_of(encode(plain))
        self._totals = sums
        for of_batches, sent, integers in zip(self._largest, self._sends, flat, strict=True):
            if sent.counts == "once":
                largest = integers.argmax(axis=1)
            else:
                largest = np.maximum(integers.max(axis=1), -integers.min(axis=1))
            of_batches.append(largest[fits])
        self._n_rows.append(sizes[fits])
        self.members += [members[place] for place in np.flatnonzero(fits).tolist()]
        return np.flatnonzero(~fits)

    def summed(self, nodes: list[str], ask_again: Callable[[list[str]], list[FitRes]]) -> Summed:
        """Return the sum as one reply of these nodes."""
        largest: list[Integers | None] = [
            np.concatenate(of_batches) for of_batches in self._largest
        ]
        n_rows = np.concatenate(self._n_rows)
        return Summed(nodes, self._totals, largest, n_rows, self._n_bytes, ask_again)


def _fits(sent: Sent, integers: Integers, exponent: int, n_rows: Integers) -> NDArray[np.bool_]:
    """Return which clients' arrays the server is certain to accept."""
    ok = np.ones(len(integers), dtype=bool)
    if not integers.shape[1]:
        return ~ok
    if sent.is_positive or sent.counts:
        ok &= integers.min(axis=1) >= 0
    if sent.counts or sent.counts_rows:
        totals = integers.sum(axis=1)
        # A row counts as 2^-exponent units. Counts have one of two exponents; an array with another one fails here, so
        # that the server checks it.
        expected = n_rows << -exponent if exponent in (0, -COUNT_BITS) else np.full_like(n_rows, -1)
        is_one_class = (totals == 1) & (exponent == 0)
        right = {"some rows": totals <= expected, "once": is_one_class}.get(
            sent.counts, totals == expected
        )
        ok &= right & (sent.counts != "labels")
    return ok
