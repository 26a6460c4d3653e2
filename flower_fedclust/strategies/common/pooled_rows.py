"""Rows that are sent to the server, for baselines that pool them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.rounds import Sent, answers


class PooledRowsClient(ProtocolClient):
    """The answer of a client that hides nothing."""

    @answers(Sent("the rows themselves", "rows", per="row", has_columns=True))
    def all_rows(self) -> NDArray[np.float64]:
        """Return the rows."""
        return self.rows
