"""Strategies and models of other packages, found by their entry points.

A package declares them in its pyproject.toml. Each name has its own entry point, so that looking up a name imports only
one module. This matters because a site starts a new process for every message.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

#: The groups of entry points for strategies and for models. An entry is ``my-strategy =
#: "my_package.my_module:MyStrategy"``, and the same for a model with its name.
STRATEGIES, MODELS = "flower_fedclust.strategies", "flower_fedclust.models"

#: The second distribution of this repository.
PAPERS = "flower-fedclust-papers"
#: The strategies and models that it adds, as class -> names.
OF_PAPERS: Mapping[str, tuple[str, ...]] = {
    "CentralDPLloyd": ("central-dp-lloyd",),
    "CentralFastLloyd": ("central-fastlloyd",),
    "CentralLSH": ("central-lsh",),
    "CoresetKMedian": ("coreset-k-median",),
    "DPFedCPrinted": ("dp-fedc-printed",),
    "DPFedCTheorem2": ("dp-fedc-theorem-2",),
    "DPLloyd": ("dp-lloyd-server-kmeans++", "dp-lloyd-server-lloyds", "dp-lloyd-sphere-packing"),
    "DSC": ("dsc",),
    "FFCM": ("ffcm",),
    "FedDPKMeansProofs": ("feddp-kmeans-proofs",),
    "FedSCPerturbed": ("fedsc-perturbed-data", "fedsc-perturbed-factors"),
    "FedSpeClustPerturbed": ("fed-speclust-perturbed",),
    "FedSubspaceClustering": ("fed-ssc",),
    "FedTSNEPerturbed": ("fed-tsne-perturbed",),
    "FedUMAPPerturbed": ("fed-umap-perturbed",),
    "KMeansParallel": ("k-means-parallel",),
    "PEMeans": ("pe-means",),
    "PPFCGAN": ("ppfc-gan",),
    "PrivateFFCM": ("ffcm-private",),
    "SPPFGCPrivatePrototypes": ("spp-fgc-private-prototypes",),
    "SPPFGCPlus": ("spp-fgc-plus",),
    "SPPFGCPrinted": ("spp-fgc-printed",),
    "EncodedModel": ("encoded",),
    "SubspaceModel": ("subspaces",),
}


class PluginError(ValueError):
    """An entry point cannot be loaded, or does not name a strategy (or a model) as its group requires."""


@cache
def points(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name; if two packages use the same name, the first one found keeps it."""
    by_name: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if point.name in by_name:
            warnings.warn(
                f"'{point.name}' of {point.value} is left out: {by_name[point.name].value} has that name.",
                stacklevel=3,
            )
        else:
            by_name[point.name] = point
    return by_name


def load(point: EntryPoint) -> Any:
    """Return the object that an entry point names; raise a PluginError that says why if it cannot be loaded."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"'{point.name}' is {point.value}, which fails: {type(error).__name__}: {error}."
        ) from error


def class_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by the name of their class; of several for one class, the first is kept."""
    by_name: dict[str, EntryPoint] = {}
    for point in points(group).values():
        name = point.value.partition(":")[2].split("[")[0].strip().rpartition(".")[2]
        if name:  # an entry point may also name a whole module, and is refused when it is loaded
            by_name.setdefault(name, point)
    return by_name


def where_to_find(name: str) -> str | None:
    """Return how to install a strategy, model or class of the second distribution; None for any other name."""
    if name not in OF_PAPERS and not any(name in names for names in OF_PAPERS.values()):
        return None
    return (
        f"'{name}' is in the package {PAPERS}, which is not installed; from a copy of the repository: "
        "pip install ./strategies"
    )
