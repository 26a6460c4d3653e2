"""Runs whose rounds and messages are kept, and clients that fail."""

from typing import Any, NamedTuple

from flower_fedclust.engine import DataError
from flower_fedclust.engine.replies import values_of
from flower_fedclust.engine.wire import received_arrays

KEPT = ("labels", "places", "memberships", "noisy rows")


class Message(NamedTuple):
    """What a client was sent and answered, and what it keeps."""

    task: str
    client: str
    received: list
    sent: list
    kept: dict[str, Any]
    round: int


def watched(strategy_type, client_type=None):
    """Return the strategy with clients that leave their messages behind, its rounds with noise, and the messages."""
    rounds, messages = [], []

    class Client(client_type or strategy_type.client_type):
        def fit(self, parameters, config):
            answer = super().fit(parameters, config)
            sent = values_of(received_arrays(answer[0], answer[2]))
            kept = {key: found[0] for key in KEPT if (found := self.recall(key)) is not None}
            messages.append(
                Message(config["task"], self.name, parameters, sent, kept, config["round"])
            )
            return answer

    class Strategy(strategy_type):
        client_type = Client

        def protocol(self):
            generator, brought = super().protocol(), None
            while True:
                try:
                    round_ = generator.send(brought)
                except StopIteration as stop:
                    return stop.value
                rounds.append(self.with_noise(round_))
                brought = yield round_

    return Strategy, rounds, messages


def failing(strategy_type, task, names, *, rounds=None):
    """Return the strategy with clients of these names that fail at a task, or in some rounds."""

    class Failing(strategy_type.client_type):
        def fit(self, parameters, config):
            at = config["task"] == task if rounds is None else config["round"] in rounds
            self.fails = at and self.name in names
            return super().fit(parameters, config)

        @property
        def rows(self):
            if self.fails:
                raise DataError(f"client {self.name} fails.")
            return super().rows

    return type("Strategy", (strategy_type,), {"client_type": Failing})
