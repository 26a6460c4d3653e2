"""FedDP-KMeans: the radius of the paper's mixture (Table 1)."""

from __future__ import annotations

import numpy as np

from flower_fedclust.data import load_dataset
from reproduce.measures import measure
from reproduce.tables import Experiment


@measure("radius")
def radius(_: Experiment, seed: int) -> dict[str, float]:
    """Return the norm of the server's longest row, which does not depend on how many rows the clients have."""
    server_rows = load_dataset("gaussian-mixture", random_state=seed, n_rows=1).server_rows
    return {"radius": float(np.linalg.norm(np.asarray(server_rows), axis=1).max())}
