"""What a run yields (questions about who is connected, messages to clients) and what a carrier sends back.

A run (:meth:`~flower_fedclust.engine.run.Run.steps`) is a generator. Whoever drives it is a carrier: it brings messages
to clients and their answers back, and knows who is connected, how long to wait, and why somebody is silent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes
from numpy.typing import NDArray

from flower_fedclust.engine.rounds import Outcome
from flower_fedclust.engine.wire import decode
from flower_fedclust.exact.grid import GridArray

Integers = NDArray[np.int64]

#: What a message asks for. "enrol": name and columns. "round": the question of the round. "others": the task of clients
#: that the round does not ask. "earlier": an earlier round that the client missed. "step": one step of a secure sum.
#: "model": to keep or evaluate the model.
Kind = Literal["enrol", "round", "others", "earlier", "step", "model"]

#: The task under which the log lists the evaluation of the model.
EVALUATE = "evaluate"


@dataclass(frozen=True, slots=True)
class WhoIsThere:
    """Asks a carrier for the nodes that are connected, by id.

    A carrier answers as soon as ``is_enough`` holds for the nodes that it sees, or when it will wait no longer.
    """

    kind: Kind  #: The kind of the messages that will follow.
    is_enough: Callable[[Sequence[str]], bool]


@dataclass(frozen=True, slots=True)
class Message:
    """A message to one client."""

    node: str  #: The node to bring it to.
    client: str  #: The name of the client that enrolled from this node; the node's id if none has.
    ins: FitIns | EvaluateIns  #: What is asked. Many clients may share it.
    kind: Kind = "round"
    n_bytes: int = 0  #: The size of its arrays.
    adds_up: bool = False  #: Whether the run wants only the sum of the answers.

    @property
    def task(self) -> str:
        """The name of the task."""
        return EVALUATE if self.kind == "model" else str(self.ins.config["task"])


@dataclass
class Summed:
    """The sum of many clients' answers to one message. Only carriers of simulated clients make it.

    The carrier has checked that each client's counts fit its rows; the terms have clipped its arrays. The run compares
    clients with one another: it can have an answer taken out of the sum, and inspect it alone.
    """

    nodes: list[str]
    arrays: list[GridArray]
    #: For each array, the largest integer that each client sent; for an array that counts one class, the number of that
    #: class. None where noise will cover the array.
    largest: list[Integers | None]
    n_rows: Integers
    n_bytes: int  #: The size of one client's answer.
    #: Returns the separate answers of some nodes.
    ask_again: Callable[[list[str]], list[FitRes]] | None

    def hide(self, hidden: Sequence[bool]) -> None:
        """Forget what single clients sent of arrays that noise will cover."""
        self.largest = [
            None if is_hidden else largest
            for largest, is_hidden in zip(self.largest, hidden, strict=True)
        ]

    def take_out(self, is_out: NDArray[np.bool_]) -> dict[str, FitRes]:
        """Take answers out of the sum, and return them by node."""
        nodes = [self.nodes[index] for index in np.flatnonzero(is_out)]
        if not nodes:
            return {}
        assert self.ask_again is not None
        replies = dict(zip(nodes, self.ask_again(nodes), strict=True))
        for res in replies.values():
            for index, array in enumerate(decode(res.parameters)):
                total = self.arrays[index]
                self.arrays[index] = GridArray(total.integers - array, total.exponent)
        self.nodes = [self.nodes[index] for index in np.flatnonzero(~is_out)]
        self.largest = [None if largest is None else largest[~is_out] for largest in self.largest]
        self.n_rows = self.n_rows[~is_out]
        return replies


@dataclass(frozen=True)
class Answers:
    """The replies to some messages. A node without a reply has not answered."""

    replies: Mapping[str, FitRes | EvaluateRes]  #: By node.
    #: The carrier's errors, which say why nodes have not answered.
    failures: Collection[object] = ()
    sums: Sequence[Summed] = ()


#: A run. It yields a list of messages (never empty) and is sent Answers, or yields WhoIsThere and is sent nodes.
Steps: TypeAlias = Generator[WhoIsThere | list[Message], Any, Outcome]


class Carrier(Protocol):
    """Brings the messages of a run to its clients."""

    def nodes(self) -> Iterable[str]:
        """Return the nodes that are connected now."""

    def carry(self, messages: Sequence[Message]) -> Answers:
        """Bring messages to their nodes, and return the answers."""


def drive(steps: Steps, carrier: Carrier, *, seconds: float = 0.0) -> Outcome:
    """Carry the messages of a run until it ends.

    Parameters
    ----------
    steps : generator
    carrier : Carrier
    seconds : float, default=0
        How long to wait for clients to appear.
    """
    answer: Any = None
    while True:
        try:
            # Drop the last answers here, so that thousands of them do not stay in memory while the next ones come.
            asks, answer = steps.send(answer), None
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome
        try:
            answer = (
                waited(asks, carrier.nodes, seconds)
                if isinstance(asks, WhoIsThere)
                else carrier.carry(asks)
            )
        except BaseException as error:
            steps.throw(error)  # the run notes how it ended, and raises the error again
            raise


def waited(asks: WhoIsThere, look: Callable[[], Iterable[str]], seconds: float) -> list[str]:
    """Return the connected nodes as soon as there are enough, but at the latest after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not asks.is_enough(nodes := list(look())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return nodes


class CalledBack:
    """A run for a framework that calls back, as Flower calls a strategy: once for messages, once with their answers.

    Parameters
    ----------
    steps : generator
    seconds : float
        How long to wait for clients to appear.
    """

    def __init__(self, steps: Steps, seconds: float) -> None:
        self._steps, self._seconds = steps, seconds
        # The last request of the run; None once the run is over.
        self._asks: WhoIsThere | list[Message] | None = None
        self._go_on(None)

    def messages(self, look: Callable[[], Iterable[str]], *, of_model: bool) -> list[Message]:
        """Return the run's next messages of the wanted kind: with or without the model. [] if it has none of this kind.

        ``look`` returns the connected nodes.
        """
        while isinstance(self._asks, WhoIsThere) and (self._asks.kind == "model") is of_model:
            try:
                nodes = waited(self._asks, look, self._seconds)
            except BaseException as error:
                self._steps.throw(error)  # the run notes how it ended, and raises the error again
                raise
            self._go_on(nodes)
        return self._asks if self._waits(of_model=of_model) else []  # type: ignore[return-value]

    def answer(self, answers: Answers, *, of_model: bool) -> bool:
        """Pass the answers to the run; return whether it was waiting for them."""
        if not self._waits(of_model=of_model):
            return False
        self._go_on(answers)
        return True

    def _waits(self, *, of_model: bool) -> bool:
        return isinstance(self._asks, list) and (self._asks[0].kind == "model") is of_model

    def _go_on(self, answer: Any) -> None:
        asks, self._asks = None, None
        with suppress(StopIteration):
            asks = self._steps.send(answer)
        self._asks = asks
