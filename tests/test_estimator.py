import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import flower_fedclust as fc
from flower_fedclust.estimator import FederatedClustering

RNG = np.random.default_rng(5)
ROWS = np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], 20, axis=0) + RNG.normal(size=(60, 2))
SITES = np.array(["north", "south", "west"])[RNG.integers(3, size=60)]
TABLE = pd.DataFrame(ROWS, columns=["age", "dose"])


class InThreeGroups(FederatedClustering):
    """scikit-learn's checks know of no groups."""

    def fit(self, X, y=None):
        return super().fit(
            X, y, groups=np.arange(len(X) if hasattr(X, "__len__") else X.shape[0]) % 3
        )


@parametrize_with_checks([InThreeGroups(fc.KFED(3), seed=0)])
def test_scikit_learns_own_checks_pass(estimator, check):
    check(estimator)


def test_it_finds_what_simulate_finds_in_the_order_of_the_rows():
    fitted = fc.as_estimator(fc.FederatedKMeans(3), seed=0).fit(TABLE, groups=SITES)
    names = sorted(set(SITES))
    tables = {name: TABLE[name == SITES] for name in names}
    result = fc.simulate(fc.FederatedKMeans(3), tables, seed=0)
    for name, labels in zip(names, result.labels_of_clients, strict=True):
        assert fitted.labels_[name == SITES].tolist() == labels.tolist()
    assert fitted.result_.names == names
    assert np.array_equal(fitted.predict(TABLE[["dose", "age"]]), fitted.labels_)
    distances = fitted.transform(TABLE)
    assert np.allclose(
        distances, np.linalg.norm(ROWS[:, None] - fitted.model_.cluster_centers_, axis=2)
    )
    assert np.array_equal(distances.argmin(axis=1), fitted.labels_)
    with pytest.raises(ValueError, match=r"'dose'.*'dosis'"):
        fitted.predict(TABLE.rename(columns={"dose": "dosis"}))


def test_it_works_in_a_pipeline_and_in_a_search():
    pipeline = make_pipeline(StandardScaler(), fc.as_estimator(fc.FederatedKMeans(2), seed=0))
    labels = pipeline.fit(ROWS, federatedclustering__groups=SITES)[-1].labels_
    assert np.array_equal(pipeline.predict(ROWS), labels)
    with sklearn.config_context(enable_metadata_routing=True):
        search = GridSearchCV(pipeline, {"federatedclustering__strategy__n_clusters": [2, 3]}, cv=3)
        order = RNG.permutation(60)
        search.fit(ROWS[order], groups=SITES[order])
    assert search.best_params_ == {"federatedclustering__strategy__n_clusters": 3}
    assert set(search.best_estimator_[-1].result_.names) == {"north", "south", "west"}


def test_groups_are_needed():
    with pytest.raises(ValueError, match="groups is missing"):
        fc.as_estimator(fc.FederatedKMeans(3)).fit(ROWS)


def test_a_fit_changes_no_parameter():
    estimator = fc.as_estimator(fc.FederatedKMeans(3), seed=0).fit(ROWS, groups=SITES)
    assert estimator.strategy.min_clients is None
    assert clone(estimator).get_params()["strategy__n_clusters"] == 3
    with pytest.raises(fc.DataError, match="groups"):
        estimator.fit(pd.DataFrame(ROWS), groups=pd.Series(SITES)[::-1])
    with pytest.raises(ValueError, match="groups"):
        estimator.fit(ROWS, groups=["a", "b"])
    with pytest.raises(ValueError, match="groups: row 1"):
        estimator.fit(ROWS, groups=np.where(np.arange(60) == 1, np.nan, 2))


def test_the_number_of_clusters_may_be_a_range():
    strategy = fc.PrivateKMeans((2, 4), epsilon=50.0, max_norm=15.0)
    assert fc.as_estimator(strategy, seed=0).fit(ROWS, groups=SITES).model_.n_clusters in (2, 3, 4)


def test_a_schema_takes_tables_with_text():
    table = TABLE.assign(kind=np.array(["x", "y"])[RNG.integers(2, size=60)])
    schema = {
        "columns": {
            "kind": {"kind": "category", "categories": ["x", "y"]},
            "age": {"kind": "number", "bounds": [-5, 15]},
            "dose": {"kind": "number", "bounds": [-5, 15]},
        }
    }
    fitted = fc.as_estimator(fc.FederatedKMeans(3), schema=schema, seed=0).fit(table, groups=SITES)
    assert np.array_equal(fitted.predict(table[["kind", "dose", "age"]]), fitted.labels_)
    assert np.array_equal(fitted.transform(table).argmin(axis=1), fitted.labels_)
    with pytest.raises(ValueError, match="X has no column names"):
        fitted.predict(ROWS)
    maps = fc.as_estimator(fc.FedTSNESums(3), seed=0).fit(ROWS, groups=SITES)
    assert maps.transform(ROWS).shape == (60, 2)


def test_set_output_gives_tables_with_names():
    estimator = fc.as_estimator(fc.FederatedKMeans(3), seed=0).fit(TABLE, groups=SITES)
    plain, index = estimator.transform(TABLE), np.arange(60)[::-1]
    framed = (
        clone(estimator.set_output(transform="pandas"))
        .fit(TABLE, groups=SITES)
        .transform(TABLE.set_index(index))
    )
    assert list(framed.columns) == list(estimator.get_feature_names_out())
    assert list(framed.index) == list(index)
    np.testing.assert_array_equal(framed.to_numpy(), plain)
    assert estimator.set_output(transform="polars").transform(TABLE).columns == list(framed.columns)
    assert isinstance(estimator.set_output(transform="default").transform(TABLE), np.ndarray)
    with pytest.raises(ValueError, match="transform"):
        estimator.set_output(transform="table")
