"""Parameters that cannot be right are refused by name: what one declaration does not show, for each strategy."""

import numpy as np
import pytest

import flower_fedclust as fc

ROWS = np.random.default_rng(8).normal(size=(21, 4))
NOISE = {"epsilon": 1.0, "max_norm": 1.0}
PUBLIC_ROWS = [ROWS[:2], np.ones((9, 4)), [[1.0, np.nan]] * 5, np.zeros(5)]

BAD = [
    *(
        (kind, {"server_data": rows}, "server_data")
        for kind in (fc.FedDPKMeans,)
        for rows in PUBLIC_ROWS
    ),
    (fc.DPFedC, {"init": ROWS[:2]}, "init"),
    (fc.DPFedC, {"init": ROWS[0]}, "init"),
    (fc.DPFedC, {"rho": "paper"} | NOISE, "rho"),
    (fc.FederatedKMeans, {"init": ROWS[:2]}, "init"),
    (fc.FedSCSums, {"n_atoms": 2}, "n_atoms"),
    (fc.FedSCSums, {"regularization": 0} | NOISE, "regularization"),
    (fc.FedSpeClust, {"n_landmarks": 2}, "n_landmarks"),
    (fc.FedSpeClustSums, {"n_landmarks": 2}, "n_landmarks"),
    (fc.FedSpeClustSums, {"regularization": 0} | NOISE, "regularization"),
    (fc.FedTSNE, {"federated_evaluation": True}, "federated_evaluation"),
    (fc.SPPFGCSums, {"n_prototypes": 2}, "n_prototypes"),
    (fc.SPPFGCSums, {"epsilon": 1.0}, "max_l1_norm"),
]


@pytest.mark.parametrize(
    ("kind", "options", "name"), BAD, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_wrong_parameter_is_named(kind, options, name):
    with pytest.raises(ValueError, match=name):
        kind(3, **options).check_complete()


def test_parameters_that_are_set_later_are_checked_before_the_run():
    for strategy, options, name in (
        (fc.FedSCSums(3), {"noise": "there"}, "noise"),
        (fc.SPPFGCSums(3), *BAD[-1][1:]),
    ):
        with pytest.raises(ValueError, match=name):
            fc.simulate(strategy.set_params(**options), [ROWS, ROWS])


def test_report_says_how_many_server_rows_are_public_and_where_they_come_from():
    strategy = fc.FedDPKMeans(3, server_data=ROWS)
    strategy.server_data_origin = "They were drawn from the clients' file."
    (note,) = strategy.privacy_notes()
    assert "21 server rows" in note
    assert note.endswith(strategy.server_data_origin)
