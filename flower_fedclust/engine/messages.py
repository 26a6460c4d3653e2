"""What a run yields and is sent: who is there, messages to clients, and the answers that a carrier brings.

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

#: What a message asks for: a name and columns; what a round asks; what the clients do that a round does not ask; what
#: an earlier round has left with the others; one step of a secure sum; to keep or evaluate the model.
Kind = Literal["enrol", "round", "others", "earlier", "step", "model"]

#: The task under which the log lists the evaluation of the model.
EVALUATE = "evaluate"


@dataclass(frozen=True, slots=True)
class WhoIsThere:
    """Asks a carrier for the nodes that are connected, by id.

    A carrier answers as soon as ``is_enough`` holds for the nodes that it sees, or when it will wait no longer.
    """

    kind: Kind  #: Of the messages that follow.
    is_enough: Callable[[Sequence[str]], bool]


@dataclass(frozen=True, slots=True)
class Message:
    """What one client is asked."""

    node: str  #: Whom to bring it to.
    client: str  #: The name of the client that has enrolled from this node; the node, for who has not.
    ins: FitIns | EvaluateIns  #: What is asked. Many clients may share it.
    kind: Kind = "round"
    n_bytes: int = 0  #: Of the arrays in it.
    adds_up: bool = False  #: Whether the run wants only the sum of the answers.

    @property
    def task(self) -> str:
        """The name of what is asked for."""
        return EVALUATE if self.kind == "model" else str(self.ins.config["task"])


@dataclass
class Summed:
    """The answers of many clients to a message that adds up, as one; carriers of this machine alone make them.

    Each client's counts fit its rows, and its arrays are clipped by the terms that made them. What depends on other
    clients is left to the run, which may have an answer taken out and see it by itself.
    """

    nodes: list[str]
    arrays: list[GridArray]
    #: The largest integer of each client, or the class that it is in, by array; None where noise will cover the array.
    largest: list[Integers | None]
    n_rows: Integers
    n_bytes: int  #: Of one client's answer.
    ask_again: Callable[[list[str]], list[FitRes]] | None  #: Gives the answers of these nodes, each by itself.

    def hide(self, hidden: Sequence[bool]) -> None:
        """Forget what single clients sent of arrays that noise will cover."""
        self.largest = [None if is_hidden else one for one, is_hidden in zip(self.largest, hidden, strict=True)]

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
        self.largest = [None if one is None else one[~is_out] for one in self.largest]
        self.n_rows = self.n_rows[~is_out]
        return replies


@dataclass(frozen=True)
class Answers:
    """What came back for some messages. Who is not among the nodes has not answered."""

    replies: Mapping[str, FitRes | EvaluateRes]  #: By node.
    failures: Collection[object] = ()  #: What the carrier knows of why others have not answered: errors.
    sums: Sequence[Summed] = ()

    @property
    def nodes(self) -> set[str]:
        """The nodes that have answered."""
        return {*self.replies, *(node for one in self.sums for node in one.nodes)}


#: A run: it yields messages, never none at all, and is sent their answers; or it asks who is there, and is sent nodes.
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
            asks, answer = steps.send(answer), None  # thousands of answers are not held while the next ones come
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome
        try:
            answer = waited(asks, carrier.nodes, seconds) if isinstance(asks, WhoIsThere) else carrier.carry(asks)
        except BaseException as error:
            steps.throw(error)  # the run notes how it ended, and raises the error again
            raise


def waited(asks: WhoIsThere, look: Callable[[], Iterable[str]], seconds: float) -> list[str]:
    """Return the connected nodes once there are enough, or after some seconds."""
    deadline = time.monotonic() + seconds
    while not asks.is_enough(nodes := list(look())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return nodes


class CalledBack:
    """A run whose carrier is called back, as Flower calls a strategy: once for messages, once with their answers.

    Parameters
    ----------
    steps : generator
    seconds : float
        How long to wait for clients to appear.
    """

    def __init__(self, steps: Steps, seconds: float) -> None:
        self._steps, self._seconds = steps, seconds
        self._asks: WhoIsThere | list[Message] | None = None  # what the run has asked for last; None once it is over
        self._go_on(None)

    def messages(self, look: Callable[[], Iterable[str]], *, of_model: bool) -> list[Message]:
        """Return what the run asks of the nodes that it finds; nothing if it does not want to send the model, or does.

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
        """Give the run the answers; return whether it was waiting for them."""
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
