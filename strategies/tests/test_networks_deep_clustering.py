import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.metrics import normalized_mutual_info_score

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.initialization import weighted_kmeans
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust_papers.networks.deep_clustering import (
    common_scale,
    pretrained_autoencoder,
    refined_clusters,
    soft_assignment,
    target_distribution,
)
from flower_fedclust_papers.networks.layers import outputs

torch = pytest.importorskip("torch")

K = 4
RAW, CLASSES = make_blobs(300, n_features=6, centers=K, random_state=1)
ORIGIN, SCALE = common_scale(RAW)
ROWS = (RAW - ORIGIN) / SCALE


@pytest.fixture(scope="module")
def trained():
    return pretrained_autoencoder(ROWS, 3, random_state=0, n_epochs=150)


@pytest.fixture(scope="module")
def first_centers(trained):
    return weighted_kmeans(outputs(ROWS, trained.encoder), None, K, np.random.default_rng(0))


def kl(P, Q):
    return float(np.sum(P * np.log(P / Q)) / len(P))


def test_reconstruction_loss_falls_and_is_that_of_the_layers(trained):
    losses = trained.losses
    assert len(losses) == 150
    assert losses[-1] < 0.1 * losses[0]
    # Outputs begin near 0, and entries have mean square 1.
    assert losses[0] == pytest.approx(1.0, rel=0.1)
    again = outputs(outputs(ROWS, trained.encoder), trained.decoder)
    assert np.mean((again - ROWS) ** 2) == pytest.approx(losses[-1], rel=0.2)


def test_seed_repeats_every_bit(trained, first_centers):
    first, second, other = (
        pretrained_autoencoder(ROWS, 2, random_state=seed, n_epochs=3) for seed in (0, 0, 1)
    )
    assert first.losses == second.losses
    assert all(
        np.array_equal(one, two) for one, two in zip(first.encoder, second.encoder, strict=True)
    )
    assert not np.array_equal(first.encoder[0], other.encoder[0])
    one, two = (
        refined_clusters(
            ROWS, trained.encoder, first_centers, random_state=5, n_targets=2, tol=-1.0
        )
        for _ in "ab"
    )
    assert np.array_equal(one.centers, two.centers)
    assert one.losses == two.losses


def test_scale_makes_the_mean_square_of_an_entry_one_and_keeps_the_ratios_of_the_columns():
    np.testing.assert_allclose(ROWS.mean(axis=0), 0.0, atol=1e-12)
    assert np.mean(ROWS**2) == pytest.approx(1.0)
    assert common_scale(RAW * 1e200)[1] == pytest.approx(SCALE * 1e200)
    assert common_scale(np.full((5, 2), 0.1))[1] == 1.0
    with pytest.raises(DataError, match="too far apart"):
        common_scale(np.array([[1.0], [-1.0]]) * np.finfo(float).max)


# DEC


def test_soft_assignment_is_equation_1():
    rng = np.random.default_rng(0)
    codes, centers = rng.normal(size=(9, 3)), rng.normal(size=(4, 3))
    slow = np.array([[1 / (1 + np.sum((z - mu) ** 2)) for mu in centers] for z in codes])
    slow /= slow.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(soft_assignment(codes, centers), slow, rtol=1e-12)
    by_torch = soft_assignment(torch.from_numpy(codes), torch.from_numpy(centers))
    np.testing.assert_allclose(by_torch.numpy(), slow, rtol=1e-12)


def test_target_is_equation_3_and_surer():
    Q = np.random.default_rng(1).dirichlet(np.ones(4), size=50)
    P = target_distribution(Q)
    slow = np.array([[q**2 / Q[:, j].sum() for j, q in enumerate(row)] for row in Q])
    np.testing.assert_allclose(P, slow / slow.sum(axis=1, keepdims=True), rtol=1e-12)
    assert P.max(axis=1).mean() > Q.max(axis=1).mean()


def test_divergence_from_a_target_falls(trained, first_centers):
    before = soft_assignment(outputs(ROWS, trained.encoder), first_centers)
    P = target_distribution(before)
    moved = refined_clusters(ROWS, trained.encoder, first_centers, random_state=0, n_targets=1)
    after = soft_assignment(outputs(ROWS, moved.encoder), moved.centers)
    assert kl(P, after) < 0.9 * kl(P, before)
    assert kl(P, after) < moved.losses[0] < kl(P, before)  # which is a mean on the way


def test_codes_are_surer_of_their_clusters_afterwards_and_the_clusters_right(
    trained, first_centers
):
    moved = refined_clusters(ROWS, trained.encoder, first_centers, random_state=0)
    codes = outputs(ROWS, moved.encoder)
    before = soft_assignment(outputs(ROWS, trained.encoder), first_centers).max(axis=1).mean()
    assert soft_assignment(codes, moved.centers).max(axis=1).mean() > before
    assert normalized_mutual_info_score(CLASSES, nearest_center(codes, moved.centers)) > 0.95


def test_it_ends_when_no_row_changes_its_cluster(trained, first_centers):
    # The blobs are far apart: at the second target all are where they were.
    assert len(refined_clusters(ROWS, trained.encoder, first_centers, random_state=0).losses) == 1
    forced = refined_clusters(
        ROWS, trained.encoder, first_centers, random_state=0, n_targets=3, tol=-1.0
    )
    assert len(forced.losses) == 3


def test_arguments_are_not_changed(trained, first_centers):
    copies = [one.copy() for one in (*trained.encoder, first_centers, ROWS)]
    refined_clusters(ROWS, trained.encoder, first_centers, random_state=0, n_targets=2, tol=-1.0)
    assert all(map(np.array_equal, (*trained.encoder, first_centers, ROWS), copies))
