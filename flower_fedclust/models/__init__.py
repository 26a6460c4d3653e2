"""Models: what a strategy learns, and what labels rows it has never seen."""

from flower_fedclust.models.base import Clustered, Model
from flower_fedclust.models.centers import KMeansModel
from flower_fedclust.models.encoded import EncodedModel
from flower_fedclust.models.factors import FactorModel
from flower_fedclust.models.maps import MapModel
from flower_fedclust.models.prototypes import PrototypeModel
from flower_fedclust.models.spectral import SpectralModel
from flower_fedclust.models.subspaces import SubspaceModel
from flower_fedclust.models.tables import TableModel

__all__ = [
    "Clustered",
    "EncodedModel",
    "FactorModel",
    "KMeansModel",
    "MapModel",
    "Model",
    "PrototypeModel",
    "SpectralModel",
    "SubspaceModel",
    "TableModel",
]
