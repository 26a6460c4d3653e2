import csv
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from flower_fedclust.strategies.baselines.federated_kmeans import FederatedKMeans
from flower_fedclust.models import KMeansModel, SpectralModel
from flower_fedclust.engine import Failure, Outcome
from flower_fedclust.results.result import result_of
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.feddp_kmeans import FedDPKMeans
from flower_fedclust.strategies.fedsc import FedSC

RNG = np.random.default_rng(9)
MEANS = np.array([[0.0, 0, 0, 0], [9, 0, 0, 0], [0, 9, 0, 0]])
CLASSES = [RNG.integers(3, size=n) for n in (30, 50, 20)]
CLIENTS = [MEANS[classes] + RNG.normal(size=(len(classes), 4)) for classes in CLASSES]
SERVER_ROWS = MEANS.repeat(7, axis=0) + RNG.normal(size=(21, 4))
NAMES = ["oslo", "St. Olav/Ålesund", "7"]


@pytest.fixture(scope="module")
def result():
    return simulate(FedDPKMeans(3, server_data=SERVER_ROWS, epsilon=3.0), CLIENTS, labels=CLASSES, names=NAMES, seed=1)


@pytest.fixture
def saved(result, tmp_path):
    return result.save(tmp_path / "a" / "run")


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_save_writes_its_files_and_returns_the_absolute_path(saved, tmp_path):
    assert saved == tmp_path / "a" / "run"
    assert saved.is_absolute()
    assert {path.relative_to(saved).parts[0] for path in saved.rglob("*")} == {
        "model.json",
        "model.npz",
        "result.json",
        "centers.csv",
        "labels",
        "metrics.json",
        "privacy.json",
        "privacy.txt",
        "traffic.csv",
    }
    assert len(list((saved / "labels").iterdir())) == 3


def test_saved_model_reads_back_bit_for_bit(result, saved):
    with np.load(saved / "model.npz") as arrays:
        model = KMeansModel.from_arrays([arrays[name] for name in arrays.files])
    assert np.array_equal(model.cluster_centers_, result.model.cluster_centers_)
    assert np.array_equal(np.loadtxt(saved / "centers.csv", delimiter=","), result.model.cluster_centers_)


def test_saved_labels_read_back(result, saved):
    for file, labels in (("oslo.csv", result.labels[0]), ("7.csv", result.labels[2])):
        table = pd.read_csv(saved / "labels" / file)
        assert list(table.columns) == ["row", "cluster"]
        assert table["row"].tolist() == list(range(len(labels)))
        assert np.array_equal(table["cluster"], labels)
    (odd,) = [path for path in (saved / "labels").iterdir() if path.name not in ("oslo.csv", "7.csv")]
    assert np.array_equal(pd.read_csv(odd)["cluster"], result.labels[1])


def test_saved_metrics_and_privacy_are_json_and_read_back(result, saved):
    assert strict((saved / "metrics.json").read_text()) == result.summary()
    assert strict((saved / "privacy.json").read_text()) == result.privacy.to_dict()
    assert (saved / "privacy.txt").read_text() == f"{result.privacy}\n"


def test_saved_traffic_reads_back(result, saved):
    table = list(csv.DictReader((saved / "traffic.csv").read_text().splitlines()))
    assert [(int(r["round"]), r["task"], r["client"], int(r["bytes_down"]), int(r["bytes_up"])) for r in table] == [
        (row.round, row.task, row.client, row.bytes_down, row.bytes_up) for row in result.traffic
    ]


def test_traffic_of_a_client_with_a_comma_in_its_name_reads_back(tmp_path):
    names = ["Oslo, north", 'the "big" one', "7"]
    result = simulate(FederatedKMeans(3, init=SERVER_ROWS[:3], n_rounds=1), CLIENTS, names=names)
    with (result.save(tmp_path / "run") / "traffic.csv").open(newline="") as file:
        clients = [row["client"] for row in csv.DictReader(file)]
    assert clients == [row.client for row in result.traffic]


@pytest.mark.parametrize("names", [["a/b", "0-a_b", "c"], ["a/b", "a_b", "a:b"], ["..", ".", "x"], ["  ", " ", "x"]])
def test_every_client_has_a_file_of_its_own_whatever_its_name(tmp_path, names):
    result = simulate(FederatedKMeans(3, init=SERVER_ROWS[:3], n_rounds=1), CLIENTS, names=names)
    folder = result.save(tmp_path / "run")
    sizes = sorted(len(pd.read_csv(path)) for path in (folder / "labels").iterdir())
    assert sizes == [20, 30, 50]
    assert list(tmp_path.iterdir()) == [folder]


def test_folder_that_holds_something_is_left_alone(result, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="already holds something; name a new folder, so that nothing is lost"):
        result.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(FileExistsError, match="already holds something"):
        result.save(tmp_path / "mine.txt")


def test_second_save_into_the_same_folder_is_refused_and_an_empty_folder_is_taken(result, tmp_path):
    (tmp_path / "run").mkdir()
    result.save(tmp_path / "run")
    with pytest.raises(FileExistsError):
        result.save(tmp_path / "run")


def test_summary_holds_no_nan_and_no_infinity_where_there_is_no_privacy(tmp_path):
    result = simulate(FederatedKMeans(3, init=SERVER_ROWS[:3], n_rounds=1), CLIENTS)
    summary = strict(json.dumps(result.summary()))
    assert summary["epsilon"] is None
    assert summary["delta"] is None
    folder = result.save(tmp_path / "run")
    for name in ("metrics.json", "privacy.json"):
        strict((folder / name).read_text())


@pytest.mark.parametrize("labels", [[np.zeros(len(c)) for c in CLIENTS], [["x"] * len(c) for c in CLIENTS]])
def test_metrics_are_finite_where_there_is_one_class_only(labels):
    result = simulate(FederatedKMeans(3, init=SERVER_ROWS[:3], n_rounds=1), CLIENTS, labels=labels)
    strict(json.dumps(result.summary()))
    assert all(np.isfinite(value) for value in result.metrics.values())


def test_summary_says_what_ran(result):
    summary = result.summary()
    assert summary["strategy"] == "feddp-kmeans"
    assert summary["clients"] == 3
    assert summary["rounds"] == 4
    assert summary["bytes_up"] == sum(row.bytes_up for row in result.traffic) == result.bytes_up
    assert summary["bytes_down"] == sum(row.bytes_down for row in result.traffic) == result.bytes_down
    assert summary["epsilon"] == result.privacy.epsilon
    assert summary["delta"] == 1e-6
    assert summary["failures"] == []
    assert summary["metrics"] == result.metrics


def test_failures_are_in_the_summary(result):
    failed = replace(result, failures=[Failure(2, "weights", "oslo", "no answer")])
    assert failed.summary()["failures"] == [{"round": 2, "task": "weights", "client": "oslo", "reason": "no answer"}]


def test_labels_that_the_server_found_are_kept_in_the_order_of_the_clients_given():
    given = {"b": np.array([1, 0]), "a": np.array([2, 2, 2])}

    class Labelling(FederatedKMeans):
        def protocol(self):
            model = yield from super().protocol()
            return Outcome(model, labels=given)

    strategy = Labelling(3, init=SERVER_ROWS[:3], n_rounds=1)
    result = simulate(strategy, [CLIENTS[0][:2], CLIENTS[1][:3], CLIENTS[2][:4]], names=["b", "a", "c"])
    assert [labels.tolist() for labels in result.labels] == [[1, 0], [2, 2, 2], []]


class Watching(FederatedKMeans):
    """Leaves a history behind."""

    watched = {"objective": (3.0, 2.5, 2.25), "movement": np.array([1.0, 0.125]), "nothing": ()}  # noqa: RUF012

    def protocol(self):
        model = yield from super().protocol()
        return Outcome(model, history=self.watched)


@pytest.fixture(scope="module")
def watched():
    return simulate(Watching(3, init=SERVER_ROWS[:3], n_rounds=1), CLIENTS)


def test_history_of_the_protocol_is_lists_by_name(watched):
    assert watched.history == {"objective": [3.0, 2.5, 2.25], "movement": [1.0, 0.125], "nothing": []}
    assert all(type(values) is list for values in watched.history.values())
    assert watched.labels[0].shape == (30,)


def test_history_is_in_the_summary_and_in_the_saved_metrics(watched, tmp_path):
    assert watched.summary()["history"] == watched.history
    saved = strict((watched.save(tmp_path / "run") / "metrics.json").read_text())
    assert saved["history"] == {"objective": [3.0, 2.5, 2.25], "movement": [1.0, 0.125], "nothing": []}


def test_history_of_a_protocol_that_watches_nothing_is_empty(result):
    assert result.history == {}
    assert result.summary()["history"] == {}


def test_two_results_do_not_share_a_history(watched):
    again = simulate(Watching(3, init=SERVER_ROWS[:3], n_rounds=1), CLIENTS)
    again.history["objective"].append(0.0)
    assert watched.history["objective"] == [3.0, 2.5, 2.25]
    assert Watching.watched["objective"] == (3.0, 2.5, 2.25)


def test_objective_of_every_round_of_fedsc_is_in_the_history():
    result = simulate(FedSC(3, n_rounds=3, tol=0.0, n_atoms=9), CLIENTS, seed=0)
    assert list(result.history) == ["objective"]
    assert len(result.history["objective"]) == 3
    strict(json.dumps(result.summary()))


def test_spectral_model_is_saved_without_a_file_of_centers(tmp_path):
    result = simulate(FedSC(3, n_rounds=1, n_atoms=9), CLIENTS, seed=0)
    folder = result.save(tmp_path / "run")
    assert not (folder / "centers.csv").exists()
    with np.load(folder / "model.npz") as arrays:
        model = SpectralModel.from_arrays([arrays[name] for name in arrays.files])
    new = np.concatenate(CLIENTS)
    assert np.array_equal(model.predict(new), result.model.predict(new))


def test_result_of_a_deployment_has_the_metrics_of_the_federated_evaluation():
    strategy = FederatedKMeans(3, init=SERVER_ROWS[:3], n_rounds=1, federated_evaluation=True)
    kept = []

    class Kept(FederatedKMeans):
        def aggregate_evaluate(self, *arguments):
            kept.append(self)
            return super().aggregate_evaluate(*arguments)

    strategy = Kept(**strategy.get_params())
    full = simulate(strategy, CLIENTS, labels=CLASSES, names=NAMES)
    result = result_of(kept[0], {}, 1.5)
    assert result.labels == []
    assert result.names == sorted(NAMES, key=lambda name: (not name.isdecimal(), name))
    assert result.metrics["nmi"] == pytest.approx(full.metrics["nmi"])
    assert result.metrics["cost"] == pytest.approx(full.metrics["cost"])
    assert result.seconds == 1.5


def test_model_predicts_rows_that_were_not_in_the_run(result):
    new = MEANS + 0.1
    assert len(set(result.model.predict(new))) == 3
    with pytest.raises(ValueError, match="rows: 3 columns where the cluster centers have 4"):
        result.model.predict(new[:, :3])
    with pytest.raises(ValueError, match="rows: row 1, column 2 is NaN"):
        result.model.predict(np.where(np.arange(12).reshape(3, 4) == 6, np.nan, new))


def test_cost_per_row_is_over_the_rows_of_all_clients(result):
    distances = ((np.concatenate(CLIENTS)[:, None] - result.model.cluster_centers_) ** 2).sum(axis=2)
    assert result.metrics["cost"] == pytest.approx(distances.min(axis=1).sum())
    assert result.metrics["cost_per_row"] == pytest.approx(result.metrics["cost"] / sum(map(len, CLIENTS)))
