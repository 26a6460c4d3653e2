import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.neural_network import MLPRegressor

from flower_fedclust.models import EncodedModel, Model
from flower_fedclust.numerics import blocks

ROWS = load_iris().data
RNG = np.random.default_rng(0)
LAYERS = [RNG.normal(size=shape) for shape in ((4, 7), (7,), (7, 5), (5,), (5, 3), (3,))]
CENTERS = RNG.normal(size=(6, 3))


def model(**options):
    return EncodedModel(LAYERS, CENTERS, **options)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_codes_are_the_outputs_of_scikit_learns_network(activation):
    network = MLPRegressor(hidden_layer_sizes=(7, 5), activation=activation, max_iter=5, random_state=0)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        network.fit(ROWS, ROWS[:, :3])
    layers = [one for pair in zip(network.coefs_, network.intercepts_, strict=True) for one in pair]
    codes = EncodedModel(layers, CENTERS, activation=activation).encode(ROWS)
    np.testing.assert_allclose(codes, network.predict(ROWS), rtol=1e-12)


def test_last_layer_is_linear_and_may_be_the_only_one():
    codes = EncodedModel(LAYERS[4:], CENTERS, origin=np.ones(5), scale=np.arange(1.0, 6.0)).encode(
        np.full((2, 5), -3.0)
    )
    np.testing.assert_allclose(codes, (np.full((2, 5), -4.0) / np.arange(1.0, 6.0)) @ LAYERS[4] + LAYERS[5])


def test_origin_and_scale_of_the_columns_come_first():
    origin, scale = ROWS.mean(axis=0), ROWS.std(axis=0)
    codes = model(origin=origin, scale=scale).encode(ROWS)
    np.testing.assert_array_equal(codes, model().encode((ROWS - origin) / scale))


def test_cluster_is_that_of_the_nearest_center_and_the_cost_its_squared_distance():
    distances = ((model().encode(ROWS)[:, None] - CENTERS) ** 2).sum(axis=2)
    labels = model().predict(ROWS)
    assert labels.dtype == np.intp
    np.testing.assert_array_equal(labels, distances.argmin(axis=1))
    assert model().cost(ROWS) == pytest.approx(distances.min(axis=1).sum(), rel=1e-12)
    assert type(model().cost(ROWS)) is float


def test_blocks_of_rows_change_nothing(monkeypatch):
    whole = model().encode(ROWS)
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", 30)
    np.testing.assert_allclose(model().encode(ROWS), whole, rtol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_model_goes_through_its_arrays_unchanged(activation):
    first = model(activation=activation, origin=np.arange(4.0), scale=np.arange(1.0, 5.0))
    again = EncodedModel.from_arrays([array.copy() for array in first.to_arrays()])
    assert type(again) is EncodedModel
    assert again.activation == activation
    np.testing.assert_array_equal(again.encode(ROWS), first.encode(ROWS))
    np.testing.assert_array_equal(again.predict(ROWS), first.predict(ROWS))


def test_a_model_says_what_it_is():
    assert isinstance(model(), Model)
    assert model().n_clusters == 6
    assert repr(model()) == "EncodedModel(6 clusters, relu encoder 4-7-5-3)"


def test_a_model_does_not_change_with_the_arrays_it_was_made_from():
    layers = [one.copy() for one in LAYERS]
    made = EncodedModel(layers, CENTERS)
    before = made.encode(ROWS)
    layers[0][:] = 0.0
    np.testing.assert_array_equal(made.encode(ROWS), before)


def test_importing_predicting_and_a_run_of_spp_fgc_need_no_torch():
    code = (
        "import sys, numpy as np\n"
        "import flower_fedclust, flower_fedclust.networks.deep_clustering\n"
        "import flower_fedclust.strategies.baselines.ppfc_gan\n"
        "from flower_fedclust.models import EncodedModel\n"
        "rows = [np.random.default_rng(i).normal(size=(9, 2)) for i in range(2)]\n"
        "print(flower_fedclust.simulate(flower_fedclust.SPPFGC(2), rows).model.n_clusters)\n"
        "print(EncodedModel([np.eye(2), np.zeros(2)], np.eye(2)).predict(np.eye(2)), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n[0 1] False\n"


@pytest.mark.parametrize("method", ["encode", "predict", "cost"])
def test_rows_that_cannot_be_right_are_refused_in_one_sentence(method):
    with pytest.raises(ValueError, match=r"^rows: 3 columns where the encoder takes 4; give the columns the model was"):
        getattr(model(), method)(ROWS[:, :3])
    with pytest.raises(ValueError, match=r"^rows: row 0, column 1 is NaN; fill it in or drop the row\.$"):
        getattr(model(), method)([[0.0, np.nan, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("layers", "centers", "options", "start"),
    [
        ([], CENTERS, {}, "layers: 0 arrays; give weights and biases"),
        (LAYERS[:3], CENTERS, {}, "layers: 3 arrays; give weights and biases"),
        (
            [*LAYERS[:4], LAYERS[2], LAYERS[3]],
            CENTERS,
            {},
            "layers: layer 2 takes 7 columns; the one before it gives 5",
        ),
        ([LAYERS[0], LAYERS[3]], CENTERS, {}, "layers: layer 0 has weights of shape .4, 7. and biases of shape .5,"),
        ([LAYERS[0], np.full(7, np.nan)], CENTERS, {}, "layers: layer 0 has weights or biases that are not finite"),
        (LAYERS, CENTERS[:, :2], {}, "cluster_centers: 2 columns where the encoder gives 3"),
        (LAYERS, CENTERS, {"activation": "sine"}, "activation is 'sine'; it must be one of: relu, tanh"),
        (LAYERS, CENTERS, {"origin": [0.0]}, r"origin has shape \(1,\); give \(4,\)"),
        (LAYERS, CENTERS, {"origin": [0.0, np.inf, 0.0, 0.0]}, "origin: column 1 is not finite"),
        (LAYERS, CENTERS, {"scale": [1.0, 1.0, 0.0, 1.0]}, "scale: column 2 is not above 0"),
    ],
)
def test_what_cannot_be_right_is_named_in_a_sentence(layers, centers, options, start):
    with pytest.raises(ValueError, match=f"^{start}"):
        EncodedModel(layers, centers, **options)
