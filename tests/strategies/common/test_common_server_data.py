import numpy as np
import pytest

from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.federated_kmeans import DPLloyd
from flower_fedclust.strategies.feddp_kmeans import FedDPKMeans

RNG = np.random.default_rng(8)
ROWS = RNG.normal(size=(21, 4))


@pytest.mark.parametrize("strategy", [FedDPKMeans, DPLloyd])
@pytest.mark.parametrize(
    ("server_data", "sentence"),
    [
        (ROWS[:2], "server_data has 2 rows and n_clusters is 3; give at least 3 server rows"),
        (np.ones((9, 4)), "server_data: all rows are equal, so that their radius is 0; give rows that differ"),
        ([[1.0, np.nan]] * 5, "server_data: row 0, column 1 is NaN"),
        (np.zeros(5), r"server_data: the rows have shape \(5,\); give two dimensions"),
    ],
)
def test_server_rows_from_which_no_run_can_start_are_refused_in_a_sentence(strategy, server_data, sentence):
    with pytest.raises(ValueError, match=sentence):
        strategy(3, server_data=server_data)


def test_clients_are_expected_to_have_the_columns_of_the_server_rows():
    strategy = DPLloyd(3, server_data=ROWS, epsilon=None)
    assert strategy.expected_columns == 4
    with pytest.raises(ValueError, match="the clients have 3 columns where the server rows have 4"):
        simulate(strategy, [ROWS[:, :3]] * 2)


def test_report_says_how_many_server_rows_are_public_and_where_they_come_from():
    strategy = DPLloyd(3, server_data=ROWS)
    strategy.server_data_origin = "They were drawn from the clients' file."
    (note,) = strategy.privacy_notes()
    assert note.startswith("The 21 server rows are taken to be public, and no guarantee covers them.")
    assert note.endswith("They were drawn from the clients' file.")
