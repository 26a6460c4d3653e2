"""The public rows that the server has, for strategies that start from them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.data.frames import is_table
from flower_fedclust.engine import PrivateStrategy, parameter
from flower_fedclust.numerics.checks import check_scale, checked_rows
from flower_fedclust.privacy.releases import PRIVACY_UNITS, PrivacyUnit


class ServerDataStrategy(PrivateStrategy):
    """Base of private strategies that start from public rows of the server.

    Parameters
    ----------
    server_data : array-like of shape (n_server_rows, n_columns)
        Public rows Q, which nothing protects. A few are enough, and their distribution may differ
        from the distribution of the clients' rows. Clients clip their rows to the radius of Q.
        With a schema, Q is a table.
    epsilon : float or None, default=1.0
        The privacy budget of the whole run. None means no noise and no guarantee.
    privacy_unit : "record", "subject" or "client", default="record"
        Whether the guarantee covers a row, a person with all rows that the ``subject_column`` gives
        the person, or everything that one client contributes.
    rows_per_client : int, default=50
        At client level: the publicly known, approximate number of rows of a client. It sets the
        bounds to which clients clip; a wrong value costs accuracy, not privacy.
    center_rows : bool, default=True
        Whether to subtract the mean of the server rows from all rows first. This makes the radius
        smaller, and so all noise. The paper measures the radius from 0.
    shrink_centers : bool, default=True
        Whether to shrink noisy centers towards the previous centers (James and Stein), which costs
        no privacy. The paper does not shrink them.
    """

    promises = PRIVACY_UNITS

    server_data: ArrayLike = parameter()
    epsilon: float | None = parameter(1.0, above=0, at_most=1000)
    privacy_unit: PrivacyUnit = parameter("record")
    rows_per_client: int = parameter(50, at_least=1)
    center_rows: bool = parameter(True)
    shrink_centers: bool = parameter(True)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first invalid parameter."""
        super().check_parameters()
        if not is_table(self.server_data):
            self._server_rows()

    def check_complete(self) -> None:
        """Raise a ValueError unless the server's rows are numbers; a table is converted to numbers before this."""
        super().check_complete()
        self._server_rows()

    @property
    def expected_columns(self) -> int:
        """The width of the server rows."""
        return int(np.asarray(self.server_data).shape[1])

    def privacy_notes(self) -> list[str]:
        """Add that the server rows are public, and where they come from."""
        n_rows = len(np.asarray(self.server_data))
        note = f"The {n_rows} server rows are taken to be public, and no guarantee covers them."
        return [*super().privacy_notes(), f"{note} {self.server_data_origin}".rstrip()]

    def _server_rows(self) -> NDArray[np.float64]:
        """Return the server rows as an array; raise a ValueError if they cannot be used."""
        rows = checked_rows(self.server_data, owner="server_data")
        check_scale(rows, "server_data")
        if len(rows) < self.n_clusters:
            raise ValueError(
                f"server_data has {len(rows)} rows and n_clusters is {self.n_clusters}; give at least "
                f"{self.n_clusters} server rows."
            )
        if (rows == rows[0]).all():
            raise ValueError(
                "server_data: all rows are equal, so that their radius is 0; give rows that differ."
            )
        return rows
