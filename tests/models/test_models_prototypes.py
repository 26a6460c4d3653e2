import numpy as np
import pytest
from scipy.stats import multivariate_normal

from flower_fedclust.models import KMeansModel, PrototypeModel

RNG = np.random.default_rng(4)
MEANS = RNG.normal(size=(5, 3)) * 2
CLUSTERS = np.array([2, 0, 2, 1, 0])
COUNTS = np.array([30.0, 4.0, 1.0, 60.0, 9.0])
ROOTS = RNG.normal(size=(5, 3, 3))
FULL = ROOTS @ ROOTS.transpose(0, 2, 1) + 0.2 * np.eye(3)
DIAGONAL = RNG.uniform(0.2, 4.0, (5, 3))
ROWS = RNG.normal(size=(60, 3)) * 3


def matrices(kind):
    return FULL if kind == "full" else [np.diag(variances) for variances in DIAGONAL]


def slow_densities(row, kind, counts=COUNTS):
    return [
        count * multivariate_normal(mean, S).pdf(row)
        for mean, S, count in zip(MEANS, matrices(kind), counts, strict=True)
    ]


def model_of(kind, **options):
    covariances = {"none": None, "full": FULL, "diagonal": DIAGONAL}[kind]
    return PrototypeModel(
        MEANS, CLUSTERS, 3, covariances=covariances, **{"counts": COUNTS, **options}
    )


@pytest.fixture(params=["none", "full", "diagonal"])
def model(request):
    return model_of(request.param)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_row_goes_to_the_cluster_whose_prototypes_have_the_largest_density_together(kind):
    expected = []
    for row in ROWS:
        densities = slow_densities(row, kind)
        expected.append(
            int(
                np.argmax(
                    [
                        sum(p for p, c in zip(densities, CLUSTERS, strict=True) if c == k)
                        for k in range(3)
                    ]
                )
            )
        )
    predicted = model_of(kind).predict(ROWS)
    assert predicted.dtype == np.intp
    assert predicted.tolist() == expected
    assert len(set(expected)) == 3


def test_several_prototypes_of_a_cluster_add_up():
    means, clusters = [[0.0], [1.0], [1.0]], [0, 1, 1]
    one = PrototypeModel(means, clusters, 2, covariances=np.ones((3, 1)))
    # Each is less dense than the first at 0.3, and both together are more.
    assert one.predict([[0.3]]).tolist() == [1]
    assert PrototypeModel(means[:2], [0, 1], 2, covariances=np.ones((2, 1))).predict(
        [[0.3]]
    ).tolist() == [0]


def test_counts_are_equal_unless_given():
    one, other = model_of("full", counts=None), model_of("full", counts=np.full(5, 7.0))
    np.testing.assert_array_equal(one.counts_, np.ones(5))
    np.testing.assert_array_equal(one.predict(ROWS), other.predict(ROWS))
    assert (one.predict(ROWS) != model_of("full").predict(ROWS)).any()


def test_without_covariances_a_row_goes_to_the_cluster_of_the_nearest_mean():
    expected = [
        int(CLUSTERS[np.argmin([((row - mean) ** 2).sum() for mean in MEANS])]) for row in ROWS
    ]
    assert model_of("none").predict(ROWS).tolist() == expected


def test_with_one_prototype_a_cluster_and_no_covariances_it_is_the_model_of_k_means():
    model, other = PrototypeModel(MEANS, np.arange(5), 5), KMeansModel(MEANS)
    np.testing.assert_array_equal(model.predict(ROWS), other.predict(ROWS))
    assert model.cost(ROWS) == pytest.approx(other.cost(ROWS))


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_cost_is_that_of_the_mean_of_the_densest_prototype(kind):
    expected = sum(((row - MEANS[np.argmax(slow_densities(row, kind))]) ** 2).sum() for row in ROWS)
    cost = model_of(kind).cost(ROWS)
    assert type(cost) is float
    assert cost == pytest.approx(expected)


def test_no_row_has_a_cluster_without_a_prototype(model):
    covariances = model.covariances_
    sparse = PrototypeModel(MEANS, 2 * CLUSTERS + 1, 7, covariances=covariances, counts=COUNTS)
    assert sparse.n_clusters == 7
    np.testing.assert_array_equal(sparse.predict(ROWS), 2 * model.predict(ROWS) + 1)


def test_rows_far_from_every_prototype_have_a_cluster(model):
    far = np.array([[1e6, 0.0, 0.0], [-1e6, 1e6, 3.0]])
    with np.errstate(all="raise", under="ignore"):
        assert set(model.predict(far)) <= {0, 1, 2}
        assert np.isfinite(model.cost(far))


def test_model_may_be_made_of_lists():
    model = PrototypeModel([[0, 0], [4, 4]], [1, 0], 2, covariances=[[1, 1], [1, 1]], counts=[1, 1])
    assert model.predict([[0, 1], [4, 3]]).tolist() == [1, 0]


def test_the_point_of_a_cluster_is_the_mean_of_its_prototypes_and_of_all_if_it_has_none():
    model = PrototypeModel(
        [[0.0, 0.0], [4.0, 0.0], [0.0, 8.0]], [0, 0, 2], 3, counts=[1.0, 3.0, 4.0]
    )
    np.testing.assert_allclose(model.cluster_points, [[3.0, 0.0], [1.5, 4.0], [0.0, 8.0]])
