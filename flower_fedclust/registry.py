"""Find strategies by the names that ``fedclust`` and ``flwr run`` know: of this package and of other packages.

Other packages have an entry point for each of their names (see :mod:`flower_fedclust.plugins`). Any other class can be
named as ``module:Class``. Looking up a strategy imports only its own module, because a site starts a new process for
every message.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flower_fedclust import plugins
from flower_fedclust.names import look_up
from flower_fedclust.plugins import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from flower_fedclust.engine import Entry, ProtocolClient, ProtocolStrategy

#: The strategies of this package: class -> (module, names that the class lists in its ``entries``).
CLASSES = {
    "DPFedC": ("strategies.dp_fedc", "dp-fedc"),
    "FedDPKMeans": ("strategies.feddp_kmeans", "feddp-kmeans"),
    "FedSC": ("strategies.fedsc", "fedsc"),
    "FedSCSums": ("strategies.fedsc", "fedsc-sums"),
    "FedTSNESums": ("strategies.maps.map_sums", "fed-tsne-sums"),
    "FedUMAPSums": ("strategies.maps.map_sums", "fed-umap-sums"),
    "FedTSNE": ("strategies.maps.maps", "fed-tsne"),
    "FedUMAP": ("strategies.maps.maps", "fed-umap"),
    "FedSpeClust": ("strategies.maps.speclust", "fed-speclust"),
    "FedSpeClustSums": ("strategies.maps.speclust", "fed-speclust-sums"),
    "PrivateDensity": ("strategies.private_density", "private-density"),
    "PrivateKMeans": ("strategies.private_kmeans", "private-kmeans"),
    "PrivateMixture": ("strategies.private_mixture", "private-mixture"),
    "SPPFGC": ("strategies.spp_fgc.spp_fgc", "spp-fgc"),
    "SPPFGCSums": ("strategies.spp_fgc.spp_fgc_sums", "spp-fgc-sums"),
    "FederatedKMeans": ("strategies.baselines.federated_kmeans", "federated-kmeans"),
    "PrivateFederatedKMeans": ("strategies.baselines.federated_kmeans", "federated-kmeans-private"),
    "KFED": ("strategies.baselines.kfed", "k-fed"),
    "PooledKMeans": ("strategies.baselines.pooled", "pooled-kmeans"),
    "PooledSpectral": ("strategies.baselines.pooled", "pooled-spectral"),
}

#: The default strategy of runs and plans: it keeps rows private, and needs no public rows.
DEFAULT = "private-kmeans"

#: Name -> strategy, for strategies that a comparison has sent to this process together with their modules.
REGISTERED: dict[str, Entry] = {}

#: Name of a strategy -> name of its class.
_CLASS_OF = {name: class_name for class_name, (_, *names) in CLASSES.items() for name in names}


def _class(name: str) -> type[ProtocolStrategy]:
    """Import and return a class of this package."""
    strategy_class: type[ProtocolStrategy] = getattr(
        import_module(f"flower_fedclust.{CLASSES[name][0]}"), name
    )
    return strategy_class


def _of_class(strategy_class: type[ProtocolStrategy]) -> dict[str, Entry]:
    """Return the entries that a class lists, by name; each then refers to the class."""
    return {
        entry.name: replace(entry, strategy=strategy_class)
        for entry in vars(strategy_class)["entries"]
    }


def _of_point(point: EntryPoint) -> Entry:
    """Return the strategy that an entry point of another package names; raise a PluginError if it is not one."""
    from flower_fedclust.engine import ProtocolStrategy

    loaded = plugins.load(point)
    is_strategy = (
        isinstance(loaded, type)
        and issubclass(loaded, ProtocolStrategy)
        and "entries" in vars(loaded)
    )
    entries = _of_class(loaded) if is_strategy else {}
    if point.name not in entries:
        raise PluginError(
            f"'{point.name}' is {point.value}, which is not a strategy with an entry of that name."
        )
    return entries[point.name]


def _points() -> dict[str, EntryPoint]:
    """Return the entry points of other packages; a name that this package has is left out, with a warning."""
    points = dict(plugins.points(plugins.STRATEGIES))
    for name in points.keys() & _CLASS_OF.keys():
        warnings.warn(
            f"strategy '{name}' of {points.pop(name).value} is left out: the name is taken.",
            stacklevel=3,
        )
    return points


def names() -> list[str]:
    """Return the names of all strategies, first this package's, then other packages'; nothing is imported."""
    return [*_CLASS_OF, *_points(), *REGISTERED]


def strategies() -> dict[str, Entry]:
    """Return all strategies by name, first this package's, then other packages'."""
    return _installed() | REGISTERED


@lru_cache(maxsize=1)
def _installed() -> dict[str, Entry]:
    """Return all installed strategies, of this package and of others; computed once."""
    entries: dict[str, Entry] = {}
    for class_name in CLASSES:
        entries |= _of_class(_class(class_name))
    for name, point in _points().items():
        try:
            entries[name] = _of_point(point)
        except PluginError as error:  # a fault of another package must not hide our strategies
            warnings.warn(f"a strategy is left out: {error}", stacklevel=2)
    return entries


def find_class(name: str) -> type[ProtocolStrategy] | None:
    """Return the strategy class of this name, of this package or of another with an entry point; None if unknown."""
    if name in CLASSES:
        return _class(name)
    point = plugins.class_points(plugins.STRATEGIES).get(name)
    return None if point is None else _of_point(point).strategy


def find(name: str | type[ProtocolStrategy]) -> Entry:
    """Return the entry of a strategy, given by its name, by ``module:Class``, or as a class.

    Raises a ValueError with the nearest name if there is none.
    """
    from flower_fedclust.engine import Entry

    if isinstance(name, type):
        return Entry(name.__name__, "", strategy=name)
    if name in _CLASS_OF:
        return _of_class(_class(_CLASS_OF[name]))[name]
    if name in REGISTERED:
        return REGISTERED[name]
    others = _points()
    if name in others:
        return _of_point(others[name])
    if ":" in name:
        return _of_module(name)
    if (sentence := plugins.where_to_find(name)) is not None:
        raise ValueError(f"{sentence}.")
    # The default comes first, so that it is suggested if several names are equally near.
    known = dict.fromkeys([DEFAULT, *names()])
    look_up(name, known, "strategy")
    raise AssertionError(name)


def _of_module(name: str) -> Entry:
    """Return the strategy named by ``module:Class``."""
    from flower_fedclust.engine import Entry, ProtocolStrategy

    module, _, class_name = name.partition(":")
    try:
        loaded = getattr(import_module(module), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"There is no strategy '{name}': {error}.") from None
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"'{name}' cannot be imported: {type(error).__name__}: {error}."
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, ProtocolStrategy)):
        raise ValueError(
            f"There is no strategy '{name}': {class_name} is no subclass of ProtocolStrategy."
        )
    summary = (loaded.__doc__ or "").strip().partition("\n")[0]
    entries = vars(loaded).get("entries") or (Entry(name, summary),)  # entries are not inherited
    return replace(entries[0], strategy=loaded)


def accepted_parameters(name: str | type[ProtocolStrategy]) -> set[str]:
    """Return the names of the parameters that a user may give to a strategy."""
    entry = find(name)
    return set(entry.strategy.parameter_names()) - set(entry.fixed)


def make_strategy(name: str | type[ProtocolStrategy], **parameters: Any) -> ProtocolStrategy:
    """Return a strategy by its name or class.

    Raises a ValueError for an unknown parameter (it suggests the nearest), and if a required parameter is missing.
    """
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
