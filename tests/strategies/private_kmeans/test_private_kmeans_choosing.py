import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs

import flower_fedclust as fc
from flower_fedclust.strategies.private_kmeans import Fine, chosen_number, clustered


def run(rows, n_clusters, **parameters):
    strategy = fc.PrivateKMeans(n_clusters, max_norm=60.0, **parameters)
    return fc.simulate(strategy, np.array_split(rows, 4), seed=0, progress=False)


@pytest.mark.parametrize("unit", ["record", "client"])
def test_the_number_of_blobs_is_found_at_no_further_cost(unit):
    rows = make_blobs(8000, 6, centers=4, random_state=0)[0]
    # Of 4 clients no noise would leave anything.
    given = {"epsilon": 1.0} if unit == "record" else {"epsilon": None, "rows_per_client": 2000}
    chosen = run(rows, (2, 7), privacy_unit=unit, **given)
    assert (chosen.number.chosen, chosen.number.is_clear) == (4, True)
    assert chosen.model.n_clusters == 4
    assert chosen.summary()["number"]["chosen"] == 4
    given = run(rows, 7, privacy_unit=unit, **given)
    assert given.number is None
    assert [message.release for message in chosen.privacy.messages][:6] == [
        message.release for message in given.privacy.messages
    ][:6]


def test_one_gaussian_has_no_clear_number_and_the_result_says_so():
    result = run(np.random.default_rng(0).normal(size=(8000, 6)), "auto")
    assert not result.number.is_clear
    assert [doubt.code for doubt in result.doubts] == ["no-clear-number"]


@pytest.mark.parametrize("n_rows", [300, 600, 1000, 2000])
def test_one_gaussian_of_few_rows_has_no_clear_number_either(n_rows):
    for seed in range(3):
        rows = np.random.default_rng(seed).normal(size=(n_rows, 4))
        strategy = fc.PrivateKMeans("auto", epsilon=1.0, max_norm=6.0)
        assert not fc.simulate(strategy, np.array_split(rows, 5), seed=seed, progress=False).number.is_clear


def test_few_rows_are_compared_with_one_gaussian_and_not_with_the_luck_of_a_draw():
    spread = np.array([2.0, 0.5, 0.3])
    means = np.column_stack([np.linspace(-3, 3, 8), np.zeros((8, 2))])
    fine = Fine(means, np.full(8, 150 / 8), float((spread**2).sum()), 0.0, 0.0)
    of_one = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        number = chosen_number(
            fine,
            lambda rows, n_centers, rng=rng: clustered(rows, np.ones(len(rows)), n_centers, rng, n_init=1),
            lambda n_drawn, rng=rng: rng.standard_normal((n_drawn, 3)) * spread,
            (2, 3),
            rng,
        )
        of_one.append(number.of_one_gaussian[0])
    assert np.std(of_one) < 0.02


def test_noise_that_hides_everything_is_no_number():
    result = run(np.random.default_rng(0).normal(size=(100, 6)), (2, 5), epsilon=0.1)
    assert result.number.sentence.startswith("No clear number")


def test_a_range_is_a_parameter_like_any_other():
    strategy = fc.PrivateKMeans([2, 5], max_norm=1.0)
    assert clone(strategy).n_clusters == [2, 5]
    assert strategy.most_clusters == 5
    with pytest.raises(ValueError, match="'auto', or a range"):
        fc.PrivateKMeans("some", max_norm=1.0)
