"""The strategies by the names that ``fedclust`` and ``flwr run`` know: ours, and those of other packages.

Other packages list modules or classes under the entry point ``flower_fedclust.strategies``; ``module:Class`` names any
class. Looking up one strategy imports only its module, because a site has a new process for every message.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from flower_fedclust.names import look_up

if TYPE_CHECKING:
    from flower_fedclust.engine import Entry, ProtocolClient, ProtocolStrategy

#: The strategies of this package: class -> (module, names in its ``entries``).
CLASSES = {
    "DPFedC": ("strategies.dp_fedc", "dp-fedc"),
    "DPFedCTheorem2": ("strategies.dp_fedc", "dp-fedc-theorem-2"),
    "FedDPKMeans": ("strategies.feddp_kmeans", "feddp-kmeans"),
    "FedSC": ("strategies.fedsc", "fedsc", "fedsc-perturbed-data", "fedsc-perturbed-factors"),
    "FedSCSums": ("strategies.fedsc", "fedsc-sums"),
    "FedTSNESums": ("strategies.maps.map_sums", "fed-tsne-sums"),
    "FedUMAPSums": ("strategies.maps.map_sums", "fed-umap-sums"),
    "FedTSNE": ("strategies.maps.maps", "fed-tsne"),
    "FedUMAP": ("strategies.maps.maps", "fed-umap"),
    "FedSpeClust": ("strategies.maps.speclust", "fed-speclust"),
    "FedSpeClustSums": ("strategies.maps.speclust", "fed-speclust-sums"),
    "PEMeans": ("strategies.pe_means", "pe-means"),
    "PrivateDensity": ("strategies.private_density", "private-density"),
    "PrivateKMeans": ("strategies.private_kmeans", "private-kmeans"),
    "PrivateMixture": ("strategies.private_mixture", "private-mixture"),
    "SPPFGCPrivatePrototypes": ("strategies.spp_fgc.spp_fgc", "spp-fgc-private-prototypes"),
    "SPPFGC": ("strategies.spp_fgc.spp_fgc", "spp-fgc", "spp-fgc-printed"),
    "SPPFGCPlus": ("strategies.spp_fgc.spp_fgc_plus", "spp-fgc-plus"),
    "SPPFGCSums": ("strategies.spp_fgc.spp_fgc_sums", "spp-fgc-sums"),
    "CentralLSH": ("strategies.baselines.central", "central-lsh"),
    "CentralDPLloyd": ("strategies.baselines.central", "central-dp-lloyd"),
    "CentralFastLloyd": ("strategies.baselines.central", "central-fastlloyd"),
    "CoresetKMedian": ("strategies.baselines.coreset_kmedian", "coreset-k-median"),
    "DSC": ("strategies.baselines.dsc", "dsc"),
    "FedSubspaceClustering": ("strategies.baselines.fed_ssc", "fed-ssc"),
    "FederatedKMeans": ("strategies.baselines.federated_kmeans", "federated-kmeans"),
    "PrivateFederatedKMeans": ("strategies.baselines.federated_kmeans", "federated-kmeans-private"),
    "DPLloyd": (
        "strategies.baselines.federated_kmeans",
        "dp-lloyd-server-kmeans++",
        "dp-lloyd-server-lloyds",
        "dp-lloyd-sphere-packing",
    ),
    "FFCM": ("strategies.baselines.ffcm", "ffcm"),
    "PrivateFFCM": ("strategies.baselines.ffcm", "ffcm-private"),
    "KFED": ("strategies.baselines.kfed", "k-fed"),
    "KMeansParallel": ("strategies.baselines.kmeans_parallel", "k-means-parallel"),
    "PooledKMeans": ("strategies.baselines.pooled", "pooled-kmeans"),
    "PooledSpectral": ("strategies.baselines.pooled", "pooled-spectral"),
    "PPFCGAN": ("strategies.baselines.ppfc_gan", "ppfc-gan"),
}

#: What runs and plans use by default: it keeps rows private, and needs no public ones.
DEFAULT = "private-kmeans"

#: Under which other packages name theirs: ``my-strategy = "my_package.my_module:MyStrategy"``.
ENTRY_POINT = "flower_fedclust.strategies"

#: The class of each name.
_CLASS_OF = {name: class_name for class_name, (_, *names) in CLASSES.items() for name in names}


def _class(name: str) -> type[ProtocolStrategy]:
    found: type[ProtocolStrategy] = getattr(import_module(f"flower_fedclust.{CLASSES[name][0]}"), name)
    return found


@lru_cache(maxsize=1)
def strategies() -> dict[str, Entry]:
    """Return all strategies by name, first this package's, then other packages'."""
    found = _named(map(_class, CLASSES))
    for point in entry_points(group=ENTRY_POINT):
        for name, entry in _named(_of_entry_point(point)).items():
            if name in found:
                warnings.warn(f"strategy '{name}' of {point.value} is left out: the name is taken.", stacklevel=2)
            else:
                found[name] = entry
    return found


def find_class(name: str) -> type[ProtocolStrategy] | None:
    """Return the class with this name, of this package or of one that registers its own; None if there is none."""
    if name in CLASSES:
        return _class(name)
    return next((entry.strategy for entry in strategies().values() if entry.strategy.__name__ == name), None)


def _named(classes: Iterable[type[ProtocolStrategy]]) -> dict[str, Entry]:
    return {entry.name: replace(entry, strategy=found) for found in classes for entry in vars(found)["entries"]}


def _of_entry_point(point: EntryPoint) -> list[type[ProtocolStrategy]]:
    try:
        loaded = point.load()
    except Exception as error:  # another package's fault must not take ours away
        warnings.warn(f"the strategies of {point.value} are left out: {type(error).__name__}: {error}", stacklevel=3)
        return []
    if isinstance(loaded, ModuleType):  # classes that the module imports are left out
        return [value for value in vars(loaded).values() if _is_named(value) and value.__module__ == loaded.__name__]
    if not _is_named(loaded):
        warnings.warn(f"{point.value} is left out: it is not a strategy with entries of its own.", stacklevel=3)
        return []
    return [loaded]


def _is_named(value: object) -> TypeGuard[type[ProtocolStrategy]]:
    from flower_fedclust.engine import ProtocolStrategy

    return isinstance(value, type) and issubclass(value, ProtocolStrategy) and "entries" in vars(value)


def find(name: str | type[ProtocolStrategy]) -> Entry:
    """Return a strategy by its name, ``module:Class``, or its class; a ValueError gives the nearest name."""
    from flower_fedclust.engine import Entry, ProtocolStrategy

    if isinstance(name, type):
        return Entry(name.__name__, "", strategy=name)
    if name in _CLASS_OF:
        return _named([_class(_CLASS_OF[name])])[name]
    if ":" not in name or name in strategies():
        return look_up(name, {DEFAULT: strategies()[DEFAULT]} | strategies(), "strategy")
    module, _, class_name = name.partition(":")
    try:
        loaded = getattr(import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"There is no strategy '{name}': {error}.") from None
    if not (isinstance(loaded, type) and issubclass(loaded, ProtocolStrategy)):
        raise ValueError(f"There is no strategy '{name}': {class_name} is no subclass of ProtocolStrategy.")
    summary = (loaded.__doc__ or "").strip().partition("\n")[0]
    own = vars(loaded).get("entries") or (Entry(name, summary),)  # entries are not inherited
    return replace(own[0], strategy=loaded)


def accepted_parameters(name: str | type[ProtocolStrategy]) -> set[str]:
    """Return the names of the parameters that a user may give to a strategy."""
    entry = find(name)
    return set(entry.strategy.parameter_names()) - set(entry.fixed)


def make_strategy(name: str | type[ProtocolStrategy], **parameters: Any) -> ProtocolStrategy:
    """Return a strategy by its name or class; a ValueError names the nearest parameter, or a missing one."""
    entry = find(name)
    accepted = dict.fromkeys(sorted(accepted_parameters(name)))
    for parameter in parameters:
        look_up(parameter, accepted, f"parameter of {entry.name} called")
    missing = [
        parameter
        for parameter in entry.strategy.required_parameters()
        if parameter not in parameters and parameter not in entry.fixed
    ]
    missing += [parameter for parameter in entry.needs if parameters.get(parameter) is None]
    if missing:
        raise ValueError(f"{entry.name} needs {' and '.join(missing)}.")
    strategy: ProtocolStrategy = entry.strategy(**entry.fixed, **parameters)
    return strategy


def client_types(names: Iterable[str]) -> list[type[ProtocolClient]]:
    """Return the client halves of strategies, for :func:`flower_fedclust.client_app`."""
    return list(dict.fromkeys(find(name).strategy.client_type for name in names))
