"""Runs any strategy over Flower: inline, on Ray, on SuperNodes and under the Message API.

``parameters``  parameters that are declared once
``rounds``      what a strategy yields, and how a client declares what it sends
``by_row``      answers that are a sum over the client's rows
``parts``       parts of a privacy budget
``client``      ProtocolClient, a ``flwr.client.NumPyClient``
``strategy``    ProtocolStrategy, a ``flwr.server.strategy.Strategy``, and its bases with a budget
``messages``    what a run yields and is sent, and who carries it
``run``         one run, from the first message to the last, as a generator
``roster``      the clients of a run; ``log``  what a run notes; ``replies``  how answers are checked
``secure_sums``  what secure sums change in a run; ``masked``  their steps at a client
``journal``     what a run needs to go on after an interruption
``inline``      carries a run to clients in this process; ``shards``  many clients that answer together
``message_api``  MessageStrategy, the same as a ``flwr.serverapp.strategy.Strategy``
"""

from flower_fedclust.engine.client import Consent as Consent
from flower_fedclust.engine.client import ProtocolClient as ProtocolClient
from flower_fedclust.engine.client import client_app as client_app
from flower_fedclust.engine.client import client_fn as client_fn
from flower_fedclust.engine.client_data import ClientData as ClientData
from flower_fedclust.engine.journal import Journal as Journal
from flower_fedclust.engine.message_api import MessageStrategy as MessageStrategy
from flower_fedclust.engine.parameters import parameter as parameter
from flower_fedclust.engine.rounds import Failure as Failure
from flower_fedclust.engine.rounds import Gather as Gather
from flower_fedclust.engine.rounds import Outcome as Outcome
from flower_fedclust.engine.rounds import Protocol as Protocol
from flower_fedclust.engine.rounds import ProtocolError as ProtocolError
from flower_fedclust.engine.rounds import Question as Question
from flower_fedclust.engine.rounds import Reply as Reply
from flower_fedclust.engine.rounds import Sent as Sent
from flower_fedclust.engine.rounds import Sum as Sum
from flower_fedclust.engine.rounds import TooFewError as TooFewError
from flower_fedclust.engine.rounds import Total as Total
from flower_fedclust.engine.rounds import Traffic as Traffic
from flower_fedclust.engine.rounds import answers as answers
from flower_fedclust.engine.settings import MIN_CLIENTS as MIN_CLIENTS
from flower_fedclust.engine.strategy import ClippedStrategy as ClippedStrategy
from flower_fedclust.engine.strategy import Entry as Entry
from flower_fedclust.engine.strategy import PrivateStrategy as PrivateStrategy
from flower_fedclust.engine.strategy import ProtocolStrategy as ProtocolStrategy
from flower_fedclust.engine.strategy import usable as usable
from flower_fedclust.exact.grid import GridArray as GridArray
from flower_fedclust.numerics.checks import DataError as DataError
