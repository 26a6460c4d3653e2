"""What one client, or a few, did to the others' run."""

import numpy as np
import pytest
from flwr.common import Code, FitRes, Parameters, Status
from hostile_clients import HEADERS, KINDS, TENSORS, claimed, served, with_arrays, with_header
from sklearn.metrics import adjusted_rand_score

import flower_fedclust as fc
from flower_fedclust.engine import Sent
from flower_fedclust.engine.replies import ReplyError, checked_arrays, read_reply
from flower_fedclust.engine.wire import encode
from flower_fedclust.format import FORMAT
from flower_fedclust.numerics.metrics import agreement
from flower_fedclust.registry import find
from flower_fedclust.results.result import result_of

BAD = "c1"


@pytest.fixture
def data():
    return tables([60] * 6)


def tables(sizes):
    rng = np.random.default_rng(1)
    return {
        f"c{index}": fc.ClientData(
            4 * np.eye(3)[np.arange(size) % 3] + 0.2 * rng.normal(size=(size, 3)),
            np.arange(size) % 3,
        )
        for index, size in enumerate(sizes)
    }


def run(name, data, attack, *hostile, **parameters):
    entry = find(name)
    made = entry.strategy(n_clusters=3, **entry.fixed, **parameters)
    return served(made, data, *(hostile or (BAD,)), seed=3, attack=attack).strategy


def score(strategy, data):
    found = dict(zip(data, result_of(strategy, data, 0.0).labels, strict=True))
    honest = [name for name in data if name != BAD]
    return adjusted_rand_score(
        np.concatenate([data[name].labels for name in honest]),
        np.concatenate([found[name] for name in honest]),
    )


def zeros(task, res):
    return with_arrays(res, np.zeros_like)


def times_10_000(task, res):
    return with_arrays(res, lambda array: array * np.array(10_000, array.dtype))


@pytest.mark.parametrize("name", ["fed-tsne", "fed-umap"])
def test_a_client_whose_rows_are_at_no_distance_from_the_landmarks_is_left_out_of_the_map(
    name, data
):
    strategy = run(name, data, zeros, n_rounds=3, n_landmarks=30)
    assert {failure.client for failure in strategy.failures} == {BAD}
    assert strategy.failures[-1].task == "landmark_distances"
    assert score(strategy, data) > 0.9


def test_a_client_whose_kernel_values_are_none_is_left_out(data):
    def attack(task, res):
        return times_10_000(task, res) if task == "landmark_kernel" else res

    strategy = run("fed-speclust", data, attack, n_rounds=3, n_landmarks=30)
    assert {(failure.task, failure.client) for failure in strategy.failures} == {
        ("landmark_kernel", BAD)
    }
    assert score(strategy, data) > 0.9


def test_a_sum_is_no_longer_than_the_rows_of_its_client_can_make_it(data):
    n_axes = {"column_sums": 1, "cluster_sums": 2}

    def sums_alone(task, res):
        return with_arrays(
            res, lambda array: array * (10_000 if array.ndim == n_axes.get(task) else 1)
        )

    strategy = run("spp-fgc-sums", data, sums_alone)
    assert {(failure.task, failure.client) for failure in strategy.failures} == {
        (task, BAD) for task in n_axes
    }
    assert score(strategy, data) > 0.9


@pytest.mark.parametrize(
    "name", [pytest.param("spp-fgc-sums", marks=pytest.mark.long), "federated-kmeans"]
)
def test_a_client_that_multiplies_its_rows_as_well_is_a_doubt(name, data):
    strategy = run(name, data, times_10_000)
    (doubt,) = [one for one in result_of(strategy, data, 0.0).doubts if one.code == "one-client"]
    assert (doubt.numbers["client"], doubt.basis) == (BAD, "released")
    assert doubt.numbers["part"] > 0.99


@pytest.mark.parametrize("n_rows", [2**39, 2**60])
def test_what_most_clients_say_of_their_number_makes_no_array_that_fills_the_memory(n_rows, data):
    def attack(task, res):
        return (
            with_arrays(res, lambda array: np.full_like(array, n_rows))
            if task == "row_count"
            else res
        )

    names = list(data)[:4]
    strategy = run(
        "private-kmeans", data, attack, *names, max_norm=6.0, noise="clients", min_clients=2
    )
    if n_rows > 2**40:
        assert {failure.client for failure in strategy.failures} == set(names)
    assert strategy.is_finished


def test_one_site_with_nearly_all_rows_is_a_doubt_and_half_of_them_are_none():
    for size, expected in ((8000, ["c0"]), (160, [])):
        result = fc.simulate(
            fc.FedDPKMeans(3, server_data=4 * np.eye(3), epsilon=4.0), tables([size, 80, 80, 80])
        )
        found = [one for one in result.doubts if one.code == "one-client"]
        assert [one.numbers["client"] for one in found] == expected
        assert all(one.basis == "rows" for one in found)


def test_a_site_with_nearly_all_rows_in_a_deployment_is_known_by_the_evaluation():
    data = tables([4000, 80, 80, 80])
    strategy = run(
        "feddp-kmeans",
        data,
        lambda task, res: res,
        server_data=4 * np.eye(3),
        federated_evaluation=True,
    )
    (doubt,) = [one for one in result_of(strategy, {}, 0.0).doubts if one.code == "one-client"]
    assert (doubt.numbers["client"], doubt.basis) == ("c0", "released")


# Raw replies.


@pytest.mark.parametrize("tensor", [with_header(header) for header in HEADERS] + TENSORS)
def test_bytes_that_are_no_array_are_the_replys_fault(tensor):
    with pytest.raises(ReplyError, match="client north"):
        read(Parameters([tensor], "numpy.ndarray"))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_any_kind_become_those_that_a_protocol_computes_with(kind):
    array = np.array([1, 0]).astype(kind)
    if array.dtype.kind not in "fiub":
        with pytest.raises(ReplyError):
            read(encode([array]))
    else:
        (found,) = read(encode([array]))
        assert found.dtype in (np.float64, np.int64, np.bool_)
        assert found.tolist() == [1, 0]


@pytest.mark.parametrize(
    "array",
    [
        np.array([2**63], dtype=np.uint64),
        np.array([np.finfo(np.longdouble).max]),
        np.array([np.nan]),
    ],
)
def test_a_number_that_does_not_fit_is_the_replys_fault(array):
    with pytest.raises(ReplyError):
        read(encode([array]))


def read(parameters):
    res = claimed(FitRes(Status(Code.OK, ""), parameters, 1, {"format": FORMAT}))
    return read_reply(
        "north", res, lambda _, arrays: checked_arrays("north", arrays, [Sent("numbers")], 1)
    )


def test_a_table_of_a_billion_rows_takes_no_memory_for_each():
    table = np.array([[2**39, 0], [0, 2**39]])
    assert agreement(table) == pytest.approx({"accuracy": 1.0, "nmi": 1.0, "ari": 1.0})
