"""The strategies by the names that ``fedclust`` and ``flwr run`` know them by."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flower_fedclust.names import look_up

if TYPE_CHECKING:
    from flower_fedclust.protocol import ProtocolClient, ProtocolStrategy


@dataclass(frozen=True)
class Entry:
    """One strategy.

    Parameters
    ----------
    home : str
        Module, colon, class: imported when the strategy is used, so that a list of names costs nothing.
    summary : str
        One line.
    source : str
        Where the algorithm comes from.
    fixed : mapping of str to anything
        Parameters that the name stands for.
    example : mapping of str to anything
        What ``fedclust explain`` takes where nothing else is said, for parameters without which it cannot run.
    needs : tuple of str
        Parameters without which the name would promise too much, although the class does without.
    """

    home: str
    summary: str
    source: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    def load(self) -> type[ProtocolStrategy]:
        """Import the class."""
        module, name = self.home.split(":")
        loaded: type[ProtocolStrategy] = getattr(import_module(module), name)
        return loaded


_BASELINES = "flower_fedclust.baselines"
_FEDSC_PAPER = "Federated spectral clustering via secure similarity reconstruction"
_MAPS_PAPER = "Federated t-SNE and UMAP for distributed data visualization"
_GRAPH_PAPER = "Towards federated clustering: a client-wise private graph aggregation framework"
_SERVER_DATA_PAPER = "Differentially private federated k-means with server-side data"

STRATEGIES: dict[str, Entry] = {
    "feddp-kmeans": Entry(
        "flower_fedclust.strategies.feddp_kmeans:FedDPKMeans",
        "private k-means that starts from a few public rows of the server",
        f"{_SERVER_DATA_PAPER}, Algorithms 1 and 2",
    ),
    "fedsc": Entry(
        "flower_fedclust.strategies.fedsc:FedSC",
        "spectral clustering by a shared dictionary; the server can read the rows",
        f"{_FEDSC_PAPER}, Algorithm 1",
        {"perturb": "nothing", "epsilon": None, "max_norm": None},
    ),
    "fedsc-perturbed-data": Entry(
        "flower_fedclust.strategies.fedsc:FedSC",
        "FedSC on rows to which each client has added noise",
        f"{_FEDSC_PAPER}, section 3.1",
        {"perturb": "data"},
        {"epsilon": 1.0, "max_norm": 1.0},
    ),
    "fedsc-perturbed-factors": Entry(
        "flower_fedclust.strategies.fedsc:FedSC",
        "FedSC with noise on the dictionary and the codes",
        f"{_FEDSC_PAPER}, section 3.2",
        {"perturb": "factors"},
        {"epsilon": 1.0, "max_norm": 1.0},
    ),
    "fedsc-sums": Entry(
        "flower_fedclust.strategies.fedsc_sums:FedSCSums",
        "spectral clustering from sums alone: no code, label or row leaves a client",
        f"{_FEDSC_PAPER}, with a stage II of sums",
    ),
    "fed-tsne": Entry(
        "flower_fedclust.strategies.fed_maps:FedTSNE",
        "a t-SNE map by learned landmarks, or with rows='stay' by centers that sums give",
        f"{_MAPS_PAPER}, Algorithms 1 and 2",
    ),
    "fed-umap": Entry(
        "flower_fedclust.strategies.fed_maps:FedUMAP",
        "a UMAP map by learned landmarks, or with rows='stay' by centers that sums give",
        f"{_MAPS_PAPER}, Algorithms 1 and 2",
    ),
    "fed-speclust": Entry(
        "flower_fedclust.strategies.fed_speclust:FedSpeClust",
        "spectral clustering by learned landmarks, or with rows='stay' from sums alone",
        f"{_MAPS_PAPER}, Algorithm 3",
    ),
    "spp-fgc": Entry(
        "flower_fedclust.strategies.spp_fgc:SPPFGC",
        "clusters of any form from the neighbour graphs of the clients' rows, which are sent, and prototypes",
        f"{_GRAPH_PAPER}, Algorithm 1",
    ),
    "spp-fgc-printed": Entry(
        "flower_fedclust.strategies.spp_fgc:SPPFGC",
        "SPP-FGC as its paper prints it, for comparison: it does not work as well",
        f"{_GRAPH_PAPER}, Algorithm 1",
        {"solver": "clr", "prototypes": "gmm", "affinity": "kl", "assignment": "rows-of-s", "calibration": "paper"},
    ),
    "spp-fgc-sums": Entry(
        "flower_fedclust.strategies.spp_fgc_sums:SPPFGCSums",
        "clusters of any form from sums alone: rows vote for pairs of prototypes; private with epsilon",
        f"{_GRAPH_PAPER}, with sums in place of graphs",
    ),
    "spp-fgc-plus": Entry(
        "flower_fedclust.strategies.spp_fgc_plus:SPPFGCPlus",
        "SPP-FGC on codes that the clients' variational autoencoders learn; needs PyTorch",
        f"{_GRAPH_PAPER}, Algorithm 2",
    ),
    **{
        f"dp-lloyd-{init}": Entry(
            f"{_BASELINES}.federated_kmeans:DPLloyd",
            f"private Lloyd steps from {start}",
            f"{_SERVER_DATA_PAPER}, appendix G.3",
            {"init": init},
        )
        for init, start in (
            ("server-kmeans++", "k-means++ on the server's rows"),
            ("server-lloyds", "a k-means of the server's rows"),
            ("sphere-packing", "centers spread over space, whatever the rows"),
        )
    },
    "dp-fedc": Entry(
        "flower_fedclust.strategies.dp_fedc:DPFedC",
        "soft clusters by a factorisation whose centers are averaged; private with epsilon",
        "Li, Wang, Chi and Quek 2024, Algorithm 1",
    ),
    "federated-kmeans": Entry(
        f"{_BASELINES}.federated_kmeans:FederatedKMeans",
        "Lloyd's algorithm on rows that stay where they are, without noise",
        "Lloyd 1982, on sums",
        {"epsilon": None, "max_norm": None},
    ),
    "federated-kmeans-private": Entry(
        f"{_BASELINES}.federated_kmeans:FederatedKMeans",
        "the same with noise on the sums, from random points",
        "Lloyd 1982, on sums with noise",
        {},
        {"epsilon": 1.0, "max_norm": 1.0},
        ("epsilon",),
    ),
    "ffcm": Entry(
        f"{_BASELINES}.ffcm:FFCM",
        "fuzzy c-means on rows that stay where they are; private with epsilon",
        "Stallmann and Wilbik 2022",
    ),
    "k-means-parallel": Entry(
        f"{_BASELINES}.kmeans_parallel:KMeansParallel",
        "k-means||: rows far from those drawn before are drawn in a few rounds, then Lloyd steps; some rows are sent",
        "Bahmani, Moseley, Vattani, Kumar and Vassilvitskii 2012",
    ),
    "fed-ssc": Entry(
        f"{_BASELINES}.fed_ssc:FedSubspaceClustering",
        "every client clusters its rows by the subspaces they lie in, the server clusters points drawn from these",
        "Xie et al. 2023 (Fed-SC)",
    ),
    "ppfc-gan": Entry(
        f"{_BASELINES}.ppfc_gan:PPFCGAN",
        "every client sends rows that its GAN makes, the server clusters these by deep clustering; needs PyTorch",
        "Yan, Liu, Qi and Zhang 2022",
    ),
    "coreset-k-median": Entry(
        f"{_BASELINES}.coreset_kmedian:CoresetKMedian",
        "k-median on a few weighted rows of each client; these are sent",
        "Balcan, Ehrlich and Liang 2013",
    ),
    "k-fed": Entry(
        f"{_BASELINES}.kfed:KFED",
        "every client clusters its rows, the server clusters the centers; one round, without noise",
        "Dennis, Li and Smith 2021",
    ),
    "pooled-kmeans": Entry(
        f"{_BASELINES}.pooled_kmeans:PooledKMeans",
        "k-means on all rows, sent to the server: the line to reach, and no privacy at all",
        "scikit-learn's KMeans",
    ),
    "pooled-spectral": Entry(
        f"{_BASELINES}.pooled_spectral:PooledSpectral",
        "spectral clustering of all rows, sent to the server: what fedsc is to reach, and no privacy at all",
        "Qiao, Ding and Fan 2023, section 5.3",
    ),
    "dsc": Entry(
        f"{_BASELINES}.dsc:DSC",
        "every client clusters its rows by spectral clustering, the server merges the clusters; without noise",
        "Hernández-Pereira et al. 2021, as in Qiao, Ding and Fan 2023, section 5.3",
    ),
}


def accepted_parameters(name: str) -> set[str]:
    """Return the names of the parameters that a user may give to a strategy.

    Raises
    ------
    ValueError
        If there is no such strategy; the message gives the nearest name.
    """
    entry = look_up(name, STRATEGIES, "strategy")
    return set(inspect.signature(entry.load().__init__).parameters) - {"self"} - set(entry.fixed)


def make_strategy(name: str, **parameters: Any) -> ProtocolStrategy:
    """Return a strategy by its name.

    Parameters
    ----------
    name : str
    **parameters
        Its parameters.

    Raises
    ------
    ValueError
        If there is no such strategy or no such parameter (the message gives the nearest name), or if a parameter
        cannot be right.
    """
    entry = look_up(name, STRATEGIES, "strategy")
    accepted = dict.fromkeys(sorted(accepted_parameters(name)))
    for parameter in parameters:
        look_up(parameter, accepted, f"parameter of {name} called")
    signature = inspect.signature(entry.load().__init__)
    missing = [
        parameter
        for parameter, described in signature.parameters.items()
        if parameter in accepted and described.default is described.empty and parameter not in parameters
    ]
    missing += [parameter for parameter in entry.needs if parameters.get(parameter) is None]
    if missing:
        raise ValueError(f"{name} needs {' and '.join(missing)}.")
    return entry.load()(**entry.fixed, **parameters)


def client_type_of(names: Iterable[str]) -> type[ProtocolClient]:
    """Return a client that answers for all these strategies.

    Parameters
    ----------
    names : iterable of str
        Names of strategies.
    """
    types = dict.fromkeys(look_up(name, STRATEGIES, "strategy").load().client_type for name in names)
    # A class brings along those that it is made of.
    ordered = [one for one in types if not any(issubclass(other, one) for other in types if other is not one)]
    return ordered[0] if len(ordered) == 1 else type("CombinedClient", tuple(ordered), {})
