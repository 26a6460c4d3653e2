import csv
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_limits

import flower_fedclust as fc
from flower_fedclust.checking import Subject
from flower_fedclust.engine import Failure, Outcome
from flower_fedclust.models import SpectralModel
from flower_fedclust.results import pictures
from flower_fedclust.results.result import result_of
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.federated_kmeans import FederatedKMeans
from flower_fedclust.strategies.feddp_kmeans import FedDPKMeans
from flower_fedclust.strategies.fedsc import FedSC
from flower_fedclust.strategies.maps.map_sums import FedTSNESums

RNG = np.random.default_rng(9)
MEANS = np.array([[0.0, 0, 0, 0], [9, 0, 0, 0], [0, 9, 0, 0]])
CLASSES = [RNG.integers(3, size=n) for n in (30, 50, 20)]
CLIENTS = [MEANS[classes] + RNG.normal(size=(len(classes), 4)) for classes in CLASSES]
SERVER_ROWS = MEANS.repeat(7, axis=0) + RNG.normal(size=(21, 4))
NAMES = ["oslo", "St. Olav/Ålesund", "7"]


@pytest.fixture(scope="module")
def result():
    return simulate(
        FedDPKMeans(3, server_data=SERVER_ROWS, epsilon=3.0),
        CLIENTS,
        labels=CLASSES,
        names=NAMES,
        seed=1,
    )


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


def test_saved_centers_and_labels_read_back_in_other_programs(result, saved):
    assert np.array_equal(
        np.loadtxt(saved / "centers.csv", delimiter=","), result.model.cluster_centers_
    )
    for file, labels in (("oslo.csv", result.labels[0]), ("7.csv", result.labels[2])):
        table = pd.read_csv(saved / "labels" / file)
        assert list(table.columns) == ["row", "cluster"]
        assert table["row"].tolist() == list(range(len(labels)))
        assert np.array_equal(table["cluster"], labels)


def test_saved_metrics_and_privacy_are_json_and_read_back(result, saved):
    assert strict((saved / "metrics.json").read_text()) == result.summary()
    assert strict((saved / "privacy.json").read_text()) == result.privacy.to_dict()
    assert (saved / "privacy.txt").read_text() == f"{result.privacy}\n"


def test_saved_traffic_reads_back_also_with_a_comma_in_a_name(tmp_path):
    names = ["Oslo, north", 'the "big" one', "7"]
    result = simulate(FederatedKMeans(3, init=SERVER_ROWS[:3], n_rounds=1), CLIENTS, names=names)
    with (result.save(tmp_path / "run") / "traffic.csv").open(newline="") as file:
        found = [
            (int(row["round"]), row["task"], row["client"], int(row["bytes_up"]))
            for row in csv.DictReader(file)
        ]
    assert found == [(row.round, row.task, row.client, row.bytes_up) for row in result.traffic]


@pytest.mark.parametrize(
    "names", [["a/b", "0-a_b", "c"], ["a/b", "a_b", "a:b"], ["..", ".", "x"], [" ", "-", "x"]]
)
def test_every_client_has_a_file_of_its_own_whatever_its_name(tmp_path, names):
    result = simulate(FederatedKMeans(3, init=SERVER_ROWS[:3], n_rounds=1), CLIENTS, names=names)
    folder = result.save(tmp_path / "run")
    sizes = sorted(len(pd.read_csv(path)) for path in (folder / "labels").iterdir())
    assert sizes == [20, 30, 50]
    assert list(tmp_path.iterdir()) == [folder]


def test_only_an_empty_folder_is_written_into(result, tmp_path):
    (tmp_path / "run").mkdir()
    result.save(tmp_path / "run")
    (tmp_path / "mine.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine.txt", tmp_path / "run"):
        with pytest.raises(FileExistsError):
            result.save(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "run"]


def test_saved_json_holds_no_nan_and_no_infinity_without_a_guarantee(tmp_path):
    result = simulate(FederatedKMeans(3, init=SERVER_ROWS[:3], n_rounds=1), CLIENTS)
    assert (result.summary()["epsilon"], result.summary()["delta"]) == (None, None)
    folder = result.save(tmp_path / "run")
    for name in ("metrics.json", "privacy.json"):
        strict((folder / name).read_text())


@pytest.mark.parametrize(
    "labels", [[np.zeros(len(c)) for c in CLIENTS], [["x"] * len(c) for c in CLIENTS]]
)
def test_metrics_are_finite_where_there_is_one_class_only(labels):
    result = simulate(FederatedKMeans(3, init=SERVER_ROWS[:3], n_rounds=1), CLIENTS, labels=labels)
    strict(json.dumps(result.summary()))
    assert all(np.isfinite(value) for value in result.metrics.values())


def test_summary_says_what_ran(result):
    summary = replace(result, failures=[Failure(2, "weights", "oslo", "no answer")]).summary()
    assert summary["strategy"] == "feddp-kmeans"
    assert (summary["clients"], summary["rounds"]) == (3, 4)
    assert summary["bytes_up"] == sum(row.bytes_up for row in result.traffic)
    assert summary["bytes_down"] == sum(row.bytes_down for row in result.traffic)
    assert (summary["epsilon"], summary["delta"]) == (result.privacy.epsilon, 1e-6)
    assert summary["metrics"] == result.metrics
    assert summary["failures"] == [
        {"round": 2, "task": "weights", "client": "oslo", "reason": "no answer"}
    ]


def test_labels_that_the_server_found_are_kept_in_the_order_of_the_clients_given():
    given = {"b": np.array([1, 0]), "a": np.array([2, 2, 2])}

    class Labelling(FederatedKMeans):
        def protocol(self):
            model = yield from super().protocol()
            return Outcome(model, labels=given)

    strategy = Labelling(3, init=SERVER_ROWS[:3], n_rounds=1)
    result = simulate(
        strategy, [CLIENTS[0][:2], CLIENTS[1][:3], CLIENTS[2][:4]], names=["b", "a", "c"]
    )
    assert [labels.tolist() for labels in result.labels] == [[1, 0], [2, 2, 2], []]


class Watching(FederatedKMeans):
    """Leaves a history behind."""

    def protocol(self):
        model = yield from super().protocol()
        return Outcome(
            model, history={"objective": (3.0, 2.5), "movement": np.array([0.125]), "nothing": ()}
        )


def test_history_of_the_protocol_is_lists_by_name(tmp_path):
    watched = simulate(Watching(3, init=SERVER_ROWS[:3], n_rounds=1), CLIENTS)
    assert watched.history == {"objective": [3.0, 2.5], "movement": [0.125], "nothing": []}
    assert all(type(values) is list for values in watched.history.values())
    saved = strict((watched.save(tmp_path / "run") / "metrics.json").read_text())
    assert saved["history"] == watched.summary()["history"] == watched.history


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
    run = Subject(strategy, CLIENTS, CLASSES).run
    full = simulate(strategy, CLIENTS, labels=CLASSES, names=NAMES)
    result = result_of(run.strategy, {}, 1.5)
    assert result.labels == []
    assert result.names == ["9", "10", "site-b"]
    assert result.metrics["nmi"] == pytest.approx(full.metrics["nmi"])
    assert result.metrics["cost"] == pytest.approx(full.metrics["cost"])
    assert result.seconds == 1.5


def test_cost_per_row_is_over_the_rows_of_all_clients(result):
    distances = ((np.concatenate(CLIENTS)[:, None] - result.model.cluster_centers_) ** 2).sum(
        axis=2
    )
    assert result.metrics["cost"] == pytest.approx(distances.min(axis=1).sum())
    assert result.metrics["cost_per_row"] == pytest.approx(
        result.metrics["cost"] / sum(map(len, CLIENTS))
    )


def test_a_map_shows_its_rows_unless_noise_protects_them(monkeypatch):
    result = simulate(FedTSNESums(3), CLIENTS, seed=0)
    n_rows = sum(map(len, CLIENTS))
    assert result.plot().axes[0].get_xlabel() == f"points: {n_rows} rows"
    monkeypatch.setattr(pictures, "DENSE", n_rows)
    assert result.plot().axes[0].get_xlabel() == f"shading: {n_rows} rows"
    private = simulate(FedTSNESums(3, epsilon=8.0, max_norm=10.0), CLIENTS, seed=0)
    assert private.plot().axes[0].get_xlabel().endswith("landmarks")
    assert private.plot()._repr_png_().startswith(b"\x89PNG")  # what a notebook shows


def test_no_cluster_is_gray():
    for color in pictures.group_colors(40):
        channels = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
        assert max(channels) - min(channels) > 20


def test_labels_come_in_the_form_in_which_clients_were_given(tmp_path):
    numbers = np.random.default_rng(0)
    rows = pd.DataFrame({"x": numbers.normal(size=60), "y": numbers.normal(size=60)})
    sites = numbers.permutation(np.repeat(["north", "south", "east"], 20))
    by_site = {name: rows[sites == name] for name in ("north", "south", "east")}
    options = {"n_clusters": 2, "seed": 0, "progress": False}
    as_dict = fc.simulate("k-fed", by_site, **options)
    assert list(as_dict.labels) == ["north", "south", "east"]
    assert isinstance(fc.simulate("k-fed", list(by_site.values()), **options).labels, list)
    of_table = fc.simulate("k-fed", rows.assign(site=sites), client_column="site", **options)
    assert of_table.labels.tolist() == of_table.model.predict(rows).tolist()
    for name, labels in zip(of_table.names, of_table.labels_of_clients, strict=True):
        assert of_table.labels[sites == name].tolist() == labels.tolist()
    rows.assign(site=sites).to_csv(tmp_path / "rows.csv", index=False)
    of_file = fc.simulate("k-fed", tmp_path / "rows.csv", client_column="site", **options)
    assert of_file.labels.tolist() == of_table.labels.tolist()
    for result in (as_dict, of_file):
        loaded = fc.load(result.save(tmp_path / result.form))
        np.testing.assert_equal(loaded.labels, result.labels)
    drawn = fc.simulate(
        "feddp-kmeans",
        tmp_path / "rows.csv",
        client_column="site",
        n_clusters=2,
        seed=0,
        epsilon=None,
    )
    assert (drawn.labels == -1).sum() == 40  # made public for the server
    assert (drawn.labels[drawn.server_row_ids] == -1).all()


def test_metrics_have_the_same_bits_with_any_number_of_threads():
    rng = np.random.default_rng(3)
    means = rng.normal(size=(5, 300))
    rows = means[rng.integers(5, size=400)] + rng.normal(size=(400, 300))
    with threadpool_limits(2):
        found = [
            simulate("k-fed", [rows, rows[:5]], n_clusters=5, seed=0, n_jobs=n_jobs).metrics
            for n_jobs in (1, 2)
        ]
    assert found[0] == found[1]
