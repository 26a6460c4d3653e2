"""For every kind of message that nothing protects, an attack that works, with one number."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from flower_fedclust.privacy import attacks
from flower_fedclust.privacy.attacks import advantage, attack_on, membership_from_centers, row_from_sums
from flower_fedclust.protocol.rounds import KINDS
from flower_fedclust.steps.frame import enter

RNG = np.random.default_rng(0)


def sums_of(rows, centers):
    inside = enter(rows, np.zeros(rows.shape[1]), np.array([10.0, 2.0]))
    sums, counts = inside.sums(inside.nearest(centers), len(centers))
    return sums.values, counts.integers


def test_exact_sums_of_two_runs_give_the_row_that_came():
    rows, row, centers = RNG.normal(size=(50, 5)), RNG.normal(size=5), RNG.normal(size=(4, 5))
    found = row_from_sums(*sums_of(np.vstack([rows, row]), centers), *sums_of(rows, centers))
    np.testing.assert_allclose(found, row[None], atol=1e-5)


def test_sums_of_other_clusters_are_refused():
    with pytest.raises(ValueError, match="the same clusters and columns"):
        row_from_sums(np.zeros((2, 3)), np.zeros(2, int), np.zeros((3, 3)), np.zeros(3, int))


def test_centers_of_small_clusters_tell_members_from_others_four_times_in_five():
    members, others = RNG.normal(size=(2, 60, 8))
    centers = KMeans(20, n_init=1, random_state=0).fit(members).cluster_centers_
    found = advantage(membership_from_centers(centers, members), membership_from_centers(centers, others))
    assert found > 0.8
    assert advantage(np.zeros(3), np.zeros(4)) == 0.5


def test_a_cluster_of_one_row_is_that_row():
    row = RNG.normal(size=(1, 3))
    assert membership_from_centers(row, row).tolist() == [0.0]


@pytest.mark.parametrize(
    ("content", "kind", "attack"),
    [
        ("kernel values of every row", "codes", "rows_from_kernel"),
        ("distances to the landmarks", "codes", "rows_from_distances"),
        ("code of every row", "codes", "rows_from_codes"),
        ("labels of another kind", "codes", "clusters_from_codes"),
        ("centers of the client's own clusters", "centers", "membership_from_centers"),
        ("sum of the rows in each cluster", "sums", "row_from_sums"),
    ],
)
def test_a_message_names_an_attack_that_exists(content, kind, attack):
    assert attack in attack_on(content, kind)
    assert callable(getattr(attacks, attack))


def test_every_kind_of_message_says_what_can_be_done_with_it():
    assert all(attack_on("anything", kind) for kind in KINDS)
