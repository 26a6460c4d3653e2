import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedclust.steps.frame import Frame, enter

RNG = np.random.default_rng(0)


@pytest.fixture
def moved():
    """A frame in which the regions around two far anchors are moved together."""
    anchors = np.array([[0.0, 0.0, 0.0], [1e4, 0.0, 0.0]])
    shifts = np.array([[0.0, 0.0, 0.0], [-1e4 + 50.0, 3.0, 0.0]])
    return Frame(np.array([5.0, -2.0, 1.0]), 60.0, anchors, shifts)


def test_frame_around_server_rows_has_their_mean_and_their_radius_about_it():
    rows = RNG.normal(size=(20, 3)) + 7
    frame = Frame.around(rows, centered=True)
    np.testing.assert_allclose(frame.origin, rows.mean(axis=0))
    assert frame.radius == pytest.approx(max(np.sqrt(((row - rows.mean(axis=0)) ** 2).sum()) for row in rows))


def test_frame_of_the_paper_has_its_origin_at_zero():
    rows = RNG.normal(size=(20, 3)) + 7
    frame = Frame.around(rows, centered=False)
    assert np.array_equal(frame.origin, np.zeros(3))
    assert frame.radius == pytest.approx(max(np.sqrt((row**2).sum()) for row in rows))


def test_leaving_undoes_entering_for_rows_inside():
    rows = RNG.normal(size=(30, 3)) * 4 + 100
    frame = Frame.around(rows, centered=True)
    np.testing.assert_allclose(frame.leave(frame.enter(rows)), rows, rtol=0, atol=1e-11)


def test_leaving_undoes_entering_where_regions_were_moved(moved):
    near = RNG.uniform(-8, 8, size=(30, 3)) + moved.origin
    far = near + np.array([1e4, 0, 0])
    entered = moved.enter(np.concatenate([near, far]))
    assert np.linalg.norm(entered, axis=1).max() < moved.radius - 1
    np.testing.assert_allclose(entered[30:], entered[:30] + np.array([50.0, 3.0, 0.0]), atol=1e-9)
    np.testing.assert_allclose(moved.leave(entered), np.concatenate([near, far]), rtol=0, atol=1e-8)


def test_row_outside_is_pulled_to_the_ball_along_its_direction():
    frame = Frame(np.array([1.0, 1.0]), 2.0)
    np.testing.assert_allclose(frame.enter(np.array([[1.0, 11.0], [4.0, 5.0]])), [[0.0, 2.0], [1.2, 1.6]])


@given(st.integers(0, 2**32), st.floats(-3, 200), st.booleans())
@settings(max_examples=50, deadline=None)
def test_every_row_that_has_entered_is_in_the_ball(seed, power, is_moved):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(20, 3)) * 10.0 ** rng.uniform(-3, power, size=(20, 1)).clip(-3, power)
    moved = [rng.normal(size=(4, 3)) * 100, rng.normal(size=(4, 3)) * 100] if is_moved else []
    radius = float(rng.uniform(0.1, 50))
    entered = Frame(rng.normal(size=3), radius, *moved).enter(rows)
    assert np.linalg.norm(entered, axis=1).max() <= radius * (1 + 1e-12)


def test_entering_changes_no_row_of_the_client(moved):
    rows = RNG.normal(size=(30, 3)) * 1e4
    before = rows.copy()
    moved.enter(rows)
    assert np.array_equal(rows, before)


def test_what_is_sent_is_enough_to_enter(moved):
    rows = RNG.normal(size=(30, 3)) * 100
    near = Frame(moved.origin, 3.0)
    for frame in (moved, near, Frame(moved.origin, 60.0, moved.anchors, moved.shifts, norm=1)):
        sent = [np.array(array) for array in frame.arrays]
        assert np.array_equal(enter(rows, *sent), frame.enter(rows))
    assert (near.enter(rows) != moved.enter(rows)).any()


def test_infinite_radius_clips_nothing():
    rows = RNG.normal(size=(5, 3)) * 1e100
    assert np.array_equal(Frame(np.zeros(3), np.inf).enter(rows), rows)


@pytest.mark.parametrize("radius", [0.3, 5.0, 1e3])
def test_ball_of_a_frame_may_be_one_of_the_l1_norm(radius):
    rows = RNG.normal(size=(40, 3)) * 10
    frame = Frame(np.array([1.0, -1.0, 0.5]), radius, norm=1)
    entered, offsets = frame.enter(rows), rows - frame.origin
    lengths = np.abs(offsets).sum(axis=1)
    np.testing.assert_allclose(entered, offsets * np.minimum(1.0, radius / lengths)[:, None], rtol=1e-12)
