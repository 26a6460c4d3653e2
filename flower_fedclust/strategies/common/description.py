"""The description of clusters, after a strategy has found them: one sum over the rows of each cluster."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from flower_fedclust.engine import PrivateStrategy, ProtocolClient, ProtocolStrategy, Sum
from flower_fedclust.engine.rounds import Round, Total
from flower_fedclust.models import Model
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.tables.description import Clusters, norm_of_row
from flower_fedclust.tables.preparation import Preparation

#: The name of the share of the budget that pays for it, and the part of the whole that it is by default.
SHARE, PART = "description", 0.12


def describe(
    strategy: ProtocolStrategy, preparation: Preparation, model: Model
) -> Generator[Round, Total, Clusters | None]:
    """Ask for the sums of the rows of each cluster, in one round.

    Parameters
    ----------
    strategy : ProtocolStrategy
        Of whose budget it is a share.
    preparation : Preparation
    model : Model
        Of prepared rows.

    Returns
    -------
    Clusters, or None
        None where :func:`why_not` says why.
    """
    if why_not(strategy, model):
        return None
    arrays, points = model.to_arrays(), model.exact_points
    if points is None:
        (sums,) = yield Sum(ProtocolClient.plain_description.asked(*arrays, model=model.name))
        return Clusters(preparation, np.asarray(sums, dtype=np.float64))
    radius = max(preparation.radius, float(np.linalg.norm(points, axis=1).max()) * (1 + 2.0**-30))
    of_clients = strategy.privacy_unit == "client"
    bound = norm_of_row(preparation)
    if of_clients:
        question = ProtocolClient.mean_description.asked(*arrays, model=model.name, radius=radius, bound=bound)
    else:
        question = ProtocolClient.description.asked(*arrays, model=model.name, radius=radius)
    parts = [] if _share(strategy) is None else [SHARE]
    (sums,) = received = yield Sum(question, parts=parts)
    deviation = received.noise[0]
    return Clusters(preparation, np.asarray(sums, dtype=np.float64), deviation, of_clients)


def check_schema(describe: bool | float, schema: object) -> None:
    """Raise a ValueError where clusters are to be described and no schema is given."""
    if describe and schema is None:
        raise ValueError(
            "describe is given and schema is not; clusters are described within the units, bounds and categories of "
            "columns that a schema makes public: 'fedclust schema init rows.csv' drafts one."
        )


def why_not(strategy: ProtocolStrategy, model: Model) -> str:
    """Return why the clusters of a model cannot be described in the run of a strategy; nothing if they can."""
    if model.stays_with_server:
        return "the model holds what single rows have sent, and goes to no client"
    if model.exact_points is None and _share(strategy) is not None:
        return "which cluster a row is in is no exact choice there, so that no guarantee could cover it"
    return ""


def _share(strategy: ProtocolStrategy) -> Share | None:
    if strategy.around is None or strategy.epsilon is None or not isinstance(strategy, PrivateStrategy):
        return None
    return strategy.frozen_plan.shares.get(SHARE)
