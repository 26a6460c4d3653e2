import io
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from engine_toys import ByHand, Toy, ToyClient, manager_of, proxies_of, serve
from flwr.common import EvaluateIns
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from flower_fedclust.engine import Sum
from flower_fedclust.engine import client_data as engine_client_data
from flower_fedclust.engine.wire import encode
from flower_fedclust.models import KMeansModel
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.federated_kmeans import FederatedKMeans
from flower_fedclust.strategies.feddp_kmeans import FedDPKMeans


@pytest.fixture(scope="module")
def blobs():
    rows, labels = make_blobs(240, n_features=3, centers=4, cluster_std=4.0, random_state=1)
    return rows, labels


def split(array):
    return np.split(array, [30, 100, 170])


def run(blobs, **options):
    rows, labels = blobs
    kept = []

    class Kept(FederatedKMeans):
        def aggregate_evaluate(self, *arguments):
            found = super().aggregate_evaluate(*arguments)
            kept.append(found)
            return found

    served = Kept(4, init=rows[:4], n_rounds=3, **options)
    proxies = proxies_of(served.client_type, split(rows))
    for proxy, own in zip(proxies, split(labels), strict=True):
        proxy.labels = own
    serve(served, proxies)
    strategy = FederatedKMeans(4, init=rows[:4], n_rounds=3, **options)
    return simulate(strategy, split(rows), labels=split(labels)), kept


def test_federated_evaluation_equals_scikit_learn_on_the_pooled_labels(blobs):
    rows, labels = blobs
    result, kept = run(blobs, federated_evaluation=True)
    ((loss, found),) = [pair for pair in kept if pair[0] is not None]
    predicted = result.model.predict(rows)
    cost = ((rows - result.model.cluster_centers_[predicted]) ** 2).sum()
    assert found["cost"] == pytest.approx(cost, rel=1e-12)
    assert loss == pytest.approx(cost / len(rows), rel=1e-12)
    assert found["n_rows"] == len(rows)
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(labels, predicted), rel=1e-12)
    assert found["ari"] == pytest.approx(adjusted_rand_score(labels, predicted), rel=1e-12)
    best = max(np.mean(np.array(order)[predicted] == labels) for order in permutations(range(4)))
    assert found["accuracy"] == pytest.approx(best, rel=1e-12)


def test_federated_evaluation_runs_only_where_it_is_asked_for(blobs):
    result, kept = run(blobs)
    assert [loss for loss, _ in kept if loss is not None] == []
    assert "evaluate" not in {message.task for message in result.privacy.messages}


def test_federated_evaluation_runs_once_although_rounds_are_left(blobs):
    rows, labels = blobs
    strategy = FederatedKMeans(4, init=rows[:4], n_rounds=40, federated_evaluation=True)
    result = simulate(strategy, split(rows), labels=split(labels))
    assert max(row.round for row in result.traffic) < 41
    assert [message.task for message in result.privacy.messages].count("evaluate") == 3


def test_federated_evaluation_is_listed_as_unprotected_and_ends_the_guarantee(blobs):
    rows, labels = blobs
    for asked in (False, True):
        strategy = FedDPKMeans(4, server_data=rows[::10], epsilon=20.0, federated_evaluation=asked)
        report = simulate(strategy, split(rows), labels=split(labels), seed=0).privacy
        assert report.covers_everything is not asked
        assert {message.task for message in report.unprotected} == (
            {"evaluate"} if asked else set()
        )
        assert ("NO such guarantee" in report.guarantee()) is asked


def test_federated_evaluation_without_labels_gives_the_cost_alone(blobs):
    rows, _ = blobs
    strategy = FederatedKMeans(4, init=rows[:4], n_rounds=1, federated_evaluation=True)
    manager = manager_of(proxies_of(strategy.client_type, split(rows)))
    drive_with_evaluation(strategy, manager)
    assert set(strategy.evaluation) == {"cost", "n_rows"}


def drive_with_evaluation(strategy, manager, reorder=list):
    parameters = strategy.initialize_parameters(manager)
    for number in range(1, strategy.num_rounds + 1):
        results = [
            (proxy, proxy.fit(ins))
            for proxy, ins in strategy.configure_fit(number, parameters, manager)
        ]
        parameters = strategy.aggregate_fit(number, results, [])[0] or parameters
        asked = strategy.configure_evaluate(number, parameters, manager)
        if asked:
            strategy.aggregate_evaluate(
                number, reorder([(proxy, proxy.evaluate(ins)) for proxy, ins in asked]), []
            )


def test_order_in_which_evaluations_come_changes_no_bit(blobs):
    rows, labels = blobs
    found = []
    for reorder in (list, lambda results: results[::-1]):
        strategy = FederatedKMeans(4, init=rows[:4], n_rounds=1, federated_evaluation=True)
        proxies = proxies_of(strategy.client_type, split(rows))
        for proxy, own in zip(proxies, split(labels), strict=True):
            proxy.labels = own
        drive_with_evaluation(strategy, manager_of(proxies), reorder)
        found.append(strategy.evaluation)
    assert found[0] == found[1]


def test_classes_are_the_same_whether_a_client_writes_them_as_integers_or_floats(blobs):
    rows, labels = blobs
    strategy = FederatedKMeans(4, init=rows[:4], n_rounds=3, federated_evaluation=True)
    proxies = proxies_of(strategy.client_type, split(rows))
    for index, (proxy, own) in enumerate(zip(proxies, split(labels), strict=True)):
        proxy.labels = own.astype(float) if index % 2 else own
    drive_with_evaluation(strategy, manager_of(proxies))
    predicted = strategy.outcome.model.predict(rows)
    assert strategy.evaluation["nmi"] == pytest.approx(
        normalized_mutual_info_score(labels, predicted), rel=1e-12
    )


def test_evaluation_that_a_client_misses_is_reported(blobs):
    rows, _ = blobs
    strategy = Toy([Sum(ToyClient.visits.asked())], federated_evaluation=True)
    proxies = proxies_of(strategy.client_type, [part[:, :2] for part in split(rows)])
    manager = manager_of(proxies)
    parameters = strategy.initialize_parameters(manager)
    for number in (1, 2):
        results = [
            (proxy, proxy.fit(ins))
            for proxy, ins in strategy.configure_fit(number, parameters, manager)
        ]
        strategy.aggregate_fit(number, results, [])
    asked = strategy.configure_evaluate(2, parameters, manager)
    results = [(proxy, proxy.evaluate(ins)) for proxy, ins in asked[1:]]
    strategy.aggregate_evaluate(2, results, [TimeoutError("gone")])
    (failure,) = strategy.failures
    assert (failure.task, failure.client, failure.reason) == (
        "evaluate",
        "0",
        "client 0 did not answer (TimeoutError: gone).",
    )
    assert strategy.evaluation["n_rows"] == 210


def test_bytes_of_the_model_that_is_evaluated_are_in_the_traffic_table(blobs):
    plain, _ = run(blobs)
    evaluated, _ = run(blobs, federated_evaluation=True)
    buffer = io.BytesIO()
    np.save(buffer, evaluated.model.cluster_centers_)
    assert evaluated.bytes_down - plain.bytes_down == 4 * buffer.tell()


def test_an_evaluation_in_batches_equals_one_and_keeps_no_large_array(monkeypatch):
    rows, labels = np.random.default_rng(0).normal(size=(3000, 4)), np.arange(3000) // 700
    model = KMeansModel(rows[:5])
    proxy = ByHand(1, ToyClient, rows, name="a", labels=labels)
    ask = EvaluateIns(encode(model.to_arrays()), {"model": model.name})
    whole = proxy.evaluate(ask)
    sizes = []
    cluster = KMeansModel.cluster
    monkeypatch.setattr(
        KMeansModel, "cluster", lambda self, part: sizes.append(part.size) or cluster(self, part)
    )
    monkeypatch.setattr(engine_client_data, "EVALUATED_ENTRIES", 64)
    batched = proxy.evaluate(ask)
    assert max(sizes) == 64
    assert batched.loss == pytest.approx(whole.loss, rel=1e-12)
    assert (batched.metrics["table"], batched.num_examples) == (
        whole.metrics["table"],
        whole.num_examples,
    )


@pytest.mark.parametrize("form", ["arrays", "folder", "table"])
def test_classes_are_joined_by_name_if_only_some_clients_have_whole_ones(form, tmp_path):
    """One client has the classes 1.0 and 2.0, the other has 1.0, 1.5, 2.0 and 2.5: a class has one name at both."""
    classes = {"a": np.repeat([1.0, 2.0], 10), "b": np.repeat([1.0, 1.5, 2.0, 2.5], 10)}
    rows = {name: np.column_stack([100 * kinds, kinds]) for name, kinds in classes.items()}
    strategy = FederatedKMeans(n_clusters=4, random_state=0)
    if form == "arrays":
        result = simulate(strategy, rows, labels=classes)
    else:
        frames = {
            name: pd.DataFrame(rows[name], columns=["x", "y"]).assign(kind=kinds)
            for name, kinds in classes.items()
        }
        if form == "folder":
            for name, frame in frames.items():
                frame.to_csv(tmp_path / f"{name}.csv", index=False)
            result = simulate(strategy, tmp_path, label_column="kind")
        else:
            table = pd.concat(frames, names=["site"]).reset_index("site")
            result = simulate(strategy, table, client_column="site", label_column="kind")
    assert [result.metrics[name] for name in ("accuracy", "nmi", "ari")] == [1.0, 1.0, 1.0]
