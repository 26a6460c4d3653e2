"""The names that authors of strategies import.

A strategy is a generator that yields rounds: a :class:`Sum` adds up the clients' answers, a :class:`Gather` collects
them. The client half declares its answers with :func:`by_row`, for sums over rows, or with :func:`answers`. Functions
such as :func:`total` and :func:`count` return terms: sums with a bound on what one row adds. docs/writing.md is the
guide, and docs/tutorials/own-strategy.md an example from beginning to end.

>>> from flower_fedclust import authoring
>>> class MeanClient(authoring.FrameClient):
...     @authoring.by_row(sum="sum of the clipped rows", count="number of rows")
...     def clipped_total(rows):
...         return authoring.total(rows), authoring.count(rows)
"""

from flower_fedclust.engine import ClippedStrategy as ClippedStrategy
from flower_fedclust.engine import Entry as Entry
from flower_fedclust.engine import Gather as Gather
from flower_fedclust.engine import GridArray as GridArray
from flower_fedclust.engine import Outcome as Outcome
from flower_fedclust.engine import PrivateStrategy as PrivateStrategy
from flower_fedclust.engine import ProtocolClient as ProtocolClient
from flower_fedclust.engine import ProtocolStrategy as ProtocolStrategy
from flower_fedclust.engine import Sent as Sent
from flower_fedclust.engine import Sum as Sum
from flower_fedclust.engine import TooFewError as TooFewError
from flower_fedclust.engine import answers as answers
from flower_fedclust.engine import parameter as parameter
from flower_fedclust.engine.by_row import by_row as by_row
from flower_fedclust.engine.by_row import finishes as finishes
from flower_fedclust.engine.by_row import view as view
from flower_fedclust.engine.parts import Part as Part
from flower_fedclust.exact.rows import Frame as Frame
from flower_fedclust.exact.rows import Rows as Rows
from flower_fedclust.exact.terms import at as at
from flower_fedclust.exact.terms import count as count
from flower_fedclust.exact.terms import products as products
from flower_fedclust.exact.terms import squares as squares
from flower_fedclust.exact.terms import total as total
from flower_fedclust.exact.terms import vectors as vectors
from flower_fedclust.exact.terms import weighted as weighted
from flower_fedclust.models import CellModel as CellModel
from flower_fedclust.models import Clustered as Clustered
from flower_fedclust.models import FactorModel as FactorModel
from flower_fedclust.models import KMeansModel as KMeansModel
from flower_fedclust.models import MapModel as MapModel
from flower_fedclust.models import MixtureModel as MixtureModel
from flower_fedclust.models import Model as Model
from flower_fedclust.models import PrototypeModel as PrototypeModel
from flower_fedclust.models import SpectralModel as SpectralModel
from flower_fedclust.strategies.common.frame import FrameClient as FrameClient
from flower_fedclust.strategies.common.frame import find_frame as find_frame
