from decimal import Decimal, localcontext

import numpy as np
import pytest

from flower_fedclust.exact import elementary
from flower_fedclust.exact.elementary import exponential, logarithm, power

SMALLEST, LARGEST = 2.2250738585072014e-308, 1.7976931348623157e308


def largest_relative_error(found, exact):
    with localcontext() as context:
        context.prec = 45
        return float(max(abs(Decimal(float(a)) / b - 1) for a, b in zip(found, exact, strict=True)))


def numbers(function, of):
    with localcontext() as context:
        context.prec = 45
        return [function(Decimal(float(entry))) for entry in of]


def test_exponentials_are_those_of_decimals():
    rng = np.random.default_rng(0)
    x = [
        rng.uniform(-708.3, 709.7, 700),
        rng.uniform(-2, 0, 700),
        -(10.0 ** rng.uniform(-18, 2.8, 700)),
    ]
    steps = np.arange(-40, 40) * np.log(2) / 4096  # between two entries of the table
    x = np.concatenate(
        [*x, steps, np.nextafter(steps, 9), [0.0, -5e-324, -708.0, 709.0, -707.999, 708.999]]
    )
    assert largest_relative_error(exponential(x), numbers(Decimal.exp, x)) < 2.0**-50


def test_the_table_of_exponentials_holds_the_nearest_floats():
    bits, *_ = elementary._exponential_table()
    step = np.uint64(41)
    values = (bits + (np.arange(2048, dtype=np.uint64) << step)).view(np.float64)
    with localcontext() as context:
        context.prec = 45
        for j in range(0, 2048, 37):
            assert values[j] == float((Decimal(2).ln() * j / 2048).exp())


@pytest.mark.filterwarnings("error")
def test_exponentials_beyond_the_normal_range():
    x = np.array(
        [
            -np.inf,
            -1e308,
            -746.0,
            -745.13,
            -730.5,
            -708.4,
            709.78,
            709.79,
            1e300,
            np.inf,
            np.nan,
            -1.0,
        ]
    )
    found = exponential(x)
    np.testing.assert_array_equal(found[:3], 0.0)
    exact = [float(value) for value in numbers(Decimal.exp, x[3:7])]
    np.testing.assert_allclose(found[3:7], exact, rtol=2.0**-50, atol=5e-324)
    np.testing.assert_array_equal(found[7:10], np.inf)
    assert np.isnan(found[10])
    assert found[11] == exponential(x[11:])[0]


def test_no_exponential_of_what_is_not_positive_is_above_1():
    x = np.concatenate(
        [-(10.0 ** np.linspace(-320, 3, 20_001)), [0.0, -0.0, -5e-324], -np.arange(9) * 2.0**-54]
    )
    found = exponential(x)
    assert found.max() == 1.0
    assert found.min() >= 0.0
    assert exponential(np.zeros(3)).tolist() == [1.0] * 3


def test_an_exponential_is_the_same_alone_and_in_any_array(monkeypatch):
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [-rng.exponential(5, 300), rng.uniform(-1000, 1000, 60), [-np.inf, 0.0, -2000.0]]
    )
    whole = exponential(x)
    alone = np.concatenate([exponential(x[i : i + 1]) for i in range(len(x))])
    assert whole.tobytes() == alone.tobytes()
    assert exponential(x[::-1])[::-1].tobytes() == whole.tobytes()
    assert exponential(x.reshape(3, -1).T).T.tobytes() == whole.tobytes()
    monkeypatch.setattr(elementary, "BLOCK_ENTRIES", 7)
    assert exponential(x).tobytes() == whole.tobytes()
    assert exponential(x, out=x) is x
    assert x.tobytes() == whole.tobytes()


def test_exponentials_have_any_shape_and_out_must_fit():
    assert exponential(np.zeros((0, 3))).shape == (0, 3)
    assert exponential(np.array(-1.0)).shape == ()
    for out in (np.empty((4, 3)).T, np.empty(12), np.empty((3, 4), dtype=np.float32)):
        with pytest.raises(ValueError, match="contiguous array of float64"):
            exponential(np.zeros((3, 4)), out=out)


def test_logarithms_are_those_of_decimals():
    rng = np.random.default_rng(0)
    near = 10.0 ** rng.uniform(-15, -2, 700)
    x = [10.0 ** rng.uniform(-323, 308, 700), 1 + near, 1 - near, rng.uniform(0.3, 3, 700)]
    borders = (np.arange(64, 192) + 0.5) / 128
    x = np.concatenate(
        [*x, borders, np.nextafter(borders, 0), [5e-324, SMALLEST, LARGEST, 0.70703125, 2.0, 0.5]]
    )
    x = x[x != 1]
    assert largest_relative_error(logarithm(x), numbers(Decimal.ln, x)) < 2.0**-50


@pytest.mark.filterwarnings("error")
def test_logarithms_of_what_is_not_positive_or_not_finite():
    found = logarithm(np.array([0.0, -0.0, 1.0, np.inf, -1.0, -np.inf, np.nan]))
    np.testing.assert_array_equal(found, [-np.inf, -np.inf, 0.0, np.inf, np.nan, np.nan, np.nan])


@pytest.mark.parametrize("exponent", [0.5, -2.3, 1.0, 100.0, -17.0, 1e-3, 1e9, 2 / 3])
def test_powers_are_those_of_decimals(exponent):
    rng = np.random.default_rng(0)
    base = (
        10.0 ** rng.uniform(-300, 300, 400)
        if abs(exponent) < 10
        else 1 + rng.uniform(-700, 700, 400) / 1e10
    )
    found = power(base, exponent)
    normal = (found > SMALLEST) & (found < LARGEST)
    assert normal.sum() > 100
    exact = numbers(lambda number: (number.ln() * Decimal(exponent)).exp(), base[normal])
    assert largest_relative_error(found[normal], exact) < 2.0**-40


@pytest.mark.filterwarnings("error")
def test_powers_of_0_and_1_and_with_exponent_0():
    base = np.array([[0.0, 1.0], [1e300, 1e-300]])
    assert power(base, 0.0).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert power(base, 5.0).tolist() == [[0.0, 1.0], [np.inf, 0.0]]
    assert power(base, -1e300).tolist() == [[np.inf, 1.0], [0.0, np.inf]]


def test_a_power_is_the_same_alone_and_in_any_array(monkeypatch):
    base = 10.0 ** np.random.default_rng(0).uniform(-300, 300, 200)
    whole = power(base, -0.7)
    alone = np.concatenate([power(base[i : i + 1], -0.7) for i in range(200)])
    monkeypatch.setattr(elementary, "BLOCK_ENTRIES", 9)
    assert whole.tobytes() == alone.tobytes() == power(base, -0.7).tobytes()
