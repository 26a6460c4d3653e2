"""Federated clustering and visualisation for Flower: clusters of rows that stay where they are.

>>> import flower_fedclust as fc
>>> strategy = fc.FedDPKMeans(n_clusters=10, epsilon=1.0, delta=1e-6, server_data=public_rows)  # doctest: +SKIP
>>> result = fc.simulate(strategy, [rows_of_site_1, rows_of_site_2])  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower_fedclust.baselines.coreset_kmedian import CoresetKMedian
    from flower_fedclust.baselines.dsc import DSC
    from flower_fedclust.baselines.fed_ssc import FedSubspaceClustering
    from flower_fedclust.baselines.federated_kmeans import DPLloyd, FederatedKMeans
    from flower_fedclust.baselines.ffcm import FFCM
    from flower_fedclust.baselines.kfed import KFED
    from flower_fedclust.baselines.kmeans_parallel import KMeansParallel
    from flower_fedclust.baselines.pooled_kmeans import PooledKMeans
    from flower_fedclust.baselines.pooled_spectral import PooledSpectral
    from flower_fedclust.baselines.ppfc_gan import PPFCGAN
    from flower_fedclust.models import (
        EncodedModel,
        FactorModel,
        KMeansModel,
        MapModel,
        Model,
        PrototypeModel,
        SpectralModel,
        SubspaceModel,
    )
    from flower_fedclust.privacy.report import PrivacyReport
    from flower_fedclust.protocol import (
        ClientData,
        DataError,
        MessageStrategy,
        ProtocolClient,
        ProtocolError,
        ProtocolStrategy,
        client_app,
        client_fn,
    )
    from flower_fedclust.results import Result
    from flower_fedclust.simulation import simulate
    from flower_fedclust.steps.private_clusters import ClientBounds
    from flower_fedclust.strategies.dp_fedc import DPFedC
    from flower_fedclust.strategies.fed_maps import FedTSNE, FedUMAP
    from flower_fedclust.strategies.fed_speclust import FedSpeClust
    from flower_fedclust.strategies.feddp_kmeans import FedDPKMeans
    from flower_fedclust.strategies.fedsc import FedSC
    from flower_fedclust.strategies.fedsc_sums import FedSCSums
    from flower_fedclust.strategies.spp_fgc import SPPFGC
    from flower_fedclust.strategies.spp_fgc_plus import SPPFGCPlus
    from flower_fedclust.strategies.spp_fgc_sums import SPPFGCSums

#: Where each public name lives. It is imported when first used, so that ``import flower_fedclust`` is fast.
_HOME = {
    "DPFedC": "strategies.dp_fedc",
    "FedDPKMeans": "strategies.feddp_kmeans",
    "FedSpeClust": "strategies.fed_speclust",
    "FedTSNE": "strategies.fed_maps",
    "FedUMAP": "strategies.fed_maps",
    "FedSC": "strategies.fedsc",
    "FedSCSums": "strategies.fedsc_sums",
    "SPPFGC": "strategies.spp_fgc",
    "SPPFGCPlus": "strategies.spp_fgc_plus",
    "SPPFGCSums": "strategies.spp_fgc_sums",
    "CoresetKMedian": "baselines.coreset_kmedian",
    "DSC": "baselines.dsc",
    "DPLloyd": "baselines.federated_kmeans",
    "FFCM": "baselines.ffcm",
    "FederatedKMeans": "baselines.federated_kmeans",
    "FedSubspaceClustering": "baselines.fed_ssc",
    "KFED": "baselines.kfed",
    "KMeansParallel": "baselines.kmeans_parallel",
    "PPFCGAN": "baselines.ppfc_gan",
    "PooledKMeans": "baselines.pooled_kmeans",
    "PooledSpectral": "baselines.pooled_spectral",
    "simulate": "simulation",
    "Result": "results",
    "EncodedModel": "models",
    "FactorModel": "models",
    "KMeansModel": "models",
    "MapModel": "models",
    "Model": "models",
    "PrototypeModel": "models",
    "SpectralModel": "models",
    "SubspaceModel": "models",
    "PrivacyReport": "privacy.report",
    "ClientBounds": "steps.private_clusters",
    "ClientData": "protocol",
    "DataError": "protocol",
    "MessageStrategy": "protocol",
    "ProtocolClient": "protocol",
    "ProtocolError": "protocol",
    "ProtocolStrategy": "protocol",
    "client_app": "protocol",
    "client_fn": "protocol",
}

__all__ = [
    "DSC",
    "FFCM",
    "KFED",
    "PPFCGAN",
    "SPPFGC",
    "ClientBounds",
    "ClientData",
    "CoresetKMedian",
    "DPFedC",
    "DPLloyd",
    "DataError",
    "EncodedModel",
    "FactorModel",
    "FedDPKMeans",
    "FedSC",
    "FedSCSums",
    "FedSpeClust",
    "FedSubspaceClustering",
    "FedTSNE",
    "FedUMAP",
    "FederatedKMeans",
    "KMeansModel",
    "KMeansParallel",
    "MapModel",
    "MessageStrategy",
    "Model",
    "PooledKMeans",
    "PooledSpectral",
    "PrivacyReport",
    "ProtocolClient",
    "ProtocolError",
    "ProtocolStrategy",
    "PrototypeModel",
    "Result",
    "SPPFGCPlus",
    "SPPFGCSums",
    "SpectralModel",
    "SubspaceModel",
    "client_app",
    "client_fn",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'flower_fedclust' has no attribute '{name}'")
    value = getattr(import_module(f"flower_fedclust.{_HOME[name]}"), name)
    globals()[name] = value
    return value
