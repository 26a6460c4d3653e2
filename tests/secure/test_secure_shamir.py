"""Shamir's scheme, against a slow and obvious one."""

import itertools
from fractions import Fraction

import pytest

from flower_fedclust.secure.shamir import PRIME, SHARE_BYTES, join, split


def slow_join(shares):
    """Lagrange's formula at 0, with fractions."""
    total = Fraction(0)
    for point, share in shares.items():
        product = Fraction(share)
        for other in shares:
            if other != point:
                product *= Fraction(-other, point - other)
        total += product
    return total.numerator * pow(total.denominator, -1, PRIME) % PRIME


def is_prime(number):
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(
        pow(base, odd, number) == 1
        or any(pow(base, odd << k, number) == number - 1 for k in range(twos))
        for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
    )


def test_the_prime_is_the_smallest_above_every_secret_of_32_bytes():
    assert is_prime(PRIME)
    assert not any(is_prime(number) for number in range(2**256, PRIME))
    assert PRIME < 256**SHARE_BYTES


@pytest.mark.parametrize("secret", [0, 1, 2**256 - 1, 3**150])
@pytest.mark.parametrize(("n_shares", "threshold"), [(3, 3), (5, 4), (6, 2)])
def test_any_threshold_of_the_shares_give_the_secret_back_as_the_slow_formula_does(
    secret, n_shares, threshold
):
    shares = dict(enumerate(split(secret, n_shares, threshold), start=1))
    for points in itertools.combinations(shares, threshold):
        chosen = {point: shares[point] for point in points}
        assert join(chosen) == slow_join(chosen) == secret


@pytest.mark.parametrize(("n_shares", "threshold"), [(200, 134), (1000, 667)])
def test_many_shares_are_reduced_on_the_way(n_shares, threshold):
    shares = split(7, n_shares, threshold)
    assert all(0 <= share < PRIME for share in shares)
    assert join(dict(list(enumerate(shares, start=1))[-threshold:])) == 7


def test_shares_are_values_of_one_polynomial_of_the_degree():
    # The differences of order t of a polynomial of degree t - 1 vanish, and those of order t - 1 do not.
    row = [5, *split(5, 9, 4)]
    for _ in range(3):
        row = [(after - before) % PRIME for before, after in itertools.pairwise(row)]
    assert len(set(row)) == 1
    assert row[0] != 0


def test_one_share_fewer_fits_every_secret():
    shares = dict(enumerate(split(1, 5, 3), start=1))
    two = {1: shares[1], 2: shares[2]}
    for guess in (0, 1, 2**200):  # a third share exists for each
        slope = [(two[1] - guess) % PRIME, (two[2] - guess) * pow(2, -1, PRIME) % PRIME]
        curve = (slope[1] - slope[0]) % PRIME
        third = (guess + 3 * (slope[0] + 2 * curve)) % PRIME
        assert join(two | {3: third}) == guess


def test_shares_are_drawn_anew():
    assert split(1, 3, 2) != split(1, 3, 2)
