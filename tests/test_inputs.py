"""The same strategies and the same clients in simulate, compare, plan and audit, in every form people have them."""

import ast
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import flower_fedclust as fc
from apps import server_app
from flower_fedclust import authoring
from flower_fedclust.cli import commands
from flower_fedclust.data import FederatedRows, Table
from flower_fedclust.inputs import parsed_parameters

RNG = np.random.default_rng(3)
ROWS = {
    name: np.round(RNG.normal(size=(30, 2)) + shift, 3)
    for name, shift in (("north", -3.0), ("south", 3.0))
}
KINDS = {name: np.arange(30) % 2 for name in ROWS}
#: How rows are read is the same for every strategy; this one is quick.
KIND, NAME = fc.PrivateFederatedKMeans, "federated-kmeans-private"
PARAMETERS = {"n_clusters": 2, "epsilon": 2.0, "max_norm": 9.0, "n_rounds": 2}
SCHEMA = {"columns": {name: {"kind": "number", "bounds": [-9.0, 9.0]} for name in "ab"}}

simulate, compare, plan, audit = "simulate", "compare", "plan", "audit"
USES = (simulate, compare, plan, audit)
#: All uses read clients with the same function: each form is tried in one, and some in all; an audit takes seconds.
IN_ALL = ("tables with classes", "one table", "a folder")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tables as files: one for each client, and one for all with a column for the client."""
    path = tmp_path_factory.mktemp("rows")
    (path / "sites").mkdir()
    for name, frame in frames().items():
        frame.assign(kind=KINDS[name]).to_csv(path / "sites" / f"{name}.csv", index=False)
    one_table().to_csv(path / "all.csv", index=False)
    return path


def frames():
    return {name: pd.DataFrame(rows, columns=["a", "b"]) for name, rows in ROWS.items()}


def one_table():
    return pd.concat(
        [frame.assign(site=name, kind=KINDS[name]) for name, frame in frames().items()]
    )


FORMS = {
    "arrays": lambda folder: (
        list(ROWS.values()),
        {"labels": list(KINDS.values()), "names": list(ROWS)},
    ),
    "mapping": lambda folder: (ROWS, {"labels": KINDS}),
    "tables": lambda folder: (frames(), {"labels": KINDS}),
    "client data": lambda folder: (
        {name: fc.ClientData(ROWS[name], KINDS[name]) for name in ROWS},
        {},
    ),
    "tables with classes": lambda folder: (
        {name: frame.assign(kind=KINDS[name]) for name, frame in frames().items()},
        {"label_column": "kind"},
    ),
    "one table": lambda folder: (one_table(), {"client_column": "site", "label_column": "kind"}),
    "federated rows": lambda folder: (
        FederatedRows(list(ROWS.values()), list(KINDS.values()), list(ROWS)),
        {},
    ),
    "table with owners": lambda folder: (
        Table(
            np.concatenate(list(ROWS.values())),
            np.tile(np.arange(30) % 2, 2),
            np.repeat(list(ROWS), 30),
        ),
        {},
    ),
    "files": lambda folder: (
        {name: folder / "sites" / f"{name}.csv" for name in ROWS},
        {"label_column": "kind"},
    ),
    "a folder": lambda folder: (folder / "sites", {"label_column": "kind"}),
    "one file": lambda folder: (
        str(folder / "all.csv"),
        {"client_column": "site", "label_column": "kind"},
    ),
}


def outcome(use, strategy, clients, out, **options):
    """What a use finds, without what differs from run to run."""
    if use == simulate:
        return fc.simulate(strategy, clients, seed=0, **options).model.cluster_centers_.tolist()
    if use == plan:
        return str(fc.plan(strategy, clients, epsilons=(), **options))
    if use == audit:
        found = fc.audit(strategy, clients, runs=2, seconds=0.5, seed=0, **options)
        return (
            found.epsilon_counted,
            found.epsilon,
            found.unprotected,
            [one.content for one in found.releases],
        )
    if not isinstance(strategy, authoring.ProtocolStrategy):
        options["epsilons"] = options.pop("epsilon")
        options["set"] = {name: options.pop(name) for name in ("max_norm", "n_rounds")}
    frame = fc.compare(strategy, clients, seeds=1, jobs=1, out=out, **options).to_pandas()
    return frame[["cost", "accuracy", "n_clients", "n_rows", "epsilon"]].to_numpy().tolist()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    made = KIND(**PARAMETERS)
    return {
        use: outcome(use, made, ROWS, tmp_path_factory.mktemp(use) / "o", labels=KINDS)
        for use in USES
    }


@pytest.mark.parametrize(
    ("form", "use"),
    [
        *(
            (form, use)
            for form in FORMS
            for use in (simulate, compare, plan)
            if use == simulate or form in IN_ALL
        ),
        ("a folder", audit),
    ],
)
def test_every_form_of_the_same_clients_gives_the_same_result(
    use, form, folder, expected, tmp_path
):
    clients, options = FORMS[form](folder)
    assert outcome(use, KIND(**PARAMETERS), clients, tmp_path / "out", **options) == expected[use]


@pytest.mark.parametrize(
    ("strategy", "use"),
    [
        *((NAME, use) for use in USES),
        *((KIND, use) for use in (simulate, compare)),
        (f"{KIND.__module__}:{KIND.__name__}", plan),
    ],
)
def test_a_class_and_a_name_give_what_the_object_gives(use, strategy, expected, tmp_path):
    assert (
        outcome(use, strategy, ROWS, tmp_path / "out", labels=KINDS, **PARAMETERS) == expected[use]
    )


@pytest.mark.parametrize("use", [simulate, compare, plan])
def test_tables_with_a_schema_need_no_bound(use, folder, tmp_path):
    made = KIND(2, epsilon=2.0, n_rounds=2)
    tables = {name: frame.assign(kind=KINDS[name]) for name, frame in frames().items()}
    found = [
        outcome(use, made, clients, tmp_path / str(index), schema=SCHEMA, label_column="kind")
        for index, clients in enumerate((tables, folder / "sites"))
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("use", [simulate, compare, plan])
def test_a_data_set_has_a_name_and_is_spread_over_clients(use, tmp_path):
    made = KIND(3, epsilon=2.0, max_norm=12.0, n_rounds=2)
    first = outcome(use, made, "iris", tmp_path / "one", n_clients=4)
    assert (
        outcome(use, made, "flower_fedclust.data.datasets:iris", tmp_path / "two", n_clients=4)
        == first
    )


def test_parameters_belong_to_a_strategy_that_is_given_by_name():
    with pytest.raises(TypeError, match="'max_nrom'"):
        fc.simulate(KIND(**PARAMETERS), ROWS, max_nrom=3.0)
    with pytest.raises(ValueError, match="'max_norm'"):
        fc.simulate(NAME, ROWS, n_clusters=2, max_nrom=3.0)
    with pytest.raises(ValueError, match="several"):
        fc.simulate(["k-fed", "pooled-kmeans"], ROWS, n_clusters=2)
    for use in (fc.simulate, fc.plan, fc.audit, fc.compare):
        with pytest.raises(TypeError, match="strategy"):
            use(3, ROWS)


def test_a_class_takes_the_parameters_that_its_names_stand_for():
    assert fc.simulate(fc.FedDPKMeans, ROWS, n_clusters=2, epsilon=None, server_data=ROWS["north"])
    for parameters, named in (({}, "server_data"), ({"n_cluster": 2}, "'n_clusters'")):
        with pytest.raises(ValueError, match=named):
            fc.simulate(fc.FedDPKMeans, ROWS, **parameters)
    drawn = fc.simulate(fc.FedDPKMeans, "iris", n_clusters=3, n_clients=3)
    assert sum(map(len, drawn.labels)) == 150 - 3 * 20


def test_one_file_without_the_column_of_clients_is_refused(folder):
    with pytest.raises(ValueError, match="client_column"):
        fc.simulate("k-fed", folder / "all.csv", n_clusters=2)


def test_a_table_of_public_rows_is_drawn_for_a_strategy_by_name_that_needs_one(folder):
    result = fc.simulate(
        "feddp-kmeans",
        folder / "all.csv",
        client_column="site",
        n_clusters=2,
        seed=0,
        columns=["a", "b"],
    )
    assert sum(map(len, result.labels_of_clients)) == 60 - 2 * 20


def test_objects_are_compared_as_they_are_beside_names(tmp_path):
    two = [KIND(**PARAMETERS | {"epsilon": one}) for one in (1.0, 4.0)]
    init = np.array([[0.0, 0.0], [1.0, 1.0]])
    strategies = [*two, fc.FederatedKMeans(2, init=init), fc.FederatedKMeans, "pooled-kmeans"]
    results = fc.compare(strategies, ROWS, n_clusters=3, seeds=2, jobs=1, out=tmp_path / "out")
    frame = results.to_pandas()
    assert (frame["status"] == "done").all()
    found = frame.groupby(["strategy", "epsilon", "n_clusters"], dropna=False).size()
    assert len(frame) == found.sum() == 10
    assert set(frame.loc[frame["strategy"] == NAME, "epsilon"]) == {1.0, 4.0}
    assert set(frame.loc[frame["strategy"] == "federated-kmeans", "n_clusters"]) == {2, 3}
    again = fc.compare(strategies, ROWS, n_clusters=3, seeds=2, jobs=1, out=tmp_path / "out")
    pd.testing.assert_frame_equal(again.to_pandas(), frame)
    with pytest.raises(FileExistsError):
        fc.compare(
            strategies,
            {**ROWS, "north": ROWS["south"]},
            n_clusters=3,
            seeds=2,
            jobs=1,
            out=tmp_path / "out",
        )


VISITS = pd.DataFrame({"a": np.arange(12.0), "b": np.tile([1.0, 5.0], 6), "site": ["n", "s"] * 6})


@pytest.mark.parametrize(
    ("clients", "error", "words"),
    [
        (None, TypeError, "clients is None; give a table or an array for each client"),
        (3, TypeError, "clients is 3; give a table or an array for each client"),
        (VISITS.groupby("site"), ValueError, r"dict\(list\(table.groupby\(...\)\)\)"),
        (list(VISITS.groupby("site")), ValueError, "or the table itself and its client_column"),
    ],
    ids=["None", "a number", "groups", "pairs"],
)
def test_what_is_no_clients_is_told_how_to_become_them(clients, error, words):
    with pytest.raises(error, match=words):
        fc.simulate(fc.FederatedKMeans(2), clients)


def test_tensors_with_gradients_and_of_types_that_numpy_lacks_are_rows():
    torch = pytest.importorskip("torch")
    rows = np.arange(24.0).reshape(12, 2)
    expected = fc.simulate(fc.FederatedKMeans(2), [rows[:6], rows[6:]], seed=0)
    for tensor in (torch.tensor(rows, requires_grad=True), torch.tensor(rows).bfloat16()):
        found = fc.simulate(fc.FederatedKMeans(2), [tensor[:6], tensor[6:]], seed=0)
        np.testing.assert_array_equal(found.model.cluster_centers_, expected.model.cluster_centers_)
        np.testing.assert_array_equal(found.model.predict(tensor), np.concatenate(expected.labels))


RUN_CONFIG = {
    **{
        "dataset": "iris",
        "partition": "iid",
        "data-seed": 0,
        "wait-for-clients": 1,
        "round-timeout": 1,
    },
    **{"share-model": False, "secure": False, "describe": False, "floor": 10},
}


def refusal(call):
    """The words with which a call is refused."""
    try:
        found = call()
    except ValueError as error:
        return str(error)
    return found.to_pandas()["reason"][0]  # a comparison goes on


def by_simulate(name, parameters, _path):
    return refusal(lambda: fc.simulate(name, "iris", **parameters))


def by_run_app(name, parameters, _path):
    return refusal(lambda: fc.run_app(name, None, **parameters))


def by_compare(name, parameters, path):
    chosen = {key: value for key, value in parameters.items() if key != "n_clusters"}
    options = {
        "n_clusters": parameters["n_clusters"],
        "set": chosen,
        "seeds": 1,
        "jobs": 1,
        "out": path / "out",
    }
    return refusal(lambda: fc.compare(name, "iris", **options))


def by_flwr_run(name, parameters, _path):
    toml = "\n".join(f"{key} = {value}" for key, value in parameters.items() if key != "n_clusters")
    config = {
        **RUN_CONFIG,
        "strategy": name,
        "n-clusters": str(parameters["n_clusters"]),
        "parameters": toml,
    }
    grid = SimpleNamespace(get_node_ids=lambda: range(3))
    return refusal(lambda: server_app.main(grid, SimpleNamespace(run_config=config)))


def by_command(name, parameters, _path):
    sets = [
        word
        for key, value in parameters.items()
        for word in ("--set", f"{key}={value}")
        if key != "n_clusters"
    ]
    asked = [name, "--dataset", "iris", "--n-clusters", str(parameters["n_clusters"]), *sets]
    return refusal(lambda: commands.app(["run", *asked], standalone_mode=False))


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("k-fedd", {"n_clusters": 3}, "'k-fed'"),
        ("k-fed", {"n_clusters": 3, "n_round": 2}, "'n_round'"),
        ("private-kmeans", {"n_clusters": 3}, "max_norm"),
        ("k-fed", {"n_clusters": 1}, "n_clusters is 1"),
    ],
)
@pytest.mark.parametrize("door", [by_run_app, by_flwr_run, by_command, by_compare])
def test_every_door_refuses_the_same_with_the_same_words(door, name, parameters, said, tmp_path):
    expected = by_simulate(name, parameters, tmp_path)
    assert said in expected
    assert door(name, parameters, tmp_path) == expected


def test_a_folder_that_does_not_exist_is_no_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"There is no folder sites\."):
        fc.simulate("k-fed", "sites/", n_clusters=2)


def test_the_files_of_a_folder_are_the_clients_and_no_column_is(folder):
    with pytest.raises(ValueError, match=r"client_column is given, but the files of .* are the"):
        fc.simulate("k-fed", folder / "sites", client_column="site", n_clusters=2)


def test_a_wrong_parameter_is_refused_before_any_row_is_read(folder):
    with pytest.raises(ValueError, match="'n_round'"):
        fc.simulate("k-fed", folder / "nowhere.csv", client_column="site", n_clusters=2, n_round=2)


def test_only_one_module_reads_strategies_and_clients():
    package = Path(fc.__file__).parent
    folders = [package / "harness", package / "cli", package / "checking", package.parent / "apps"]
    files = [
        package / "simulation.py",
        *(file for folder in folders for file in folder.glob("*.py")),
    ]
    assert len(files) > 25
    alone = {
        "load_dataset",
        "read_folder",
        "partition",
        "hold_out_server_rows",
        "table_of",
        "make_strategy",
        "clients_of",
    }
    for file in files:
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        assert not alone & {
            name.name for one in nodes if isinstance(one, ast.ImportFrom) for name in one.names
        }, file


def test_a_parameter_may_have_hyphens_and_the_name_of_its_strategy_keeps_them():
    texts = ["max-norm=1.5", "fedsc-sums.n-atoms=3", "my.module:Class.n_atoms=4"]
    assert parsed_parameters(texts) == {
        "max_norm": 1.5,
        "fedsc-sums.n_atoms": 3,
        "my.module:Class.n_atoms": 4,
    }
    with pytest.raises(ValueError, match=r"fedsc-sums\.n_atoms is given twice"):
        parsed_parameters([*texts, "fedsc-sums.n_atoms=5"])
