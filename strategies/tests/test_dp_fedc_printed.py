"""DP-FedC as printed: Algorithm 1 with the paper's penalties, minibatches and origin."""

from collections import Counter, defaultdict
from itertools import chain, pairwise

import numpy as np
import pytest
from test_dp_fedc import (
    CLIENTS,
    H_0,
    LABELS,
    ROWS,
    W_0,
    BegunClient,
    by_the_paper,
    drawn_by_round,
    far_rows,
)
from watching import failing, watched

from flower_fedclust.exact.factorization import Penalties, lifted, membership_steps
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies import dp_fedc
from flower_fedclust.strategies.dp_fedc import MEMBERSHIPS, DPFedC
from flower_fedclust_papers.dp_fedc_printed import DPFedCPrinted, DPFedCPrintedClient


class BegunPrintedClient(BegunClient, DPFedCPrintedClient):
    """Begins with memberships that the test knows."""


class Begun(DPFedCPrinted):
    client_type = BegunPrintedClient


# Algorithm 1


@pytest.mark.parametrize(
    "options", [{"rho": 3.0, "mu_h": 0.1}, {"rho": 0.5, "mu_h": 2.0, "mu_w": 5.0}]
)
@pytest.mark.parametrize("rows", [ROWS, ROWS - 4.0], ids=["not negative", "negative"])
def test_one_client_is_the_pooled_algorithm(rows, options, monkeypatch):
    monkeypatch.setitem(H_0, "0", H_0["5"])
    watched_type, _, messages = watched(Begun)
    strategy = watched_type(
        3,
        n_rounds=12,
        init=W_0,
        batch_size=999,
        min_clients=1,
        fraction_fit=1.0,
        step_scale=2.0,
        **options,
    )
    result = simulate(strategy, [rows])
    W, H = by_the_paper([rows], [["0"]] * 12, **options)
    np.testing.assert_allclose(result.model.components_, W, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(messages[-1].kept[MEMBERSHIPS], H["0"], rtol=1e-6, atol=1e-8)
    assert result.model.penalties == Penalties(options["rho"], options["mu_h"])


@pytest.mark.parametrize(
    "options",
    [
        {"fraction_fit": 0.6, "rho": 4.0, "mu_h": 0.0, "mu_w": 2.0, "step_scale": 1.5},
        {"fraction_fit": 0.4, "rho": 1.0, "mu_h": 0.1, "update_all": False},
        {"fraction_fit": 1.0, "rho": 1.0, "mu_h": 0.1, "n_center_steps": 4, "step_decay": 0},
    ],
)
def test_several_clients_are_algorithm_1_with_the_clients_that_were_drawn(options):
    strategy_type, _, messages = watched(Begun)
    result = simulate(
        strategy_type(
            3, n_rounds=9, init=W_0, batch_size=999, random_state=4, **{"step_scale": 2.0} | options
        ),
        CLIENTS,
    )
    names = {
        "step_scale": "alpha",
        "n_membership_steps": "Q_1",
        "n_center_steps": "Q_hat",
        "step_decay": "decay",
    }
    papers = {
        names.get(name, name): value for name, value in options.items() if name != "fraction_fit"
    }
    W, H = by_the_paper(CLIENTS, drawn_by_round(result), **papers)
    np.testing.assert_allclose(result.model.components_, W, rtol=1e-6, atol=1e-8)
    kept = {each.client: each.kept[MEMBERSHIPS] for each in messages if MEMBERSHIPS in each.kept}
    for name, memberships in kept.items():
        np.testing.assert_allclose(memberships, H[name], rtol=1e-6, atol=1e-8)
    assert set(kept) == set(H_0) - {"5", "6"}


def test_the_papers_penalties_are_parts_of_the_squared_norm_of_a_client():
    result = simulate(DPFedCPrinted(3, n_rounds=2, random_state=0), CLIENTS)
    squared = float(np.sum(ROWS**2)) / 5
    assert result.model.penalties.rho == pytest.approx(1e-7 * squared, rel=1e-12)
    assert result.model.penalties.mu_h == pytest.approx(1e-10 * squared, rel=1e-12)
    assert {message.task for message in result.privacy.unprotected} == {"squared_norm", "factorize"}


# Where rays begin


def test_about_the_mean_the_algorithm_is_the_same_for_rows_with_one_more_coordinate():
    clients = np.array_split(far_rows(0)[0], 4)
    rows = np.concatenate(clients)
    origin = np.append(rows.mean(axis=0), 0.5 * np.sqrt(rows.var(axis=0).sum()))
    options = {"n_rounds": 12, "rho": 3.0, "mu_h": 0.1, "random_state": 2}
    moved = simulate(DPFedC(3, init=rows[:3], **options), clients)
    shown = simulate(
        DPFedCPrinted(3, init=lifted(rows[:3], origin), step_scale=2.0, **options),
        [lifted(each, origin) for each in clients],
    )
    np.testing.assert_allclose(
        moved.model.components_, shown.model.components_, rtol=1e-6, atol=1e-8
    )
    assert list(np.concatenate(moved.labels)) == list(np.concatenate(shown.labels))
    assert moved.model.n_columns == 3
    assert np.abs(moved.model.cluster_points - 50).max() < 20


@pytest.mark.parametrize(
    "options",
    [{}, {"rho": "growing"}, {"rho": "paper", "rays_from": "auto"}],
    ids=["printed", "zero", "the paper's rho"],
)
def test_rays_begin_at_0_as_in_the_paper(options):
    result = simulate(
        DPFedCPrinted(3, n_rounds=2, random_state=0, **options), np.array_split(far_rows(0)[0], 3)
    )
    assert result.model.components_.shape == (3, 3)


# Minibatches


def batches_of(monkeypatch, clients, **options):
    """The rows of each step on the centers, by number of rows, of every client and round."""
    taken = []

    def watched(rows, H, W, batches, mu_w, eta):
        taken.extend([int(row[0]) for row in rows[batch]] for batch in batches)
        return W

    monkeypatch.setattr(dp_fedc, "center_steps", watched)
    numbered = [np.column_stack([np.arange(1.0, n + 1), np.ones(n)]) for n in clients]
    simulate(
        DPFedCPrinted(
            2, fraction_fit=1.0, rho=0.0, step_scale=2.0, **({"random_state": 0} | options)
        ),
        numbered,
    )
    return taken


def test_batches_have_rows_that_differ_and_no_row_comes_twice_before_all_have_come(monkeypatch):
    taken = batches_of(monkeypatch, [12, 12], n_rounds=1, n_center_steps=7, batch_size=4)
    assert [len(batch) for batch in taken] == [4] * 16
    for client in (taken[:8], taken[8:]):
        for turn in (client[:3], client[3:6]):
            assert sorted(chain(*turn)) == list(range(1, 13))
        assert len(set(chain(*client[6:]))) == 8
        assert client[0] != sorted(client[0])
    assert taken[:8] != taken[8:]


def test_client_with_fewer_rows_than_a_batch_takes_all_in_every_step(monkeypatch):
    taken = batches_of(monkeypatch, [3, 1], n_rounds=1, n_center_steps=2, batch_size=4)
    assert [sorted(batch) for batch in taken] == [[1, 2, 3]] * 3 + [[1]] * 3


# Who does what


def test_all_clients_update_their_memberships_and_only_those_drawn_upload():
    strategy_type, _, messages = watched(DPFedCPrinted)
    result = simulate(
        strategy_type(3, n_rounds=6, fraction_fit=0.4, rho="growing", random_state=0), CLIENTS
    )
    for number in range(2, 8):
        rows = [row for row in result.traffic if row.round == number]
        assert sorted(row.client for row in rows) == ["0", "1", "2", "3", "4"]
        assert Counter(row.task for row in rows) == {"factorize": 2, "update_memberships": 3}
        assert all((row.bytes_up > 0) is (row.task == "factorize") for row in rows)
    kept = defaultdict(list)
    for each in messages:
        if each.task != "enrol":
            kept[each.client].append(each.kept[MEMBERSHIPS])
        assert each.task in ("enrol", "factorize") or each.sent == []
    for each in kept.values():
        assert not any(np.array_equal(one, other) for one, other in pairwise(each))
    assert {message.task for message in result.privacy.messages} == {"enrol", "factorize"}


def test_client_that_misses_rounds_goes_on_with_what_it_has_kept():
    strategy_type, _, messages = watched(failing(DPFedCPrinted, "", {"1"}, rounds={4, 5}))
    strategy = strategy_type(3, n_rounds=8, rho=1.0, mu_h=0.1, fraction_fit=1.0, random_state=0)
    result = simulate(strategy, CLIENTS, labels=LABELS)
    assert {(failure.round, failure.client, failure.reason) for failure in result.failures} == {
        (4, "1", "client 1 fails."),
        (5, "1", "client 1 fails."),
    }
    of_one = {
        each.round: (each.received, each.kept.get(MEMBERSHIPS))
        for each in messages
        if each.client == "1"
    }
    before, (parameters, after) = of_one[3][1], of_one[6]
    assert np.array_equal(of_one[5][1], before)
    expected = membership_steps(CLIENTS[1], before, parameters[0], Penalties(1.0, 0.1), 10)
    np.testing.assert_allclose(after, expected, rtol=1e-12)
    assert [len(labels) for labels in result.labels] == [len(rows) for rows in CLIENTS]
    assert len(result.history["objective"]) == 8
    assert np.isfinite(result.model.components_).all()


@pytest.mark.parametrize("scale", [1e-60, 1.0, 1e60])
def test_first_centers_of_zeros_take_their_unit_from_the_rows_in_one_round_more(scale):
    strategy = DPFedCPrinted(3, init=np.zeros((3, 4)), n_rounds=3, rho=0.0, random_state=0)
    result = simulate(strategy, [rows * scale for rows in CLIENTS])
    assert [row.task for row in result.traffic if row.client == "0"][:2] == [
        "enrol",
        "entry_exponent",
    ]
    assert strategy.num_rounds == 5
    # The first step is from 0: -2 H' (0 - X) / eta, with memberships of the order of 1.
    assert 0.1 * scale < np.abs(result.model.components_).max() < 100 * scale
