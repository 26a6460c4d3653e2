"""DP-FedC without noise: Algorithm 1 beside its equations, what clients keep and send, and what becomes of odd rows."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from sklearn.metrics import adjusted_rand_score
from watching import watched

from flower_fedclust.data.datasets import load_dataset
from flower_fedclust.data.partition import partition
from flower_fedclust.engine import ClientData
from flower_fedclust.exact.factorization import Penalties, membership_steps
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.pooled import PooledKMeans
from flower_fedclust.strategies.dp_fedc import MEMBERSHIPS, DPFedC, DPFedCClient

RNG = np.random.default_rng(0)
MEANS = np.array([[9.0, 0, 1, 0], [0, 9, 0, 1], [0, 0, 9, 9]])
CLASSES = RNG.integers(3, size=150)
ROWS = np.abs(MEANS[CLASSES] + RNG.normal(size=(150, 4)))
CUTS = [20, 55, 90, 130]
CLIENTS = np.split(ROWS, CUTS)
LABELS = np.split(CLASSES, CUTS)
W_0 = np.abs(RNG.normal(size=(3, 4)))
#: Memberships to begin with, by the name of the client.
H_0 = {
    str(index): RNG.uniform(size=(len(rows), 3))
    for index, rows in enumerate([*CLIENTS, ROWS, ROWS[:50]])
}


class BegunClient(DPFedCClient):
    """Begins with memberships that the test knows."""

    def recall(self, key):
        kept = super().recall(key)
        return [H_0[self.name]] if kept is None and key == MEMBERSHIPS else kept


class BegunDPFedC(DPFedC):
    client_type = BegunClient


def algorithm_1(
    X, W, H, drawn, *, Q_1=10, Q_hat=10, decay=1, rho, mu_h, mu_w=0.0, alpha=2.0, update_all=True
):
    """The paper's algorithm with its own axes: samples are columns, X_i (m, n_i), W (m, k), H_i (k, n_i).

    ``drawn`` are the clients of each round; minibatches are all samples.
    """
    k = W.shape[1]
    U = np.ones((k, k))
    H = dict(H)
    for t, S in enumerate(drawn, start=1):
        sent = []
        for i in X if update_all else S:
            gamma = 1.5 / 2 * (2 * np.linalg.eigvalsh(W.T @ W)[-1] + rho * (k - 1) + mu_h)
            for _ in range(Q_1):  # (17)
                gradient = 2 * W.T @ (W @ H[i] - X[i]) + rho * (U - np.eye(k)) @ H[i] + mu_h * H[i]
                H[i] = np.maximum(H[i] - gradient / gamma, 0)
            W_i = W
            eta = alpha * (np.linalg.eigvalsh(H[i] @ H[i].T)[-1] + mu_w / 2)
            for _ in range(Q_hat // t**decay + 1):  # (18)
                W_i = W_i - (2 * (W_i @ H[i] - X[i]) @ H[i].T + mu_w * W_i) / eta
            if i in S:
                sent.append(W_i)
        W = sum(sent) / len(sent)  # (16)
    return W, H


def by_the_paper(clients, drawn, **options):
    X = {str(index): rows.T for index, rows in enumerate(clients)}
    W, H = algorithm_1(X, W_0.T, {name: H_0[name].T for name in X}, drawn, **options)
    return W.T, {name: each.T for name, each in H.items()}


def drawn_by_round(result):
    rounds = defaultdict(list)
    for row in result.traffic:
        if row.task == "factorize":
            rounds[row.round].append(row.client)
    return [rounds[number] for number in sorted(rounds)]


# Algorithm 1


@pytest.mark.parametrize(
    "options", [{"rho": 0.0, "mu_h": 0.0}, {"rho": 3.0, "mu_h": 0.1}, {"rho": 0.5, "mu_h": 2.0}]
)
@pytest.mark.parametrize("rows", [ROWS[:50], ROWS[:50] - 4.0], ids=["not negative", "negative"])
def test_one_client_is_the_pooled_algorithm(rows, options, monkeypatch):
    monkeypatch.setitem(H_0, "0", H_0["6"])
    watched_type, _, messages = watched(BegunDPFedC)
    strategy = watched_type(3, n_rounds=12, init=W_0, min_clients=1, fraction_fit=1.0, **options)
    result = simulate(strategy, [rows])
    W, H = by_the_paper([rows], [["0"]] * 12, **options)
    np.testing.assert_allclose(result.model.components_, W, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(messages[-1].kept[MEMBERSHIPS], H["0"], rtol=1e-6, atol=1e-8)
    assert result.model.penalties == Penalties(options["rho"], options["mu_h"])


@pytest.mark.parametrize(
    "options",
    [
        {"fraction_fit": 1.0, "rho": 1.0, "mu_h": 0.1},
        {"fraction_fit": 0.4, "rho": 1.0, "mu_h": 0.1},
        {"fraction_fit": 0.6, "rho": 4.0, "mu_h": 0.0, "step_scale": 1.5},
        {
            "fraction_fit": 0.6,
            "rho": 1.0,
            "mu_h": 0.1,
            "n_membership_steps": 3,
            "n_center_steps": 2,
        },
        {"fraction_fit": 1.0, "rho": 1.0, "mu_h": 0.1, "n_center_steps": 0},
    ],
)
def test_several_clients_are_algorithm_1_with_the_clients_that_were_drawn(options):
    strategy_type, _, messages = watched(BegunDPFedC)
    result = simulate(strategy_type(3, n_rounds=9, init=W_0, random_state=4, **options), CLIENTS)
    names = {"step_scale": "alpha", "n_membership_steps": "Q_1", "n_center_steps": "Q_hat"}
    papers = {
        names.get(name, name): value for name, value in options.items() if name != "fraction_fit"
    }
    W, H = by_the_paper(CLIENTS, drawn_by_round(result), **papers)
    np.testing.assert_allclose(result.model.components_, W, rtol=1e-6, atol=1e-8)
    kept = {each.client: each.kept[MEMBERSHIPS] for each in messages if MEMBERSHIPS in each.kept}
    for name, memberships in kept.items():
        np.testing.assert_allclose(memberships, H[name], rtol=1e-6, atol=1e-8)
    assert set(kept) == set(H_0) - {"5", "6"}


def test_default_penalties_grow_with_the_centers_and_over_the_first_half_of_the_run():
    told = []

    class Strategy(DPFedC):
        def _round(self, t, W, S, local, origin):
            told.append((local, float(np.mean(np.sum(W**2, axis=1)))))
            return (yield from super()._round(t, W, S, local, origin))

    result = simulate(Strategy(3, n_rounds=8, random_state=0), CLIENTS)
    parts = [local["rho"] / unit for local, unit in told]
    np.testing.assert_allclose(parts[:5], 0.1 * 4 ** np.linspace(0, 1, 5), rtol=1e-12)
    np.testing.assert_allclose(parts[4:], 0.4, rtol=1e-12)
    assert [local["mu_h"] / local["rho"] for local, _ in told] == pytest.approx([1e-3] * 8)
    W = result.model.components_
    assert result.model.penalties.rho == pytest.approx(0.4 * np.mean(np.sum(W**2, axis=1)))


@pytest.mark.parametrize("n_clients", [3, 5])
def test_objective_falls_in_every_round_where_all_clients_take_all_rows(n_clients):
    strategy = DPFedC(3, n_rounds=40, rho=5.0, fraction_fit=1.0, random_state=1)
    objectives = simulate(strategy, np.array_split(ROWS, n_clients)).history["objective"]
    assert len(objectives) == 40
    assert all(later <= earlier for earlier, later in pairwise(objectives))
    assert objectives[-1] < 0.6 * objectives[0]


# Where rays begin


def far_rows(seed):
    """Three groups, far from the origin and on nearly one ray."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(3, size=150)
    return 50.0 + np.array([[0.0, 0, 0], [8, 0, 0], [0, 8, 0]])[classes] + rng.normal(
        size=(150, 3)
    ), classes


@pytest.mark.parametrize("name", [pytest.param("iris", marks=pytest.mark.long), "far"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))]
)
def test_rows_on_nearly_one_ray_do_not_end_in_one_cluster(name, seed):
    table = load_dataset("iris")
    rows, classes = (table.rows, table.labels) if name == "iris" else far_rows(seed)
    order = np.random.default_rng(seed).permutation(len(rows))
    result = simulate(DPFedC(3), np.array_split(rows[order], 10), seed=seed)
    agreement = adjusted_rand_score(classes[order], np.concatenate(result.labels))
    assert agreement > (0.45 if name == "iris" else 0.9)


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (ROWS, {}),
        (np.full((150, 3), 7.0), {}),
        (far_rows(0)[0], {"epsilon": 5.0, "max_norm": 100.0}),
    ],
    ids=["in many directions", "equal", "private"],
)
def test_rays_begin_at_0_where_directions_differ_or_with_an_epsilon(rows, options):
    result = simulate(DPFedC(3, n_rounds=2, random_state=0, **options), np.array_split(rows, 3))
    assert result.model.components_.shape == (3, rows.shape[1])


# Minibatches


def test_a_small_batch_counts_for_its_part_of_the_rows_in_the_step_size_and_in_the_penalty():
    local = {"rho": 0.5, "mu_h": 0.1, "mu_w": 3.0, "n_membership_steps": 2, "random_state": 4}
    local |= {"max_norm": np.inf, "divisor": 0.0}
    client = BegunClient(
        ClientData(CLIENTS[0]), name="0", context=Context(0, 0, {}, RecordDict(), {})
    )
    moved, *_ = client.factorize(
        W_0, n_center_steps=1, batch_size=5, step_scale=2.0, exponent=-40, **local
    )
    H = membership_steps(CLIENTS[0], H_0["0"], W_0, Penalties(0.5, 0.1), 2)
    batch = client.generator(4).permutation(20)[:5]
    eta = 2.0 * (np.linalg.eigvalsh(H.T @ H / 4)[-1] + 3.0 / 4 / 2)
    gradient = 2 * H[batch].T @ (H[batch] @ W_0 - CLIENTS[0][batch]) + 3.0 / 4 * W_0
    np.testing.assert_allclose(moved.values, -gradient / eta, rtol=1e-10)


# Who does what


def test_centers_can_be_watched_round_by_round():
    strategy, seen = DPFedC(3, n_rounds=4, random_state=0), []
    strategy.on_centers = lambda t, W: seen.append((t, W.copy()))
    result = simulate(strategy, CLIENTS)
    assert [t for t, _ in seen] == [1, 2, 3, 4]
    assert np.array_equal(seen[-1][1], result.model.components_)


# Clients that miss rounds


# How good the clusters are


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_clusters_that_lie_in_other_directions_are_found(seed):
    result = simulate(DPFedC(3, n_rounds=60), CLIENTS, labels=LABELS, seed=seed)
    pooled = simulate(PooledKMeans(3), CLIENTS, labels=LABELS, seed=seed)
    assert result.metrics["accuracy"] >= pooled.metrics["accuracy"] - 0.03
    assert result.metrics["accuracy"] >= 0.97
    assert all(
        np.array_equal(result.model.predict(rows), labels)
        for rows, labels in zip(CLIENTS, result.labels, strict=True)
    )


@pytest.mark.long
def test_clusters_are_found_where_every_client_has_one_class_alone():
    clients = [ROWS[np.flatnonzero(label == CLASSES)] for label in range(3)]
    labels = [[label] * len(rows) for label, rows in enumerate(clients)]
    accuracies = [
        simulate(
            DPFedC(3, n_rounds=60, fraction_fit=1.0), clients, labels=labels, seed=seed
        ).metrics["accuracy"]
        for seed in range(3)
    ]
    assert np.mean(accuracies) >= 0.9


@pytest.mark.long
def test_digits_are_clustered_in_twenty_rounds():
    # Pooled k-means has 0.79: there are poorer optima to end in.
    table = load_dataset("digits")
    accuracies = []
    for seed in (0, 2):
        rows = partition(table, "iid", n_clients=10, random_state=seed)
        strategy = DPFedC(10, n_rounds=20)
        accuracies.append(
            simulate(strategy, rows.clients, labels=rows.labels, seed=seed).metrics["accuracy"]
        )
    assert np.mean(accuracies) >= 0.5


# Rows that are odd


@pytest.mark.parametrize("n_zeros", [1, 5])
def test_rows_of_zeros_belong_to_nothing_and_are_no_failure(n_zeros):
    clients = [
        np.zeros_like(rows) if index < n_zeros else rows for index, rows in enumerate(CLIENTS)
    ]
    result = simulate(DPFedC(3, n_rounds=40), clients, seed=0)
    assert result.failures == []
    assert np.isfinite(result.model.components_).all()
    assert set(result.labels[0]) == {0}
    assert not result.model.memberships(clients[0]).any()


@pytest.mark.parametrize("power", [-40, 5, 40])
def test_unit_of_the_rows_does_not_matter_where_the_first_centers_have_it_too(power):
    # Powers of two, so that nothing is rounded.
    unit = 2.0**power
    plain, scaled = (
        simulate(
            DPFedC(3, n_rounds=20, init=W_0 * scale, random_state=0),
            [rows * scale for rows in CLIENTS],
        )
        for scale in (1.0, unit)
    )
    assert np.array_equal(scaled.model.components_, plain.model.components_ * unit)
    for one, other in zip(plain.labels, scaled.labels, strict=True):
        assert np.array_equal(one, other)
    assert scaled.history["objective"] == pytest.approx(
        [each * unit**2 for each in plain.history["objective"]]
    )
