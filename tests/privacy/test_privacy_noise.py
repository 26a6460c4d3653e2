"""Noise as integers: exact distributions, tails, shares, sources, and what is added to arrays."""

import math
import os
import subprocess
import sys
import time
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.privacy import noise
from flower_fedclust.privacy.noise import (
    CONTEXT,
    MOST_REFINED,
    SCALE_BITS,
    OperatingSystemNoise,
    SeededNoise,
    Thresholds,
    add_noise,
    add_relative_noise,
    choose,
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

SIZE = 200_000
LEVEL = 1e-7  #: A true sampler fails a test of this level once in ten million runs.
GAUSSIAN = Release("gaussian", sensitivity=4.0, noise_multiplier=0.75, bound="clipped")
LAPLACE = Release("laplace", sensitivity=4.0, noise_multiplier=0.75, bound="counted")
SCALE = 3.0
EACH_SAMPLER = pytest.mark.parametrize(
    ("sample", "law"),
    [(sample_gaussian, stats.norm), (sample_laplace, stats.laplace)],
    ids=["gaussian", "laplace"],
)
EACH_RELEASE = pytest.mark.parametrize("release", [GAUSSIAN, LAPLACE], ids=["gaussian", "laplace"])


class GivenWords:
    """Words in the order in which they are asked for, then words of a seed."""

    def __init__(self, *words, seed=0):
        self.given = list(words)
        self._after = SeededNoise([seed])

    def words(self, size):
        taken, self.given = self.given[:size], self.given[size:]
        return np.concatenate(
            [np.array(taken, dtype=np.uint64), self._after.words(size - len(taken))]
        )


def rounded(law, scale, integers):
    """Exact probabilities of a rounded variable, from the side where they do not cancel."""
    return law.sf((np.abs(integers) - 0.5) / scale) - law.sf((np.abs(integers) + 0.5) / scale)


def fits(drawn, probabilities, integers):
    """Whether drawn integers have these probabilities, by chi-square over cells that expect ten or more."""
    expected = probabilities * len(drawn)
    enough = expected >= 10
    counts = dict(zip(*np.unique(drawn, return_counts=True), strict=True))
    observed = np.array([counts.get(integer, 0) for integer in integers])[enough]
    rest_observed, rest_expected = len(drawn) - observed.sum(), len(drawn) - expected[enough].sum()
    statistic = ((observed - expected[enough]) ** 2 / expected[enough]).sum()
    statistic += (rest_observed - rest_expected) ** 2 / rest_expected if rest_expected > 1 else 0.0
    return stats.chi2.sf(statistic, len(observed)) > LEVEL


# Samplers.


@EACH_SAMPLER
@pytest.mark.parametrize("scale", [0.2, 0.5, 1.0, 2.7, 16.0])
def test_integers_have_the_probabilities_of_the_rounded_variable(sample, law, scale):
    integers = np.arange(-300, 301)
    drawn = sample(scale, SIZE, SeededNoise([1]))
    assert drawn.dtype == np.int64
    assert fits(drawn, rounded(law, scale, integers), integers)


@EACH_SAMPLER
@pytest.mark.parametrize("scale", [1e3, 2.0**25 * 1.37, 2.0**41, 2.0**55])
def test_on_a_fine_grid_integers_are_distributed_as_the_variable(sample, law, scale):
    drawn = sample(scale, SIZE, SeededNoise([2]))
    # Rounding moves half a unit.
    uniform = law.cdf((drawn + SeededNoise([3]).words(SIZE) * 2.0**-64 - 0.5) / scale)
    assert stats.kstest(uniform, "uniform").pvalue > LEVEL
    # The last digits, and the sign beside them, are as good as coins.
    for bit in range(min(12, int(math.log2(scale)) - 4)):
        assert abs(((drawn >> bit) & 1).mean() - 0.5) < 6 * 0.5 / np.sqrt(SIZE)
    for one, other in (
        (np.abs(drawn), drawn > 0),
        (drawn[1:], drawn[:-1]),
        (np.abs(drawn[1:]), np.abs(drawn[:-1])),
    ):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / np.sqrt(SIZE)


def test_zero_and_tiny_scales_give_zeros_and_huge_ones_are_refused():
    for sample in (sample_gaussian, sample_laplace):
        assert sample(0.0, 7, None).tolist() == [0] * 7  # draws nothing
        assert sample(3.0, 0, SeededNoise([1])).tolist() == []
        for scale in (1e-300, 5e-324, 0.01):
            assert not sample(scale, 100, SeededNoise([1])).any()
        for scale in (-1.0, 2.0**56, math.inf, math.nan):
            with pytest.raises(ValueError, match="units wide"):
                sample(scale, 3, SeededNoise([1]))
    assert set(sample_laplace_share(1e-8, 3, 100, SeededNoise([1])).tolist()) <= {-1, 0, 1}


def test_variables_reach_as_far_as_128_bits_allow():
    # 52 random bits would end at 8.2 deviations. The first words choose the last interval, by all 128 bits.
    for scale in (4.0, 2.0**25):
        n_candidates = 9
        words = [2**64 - 1] * n_candidates + [0] * 2 * n_candidates + [2**64 - 1] * n_candidates
        (drawn,) = sample_gaussian(scale, 1, GivenWords(*words))
        assert 12 < drawn / scale < 15
        words[n_candidates : 2 * n_candidates] = [2**63] * n_candidates
        assert sample_gaussian(scale, 1, GivenWords(*words)) == [-drawn]
    n_digits = len(noise._laplace_table(4.0).first)
    assert sample_laplace(4.0, 1, GivenWords(*[0] * 2 * n_digits)) == [-512]  # 9 digits, and 1
    table = noise._gaussian_table(2.0**40, 37)  # intervals of an eighth of a deviation
    for deviations in (3.0, 8.0, 10.5):
        word, second = divmod(2**128 - int(stats.norm.sf(deviations) * 2 * 2.0**128), 2**64)
        (index,) = choose(table, np.array([word], dtype=np.uint64), GivenWords(second))
        assert abs(index / 8 - deviations) < 0.3


@EACH_SAMPLER
def test_noise_has_no_holes_by_which_an_empty_cell_could_be_told_from_one_row(sample, law):
    counts = np.bincount(sample(30.0, SIZE, SeededNoise([5])) + 10_000, minlength=20_001)[
        9960:10_041
    ]
    assert counts.min() > 0
    wide = sample(5.0 * 2**25, 3000, OperatingSystemNoise())
    row = np.arange(3000) * 1_234_567 % 2**25
    for released in (wide, row + wide):
        for modulus in (2, 3, 8, 256):
            assert (
                stats.chisquare(np.bincount(released % modulus, minlength=modulus)).pvalue > LEVEL
            )


# Choices to 128 bits.


def test_a_word_that_equals_the_first_word_of_a_probability_takes_a_second():
    third = Thresholds([Decimal(1) / 3])
    first = np.array([third.thresholds[0] >> 64], dtype=np.uint64)
    second = third.thresholds[0] & (2**64 - 1)
    assert [
        int(choose(third, first, GivenWords(word))[0]) for word in (second - 1, second, second + 1)
    ] == [0, 1, 1]
    assert choose(third, first - np.uint64(1), GivenWords()).tolist() == [0]
    assert choose(third, first + np.uint64(1), GivenWords()).tolist() == [1]
    tossed = [
        noise._toss(third, 1, GivenWords(int(first[0]), word))[0, 0]
        for word in (second - 1, second)
    ]
    assert tossed == [True, False]
    assert noise.is_below(int(first[0]), Decimal(1) / 3, GivenWords(second - 1))


def test_thresholds_are_the_probabilities_to_128_bits():
    mpmath = pytest.importorskip("mpmath")
    scale = mpmath.mpf(3.7)
    with mpmath.workprec(400):
        table = noise._laplace_table(3.7)
        exact = [
            1 / (1 + mpmath.exp(mpmath.mpf(2) ** i / scale)) for i in range(len(table.first) - 2)
        ]
        exact += [mpmath.exp(-1 / (2 * scale)), mpmath.mpf(1) / 2]
        for threshold, probability in zip(table.thresholds, exact, strict=True):
            assert abs(threshold - probability * 2**128) <= 0.5 + 1e-9
        variance = mpmath.mpf(1.3 * 2**40) ** 2
        weights = [
            mpmath.exp(-((j * mpmath.mpf(2) ** 38) ** 2) / (2 * variance)) for j in range(73)
        ]
        table = noise._gaussian_table(1.3 * 2**40, 38)
        assert len(table.thresholds) == 72
        for j in range(72):
            assert abs(table.thresholds[j] - sum(weights[: j + 1]) / sum(weights) * 2**128) <= 1


@pytest.mark.parametrize(
    "sample",
    [
        lambda: sample_gaussian(1e6, 50, SeededNoise([4])),
        lambda: sample_laplace_share(1e6, 3, 30, SeededNoise([4])),
    ],
)
def test_decimal_decides_where_an_estimate_is_too_near(monkeypatch, sample):
    quick, decided, original = sample(), [], noise.is_below
    monkeypatch.setattr(noise, "is_below", lambda *given: decided.append(given) or original(*given))
    monkeypatch.setattr(noise, "MARGIN", 2.0)  # so that no estimate decides
    np.testing.assert_array_equal(sample(), quick)
    assert len(decided) >= len(quick) / 2


# Sources.


def test_the_operating_systems_words_are_its_bytes_or_a_stream_of_chacha(monkeypatch):
    asked, urandom = [], os.urandom
    monkeypatch.setattr(noise.os, "urandom", lambda size: asked.append(size) or urandom(size))
    for size in (0, 5, 512, 513, 100_000):
        words = OperatingSystemNoise().words(size)
        assert (words.shape, words.dtype) == ((size,), np.uint64)
    assert asked == [0, 40, 4096, 32, 32]  # a key of 256 bits for each stream
    assert abs(np.unpackbits(words.view(np.uint8)).mean() - 0.5) < 6 * 0.5 / np.sqrt(6_400_000)
    assert stats.kstest(words * 2.0**-64, "uniform").pvalue > LEVEL


@pytest.mark.parametrize("size", [100, 1000])
def test_operating_system_noise_never_repeats_whatever_numpys_seed(size):
    drawn = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002 - the seed that must not matter
        drawn.append(OperatingSystemNoise().words(size))
    assert not np.isin(*drawn).any()


@pytest.mark.parametrize(
    "sample",
    [
        lambda source: sample_gaussian(1e5, 50, source),
        lambda source: sample_laplace(1e5, 50, source),
        lambda source: sample_gaussian_share(1e5, 4, 50, source),
        lambda source: sample_laplace_share(1e5, 4, 50, source),
        lambda source: add_relative_noise(np.arange(50.0), 1.0, source),
    ],
)
def test_a_seed_repeats_and_goes_on(sample):
    source = SeededNoise([7, 1])
    first, second = sample(source), sample(source)
    np.testing.assert_array_equal(first, sample(SeededNoise((7, 1))))
    for other in (second, sample(SeededNoise([7, 2])), sample(SeededNoise([7, 1, 1]))):
        assert (first != other).any()


CHILD = """
import numpy as np
from flower_fedclust.privacy.noise import SeededNoise, sample_gaussian, sample_laplace, sample_laplace_share
for scale in (0.7, 5.0, 3e7, 2e13):
    for drawn in (sample_gaussian(scale, 20_000, SeededNoise([1])), sample_laplace(scale, 5_000, SeededNoise([1])),
                  sample_laplace_share(scale, 9, 3_000, SeededNoise([2]))):
        print(hash(drawn.tobytes()))
"""


def test_the_same_words_give_the_same_integers_whatever_numpy_dispatches_to():
    found = set()
    for disabled in ("", "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"):
        environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": disabled, "PYTHONHASHSEED": "0"}
        child = [sys.executable, "-W", "ignore", "-c", CHILD]
        found.add(
            subprocess.run(
                child, env=environment, capture_output=True, text=True, check=True
            ).stdout
        )
    assert len(found) == 1


# Shares.


@pytest.mark.parametrize("scale", [0.4, 1.0, 5.0])
@pytest.mark.parametrize("n_shares", [2, 3, 20])
def test_laplace_shares_add_up_to_the_rounded_variable_and_some_steps(scale, n_shares):
    integers, step = np.arange(-200, 201), 1 / (8 * math.cosh(1 / (4 * scale)) ** 2)
    probabilities = rounded(stats.laplace, scale, np.arange(-200 - n_shares, 201 + n_shares))
    for _ in range(n_shares - 1):
        probabilities = np.convolve(probabilities, [step, 1 - 2 * step, step], mode="same")
    total = sum(
        sample_laplace_share(scale, n_shares, SIZE // 2, SeededNoise([5, i]))
        for i in range(n_shares)
    )
    assert fits(total, probabilities[n_shares:-n_shares], integers)


@pytest.mark.parametrize("scale", [0.05, 0.3, 2.0, 40.0])
def test_a_discrete_laplace_variable_and_a_step_are_a_rounded_laplace_variable(scale):
    integers, step = np.arange(-60, 61), 1 / (8 * math.cosh(1 / (4 * scale)) ** 2)
    discrete = math.tanh(1 / (2 * scale)) * np.exp(-np.abs(integers) / scale)
    stepped = np.convolve(discrete, [step, 1 - 2 * step, step], mode="same")[1:-1]
    np.testing.assert_allclose(
        stepped, rounded(stats.laplace, scale, integers)[1:-1], rtol=1e-9, atol=1e-15
    )
    with localcontext(CONTEXT):
        assert noise._share_tables(scale, 2)[2].thresholds[0] / 2**128 == pytest.approx(
            step, rel=1e-12
        )


@pytest.mark.parametrize("n_shares", [2, 7, 500])
def test_shares_on_a_fine_grid_add_up_to_the_variable(n_shares):
    for sample, law in ((sample_gaussian_share, stats.norm), (sample_laplace_share, stats.laplace)):
        total = sum(sample(2.0**30, n_shares, 3000, SeededNoise([6, i])) for i in range(n_shares))
        assert stats.kstest(total / 2.0**30, law.cdf).pvalue > LEVEL


def smooth_density(scale, n_boxes, fine, reach):
    """Density of a normal variable plus uniform ones on [-1/2, 1/2], at the integers."""
    grid = np.arange(-reach * fine, reach * fine + 1) / fine
    density, box = (
        stats.norm.pdf(grid, scale=scale) / fine,
        np.r_[0.5, np.ones(fine - 1), 0.5] / fine,
    )
    for _ in range(n_boxes):
        density = np.convolve(density, box, mode="same")
    return density[::fine] * fine


@pytest.mark.parametrize("n_shares", [2, 5])
def test_gaussian_shares_are_the_rounded_sum_with_uniform_variables(n_shares):
    scale = 4.0 * math.sqrt(n_shares)
    total = sum(
        sample_gaussian_share(scale, n_shares, SIZE, SeededNoise([8, i])) for i in range(n_shares)
    )
    assert fits(total, smooth_density(scale, n_shares, 64, 200)[50:-50], np.arange(-150, 151))


@pytest.mark.parametrize(("width", "n_shares"), [(0.5, 2), (0.6, 3)])
def test_the_bound_of_gaussian_shares_is_above_the_true_distance(width, n_shares):
    # By convolution of exact probabilities, for shares so narrow that there is a distance to see.
    scale = width * math.sqrt(n_shares)
    share = total = rounded(stats.norm, width, np.arange(-40, 41))
    for _ in range(n_shares - 1):
        total = np.convolve(total, share, mode="same")
    distance = 0.5 * np.abs(total - smooth_density(scale, n_shares, 256, 40)).sum()
    aliases = math.expm1(n_shares * math.log1p(2.1 * math.exp(-((math.pi * width) ** 2) / 2)))
    bound = (14 * scale + n_shares / 2 + 1) * aliases / (math.sqrt(2 * math.pi) * scale)
    assert 1e-6 < distance < bound


@pytest.mark.parametrize("scale", [4.0, 1e3, 2.0**25, 2.0**50])
def test_total_variations_are_small_and_grow_with_the_shares(scale):
    assert total_variation("gaussian", 0.0, 5) == 0.0
    for n_shares in (1, 2, 100, 10_000):
        assert total_variation("laplace", scale, n_shares) <= 2.0**-60
        if scale >= 4 * math.sqrt(n_shares):
            assert (
                total_variation("gaussian", scale)
                <= total_variation("gaussian", scale, n_shares)
                <= 2.0**-60
            )


def test_shares_that_are_too_narrow_are_refused():
    with pytest.raises(ValueError, match="finer unit"):
        sample_gaussian_share(16.0, 1000, 3, SeededNoise([1]))
    with pytest.raises(ValueError, match="finer unit"):
        total_variation("gaussian", 16.0, 1000)


def test_an_entry_takes_a_few_hundred_nanoseconds():
    # benchmarks/noise.py measures it; this is a hundred times as long.
    for sample in (sample_gaussian, sample_laplace):
        start = time.perf_counter()
        sample(2.0**25, 100_000, OperatingSystemNoise())
        assert time.perf_counter() - start < 2.0


# Noise for arrays.


def zeros(size=50_000, exponent=-20):
    return GridArray(np.zeros(size), exponent)


def drawn(release, source, *, n_shares=1, array=None):
    (noisy,) = add_noise(
        [zeros() if array is None else array], [release], source, n_shares=n_shares
    )
    return noisy


@EACH_RELEASE
@pytest.mark.parametrize("exponent", [-40, -20, 1])
def test_noise_has_the_law_and_the_scale_of_its_release_in_every_unit(release, exponent):
    # Coarse noise gets a finer unit: rounding to 2^-10 of the scale is invisible to the test.
    found = drawn(release, SeededNoise([3]), array=zeros(exponent=exponent)).values / SCALE
    assert stats.kstest(found, "norm" if release is GAUSSIAN else "laplace").pvalue > 1e-3


@EACH_RELEASE
@pytest.mark.parametrize("n_shares", [2, 10])
def test_shares_carry_their_part_of_the_variance_and_add_up_to_the_whole(release, n_shares):
    shares = [
        drawn(release, SeededNoise([5, share]), n_shares=n_shares).values
        for share in range(n_shares)
    ]
    np.testing.assert_allclose(shares[0].var(), release.standard_deviation**2 / n_shares, rtol=0.08)
    assert (
        stats.kstest(sum(shares) / SCALE, "norm" if release is GAUSSIAN else "laplace").pvalue
        > 1e-3
    )


@pytest.mark.parametrize("n_shares", [1, 3])
@pytest.mark.parametrize(
    ("release", "draw"),
    [(GAUSSIAN, sample_gaussian_share), (LAPLACE, sample_laplace_share)],
    ids=["gaussian", "laplace"],
)
def test_what_is_added_is_what_the_sampler_draws_for_a_scale_that_is_rounded_up(
    release, draw, n_shares
):
    array = GridArray(np.arange(6).reshape(2, 3), -30)
    noisy = drawn(release, SeededNoise([1]), array=array, n_shares=n_shares)
    expected = draw(
        math.ldexp(math.nextafter(release.scale, math.inf), 30), n_shares, 6, SeededNoise([1])
    )
    assert noisy.exponent == -30
    np.testing.assert_array_equal(noisy.integers, array.integers + expected.reshape(2, 3))
    for sensitivity, multiplier in np.random.default_rng(0).uniform(0.1, 10.0, size=(200, 2)):
        scale = Release("gaussian", sensitivity, multiplier, "").scale
        assert Fraction(math.nextafter(scale, math.inf)) >= Fraction(sensitivity) * Fraction(
            multiplier
        )


def test_off_the_diagonal_of_a_triangle_the_noise_is_narrower_by_the_root_of_two():
    size = 300
    triangle = Release("gaussian", 4.0, 0.75, "clipped", triangle=True)
    found, off = (
        drawn(triangle, SeededNoise([2]), array=zeros(size * (size + 1) // 2)).values,
        is_off_diagonal(size),
    )
    assert stats.kstest(found[off] / (SCALE / math.sqrt(2.0)), "norm").pvalue > 1e-3
    assert stats.kstest(found[~off] / SCALE, "norm").pvalue > 1e-3


@pytest.mark.parametrize("n_shares", [1, 7, 10_000])
def test_the_unit_is_fine_enough_for_the_noise_and_its_shares_and_no_finer_than_needed(n_shares):
    for multiplier in (1e-3, 0.5, 1.0, 300.0):
        release = Release("gaussian", 1.0, multiplier, "")
        exponent = noise_exponent(release, n_shares, 0)
        share = math.ldexp(release.scale, -exponent) / math.sqrt(n_shares)
        assert share >= 2.0**SCALE_BITS or exponent == -MOST_REFINED
        assert share < 2.0 ** (SCALE_BITS + 3) or exponent == 0
        assert noise_exponent(release, n_shares, -60) == -60  # a unit that is fine enough stays


def test_each_array_gets_noise_of_its_own_or_stays_untouched():
    plain, covered = np.random.default_rng(0).normal(size=(3, 4)), zeros(50)
    silent = Release("gaussian", 1.0, 0.0, "")
    released = add_noise(
        [plain, covered, covered, covered], [None, GAUSSIAN, GAUSSIAN, silent], SeededNoise([1])
    )
    assert released[0] is plain
    assert released[3] is covered
    assert not np.isin(released[1].integers, released[2].integers).any()
    assert not covered.integers.any()
    for shape in ((), (3, 4), (0, 3)):
        assert (
            drawn(
                LAPLACE, SeededNoise([1]), array=GridArray(np.full(shape, 7), -30), n_shares=3
            ).integers.shape
            == shape
        )
    with pytest.raises(ValueError, match="zip"):
        add_noise([covered, covered], [GAUSSIAN], SeededNoise([1]))


def test_noise_on_floats_is_refused_and_whole_numbers_have_the_unit_1():
    with pytest.raises(TypeError, match="floats"):
        add_noise([np.zeros(3)], [GAUSSIAN], SeededNoise([1]))
    assert on_grid(np.array([True, False])).integers.tolist() == [1, 0]
    assert on_grid(np.arange(3)).exponent == 0


def test_noise_on_a_count_leaves_no_trace_of_the_count():
    """An empty cell and a cell of one row give outputs on the same lattice: nothing but their law differs."""
    empty, one = (
        drawn(
            Release("laplace", 1.0, 5.0, ""),
            SeededNoise([7]),
            array=GridArray(np.full(1000, count)),
        )
        for count in (0, 1)
    )
    assert empty.exponent == one.exponent
    assert len(set(np.unique(empty.integers % 2**8)) & set(np.unique(one.integers % 2**8))) > 200


def test_the_distance_of_the_noise_adds_up_over_the_entries():
    one = total_variation("gaussian", math.ldexp(SCALE, 20), 1)
    assert variation_of_noise(GAUSSIAN, 1000, 1, -20) == pytest.approx(1000 * one)
    assert variation_of_noise(Release("gaussian", 1.0, 0.0, ""), 1000, 1, -20) == 0.0
    assert variation_of_noise(LAPLACE, 10, 5, -20) == pytest.approx(
        10 * total_variation("laplace", 3 * 2.0**20, 5)
    )


# Noise in floats, for experiments.


@pytest.mark.parametrize(("mechanism", "law"), [("gaussian", "norm"), ("laplace", "laplace")])
def test_noise_in_floats_has_the_scale_that_is_given(mechanism, law):
    found = noise_in_floats(mechanism, 1e-3, (100, 500), SeededNoise([1]))
    assert found.shape == (100, 500)
    assert stats.kstest(found.ravel() / 1e-3, law).pvalue > 1e-3


def test_relative_noise_is_in_proportion_to_the_deviation_of_all_the_entries():
    array = np.random.default_rng(0).normal(size=(4000, 3)) * [1.0, 10.0, 0.1] + 1000.0
    kept = array.copy()
    added = add_relative_noise(array, 3.0, SeededNoise([1])) - array
    np.testing.assert_array_equal(array, kept)
    # Of every column alike.
    np.testing.assert_allclose(added.std(axis=0), 3.0 * array.std(), rtol=0.06)
    assert stats.kstest(added.ravel() / (3.0 * array.std()), "norm").pvalue > 1e-3
    units = sample_gaussian(2.0**40, array.size, SeededNoise([1])).reshape(array.shape)
    np.testing.assert_allclose(added, units * (3.0 * array.std() * 2.0**-40), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("array", "level"),
    [(np.arange(6.0), 0.0), (np.full((3, 2), 7.0), 2.0), (np.array(4.0), 1.0)],
    ids=str,
)
def test_relative_noise_of_nothing_draws_nothing_and_returns_the_array_itself(array, level):
    assert add_relative_noise(array, level, source=None) is array
