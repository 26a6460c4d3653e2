import numpy as np
import pytest

from flower_fedclust.exact.factorisation import Penalties, membership_steps, memberships_of
from flower_fedclust.models import FactorModel, Model

RNG = np.random.default_rng(4)
CENTERS = np.abs(RNG.normal(size=(3, 5)))
ROWS = np.abs(RNG.normal(size=(60, 5))) * 2
RHO, MU_H = 0.3, 0.01


@pytest.fixture
def model():
    return FactorModel(CENTERS, rho=RHO, mu_h=MU_H)


def test_memberships_are_those_of_the_factorisation_with_the_penalties_of_the_model(model):
    found = model.memberships(ROWS)
    assert found.shape == (60, 3)
    assert (found >= 0).all()
    assert np.array_equal(found, memberships_of(ROWS, CENTERS, Penalties(RHO, MU_H)))
    assert not np.allclose(found, FactorModel(CENTERS).memberships(ROWS), rtol=1e-2)


@pytest.mark.parametrize(("rho", "mu_h"), [(0.0, 0.0), (RHO, MU_H), (2.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("scale", [1.0, 1e-5, 1e5])
def test_memberships_are_stationary(rho, mu_h, scale):
    model = FactorModel(CENTERS * scale, rho=rho * scale**2, mu_h=mu_h * scale**2)
    found = model.memberships(ROWS * scale)
    moved = np.abs(membership_steps(ROWS * scale, found, model.components_, model.penalties, 1) - found)
    assert (moved.max(axis=1) <= 1e-4 * found.max(axis=1)).all()


def test_cluster_is_the_one_to_which_a_row_belongs_most(model):
    predicted = model.predict(ROWS)
    assert predicted.dtype == np.intp
    assert predicted.tolist() == [int(np.argmax(h)) for h in model.memberships(ROWS)]
    assert set(predicted) == {0, 1, 2}


def test_row_on_the_ray_of_a_center_is_in_its_cluster(model):
    for length in (1e-6, 1.0, 1e6):
        assert model.predict(CENTERS * length).tolist() == [0, 1, 2]


def test_clusters_are_directions_from_the_origin_so_that_two_on_one_ray_are_one():
    predicted = FactorModel([[1.0, 0.0], [0.0, 1.0]]).predict([[1.0, 0.1], [50.0, 5.0]])
    assert predicted[0] == predicted[1]


def test_cost_is_what_the_factorisation_leaves(model):
    expected = sum(float(np.sum((x - h @ CENTERS) ** 2)) for x, h in zip(ROWS, model.memberships(ROWS), strict=True))
    cost = model.cost(ROWS)
    assert type(cost) is float
    assert cost == pytest.approx(expected)
    assert model.cost(ROWS[:10]) + model.cost(ROWS[10:]) == pytest.approx(cost)


def test_label_of_a_row_does_not_depend_on_the_other_rows(model):
    together = model.predict(ROWS)
    assert [int(model.predict(row[None])[0]) for row in ROWS] == together.tolist()


def test_row_that_belongs_to_nothing_has_a_cluster_all_the_same(model):
    nothing = np.array([[0.0] * 5, [-1.0] * 5])
    assert not model.memberships(nothing).any()
    assert model.predict(nothing).tolist() == [0, 0]
    assert model.cost(nothing) == pytest.approx(5.0)


def test_model_goes_through_its_arrays_unchanged(model, tmp_path):
    np.savez(tmp_path / "model.npz", *model.to_arrays())
    with np.load(tmp_path / "model.npz") as stored:
        arrays = [stored[name] for name in stored.files]
    assert [array.shape for array in arrays] == [(3, 5), (2,)]
    assert all(array.dtype == np.float64 for array in arrays)
    again = FactorModel.from_arrays(arrays)
    assert type(again) is FactorModel
    assert again.penalties == model.penalties == Penalties(RHO, MU_H)
    assert np.array_equal(again.memberships(ROWS), model.memberships(ROWS))
    assert again.cost(ROWS) == model.cost(ROWS)


@pytest.mark.parametrize("n_arrays", [0, 1, 3])
def test_model_is_made_of_exactly_two_arrays(model, n_arrays):
    with pytest.raises(ValueError, match="unpack"):
        FactorModel.from_arrays((model.to_arrays() * 2)[:n_arrays])


def test_model_has_its_own_copy_of_the_centers():
    given = CENTERS.copy()
    model = FactorModel(given)
    given[:] = 0.0
    assert np.array_equal(model.components_, CENTERS)


def test_model_knows_how_many_clusters_it_has_and_says_what_it_is(model):
    assert model.n_clusters == 3
    assert repr(model) == "FactorModel(3 components of 5 columns)"
    assert isinstance(model, Model)


@pytest.mark.parametrize("method", ["memberships", "predict", "cost"])
def test_rows_of_another_width_are_refused_in_one_sentence(model, method):
    sentence = r"^rows: 2 columns where the components have 5; give the columns the model was made from\.$"
    with pytest.raises(ValueError, match=sentence):
        getattr(model, method)(np.ones((4, 2)))


@pytest.mark.parametrize("method", ["memberships", "predict", "cost"])
def test_rows_with_nan_are_refused_by_row_and_column(model, method):
    rows = np.ones((4, 5))
    rows[1, 2] = np.nan
    with pytest.raises(ValueError, match=r"^rows: row 1, column 2 is NaN; fill it in or drop the row\.$"):
        getattr(model, method)(rows)


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ({"components": [[1.0, np.nan]]}, "components: row 0, column 1 is NaN;"),
        ({"components": np.ones(2)}, r"components: the rows have shape \(2,\);"),
        ({"rho": -0.1}, "rho is -0.1; it must be a finite number at least 0"),
        ({"mu_h": float("nan")}, "mu_h is nan; it must be a finite number at least 0"),
    ],
)
def test_what_cannot_be_right_is_refused(arguments, start):
    with pytest.raises(ValueError, match=f"^{start}"):
        FactorModel(**({"components": CENTERS} | arguments))
