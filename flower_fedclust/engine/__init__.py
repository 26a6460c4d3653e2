"""How any strategy talks to its clients. Nobody else knows Flower's records.

``parameters``  parameters that are declared once
``entries``     the names under which a strategy is known
``rounds``      what a strategy yields, and how a client declares what it sends
``consent``     what a client's operator lets it answer
``client``      ProtocolClient, a ``flwr.client.NumPyClient``
``strategy``    ProtocolStrategy, a ``flwr.server.strategy.Strategy``
``private_strategy``  PrivateStrategy, which has a budget, and ClippedStrategy, which has a norm
``run``         the books of one run
``inline``      Flower's own Server over clients in this process
``message_api``  MessageStrategy, the same as a ``flwr.serverapp.strategy.Strategy``
"""

from flower_fedclust.engine.client import ProtocolClient, client_app, client_fn
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.consent import Consent
from flower_fedclust.engine.entries import Entry
from flower_fedclust.engine.journal import Journal
from flower_fedclust.engine.message_api import MessageStrategy
from flower_fedclust.engine.parameters import parameter
from flower_fedclust.engine.private_strategy import ClippedStrategy, PrivateStrategy
from flower_fedclust.engine.rounds import (
    Failure,
    Gather,
    Outcome,
    Protocol,
    ProtocolError,
    Question,
    Reply,
    Sent,
    Sum,
    Total,
    Traffic,
    answers,
)
from flower_fedclust.engine.settings import MIN_CLIENTS
from flower_fedclust.engine.strategy import ProtocolStrategy
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.numerics.checks import DataError

__all__ = [
    "MIN_CLIENTS",
    "ClientData",
    "ClippedStrategy",
    "Consent",
    "DataError",
    "Entry",
    "Failure",
    "Gather",
    "GridArray",
    "Journal",
    "MessageStrategy",
    "Outcome",
    "PrivateStrategy",
    "Protocol",
    "ProtocolClient",
    "ProtocolError",
    "ProtocolStrategy",
    "Question",
    "Reply",
    "Sent",
    "Sum",
    "Total",
    "Traffic",
    "answers",
    "client_app",
    "client_fn",
    "parameter",
]
