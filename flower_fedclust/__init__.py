"""Federated clustering and visualization for Flower: find clusters of rows that stay at their sites.

>>> import flower_fedclust as fc
>>> strategy = fc.FedDPKMeans(n_clusters=10, epsilon=1.0, delta=1e-6, server_data=public_rows)  # doctest: +SKIP
>>> result = fc.simulate(strategy, [rows_of_site_1, rows_of_site_2])  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower_fedclust import authoring as authoring
    from flower_fedclust.checking.audit import audit as audit
    from flower_fedclust.checking.suite import check_strategy as check_strategy
    from flower_fedclust.engine import ClientData as ClientData
    from flower_fedclust.engine import Consent as Consent
    from flower_fedclust.engine import DataError as DataError
    from flower_fedclust.engine import Journal as Journal
    from flower_fedclust.engine import MessageStrategy as MessageStrategy
    from flower_fedclust.engine import ProtocolError as ProtocolError
    from flower_fedclust.engine import client_app as client_app
    from flower_fedclust.engine import client_fn as client_fn
    from flower_fedclust.engine.client_mod import client_mod as client_mod
    from flower_fedclust.estimator import as_estimator as as_estimator
    from flower_fedclust.harness.compare import compare as compare
    from flower_fedclust.harness.plan import plan as plan
    from flower_fedclust.harness.run import run_app as run_app
    from flower_fedclust.models import Model as Model
    from flower_fedclust.privacy.report import PrivacyReport as PrivacyReport
    from flower_fedclust.results.result import Result as Result
    from flower_fedclust.results.result import load as load
    from flower_fedclust.simulation import simulate as simulate
    from flower_fedclust.strategies.common.tables import with_schema as with_schema
    from flower_fedclust.tables import Schema as Schema

#: Module -> the public names that it defines. A module is imported when one of its names is first used, so that
#: ``import flower_fedclust`` is fast. Classes of strategies are found in the registry. Names that only authors of
#: strategies need are in ``authoring``.
_NAMES = {
    "authoring": "authoring",
    "checking.audit": "audit",
    "checking.suite": "check_strategy",
    "engine": "ClientData Consent DataError Journal MessageStrategy ProtocolError client_app client_fn",
    "engine.client_mod": "client_mod",
    "estimator": "as_estimator",
    "harness.compare": "compare",
    "harness.plan": "plan",
    "harness.run": "run_app",
    "models": "Model",
    "privacy.report": "PrivacyReport",
    "results.result": "Result load",
    "simulation": "simulate",
    "strategies.common.tables": "with_schema",
    "tables": "Schema",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        module = import_module(f"flower_fedclust.{_HOME[name]}")
        value = module if name == _HOME[name] else getattr(module, name)
    elif not name[0].isupper():  # the registry has only classes; Python finds submodules itself
        raise AttributeError(f"module 'flower_fedclust' has no attribute '{name}'")
    else:
        value = import_module("flower_fedclust.registry").find_class(name)
        if value is None:
            raise AttributeError(
                f"module 'flower_fedclust' has no attribute '{name}'{_where_it_is(name)}"
            )
    globals()[name] = value
    return value


def _where_it_is(name: str) -> str:
    """Return advice where to find a class that is not in this module: "" if it is not known."""
    from flower_fedclust import authoring, models, plugins

    for module in (authoring, models):
        if hasattr(module, name):
            return f": import it from {module.__name__}"
    advice = plugins.where_to_find(name)
    return f": {advice}" if advice else ""


def __dir__() -> list[str]:
    from flower_fedclust.registry import CLASSES

    return sorted({*__all__, *CLASSES})
