"""The privacy of FedDP-KMeans, from the rounds it yields: what one row, or one client, can change."""

import math
from fractions import Fraction

import numpy as np
import pytest
from feddp_forms import CLIENT, feddp
from hypothesis import given, settings
from hypothesis import strategies as st
from tested import PAPERS

from flower_fedclust.checking import watched_run
from flower_fedclust.engine import ClientData
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.sums import is_off_diagonal, triangle_to_symmetric
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.common.clusters import ClientBounds
from flower_fedclust.strategies.feddp_kmeans import FedDPKMeansClient

OPTIONS = {
    "plain": {},
    "lloyd": {"n_rounds": 2},
    "origin": {"center_rows": False},
    "all_of_space": {"n_clusters": 7},
}
if PAPERS:
    OPTIONS |= {
        "margin": {"margin": 1 / 3},
        "simplify": {"simplify_server_data": True},
        "far_regions": {"reduce_diameter": True},
    }


def groups(seed, far=0.0):
    """Server rows of four clusters in five columns, and client rows of three of them; two are far from the rest."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(4, 5)) * 4
    centers[2:, 0] += far
    server_rows = np.concatenate([center + rng.normal(size=(12, 5)) for center in centers])
    clients = [centers[rng.integers(1, 4, size=40)] + rng.normal(size=(40, 5)) for _ in range(4)]
    return server_rows, clients


def rounds_of(seed=0, far=0.0, **options):
    server_rows, clients = groups(seed, far)
    strategy = feddp(options.pop("n_clusters", 3), server_data=server_rows, **options)
    run = watched_run(
        strategy, {str(index): ClientData(rows) for index, rows in enumerate(clients)}, seed=seed
    )
    return list(run.rounds.values()), run.result, server_rows, clients


def reply_to(round_, rows):
    client = CLIENT(ClientData(rows), name="0")
    reply = round_.asks.reply_of(client, round_.question)
    assert len(reply) == len(round_.answer.sends) == len(round_.releases)
    return reply


def is_within(one, other, release):
    """Tell, exactly, whether two arrays (or an array and none) are no farther apart than the release declares."""
    moved = (
        (one.integers if other is None else one.integers - other.integers).ravel().astype(object)
    )
    if release.triangle:
        moved = np.concatenate(
            [moved, moved[is_off_diagonal((math.isqrt(8 * len(moved) + 1) - 1) // 2)]]
        )
    bound = Fraction(release.sensitivity) / Fraction(2) ** one.exponent
    return np.abs(moved).sum() <= bound if release.norm == "L1" else (moved**2).sum() <= bound**2


def length(array, release):
    values = array.values
    if release.triangle:
        values = triangle_to_symmetric(values)
    return np.linalg.norm(values) if release.norm == "L2" else np.abs(values).sum()


@pytest.fixture(scope="module")
def yielded():
    """The rounds of every option, made once."""
    made = {}

    def get(option, unit):
        if (option, unit) not in made:
            far = 5000.0 if option == "far_regions" else 0.0
            made[option, unit] = rounds_of(far=far, privacy_unit=unit, **OPTIONS[option])
        return made[option, unit]

    return get


rows_that_nobody_foresaw = st.builds(
    lambda seed, n, power, near: (
        np.random.default_rng(seed).normal(size=(n, 5))
        * 10.0 ** np.random.default_rng(seed + 1).uniform(min(power, 0), max(power, 0), size=(n, 1))
        + near
    ),
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.integers(-3, 6),
    st.sampled_from([0.0, 3.0, 5000.0, -1e6]),
)


@pytest.mark.parametrize("option", OPTIONS)
@given(rows=rows_that_nobody_foresaw, extreme=st.sampled_from([None, 1e6, 1e12, 1e200]))
@settings(max_examples=12, deadline=None)
def test_one_row_moves_no_sum_by_more_than_the_sensitivity_that_is_declared(
    yielded, option, rows, extreme
):
    rounds, *_ = yielded(option, "record")
    if extreme is not None:
        rows = np.concatenate([rows, np.eye(5)[:1] * extreme, -np.eye(5)[1:2] * extreme])
    for round_ in rounds:
        with_all = reply_to(round_, rows)
        for left_out in range(0, len(rows), 2):
            others = np.delete(rows, left_out, axis=0)
            without = reply_to(round_, others) if len(others) else [None] * len(with_all)
            for one, other, release in zip(with_all, without, round_.releases, strict=True):
                assert is_within(one, other, release)


@pytest.mark.parametrize("option", OPTIONS)
@given(
    rows=rows_that_nobody_foresaw,
    extreme=st.sampled_from([None, 1e6, 1e12, 1e200]),
    copies=st.sampled_from([1, 99]),
)
@settings(max_examples=12, deadline=None)
def test_one_client_moves_no_sum_by_more_than_the_sensitivity_that_is_declared(
    yielded, option, rows, extreme, copies
):
    rounds, *_ = yielded(option, "client")
    if extreme is not None:
        rows = np.concatenate([rows, np.eye(5)[:1] * extreme, -np.eye(5)[1:2] * extreme])
    rows = np.concatenate([rows] * copies)
    for round_ in rounds:
        for array, release in zip(reply_to(round_, rows), round_.releases, strict=True):
            assert is_within(array, None, release)


@pytest.mark.parametrize("unit", ["record", "client"])
def test_sensitivity_is_no_larger_than_it_has_to_be(yielded, unit):
    rounds, _, server_rows, clients = yielded("plain", unit)
    radius = np.linalg.norm(server_rows - server_rows.mean(axis=0), axis=1).max()
    extreme = np.eye(5)[:1] * 1e6
    for round_ in rounds:
        if unit == "record":
            replies = reply_to(round_, extreme)
        else:
            replies = reply_to(
                round_, np.concatenate([np.eye(5) * 1e6, -np.eye(5) * 1e6, *clients] * 20)
            )
        for array, release in zip(replies, round_.releases, strict=True):
            if round_.task == "cluster_means":
                assert release.sensitivity in (
                    pytest.approx(np.sqrt(3)),
                    pytest.approx(length(array, release), rel=1e-5),
                )
            else:
                assert length(array, release) == pytest.approx(release.sensitivity, rel=1e-3)
    if unit == "record":
        found = [release.sensitivity for round_ in rounds for release in round_.releases]
        assert found == pytest.approx([radius**2, 1.0, radius, 1.0])


def test_shares_have_names_and_all_lloyd_steps_together_have_what_step_3_has():
    server_rows, _ = groups(0)
    options = {"simplify_server_data": True, "reduce_diameter": True} if PAPERS else {}
    shares = feddp(3, server_data=server_rows, n_rounds=5, **options).shares()
    assert {
        name: (share.fraction, share.count) for name, share in shares.items() if name != "simplify"
    } == {
        **({"regions": (0.2, 1)} if PAPERS else {}),
        "second_moment": (0.2, 1),
        "weights": (0.2, 1),
        "sums": (0.45, 1),
        "counts": (0.15, 1),
        "lloyd_sums": (0.45, 5),
        "lloyd_counts": (0.15, 5),
    }


def test_bounds_that_the_user_gives_are_the_sensitivities_at_client_level():
    bounds = ClientBounds(second_moment=123.0, weights=7.0, means=0.5)
    rounds, *_ = rounds_of(privacy_unit="client", bounds=bounds)
    second_moment, weights, means, presence = (
        release for round_ in rounds for release in round_.releases
    )
    assert (second_moment.sensitivity, weights.sensitivity) == pytest.approx(
        (123.0, 7.0), rel=1e-14
    )
    assert presence.sensitivity == pytest.approx(np.sqrt(3))
    assert means.sensitivity == pytest.approx(0.5, rel=1e-14)


@given(rows=rows_that_nobody_foresaw)
@settings(max_examples=12, deadline=None)
def test_a_clients_moment_loses_its_trace_and_keeps_its_eigenvectors(rows):
    asked = FedDPKMeansClient.traceless_moment.asked(
        frame=Frame(np.zeros(5), 4.0), moment_bound=1e3
    )
    (sent,) = FedDPKMeansClient.traceless_moment.reply_of(
        FedDPKMeansClient(ClientData(rows), name="0"), asked
    )
    rows = rows * np.minimum(1, 4.0 / np.linalg.norm(rows, axis=1, keepdims=True))
    whole = rows.T @ rows
    np.testing.assert_allclose(
        triangle_to_symmetric(sent.values),
        whole - np.trace(whole) / 5 * np.eye(5),
        rtol=0,
        atol=1e-2,
    )


def test_centers_lie_within_the_radius_whatever_the_noise():
    server_rows, clients = groups(2)
    origin = server_rows.mean(axis=0)
    radius = np.linalg.norm(server_rows - origin, axis=1).max()
    for unit in ("record", "client"):
        for margin in (1.0, 1 / 3) if PAPERS else (1.0,):
            strategy = feddp(
                3,
                server_data=server_rows,
                epsilon=0.01,
                privacy_unit=unit,
                n_rounds=1,
                **({} if margin == 1.0 else {"margin": margin}),
            )
            centers = simulate(strategy, clients, seed=0).model.cluster_centers_
            assert np.linalg.norm(centers - origin, axis=1).max() <= radius * (1 + 1e-9)
