"""How any strategy talks to its clients. Nobody else knows Flower's records.

``rounds``    what a strategy yields, and how a client declares what it sends
``client``    ProtocolClient, a ``flwr.client.NumPyClient``
``strategy``  ProtocolStrategy, a ``flwr.server.strategy.Strategy``
``inline``    Flower's own Server over clients in this process
``message_api``  MessageStrategy, the same as a ``flwr.serverapp.strategy.Strategy``
"""

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.protocol.client import ClientData, ProtocolClient, client_app, client_fn
from flower_fedclust.protocol.message_api import MessageStrategy
from flower_fedclust.protocol.rounds import Failure, Gather, Outcome, Protocol, Reply, Sent, Sum, answers
from flower_fedclust.protocol.strategy import ProtocolError, ProtocolStrategy

__all__ = [
    "ClientData",
    "DataError",
    "Failure",
    "Gather",
    "MessageStrategy",
    "Outcome",
    "Protocol",
    "ProtocolClient",
    "ProtocolError",
    "ProtocolStrategy",
    "Reply",
    "Sent",
    "Sum",
    "answers",
    "client_app",
    "client_fn",
]
