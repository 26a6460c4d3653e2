import numpy as np
import pytest

from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.federated_kmeans import DPLloyd
from flower_fedclust.strategies.feddp_kmeans import FedDPKMeans

RNG = np.random.default_rng(8)
ROWS = RNG.normal(size=(21, 4))


@pytest.mark.parametrize("strategy", [FedDPKMeans, DPLloyd])
@pytest.mark.parametrize(
    ("server_data", "named"),
    [
        (ROWS[:2], "server_data"),
        (np.ones((9, 4)), "server_data"),
        ([[1.0, np.nan]] * 5, "row 0, column 1"),
        (np.zeros(5), "server_data"),
    ],
)
def test_server_rows_from_which_no_run_can_start_are_refused(strategy, server_data, named):
    with pytest.raises(ValueError, match=named):
        strategy(3, server_data=server_data)


def test_clients_are_expected_to_have_the_columns_of_the_server_rows():
    strategy = DPLloyd(3, server_data=ROWS, epsilon=None)
    assert strategy.expected_columns == 4
    with pytest.raises(ValueError, match="server rows"):
        simulate(strategy, [ROWS[:, :3]] * 2)


def test_report_says_how_many_server_rows_are_public_and_where_they_come_from():
    strategy = DPLloyd(3, server_data=ROWS)
    strategy.server_data_origin = "They were drawn from the clients' file."
    (note,) = strategy.privacy_notes()
    assert note.startswith("The 21 server rows are taken to be public, and no guarantee covers them.")
    assert note.endswith("They were drawn from the clients' file.")
