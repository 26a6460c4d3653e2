"""Models: the results of strategies. They find the clusters of rows, also of rows that were not in the run."""

from flower_fedclust.models.base import Clustered as Clustered
from flower_fedclust.models.base import Model as Model
from flower_fedclust.models.cells import CellModel as CellModel
from flower_fedclust.models.centers import KMeansModel as KMeansModel
from flower_fedclust.models.centers import SpectralModel as SpectralModel
from flower_fedclust.models.factors import FactorModel as FactorModel
from flower_fedclust.models.maps import MapModel as MapModel
from flower_fedclust.models.mixtures import MixtureModel as MixtureModel
from flower_fedclust.models.prototypes import PrototypeModel as PrototypeModel
from flower_fedclust.models.tables import TableModel as TableModel
