import numpy as np
import pytest

from flower_fedclust.models import KMeansModel, Model, SpectralModel

RNG = np.random.default_rng(4)
ATOMS = RNG.normal(size=(5, 3)) * 2
PROJECTION = RNG.normal(size=(5, 2))
CENTERS = np.array([[1.0, 0.0], [-0.6, 0.8], [0.0, -1.0]])
ROWS = RNG.normal(size=(40, 3)) * 2
BANDWIDTH = 1.7


@pytest.fixture
def model():
    return SpectralModel(ATOMS, BANDWIDTH, PROJECTION, CENTERS)


def slow_coordinates(row):
    kernel = [np.exp(-sum((row[j] - atom[j]) ** 2 for j in range(3)) / (2 * BANDWIDTH**2)) for atom in ATOMS]
    point = np.array([sum(kernel[i] * PROJECTION[i, k] for i in range(5)) for k in range(2)])
    return point / np.sqrt((point**2).sum())


def test_row_goes_to_its_kernel_values_times_the_projection_on_the_unit_sphere(model):
    embedded = model.embed(ROWS)
    assert embedded.shape == (40, 2)
    np.testing.assert_allclose(embedded, [slow_coordinates(row) for row in ROWS], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(embedded, axis=1), 1.0)


def test_cluster_is_that_of_the_nearest_center_in_the_embedding(model):
    expected = [int(np.argmin([((slow_coordinates(row) - c) ** 2).sum() for c in CENTERS])) for row in ROWS]
    predicted = model.predict(ROWS)
    assert predicted.dtype == np.intp
    assert predicted.tolist() == expected
    assert len(set(expected)) == 3


def test_cost_is_the_sum_of_squared_distances_in_the_embedding(model):
    expected = sum(min(((slow_coordinates(row) - c) ** 2).sum() for c in CENTERS) for row in ROWS)
    cost = model.cost(ROWS)
    assert type(cost) is float
    assert cost == pytest.approx(expected)
    assert model.cost(ROWS[:10]) + model.cost(ROWS[10:]) == pytest.approx(cost)


def test_cost_of_a_row_is_at_most_4():
    opposite = SpectralModel([[0.0, 0.0]], 1.0, [[1.0]], [[-1.0]])
    assert opposite.cost([[0.1, 0.0]]) == pytest.approx(4.0)


def test_row_too_far_from_every_atom_lies_at_0_and_has_a_cluster_all_the_same(model):
    far = np.full((2, 3), 1e4)
    assert not model.embed(far).any()
    assert set(model.predict(far)) <= {0, 1, 2}
    assert np.isfinite(model.cost(far))


def test_label_of_a_row_does_not_depend_on_the_other_rows(model):
    together = model.predict(ROWS)
    assert [int(model.predict(row[None, :])[0]) for row in ROWS] == together.tolist()


def test_model_goes_through_its_arrays_unchanged(model):
    arrays = model.to_arrays()
    assert [array.shape for array in arrays] == [(5, 3), (1,), (5, 2), (3, 2)]
    assert all(array.dtype == np.float64 for array in arrays)
    again = SpectralModel.from_arrays([array.copy() for array in arrays])
    assert type(again) is SpectralModel
    assert type(again.bandwidth_) is float
    assert np.array_equal(again.embed(ROWS), model.embed(ROWS))
    assert np.array_equal(again.predict(ROWS), model.predict(ROWS))
    for one, other in zip(arrays, again.to_arrays(), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("n_arrays", [0, 1, 3, 5])
def test_model_is_made_of_exactly_four_arrays(model, n_arrays):
    with pytest.raises(ValueError, match="unpack"):
        SpectralModel.from_arrays((model.to_arrays() * 2)[:n_arrays])


def test_model_has_its_own_copy_of_what_it_was_made_of():
    given = [ATOMS.copy(), PROJECTION.copy(), CENTERS.copy()]
    model = SpectralModel(given[0], BANDWIDTH, given[1], given[2])
    expected = model.predict(ROWS)
    for array in given:
        array[:] = 0.0
    assert np.array_equal(model.predict(ROWS), expected)


def test_model_knows_how_many_clusters_it_has_and_says_what_it_is(model):
    assert model.n_clusters == 3
    assert repr(model) == "SpectralModel(3 clusters, 5 atoms of 3 columns)"
    assert isinstance(model, Model)
    # It is what result.save() writes centers.csv from, and these centers are not rows.
    assert not hasattr(model, "cluster_centers_")


@pytest.mark.parametrize("method", ["embed", "predict", "cost"])
def test_rows_of_another_width_are_refused_in_one_sentence(model, method):
    sentence = r"^rows: 2 columns where the dictionary has 3; give the columns the model was made from\.$"
    with pytest.raises(ValueError, match=sentence):
        getattr(model, method)(np.ones((4, 2)))


def test_rows_of_another_width_are_told_of_the_centers_by_a_model_that_has_them():
    with pytest.raises(ValueError, match=r"^rows: 3 columns where the cluster centers have 2; give the columns"):
        KMeansModel(CENTERS).predict(np.ones((4, 3)))


@pytest.mark.parametrize("method", ["embed", "predict", "cost"])
def test_rows_with_nan_are_refused_by_row_and_column(model, method):
    rows = np.ones((4, 3))
    rows[1, 2] = np.nan
    with pytest.raises(ValueError, match=r"^rows: row 1, column 2 is NaN; fill it in or drop the row\.$"):
        getattr(model, method)(rows)


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({0: [[1.0, np.nan]]}, "dictionary: row 0, column 1 is NaN;"),
        ({1: 0.0}, "bandwidth is 0.0; it must be a finite number above 0"),
        ({1: -1.0}, "bandwidth is -1.0; it must be"),
        ({1: float("nan")}, "bandwidth is nan; it must be"),
        ({2: [[np.inf, 1.0]]}, "projection: row 0, column 0 is infinite;"),
        ({3: np.ones(2)}, r"cluster_centers: the rows have shape \(2,\);"),
        ({3: np.empty((0, 2))}, "cluster_centers has no rows;"),
    ],
)
def test_what_cannot_be_right_is_refused(change, start):
    arguments = [ATOMS, BANDWIDTH, PROJECTION, CENTERS]
    for index, value in change.items():
        arguments[index] = value
    with pytest.raises(ValueError, match=f"^{start}"):
        SpectralModel(*arguments)
