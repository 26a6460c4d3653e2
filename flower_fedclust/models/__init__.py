"""Models: what a strategy learns. They label rows that were not in the run."""

from flower_fedclust.models.base import Clustered, Model
from flower_fedclust.models.cells import CellModel
from flower_fedclust.models.centers import EncodedModel, KMeansModel, SpectralModel
from flower_fedclust.models.factors import FactorModel
from flower_fedclust.models.maps import MapModel
from flower_fedclust.models.mixtures import MixtureModel
from flower_fedclust.models.prototypes import PrototypeModel
from flower_fedclust.models.subspaces import SubspaceModel
from flower_fedclust.models.tables import TableModel

__all__ = [
    "CellModel",
    "Clustered",
    "EncodedModel",
    "FactorModel",
    "KMeansModel",
    "MapModel",
    "MixtureModel",
    "Model",
    "PrototypeModel",
    "SpectralModel",
    "SubspaceModel",
    "TableModel",
]
