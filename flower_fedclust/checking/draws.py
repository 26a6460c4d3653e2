"""Noise as a run really draws it: the messages of a run are answered, and added up, again and again.

The computation of a client is done once and its outcome is put in its place afterwards; all else is what happens in a
run, on the client's side and on the server's: consent, noise, wire, checks of replies, sums. So a thousand draws take
seconds. Without a seed the noise comes from the operating system, as it does where it has to protect somebody.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.common import Code, FitRes, Status
from numpy.typing import NDArray

from flower_fedclust.checking.neighbours import Neighbours
from flower_fedclust.checking.runs import OF_NOISE, TRIES, Exchange, Run, answer_to, new_context
from flower_fedclust.engine import ClientData, ProtocolClient, Reply, Sum
from flower_fedclust.engine.replies import add_up, values_of
from flower_fedclust.engine.rounds import Question
from flower_fedclust.engine.run import RunLog
from flower_fedclust.engine.wire import decode, encode, received_arrays
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.privacy.noise import Sendable, noise_exponent, on_grid
from flower_fedclust.privacy.releases import Release
from flower_fedclust.simulation import noise_seed_of

Floats = NDArray[np.float64]

#: How often the noise of clients is drawn that the neighbours do not belong to, where each has noise of its own.
OTHERS = 64

#: Of one release so many numbers are kept at most; and so many of each draw, to see where they come from.
MOST_NUMBERS, FIRST = 400_000, 12


@dataclass
class Cell:
    """The noise of one release."""

    round: int
    index: int  #: Of the array in the answer.
    task: str
    content: str
    release: Release
    exponent: int  #: Of the unit in which the noise is drawn.
    #: Whether all that add a share have to answer, so that the noise is as wide as declared and no wider.
    is_whole: bool
    #: By whose reply it is in, "" for a sum: one array a draw, in the units of the array, as one axis.
    noise: dict[str, list[Floats]] = field(default_factory=dict)
    #: By who draws it: the first entries of the noise, or of a share of it, in units.
    drawn: dict[str, list[Floats]] = field(default_factory=dict)
    n_shares: int = 1
    is_summed: bool = False  #: Of shares that clients draw.
    #: Where clients draw the noise: by draw, what is seen of the one table, and of the other, less what the one table
    #: would give without noise.
    seen: tuple[dict[int, Floats], dict[int, Floats]] = field(default_factory=lambda: ({}, {}))

    @property
    def standardised(self) -> dict[str, list[Floats]]:
        """The noise over its declared scale."""
        scale = self.release.scale
        return {
            who: [
                part * (self.widths(part.size) / scale) for part in parts[: 1 + MOST_NUMBERS // max(parts[0].size, 1)]
            ]
            for who, parts in self.noise.items()
        }

    @property
    def n_numbers(self) -> int:
        """How many numbers have been drawn."""
        return sum(part.size for parts in self.noise.values() for part in parts)

    def widths(self, size: int) -> Floats:
        """Return how many times narrower than the scale the noise of each entry is declared to be."""
        widths = np.ones(size)
        if self.release.triangle:
            widths[is_off_diagonal((math.isqrt(8 * size + 1) - 1) // 2)] = math.sqrt(2.0)
        return widths

    def add(self, who: str, noise: Floats) -> None:
        """Take one draw in."""
        self.noise.setdefault(who, []).append(np.ravel(noise))
        if not self.is_summed:
            self.add_share(who, noise)

    def add_share(self, who: str, noise: Floats) -> None:
        """Take in who draws what."""
        self.drawn.setdefault(who, []).append(np.ldexp(np.ravel(noise)[:FIRST], -self.exponent))


class Drawer:
    """Draws the noise of a run's releases, as often as it is asked to.

    Parameters
    ----------
    run : Run
    target : str
        The client to which the neighbours belong.
    pair : Neighbours, optional
        Its two tables: where clients draw the noise, every other draw is of its replies from the second.
    noise_seed : int, default=0
        With which clients draw, without noise, what they draw themselves.
    """

    def __init__(self, run: Run, target: str, pair: Neighbours | None = None, noise_seed: int = 0) -> None:
        self._run, self._target, self._pair, self._noise_seed = run, target, pair, noise_seed
        self.cells: dict[tuple[int, int], Cell] = {}
        self.seeded: dict[tuple[int, int], Cell] = {}
        self._draws: dict[int, Callable[[int, bool], None]] = {}
        contexts = {name: new_context() for name in run.data}
        data = dict(run.data)
        if pair is not None:
            data[target] = ClientData(pair.rows, owner=f"client {target}")
            data[_OTHER] = ClientData(pair.rows if pair.others is None else pair.others, owner=f"client {target}")
            contexts[_OTHER] = new_context()
        self._data = data
        for number, round_ in run.rounds.items():
            noisy = [release is not None and release.scale > 0 for release in round_.releases]
            asked = run.asked(number)
            by_clients = [exchange for exchange in asked if OF_NOISE & exchange.ins.config.keys()]
            if any(noisy) and by_clients:
                self._prepare_clients(number, by_clients, contexts)
            elif any(noisy):
                self._prepare_server(number, asked)
            if run.clients_remember:
                for exchange in (one for one in run.exchanges if one.round == number):
                    _fit(run, exchange, data[exchange.client], contexts[exchange.client], None, None)
                    if exchange.client == target and pair is not None:
                        _fit(run, exchange, data[_OTHER], contexts[_OTHER], None, None)

    def draw(self, repetition: int) -> None:
        """Draw the noise of all releases once more, from the operating system."""
        for one in self._draws.values():
            one(repetition, False)

    def draw_seeded(self, repetition: int) -> None:
        """Draw it once more with the seeds that a run with a seed gives to all, into the cells ``seeded``."""
        for one in self._draws.values():
            one(repetition, True)

    def draw_numbers(self, n_numbers: int) -> None:
        """Draw with seeds, of each release until there are so many numbers."""
        for number, one in self._draws.items():
            cells = [cell for (of, _), cell in self.seeded.items() if of == number]
            for repetition in range(n_numbers):
                if all(cell.n_numbers >= n_numbers for cell in cells):
                    break
                one(repetition, True)

    # On the server.

    def _prepare_server(self, number: int, asked: Sequence[Exchange]) -> None:
        run, round_ = self._run, self._run.rounds[number]
        books = run.strategy._run
        assert books is not None
        sites = {site.name: site for site in run.sites}
        answered = [one for one in asked if one.res is not None and "failure" not in one.res.metrics]
        results = [(sites[one.client], one.res) for one in answered if one.res is not None]
        by_name = {one.client: one.sent for one in answered}
        replies = [by_name[name] for name in run.strategy.client_names if name in by_name]
        if not replies:
            return
        addressed = {sites[one.client].cid: one.client for one in asked}
        plain = (
            {"": values_of(add_up(replies))}
            if isinstance(round_, Sum)
            else {n: values_of(r) for n, r in by_name.items()}
        )
        self._add_cells(number, replies[0], 1, is_whole=True)

        def draw(repetition: int, seeded: bool) -> None:
            probe = copy.copy(books)
            probe.log = RunLog()
            probe.settings = replace(books.settings, noise_seed=1_000_000 + repetition if seeded else None)
            probe._addressed, probe._aside = addressed, {}
            probe._bytes_down = dict.fromkeys(addressed.values(), 0)
            received = probe.receive(number, round_, results, [])
            if isinstance(round_, Sum):
                self._take(number, "", list(received or []), plain[""], seeded=seeded)
            else:
                for reply in received or []:
                    assert isinstance(reply, Reply)
                    self._take(number, reply.client, reply.arrays, plain[reply.client], seeded=seeded)

        self._draws[number] = draw

    # On the clients.

    def _prepare_clients(self, number: int, asked: Sequence[Exchange], contexts: dict[str, Context]) -> None:
        run, round_ = self._run, self._run.rounds[number]
        n_shares = int(str(asked[0].ins.config["n_shares"]))
        summed = run.strategy.noise == "clients" and isinstance(round_, Sum) and not round_.answer.keeps

        def capture(exchange: Exchange, who: str) -> list[Sendable] | None:
            return _captured(run, exchange, self._data[who], contexts[who], self._noise_seed)

        captured = {one.client: capture(one, one.client) for one in asked}
        if self._pair is not None:
            for one in asked:
                if one.client == self._target:
                    other = capture(one, _OTHER)
                    is_there = self._pair.others is not None
                    captured[_OTHER] = other if is_there or other is None else [_nothing(array) for array in other]
        plain = {name: arrays for name, arrays in captured.items() if arrays is not None}
        if len(plain) < len(captured):
            return
        before = {name: _copied(context) for name, context in contexts.items()}
        is_whole, arrays = n_shares == len(asked) or not summed, next(iter(plain.values()))
        self._add_cells(number, arrays, n_shares, is_whole=is_whole, is_summed=summed)
        indices = {name: index for index, name in enumerate(run.data)}
        exchanges = {one.client: one for one in asked}
        knowing = {
            name: _knowing(run, exchanges[self._target if name == _OTHER else name], true)
            for name, true in plain.items()
        }

        def draw(repetition: int, seeded: bool) -> None:
            totals: list[Any] = []
            is_other = repetition % 2 == 1 and _OTHER in plain
            for exchange in asked:
                if not (summed or exchange.client == self._target or repetition < OTHERS):
                    continue
                seed = noise_seed_of(1_000_000 + repetition, indices[exchange.client]) if seeded else None
                whose = _OTHER if is_other and exchange.client == self._target else exchange.client
                true = plain[whose]
                noisy = _fit(run, exchange, self._data[whose], _copied(before[whose]), seed, knowing[whose])
                if not noisy:  # it fails at random
                    return
                if not summed:
                    self._take(number, exchange.client, noisy, true, seeded=seeded)
                if exchange.client == self._target and not seeded and not summed:
                    self._see(number, repetition, is_other, noisy, plain[self._target])
                if not summed:
                    continue
                noise = [_minus(one, other) for one, other in zip(noisy, true, strict=True)]
                for cell, index in self._cells(number, seeded=seeded):
                    cell.add_share(exchange.client, noise[index])
                totals = noise if not totals else [one + other for one, other in zip(totals, noise, strict=True)]
            if summed:
                self._take(number, "", totals, [0.0] * len(totals), seeded=seeded)
                if not seeded and self._target in plain:
                    one, two = plain[self._target], plain[_OTHER if is_other else self._target]
                    moved = [_minus(*pair) for pair in zip(two, one, strict=True)]
                    seen = [part + np.reshape(more, np.shape(part)) for part, more in zip(totals, moved, strict=True)]
                    self._see(number, repetition, is_other, seen, [0.0] * len(seen))

        self._draws[number] = draw

    # Both.

    def _add_cells(
        self, number: int, arrays: Sequence[Sendable], n_shares: int, *, is_whole: bool, is_summed: bool = False
    ) -> None:
        round_ = self._run.rounds[number]
        for index, (release, array) in enumerate(zip(round_.releases, arrays, strict=False)):
            if release is not None and release.scale > 0:
                exponent = noise_exponent(release, n_shares, on_grid(array).exponent)
                content = round_.answer.sends[index].content
                for cells in (self.cells, self.seeded):
                    cells[number, index] = Cell(number, index, round_.task, content, release, exponent, is_whole)
                    cells[number, index].n_shares, cells[number, index].is_summed = n_shares, is_summed

    def _cells(self, number: int, *, seeded: bool) -> list[tuple[Cell, int]]:
        return [(cell, index) for (of, index), cell in (self.seeded if seeded else self.cells).items() if of == number]

    def _take(self, number: int, who: str, arrays: Sequence[Any], plain: Sequence[Any], *, seeded: bool) -> None:
        for cell, index in self._cells(number, seeded=seeded):
            cell.add(who, _minus(arrays[index], plain[index]))

    def _see(self, number: int, repetition: int, is_other: bool, arrays: Sequence[Any], plain: Any) -> None:
        for cell, index in self._cells(number, seeded=False):
            cell.seen[is_other][repetition] = np.ravel(_minus(arrays[index], plain[index]))


#: Under which the second table of the client of the neighbours goes; no client is called so.
_OTHER = "\0other"


def _nothing(array: Sendable) -> Sendable:
    if isinstance(array, GridArray):
        return GridArray(np.zeros_like(array.integers), array.exponent)
    return np.zeros_like(array)


def _minus(one: Any, other: Any) -> Floats:
    """Return the difference in the units of the data, without rounding where both are on grids."""
    if isinstance(one, GridArray):
        other = on_grid(other)
        if other.exponent < one.exponent:
            one = one.refined(other.exponent)
        whole = one.integers - other.refined(one.exponent).integers
        found: Floats = np.ldexp(whole.astype(np.float64), one.exponent)
        return found
    difference: Floats = np.asarray(one, dtype=np.float64) - (other.values if isinstance(other, GridArray) else other)
    return difference


def _copied(context: Context) -> Context:
    copied = copy.copy(context)
    copied.state = RecordDict(dict(context.state))
    return copied


def _captured(
    run: Run, exchange: Exchange, data: ClientData, context: Context, noise_seed: int
) -> list[Sendable] | None:
    """Return what a client answers to a message before its noise is added; None if it does not."""
    asked = getattr(run.strategy.client_type, str(exchange.ins.config["task"]))
    found: list[list[Sendable]] = []

    def watched(client: ProtocolClient, question: Question) -> Any:
        reply = asked.reply_of(client, question)
        given = list(reply) if isinstance(reply, (list, tuple)) else [reply]
        found.append([array if isinstance(array, GridArray) else np.asarray(array) for array in given])
        return reply

    kind = _answering(run, exchange, watched)
    for seed in (noise_seed, *range(TRIES)):  # a client may fail at random
        make = partial(kind, data, name=exchange.client, context=_copied(context), noise_seed=seed)
        answer_to(make, exchange.ins, tries=1)
        if found:
            return found[0]
    return None


def _knowing(run: Run, exchange: Exchange, true: list[Sendable]) -> type[ProtocolClient]:
    """Return the run's clients, but for what a message asks: that answer is given."""
    return _answering(run, exchange, lambda *_: tuple(true))


def _answering(run: Run, exchange: Exchange, reply_of: Callable[..., Any]) -> type[ProtocolClient]:
    """Return the run's clients, with another function that answers what a message asks."""
    kind, task = run.strategy.client_type, str(exchange.ins.config["task"])
    asked = getattr(kind, task)
    other = object.__new__(type(asked))
    vars(other).update(vars(asked), reply_of=reply_of)
    return type(kind.__name__, (kind,), {task: other})


def _fit(
    run: Run,
    exchange: Exchange,
    data: ClientData,
    context: Context,
    seed: int | None,
    knowing: type[ProtocolClient] | None,
) -> list[Any]:
    """Return what a client sends, or keeps, if its method has returned what it knows; otherwise have it answer."""
    kind = run.strategy.client_type if knowing is None else knowing
    make = partial(kind, data, name=exchange.client, context=context, noise_seed=seed)
    arrays, n_examples, facts = answer_to(make, exchange.ins)
    if knowing is None or "failure" in facts:
        return []
    res = FitRes(Status(Code.OK, ""), encode(arrays), n_examples, facts)
    round_ = run.rounds[exchange.round]
    if not round_.answer.keeps:
        return received_arrays(decode(res.parameters), res.metrics)
    records = (context.state.get(f"fedclust.{sent.kept_as}") for sent in round_.answer.sends)
    return [record.to_numpy_ndarrays()[0] for record in records if isinstance(record, ArrayRecord)]
