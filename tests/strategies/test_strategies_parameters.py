"""Parameters that cannot be right are refused by name: what one declaration does not show, for each strategy."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import flower_fedclust as fc
from flower_fedclust.numerics.checks import LARGEST_NORM, SMALLEST_NORM

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


@pytest.mark.parametrize("norm", [SMALLEST_NORM / 2, 2 * LARGEST_NORM])
def test_a_norm_whose_powers_no_float_holds_is_refused(norm):
    with pytest.raises(ValueError, match=r"max_norm is .* at least 1e-30 and at most 1e\+30"):
        fc.PrivateKMeans(3, max_norm=norm)
    with pytest.raises(ValueError, match=r"max_l1_norm is .* at least 1e-30 and at most 1e\+30"):
        fc.SPPFGCSums(3, max_l1_norm=norm)
    with pytest.raises(fc.DataError, match=r"server_data: .*1e[-+]30"):
        fc.PrivateKMeans(3, server_data=ROWS * norm / np.abs(ROWS).max())


@pytest.mark.parametrize("norm", [SMALLEST_NORM, LARGEST_NORM])
@pytest.mark.parametrize(
    "kind",
    [
        fc.DPFedC,
        fc.FedSCSums,
        fc.FedSpeClustSums,
        fc.PrivateDensity,
        fc.PrivateKMeans,
        fc.PrivateMixture,
        fc.SPPFGCSums,
    ],
)
def test_a_run_works_at_the_smallest_and_at_the_largest_norm(kind, norm):
    rows = np.random.default_rng(0).normal(size=(600, 4)) * norm / 4
    bound = {"max_l1_norm" if kind is fc.SPPFGCSums else "max_norm": norm}
    result = fc.simulate(kind(3, epsilon=2.0, **bound), [rows[::2], rows[1::2]], seed=0)
    assert sum(map(len, result.labels)) == 600


@pytest.mark.parametrize("scale", [1e-140, 1e140])
@pytest.mark.parametrize("kind", [fc.PrivateDensity, fc.PrivateKMeans])
@pytest.mark.parametrize("n_clusters", [3, "auto"])
def test_without_noise_labels_do_not_depend_on_the_scale(kind, scale, n_clusters):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 4)) + 9 * rng.normal(size=(3, 4))[rng.integers(3, size=600)]
    found = [
        fc.simulate(kind(n_clusters, epsilon=None), [part[::2], part[1::2]], seed=0)
        for part in (rows, rows * scale)
    ]
    one, other = (result.labels for result in found)
    assert adjusted_rand_score(np.concatenate(one), np.concatenate(other)) > 0.99


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
