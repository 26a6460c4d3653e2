"""A mod for an app's own ClientApp: it answers strategies of this package, and leaves all other messages to the app."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from flower_fedclust.engine.client import ProtocolClient, client_app
from flower_fedclust.engine.client_data import ClientData


def client_mod(
    client_type: type[ProtocolClient] | Iterable[type[ProtocolClient]],
    load: Callable[[Context], ClientData],
    **options: Any,
) -> Mod:
    """Return a Flower mod that answers for strategies; it takes the arguments of :func:`client_fn`.

    It answers messages of this package's strategies and hands all others to the app, so that one app can find clusters
    and then train a model. The app needs a ``train`` function (and an ``evaluate`` function, if the strategy shares or
    evaluates its model), because Flower looks for one before it asks a mod.

    Examples
    --------
    ::

        app = ClientApp(mods=[fc.client_mod(fc.PrivateKMeans.client_type, load)])


        @app.train()
        def train(message, context): ...  # gets no message of fc.PrivateKMeans
    """
    answer = client_app(client_type, load, **options)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        return answer(message, context) if _is_ours(message) else call_next(message, context)

    return mod


def _is_ours(message: Message) -> bool:
    """Return whether a message has the fields of this package's messages; the client checks everything else."""
    records = message.content.values() if message.has_content() else ()
    return any(
        isinstance(record, ConfigRecord) and {"format", "client"} <= set(record)
        for record in records
    )
