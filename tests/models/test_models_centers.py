import subprocess
import sys

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_iris

from flower_fedclust.models import KMeansModel, SpectralModel

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("load", [load_iris, load_digits])
def test_k_means_predicts_and_costs_what_scikit_learn_does(load):
    rows = load().data
    estimator = KMeans(7, n_init=1, random_state=0).fit(rows)
    model = KMeansModel(estimator.cluster_centers_)
    np.testing.assert_array_equal(model.predict(rows), estimator.predict(rows))
    assert model.cost(rows) == pytest.approx(estimator.inertia_, rel=1e-10)
    assert model.cost(rows[::3]) == pytest.approx(-estimator.score(rows[::3]))


@pytest.mark.long
def test_importing_and_a_run_of_spp_fgc_need_no_torch():
    code = (
        "import sys, numpy as np\n"
        "import flower_fedclust\n"
        "rows = [np.random.default_rng(i).normal(size=(9, 2)) for i in range(2)]\n"
        "print(flower_fedclust.simulate(flower_fedclust.SPPFGC(2), rows).model.n_clusters, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"


# The spectral embedding

ATOMS = RNG.normal(size=(5, 3)) * 2
PROJECTION = RNG.normal(size=(5, 2))
CENTERS = np.array([[1.0, 0.0], [-0.6, 0.8], [0.0, -1.0]])
SPECTRAL_ROWS = RNG.normal(size=(40, 3)) * 2
BANDWIDTH = 1.7


@pytest.fixture
def spectral():
    return SpectralModel(ATOMS, BANDWIDTH, PROJECTION, CENTERS)


def slow_place(row):
    kernel = [
        np.exp(-sum((row[j] - atom[j]) ** 2 for j in range(3)) / (2 * BANDWIDTH**2))
        for atom in ATOMS
    ]
    point = np.array([sum(kernel[i] * PROJECTION[i, k] for i in range(5)) for k in range(2)])
    return point / np.sqrt((point**2).sum())


def test_row_goes_to_its_kernel_values_times_the_projection_on_the_unit_sphere(spectral):
    expected = np.array([slow_place(row) for row in SPECTRAL_ROWS])
    np.testing.assert_allclose(spectral.embed(SPECTRAL_ROWS), expected, atol=1e-12)
    distances = ((expected[:, None] - CENTERS) ** 2).sum(axis=2)
    assert spectral.predict(SPECTRAL_ROWS).tolist() == distances.argmin(axis=1).tolist()
    assert spectral.cost(SPECTRAL_ROWS) == pytest.approx(distances.min(axis=1).sum())


def test_cost_of_a_row_is_at_most_4():
    opposite = SpectralModel([[0.0, 0.0]], 1.0, [[1.0]], [[-1.0]])
    assert opposite.cost([[0.1, 0.0]]) == pytest.approx(4.0)


def test_a_row_too_far_from_every_atom_lies_at_0_and_still_has_a_cluster(spectral):
    far = np.full((2, 3), 1e4)
    assert not spectral.embed(far).any()
    assert set(spectral.predict(far)) <= {0, 1, 2}
    assert np.isfinite(spectral.cost(far))
