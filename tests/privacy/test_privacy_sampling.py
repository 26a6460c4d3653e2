import math
import os
import subprocess
import sys
import time
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy import stats

from flower_fedclust.privacy import noise as sampling
from flower_fedclust.privacy.noise import (
    CONTEXT,
    OperatingSystemNoise,
    SeededNoise,
    Table,
    choose,
    sample_gaussian,
    sample_gaussian_share,
    sample_laplace,
    sample_laplace_share,
    total_variation,
)

SIZE = 200_000
#: A true sampler fails a test of this level once in ten million runs.
LEVEL = 1e-7


class GivenWords:
    """Words in the order in which they are asked for, then those of a seed."""

    def __init__(self, *words, seed=0):
        self.given = list(words)
        self.asked = []
        self._after = SeededNoise([seed])

    def words(self, size):
        self.asked.append(size)
        taken, self.given = self.given[:size], self.given[size:]
        return np.concatenate([np.array(taken, dtype=np.uint64), self._after.words(size - len(taken))])


def rounded(distribution, scale, integers):
    """Exact probabilities of a rounded variable, from the side where they are not cancelled."""
    return distribution.sf((np.abs(integers) - 0.5) / scale) - distribution.sf((np.abs(integers) + 0.5) / scale)


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


@pytest.mark.parametrize("scale", [0.2, 0.5, 1.0, 2.7, 16.0])
@pytest.mark.parametrize(
    ("sample", "distribution"),
    [(sample_gaussian, stats.norm), (sample_laplace, stats.laplace)],
    ids=["gauss", "laplace"],
)
def test_integers_have_the_probabilities_of_the_rounded_variable(sample, distribution, scale):
    integers = np.arange(-300, 301)
    drawn = sample(scale, SIZE, SeededNoise([1]))
    assert drawn.dtype == np.int64
    assert fits(drawn, rounded(distribution, scale, integers), integers)


@pytest.mark.parametrize("scale", [1e3, 2.0**25 * 1.37, 2.0**40, 2.0**41, 2.0**55])
@pytest.mark.parametrize(
    ("sample", "distribution"),
    [(sample_gaussian, stats.norm), (sample_laplace, stats.laplace)],
    ids=["gauss", "laplace"],
)
def test_on_a_fine_grid_integers_are_distributed_as_the_variable(sample, distribution, scale):
    drawn = sample(scale, SIZE, SeededNoise([2]))
    # Half a unit is all that rounding moves.
    uniform = distribution.cdf((drawn + SeededNoise([3]).words(SIZE) * 2.0**-64 - 0.5) / scale)
    assert stats.kstest(uniform, "uniform").pvalue > LEVEL
    # The last digits, and the sign beside them, are as good as coins.
    for bit in range(min(12, int(math.log2(scale)) - 4)):
        assert abs(((drawn >> bit) & 1).mean() - 0.5) < 6 * 0.5 / np.sqrt(SIZE)
    assert abs(np.corrcoef(np.abs(drawn), drawn > 0)[0, 1]) < 6 / np.sqrt(SIZE)
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 6 / np.sqrt(SIZE)
    assert abs(np.corrcoef(np.abs(drawn[1:]), np.abs(drawn[:-1]))[0, 1]) < 6 / np.sqrt(SIZE)


@pytest.mark.parametrize("sample", [sample_gaussian, sample_laplace])
def test_zero_scale_gives_zeros_and_draws_nothing(sample):
    assert sample(0.0, 7, None).tolist() == [0] * 7
    assert sample(3.0, 0, SeededNoise([1])).tolist() == []


@pytest.mark.parametrize("scale", [1e-300, 5e-324, 1e-8, 0.01])
def test_noise_far_narrower_than_a_unit_is_zero(scale):
    source = SeededNoise([1])
    for drawn in (sample_gaussian(scale, 100, source), sample_laplace(scale, 100, source)):
        assert not drawn.any()
    assert set(sample_laplace_share(scale, 3, 100, source).tolist()) <= {-1, 0, 1}


@pytest.mark.parametrize("scale", [-1.0, 2.0**56, math.inf, math.nan])
def test_a_scale_that_an_int64_cannot_hold_is_refused(scale):
    for sample in (sample_gaussian, sample_laplace):
        with pytest.raises(ValueError, match="units wide"):
            sample(scale, 3, SeededNoise([1]))


# Tails and holes.


def test_a_gaussian_variable_reaches_beyond_8_2_deviations():
    # 52 random bits end there. The first words choose the last of the intervals, by all 128 bits.
    for scale in (4.0, 2.0**25):
        n_candidates = 1 + 0 + 8
        words = [2**64 - 1] * n_candidates + [0] * n_candidates + [0] * n_candidates + [2**64 - 1] * n_candidates
        (drawn,) = sample_gaussian(scale, 1, GivenWords(*words))
        assert 12 < drawn / scale < 15
        words[n_candidates : 2 * n_candidates] = [2**63] * n_candidates
        (mirrored,) = sample_gaussian(scale, 1, GivenWords(*words))
        assert mirrored == -drawn


def test_a_word_below_the_last_threshold_lands_where_the_normal_distribution_has_it():
    table = sampling._gaussian_table(2.0**40, 37)  # intervals of an eighth of a deviation
    for deviations in (3.0, 8.0, 9.0, 10.5):
        beyond = int(stats.norm.sf(deviations) * 2 * 2.0**128)
        word, second = divmod(2**128 - beyond, 2**64)
        (index,) = choose(table, np.array([word], dtype=np.uint64), GivenWords(second))
        assert abs(index / 8 - deviations) < 0.3


def test_a_laplace_variable_reaches_as_far_as_its_digits():
    n_digits = len(sampling._laplace_table(4.0).first)
    (drawn,) = sample_laplace(4.0, 1, GivenWords(*[0] * 2 * n_digits))
    assert drawn == -512  # 9 digits, and 1


@pytest.mark.parametrize("sample", [sample_gaussian, sample_laplace])
def test_every_integer_near_zero_is_drawn_as_often_as_its_neighbours(sample):
    # No holes: of an empty cell and one row's cell, the sum of the one is as possible as that of the other.
    drawn = sample(30.0, SIZE, SeededNoise([5]))
    counts = np.bincount(drawn + 10_000, minlength=20_001)[10_000 - 40 : 10_000 + 41]
    assert counts.min() > 0
    values = sample(2.0**25, SIZE, OperatingSystemNoise())
    low = np.bincount(values & 255, minlength=256)
    assert stats.chisquare(low).pvalue > LEVEL


@pytest.mark.parametrize("sample", [sample_gaussian, sample_laplace])
def test_an_empty_cell_is_not_told_from_one_rows_cell(sample):
    # Issue 13, point 5: in 300 of 300 looks whoever knew the rest of the sum told them apart by the last digits.
    radius, looks = 2**25, 300
    noise = sample(5.0 * radius, looks * 10, OperatingSystemNoise()).reshape(looks, 10)
    row = np.arange(10) * 1_234_567 % radius
    for released in (noise, row + noise):
        # What is possible from the one is possible from the other: both are integers with every remainder.
        for modulus in (2, 3, 4, 8):
            assert stats.chisquare(np.bincount((released % modulus).ravel(), minlength=modulus)).pvalue > LEVEL


# Choices to 128 bits.


def test_a_word_that_equals_the_first_word_of_a_probability_takes_a_second():
    third = Table([Decimal(1) / 3])
    first = np.array([third.thresholds[0] >> 64], dtype=np.uint64)
    second = third.thresholds[0] & (2**64 - 1)
    assert [int(choose(third, first, GivenWords(word))[0]) for word in (second - 1, second, second + 1)] == [0, 1, 1]
    assert choose(third, first - np.uint64(1), GivenWords()).tolist() == [0]
    assert choose(third, first + np.uint64(1), GivenWords()).tolist() == [1]
    happened = [sampling._toss(third, 1, GivenWords(int(first[0]), word))[0, 0] for word in (second - 1, second)]
    assert happened == [True, False]
    assert sampling.is_below(int(first[0]), Decimal(1) / 3, GivenWords(second - 1))


def test_thresholds_are_the_probabilities_to_128_bits():
    mpmath = pytest.importorskip("mpmath")
    scale = 3.7
    with mpmath.workprec(400):
        table = sampling._laplace_table(scale)
        exact = [1 / (1 + mpmath.exp(mpmath.mpf(2) ** i / mpmath.mpf(scale))) for i in range(len(table.first) - 2)]
        exact += [mpmath.exp(-1 / (2 * mpmath.mpf(scale))), mpmath.mpf(1) / 2]
        for threshold, probability in zip(table.thresholds, exact, strict=True):
            assert abs(threshold - probability * 2**128) <= 0.5 + 1e-9
        weights = [
            mpmath.exp(-((j * mpmath.mpf(2) ** 38) ** 2) / (2 * mpmath.mpf(1.3 * 2**40) ** 2)) for j in range(73)
        ]
        table = sampling._gaussian_table(1.3 * 2**40, 38)
        assert len(table.thresholds) == 72
        for j in range(72):
            assert abs(table.thresholds[j] - sum(weights[: j + 1]) / sum(weights) * 2**128) <= 1


def test_where_an_estimate_is_too_near_decimal_decides(monkeypatch):
    decided = []
    original = sampling.is_below
    monkeypatch.setattr(sampling, "is_below", lambda *given: decided.append(given) or original(*given))
    monkeypatch.setattr(sampling, "MARGIN", 2.0)  # so that none is far enough
    slow = sample_gaussian(1e6, 50, SeededNoise([4]))
    assert len(decided) >= 50
    monkeypatch.undo()
    np.testing.assert_array_equal(slow, sample_gaussian(1e6, 50, SeededNoise([4])))


def test_where_an_estimate_of_a_share_is_too_near_decimal_decides(monkeypatch):
    quick = sample_laplace_share(1e6, 3, 30, SeededNoise([4]))
    monkeypatch.setattr(sampling, "MARGIN", 2.0)
    np.testing.assert_array_equal(sample_laplace_share(1e6, 3, 30, SeededNoise([4])), quick)


# Sources.


def test_the_operating_systems_words_are_its_bytes_or_a_stream_of_chacha(monkeypatch):
    asked = []
    urandom = os.urandom
    monkeypatch.setattr(sampling.os, "urandom", lambda size: asked.append(size) or urandom(size))
    for size in (0, 5, 512, 513, 100_000):
        words = OperatingSystemNoise().words(size)
        assert words.shape == (size,)
        assert words.dtype == np.uint64
    assert asked == [0, 40, 4096, 32, 32]  # a key of 256 bits for each stream
    ones = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(6_400_000)
    assert stats.kstest(words * 2.0**-64, "uniform").pvalue > LEVEL


def test_two_calls_of_operating_system_noise_differ_and_numpys_seed_does_not_matter():
    source = OperatingSystemNoise()
    for size in (100, 1000):
        drawn = []
        for _ in range(2):
            np.random.seed(0)  # noqa: NPY002 - the seed that must not matter
            drawn.append(source.words(size))
        assert not np.isin(*drawn).any()


@pytest.mark.parametrize(
    "sample",
    [
        lambda source: sample_gaussian(1e5, 50, source),
        lambda source: sample_laplace(1e5, 50, source),
        lambda source: sample_gaussian_share(1e5, 4, 50, source),
        lambda source: sample_laplace_share(1e5, 4, 50, source),
    ],
)
def test_a_seed_repeats_and_goes_on(sample):
    source = SeededNoise([7, 1])
    first, second = sample(source), sample(source)
    np.testing.assert_array_equal(first, sample(SeededNoise((7, 1))))
    assert (first != second).any()
    for other in ([7, 2], [7, 1, 1]):
        assert (first != sample(SeededNoise(other))).any()


CHILD = """
import numpy as np
from flower_fedclust.privacy.noise import SeededNoise, sample_gaussian, sample_laplace
from flower_fedclust.privacy.noise import sample_laplace_share
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
        found.add(subprocess.run(child, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1


# Shares.


def laplace_shares_exact(scale, n_shares, integers):
    """Probabilities of the rounded Laplace variable plus n - 1 steps."""
    step = 1 / (8 * math.cosh(1 / (4 * scale)) ** 2)
    wide = np.arange(integers[0] - n_shares, integers[-1] + n_shares + 1)
    probabilities = rounded(stats.laplace, scale, wide)
    for _ in range(n_shares - 1):
        probabilities = np.convolve(probabilities, [step, 1 - 2 * step, step], mode="same")
    return probabilities[n_shares:-n_shares]


@pytest.mark.parametrize("scale", [0.4, 1.0, 5.0])
@pytest.mark.parametrize("n_shares", [2, 3, 20])
def test_laplace_shares_add_up_to_the_rounded_variable_and_some_steps(scale, n_shares):
    integers = np.arange(-200, 201)
    total = sum(sample_laplace_share(scale, n_shares, SIZE // 2, SeededNoise([5, i])) for i in range(n_shares))
    assert fits(total, laplace_shares_exact(scale, n_shares, integers), integers)


@pytest.mark.parametrize("scale", [0.05, 0.3, 2.0, 40.0])
def test_a_discrete_laplace_variable_and_a_step_are_a_rounded_laplace_variable(scale):
    integers = np.arange(-60, 61)
    discrete = math.tanh(1 / (2 * scale)) * np.exp(-np.abs(integers) / scale)
    step = 1 / (8 * math.cosh(1 / (4 * scale)) ** 2)
    stepped = np.convolve(discrete, [step, 1 - 2 * step, step], mode="same")[1:-1]
    np.testing.assert_allclose(stepped, rounded(stats.laplace, scale, integers)[1:-1], rtol=1e-9, atol=1e-15)
    with localcontext(CONTEXT):
        from flower_fedclust.privacy.noise import _share_tables

        steps = _share_tables(scale, 2)[2]
        assert steps.thresholds[0] / 2**128 == pytest.approx(step, rel=1e-12)


@pytest.mark.parametrize("n_shares", [2, 7, 500])
def test_shares_on_a_fine_grid_add_up_to_the_variable(n_shares):
    size = 3000
    for sample, distribution in ((sample_gaussian_share, stats.norm), (sample_laplace_share, stats.laplace)):
        total = sum(sample(2.0**30, n_shares, size, SeededNoise([6, i])) for i in range(n_shares))
        assert stats.kstest(total / 2.0**30, distribution.cdf).pvalue > LEVEL


@pytest.mark.parametrize("n_shares", [2, 5])
def test_gaussian_shares_are_the_rounded_sum_with_uniform_variables(n_shares):
    scale = 4.0 * math.sqrt(n_shares)
    integers = np.arange(-150, 151)
    total = sum(sample_gaussian_share(scale, n_shares, SIZE, SeededNoise([8, i])) for i in range(n_shares))
    # A density on a fine grid, folded with n boxes: of the variables on [-1/2, 1/2], and of rounding.
    fine = 64
    grid = np.arange(-200 * fine, 200 * fine + 1) / fine
    density = stats.norm.pdf(grid, scale=scale) / fine
    box = np.r_[0.5, np.ones(fine - 1), 0.5] / fine
    for _ in range(n_shares):
        density = np.convolve(density, box, mode="same")
    probabilities = np.array([density[np.searchsorted(grid, k)] * fine for k in integers])
    assert fits(total, probabilities, integers)


def test_the_bound_of_gaussian_shares_is_above_the_true_distance():
    # By convolution of exact probabilities where shares are so narrow that there is a distance to see.
    for width, n_shares in ((0.5, 2), (0.6, 3)):
        scale = width * math.sqrt(n_shares)
        integers = np.arange(-40, 41)
        share = rounded(stats.norm, width, integers)
        total = share
        for _ in range(n_shares - 1):
            total = np.convolve(total, share, mode="same")
        fine = 256
        grid = np.arange(-40 * fine, 40 * fine + 1) / fine
        density = stats.norm.pdf(grid, scale=scale) / fine
        for _ in range(n_shares):
            density = np.convolve(density, np.r_[0.5, np.ones(fine - 1), 0.5] / fine, mode="same")
        smooth = density[::fine] * fine
        distance = 0.5 * np.abs(total - smooth).sum()
        aliases = math.expm1(n_shares * math.log1p(2.1 * math.exp(-((math.pi * width) ** 2) / 2)))
        bound = (14 * scale + n_shares / 2 + 1) * aliases / (math.sqrt(2 * math.pi) * scale)
        assert 1e-6 < distance < bound


def test_shares_that_are_too_narrow_are_refused():
    with pytest.raises(ValueError, match="finer unit"):
        sample_gaussian_share(16.0, 1000, 3, SeededNoise([1]))
    with pytest.raises(ValueError, match="finer unit"):
        total_variation("gaussian", 16.0, 1000)


@pytest.mark.parametrize("scale", [4.0, 1e3, 2.0**25, 2.0**50])
def test_total_variations_are_small_and_grow_with_the_shares(scale):
    assert total_variation("laplace", scale) <= 2.0**-60
    assert total_variation("gaussian", scale) <= 2.0**-60
    for n_shares in (2, 100, 10_000):
        assert total_variation("laplace", scale, n_shares) <= 2.0**-60
        if scale >= 4 * math.sqrt(n_shares):
            found = total_variation("gaussian", scale, n_shares)
            assert total_variation("gaussian", scale) < found <= 2.0**-60
    assert total_variation("gaussian", 0.0, 5) == 0.0


def test_an_entry_takes_a_few_hundred_nanoseconds():
    # The benchmark measures it; here only that nobody made it a hundred times slower.
    for sample in (sample_gaussian, sample_laplace):
        start = time.perf_counter()
        sample(2.0**25, 100_000, OperatingSystemNoise())
        assert time.perf_counter() - start < 2.0
