"""Federated clustering and visualisation for Flower: clusters of rows that stay where they are.

>>> import flower_fedclust as fc
>>> strategy = fc.FedDPKMeans(n_clusters=10, epsilon=1.0, delta=1e-6, server_data=public_rows)  # doctest: +SKIP
>>> result = fc.simulate(strategy, [rows_of_site_1, rows_of_site_2])  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower_fedclust.checking.audit import audit
    from flower_fedclust.checking.suite import check_strategy
    from flower_fedclust.engine import (
        ClientData,
        ClippedStrategy,
        Consent,
        DataError,
        Entry,
        Gather,
        GridArray,
        Journal,
        MessageStrategy,
        Outcome,
        PrivateStrategy,
        ProtocolClient,
        ProtocolError,
        ProtocolStrategy,
        Sent,
        Sum,
        answers,
        client_app,
        client_fn,
        parameter,
    )
    from flower_fedclust.engine.by_row import by_row, finishes, view
    from flower_fedclust.engine.parts import Part
    from flower_fedclust.estimator import as_estimator
    from flower_fedclust.exact.rows import Frame, Rows
    from flower_fedclust.exact.terms import at, count, products, squares, total, vectors, weighted
    from flower_fedclust.harness.compare import compare
    from flower_fedclust.harness.plan import plan
    from flower_fedclust.harness.run import run_app
    from flower_fedclust.models import Model
    from flower_fedclust.privacy.report import PrivacyReport
    from flower_fedclust.results.result import Result, load
    from flower_fedclust.simulation import simulate
    from flower_fedclust.strategies.common.frame import FrameClient, find_frame
    from flower_fedclust.strategies.common.tables import with_schema
    from flower_fedclust.tables import Schema

#: Where each public name lives. It is imported when first used, so that ``import flower_fedclust`` is fast. Strategies
#: are found by their classes' names in the registry, models in ``models``.
_HOME = {
    "ClientData": "engine",
    "ClippedStrategy": "engine",
    "Consent": "engine",
    "DataError": "engine",
    "Entry": "engine",
    "Frame": "exact.rows",
    "FrameClient": "strategies.common.frame",
    "Gather": "engine",
    "GridArray": "engine",
    "Journal": "engine",
    "MessageStrategy": "engine",
    "Model": "models",
    "Outcome": "engine",
    "Part": "engine.parts",
    "PrivacyReport": "privacy.report",
    "PrivateStrategy": "engine",
    "ProtocolClient": "engine",
    "ProtocolError": "engine",
    "ProtocolStrategy": "engine",
    "Result": "results.result",
    "Rows": "exact.rows",
    "Schema": "tables",
    "Sent": "engine",
    "Sum": "engine",
    "answers": "engine",
    "as_estimator": "estimator",
    "at": "exact.terms",
    "audit": "checking.audit",
    "by_row": "engine.by_row",
    "check_strategy": "checking.suite",
    "client_app": "engine",
    "client_fn": "engine",
    "compare": "harness.compare",
    "count": "exact.terms",
    "find_frame": "strategies.common.frame",
    "finishes": "engine.by_row",
    "load": "results.result",
    "parameter": "engine",
    "plan": "harness.plan",
    "products": "exact.terms",
    "run_app": "harness.run",
    "simulate": "simulation",
    "squares": "exact.terms",
    "total": "exact.terms",
    "vectors": "exact.terms",
    "view": "engine.by_row",
    "weighted": "exact.terms",
    "with_schema": "strategies.common.tables",
}

__all__ = [
    "ClientData",
    "ClippedStrategy",
    "Consent",
    "DataError",
    "Entry",
    "Frame",
    "FrameClient",
    "Gather",
    "GridArray",
    "Journal",
    "MessageStrategy",
    "Model",
    "Outcome",
    "Part",
    "PrivacyReport",
    "PrivateStrategy",
    "ProtocolClient",
    "ProtocolError",
    "ProtocolStrategy",
    "Result",
    "Rows",
    "Schema",
    "Sent",
    "Sum",
    "answers",
    "as_estimator",
    "at",
    "audit",
    "by_row",
    "check_strategy",
    "client_app",
    "client_fn",
    "compare",
    "count",
    "find_frame",
    "finishes",
    "load",
    "parameter",
    "plan",
    "products",
    "run_app",
    "simulate",
    "squares",
    "total",
    "vectors",
    "view",
    "weighted",
    "with_schema",
]


def _strategies() -> dict[str, Any]:
    from flower_fedclust.registry import strategies

    return {entry.strategy.__name__: entry.strategy for entry in strategies().values()}


def _models() -> dict[str, Any]:
    models = import_module("flower_fedclust.models")
    return {name: getattr(models, name) for name in models.__all__}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"flower_fedclust.{_HOME[name]}"), name)
    elif not name[0].isupper():  # modules import each other; only classes are looked for
        raise AttributeError(f"module 'flower_fedclust' has no attribute '{name}'")
    elif name in (found := _models()):
        value = found[name]
    elif (value := import_module("flower_fedclust.registry").find_class(name)) is None:
        raise AttributeError(f"module 'flower_fedclust' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_models(), *_strategies()})
