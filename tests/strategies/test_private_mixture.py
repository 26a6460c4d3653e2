"""PrivateMixture: scikit-learn's EM without noise; near it with noise; and each step by itself."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

import flower_fedclust as fc
from flower_fedclust import authoring
from flower_fedclust.engine.rounds import SURE_OF_GAIN
from flower_fedclust.models import MixtureModel
from flower_fedclust.strategies import private_mixture
from flower_fedclust.strategies.common import mixture_search
from flower_fedclust.strategies.common.mixture_fit import (
    Mixture,
    Seen,
    averaged,
    fitted,
    normals_for,
    tied_mixture,
)
from flower_fedclust.strategies.common.mixture_search import MixtureSearch
from flower_fedclust.strategies.common.private_search import Space, Units
from flower_fedclust.strategies.private_mixture import PrivateMixture

K, D = 3, 2
MEANS = np.array([[0.0, 0.0], [5.0, 1.0], [-2.0, 5.0]])
FACTORS = np.array([[[0.5, 0.0], [0.0, 0.5]], [[1.5, 0.0], [1.0, 0.6]], [[0.8, 0.0], [-0.5, 1.2]]])


def drawn(n_rows, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(K, size=n_rows)
    return MEANS[labels] + np.einsum(
        "nab,nb->na", FACTORS[labels], rng.normal(size=(n_rows, D))
    ), labels


def run(rows, n_clusters=K, n_clients=3, seed=0, **parameters):
    strategy = PrivateMixture(n_clusters, random_state=seed, **parameters)
    return fc.simulate(strategy, np.array_split(rows, n_clients), seed=seed, progress=False)


@pytest.mark.parametrize("structure", ["full", "diag", "spherical", "tied"])
def test_without_noise_it_is_scikit_learn_from_the_same_start(structure, monkeypatch):
    rows, _ = drawn(600)
    starts = []

    def kept(*args):
        starts.append(tied_mixture(*args))
        return starts[-1]

    monkeypatch.setattr(private_mixture, "tied_mixture", kept)
    result = run(rows, epsilon=None, covariance_type=structure)
    model = result.model
    assert result.traffic[-1].round < 100  # it has converged
    start = starts[0].as_structure(structure)
    origin = rows.mean(axis=0)
    covariances = start.covariances
    precisions = {
        "full": lambda: np.linalg.inv(covariances),
        "tied": lambda: np.linalg.inv(covariances[0]),
        "diag": lambda: 1 / covariances,
        "spherical": lambda: 1 / covariances[:, 0],
    }[structure]()
    options = {
        "weights_init": start.weights,
        "means_init": start.means + origin,
        "precisions_init": precisions,
    }
    pooled = GaussianMixture(
        K, covariance_type=structure, reg_covar=0, tol=1e-13, max_iter=2000, **options
    ).fit(rows)
    np.testing.assert_allclose(model.weights_, pooled.weights_, rtol=1e-6)
    np.testing.assert_allclose(model.means_, pooled.means_, rtol=1e-6, atol=1e-6)
    own = {"spherical": model.covariances_[:, 0], "tied": model.covariances_[0]}.get(
        structure, model.covariances_
    )
    np.testing.assert_allclose(own, pooled.covariances_, rtol=1e-6, atol=1e-6)


def test_em_that_does_not_converge_warns(monkeypatch):
    monkeypatch.setattr("flower_fedclust.strategies.private_mixture.N_EM_ROUNDS", 2)
    rows = np.random.default_rng(0).normal(size=(300, 2))
    with pytest.warns(RuntimeWarning, match="EM had not converged after 2 steps"):
        fc.simulate(fc.PrivateMixture(3, epsilon=None), [rows[:100], rows[100:]], seed=0)


@pytest.mark.long
def test_at_epsilon_1_it_keeps_nearly_all_of_the_gain():
    rows, _ = drawn(1200)
    test, labels = drawn(5000, seed=1)
    one, best = (GaussianMixture(k, n_init=3, random_state=0).fit(rows).score(test) for k in (1, K))
    for seed in range(2):
        model = run(rows, seed=seed, max_norm=15.0).model
        assert (best - model.score_samples(test).mean()) / (best - one) < 0.05
        assert adjusted_rand_score(labels, model.predict(test)) > 0.85
        assert (np.linalg.eigvalsh(model.covariances_) > 0).all()


def codes(result):
    return {doubt.code for doubt in result.doubts}


@pytest.mark.long
def test_components_that_vanish_in_noise_are_dropped_with_a_doubt(monkeypatch):
    monkeypatch.setattr(private_mixture, "LEAST_SHARE", 1.0)
    result = run(drawn(150)[0], n_clusters=8, max_norm=15.0, covariance_type="diag")
    assert result.model.n_clusters < 8
    assert [doubt.numbers["sought"] for doubt in result.doubts if doubt.code == "dropped"] == [8]


def test_the_heaviest_component_is_never_dropped():
    mixture = Mixture("full", np.array([0.5, 0.3, 0.2]), MEANS, FACTORS)
    found = mixture.without(np.array([True, False, True]))
    np.testing.assert_allclose(found.weights, [0.625, 0.375])
    np.testing.assert_array_equal(found.means, MEANS[:2])
    assert mixture.without(np.ones(3, dtype=bool)).means.tolist() == MEANS[:1].tolist()


@pytest.mark.parametrize("n_rows", [150, pytest.param(3000, marks=pytest.mark.long)])
def test_a_mixture_that_may_be_no_better_than_one_gaussian_says_so(n_rows):
    rows = np.random.default_rng(0).normal(size=(n_rows, 3))
    # In the run of 150 rows and seed 0, the noise raises the gain by 2.4 standard deviations.
    result = run(rows, n_clusters=3, max_norm=8.0)
    assert "one-gaussian" in codes(result)
    assert n_rows == 150 or "unstable" in codes(result)
    (doubt,) = (doubt for doubt in result.doubts if doubt.code == "one-gaussian")
    assert (
        doubt.numbers["mean"] - SURE_OF_GAIN * doubt.numbers["deviation"] <= doubt.numbers["hidden"]
    )


def test_a_clear_mixture_is_better_than_one_gaussian():
    assert not codes(run(drawn(6000)[0], max_norm=15.0)) & {"one-gaussian", "unstable", "dropped"}


@pytest.mark.long
def test_a_component_of_equal_values_does_not_hide_what_few_other_rows_lose():
    """A column of two values: components become so narrow that the rows of the rarer value have no density."""
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=4000), np.where(rng.random(4000) < 0.01, 3.0, 0.0)])
    result = run(rows, n_clusters=2, max_norm=8.0)
    one = GaussianMixture(1).fit(rows).score(rows)
    assert result.model.score_samples(rows).mean() > one or "one-gaussian" in codes(result)


@pytest.mark.parametrize("structure", ["full", "diag", "spherical", "tied"])
def test_the_gain_is_the_clipped_difference_of_two_log_densities(structure):
    rows, bound = drawn(200)[0], 1.5
    rows[0] = 25.0  # far from all components
    mixture = Mixture("full", np.array([0.5, 0.3, 0.2]), MEANS, FACTORS).as_structure(structure)
    one = tied_mixture(np.ones(1), np.ones((1, D)), 20 * np.eye(D), 0.0, 1e-3)
    told = (*mixture.arrays, *one.arrays, np.zeros((0, 0)))
    term = PrivateMixture(K).client_type.gain.function(
        authoring.Frame(np.zeros(D), 40.0).rows(rows), *told, bound=bound
    )
    of_mixture, of_one = (
        MixtureModel(m.weights, m.means, m.covariances, m.structure) for m in (mixture, one)
    )
    gains = of_mixture.score_samples(rows) - of_one.score_samples(rows)
    assert gains.max() > bound / 3
    assert gains.min() < -bound
    np.testing.assert_allclose(
        term.array.values, np.clip(gains, -bound, bound / 3).sum(), atol=1e-4
    )
    assert term.bound.l2 == bound


@pytest.mark.parametrize("structure", ["full", "diag", "spherical", "tied"])
def test_one_row_adds_at_most_the_bound_to_all_moments_together(structure):
    rng, bound = np.random.default_rng(1), 0.7
    strategy = PrivateMixture(K, max_norm=30.0)
    mixture = Mixture("full", np.full(K, 1 / K), MEANS, FACTORS).as_structure(structure)
    frame, told = (
        authoring.Frame(np.zeros(D), 30.0),
        {"structure": structure, "scale": 2.0, "bound": bound},
    )
    expectation = strategy.client_type.expectation.function
    for scale in (1e-3, 1.0, 1e3):
        for row in rng.normal(size=(20, 1, D)) * scale:
            term = expectation(frame.rows(row), *mixture.arrays, np.zeros((0, 0)), **told)
            assert np.linalg.norm(term.array.values) <= bound
            assert term.bound.l2 == bound
            # Nearly all of it is used: every row of this mixture has a longer vector.
            assert np.linalg.norm(term.array.values) > 0.99 * bound


@pytest.mark.long
@pytest.mark.parametrize("covariance_type", ["full", "auto", "spherical", "tied"])
def test_a_constant_column_and_rows_that_are_all_equal_give_positive_covariances(covariance_type):
    rows = drawn(300)[0]
    rows[:, 1] = 2.5
    for table in (rows, np.full((40, D), 1.5)):
        for epsilon in (None, 1.0, 1000.0):
            model = run(
                table, 2, epsilon=epsilon, covariance_type=covariance_type, max_norm=20.0
            ).model
            covariances = model.covariances_
            assert (
                (np.linalg.eigvalsh(covariances) if covariances.ndim == 3 else covariances) > 0
            ).all()
            assert np.isfinite(model.score_samples(table)).all()


def test_many_components_have_simpler_covariances_and_fewer_directions():
    space = Space(
        authoring.Frame(np.zeros(60), 1.0),
        1e4,
        Units(1e4),
        np.ones(60),
        np.eye(60),
        60,
        50,
        np.ones(50),
        60.0,
    )
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(50, 60))
    auto, full = (
        MixtureSearch(space, centers, np.ones(50), structures, rng)
        for structures in (private_mixture.AUTO, ("full",))
    )
    assert auto.structures == ("diag", "tied")
    assert len(auto.moment) > len(full.moment) > 1
    for search in (auto, full):
        sizes = 50, len(search.moment)
        assert mixture_search.n_numbers(search.structures[0], *sizes) <= mixture_search.MOST_NUMBERS


@pytest.mark.parametrize("n_columns", [501, pytest.param(3000, marks=pytest.mark.long)])
@pytest.mark.parametrize("epsilon", [1.0, pytest.param(100.0, marks=pytest.mark.long)])
def test_a_sketch_shows_few_directions_and_the_mixture_has_no_more(n_columns, epsilon):
    """With more than 500 columns, clients send a sketch, which may show only one direction."""
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=3000)
    centers = rng.normal(size=(5, n_columns))
    rows = centers[labels] + rng.normal(size=(3000, n_columns))
    max_norm = 3 * n_columns**0.5
    result = run(rows, 5, n_clients=2, epsilon=epsilon, max_norm=max_norm)
    found = result.model.predict(rows)
    if n_columns < 3000 or epsilon > 1:  # with 3,000 columns, noise at epsilon 1 hides the clusters
        assert adjusted_rand_score(labels, found) > (0.99 if epsilon > 1 else 0.8)


def test_in_many_columns_the_search_sees_steps_in_the_directions_of_the_mixture(monkeypatch):
    """The covariance of all columns of all centers would take 16 columns^2 k^2 bytes."""
    n_values, first = [], MixtureSearch.first

    def counted(search):
        n_values.append([len(seen.values) for seen in search.seen])
        return first(search)

    monkeypatch.setattr(MixtureSearch, "first", counted)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4, 600))[rng.integers(4, size=2000)] + rng.normal(size=(2000, 600))
    run(rows, 4, n_clients=2, epsilon=4.0, max_norm=60.0)
    assert n_values
    assert max(map(max, n_values)) < 2000


@pytest.mark.parametrize("n_known", [1, 3, 20])
def test_the_directions_of_a_mixture_are_those_of_centers_and_those_that_are_known(n_known):
    rng = np.random.default_rng(0)
    frame = authoring.Frame(np.zeros(60), 9.0)
    values, directions = np.full(n_known, 9.0), np.eye(60)[:, :n_known]
    space = Space(frame, 1e3, Units(1e3), values, directions, n_known, 1, np.full(1, 3.0), 200.0)
    search = MixtureSearch(
        space, rng.normal(size=(5, 60)), np.ones(5), private_mixture.AUTO[1:], rng
    )
    n_directions = min(4 + n_known, mixture_search.MOST_COLUMNS)
    assert search.directions.shape == (60, n_directions)
    assert search.normals.shape[2] == len(search.moment) == n_directions


def test_directions_hold_all_differences_of_centers():
    """Rows spread most in other directions, and noise hides those of the centers in the second moment."""
    rng = np.random.default_rng(0)
    values = np.concatenate([np.full(15, 9.0), np.full(15, 1.0)])
    space = Space(
        authoring.Frame(np.zeros(30), 9.0),
        1e3,
        Units(1e3),
        values,
        np.eye(30),
        15,
        15,
        np.full(15, 3.0),
        150.0,
        0.5,
    )
    centers = np.zeros((6, 30))
    centers[:, 15:] = rng.normal(size=(6, 15))
    search = MixtureSearch(space, centers, np.ones(6), private_mixture.AUTO, rng)
    assert search.directions.shape == (30, 12)
    apart = centers - centers.mean(axis=0)
    np.testing.assert_allclose(apart @ search.directions @ search.directions.T, apart, atol=1e-6)
    # The second moment is right in directions that are no eigenvectors.
    assert np.trace(search.moment) == pytest.approx(5 * 1.0 + 7 * 9.0, rel=0.05)
    rows = centers[rng.integers(6, size=200)] + 0.3 * rng.normal(size=(200, 30))
    labels = search.model(search.round()).predict(rows)
    np.testing.assert_array_equal(labels, authoring.KMeansModel(centers).predict(rows))


def test_a_second_moment_that_was_clipped_is_no_gaussian_to_be_better_than():
    """Where noise hides how far rows reach, they are clipped too near, and one Gaussian seems narrow."""
    rng, centers = np.random.default_rng(0), np.array([[2.0, 0.0], [-2.0, 0.0]])

    def hidden(variance):
        values = np.full(2, variance)
        space = Space(
            authoring.Frame(np.zeros(2), 9.0),
            1e4,
            Units(1e4),
            values,
            np.eye(2),
            2,
            2,
            values**0.5,
            2 * variance,
        )
        search = MixtureSearch(space, centers, np.ones(2), private_mixture.AUTO, rng)
        return search.hidden(search.round(), search.one_gaussian(search.round()))

    assert hidden(4.0) < 0.1
    assert hidden(0.5) > 1.0


@pytest.mark.long
@pytest.mark.parametrize("n_columns", [3, 20])
def test_components_are_round_where_noise_hides_covariances(n_columns):
    rng = np.random.default_rng(1)
    means = 4 * np.eye(4, n_columns)
    labels = rng.integers(4, size=500)
    rows = means[labels] + rng.normal(size=(500, n_columns))
    result = run(rows, 4, max_norm=16.0)
    model = result.model
    assert model.covariance_type_ == "spherical"
    np.testing.assert_array_equal(model.weights_, np.full(4, 0.25))
    np.testing.assert_array_equal(
        model.predict(rows), authoring.KMeansModel(model.means_).predict(rows)
    )
    is_better = model.score_samples(rows).mean() > GaussianMixture(1).fit(rows).score(rows)
    assert is_better or "one-gaussian" in codes(result)
    assert run(rows, 4, max_norm=16.0, covariance_type="diag").model.covariance_type_ == "diag"
    assert run(rows, 4, max_norm=16.0, epsilon=100.0).model.covariance_type_ != "spherical"


@pytest.mark.long
def test_many_small_clusters_are_those_of_k_means():
    """Fifteen components of 300 rows: starts from a k-means of noisy cells alone merged two of them in most runs."""
    rng = np.random.default_rng(2)
    means = 6.0 * np.stack(np.unravel_index(np.arange(15), (5, 3)), axis=1) + rng.normal(
        size=(15, 2)
    )
    labels = rng.integers(15, size=4500)
    rows = means[labels] + rng.normal(size=(4500, 2))
    indices = [
        adjusted_rand_score(labels, run(rows, 15, seed=s, max_norm=40.0).model.predict(rows))
        for s in range(2)
    ]
    assert min(indices) > 0.95


@pytest.mark.long
def test_the_number_of_components_can_be_chosen():
    rng = np.random.default_rng(3)
    means = 10 * np.eye(4)[:, :3]
    rows = means[rng.integers(4, size=4000)] + rng.normal(size=(4000, 3))
    result = run(rows, n_clusters=(2, 6), max_norm=30.0)
    assert result.number.chosen == result.model.n_clusters == 4


@pytest.mark.long
def test_clients_are_protected_and_the_components_are_found():
    rows, labels = drawn(6000)
    options = {"privacy_unit": "client", "rows_per_client": 20, "epsilon": 4.0, "max_norm": 15.0}
    result = run(rows, n_clients=300, **options)
    assert adjusted_rand_score(labels, result.model.predict(rows)) > 0.8


def test_many_columns_have_a_mixture_in_few_directions():
    rng = np.random.default_rng(4)
    means = np.zeros((2, 30))
    means[1, :2] = 6.0
    labels = rng.integers(2, size=4000)
    rows = means[labels] + rng.normal(size=(4000, 30))
    model = run(rows, n_clusters=2, max_norm=30.0).model
    assert model.covariances_.shape == (2, 30, 30)
    assert adjusted_rand_score(labels, model.predict(rows)) > 0.95
    assert np.isfinite(model.score_samples(rows)).all()


@pytest.mark.long
def test_directions_that_noise_hides_keep_the_variance_that_the_rows_have_there():
    """Correlated columns: most variance lies in three of 18 directions, and noise is larger than the others."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(850, 3)) @ rng.normal(size=(3, 18)) + 0.3 * rng.normal(size=(850, 18))
    rows /= rows.std(axis=0)
    columns = sum(
        GaussianMixture(1).fit(column[:, None]).score(column[:, None]) for column in rows.T
    )
    for seed in range(3):
        assert (
            run(rows, 4, max_norm=16.0, seed=seed).model.score_samples(rows).mean() > columns - 25
        )


def test_components_of_a_table_are_described_in_its_units():
    rows, _ = drawn(900)
    tables = [pd.DataFrame(part, columns=["a", "b"]) for part in np.array_split(rows, 3)]
    schema = "\n".join(
        f'[columns.{name}]\nkind = "number"\nbounds = [-8.0, 12.0]\n' for name in "ab"
    )
    strategy = fc.with_schema(PrivateMixture(K, random_state=0), schema, describe=True)
    result = fc.simulate(strategy, tables, seed=0, progress=False)
    assert result.clusters.n_clusters == K
    np.testing.assert_allclose(result.model.predict_proba(tables[0]).sum(axis=1), 1.0)
    assert np.isfinite(result.model.score_samples(tables[0])).all()


# The fit.


def test_the_fit_finds_the_mixture_behind_sums_without_noise():
    rng = np.random.default_rng(0)
    truth = Mixture("full", np.full(K, 1 / K), MEANS, FACTORS)
    rows, _ = drawn(5000)
    start = tied_mixture(np.ones(K), MEANS + 0.3, rows.T @ rows / len(rows), 0.3, 1e-3)
    normals = normals_for(K, D, 5000, rng)
    reference = start.as_structure("full")
    rows, weights = truth.drawn(normals)
    placed = authoring.Frame(np.zeros(D), 30.0).rows(rows)
    seen = Seen(weights @ reference.moments(placed), np.full(3 * 6, 1e-4), reference.moments)
    found, _, curvature = fitted(
        [seen], reference, reference, 0.45, 1e7, normals, 30.0, np.zeros((0, 0))
    )
    own, other = (
        MixtureModel(one.weights, one.means, one.covariances, "full") for one in (truth, found)
    )
    assert weights @ (own.score_samples(rows) - other.score_samples(rows)) < 0.1  # from 12
    # A component is wider the less certain it is.
    sizes = [
        np.linalg.det(averaged(found, certainty * curvature, rng).covariances)
        for certainty in (1e4, 1.0, 0.1)
    ]
    np.testing.assert_allclose(sizes[0], np.linalg.det(found.covariances), rtol=1e-2)
    assert (np.diff(sizes, axis=0) > 0).all()
