import numpy as np
import pytest

from flower_fedclust.exact.factorization import Penalties, membership_steps, memberships_of
from flower_fedclust.models import FactorModel

RNG = np.random.default_rng(4)
COMPONENTS = np.abs(RNG.normal(size=(3, 5)))
ROWS = np.abs(RNG.normal(size=(60, 5))) * 2
RHO, MU_H = 0.3, 0.01


@pytest.fixture
def model():
    return FactorModel(COMPONENTS, rho=RHO, mu_h=MU_H)


def test_memberships_are_found_with_the_penalties_of_the_model(model):
    found = model.memberships(ROWS)
    assert (found >= 0).all()
    assert np.array_equal(found, memberships_of(ROWS, COMPONENTS, Penalties(RHO, MU_H)))
    assert not np.allclose(found, FactorModel(COMPONENTS).memberships(ROWS), rtol=1e-2)


@pytest.mark.parametrize(("rho", "mu_h"), [(0.0, 0.0), (RHO, MU_H), (2.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("scale", [1.0, 1e-5, 1e5])
def test_memberships_are_stationary(rho, mu_h, scale):
    model = FactorModel(COMPONENTS * scale, rho=rho * scale**2, mu_h=mu_h * scale**2)
    found = model.memberships(ROWS * scale)
    moved = np.abs(
        membership_steps(ROWS * scale, found, model.components_, model.penalties, 1) - found
    )
    assert (moved.max(axis=1) <= 1e-4 * found.max(axis=1)).all()


def test_the_cluster_has_the_largest_membership_and_the_cost_is_the_remainder(model):
    memberships = model.memberships(ROWS)
    assert model.predict(ROWS).tolist() == memberships.argmax(axis=1).tolist()
    assert set(model.predict(ROWS)) == {0, 1, 2}
    assert model.cost(ROWS) == pytest.approx(((ROWS - memberships @ COMPONENTS) ** 2).sum())


def test_clusters_are_directions_from_the_origin(model):
    for length in (1e-6, 1.0, 1e6):
        assert model.predict(COMPONENTS * length).tolist() == [0, 1, 2]


def test_a_row_that_belongs_to_nothing_still_has_a_cluster(model):
    nothing = np.array([[0.0] * 5, [-1.0] * 5])
    assert not model.memberships(nothing).any()
    assert model.predict(nothing).tolist() == [0, 0]
    assert model.cost(nothing) == pytest.approx(5.0)


def test_about_an_origin_a_row_is_the_row_with_one_more_coordinate():
    origin, components = np.array([5.0, 1, 0, 2, 3, 0.7]), np.abs(RNG.normal(1.0, size=(3, 6)))
    about, plain = (
        FactorModel(components, origin, rho=RHO, mu_h=MU_H),
        FactorModel(components, rho=RHO, mu_h=MU_H),
    )
    rows = origin[:5] + ROWS - 1
    same = np.column_stack([rows - origin[:5], np.full(60, 0.7)])
    assert np.array_equal(about.memberships(rows), plain.memberships(same))
    assert np.array_equal(about.predict(rows), plain.predict(same))
    assert about.cost(rows) == plain.cost(same)
    # The ray through a component meets the rows' plane in its point.
    components[:, -1] = 1.0
    about = FactorModel(components, origin)
    along = components * 0.7
    np.testing.assert_allclose(about.cluster_points - origin[:5], along[:, :5], rtol=1e-9)
