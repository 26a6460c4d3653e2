import itertools

import numpy as np
import pytest

from flower_fedclust.engine import ClientData, ClippedStrategy, Gather, Sent, answers, parameter
from flower_fedclust.models import KMeansModel
from flower_fedclust.privacy.accounting import composed_epsilon
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.common.moments import MOMENT_ROUNDS, MomentsClient, column_moments
from flower_fedclust_papers.perturbed_rows import (
    NOISY_ROWS,
    ROWS_PART,
    PerturbedRowsClient,
    perturb_rows,
)

RNG = np.random.default_rng(5)
CLIENTS = [RNG.normal(size=(n, 3)) * [1.0, 5.0, 20.0] + 3.0 for n in (200, 400, 300)]


class TellingClient(MomentsClient, PerturbedRowsClient):
    @answers(Sent("the rows", "rows", per="row"))
    def all_rows(self):
        return self.rows


class Perturbing(ClippedStrategy):
    """Perturbs the rows, takes the moments of the noisy ones, and gathers them to look at."""

    client_type = TellingClient
    n_protocol_rounds = 1 + MOMENT_ROUNDS + 1

    n_clusters: int = parameter(2)
    relative_noise: float = parameter(0.0)
    multiplier: float | None = parameter(None)

    def parts(self):
        return ROWS_PART

    def noise_multipliers(self, shares=None):
        return (
            super().noise_multipliers(shares)
            if self.multiplier is None
            else {"rows": self.multiplier}
        )

    def protocol(self):
        yield from perturb_rows(self.max_norm_of_rows, relative_noise=self.relative_noise)
        model = KMeansModel(np.zeros((1, 3)))
        model.moments, _ = yield from column_moments(rows=NOISY_ROWS)
        model.kept = [
            reply.arrays[0]
            for reply in (yield Gather(TellingClient.all_rows.asked(), rows=NOISY_ROWS))
        ]
        return model


def clipped(rows, max_norm):
    return np.array([row * min(1.0, max_norm / np.sqrt((row**2).sum())) for row in rows])


def private(max_norm, multiplier, **options):
    return Perturbing(
        epsilon=30.0, max_norm=max_norm, multiplier=multiplier, **{"noise": "local"} | options
    )


def release_of(max_norm, multiplier):
    return release_by(private(max_norm, multiplier))


def release_by(strategy):
    (release,) = strategy.with_noise(next(perturb_rows(strategy.max_norm_of_rows))).releases
    return release


def test_calibrated_release_spends_the_whole_budget_on_the_rows():
    release = release_by(Perturbing(epsilon=3.0, max_norm=2.0))
    assert release == release_of(2.0, release.noise_multiplier)
    assert 0.99 * 3.0 <= composed_epsilon([release], 1e-6) <= 3.0


def kept_by(rows, max_norm):
    return (
        PerturbedRowsClient(ClientData(rows), name="0")
        .perturb_rows(relative_noise=0.0, max_norm=max_norm)
        .values
    )


def test_replacing_a_row_moves_what_is_kept_by_no_more_than_the_sensitivity():
    candidates = [
        np.array(row) for row in ([0.0, 0], [9, 0], [-9, 0], [0, 0.5], [-0.5, 0], [3, -4], [-3, 4])
    ]
    kept = [kept_by([[1.0, 1.0], row], 2.0) for row in candidates]
    farthest = max(np.linalg.norm(one - other) for one, other in itertools.product(kept, repeat=2))
    release = release_of(2.0, 1.0)
    assert release.relation == "replace"
    assert release.sensitivity * (1 - 1e-12) <= farthest <= release.sensitivity


@pytest.mark.parametrize("noise", ["server", "clients", "local"])
def test_clients_keep_their_clipped_rows_with_all_the_noise(noise):
    kept = simulate(private(10.0, 0.25, noise=noise), CLIENTS, seed=1).model.kept
    for rows, noisy in zip(CLIENTS, kept, strict=True):
        drawn = noisy - clipped(rows, 10.0)
        assert abs(drawn.mean()) < 5 * 5.0 / np.sqrt(rows.size)
        assert np.std(drawn) == pytest.approx(5.0, rel=0.15)
        # Every entry has the same noise, however long its row or wide its column.
        np.testing.assert_allclose(drawn.std(axis=0), 5.0, rtol=0.2)


def test_rows_are_clipped_to_the_norm():
    for rows in CLIENTS:
        np.testing.assert_allclose(kept_by(rows, 10.0), clipped(rows, 10.0), rtol=0, atol=1e-6)


def test_without_an_epsilon_and_without_noise_the_rows_are_kept_as_they_are():
    for rows, kept in zip(CLIENTS, simulate(Perturbing(), CLIENTS).model.kept, strict=True):
        assert np.array_equal(kept, rows)


@pytest.mark.parametrize("level", [0.1, 2.0])
def test_relative_noise_is_in_proportion_to_the_deviation_of_all_the_entries_of_a_client(level):
    scaled = [CLIENTS[0], 100.0 * CLIENTS[1], CLIENTS[2] + 1000.0]
    kept = simulate(Perturbing(relative_noise=level), scaled, seed=1).model.kept
    for rows, noisy in zip(scaled, kept, strict=True):
        assert np.std(noisy - rows) == pytest.approx(level * rows.std(), rel=0.15)


def test_relative_noise_repeats_for_a_seed_and_differs_from_client_to_client():
    def kept(seed):
        return simulate(Perturbing(relative_noise=1.0), [np.eye(3)] * 2, seed=seed).model.kept

    assert all(np.array_equal(one, other) for one, other in zip(kept(1), kept(1), strict=True))
    assert not np.isclose(kept(1)[0], kept(2)[0]).any()
    assert not np.isclose(*kept(1)).any()
    assert not np.isclose(kept(None)[0], kept(None)[0]).any()


def test_all_that_follows_is_computed_from_what_was_kept_and_costs_one_release():
    release = release_of(10.0, 4.0)
    result = simulate(private(10.0, 4.0), CLIENTS)
    pooled = np.concatenate(result.model.kept)
    np.testing.assert_allclose(
        result.model.moments.mean, pooled.mean(axis=0), rtol=0, atol=512 * 2.0**-24
    )
    np.testing.assert_allclose(
        result.model.moments.deviation, pooled.std(axis=0), rtol=0, atol=512 * 2.0**-24
    )
    report = result.privacy
    assert report.covers_everything
    assert [(message.task, message.release) for message in report.releases] == [
        ("perturb_rows", release)
    ]
    assert report.composed_epsilon == pytest.approx(composed_epsilon([release], 1e-6), rel=1e-3)
    assert all(message.post_processing for message in report.messages if message.round > 2)
    assert "replaced by any other" in report.neighbors


def test_relative_noise_for_clipped_rows_is_refused_as_it_would_break_the_bound():
    with pytest.raises(ValueError, match="relative_noise"):
        next(perturb_rows(1.0, relative_noise=0.5))
