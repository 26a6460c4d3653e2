"""Our samplers draw the laws that OpenDP's do: another program, by other people, in another language.

OpenDP adds discrete noise to integers, and noise on a grid of 2^-40 to floats. Rounding the latter gives our rounded
variables; with the steps of :func:`~flower_fedclust.privacy.noise.sample_laplace_share`, discrete noise does, too.
OpenDP draws from the operating system, so a comparison that is right fails once in 10^9 runs.
"""

import numpy as np
import pytest
from scipy.stats import chi2_contingency, ks_2samp, ttest_ind

from flower_fedclust.privacy.noise import (
    SeededNoise,
    sample_gaussian,
    sample_gaussian_share,
    sample_laplace,
    sample_laplace_share,
)

dp = pytest.importorskip(
    "opendp.prelude", reason="pip install opendp compares our samplers with OpenDP's"
)
dp.enable_features("contrib")

pytestmark = pytest.mark.long

#: Draws of each sampler. The mean size of Laplace noise, which varies as much as it is large, differs by chance by
#: sqrt(2 / N) = 0.45%. A scale that is 6% too small is 13 of these deviations away; NEVER takes 6.2.
N = 100_000

#: A p-value that chance does not reach.
NEVER = 1e-9

OURS = {"gaussian": sample_gaussian, "laplace": sample_laplace}
SHARES = {"gaussian": sample_gaussian_share, "laplace": sample_laplace_share}
N_SHARES = 5


def on_integers(mechanism, scale):
    """Return OpenDP's discrete noise."""
    domain = dp.vector_domain(dp.atom_domain(T=int))
    if mechanism == "gaussian":
        made = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale)
    else:
        made = dp.m.make_laplace(domain, dp.l1_distance(T=int), scale=scale)
    return np.array(made([0] * N))


def on_floats(mechanism, scale):
    """Return OpenDP's noise on a grid of 2^-40."""
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=N)
    if mechanism == "gaussian":
        made = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale, k=-40)
    else:
        made = dp.m.make_laplace(domain, dp.l1_distance(T=float), scale=scale, k=-40)
    return np.array(made([0.0] * N))


def ours(mechanism, scale, seed=1):
    return OURS[mechanism](scale, N, SeededNoise([seed]))


def summed_shares(mechanism, scale):
    return sum(
        SHARES[mechanism](scale, N_SHARES, N, SeededNoise([2, share])) for share in range(N_SHARES)
    )


def steps(scale, n_times):
    """Return sums of steps of 1 or -1, as a share of Laplace noise takes one."""
    likely = 1.0 / (8.0 * np.cosh(1.0 / (4.0 * scale)) ** 2)
    drawn = np.random.default_rng(3).choice(
        [-1, 0, 1], p=[likely, 1 - 2 * likely, likely], size=(n_times, N)
    )
    return drawn.sum(axis=0)


def p_value(one, other):
    """Return a bound on how likely two samples of integers of one law are as unlike as these: in shape, or in width."""
    sizes = [np.abs(sample) for sample in (one, other)]
    return min(
        1.0, 2 * min(_of_shape(one, other), float(ttest_ind(*sizes, equal_var=False).pvalue))
    )


def _of_shape(one, other):
    low, high = np.quantile(np.concatenate([one, other]), [0.0005, 0.9995])
    if high - low > 400:  # too many integers for a table
        return float(ks_2samp(one, other).pvalue)
    clipped = [np.clip(sample, low, high).astype(np.int64) - int(low) for sample in (one, other)]
    counts = np.array([np.bincount(sample, minlength=int(high - low) + 1) for sample in clipped])
    return float(chi2_contingency(counts[:, counts.sum(axis=0) > 0]).pvalue)


@pytest.mark.parametrize("mechanism", OURS)
@pytest.mark.parametrize("scale", [0.4, 1.0, 7.3, 60.0])
def test_rounded_noise_is_opendps_noise_on_a_fine_grid_rounded(mechanism, scale):
    assert p_value(ours(mechanism, scale), np.rint(on_floats(mechanism, scale))) > NEVER


@pytest.mark.parametrize("mechanism", OURS)
@pytest.mark.parametrize("scale", [300.0, 1e6])
def test_wide_noise_is_opendps_discrete_noise(mechanism, scale):
    """Where the scale is far above a unit, rounded and discrete noise are the same but for less than 1e-5."""
    assert p_value(ours(mechanism, scale), on_integers(mechanism, scale)) > NEVER


@pytest.mark.parametrize("scale", [0.4, 1.0, 7.3])
def test_rounded_laplace_noise_is_opendps_discrete_noise_and_a_step(scale):
    assert p_value(ours("laplace", scale), on_integers("laplace", scale) + steps(scale, 1)) > NEVER


@pytest.mark.parametrize("scale", [1.0, 7.3])
def test_shares_of_laplace_noise_add_up_to_opendps_discrete_noise_and_steps(scale):
    assert (
        p_value(
            summed_shares("laplace", scale), on_integers("laplace", scale) + steps(scale, N_SHARES)
        )
        > NEVER
    )


@pytest.mark.parametrize("scale", [10.0, 60.0])
def test_shares_of_gaussian_noise_add_up_to_opendps_noise_and_what_was_rounded(scale):
    rounded = np.random.default_rng(4).uniform(-0.5, 0.5, size=(N_SHARES - 1, N)).sum(axis=0)
    assert (
        p_value(summed_shares("gaussian", scale), np.rint(on_floats("gaussian", scale) + rounded))
        > NEVER
    )


@pytest.mark.parametrize("mechanism", OURS)
@pytest.mark.parametrize("scale", [1.0, 7.3, 1e6])
def test_the_comparison_notices_noise_that_is_6_percent_narrower(mechanism, scale):
    other = on_integers(mechanism, scale) if scale > 100 else np.rint(on_floats(mechanism, scale))
    assert p_value(ours(mechanism, 0.94 * scale), other) < NEVER


def test_the_comparison_notices_discrete_noise_in_place_of_rounded_noise():
    assert p_value(ours("laplace", 0.4), on_integers("laplace", 0.4)) < NEVER
