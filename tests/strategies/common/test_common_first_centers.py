import numpy as np
import pytest

from flower_fedclust.strategies.common.first_centers import FirstCenters, points_in_ball


@pytest.mark.parametrize("columns", [1, 2, 50])
def test_points_are_drawn_uniformly_from_the_ball(columns):
    points = points_in_ball(2000, columns, 3.0, np.random.default_rng(5))
    norms = np.linalg.norm(points, axis=1)
    # The part of the ball that lies within r is (r / R)^d.
    np.testing.assert_allclose(
        np.quantile((norms / 3.0) ** columns, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.04
    )
    assert np.abs(points.mean(axis=0)).max() < 0.3


def found(first):
    """What is found without a round."""
    with pytest.raises(StopIteration) as stop:
        next(first.find(2, 3, np.random.default_rng(0)))
    return stop.value.value


def test_with_a_radius_no_client_is_asked_and_all_centers_lie_in_the_ball():
    given = np.array([[9.0, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(found(FirstCenters(given, 2.0)), [[2.0, 0, 0], [0, 1, 0]])
    assert np.linalg.norm(found(FirstCenters(None, 2.0)), axis=1).max() <= 2.0
    assert not FirstCenters(None, 2.0).by_k_fed


def test_without_a_radius_centers_that_were_given_stay_as_they_are():
    given = np.array([[9.0, 0, 0], [0, 1, 0]])
    assert np.array_equal(found(FirstCenters(given)), given)
    assert FirstCenters(None).by_k_fed
    assert not FirstCenters(given).by_k_fed


def test_only_centers_that_were_given_to_a_private_run_are_said_to_count_as_public():
    given = np.ones((2, 3))
    notes = [
        len(FirstCenters(init, radius).privacy_notes())
        for init in (None, given)
        for radius in (None, 1.0)
    ]
    assert notes == [0, 0, 0, 1]
