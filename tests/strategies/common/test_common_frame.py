from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedclust.engine import ClientData, ProtocolStrategy
from flower_fedclust.exact.grid import from_units, points_onto_grid, unit_exponent
from flower_fedclust.exact.rows import Frame
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, FrameClient, enter, frame_of_rows

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("centered", [True, False])
def test_a_frame_around_server_rows_has_their_radius_about_their_mean_or_about_zero(centered):
    rows = RNG.normal(size=(20, 3)) + 7
    frame, origin = Frame.around(rows, centered=centered), rows.mean(axis=0) * centered
    np.testing.assert_allclose(frame.origin, origin)
    assert frame.radius == pytest.approx(max(np.sqrt(((row - origin) ** 2).sum()) for row in rows))


def test_leaving_undoes_entering_for_rows_inside():
    rows = RNG.normal(size=(30, 3)) * 4 + 100
    frame = Frame.around(rows, centered=True)
    np.testing.assert_allclose(
        frame.leave(frame.enter(rows)), rows, rtol=0, atol=frame.radius * 2.0**-24
    )


def test_row_outside_is_pulled_to_the_ball_along_its_direction():
    frame = Frame(np.array([1.0, 1.0]), 2.0)
    np.testing.assert_allclose(
        frame.enter(np.array([[1.0, 11.0], [4.0, 5.0]])), [[0.0, 2.0], [1.2, 1.6]], atol=1e-6
    )


@given(st.integers(0, 2**32), st.floats(-3, 200))
@settings(max_examples=50, deadline=None)
def test_every_row_that_has_entered_is_in_the_ball(seed, power):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(20, 3)) * 10.0 ** rng.uniform(-3, power, size=(20, 1)).clip(-3, power)
    radius = float(rng.uniform(0.1, 50))
    entered = enter(rows, *Frame(rng.normal(size=3), radius).arrays)
    squares = (entered.integers.astype(int).astype(object) ** 2).sum(axis=1)
    assert max(squares) <= (Fraction(radius) / Fraction(2) ** entered.exponent) ** 2


def test_what_is_sent_is_enough_to_enter():
    rows, origin = RNG.normal(size=(30, 3)) * 100, np.array([5.0, -2.0, 1.0])
    near, far, other = Frame(origin, 3.0), Frame(origin, 60.0), Frame(origin, 60.0, norm=1)
    for frame in (near, far, other):
        sent = [np.array(array) for array in frame.arrays]
        assert np.array_equal(enter(rows, *sent).values, frame.enter(rows))
    assert (near.enter(rows) != far.enter(rows)).any()
    assert (other.enter(rows) != far.enter(rows)).any()


@pytest.mark.parametrize("radius", [0.3, 5.0, 1e3])
def test_ball_of_a_frame_may_be_one_of_the_l1_norm(radius):
    rows = RNG.normal(size=(40, 3)) * 10
    frame = Frame(np.array([1.0, -1.0, 0.5]), radius, norm=1)
    entered, offsets = frame.enter(rows), rows - frame.origin
    lengths = np.abs(offsets).sum(axis=1)
    np.testing.assert_allclose(
        entered, offsets * np.minimum(1.0, radius / lengths)[:, None], atol=radius * 2.0**-23
    )


# Where no radius is known.


class Finding(ProtocolStrategy):
    """Finds the frame, and keeps it in the model."""

    client_type = FrameClient
    n_protocol_rounds = FRAME_ROUNDS

    def protocol(self):
        model = KMeansModel(np.zeros((1, self.n_columns)))
        model.frame, model.n_rows = yield from frame_of_rows()
        return model


def found(clients):
    model = simulate(Finding(2), clients).model
    return model.frame, model.n_rows


@pytest.mark.parametrize("scale", [1e-300, 1e-20, 1.0, 1e20, 1e148])
def test_a_frame_that_is_found_has_the_mean_of_all_rows_and_clips_none(scale):
    clients = [RNG.normal(size=(n, 3)) * scale + 5 * scale for n in (4, 9, 1)]
    pooled = np.concatenate(clients)
    frame, n_rows = found(clients)
    assert n_rows == 14
    np.testing.assert_allclose(frame.origin, pooled.mean(axis=0), rtol=1e-9)
    lengths = np.sqrt((((pooled - frame.origin) / scale) ** 2).sum(axis=1)) * scale
    assert frame.radius / 4 < lengths.max() <= frame.radius
    np.testing.assert_allclose(
        frame.leave(frame.enter(pooled)), pooled, rtol=0, atol=frame.radius * 2.0**-24
    )


def test_rows_far_from_the_origin_lose_nothing_of_their_spread():
    """Seconds since 1970 beside each other: the grid is as fine as the spread, not as the numbers."""
    clients = [1.7e9 + RNG.normal(size=(20, 2)) for _ in range(3)]
    frame, _ = found(clients)
    assert frame.radius < 16
    entered = frame.enter(clients[0])
    np.testing.assert_allclose(entered, clients[0] - frame.origin, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("value", [0.0, 0.1, 1e308, 5e-324])
def test_rows_that_are_all_equal_have_a_frame(value):
    if value == 1e308:
        with pytest.raises(DataError, match="row 0, column 0"):
            found([np.full((3, 2), value)] * 2)
        return
    frame, n_rows = found([np.full((3, 2), value)] * 2)
    assert n_rows == 6
    assert np.isfinite(frame.enter(np.full((1, 2), value))).all()


def test_a_client_enters_a_frame_once_where_its_table_is_large_and_nothing_is_mixed_up(monkeypatch):
    entered = []
    monkeypatch.setattr(
        "flower_fedclust.strategies.common.frame.enter",
        lambda rows, *frame: entered.append(frame) or enter(rows, *frame),
    )
    frames = [Frame(np.zeros(2), radius).arrays for radius in (1.0, 2.0)]
    large, small = (ClientData(RNG.normal(size=(n, 2))) for n in (4000, 4))
    for data, expected in ((large, 3), (small, 4)):
        entered.clear()
        values = [
            FrameClient(data, name="0").enter(*frames[index]).values for index in (0, 0, 1, 0)
        ]
        assert len(entered) == expected
        for index, value in zip((0, 0, 1, 0), values, strict=True):
            assert np.array_equal(value, enter(data.rows, *frames[index]).values)


@pytest.mark.parametrize("turned", [False, True])
def test_a_row_half_way_between_two_points_is_on_a_tie_whatever_the_points_digits(turned):
    """What a row is compared with are the points on its grid, in integers: the lowest index has it, in either order."""
    frame = Frame(np.zeros(3), 4.0)
    points = np.array([[0.1, 0.7, -0.3], [1.3, -0.9, 2.1 + 1e-9]])
    on_grid = points_onto_grid(points, unit_exponent(4.0))
    # So that there is a middle.
    points[1] += from_units((on_grid[0] + on_grid[1]) % 2, unit_exponent(4.0))
    middle = from_units(
        points_onto_grid(points, unit_exponent(4.0)).sum(axis=0) / 2, unit_exponent(4.0)
    )
    rows = np.concatenate([middle[None], RNG.normal(size=(7, 3))])
    given_points = points[::-1] if turned else points
    assert enter(rows[:1], *frame.arrays).nearest(given_points)[0] == 0
    assert enter(rows, *frame.arrays).nearest(given_points)[0] == 0
