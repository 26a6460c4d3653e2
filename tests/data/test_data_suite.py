"""Sets in the format of Gagolewski's suite, which the tests write themselves."""

import gzip

import numpy as np
import pytest
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.cli.commands import app as cli
from flower_fedclust.data import find_dataset, load_dataset, partition
from flower_fedclust.data.suite import sets_named


def write(path, values):
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, values, fmt="%g")


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Two sets: three groups far apart with 5 rows of noise and a second labeling of two groups; and two groups."""
    rng = np.random.default_rng(0)
    groups = np.repeat([1, 2, 3], 20)
    rows = rng.normal(scale=0.1, size=(60, 2)) + 10.0 * groups[:, None]
    write(tmp_path / "ours" / "three.data.gz", np.concatenate([rows, rng.uniform(0, 40, (5, 2))]))
    write(tmp_path / "ours" / "three.labels0.gz", [*groups, *[0] * 5])
    write(tmp_path / "ours" / "three.labels1.gz", [*np.minimum(groups, 2), *[0] * 5])
    write(tmp_path / "ours" / "two.data.gz", rows[:40])
    write(tmp_path / "ours" / "two.labels0.gz", groups[:40])
    monkeypatch.setenv("FEDCLUST_SUITE", str(tmp_path))
    return tmp_path


def test_a_set_has_rows_and_all_labelings(suite):
    table = load_dataset("suite:ours/three")
    assert table.rows.shape == (65, 2)
    assert table.labels is None
    assert np.bincount(table.labelings[:, 0]).tolist() == [5, 20, 20, 20]
    assert np.bincount(table.labelings[:, 1]).tolist() == [5, 20, 40]


def test_a_battery_is_its_sets(suite):
    assert sets_named("suite:ours") == ["suite:ours/three", "suite:ours/two"]


def test_the_first_labeling_spreads_the_rows(suite):
    table = load_dataset("suite:ours/two")
    rows = partition(table, "classes:1", n_clients=2)
    assert rows.labels is None
    assert [len(np.unique(table.labelings[own])) for own in rows.row_ids] == [1, 1]


@pytest.mark.parametrize(
    ("name", "said"),
    [("suite:our/two", "'ours'"), ("suite:ours/tow", "'two'"), ("suite:ours", "suite:ours/SET")],
    ids=["battery", "set", "no set"],
)
def test_an_unknown_name_names_the_nearest(suite, name, said):
    with pytest.raises(ValueError, match=said):
        find_dataset(name)


def test_without_a_folder_the_error_names_the_variable(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDCLUST_SUITE", raising=False)
    with pytest.raises(ValueError, match="FEDCLUST_SUITE"):
        find_dataset("suite:ours/two")
    monkeypatch.setenv("FEDCLUST_SUITE", str(tmp_path))
    with pytest.raises(ValueError, match="FEDCLUST_SUITE"):
        find_dataset("suite:ours/two")


@pytest.mark.parametrize(
    "labels", [[1] * 39, [-1] * 40, [1.5] * 40, [0] * 40], ids=["few", "negative", "half", "noise"]
)
def test_wrong_labels_are_refused(suite, labels):
    write(suite / "ours" / "two.labels0.gz", labels)
    with pytest.raises(ValueError, match=r"two\.labels0"):
        load_dataset("suite:ours/two")


def test_a_set_without_labels_is_refused(suite):
    (suite / "ours" / "two.labels0.gz").unlink()
    with pytest.raises(ValueError, match="labels0"):
        load_dataset("suite:ours/two")


def test_a_comparison_scores_a_battery_without_its_noise(suite, tmp_path):
    results = fc.compare(
        ["k-fed", "feddp-kmeans"],
        datasets="suite:ours",
        seeds=1,
        n_clients=3,
        n_server_rows=9,
        epsilons=["none"],
        out=tmp_path / "out",
        jobs=1,
        progress=False,
    )
    found = results.to_pandas().set_index(["strategy", "data", "n_clusters"]).sort_index()
    assert sorted(found.loc["k-fed"].index) == [
        ("suite:ours/three", 2),
        ("suite:ours/three", 3),
        ("suite:ours/two", 2),
    ]
    assert (found["status"] == "done").all()
    # The five rows of noise are as far away as a cluster; unscored, three clusters of the rest are found.
    scores = found.loc["feddp-kmeans", "suite:ours/two", 2]
    assert scores[["accuracy", "ari", "nca", "adjusted_accuracy"]].tolist() == [1.0] * 4
    assert scores["n_rows"] == 31
    assert found.loc["k-fed", "suite:ours/three", 3]["ari"] > 0.5
    assert found.loc["k-fed", "suite:ours/three", 3]["n_classes"] == 3
    verdicts = " ".join(results.verdicts)
    assert "suite:ours/three, iid, 2 clusters" in verdicts
    assert "suite:ours/three, iid, 3 clusters" in verdicts
    assert "adjusted accuracy" in results.to_markdown()


def test_the_command_takes_a_set(suite, tmp_path):
    asked = [
        "compare",
        "--strategies",
        "k-fed",
        "--datasets",
        "suite:ours/two",
        "--seeds",
        "1",
        "--n-clients",
        "2",
    ]
    done = CliRunner().invoke(cli, [*asked, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "suite:ours/two, iid, 2 clusters" in " ".join(done.output.split())
