import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from rich.console import Console

import flower_fedclust as fc
from flower_fedclust import ClientData
from flower_fedclust.data import FederatedRows
from flower_fedclust.engine.progress import is_shown, quiet
from flower_fedclust.engine.strategy import put_in_order
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.federated_kmeans import FederatedKMeans
from flower_fedclust.strategies.baselines.pooled import PooledKMeans
from flower_fedclust.strategies.feddp_kmeans import FedDPKMeans
from flower_fedclust.strategies.maps.speclust import FedSpeClust

RNG = np.random.default_rng(9)
MEANS = np.array([[0.0, 0, 0, 0], [9, 0, 0, 0], [0, 9, 0, 0]])
CLASSES = [RNG.integers(3, size=n) for n in (30, 50, 20)]
CLIENTS = [MEANS[classes] + RNG.normal(size=(len(classes), 4)) for classes in CLASSES]
SERVER_ROWS = MEANS.repeat(7, axis=0) + RNG.normal(size=(21, 4))


def lloyd(**options):
    return FederatedKMeans(3, init=SERVER_ROWS[[0, 8, 16]], **options)


def changed(client, value, row=2, column=1):
    clients = [part.copy() for part in CLIENTS]
    clients[client][row, column] = value
    return clients


def named(index, order="wxyz"):
    return pd.DataFrame(CLIENTS[index], columns=list("wxyz"))[list(order)]


def renamed(index, names):
    return named(index).set_axis(names, axis=1)


BAD_CLIENTS = [
    (changed(1, np.nan), {}, "client 1: row 2, column 1 is NaN"),
    (changed(2, np.inf, 0, 3), {}, "client 2: row 0, column 3 is infinite"),
    (changed(0, -np.inf), {}, "client 0: row 2, column 1 is infinite"),
    (changed(1, np.nan), {"names": ["a", "oslo", "c"]}, "client oslo: row 2, column 1 is NaN"),
    (
        changed(1, np.nan),
        {"columns": ["age", "pulse", "x", "y"]},
        "client 1: row 2, column 'pulse' is NaN",
    ),
    (
        [CLIENTS[0], np.array([[1, "tall", 2, 3]], dtype=object)],
        {"columns": list("ahxy")},
        "client 1: column 'h'",
    ),
    ([CLIENTS[0], [["1", "b", "2", "3"]]], {}, "client 1: column 1"),
    ([CLIENTS[0], np.zeros((0, 4))], {}, "client 1 has no rows"),
    ([np.zeros((3, 0)), CLIENTS[0]], {}, "client 0 has no columns"),
    ([CLIENTS[0], CLIENTS[1][0]], {}, "client 1"),
    ([CLIENTS[0], []], {}, "client 1"),
    ([CLIENTS[0], [[1.0, 2.0, 3.0, 4.0], [1.0]]], {}, "client 1"),
    ([CLIENTS[0], CLIENTS[1][:, :3]], {}, "client 1 has 3 columns where client 0 has 4"),
    ([CLIENTS[0]], {}, "min_clients"),
    ([], {}, "min_clients"),
    ([CLIENTS[0][:1], CLIENTS[1][:1]], {}, "n_clusters"),
    (CLIENTS, {"labels": CLASSES[:2]}, "labels"),
    (
        CLIENTS,
        {"labels": [CLASSES[0], CLASSES[1][:-1], CLASSES[2]]},
        "client 1: 49 labels for 50 rows",
    ),
    (CLIENTS, {"labels": [np.zeros((30, 2)), *CLASSES[1:]]}, "client 0"),
    (CLIENTS, {"names": ["a", "b", "a"]}, "names"),
    (CLIENTS, {"names": ["a", "b"]}, "names"),
    (CLIENTS, {"names": ["a", "", "b"]}, "name of client 1"),
    (CLIENTS, {"columns": list("aabc")}, "client 0: .*'a'"),
    (CLIENTS, {"columns": ["a", "b"]}, "client 0: 2 column names for 4 columns"),
    (CLIENTS, {"engine": "spark"}, "engine"),
    (
        {"a": named(0), "b": renamed(1, list("wxYz"))},
        {},
        "client b .* client a: it lacks 'y' and adds 'Y'",
    ),
    ({"a": renamed(0, ["ö", *"xyz"]), "b": renamed(1, ["o\u0308", *"xyz"])}, {}, "Unicode"),
    ({"a": named(0), "b": CLIENTS[1]}, {}, "client a .* client b"),
    ([named(0)] * 2, {"columns": list("xyzx")}, "'x'"),
    (
        {"a": named(0), "b": named(1)},
        {"labels": [CLASSES[0], pd.Series(CLASSES[1])[::-1]]},
        "client b: the labels",
    ),
    ([ClientData(part) for part in CLIENTS], {"labels": CLASSES}, "ClientData"),
    (named(0), {}, "clients is one table"),
    (CLIENTS[0], {}, "clients is one array"),
    ({"a": CLIENTS[0], "b": CLIENTS[1]}, {"names": ["c", "d"]}, "names"),
    ({"a": CLIENTS[0], "b": CLIENTS[1]}, {"labels": {"a": CLASSES[0]}}, "labels"),
]


@pytest.mark.parametrize(("clients", "options", "named"), BAD_CLIENTS)
def test_bad_input_is_refused_before_a_client_is_asked(clients, options, named):
    class Watched(FederatedKMeans):
        def steps(self):
            pytest.fail("A run begins.")

    with pytest.raises(ValueError, match=named):
        simulate(Watched(3, init=SERVER_ROWS[[0, 8, 16]]), clients, **options)


def test_public_rows_in_a_table_are_put_in_the_order_of_the_clients():
    centers, origin = named(0)[:3], named(0).mean()
    for public, made in (
        (named(0), lambda rows: fc.FedDPKMeans(3, server_data=rows, epsilon=None)),
        (centers, lambda rows: FederatedKMeans(3, init=rows)),
        (origin, lambda rows: fc.PrivateKMeans(3, max_norm=9.0, origin=rows)),
    ):
        one, other = (
            simulate(
                made(public[list(order)]), [named(index) for index in range(3)], seed=0
            ).model.cluster_centers_
            for order in ("wxyz", "zyxw")
        )
        assert np.array_equal(one, other)
    # What a deployment tells its clients, which then put their columns in this order.
    assert put_in_order(fc.FedDPKMeans(3, server_data=named(0, "zyxw"))) == list("zyxw")
    assert put_in_order(FederatedKMeans(3, init=centers[list("zyxw")])) == list("zyxw")
    both = fc.PrivateKMeans(3, server_data=named(0, "zyxw"), origin=origin)
    both.initialize_parameters(None)
    assert list(both.origin.index) == list("zyxw")
    other = fc.FedDPKMeans(3, server_data=renamed(0, list("Wxyz")), epsilon=None)
    with pytest.raises(ValueError, match=r"server_data .* client 0: it lacks 'w' and adds 'W'"):
        simulate(other, [named(index) for index in range(3)])
    with pytest.raises(ValueError, match="server rows"):
        simulate(server(), [part[:, :3] for part in CLIENTS])


def test_tables_by_name_are_put_in_order_and_give_what_arrays_give():
    plain = simulate(lloyd(), CLIENTS, labels=CLASSES, names=["a", "b", "c"])
    tables = {"a": named(0), "b": pa.Table.from_pandas(named(1, "zyxw")), "c": named(2, "xwzy")}
    result = simulate(lloyd(), tables, labels=dict(zip("abc", CLASSES, strict=True)))
    assert result.names == plain.names
    assert result.metrics == plain.metrics
    assert np.array_equal(result.model.cluster_centers_, plain.model.cluster_centers_)
    of_data = simulate(lloyd(), [ClientData(table) for table in tables.values()])
    assert np.array_equal(of_data.model.cluster_centers_, plain.model.cluster_centers_)
    of_rows = FederatedRows(CLIENTS, CLASSES, ["a", "b", "c"], columns=list("wxyz"))
    assert simulate(lloyd(), of_rows).metrics == plain.metrics


def test_columns_of_tables_can_be_chosen():
    tables = [named(index).assign(kind="text") for index in range(3)]
    plain = simulate(lloyd(), CLIENTS)
    assert simulate(lloyd(), tables, columns=list("wxyz")).metrics == plain.metrics
    by_number = [table.set_axis([0, 1, 2, 3, "kind"], axis=1) for table in tables]
    assert simulate(lloyd(), by_number, columns=range(4)).metrics == plain.metrics
    with pytest.raises(ValueError, match="'kind'"):
        simulate(lloyd(), tables, columns=["w", "kin"])


@pytest.mark.parametrize(
    "labels",
    [
        ["a", np.nan, "b"],
        ("a", None, "b"),
        pd.Series(["a", np.nan, "b"], dtype=object),
        pd.Series(["a", pd.NA, "b"], dtype="string"),
        pd.Categorical(["a", None, "b"]),
        np.ma.masked_array([1, 2, 3], mask=[False, True, False]),
        [1.0, np.nan, 2.0],
    ],
    ids=["list", "tuple", "objects", "text", "categories", "mask", "numbers"],
)
def test_a_missing_label_is_no_class(labels):
    with pytest.raises(ValueError, match="client oslo: row 1"):
        ClientData(CLIENTS[0][:3], labels, owner="client oslo")


def server():
    return FedDPKMeans(3, server_data=SERVER_ROWS)


@pytest.mark.filterwarnings("ignore")
def test_numbers_that_no_float_can_square_are_named():
    large, place = [1e300 * named(index) for index in range(3)], "row 0, column 'w'"
    with pytest.raises(fc.DataError, match=f"^client 0: {place}") as error:
        simulate(fc.KFED(3), large, seed=0)
    assert error.value.privacy_report.messages
    one = simulate(fc.KFED(3), [named(0), large[1], named(2)], seed=0)
    (failure,) = one.failures
    assert failure.reason.startswith(f"client 1: {place}")
    assert one.doubts[-1].sentence == failure.reason
    small = simulate(fc.KFED(3), [1e-300 * rows for rows in CLIENTS], seed=0)
    assert str(small.doubts[-1]).startswith("client 0: all entries")
    assert simulate(fc.KFED(3), CLIENTS, seed=0).doubts == ()
    with pytest.raises(ValueError, match="max_norm"):
        fc.PrivateKMeans(3, max_norm=1e-200)
    with pytest.raises(fc.DataError, match="server_data: row 2, column 1"):
        fc.FedDPKMeans(2, server_data=[[0, 1], [1, 2], [2, 1e200]])


@pytest.mark.filterwarnings("ignore:client . failed", "ignore:clients? .* took no part")
@pytest.mark.parametrize("name", ["pooled-kmeans", "private-density", "fedsc", "spp-fgc"])
def test_without_an_epsilon_no_strategy_takes_numbers_that_no_float_can_square(name):
    options = {"epsilon": None, "max_norm": 9.0} if name == "private-density" else {}
    place = "row 0, column 'w' is beyond"
    with pytest.raises(fc.DataError, match=f"^client 0: {place}"):
        simulate(name, [1e300 * named(index) for index in range(3)], n_clusters=3, **options)


@pytest.mark.parametrize("noise", ["server", "clients"])
def test_with_an_epsilon_rows_are_clipped_and_none_is_too_large(noise):
    """A failure would tell something about rows that no noise covers."""
    strategy = fc.PrivateKMeans(3, epsilon=2.0, max_norm=5.0, noise=noise)
    result = simulate(strategy, [1e300 * named(0), named(1), named(2)], seed=0)
    assert not result.failures
    assert np.isfinite(result.model.cluster_centers_).all()


def test_a_range_of_numbers_needs_rows_only_for_its_smallest_number():
    few = [CLIENTS[0][:5], CLIENTS[1][:5]]
    for numbers in ("auto", (2, 6), (10, 30)):
        result = simulate(fc.PrivateKMeans(numbers, epsilon=None), few, seed=0)
        assert result.number.chosen <= 10
    with pytest.raises(ValueError, match="n_clusters is at least 11 and the clients have 10 rows"):
        simulate(fc.PrivateKMeans((11, 30), epsilon=None), few, seed=0)
    with pytest.raises(ValueError, match="n_clusters is 16 and the clients have 10 rows"):
        simulate(fc.PrivateKMeans(16, epsilon=None), few, seed=0)


def test_message_about_a_bad_row_never_quotes_a_value():
    clients = [part.copy() for part in CLIENTS]
    clients[1][2] = [123.25, np.nan, 123.25, 123.25]
    with pytest.raises(ValueError, match="NaN") as caught:
        simulate(lloyd(), clients)
    assert "123" not in str(caught.value)
    with pytest.raises(ValueError, match="not numeric") as caught:
        simulate(lloyd(), [CLIENTS[0], [["1", "secret", "2", "3"]]])
    assert "secret" not in str(caught.value)


def test_rows_may_be_lists_of_integers_or_tables():
    integers = [np.round(part).astype(int) for part in CLIENTS]
    expected = simulate(lloyd(), [part.astype(float) for part in integers]).model.cluster_centers_
    forms = (np.ndarray.tolist, np.asarray, np.asfortranarray, pd.DataFrame, np.float32)
    for form in forms:
        assert np.array_equal(
            simulate(lloyd(), [form(part) for part in integers]).model.cluster_centers_, expected
        )


def test_names_are_numbers_from_0_by_default_and_results_keep_the_order_of_the_clients():
    plain, named = simulate(lloyd(), CLIENTS), simulate(lloyd(), CLIENTS, names=["z", "10", "9"])
    assert (plain.names, named.names) == (["0", "1", "2"], ["z", "10", "9"])
    for one, other in zip(plain.labels, named.labels, strict=True):
        assert np.array_equal(one, other)
    numbered = simulate(lloyd(), dict(enumerate(CLIENTS)), labels=dict(enumerate(CLASSES)))
    assert (numbered.names, numbered.metrics["accuracy"]) == (plain.names, 1.0)


def test_true_classes_do_not_change_the_run_and_are_not_sent():
    plain = simulate(server(), CLIENTS, seed=0)
    labeled = simulate(server(), CLIENTS, seed=0, labels=CLASSES)
    assert np.array_equal(plain.model.cluster_centers_, labeled.model.cluster_centers_)
    assert plain.traffic == labeled.traffic
    assert set(labeled.metrics) - set(plain.metrics) == {"accuracy", "nmi", "ari"}


def test_classes_may_be_text_in_a_column_of_a_table():
    named = [np.array(["red", "green", "blue"])[classes].astype(object) for classes in CLASSES]
    assert simulate(lloyd(), CLIENTS, labels=named).metrics["accuracy"] == 1.0


def test_own_random_state_of_the_strategy_stays_where_a_seed_is_given():
    def centers(random_state, seed):
        strategy = PooledKMeans(3, random_state=random_state)
        return simulate(
            strategy, [RNG_ROWS[:150], RNG_ROWS[150:]], seed=seed
        ).model.cluster_centers_

    assert np.array_equal(centers(1, 5), centers(1, 6))
    assert not np.array_equal(centers(None, 5), centers(None, 6))
    assert np.array_equal(centers(None, 5), centers(None, 5))


RNG_ROWS = np.random.default_rng(0).normal(size=(300, 6))


def test_progress_bar_is_shown_only_where_it_is_asked_for(capsys, monkeypatch):
    simulate(lloyd(), CLIENTS, progress=False)
    assert capsys.readouterr().err == ""
    strategy = lloyd()
    simulate(strategy, CLIENTS, progress=True)
    assert strategy.on_round is None
    monkeypatch.setattr(sys, "stderr", None)  # as where there is no console
    simulate(lloyd(), CLIENTS)


def test_log_level_of_flower_is_given_back():
    logger = logging.getLogger("flwr")
    before = logger.level
    simulate(lloyd(), CLIENTS)
    with pytest.raises(ValueError, match="min_clients"):
        simulate(lloyd(), CLIENTS[:1])
    assert logger.level == before


def test_hundreds_of_clients_take_seconds():
    rows = np.random.default_rng(0).normal(size=(600, 4))
    result = simulate(lloyd(n_rounds=2, tol=0.0), np.split(rows, 300))
    assert len(result.labels) == 300
    assert result.seconds < 6


def test_text_classes_reach_the_clients_on_ray(monkeypatch, tmp_path):
    """What is written for Ray's actors is read here without starting Ray."""
    read = []

    def instead_of_ray(*apps, **options):
        read.extend(
            pickle.loads(path.read_bytes()).labels for path in sorted(tmp_path.glob("*/*.pkl"))
        )

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("flwr.simulation.run_simulation", instead_of_ray)
    named = [np.array(["red", "green", "blue"])[classes].astype(object) for classes in CLASSES]
    with pytest.raises(RuntimeError, match="ended before the protocol did"):
        simulate(lloyd(), CLIENTS, labels=named, engine="ray")
    assert [array.tolist() for array in read] == [array.tolist() for array in named]


def test_ray_that_is_not_installed_is_said_before_anything_runs(monkeypatch):
    monkeypatch.setattr("flower_fedclust.simulation.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="Ray is not installed"):
        simulate(lloyd(), CLIENTS, engine="ray")


@pytest.mark.slow
@pytest.mark.long
def test_ray_equals_inline_bit_for_bit():
    """Of a strategy whose clients remember, whose rounds add up, gather and draw clients, and which is evaluated."""
    strategy = FedSpeClust(3, n_rounds=2, fraction_fit=0.75, federated_evaluation=True)
    names = ["oslo", "10", "9"]
    inline, ray = (
        simulate(strategy, CLIENTS, labels=CLASSES, names=names, engine=engine, seed=11)
        for engine in ("inline", "ray")
    )
    for one, other in zip(inline.model.to_arrays(), ray.model.to_arrays(), strict=True):
        assert np.array_equal(one, other)
    for one, other in zip(inline.labels, ray.labels, strict=True):
        assert np.array_equal(one, other)
    assert inline.privacy == ray.privacy
    assert inline.traffic == ray.traffic
    assert inline.failures == ray.failures == []
    assert inline.metrics == ray.metrics


def test_progress_is_shown_as_asked_in_terminals_and_in_notebooks_that_can(monkeypatch):
    assert is_shown(True)
    assert not is_shown(False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", None)
    monkeypatch.setattr("rich.console.Console.is_jupyter", True, raising=False)
    monkeypatch.setattr(Console, "__init__", lambda self, **options: None)
    for has_widgets in (True, False):
        monkeypatch.setattr(
            "flower_fedclust.engine.progress.find_spec",
            lambda name, found=has_widgets: found or None,
        )
        assert is_shown(None) == has_widgets
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert is_shown(None)


def test_runs_that_overlap_are_quiet_until_the_last_has_ended():
    logger = logging.getLogger("a logger of a test")
    logger.setLevel(logging.INFO)
    first, second, third = (
        quiet(level, logger.name) for level in (logging.ERROR, logging.CRITICAL, logging.ERROR)
    )
    levels = []
    for step in (first.__enter__, second.__enter__, third.__enter__):
        step()
        levels.append(logger.level)
    for run in (second, first, third):
        run.__exit__(None, None, None)
        levels.append(logger.level)
    critical, error = logging.CRITICAL, logging.ERROR
    assert levels == [error, critical, critical, error, error, logging.INFO]


LONG_RUN = """
import signal, sys, time
import numpy as np
import flower_fedclust as fc

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have its children ignore it
    strategy = fc.PrivateKMeans(8, epsilon=5.0, max_norm=5.0)
    strategy.on_round = lambda number, task: (print("round", number, flush=True), time.sleep(1))
    rows = {name: np.random.default_rng(0).normal(size=(500, 3)) for name in ("north", "south", "west")}
    fc.simulate(strategy, rows, engine=sys.argv[1], progress=False)
"""


@pytest.mark.long
@pytest.mark.parametrize("engine", ["inline", "shards", "ray"])
def test_a_run_that_is_interrupted_ends_within_seconds_and_leaves_no_process(tmp_path, engine):
    """On Ray, Flower's server waited for replies for ever, in a thread of its own."""
    (tmp_path / "run.py").write_text(LONG_RUN)
    command = [sys.executable, str(tmp_path / "run.py"), engine]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as done:
        assert any(line.startswith("round 3") for line in done.stdout)
        done.send_signal(signal.SIGINT)
        try:
            assert done.wait(60) in (1, 130, -signal.SIGINT)
            time.sleep(2)
            with pytest.raises(ProcessLookupError):
                os.killpg(done.pid, 0)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(done.pid, signal.SIGKILL)
