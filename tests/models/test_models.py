"""What every model does, whatever it is."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from tested import PAPERS

import flower_fedclust as fc
from flower_fedclust.models import (
    FactorModel,
    KMeansModel,
    MapModel,
    Model,
    PrototypeModel,
    SpectralModel,
)

RNG = np.random.default_rng(4)
ROWS = np.abs(RNG.normal(size=(40, 3))) * 2
POINTS = RNG.normal(size=(5, 3)) * 2
CENTERS = RNG.normal(size=(4, 2))
PLACES = RNG.normal(size=(5, 2)) * 10
CLUSTERS = np.array([2, 0, 2, 1, 0])
FULL = (lambda root: root @ root.transpose(0, 2, 1) + 0.2 * np.eye(3))(RNG.normal(size=(5, 3, 3)))
LAYERS = [RNG.normal(size=shape) for shape in ((3, 7), (7,), (7, 2), (2,))]
DISTANCES = np.linalg.norm(POINTS[:, None] - POINTS, axis=2)
DIRECTIONS = np.linalg.qr(RNG.normal(size=(3, 3)))[0]

#: Each way to make a model from copies of arrays, and what it says that it is.
MODELS = {
    "k-means": (lambda: KMeansModel(POINTS.copy()), "KMeansModel(5 centers of 3 columns)"),
    "factors": (
        lambda: FactorModel(np.abs(POINTS), rho=0.3, mu_h=0.01),
        "FactorModel(5 components of 3 columns)",
    ),
    "factors about an origin": (
        lambda: FactorModel(
            np.column_stack([POINTS, np.arange(5.0) - 1]), [0.0, 1.0, 2.0, 0.5], rho=0.3
        ),
        "FactorModel(5 components of 3 columns)",
    ),
    "map": (
        lambda: MapModel("tsne", POINTS, PLACES, CENTERS, n_neighbors=2.0),
        "MapModel(tsne, 5 points, 4 clusters)",
    ),
    "map of rows": (
        lambda: MapModel(
            "umap", POINTS, PLACES, CENTERS, n_neighbors=3.0, min_dist=0.2, distances=DISTANCES
        ),
        "MapModel(umap, 5 points, 4 clusters)",
    ),
    "map of reduced rows": (
        lambda: MapModel(
            "tsne",
            POINTS,
            PLACES,
            CENTERS,
            n_neighbors=2.0,
            origin=np.arange(3.0),
            directions=DIRECTIONS,
        ),
        "MapModel(tsne, 5 points, 4 clusters)",
    ),
    "nearest prototypes": (
        lambda: PrototypeModel(POINTS, CLUSTERS, 3),
        "PrototypeModel(3 clusters, 5 prototypes of 3 columns)",
    ),
    "Gaussian prototypes": (
        lambda: PrototypeModel(POINTS, CLUSTERS, 3, covariances=FULL, counts=np.arange(1, 6)),
        "PrototypeModel(3 clusters, 5 prototypes of 3 columns)",
    ),
    "spectral": (
        lambda: SpectralModel(POINTS, 1.7, PLACES, CENTERS),
        "SpectralModel(4 clusters, 5 atoms of 3 columns)",
    ),
}
if PAPERS:
    from flower_fedclust_papers.encoded_model import EncodedModel
    from flower_fedclust_papers.subspace_model import SubspaceModel

    MODELS = {
        "encoded": (
            lambda: EncodedModel(
                [layer.copy() for layer in LAYERS],
                CENTERS,
                origin=np.arange(3.0),
                scale=np.arange(1, 4),
                activation="tanh",
            ),
            "EncodedModel(4 clusters, tanh encoder 3-7-2)",
        ),
        "subspaces": (
            lambda: SubspaceModel([DIRECTIONS[:1], DIRECTIONS[1:], np.empty((0, 3))]),
            "SubspaceModel(3 subspaces of 1, 2, 0 dimensions in 3 columns)",
        ),
    }
SAME_PLACES = {"rtol": 0, "atol": 1e-6}


@pytest.fixture(params=MODELS)
def kind(request):
    return request.param


@pytest.fixture
def model(kind):
    return MODELS[kind][0]()


def test_a_model_goes_through_its_arrays_unchanged(model):
    arrays = model.to_arrays()
    assert all(array.dtype == np.float64 for array in arrays)
    again = type(model).from_arrays([array.copy() for array in arrays])
    assert all(map(np.array_equal, again.to_arrays(), arrays))
    assert np.array_equal(again.predict(ROWS), model.predict(ROWS))
    assert again.cost(ROWS) == model.cost(ROWS)
    assert again.stays_with_server == model.stays_with_server


def test_a_model_is_saved_and_loaded(model, tmp_path):
    model.save(tmp_path)
    again = Model.load(tmp_path)
    assert type(again) is type(model) is Model.named(model.name)
    assert np.array_equal(again.predict(ROWS), model.predict(ROWS))


def test_another_number_of_arrays_is_refused(model):
    for n_arrays in (0, *([] if model.name == "subspaces" else [len(model.to_arrays()) + 1])):
        with pytest.raises(ValueError):  # noqa: PT011  Python's own, from unpacking
            type(model).from_arrays((model.to_arrays() * 2)[:n_arrays])


def test_clusters_and_cost_do_not_depend_on_the_other_rows(model, monkeypatch):
    found = model.cluster(ROWS)
    assert (found.labels.dtype, type(found.cost)) == (np.intp, float)
    assert set(found.labels) <= set(range(model.n_clusters))
    monkeypatch.setattr("flower_fedclust.models.base.CLUSTERED_ENTRIES", 30)
    assert np.array_equal(model.predict(ROWS), found.labels)
    assert model.cost(ROWS) == pytest.approx(found.cost, rel=1e-4)
    assert [int(model.predict(row[None])[0]) for row in ROWS] == found.labels.tolist()


def test_no_array_of_all_rows_and_clusters_is_made(monkeypatch):
    monkeypatch.setattr("flower_fedclust.models.base.CLUSTERED_ENTRIES", 100_000)
    model, rows = KMeansModel(RNG.normal(size=(400, 3))), RNG.normal(size=(20_000, 3))
    tracemalloc.start()
    model.predict(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000 * 400 * 8 / 8


def test_a_model_says_what_it_is(model, kind):
    assert repr(model) == MODELS[kind][1]
    # result.save() writes centers.csv from cluster_centers_, so only centers among the rows may have this name.
    assert hasattr(model, "cluster_centers_") == (kind == "k-means")


def test_a_model_does_not_change_with_the_arrays_it_was_made_from(kind):
    given = [POINTS, PLACES, CENTERS, FULL, DIRECTIONS, CLUSTERS, *LAYERS]
    kept = [array.copy() for array in given]
    model = MODELS[kind][0]()
    before = model.predict(ROWS)
    try:
        for array in given:
            array[:] = 0
        assert np.array_equal(model.predict(ROWS), before)
    finally:
        for array, former in zip(given, kept, strict=True):
            array[:] = former


def test_rows_of_another_width_or_with_gaps_are_refused(model):
    gap = np.where(np.arange(12).reshape(4, 3) == 5, np.nan, 1.0)
    methods = [
        name
        for name in ("predict", "cost", "cluster", "transform", "embed", "encode")
        if hasattr(model, name)
    ]
    for method in methods:
        with pytest.raises(ValueError, match=r"^rows: 2 columns"):
            getattr(model, method)(np.ones((4, 2)))
        with pytest.raises(ValueError, match=r"^rows: row 1, column 2 is NaN"):
            getattr(model, method)(gap)
    with pytest.raises(ValueError, match=r"^rows"):
        model.predict(np.ones(3))


INVALID = {
    KMeansModel: (
        {"cluster_centers": POINTS},
        [
            ("cluster_centers", [[1.0, np.nan]]),
            ("cluster_centers", [[np.inf, 1.0]]),
            ("cluster_centers", np.ones(3)),
            ("cluster_centers", np.empty((0, 3))),
        ],
    ),
    FactorModel: (
        {"components": POINTS},
        [
            ("components", np.ones(2)),
            ("origin", np.ones(2)),
            ("origin", [0.0, np.nan, 0.0]),
            ("rho", -0.1),
            ("mu_h", np.nan),
        ],
    ),
    MapModel: (
        {
            "method": "tsne",
            "landmarks": POINTS,
            "coordinates": PLACES,
            "cluster_centers": CENTERS,
            "n_neighbors": 3.0,
        },
        [
            ("method", "pca"),
            ("landmarks", [[1.0, np.nan]]),
            ("coordinates", [[np.inf, 1.0]]),
            ("coordinates", PLACES[:4]),
            ("cluster_centers", np.empty((0, 2))),
            ("n_neighbors", 0.0),
            ("min_dist", -0.1),
            ("distances", [[np.nan]]),
            ("directions", np.ones(3)),
            ("origin", np.ones(3)),
        ],
    ),
    PrototypeModel: (
        {"means": POINTS, "clusters": CLUSTERS, "n_clusters": 3},
        [
            ("means", [[1.0, np.nan]]),
            ("n_clusters", 0),
            ("n_clusters", 2.0),
            ("clusters", [0, 1]),
            ("counts", np.ones(4)),
            ("clusters", [0, 1, 2, 3, 0]),
            ("clusters", [0, 1, 2, -1, 0]),
            ("covariances", np.ones((5, 2))),
            ("covariances", np.full((5, 3), np.nan)),
            ("counts", [1, 1, 0, 1, 1]),
            ("counts", [1, 1, np.nan, 1, 1]),
        ],
    ),
    SpectralModel: (
        {"dictionary": POINTS, "bandwidth": 1.7, "projection": PLACES, "cluster_centers": CENTERS},
        [
            ("dictionary", [[1.0, np.nan]]),
            ("bandwidth", 0.0),
            ("projection", [[np.inf, 1.0]]),
            ("cluster_centers", [1.0]),
        ],
    ),
}
if PAPERS:
    INVALID = {
        EncodedModel: (
            {"layers": LAYERS, "cluster_centers": CENTERS},
            [
                ("layers", []),
                ("layers", LAYERS[:3]),
                ("layers", [*LAYERS[:2], LAYERS[0], LAYERS[1]]),
                ("layers", [LAYERS[0], LAYERS[3]]),
                ("layers", [LAYERS[0], np.full(7, np.nan)]),
                ("cluster_centers", CENTERS[:, :1]),
                ("activation", "sine"),
                ("origin", [0.0]),
                ("origin", [0.0, np.inf, 0.0]),
                ("scale", [1.0, 1.0, 0.0]),
            ],
        ),
        SubspaceModel: (
            {},
            [
                ("bases", []),
                ("bases", [np.empty((0, 3))]),
                ("bases", [np.eye(3), np.eye(2)]),
                ("bases", [np.ones((2, 3))]),
                ("bases", [np.eye(3), np.full((1, 3), np.nan)]),
            ],
        ),
    }


@pytest.mark.parametrize(
    ("made", "name", "value"),
    [(made, name, value) for made, (_, bad) in INVALID.items() for name, value in bad],
)
def test_an_invalid_argument_is_named(made, name, value):
    with pytest.raises(
        ValueError, match=rf"\b({name}|{name[:-1]}|means)\b" if name != "bases" else "bas[ie]s"
    ):
        made(**INVALID[made][0] | {name: value})


@pytest.mark.parametrize(
    "schema", [None, {"columns": {"a": {"kind": "number"}, "b": {"kind": "number"}}}]
)
def test_one_row_may_be_a_mapping_or_a_series_and_other_columns_are_named_and_not_used(schema):
    table = pd.DataFrame({"a": np.arange(12.0), "b": np.tile([1.0, 5.0], 6)})
    model = fc.simulate(
        fc.FederatedKMeans(2), {"n": table[:6], "s": table[6:]}, schema=schema, seed=0
    ).model
    expected = model.predict(table)
    for index, row in table.iterrows():
        for one in (row, row[["b", "a"]], dict(row), [dict(row)]):
            assert model.predict(one).tolist() == [expected[index]]
    with pytest.warns(UserWarning, match=r"does not know; they are not used: 'site', 'day'"):
        assert np.array_equal(model.predict(table.assign(site="n", day=1)), expected)
    with pytest.raises(ValueError, match="'b'"):
        model.predict(table[["a"]])
