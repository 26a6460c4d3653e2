"""The description of clusters, after a strategy has found them: one sum over the rows of each cluster."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from flower_fedclust.models import KMeansModel, Model
from flower_fedclust.privacy.releases import Release
from flower_fedclust.protocol import PrivateStrategy, ProtocolClient, ProtocolStrategy, Sum
from flower_fedclust.protocol.rounds import Round, Total
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
        None if the model has no centers among the prepared rows: only then is the cluster of a row exact.
    """
    if not isinstance(model, KMeansModel):
        return None
    centers = model.cluster_centers_
    radius = max(preparation.radius, float(np.linalg.norm(centers, axis=1).max()) * (1 + 2.0**-30))
    of_clients = strategy.privacy_unit == "client"
    bound = norm_of_row(preparation)
    if of_clients:
        question = ProtocolClient.mean_description.asked(centers, radius=radius, bound=bound)
    else:
        question = ProtocolClient.description.asked(centers, radius=radius)
    releases: list[Release] = []
    if isinstance(strategy, PrivateStrategy) and strategy.around is not None:
        share = strategy.around.shares(strategy).get(SHARE)
        if share is not None:
            replaced = share.relation == "replace"
            moved = norm_of_row(preparation, replaced=replaced)
            words = "a row is in one cluster, has one category a column, and numbers within -1 and 1"
            if of_clients:
                moved, words = bound * (2 if replaced else 1), "the client clips the array to this norm"
            releases = [strategy.release(SHARE, moved, words)]
    (sums,) = yield Sum(question, releases=releases)
    deviation = strategy.noise_of_sum(releases[0]) if releases else 0.0
    return Clusters(preparation, np.asarray(sums, dtype=np.float64), deviation, of_clients)
