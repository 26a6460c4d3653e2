"""The public rows that the server has."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.numerics.checks import checked_rows


def checked_server_data(server_data: ArrayLike, n_clusters: int) -> NDArray[np.float64]:
    """Return the server rows as an array, or say what is wrong with them.

    Raises
    ------
    ValueError
        If they are not finite numbers, are fewer than the clusters, or are all equal (their radius would be 0).
    """
    rows = checked_rows(server_data, owner="server_data")
    if len(rows) < n_clusters:
        raise ValueError(
            f"server_data has {len(rows)} rows and n_clusters is {n_clusters}; give at least {n_clusters} server rows."
        )
    if (rows == rows[0]).all():
        raise ValueError("server_data: all rows are equal, so that their radius is 0; give rows that differ.")
    return rows


def server_data_note(server_data: ArrayLike, origin: str) -> str:
    """Return what the privacy report says of the server rows, and where they come from."""
    n_rows = len(np.asarray(server_data))
    note = f"The {n_rows} server rows are taken to be public, and no guarantee covers them."
    return f"{note} {origin}".rstrip()
