"""Federated clustering and visualization for Flower: clusters of rows that stay where they are.

>>> import flower_fedclust as fc
>>> strategy = fc.FedDPKMeans(n_clusters=10, epsilon=1.0, delta=1e-6, server_data=public_rows)  # doctest: +SKIP
>>> result = fc.simulate(strategy, [rows_of_site_1, rows_of_site_2])  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower_fedclust.checking.audit import audit as audit
    from flower_fedclust.checking.suite import check_strategy as check_strategy
    from flower_fedclust.engine import ClientData as ClientData
    from flower_fedclust.engine import ClippedStrategy as ClippedStrategy
    from flower_fedclust.engine import Consent as Consent
    from flower_fedclust.engine import DataError as DataError
    from flower_fedclust.engine import Entry as Entry
    from flower_fedclust.engine import Gather as Gather
    from flower_fedclust.engine import GridArray as GridArray
    from flower_fedclust.engine import Journal as Journal
    from flower_fedclust.engine import MessageStrategy as MessageStrategy
    from flower_fedclust.engine import Outcome as Outcome
    from flower_fedclust.engine import PrivateStrategy as PrivateStrategy
    from flower_fedclust.engine import ProtocolClient as ProtocolClient
    from flower_fedclust.engine import ProtocolError as ProtocolError
    from flower_fedclust.engine import ProtocolStrategy as ProtocolStrategy
    from flower_fedclust.engine import Sent as Sent
    from flower_fedclust.engine import Sum as Sum
    from flower_fedclust.engine import answers as answers
    from flower_fedclust.engine import client_app as client_app
    from flower_fedclust.engine import client_fn as client_fn
    from flower_fedclust.engine import parameter as parameter
    from flower_fedclust.engine.by_row import by_row as by_row
    from flower_fedclust.engine.by_row import finishes as finishes
    from flower_fedclust.engine.by_row import view as view
    from flower_fedclust.engine.client_mod import client_mod as client_mod
    from flower_fedclust.engine.parts import Part as Part
    from flower_fedclust.estimator import as_estimator as as_estimator
    from flower_fedclust.exact.rows import Frame as Frame
    from flower_fedclust.exact.rows import Rows as Rows
    from flower_fedclust.exact.terms import at as at
    from flower_fedclust.exact.terms import count as count
    from flower_fedclust.exact.terms import products as products
    from flower_fedclust.exact.terms import squares as squares
    from flower_fedclust.exact.terms import total as total
    from flower_fedclust.exact.terms import vectors as vectors
    from flower_fedclust.exact.terms import weighted as weighted
    from flower_fedclust.harness.compare import compare as compare
    from flower_fedclust.harness.plan import plan as plan
    from flower_fedclust.harness.run import run_app as run_app
    from flower_fedclust.models import Model as Model
    from flower_fedclust.privacy.report import PrivacyReport as PrivacyReport
    from flower_fedclust.results.result import Result as Result
    from flower_fedclust.results.result import load as load
    from flower_fedclust.simulation import simulate as simulate
    from flower_fedclust.strategies.common.frame import FrameClient as FrameClient
    from flower_fedclust.strategies.common.frame import find_frame as find_frame
    from flower_fedclust.strategies.common.tables import with_schema as with_schema
    from flower_fedclust.tables import Schema as Schema

#: Where public names live. They are imported when first used, so that ``import flower_fedclust`` is fast. Strategies
#: are found by their classes' names in the registry, models in ``models``.
_NAMES = {
    "checking.audit": "audit",
    "checking.suite": "check_strategy",
    "engine": (
        "ClientData ClippedStrategy Consent DataError Entry Gather GridArray Journal MessageStrategy Outcome "
        "PrivateStrategy ProtocolClient ProtocolError ProtocolStrategy Sent Sum answers client_app client_fn "
        "parameter"
    ),
    "engine.by_row": "by_row finishes view",
    "engine.client_mod": "client_mod",
    "engine.parts": "Part",
    "estimator": "as_estimator",
    "exact.rows": "Frame Rows",
    "exact.terms": "at count products squares total vectors weighted",
    "harness.compare": "compare",
    "harness.plan": "plan",
    "harness.run": "run_app",
    "models": "Model",
    "privacy.report": "PrivacyReport",
    "results.result": "Result load",
    "simulation": "simulate",
    "strategies.common.frame": "FrameClient find_frame",
    "strategies.common.tables": "with_schema",
    "tables": "Schema",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)


def _models() -> dict[str, Any]:
    models = import_module("flower_fedclust.models")
    return {name: found for name, found in vars(models).items() if isinstance(found, type)}


def _class_of_a_plugin(name: str) -> Any:
    """Return a model's class of another package."""
    from flower_fedclust import plugins

    point = plugins.class_points(plugins.MODELS).get(name)
    if point is not None:
        return plugins.load(point)
    advice = plugins.where_to_find(name)
    raise AttributeError(f"module 'flower_fedclust' has no attribute '{name}'" + (f": {advice}" if advice else ""))


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"flower_fedclust.{_HOME[name]}"), name)
    elif not name[0].isupper():  # modules import each other; only classes are looked for
        raise AttributeError(f"module 'flower_fedclust' has no attribute '{name}'")
    elif name in (found := _models()):
        value = found[name]
    elif (value := import_module("flower_fedclust.registry").find_class(name)) is None:
        value = _class_of_a_plugin(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from flower_fedclust import plugins
    from flower_fedclust.registry import class_names

    return sorted({*__all__, *_models(), *class_names(), *plugins.class_points(plugins.MODELS)})
