"""When `benchmarks/growth.py check` says that time, memory or bytes grow faster than they did."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import growth

RECORDED = {"seconds": 0.2, "megabytes": 0.5, "bytes": 1.0}


@pytest.mark.parametrize(
    ("now", "error", "said"),
    [
        ({"seconds": 0.2, "megabytes": 0.5, "bytes": 1.0}, 0.0, []),
        ({"seconds": 0.5, "megabytes": 0.8, "bytes": 1.1}, 0.0, []),
        ({"seconds": 1.1, "megabytes": 0.5, "bytes": 1.0}, 0.1, ["seconds 1.10, was 0.20"]),
        ({"seconds": 0.6, "megabytes": 0.5, "bytes": 1.0}, 0.3, []),  # within two standard errors
        (
            {"seconds": 0.2, "megabytes": 1.0, "bytes": 1.3},
            0.0,
            ["megabytes 1.00, was 0.50", "bytes 1.30, was 1.00"],
        ),
        ({"seconds": 0.2, "bytes": 1.0}, 0.0, []),  # too little memory for a slope
        ({}, 0.0, ["seconds inf, was 0.20", "bytes inf, was 1.00"]),  # a point that failed
        ({"seconds": float("nan"), "bytes": 1.0}, 0.0, ["seconds nan, was 0.20"]),
    ],
)
def test_a_slope_has_risen_where_the_rise_is_clear(now, error, said):
    assert growth.rises(RECORDED, now, error) == said


def test_memory_that_had_no_slope_may_grow_with_the_rows_and_no_faster():
    recorded = {"seconds": 0.2, "bytes": 1.0}
    assert growth.rises(recorded, recorded | {"megabytes": 1.2}, 0.0) == []
    assert growth.rises(recorded, recorded | {"megabytes": 1.9}, 0.0) == [
        "megabytes 1.90, was 1.00"
    ]


def quadratic(name, shape, runs):
    """Work as the square of the clients: the times of the runs lie one tenth apart."""
    return {
        "seconds": shape["clients"] ** 2,
        "error": 0.1,
        "bytes": shape["clients"],
        "megabytes": 9.0,
        "before": 1.0,
    }


def test_slopes_are_those_of_the_last_two_points_and_have_the_error_of_their_times(monkeypatch):
    monkeypatch.setattr(growth, "in_own_process", lambda _, *given, limit: quadratic(*given))
    curves, slopes, error = growth.grow("any", "clients", (2, 10, 40), 1.0, 2)
    assert curves["seconds"] == {2: 4, 10: 100, 40: 1600}
    assert slopes == pytest.approx({"seconds": 2.0, "bytes": 1.0})
    assert error == pytest.approx(2**0.5 * 0.1 / np.log(4))


def test_a_point_beyond_the_limit_ends_the_axis_and_counts_as_the_limit(monkeypatch):
    found = iter(
        [
            {"seconds": 1.0, "error": 0.0, "bytes": 8, "megabytes": 9.0, "before": 1.0},
            "more than 64 s",
        ]
    )
    monkeypatch.setattr(growth, "in_own_process", lambda *_, limit: next(found))
    _, slopes, error = growth.grow("any", "clients", (10, 40), 64.0)
    assert (slopes["seconds"], error) == (pytest.approx(3.0), 0.0)
    assert growth.rises({"seconds": 1.0, "bytes": 1.0}, slopes, error) != []
