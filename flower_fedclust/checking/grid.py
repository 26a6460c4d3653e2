"""Flower's Grid over a ClientApp in this process."""

# ruff: noqa: ARG002, D102 - Flower's signatures

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class LocalGrid(Grid):
    """Nodes with ids far from their partitions', as in a deployment; nodes in ``silent`` answer with an error."""

    def __init__(self, app: ClientApp, n_nodes: int, silent: Iterable[int] = ()) -> None:
        self.app = app
        self.silent = set(silent)
        self.contexts = {
            9000 - index: Context(
                1,
                9000 - index,
                UserConfig({"partition-id": index, "num-partitions": n_nodes}),
                RecordDict(),
                UserConfig(),
            )
            for index in range(n_nodes)
        }
        # What Flower sets in the process of a ServerApp.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def _not_needed(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("send_and_receive is enough")

    set_run = create_message = get_nodes = push_messages = pull_messages = _not_needed

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = str(node)
            message.metadata.__dict__["_run_id"] = 1
            if self.contexts[node].node_config["partition-id"] in self.silent:
                replies.append(Message(Error(code=0, reason="gone"), reply_to=message))
            else:
                replies.append(self.app(message, self.contexts[node]))
        return replies[::-1]
