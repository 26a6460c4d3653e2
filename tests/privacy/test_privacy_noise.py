import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.privacy.accounting import delta_of_sampling
from flower_fedclust.privacy.noise import (
    MOST_REFINED,
    SCALE_BITS,
    OperatingSystemNoise,
    SeededNoise,
    add_noise,
    add_relative_noise,
    noise_exponent,
    noise_in_floats,
    on_grid,
    sample_gaussian,
    sample_gaussian_share,
    sample_laplace,
    sample_laplace_share,
    total_variation,
    variation_of_noise,
)
from flower_fedclust.privacy.releases import Release

SIZE = 50_000
GAUSSIAN = Release("gaussian", sensitivity=4.0, noise_multiplier=0.75, bound="clipped")
LAPLACE = Release("laplace", sensitivity=4.0, noise_multiplier=0.75, bound="counted")
SCALE = 3.0
NAMES = ["gaussian", "laplace"]


def zeros(size=SIZE, exponent=-20):
    return GridArray(np.zeros(size), exponent)


def drawn(release, source, *, n_shares=1, array=None):
    (noisy,) = add_noise([zeros() if array is None else array], [release], source, n_shares=n_shares)
    return noisy


@pytest.mark.parametrize("release", [GAUSSIAN, LAPLACE], ids=NAMES)
@pytest.mark.parametrize("exponent", [-40, -20, 0, 1])
def test_noise_has_the_law_and_the_scale_of_its_release_in_every_unit(release, exponent):
    # The unit is made finer where the noise would be coarse: rounding to 2^-10 of the scale is not seen by the test.
    noise = drawn(release, SeededNoise([3]), array=zeros(exponent=exponent)).values / SCALE
    law = "norm" if release is GAUSSIAN else "laplace"
    assert stats.kstest(noise, law).pvalue > 1e-3


@pytest.mark.parametrize("release", [GAUSSIAN, LAPLACE], ids=NAMES)
@pytest.mark.parametrize("n_shares", [2, 10])
def test_shares_add_up_to_noise_of_the_whole_distribution(release, n_shares):
    total = sum(drawn(release, SeededNoise([5, share]), n_shares=n_shares).values for share in range(n_shares))
    assert stats.kstest(total / SCALE, "norm" if release is GAUSSIAN else "laplace").pvalue > 1e-3


@pytest.mark.parametrize("release", [GAUSSIAN, LAPLACE], ids=NAMES)
@pytest.mark.parametrize("n_shares", [2, 10])
def test_one_share_carries_its_part_of_the_variance(release, n_shares):
    share = drawn(release, SeededNoise([6]), n_shares=n_shares).values
    np.testing.assert_allclose(share.var(), release.standard_deviation**2 / n_shares, rtol=0.08)


@pytest.mark.parametrize(("release", "draw"), [(GAUSSIAN, sample_gaussian), (LAPLACE, sample_laplace)], ids=NAMES)
def test_what_is_added_is_what_the_sampler_draws_for_a_scale_that_is_rounded_up(release, draw):
    array = GridArray(np.arange(6).reshape(2, 3), -30)
    noisy = drawn(release, SeededNoise([1]), array=array)
    expected = draw(math.ldexp(math.nextafter(release.scale, math.inf), 30), 6, SeededNoise([1]))
    assert noisy.exponent == -30
    np.testing.assert_array_equal(noisy.integers, array.integers + expected.reshape(2, 3))


@pytest.mark.parametrize(
    ("release", "draw"), [(GAUSSIAN, sample_gaussian_share), (LAPLACE, sample_laplace_share)], ids=NAMES
)
def test_a_share_is_what_the_sampler_of_shares_draws(release, draw):
    noisy = drawn(release, SeededNoise([1]), n_shares=3, array=zeros(5, -30))
    scale = math.ldexp(math.nextafter(release.scale, math.inf), 30)
    np.testing.assert_array_equal(noisy.integers, draw(scale, 3, 5, SeededNoise([1])))


def test_no_scale_is_rounded_below_what_the_release_declares():
    for sensitivity, multiplier in np.random.default_rng(0).uniform(0.1, 10.0, size=(200, 2)):
        release = Release("gaussian", sensitivity, multiplier, "")
        exact = Fraction(sensitivity) * Fraction(multiplier)
        assert Fraction(math.nextafter(release.scale, math.inf)) >= exact


def test_off_the_diagonal_of_a_triangle_the_noise_is_narrower_by_the_root_of_two():
    size = 300
    triangle = Release("gaussian", 4.0, 0.75, "clipped", triangle=True)
    noise = drawn(triangle, SeededNoise([2]), array=zeros(size * (size + 1) // 2)).values
    off = is_off_diagonal(size)
    assert stats.kstest(noise[off] / (SCALE / math.sqrt(2.0)), "norm").pvalue > 1e-3
    assert stats.kstest(noise[~off] / SCALE, "norm").pvalue > 1e-3


def test_only_gaussian_noise_has_a_triangle():
    with pytest.raises(ValueError, match="triangle"):
        Release("laplace", 1.0, 1.0, "", triangle=True)


@pytest.mark.parametrize("n_shares", [1, 7, 10_000])
def test_the_unit_is_fine_enough_for_the_noise_and_its_shares_and_no_finer_than_needed(n_shares):
    for multiplier in (1e-3, 0.5, 1.0, 300.0):
        release = Release("gaussian", 1.0, multiplier, "")
        exponent = noise_exponent(release, n_shares, 0)
        share = math.ldexp(release.scale, -exponent) / math.sqrt(n_shares)
        assert share >= 2.0**SCALE_BITS or exponent == -MOST_REFINED
        assert share < 2.0 ** (SCALE_BITS + 3) or exponent == 0
        assert noise_exponent(release, n_shares, -60) == -60  # a unit that is fine enough stays


def test_a_finer_unit_changes_no_value():
    array = GridArray(np.array([3, -5, 2**40]), 2)
    np.testing.assert_array_equal(array.refined(-7).values, array.values)


def test_two_sources_of_the_operating_system_never_give_the_same():
    first, second = (drawn(GAUSSIAN, OperatingSystemNoise(), array=zeros(100)).integers for _ in range(2))
    assert not np.isin(first, second).any()


def test_numpys_seed_does_not_influence_operating_system_noise():
    found = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002 - the seed that must not matter
        found.append(drawn(GAUSSIAN, OperatingSystemNoise(), array=zeros(20)).integers)
    assert not np.isin(*found).any()


def test_add_noise_leaves_an_array_without_a_release_or_a_scale_untouched():
    plain, covered = np.random.default_rng(0).normal(size=(3, 4)), zeros(12)
    released = add_noise(
        [plain, covered, covered], [None, GAUSSIAN, Release("gaussian", 1.0, 0.0, "")], SeededNoise([1])
    )
    assert released[0] is plain
    assert (released[1].integers != covered.integers).all()
    assert released[2] is covered


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4), (0, 3)], ids=str)
def test_add_noise_keeps_the_shape_and_does_not_write_to_its_input(shape):
    array = GridArray(np.full(shape, 7), -30)
    assert drawn(LAPLACE, SeededNoise([1]), array=array, n_shares=3).integers.shape == shape
    assert (array.integers == 7).all()


def test_arrays_of_one_message_get_different_noise():
    first, second = add_noise([zeros(50)] * 2, [GAUSSIAN, GAUSSIAN], SeededNoise([1]))
    assert not np.isin(first.integers, second.integers).any()


def test_add_noise_wants_one_release_an_array():
    with pytest.raises(ValueError, match="zip"):
        add_noise([zeros(2), zeros(2)], [GAUSSIAN], SeededNoise([1]))


def test_noise_on_floats_is_refused_and_whole_numbers_have_the_unit_1():
    with pytest.raises(TypeError, match="array of floats is to be summed or given noise"):
        add_noise([np.zeros(3)], [GAUSSIAN], SeededNoise([1]))
    assert on_grid(np.array([True, False])).integers.tolist() == [1, 0]
    assert on_grid(np.arange(3)).exponent == 0


def test_noise_on_a_count_leaves_no_trace_of_the_count():
    """An empty cell and a cell of one row give outputs on the same lattice: nothing but their law differs."""
    empty, one = (
        drawn(Release("laplace", 1.0, 5.0, ""), SeededNoise([7]), array=GridArray(np.full(1000, count)))
        for count in (0, 1)
    )
    assert empty.exponent == one.exponent
    steps = set(np.unique(empty.integers % 2**8)) & set(np.unique(one.integers % 2**8))
    assert len(steps) > 200  # every residue is taken by both


def test_the_distance_of_the_noise_adds_up_over_the_entries():
    one = total_variation("gaussian", math.ldexp(SCALE, 20), 1)
    assert variation_of_noise(GAUSSIAN, 1000, 1, -20) == pytest.approx(1000 * one)
    assert variation_of_noise(Release("gaussian", 1.0, 0.0, ""), 1000, 1, -20) == 0.0
    assert variation_of_noise(LAPLACE, 10, 5, -20) == pytest.approx(10 * total_variation("laplace", 3 * 2.0**20, 5))


def test_what_the_distance_adds_to_delta():
    assert delta_of_sampling(1.0, 1e-9) == pytest.approx((1 + math.e) * 1e-9)
    assert delta_of_sampling(1000.0, 1e-9) == 1.0
    assert delta_of_sampling(5.0, 0.0) == 0.0


@pytest.mark.parametrize(("mechanism", "law"), [("gaussian", "norm"), ("laplace", "laplace")])
def test_noise_in_floats_has_the_scale_that_is_given(mechanism, law):
    noise = noise_in_floats(mechanism, 1e-3, (100, 500), SeededNoise([1]))
    assert noise.shape == (100, 500)
    assert stats.kstest(noise.ravel() / 1e-3, law).pvalue > 1e-3


@pytest.mark.parametrize("level", [0.05, 1.0, 3.0])
def test_relative_noise_is_in_proportion_to_the_deviation_of_all_the_entries(level):
    array = np.random.default_rng(0).normal(size=(4000, 3)) * [1.0, 10.0, 0.1] + 1000.0
    added = add_relative_noise(array, level, SeededNoise([1])) - array
    assert abs(added.mean()) < 5 * level * array.std() / np.sqrt(array.size)
    # Of every column alike, narrow or wide.
    np.testing.assert_allclose(added.std(axis=0), level * array.std(), rtol=0.06)
    assert stats.kstest(added.ravel() / (level * array.std()), "norm").pvalue > 1e-3


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)], ids=str)
def test_relative_noise_is_gaussian_in_a_fine_unit(shape):
    array = np.random.default_rng(0).normal(size=shape)
    units = sample_gaussian(2.0**40, array.size, SeededNoise([1])).reshape(shape)
    expected = array + units * (0.5 * array.std() * 2.0**-40)
    np.testing.assert_array_equal(add_relative_noise(array, 0.5, SeededNoise([1])), expected)


@pytest.mark.parametrize(
    ("array", "level"), [(np.arange(6.0), 0.0), (np.full((3, 2), 7.0), 2.0), (np.array(4.0), 1.0)], ids=str
)
def test_relative_noise_of_nothing_draws_nothing_and_returns_the_array_itself(array, level):
    assert add_relative_noise(array, level, source=None) is array


def test_relative_noise_follows_the_scale_of_the_array_and_not_its_origin():
    array = np.random.default_rng(0).normal(size=50)
    noise_of = [add_relative_noise(rows, 0.5, SeededNoise([1])) - rows for rows in (array, 100 * array, array + 9)]
    np.testing.assert_allclose(noise_of[1], 100 * noise_of[0], rtol=1e-10)
    np.testing.assert_allclose(noise_of[2], noise_of[0], rtol=1e-10)


def test_relative_noise_does_not_write_to_its_input():
    array = np.arange(6.0)
    add_relative_noise(array, 1.0, SeededNoise([1]))
    np.testing.assert_array_equal(array, np.arange(6.0))


def test_relative_noise_of_one_source_goes_on_and_does_not_repeat():
    source, array = SeededNoise([1]), np.arange(6.0)
    assert not np.isin(add_relative_noise(array, 1.0, source), add_relative_noise(array, 1.0, source)).any()
