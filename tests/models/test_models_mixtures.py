"""MixtureModel: memberships and densities as scikit-learn has them."""

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from flower_fedclust.exact.grid import rows_onto_grid
from flower_fedclust.models import MixtureModel, Model

ROWS = np.random.default_rng(1).normal(size=(300, 3)) @ np.diag([1.0, 2.0, 0.5])
ROWS[150:] += [3.0, 0.0, 1.0]


def both(covariance_type):
    fitted = GaussianMixture(2, covariance_type=covariance_type, random_state=0).fit(ROWS)
    covariances = fitted.covariances_
    if covariance_type == "tied":
        covariances = np.array([covariances] * 2)
    if covariance_type == "spherical":
        covariances = np.repeat(covariances[:, None], 3, axis=1)
    return fitted, MixtureModel(fitted.weights_, fitted.means_, covariances, covariance_type)


@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical", "tied"])
def test_predictions_are_those_of_scikit_learn(covariance_type, tmp_path):
    fitted, model = both(covariance_type)
    model.save(tmp_path)
    for one in (model, Model.load(tmp_path)):
        np.testing.assert_allclose(one.predict_proba(ROWS), fitted.predict_proba(ROWS), atol=1e-9)
        np.testing.assert_allclose(one.score_samples(ROWS), fitted.score_samples(ROWS))
        assert np.array_equal(one.predict(ROWS), fitted.predict(ROWS))
        assert one.covariance_type_ == covariance_type
    on_grid, exponent = rows_onto_grid(ROWS, np.zeros(3), 20.0)
    assert (model.exact_clusters(on_grid, exponent) == fitted.predict(ROWS)).mean() > 0.99
    assert model.cost(ROWS) == pytest.approx(
        ((ROWS - fitted.means_[fitted.predict(ROWS)]) ** 2).sum()
    )


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("weights", [0.5, 0.6]),
        ("weights", [1.0, 0.0]),
        ("covariances", -np.ones((2, 3))),
        ("covariances", np.ones((2, 3, 3))),
    ],
)
def test_an_impossible_mixture_is_refused(part, value):
    given = {"weights": [0.5, 0.5], "means": np.zeros((2, 3)), "covariances": np.ones((2, 3))} | {
        part: value
    }
    with pytest.raises(ValueError, match=part):
        MixtureModel(**given, covariance_type="diag")
