import numpy as np
import pytest
from sklearn.datasets import load_digits

torch = pytest.importorskip("torch")

from flower_fedclust_papers.networks.deep_clustering import soft_assignment  # noqa: E402
from flower_fedclust_papers.networks.layers import outputs  # noqa: E402
from flower_fedclust_papers.networks.vae import codes_of, encoder_of, new_vae, trained_vae  # noqa: E402

ROWS = load_digits().data[:300] / 16.0
ROWS = (ROWS - ROWS.mean(axis=0)) / ROWS.std()


@pytest.fixture(scope="module")
def first():
    return new_vae(64, 4, 32, random_state=0)


@pytest.fixture(scope="module")
def pretrained(first):
    return trained_vae(ROWS, first, n_steps=150, random_state=1)


def nearest(codes, centers):
    return np.argmin(np.linalg.norm(codes[:, None] - centers, axis=2), axis=1)


def test_everybody_with_the_seed_has_the_same_first_layers(first):
    again, other = new_vae(64, 4, 32, random_state=0), new_vae(64, 4, 32, random_state=1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert [layer.shape for layer in first] == [
        (64, 32),
        (32,),
        (32, 8),
        (8,),
        (4, 32),
        (32,),
        (32, 64),
        (64,),
    ]


def test_the_loss_falls_and_codes_tell_rows_apart(pretrained):
    losses = pretrained.reconstruction
    assert losses[-1] < 0.75 * losses[0]
    assert pretrained.clustering == []
    # A code that says nothing is all prior.
    assert (codes_of(ROWS, pretrained.layers).std(axis=0) > 0.3).sum() >= 2


def test_the_codes_are_the_means_that_torch_computes(pretrained):
    weights = [torch.tensor(layer) for layer in pretrained.layers[:4]]
    hidden = torch.relu(torch.tensor(ROWS) @ weights[0] + weights[1])
    expected = (hidden @ weights[2] + weights[3])[:, :4].numpy()
    np.testing.assert_allclose(codes_of(ROWS, pretrained.layers), expected, atol=1e-10)
    assert [layer.shape for layer in encoder_of(pretrained.layers)] == [
        (64, 32),
        (32,),
        (32, 4),
        (4,),
    ]


def test_training_repeats_bit_for_bit_and_leaves_what_it_was_given(first):
    before = [layer.copy() for layer in first]
    state = torch.get_rng_state()
    n_threads = torch.get_num_threads()
    once, twice = (trained_vae(ROWS, first, n_steps=6, random_state=3) for _ in range(2))
    other = trained_vae(ROWS, first, n_steps=6, random_state=4)
    assert all(np.array_equal(a, b) for a, b in zip(once.layers, twice.layers, strict=True))
    assert not np.array_equal(once.layers[0], other.layers[0])
    assert all(np.array_equal(a, b) for a, b in zip(first, before, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == n_threads


def test_a_larger_lambda_draws_codes_nearer_to_the_centers_of_their_clusters(pretrained):
    codes = codes_of(ROWS, pretrained.layers)
    rng = np.random.default_rng(0)
    centers = codes[rng.choice(len(codes), 5, replace=False)]
    labels = nearest(codes, centers)
    labels[::10] = rng.integers(5, size=len(labels[::10]))  # not all of them have the nearest

    def distance(weight):
        options = {
            "n_steps": 60,
            "random_state": 2,
            "centers": centers,
            "labels": labels,
            "weight": weight,
        }
        trained = trained_vae(ROWS, pretrained.layers, **options)
        assert len(trained.clustering) == len(trained.reconstruction)
        return np.mean(np.linalg.norm(codes_of(ROWS, trained.layers) - centers[labels], axis=1))

    none, some, much = distance(0.0), distance(0.15), distance(1.5)
    assert much < some < none


def test_the_divergence_that_is_reported_is_that_of_equation_14(pretrained):
    codes = codes_of(ROWS, pretrained.layers)
    centers = codes[:4] + 0.1
    labels = nearest(codes, centers)
    options = {"centers": centers, "labels": labels, "weight": 0.0}
    trained = trained_vae(ROWS, pretrained.layers, n_steps=1, random_state=2, **options)
    Q = soft_assignment(codes, centers)
    P = np.full(Q.shape, 0.1 / 4)
    P[np.arange(len(P)), labels] += 0.9
    # It changes little in the three steps of one epoch.
    assert trained.clustering[0] == pytest.approx(
        np.mean(np.sum(P * np.log(P / Q), axis=1)), rel=0.1
    )


def test_centers_without_labels_are_refused(first):
    with pytest.raises(ValueError, match="labels"):
        trained_vae(ROWS, first, n_steps=1, random_state=0, centers=np.eye(4))


@pytest.mark.parametrize("rows", [ROWS[:1], np.zeros((5, 64)), np.repeat(ROWS[:1], 7, axis=0)])
def test_a_row_alone_and_rows_that_are_equal_can_be_trained_on(first, rows):
    centers = np.array([[0.0, 0, 0, 0], [1.0, 1, 1, 1]])
    labels = np.zeros(len(rows), dtype=int)
    options = {"centers": centers, "labels": labels, "weight": 10.0}
    trained = trained_vae(rows, first, n_steps=5, random_state=0, **options)
    assert all(np.isfinite(layer).all() for layer in trained.layers)
    assert np.isfinite(trained.clustering).all()


# A network that begins linear


def test_a_network_with_directions_begins_as_the_projection_on_them():
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(64, 4)))[0]
    layers = new_vae(64, 4, 32, 0, directions)
    assert [layer.shape for layer in layers] == [layer.shape for layer in new_vae(64, 4, 32, 0)]
    coordinates = ROWS @ directions
    away = codes_of(ROWS, layers) - coordinates
    assert np.sqrt(np.mean(away**2)) < 0.2 * np.sqrt(np.mean(coordinates**2))
    decoded = outputs(coordinates, layers[4:])
    assert np.mean((decoded - coordinates @ directions.T) ** 2) < 0.1 * np.mean(decoded**2)


def test_few_hidden_units_carry_the_first_directions():
    layers = new_vae(6, 4, 4, 0, np.eye(6)[:, :4])
    rows = np.random.default_rng(0).normal(size=(50, 6))
    codes = codes_of(rows, layers)
    np.testing.assert_allclose(codes[:, :2], rows[:, :2], atol=1e-12)
    assert not codes[:, 2:].any()


def test_codes_as_wide_as_rows_stay_what_they_are_without_centers():
    rows = np.random.default_rng(0).normal(size=(200, 3))
    layers = new_vae(3, 3, 32, 0, np.eye(3))
    trained = trained_vae(rows, layers, n_steps=100, random_state=0)
    assert trained.reconstruction[-1] < 0.01
    before, after = codes_of(rows, layers), codes_of(rows, trained.layers)
    assert np.mean((after - before) ** 2) < 0.02 * np.mean(before**2)
