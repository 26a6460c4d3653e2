import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_iris

from flower_fedclust.models import KMeansModel, Model

CENTERS = np.array([[0.0, 0.0, 0.0], [5.0, 5.0, 5.0]])


@pytest.fixture(scope="module", params=[load_iris, load_digits], ids=["iris", "digits"])
def fitted(request):
    rows = request.param().data
    return rows, KMeans(7, n_init=1, random_state=0).fit(rows)


def test_predict_is_that_of_scikit_learn(fitted):
    rows, estimator = fitted
    predicted = KMeansModel(estimator.cluster_centers_).predict(rows)
    assert predicted.dtype == np.intp
    np.testing.assert_array_equal(predicted, estimator.predict(rows))


def test_cost_is_the_inertia_of_scikit_learn(fitted):
    rows, estimator = fitted
    cost = KMeansModel(estimator.cluster_centers_).cost(rows)
    assert type(cost) is float
    assert cost == pytest.approx(estimator.inertia_, rel=1e-10)


def test_cost_of_new_rows_is_the_negative_score_of_scikit_learn(fitted):
    rows, estimator = fitted
    assert KMeansModel(estimator.cluster_centers_).cost(rows[::3]) == pytest.approx(-estimator.score(rows[::3]))


def test_a_model_goes_through_its_arrays_unchanged(fitted):
    rows, estimator = fitted
    model = KMeansModel(estimator.cluster_centers_)
    arrays = model.to_arrays()
    again = KMeansModel.from_arrays([array.copy() for array in arrays])
    assert len(arrays) == 1
    assert type(again) is KMeansModel
    np.testing.assert_array_equal(again.cluster_centers_, model.cluster_centers_)
    np.testing.assert_array_equal(again.predict(rows), model.predict(rows))


@pytest.mark.parametrize("arrays", [[], [CENTERS, CENTERS]], ids=len)
def test_a_model_is_made_of_exactly_one_array(arrays):
    with pytest.raises(ValueError, match="unpack"):
        KMeansModel.from_arrays(arrays)


def test_a_model_knows_how_many_clusters_it_has():
    model = KMeansModel(CENTERS.tolist())
    assert model.n_clusters == 2
    assert repr(model) == "KMeansModel(2 centers of 3 columns)"
    assert isinstance(model, Model)


@pytest.mark.parametrize("method", ["predict", "cost"])
def test_rows_of_another_width_are_refused_in_one_sentence(method):
    sentence = r"^rows: 2 columns where the cluster centers have 3; give the columns the model was made from\.$"
    with pytest.raises(ValueError, match=sentence):
        getattr(KMeansModel(CENTERS), method)(np.ones((4, 2)))


@pytest.mark.parametrize("method", ["predict", "cost"])
def test_rows_with_nan_are_refused_by_row_and_column(method):
    rows = np.ones((4, 3))
    rows[1, 2] = np.nan
    with pytest.raises(ValueError, match=r"^rows: row 1, column 2 is NaN; fill it in or drop the row\.$"):
        getattr(KMeansModel(CENTERS), method)(rows)


def test_a_single_row_has_to_be_two_dimensional():
    with pytest.raises(ValueError, match=r"^rows: the rows have shape \(3,\); give two dimensions"):
        KMeansModel(CENTERS).predict(np.ones(3))
    np.testing.assert_array_equal(KMeansModel(CENTERS).predict([[4, 4, 4]]), [1])


@pytest.mark.parametrize(
    ("centers", "start"),
    [
        ([[1.0, np.nan]], "cluster_centers: row 0, column 1 is NaN;"),
        ([[1.0, 0.0], [np.inf, 1.0]], "cluster_centers: row 1, column 0 is infinite;"),
        (np.ones(3), r"cluster_centers: the rows have shape \(3,\);"),
        (np.empty((0, 3)), "cluster_centers has no rows;"),
    ],
    ids=["nan", "infinite", "flat", "empty"],
)
def test_centers_that_cannot_be_right_are_refused(centers, start):
    with pytest.raises(ValueError, match=f"^{start}"):
        KMeansModel(centers)
