"""DP-FedC without noise: Algorithm 1 beside its equations, what clients keep and send, and what becomes of odd rows."""

from collections import Counter, defaultdict
from itertools import chain, pairwise

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from sklearn.metrics import adjusted_rand_score
from watching import failing, watched

from flower_fedclust.data.datasets import load_dataset
from flower_fedclust.data.partition import partition
from flower_fedclust.engine import ClientData
from flower_fedclust.exact.factorisation import Penalties, lifted, membership_steps
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies import dp_fedc
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
H_0 = {str(index): RNG.uniform(size=(len(rows), 3)) for index, rows in enumerate([*CLIENTS, ROWS])}


class BegunClient(DPFedCClient):
    """Begins with memberships that the test knows."""

    def recall(self, key):
        kept = super().recall(key)
        return [H_0[self.name]] if kept is None and key == MEMBERSHIPS else kept


class BegunDPFedC(DPFedC):
    client_type = BegunClient


def algorithm_1(X, W, H, drawn, *, Q_1=10, Q_hat=10, decay=1, rho, mu_h, mu_w=0.0, alpha=2.0, update_all=True):
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
        if row.task == "factorise":
            rounds[row.round].append(row.client)
    return [rounds[number] for number in sorted(rounds)]


# Algorithm 1


@pytest.mark.parametrize(
    "options", [{"rho": 0.0, "mu_h": 0.0}, {"rho": 3.0, "mu_h": 0.1}, {"rho": 0.5, "mu_h": 2.0, "mu_w": 5.0}]
)
@pytest.mark.parametrize("rows", [ROWS, ROWS - 4.0], ids=["not negative", "negative"])
def test_one_client_is_the_pooled_algorithm(rows, options, monkeypatch):
    monkeypatch.setitem(H_0, "0", H_0["5"])
    watched_type, _, messages = watched(BegunDPFedC)
    strategy = watched_type(3, n_rounds=12, init=W_0, batch_size=999, min_clients=1, fraction_fit=1.0, **options)
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
        {"fraction_fit": 0.6, "rho": 4.0, "mu_h": 0.0, "mu_w": 2.0, "step_scale": 1.5},
        {"fraction_fit": 0.4, "rho": 1.0, "mu_h": 0.1, "update_all": False},
        {"fraction_fit": 0.6, "rho": 1.0, "mu_h": 0.1, "n_membership_steps": 3, "n_center_steps": 2},
        {"fraction_fit": 1.0, "rho": 1.0, "mu_h": 0.1, "n_center_steps": 0},
        {"fraction_fit": 1.0, "rho": 1.0, "mu_h": 0.1, "n_center_steps": 4, "step_decay": 0},
    ],
)
def test_several_clients_are_algorithm_1_with_the_clients_that_were_drawn(options):
    strategy_type, _, messages = watched(BegunDPFedC)
    result = simulate(strategy_type(3, n_rounds=9, init=W_0, batch_size=999, random_state=4, **options), CLIENTS)
    names = {"step_scale": "alpha", "n_membership_steps": "Q_1", "n_center_steps": "Q_hat", "step_decay": "decay"}
    papers = {names.get(name, name): value for name, value in options.items() if name != "fraction_fit"}
    W, H = by_the_paper(CLIENTS, drawn_by_round(result), **papers)
    np.testing.assert_allclose(result.model.components_, W, rtol=1e-6, atol=1e-8)
    kept = {each.client: each.kept[MEMBERSHIPS] for each in messages if MEMBERSHIPS in each.kept}
    for name, memberships in kept.items():
        np.testing.assert_allclose(memberships, H[name], rtol=1e-6, atol=1e-8)
    assert set(kept) == set(H_0) - {"5"}


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


def test_the_papers_penalties_are_parts_of_the_squared_norm_of_a_client():
    result = simulate(DPFedC(3, n_rounds=2, rho="paper", random_state=0), CLIENTS)
    squared = float(np.sum(ROWS**2)) / 5
    assert result.model.penalties.rho == pytest.approx(1e-7 * squared, rel=1e-12)
    assert result.model.penalties.mu_h == pytest.approx(1e-10 * squared, rel=1e-12)
    assert {message.task for message in result.privacy.unprotected} == {"squared_norm", "factorise"}


@pytest.mark.parametrize("n_clients", [1, 5])
def test_objective_falls_in_every_round_where_all_clients_take_all_rows(n_clients):
    strategy = DPFedC(3, n_rounds=40, rho=5.0, batch_size=999, fraction_fit=1.0, min_clients=1, random_state=1)
    objectives = simulate(strategy, np.array_split(ROWS, n_clients)).history["objective"]
    assert len(objectives) == 40
    assert all(later <= earlier for earlier, later in pairwise(objectives))
    assert objectives[-1] < 0.6 * objectives[0]


# Where rays begin


def far_rows(seed):
    """Three groups, far from the origin and on nearly one ray."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(3, size=150)
    return 50.0 + np.array([[0.0, 0, 0], [8, 0, 0], [0, 8, 0]])[classes] + rng.normal(size=(150, 3)), classes


@pytest.mark.parametrize("name", ["iris", "far"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_on_nearly_one_ray_do_not_end_in_one_cluster(name, seed):
    table = load_dataset("iris")
    rows, classes = (table.rows, table.labels) if name == "iris" else far_rows(seed)
    order = np.random.default_rng(seed).permutation(len(rows))
    result = simulate(DPFedC(3), np.array_split(rows[order], 10), seed=seed)
    agreement = adjusted_rand_score(classes[order], np.concatenate(result.labels))
    assert agreement > (0.45 if name == "iris" else 0.9)


def test_about_the_mean_the_algorithm_is_the_same_for_rows_with_one_more_coordinate():
    clients = np.array_split(far_rows(0)[0], 4)
    rows = np.concatenate(clients)
    origin = np.append(rows.mean(axis=0), 0.5 * np.sqrt(rows.var(axis=0).sum()))
    options = {"n_rounds": 12, "rho": 3.0, "mu_h": 0.1, "random_state": 2}
    moved = simulate(DPFedC(3, init=rows[:3], **options), clients)
    shown = simulate(
        DPFedC(3, init=lifted(rows[:3], origin), rays_from="zero", **options),
        [lifted(each, origin) for each in clients],
    )
    np.testing.assert_allclose(moved.model.components_, shown.model.components_, rtol=1e-6, atol=1e-8)
    assert list(np.concatenate(moved.labels)) == list(np.concatenate(shown.labels))
    assert moved.model.n_columns == 3
    assert np.abs(moved.model.cluster_points - 50).max() < 20


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (ROWS, {}),
        (np.full((150, 3), 7.0), {}),
        (far_rows(0)[0], {"rays_from": "zero"}),
        (far_rows(0)[0], {"rho": "paper"}),
        (far_rows(0)[0], {"epsilon": 5.0, "max_norm": 100.0}),
    ],
    ids=["in many directions", "equal", "as the paper", "the paper's penalty", "private"],
)
def test_rays_begin_at_0_where_directions_differ_or_the_paper_or_an_epsilon_says_so(rows, options):
    result = simulate(DPFedC(3, n_rounds=2, random_state=0, **options), np.array_split(rows, 3))
    assert result.model.components_.shape == (3, rows.shape[1])


# Minibatches


def batches_of(monkeypatch, clients, **options):
    """The rows of each step on the centers, by number of rows, of every client and round."""
    taken = []

    def watched(rows, H, W, batches, mu_w, eta):
        taken.extend([int(row[0]) for row in rows[batch]] for batch in batches)
        return W

    monkeypatch.setattr(dp_fedc, "center_steps", watched)
    numbered = [np.column_stack([np.arange(1.0, n + 1), np.ones(n)]) for n in clients]
    simulate(DPFedC(2, fraction_fit=1.0, rho=0.0, rays_from="zero", **({"random_state": 0} | options)), numbered)
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


def test_a_small_batch_counts_for_its_part_of_the_rows_in_the_step_size_and_in_the_penalty():
    local = {"rho": 0.5, "mu_h": 0.1, "n_membership_steps": 2, "random_state": 4, "max_norm": np.inf, "divisor": 0.0}
    client = BegunClient(ClientData(CLIENTS[0]), name="0", context=Context(0, 0, {}, RecordDict(), {}))
    moved, *_ = client.factorise(W_0, mu_w=3.0, n_center_steps=1, batch_size=5, step_scale=2.0, exponent=-40, **local)
    H = membership_steps(CLIENTS[0], H_0["0"], W_0, Penalties(0.5, 0.1), 2)
    batch = client.generator(4).permutation(20)[:5]
    eta = 2.0 * (np.linalg.eigvalsh(H.T @ H / 4)[-1] + 3.0 / 4 / 2)
    gradient = 2 * H[batch].T @ (H[batch] @ W_0 - CLIENTS[0][batch]) + 3.0 / 4 * W_0
    np.testing.assert_allclose(moved.values, -gradient / eta, rtol=1e-10)


# Who does what


def test_all_clients_update_their_memberships_and_only_those_drawn_upload():
    strategy_type, _, messages = watched(DPFedC)
    result = simulate(strategy_type(3, n_rounds=6, fraction_fit=0.4, rays_from="zero", random_state=0), CLIENTS)
    for number in range(2, 8):
        rows = [row for row in result.traffic if row.round == number]
        assert sorted(row.client for row in rows) == ["0", "1", "2", "3", "4"]
        assert Counter(row.task for row in rows) == {"factorise": 2, "update_memberships": 3}
        assert all((row.bytes_up > 0) is (row.task == "factorise") for row in rows)
    kept = defaultdict(list)
    for each in messages:
        if each.task != "enrol":
            kept[each.client].append(each.kept[MEMBERSHIPS])
        assert each.task == "factorise" or each.sent == []
    for each in kept.values():
        assert not any(np.array_equal(one, other) for one, other in pairwise(each))
    assert {message.task for message in result.privacy.messages} == {"enrol", "factorise"}


def test_centers_can_be_watched_round_by_round():
    strategy, seen = DPFedC(3, n_rounds=4, random_state=0), []
    strategy.on_centers = lambda t, W: seen.append((t, W.copy()))
    result = simulate(strategy, CLIENTS)
    assert [t for t, _ in seen] == [1, 2, 3, 4]
    assert np.array_equal(seen[-1][1], result.model.components_)


# Clients that miss rounds


def test_client_that_misses_rounds_goes_on_with_what_it_has_kept():
    strategy_type, _, messages = watched(failing(DPFedC, "", {"1"}, rounds={4, 5}))
    strategy = strategy_type(3, n_rounds=8, rho=1.0, mu_h=0.1, fraction_fit=1.0, rays_from="zero", random_state=0)
    result = simulate(strategy, CLIENTS, labels=LABELS)
    assert {(failure.round, failure.client, failure.reason) for failure in result.failures} == {
        (4, "1", "client 1 fails."),
        (5, "1", "client 1 fails."),
    }
    of_one = {each.round: (each.received, each.kept.get(MEMBERSHIPS)) for each in messages if each.client == "1"}
    before, (parameters, after) = of_one[3][1], of_one[6]
    assert np.array_equal(of_one[5][1], before)
    expected = membership_steps(CLIENTS[1], before, parameters[0], Penalties(1.0, 0.1), 10)
    np.testing.assert_allclose(after, expected, rtol=1e-12)
    assert [len(labels) for labels in result.labels] == [len(rows) for rows in CLIENTS]
    assert len(result.history["objective"]) == 8
    assert np.isfinite(result.model.components_).all()


# How good the clusters are


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_clusters_that_lie_in_other_directions_are_found(seed):
    result = simulate(DPFedC(3, n_rounds=60), CLIENTS, labels=LABELS, seed=seed)
    pooled = simulate(PooledKMeans(3), CLIENTS, labels=LABELS, seed=seed)
    assert result.metrics["accuracy"] >= pooled.metrics["accuracy"] - 0.03
    assert result.metrics["accuracy"] >= 0.97
    assert all(
        np.array_equal(result.model.predict(rows), labels) for rows, labels in zip(CLIENTS, result.labels, strict=True)
    )


def test_clusters_are_found_where_every_client_has_one_class_alone():
    clients = [ROWS[np.flatnonzero(label == CLASSES)] for label in range(3)]
    labels = [[label] * len(rows) for label, rows in enumerate(clients)]
    accuracies = [
        simulate(DPFedC(3, n_rounds=60, fraction_fit=1.0), clients, labels=labels, seed=seed).metrics["accuracy"]
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
        accuracies.append(simulate(strategy, rows.clients, labels=rows.labels, seed=seed).metrics["accuracy"])
    assert np.mean(accuracies) >= 0.5


# Rows that are odd


@pytest.mark.parametrize("n_zeros", [1, 5])
def test_rows_of_zeros_belong_to_nothing_and_are_no_failure(n_zeros):
    clients = [np.zeros_like(rows) if index < n_zeros else rows for index, rows in enumerate(CLIENTS)]
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
        simulate(DPFedC(3, n_rounds=20, init=W_0 * scale, random_state=0), [rows * scale for rows in CLIENTS])
        for scale in (1.0, unit)
    )
    assert np.array_equal(scaled.model.components_, plain.model.components_ * unit)
    for one, other in zip(plain.labels, scaled.labels, strict=True):
        assert np.array_equal(one, other)
    assert scaled.history["objective"] == pytest.approx([each * unit**2 for each in plain.history["objective"]])


@pytest.mark.parametrize("scale", [1e-60, 1.0, 1e60])
def test_first_centers_of_zeros_take_their_unit_from_the_rows_in_one_round_more(scale):
    strategy = DPFedC(3, init=np.zeros((3, 4)), n_rounds=3, rho=0.0, rays_from="zero", random_state=0)
    result = simulate(strategy, [rows * scale for rows in CLIENTS])
    assert [row.task for row in result.traffic if row.client == "0"][:2] == ["enrol", "entry_exponent"]
    assert strategy.num_rounds == 5
    # The first step is from 0: -2 H' (0 - X) / eta, with memberships of the order of 1.
    assert 0.1 * scale < np.abs(result.model.components_).max() < 100 * scale
