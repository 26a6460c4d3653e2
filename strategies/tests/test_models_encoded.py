import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.neural_network import MLPRegressor

from flower_fedclust_papers.encoded_model import EncodedModel

RNG = np.random.default_rng(0)
ROWS = load_iris().data
LAYERS = [RNG.normal(size=shape) for shape in ((4, 7), (7,), (7, 5), (5,), (5, 3), (3,))]
CODED_CENTERS = RNG.normal(size=(6, 3))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_codes_are_the_outputs_of_scikit_learns_network(activation):
    network = MLPRegressor(
        hidden_layer_sizes=(7, 5), activation=activation, max_iter=5, random_state=0
    )
    with pytest.warns(UserWarning, match="Maximum iterations"):
        network.fit(ROWS, ROWS[:, :3])
    layers = [one for pair in zip(network.coefs_, network.intercepts_, strict=True) for one in pair]
    codes = EncodedModel(layers, CODED_CENTERS, activation=activation).encode(ROWS)
    np.testing.assert_allclose(codes, network.predict(ROWS), rtol=1e-12)


def test_the_last_layer_is_linear_and_origin_and_scale_come_first():
    rows, scale = np.full((2, 5), -3.0), np.arange(1.0, 6.0)
    codes = EncodedModel(LAYERS[4:], CODED_CENTERS, origin=np.ones(5), scale=scale).encode(rows)
    np.testing.assert_allclose(codes, (np.full((2, 5), -4.0) / scale) @ LAYERS[4] + LAYERS[5])


def test_the_nearest_center_is_sought_among_codes():
    model = EncodedModel(LAYERS, CODED_CENTERS)
    distances = ((model.encode(ROWS)[:, None] - CODED_CENTERS) ** 2).sum(axis=2)
    np.testing.assert_array_equal(model.predict(ROWS), distances.argmin(axis=1))
    assert model.cost(ROWS) == pytest.approx(distances.min(axis=1).sum(), rel=1e-12)


def test_importing_and_predicting_need_no_torch():
    code = (
        "import sys, numpy as np\n"
        "import flower_fedclust_papers.networks.deep_clustering\n"
        "import flower_fedclust_papers.ppfc_gan\n"
        "from flower_fedclust_papers.encoded_model import EncodedModel\n"
        "print(EncodedModel([np.eye(2), np.zeros(2)], np.eye(2)).predict(np.eye(2)), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[0 1] False\n"
