"""The strategies by the names that ``fedclust`` and ``flwr run`` know them by: ours, and those of other packages.

Nothing is listed here. A strategy of this package is found in its module; another package names the modules or classes
of its own under the entry point ``flower_fedclust.strategies``; and ``module:Class`` names any class at all.

Who asks for one strategy does not import them all, as a site has a new process for every message: modules are imported
in whose text the name stands, and all of them only if that has found nothing.
"""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flower_fedclust.names import look_up

if TYPE_CHECKING:
    from flower_fedclust.protocol import Entry, ProtocolClient, ProtocolStrategy

#: Where this package has its strategies.
PACKAGES = ("flower_fedclust.strategies", "flower_fedclust.baselines")

#: Under which other packages name theirs: ``my-strategy = "my_package.my_module:MyStrategy"``.
ENTRY_POINT = "flower_fedclust.strategies"


@lru_cache(maxsize=1)
def strategies() -> dict[str, Entry]:
    """Return all strategies by name: those of this package, then those of others."""
    found: dict[str, Entry] = {}
    for module in _texts():
        found |= _named(_classes(import_module(module)))
    for point in entry_points(group=ENTRY_POINT):
        for name, entry in _named(_of_entry_point(point)).items():
            if name in found:
                warnings.warn(f"strategy '{name}' of {point.value} is left out: the name is taken.", stacklevel=2)
            else:
                found[name] = entry
    return found


@lru_cache(maxsize=1)
def _texts() -> dict[str, str]:
    """Return the source of every module in which this package may have strategies, by its name; "" where it is none."""
    found = {}
    for package in PACKAGES:
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            loader = getattr(find_spec(module.name), "loader", None)
            found[module.name] = loader.get_source(module.name) or "" if isinstance(loader, InspectLoader) else ""
    return found


@lru_cache(maxsize=256)
def _declared_with(text: str) -> dict[str, Entry]:
    """Return the strategies of those modules of this package in which a text stands, or whose source is not there."""
    found: dict[str, Entry] = {}
    for module, source in _texts().items():
        if text in source or not source:
            found |= _named(_classes(import_module(module)))
    return found


def find_class(name: str) -> type[ProtocolStrategy] | None:
    """Return the class of this package, or of another that registers its own, which is called so; None if none is."""
    for look in (partial(_declared_with, f"class {name}("), strategies):
        for entry in look().values():
            if entry.strategy.__name__ == name:
                found: type[ProtocolStrategy] = entry.strategy
                return found
    return None


def _classes(module: ModuleType) -> Iterator[type[ProtocolStrategy]]:
    """Yield the strategies that a module defines, and not those that it imports."""
    from flower_fedclust.protocol import ProtocolStrategy

    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, ProtocolStrategy) and value.__module__ == module.__name__:
            yield value


def _named(classes: Iterable[type[ProtocolStrategy]]) -> dict[str, Entry]:
    return {
        entry.name: replace(entry, strategy=found)
        for found in classes
        if "entries" in vars(found)
        for entry in found.entries
    }


def _of_entry_point(point: EntryPoint) -> list[type[ProtocolStrategy]]:
    try:
        loaded = point.load()
    except Exception as error:  # another package's fault must not take ours away
        warnings.warn(f"the strategies of {point.value} are left out: {type(error).__name__}: {error}", stacklevel=3)
        return []
    if isinstance(loaded, ModuleType):
        return list(_classes(loaded))
    if not (isinstance(loaded, type) and "entries" in vars(loaded)):
        warnings.warn(f"{point.value} is left out: it is no strategy with entries of its own.", stacklevel=3)
        return []
    return [loaded]


def find(name: str) -> Entry:
    """Return a strategy by its name, or by ``module:Class``.

    Raises
    ------
    ValueError
        If there is no such strategy; the message gives the nearest name.
    """
    if (known := _declared_with(f'"{name}"').get(name)) is not None:
        return known
    if ":" not in name or name in strategies():
        return look_up(name, strategies(), "strategy")
    from flower_fedclust.protocol import Entry, ProtocolStrategy

    module, _, class_name = name.partition(":")
    try:
        loaded = getattr(import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"There is no strategy '{name}': {error}.") from None
    if not (isinstance(loaded, type) and issubclass(loaded, ProtocolStrategy)):
        raise ValueError(f"There is no strategy '{name}': {class_name} is no subclass of ProtocolStrategy.")
    summary = (loaded.__doc__ or "").strip().partition("\n")[0]
    own = vars(loaded).get("entries") or (Entry(name, summary),)  # those of a base stand for the base
    return replace(own[0], strategy=loaded)


def accepted_parameters(name: str) -> set[str]:
    """Return the names of the parameters that a user may give to a strategy.

    Raises
    ------
    ValueError
        If there is no such strategy; the message gives the nearest name.
    """
    entry = find(name)
    return set(entry.strategy.parameter_names()) - set(entry.fixed)


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
    entry = find(name)
    accepted = dict.fromkeys(sorted(accepted_parameters(name)))
    for parameter in parameters:
        look_up(parameter, accepted, f"parameter of {name} called")
    missing = [
        parameter
        for parameter in entry.strategy.required_parameters()
        if parameter not in parameters and parameter not in entry.fixed
    ]
    missing += [parameter for parameter in entry.needs if parameters.get(parameter) is None]
    if missing:
        raise ValueError(f"{name} needs {' and '.join(missing)}.")
    strategy: ProtocolStrategy = entry.strategy(**entry.fixed, **parameters)
    return strategy


def client_types(names: Iterable[str]) -> list[type[ProtocolClient]]:
    """Return the client halves of strategies, for :func:`flower_fedclust.client_app`.

    Parameters
    ----------
    names : iterable of str
        Names of strategies.
    """
    return list(dict.fromkeys(find(name).strategy.client_type for name in names))
