import numpy as np
import pytest
from scipy import stats

from flower_fedclust.privacy import noise
from flower_fedclust.privacy.noise import OperatingSystemNoise, SeededNoise, add_noise, add_relative_noise, draw
from flower_fedclust.privacy.releases import Release

SIZE = 200_000
GAUSSIAN = Release("gaussian", sensitivity=4.0, noise_multiplier=0.75, bound="clipped")
LAPLACE = Release("laplace", sensitivity=4.0, noise_multiplier=0.75, bound="counted")
SCALE = 3.0


class ConstantNoise:
    def __init__(self, value):
        self.value = value

    def uniform(self, size):
        return np.full(size, self.value)


def bytes_of(*integers):
    return b"".join(int(integer).to_bytes(8, "little") for integer in integers)


@pytest.mark.parametrize("source", [SeededNoise([1]), OperatingSystemNoise()], ids=["seeded", "operating-system"])
def test_uniform_numbers_are_uniform_and_uncorrelated(source):
    # A true test at level 1e-9: it does not fail by chance, even where there is no seed.
    numbers = source.uniform(SIZE)
    assert numbers.shape == (SIZE,)
    assert ((numbers > 0) & (numbers < 1)).all()
    assert stats.kstest(numbers, "uniform").pvalue > 1e-9
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 7 / np.sqrt(SIZE)


def test_operating_system_noise_is_the_top_52_bits_of_what_urandom_gives(monkeypatch):
    asked = []
    integers = [0, 2**12, 2**63, 2**63 + 2**62, 12345678901234567890]

    def urandom(n_bytes):
        asked.append(n_bytes)
        return bytes_of(*integers)

    monkeypatch.setattr(noise.os, "urandom", urandom)
    numbers = OperatingSystemNoise().uniform(5)
    assert asked == [40]
    np.testing.assert_allclose(numbers, [(integer // 2**12 + 0.5) / 2**52 for integer in integers], rtol=1e-15)


def test_two_calls_of_operating_system_noise_differ():
    source = OperatingSystemNoise()
    assert not np.isin(source.uniform(1000), source.uniform(1000)).any()


def test_numpys_seed_does_not_influence_operating_system_noise():
    drawn = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002 - the seed that must not matter
        drawn.append(draw(GAUSSIAN, 20, OperatingSystemNoise()))
    assert not np.isin(*drawn).any()


def test_noise_leaves_numpys_global_state_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    for source in (OperatingSystemNoise(), SeededNoise([1])):
        draw(GAUSSIAN, 5, source)
        draw(LAPLACE, 5, source, n_shares=3)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_the_least_number_that_urandom_can_give_is_above_zero(monkeypatch):
    monkeypatch.setattr(noise.os, "urandom", lambda n_bytes: b"\x00" * n_bytes)
    assert (OperatingSystemNoise().uniform(2) > 0).all()
    assert np.isfinite(draw(GAUSSIAN, 2, OperatingSystemNoise())).all()
    assert np.isfinite(draw(LAPLACE, 2, OperatingSystemNoise())).all()


def test_the_largest_number_that_urandom_can_give_is_below_one(monkeypatch):
    monkeypatch.setattr(noise.os, "urandom", lambda n_bytes: b"\xff" * n_bytes)
    assert (OperatingSystemNoise().uniform(2) < 1).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("release", "n_shares"), [(GAUSSIAN, 1), (GAUSSIAN, 5), (LAPLACE, 5)], ids=str)
def test_noise_is_finite_whatever_urandom_gives(release, n_shares, monkeypatch):
    monkeypatch.setattr(noise.os, "urandom", lambda n_bytes: b"\xff" * n_bytes)
    assert np.isfinite(draw(release, 4, OperatingSystemNoise(), n_shares=n_shares)).all()


@pytest.mark.parametrize("release", [GAUSSIAN, LAPLACE], ids=["gaussian", "laplace"])
@pytest.mark.parametrize("n_shares", [1, 4])
def test_seeded_noise_repeats_for_its_seed_and_differs_for_another(release, n_shares):
    first, again, other, longer = (
        draw(release, 100, SeededNoise(seed), n_shares=n_shares) for seed in ([7, 1], (7, 1), [7, 2], [7, 1, 1])
    )
    np.testing.assert_array_equal(first, again)
    for different in (other, longer):
        assert not np.isin(first, different).any()


def test_a_seeded_source_goes_on_and_does_not_start_again():
    source = SeededNoise([3])
    assert not np.isin(source.uniform(100), source.uniform(100)).any()


@pytest.mark.parametrize(
    ("release", "variance", "kurtosis"),
    [(GAUSSIAN, SCALE**2, 3.0), (LAPLACE, 2 * SCALE**2, 6.0)],
    ids=["gaussian", "laplace"],
)
def test_moments_of_the_noise_are_those_of_its_distribution(release, variance, kurtosis):
    drawn = draw(release, SIZE, SeededNoise([11]))
    # Five standard errors of each estimate.
    assert abs(drawn.mean()) < 5 * np.sqrt(variance / SIZE)
    assert abs(drawn.var() - variance) < 5 * variance * np.sqrt((kurtosis - 1) / SIZE)
    skewness_error = {3.0: 15.0, 6.0: 90.0}[kurtosis]  # sixth standardised moment
    assert abs(stats.skew(drawn)) < 5 * np.sqrt(skewness_error / SIZE)
    eighth = {3.0: 105.0, 6.0: 2520.0}[kurtosis]
    assert abs(stats.kurtosis(drawn, fisher=False) - kurtosis) < 5 * np.sqrt(eighth / SIZE)


def distribution(release):
    return stats.norm(scale=SCALE).cdf if release.mechanism == "gaussian" else stats.laplace(scale=SCALE).cdf


@pytest.mark.parametrize("release", [GAUSSIAN, LAPLACE], ids=["gaussian", "laplace"])
@pytest.mark.parametrize("n_shares", [1, 2, 50])
def test_shares_add_up_to_noise_of_the_whole_distribution(release, n_shares):
    size = 20_000
    total = sum(draw(release, size, SeededNoise([5, share]), n_shares=n_shares) for share in range(n_shares))
    assert stats.kstest(total, distribution(release)).pvalue > 0.01


@pytest.mark.parametrize("release", [GAUSSIAN, LAPLACE], ids=["gaussian", "laplace"])
@pytest.mark.parametrize("n_shares", [2, 10])
def test_one_share_carries_its_part_of_the_variance(release, n_shares):
    variance = (1 if release.mechanism == "gaussian" else 2) * SCALE**2 / n_shares
    drawn = draw(release, SIZE, SeededNoise([6]), n_shares=n_shares)
    kurtosis = 3 if release.mechanism == "gaussian" else 3 + 3 * n_shares
    assert abs(drawn.mean()) < 5 * np.sqrt(variance / SIZE)
    assert abs(drawn.var() - variance) < 5 * variance * np.sqrt((kurtosis - 1) / SIZE)


def test_more_clients_than_shares_only_add_more_noise():
    total = sum(draw(LAPLACE, 20_000, SeededNoise([8, client]), n_shares=5) for client in range(8))
    assert total.var() > 1.4 * 2 * SCALE**2


def test_a_share_of_very_many_is_finite():
    for n_shares in (1000, 100_000):
        assert np.isfinite(draw(LAPLACE, 10_000, SeededNoise([1]), n_shares=n_shares)).all()


def test_the_entries_of_one_draw_are_independent():
    for release in (GAUSSIAN, LAPLACE):
        for n_shares in (1, 3):
            drawn = draw(release, SIZE, SeededNoise([2]), n_shares=n_shares)
            assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 5 / np.sqrt(SIZE)
            # The magnitudes too: halves that shared their uniform numbers would show here.
            magnitudes = np.abs(drawn)
            assert abs(np.corrcoef(magnitudes[: SIZE // 2], magnitudes[SIZE // 2 :])[0, 1]) < 0.05


def test_the_sign_of_laplace_noise_is_independent_of_its_size():
    drawn = draw(LAPLACE, SIZE, SeededNoise([9]))
    assert abs(np.corrcoef(np.sign(drawn), np.abs(drawn))[0, 1]) < 5 / np.sqrt(SIZE)


def test_noise_grows_with_the_scale_of_the_release():
    for mechanism in ("gaussian", "laplace"):
        small, wide, noisy = (
            draw(Release(mechanism, sensitivity, multiplier, ""), 10, SeededNoise([1]))
            for sensitivity, multiplier in ((1.0, 1.0), (10.0, 1.0), (1.0, 10.0))
        )
        np.testing.assert_allclose(wide, 10 * small, rtol=1e-13)
        np.testing.assert_allclose(noisy, 10 * small, rtol=1e-13)


def test_gaussian_noise_is_the_normal_quantile_of_the_uniform_number():
    np.testing.assert_allclose(draw(GAUSSIAN, 2, ConstantNoise(0.975)), 1.959963984540054 * SCALE, rtol=1e-12)
    np.testing.assert_allclose(draw(GAUSSIAN, 2, ConstantNoise(0.975), n_shares=4), 0.979981992270027 * SCALE)


def test_laplace_noise_is_the_quantile_of_one_uniform_number_with_the_sign_of_another():
    np.testing.assert_allclose(draw(LAPLACE, 2, ConstantNoise(0.75)), -SCALE * np.log(0.75), rtol=1e-12)
    np.testing.assert_allclose(draw(LAPLACE, 2, ConstantNoise(0.25)), SCALE * np.log(0.25), rtol=1e-12)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_scale_zero_gives_zeros_and_draws_nothing(mechanism):
    drawn = draw(Release(mechanism, 2.0, 0.0, ""), 7, source=None, n_shares=3)
    np.testing.assert_array_equal(drawn, np.zeros(7))


def test_add_noise_leaves_an_array_without_a_release_untouched():
    plain, covered = np.random.default_rng(0).normal(size=(2, 3, 4))
    released = add_noise([plain, covered], [None, GAUSSIAN], SeededNoise([1]))
    assert released[0] is plain
    assert (released[1] != covered).all()


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4), (0, 3)], ids=str)
def test_add_noise_keeps_the_shape_and_adds_what_is_drawn(shape):
    array = np.random.default_rng(0).normal(size=shape)
    (released,) = add_noise([array], [LAPLACE], SeededNoise([1]), n_shares=3)
    assert released.shape == shape
    expected = draw(LAPLACE, array.size, SeededNoise([1]), n_shares=3).reshape(shape)
    np.testing.assert_allclose(released - array, expected, atol=1e-12)


def test_add_noise_does_not_write_to_its_input():
    array = np.zeros((3, 4))
    add_noise([array], [GAUSSIAN], SeededNoise([1]))
    np.testing.assert_array_equal(array, np.zeros((3, 4)))


def test_arrays_of_one_message_get_different_noise():
    first, second = add_noise([np.zeros(50)] * 2, [GAUSSIAN, GAUSSIAN], SeededNoise([1]))
    assert not np.isin(first, second).any()


def test_add_noise_wants_one_release_an_array():
    with pytest.raises(ValueError, match="zip"):
        add_noise([np.zeros(2), np.zeros(2)], [GAUSSIAN], SeededNoise([1]))


@pytest.mark.parametrize("level", [0.05, 1.0, 3.0])
def test_relative_noise_is_in_proportion_to_the_deviation_of_all_the_entries(level):
    array = np.random.default_rng(0).normal(size=(4000, 3)) * [1.0, 10.0, 0.1] + 1000.0
    added = add_relative_noise(array, level, SeededNoise([1])) - array
    assert abs(added.mean()) < 5 * level * array.std() / np.sqrt(array.size)
    # Of every column alike, narrow or wide.
    np.testing.assert_allclose(added.std(axis=0), level * array.std(), rtol=0.06)
    assert stats.kstest(added.ravel() / (level * array.std()), "norm").pvalue > 1e-3


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)], ids=str)
def test_relative_noise_is_what_a_gaussian_release_of_that_scale_draws(shape):
    array = np.random.default_rng(0).normal(size=shape)
    expected = array + draw(Release("gaussian", array.std(), 0.5, ""), array.size, SeededNoise([1])).reshape(shape)
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


def test_negative_relative_noise_is_refused():
    with pytest.raises(ValueError, match=r"noise_multiplier is -0\.5"):
        add_relative_noise(np.arange(6.0), -0.5, SeededNoise([1]))
