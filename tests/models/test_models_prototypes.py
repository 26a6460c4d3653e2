import numpy as np
import pytest
from scipy.stats import multivariate_normal

from flower_fedclust.models import KMeansModel, Model, PrototypeModel

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
    return PrototypeModel(MEANS, CLUSTERS, 3, covariances=covariances, **{"counts": COUNTS, **options})


@pytest.fixture(params=["none", "full", "diagonal"])
def model(request):
    return model_of(request.param)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_row_goes_to_the_cluster_whose_prototypes_have_the_largest_density_together(kind):
    expected = []
    for row in ROWS:
        densities = slow_densities(row, kind)
        expected.append(
            int(np.argmax([sum(p for p, c in zip(densities, CLUSTERS, strict=True) if c == k) for k in range(3)]))
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
    assert PrototypeModel(means[:2], [0, 1], 2, covariances=np.ones((2, 1))).predict([[0.3]]).tolist() == [0]


def test_counts_are_equal_unless_given():
    one, other = model_of("full", counts=None), model_of("full", counts=np.full(5, 7.0))
    np.testing.assert_array_equal(one.counts_, np.ones(5))
    np.testing.assert_array_equal(one.predict(ROWS), other.predict(ROWS))
    assert (one.predict(ROWS) != model_of("full").predict(ROWS)).any()


def test_without_covariances_row_goes_to_the_cluster_of_the_nearest_mean():
    expected = [int(CLUSTERS[np.argmin([((row - mean) ** 2).sum() for mean in MEANS])]) for row in ROWS]
    predicted = model_of("none").predict(ROWS)
    assert predicted.dtype == np.intp
    assert predicted.tolist() == expected


def test_with_one_prototype_a_cluster_and_no_covariances_it_is_the_model_of_k_means():
    model, other = PrototypeModel(MEANS, np.arange(5), 5), KMeansModel(MEANS)
    np.testing.assert_array_equal(model.predict(ROWS), other.predict(ROWS))
    assert model.cost(ROWS) == pytest.approx(other.cost(ROWS))


def test_cost_without_covariances_is_that_of_the_nearest_means():
    expected = sum(min(((row - mean) ** 2).sum() for mean in MEANS) for row in ROWS)
    assert model_of("none").cost(ROWS) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_cost_is_that_of_the_mean_of_the_densest_prototype(kind):
    expected = sum(((row - MEANS[np.argmax(slow_densities(row, kind))]) ** 2).sum() for row in ROWS)
    cost = model_of(kind).cost(ROWS)
    assert type(cost) is float
    assert cost == pytest.approx(expected)


@pytest.mark.parametrize("block_entries", [1, 50])
def test_rows_in_blocks_are_the_rows_at_once(model, monkeypatch, block_entries):
    labels, cost = model.predict(ROWS), model.cost(ROWS)
    monkeypatch.setattr("flower_fedclust.numerics.blocks.BLOCK_ENTRIES", block_entries)
    np.testing.assert_array_equal(model.predict(ROWS), labels)
    assert model.cost(ROWS) == pytest.approx(cost)
    assert [int(model.predict(row[None, :])[0]) for row in ROWS] == labels.tolist()


def test_no_row_has_a_cluster_without_a_prototype(model):
    covariances = model.covariances_
    sparse = PrototypeModel(MEANS, 2 * CLUSTERS + 1, 7, covariances=covariances, counts=COUNTS)
    assert sparse.n_clusters == 7
    np.testing.assert_array_equal(sparse.predict(ROWS), 2 * model.predict(ROWS) + 1)


def test_rows_far_from_every_prototype_have_a_cluster_too(model):
    far = np.array([[1e6, 0.0, 0.0], [-1e6, 1e6, 3.0]])
    with np.errstate(all="raise", under="ignore"):
        assert set(model.predict(far)) <= {0, 1, 2}
        assert np.isfinite(model.cost(far))


def test_model_goes_through_its_arrays_unchanged(model):
    arrays = model.to_arrays()
    assert all(array.dtype == np.float64 for array in arrays)
    again = PrototypeModel.from_arrays([array.copy() for array in arrays])
    assert type(again) is PrototypeModel
    assert again.n_clusters == 3
    assert again.clusters_.dtype == np.intp
    assert (again.covariances_ is None) == (model.covariances_ is None)
    np.testing.assert_array_equal(again.predict(ROWS), model.predict(ROWS))
    assert again.cost(ROWS) == model.cost(ROWS)
    for one, other in zip(arrays, again.to_arrays(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_arrays_of_a_model_are_means_covariances_counts_clusters_and_their_number():
    shapes = [[array.shape for array in model_of(kind).to_arrays()] for kind in ("none", "full", "diagonal")]
    for found, covariances in zip(shapes, [(0,), (5, 3, 3), (5, 3)], strict=True):
        assert found == [(5, 3), covariances, (5,), (5,), (1,)]


@pytest.mark.parametrize("n_arrays", [0, 4, 6])
def test_model_is_made_of_exactly_five_arrays(model, n_arrays):
    with pytest.raises(ValueError, match="unpack"):
        PrototypeModel.from_arrays((model.to_arrays() * 2)[:n_arrays])


def test_model_has_its_own_copy_of_what_it_was_made_of():
    given = [MEANS.copy(), CLUSTERS.copy(), FULL.copy(), COUNTS.copy()]
    model = PrototypeModel(given[0], given[1], 3, covariances=given[2], counts=given[3])
    expected = model.predict(ROWS)
    for array in given:
        array[:] = 0
    np.testing.assert_array_equal(model.predict(ROWS), expected)


def test_model_says_what_it_is(model):
    assert model.n_clusters == 3
    assert repr(model) == "PrototypeModel(3 clusters, 5 prototypes of 3 columns)"
    assert isinstance(model, Model)


def test_model_may_be_made_of_lists():
    model = PrototypeModel([[0, 0], [4, 4]], [1, 0], 2, covariances=[[1, 1], [1, 1]], counts=[1, 1])
    assert model.predict([[0, 1], [4, 3]]).tolist() == [1, 0]


@pytest.mark.parametrize("method", ["predict", "cost"])
def test_rows_of_another_width_are_refused_in_one_sentence(model, method):
    sentence = r"^rows: 2 columns where the prototypes have 3; give the columns the model was made from\.$"
    with pytest.raises(ValueError, match=sentence):
        getattr(model, method)(np.ones((4, 2)))


@pytest.mark.parametrize("method", ["predict", "cost"])
def test_rows_with_nan_are_refused_by_row_and_column(model, method):
    rows = np.ones((4, 3))
    rows[1, 2] = np.nan
    with pytest.raises(ValueError, match=r"^rows: row 1, column 2 is NaN; fill it in or drop the row\.$"):
        getattr(model, method)(rows)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"means": [[1.0, np.nan]]}, r"means: row 0, column 1 is NaN;"),
        ({"means": np.empty((0, 3))}, r"means has no rows;"),
        ({"n_clusters": 0}, r"n_clusters is 0; it must be an integer, 1 or more\."),
        ({"n_clusters": 2.0}, r"n_clusters is 2\.0; it must be an integer"),
        ({"clusters": [0, 1]}, r"there are 5 means; give as many clusters and counts\.$"),
        ({"counts": np.ones(4)}, r"there are 5 means; give as many clusters and counts\.$"),
        ({"clusters": [0, 1, 2, 3, 0]}, r"clusters: every prototype needs one from 0 to 2\.$"),
        ({"clusters": [0, 1, 2, -1, 0]}, r"clusters: every prototype needs one from 0 to 2\.$"),
        (
            {"covariances": np.ones((5, 2))},
            r"covariances have the shape \(5, 2\); give \(5, 3\) or \(5, 3, 3\)\.$",
        ),
        ({"covariances": np.ones((3, 3))}, r"covariances have the shape \(3, 3\); give \(5, 3\)"),
        ({"covariances": np.full((5, 3), np.nan)}, r"covariances: every entry must be a finite number\.$"),
        ({"counts": [1, 1, 0, 1, 1]}, r"counts: every prototype needs a finite number above 0\.$"),
        ({"counts": [1, 1, -2, 1, 1]}, r"counts: every prototype needs a finite number above 0\.$"),
        ({"counts": [1, 1, np.nan, 1, 1]}, r"counts: every prototype needs a finite number above 0\.$"),
    ],
)
def test_what_cannot_be_right_is_refused(change, sentence):
    arguments = {"means": MEANS, "clusters": CLUSTERS, "n_clusters": 3} | change
    with pytest.raises(ValueError, match=f"^{sentence}"):
        PrototypeModel(**arguments)


def test_the_point_of_a_cluster_is_the_mean_of_its_prototypes_and_of_all_if_it_has_none():
    model = PrototypeModel([[0.0, 0.0], [4.0, 0.0], [0.0, 8.0]], [0, 0, 2], 3, counts=[1.0, 3.0, 4.0])
    np.testing.assert_allclose(model.cluster_points, [[3.0, 0.0], [1.5, 4.0], [0.0, 8.0]])
