"""Runs any strategy over Flower: inline, on Ray, on SuperNodes and under the Message API.

``parameters``  parameters that are declared once
``rounds``      what a strategy yields, and how a client declares what it sends
``by_row``      answers that are a sum over rows
``parts``       parts of a privacy budget
``client``      ProtocolClient, a ``flwr.client.NumPyClient``
``strategy``    ProtocolStrategy, a ``flwr.server.strategy.Strategy``, and its bases with a budget
``run``         one run: its clients, rounds and log
``secure_run``  a run whose sums are secure; ``masked``  its steps at a client
``journal``     what a run needs to go on after an interruption
``inline``      Flower's own Server over clients in this process
``message_api``  MessageStrategy, the same as a ``flwr.serverapp.strategy.Strategy``
"""

from flower_fedclust.engine.client import Consent, ProtocolClient, client_app, client_fn
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.journal import Journal
from flower_fedclust.engine.message_api import MessageStrategy
from flower_fedclust.engine.parameters import parameter
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
from flower_fedclust.engine.run import MIN_CLIENTS
from flower_fedclust.engine.strategy import ClippedStrategy, Entry, PrivateStrategy, ProtocolStrategy
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
