"""Whole runs on a device, and with rows that are kept between rounds: each reply has the same bits."""

from contextlib import contextmanager
from functools import cache
from hashlib import sha256

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common import FitIns

import flower_fedclust as fc
from flower_fedclust.engine import by_row
from flower_fedclust.engine.by_row import ByRow
from flower_fedclust.engine.client import _device_of, client_fn
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.fields import ENROL
from flower_fedclust.engine.kept_rows import KeptRows, keeping_rows, kept_rows
from flower_fedclust.engine.wire import PROBE, encode
from flower_fedclust.exact import terms
from flower_fedclust.exact.device import CARD_THREADS, Host, on_device
from flower_fedclust.exact.rows import Frame
from flower_fedclust.format import FORMAT

RUNS = {
    "private-kmeans": ("private-kmeans", {"epsilon": 1.0, "max_norm": 12.0}),
    "exact k-means": ("private-kmeans", {"epsilon": None}),
    "feddp-kmeans": (
        "feddp-kmeans",
        {"epsilon": 1.0, "server_data": np.random.default_rng(5).normal(size=(60, 8))},
    ),
    "private-density": ("private-density", {"epsilon": 1.0, "max_norm": 12.0}),
    "spp-fgc-sums": ("spp-fgc-sums", {}),
    "secure sums": ("private-kmeans", {"epsilon": 1.0, "max_norm": 12.0, "secure": True}),
}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    means = 3 * rng.normal(size=(4, 8))
    return list(
        np.array_split(means[rng.integers(4, size=30_000)] + rng.normal(size=(30_000, 8)), 3)
    )


@contextmanager
def hashed(monkeypatch):
    """Collect a hash of each array that a client sends before any noise."""
    hashes, reply = [], ByRow.reply

    def watched(self, *args, **kwargs):
        arrays = reply(self, *args, **kwargs)
        hashes.extend(
            (self.answer.task, sha256(one.integers.tobytes()).hexdigest(), one.exponent)
            for one in arrays
        )
        return arrays

    with monkeypatch.context() as patched:
        patched.setattr(ByRow, "reply", watched)
        yield hashes


def run(name, rows, monkeypatch, **options):
    """Return hashes of the replies, and the bytes of the model and of the labels."""
    strategy, parameters = RUNS[name]
    with hashed(monkeypatch) as hashes:
        result = fc.simulate(strategy, rows, n_clusters=4, seed=0, **parameters, **options)
    return hashes, [one.tobytes() for one in (*result.model.to_arrays(), *result.labels)]


@pytest.fixture(scope="module")
def on_the_processor(rows):
    """Return what a run gives without a device and without rows that are kept."""
    return cache(lambda name: run(name, rows, pytest.MonkeyPatch(), kept_rows=0))


#: Runs whose questions other runs ask, too.
LIKE_OTHERS = ("feddp-kmeans", "secure sums")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in LIKE_OTHERS else []) for name in RUNS],
)
@pytest.mark.parametrize("device", ["torch", "cuda"])
def test_each_reply_has_the_same_bits_on_a_device(
    name, device, rows, on_the_processor, monkeypatch
):
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no card is here")
    hashes, result = on_the_processor(name)
    found, found_result = run(name, rows, monkeypatch, device=device)
    assert len(hashes) > 8
    assert found == hashes
    assert found_result == result


@pytest.mark.parametrize("name", ["private-kmeans", "exact k-means"])
@pytest.mark.parametrize("kept", [0.001, 1.0])
def test_each_reply_has_the_same_bits_with_rows_that_are_kept(
    name, kept, rows, on_the_processor, monkeypatch
):
    hashes, result = on_the_processor(name)
    found, found_result = run(name, rows, monkeypatch, kept_rows=kept)
    assert found == hashes
    assert found_result == result


def test_rows_are_put_on_the_grid_once_while_the_frame_stays(rows, monkeypatch):
    made, enter = [], Frame.rows

    def counted(self, values, out=None):
        made.append(len(values))
        return enter(self, values, out)

    monkeypatch.setattr(Frame, "rows", counted)
    run("private-kmeans", rows, monkeypatch, kept_rows=0)
    each_round = sum(made)
    made.clear()
    run("private-kmeans", rows, monkeypatch)
    assert sum(made) < each_round / 3


def test_no_more_is_kept_than_the_bound_allows_and_another_frame_takes_its_place():
    client = ClientData(np.ones((40_000, 4)))
    store, one, other = KeptRows(900_000), Frame(np.zeros(4), 4.0), Frame(np.ones(4), 4.0)
    kept = store.of(client, one, 2**16)
    kept.keep(0, np.ones((10_000, 4)))
    assert len(kept.batches) == 1
    kept.keep(1, np.ones((10_000, 4)))
    assert len(kept.batches) == 1
    assert store.n_bytes == 640_000 <= store.most_bytes
    assert store.of(client, one, 2**10) is kept
    assert store.of(client, other, 2**16).batches == {}
    assert store.n_bytes == 0


def test_rows_of_the_next_frame_take_over_the_array_of_the_last():
    client, rng = ClientData(np.ones((40_000, 4))), np.random.default_rng(0)
    store, one, other = KeptRows(10**7), Frame(np.zeros(4), 4.0), Frame(np.ones(4), 4.0)
    first, second = (rng.normal(size=(20_000, 4)) for _ in range(2))
    room = store.of(client, one, 2**16).room
    kept = store.of(client, other, 2**16)
    assert kept.room is room
    kept.keep(1, second), kept.keep(0, first)
    kept.ends_with(40_000)
    assert kept.is_complete
    for found, values in zip(kept.batches.values(), (first, second), strict=True):
        assert np.shares_memory(found.integers, room)
        assert np.array_equal(found.integers, other.rows(values).integers)


def test_rows_of_a_client_that_is_gone_take_no_room():
    store, frame = KeptRows(900_000), Frame(np.zeros(4), 4.0)
    client, other = ClientData(np.ones((40_000, 4))), ClientData(np.ones((40_000, 4)))
    store.of(client, frame, 2**16).keep(0, np.ones((10_000, 4)))
    del client
    store.of(other, frame, 2**16).keep(0, np.ones((10_000, 4)))
    assert store.n_bytes == 640_000


def test_a_few_threads_prepare_work_for_a_card_however_many_cores_there_are(monkeypatch):
    class Card(Host):
        is_card = True

    seen = []

    def watched(function, items, n_jobs):
        seen.append(n_jobs)
        return map(function, items)

    monkeypatch.setattr(by_row, "mapped", watched)
    monkeypatch.setattr(ClientData, "n_jobs", 16)
    answer = by_row.by_row(total="sum of the rows")(terms.total)
    question = answer.asked(frame=Frame(np.zeros(2), 2.0))
    client = ClientData(np.ones((10, 2)))
    answer.reply(question, client)
    with on_device(Card()):
        answer.reply(question, client)
    assert seen == [16, CARD_THREADS]


def test_small_clients_and_runs_that_are_over_keep_nothing():
    assert KeptRows(10**9).of(ClientData(np.ones((100, 4))), Frame(np.zeros(4), 1.0), 2**16) is None
    with keeping_rows(0.5):
        assert kept_rows().most_bytes == 5 * 10**8
    assert kept_rows() is None
    with keeping_rows(1e300):  # infinitely many bytes
        assert kept_rows() is not None
    with pytest.raises(ValueError, match="kept_rows is -1"), keeping_rows(-1):
        pass


def test_a_device_is_for_one_process(rows):
    with pytest.raises(ValueError, match="one process owns a card"):
        fc.simulate("k-fed", rows, n_clusters=2, engine="shards", device="torch")
    with pytest.raises(ValueError, match='device is "tpu"'):
        fc.simulate("k-fed", rows, n_clusters=2, device="tpu")


def test_a_comparison_and_the_command_take_a_device(tmp_path, rows, monkeypatch):
    pytest.importorskip("torch")
    seen, enter = set(), Frame.rows

    def watched(self, values):
        seen.add(type(values).__module__)
        return enter(self, values)

    monkeypatch.setattr(Frame, "rows", watched)
    given = [part[:5_000] for part in rows]  # smaller clients answer together, in NumPy
    fc.compare(
        "federated-kmeans",
        given,
        n_clusters=2,
        seeds=1,
        jobs=1,
        out=tmp_path / "one",
        device="torch",
    )
    assert "torch" in seen
    with pytest.raises(ValueError, match="set jobs to 1"):
        fc.compare(
            "federated-kmeans", given, n_clusters=2, seeds=1, out=tmp_path / "two", device="torch"
        )


def test_a_supernode_names_its_device_in_its_own_config(rows):
    pytest.importorskip("torch")
    context = Context(0, 1, {"device": "torch"}, RecordDict(), {})
    assert _device_of(context).name == "PyTorch on the processor"
    assert _device_of(Context(0, 1, {}, RecordDict(), {})) is None
    with pytest.raises(ValueError, match='device is "tpu"'):
        _device_of(Context(0, 1, {"device": "tpu"}, RecordDict(), {}))


def failure_on(device, rows):
    """Return what a client with a device in its node config answers at its enrolment."""
    context = Context(0, 1, {"device": device}, RecordDict(), {})
    client = client_fn(fc.KFED.client_type, lambda _: ClientData(rows))(context)
    config = {
        "format": FORMAT,
        "client": fc.KFED.client_type.key(),
        "run": "r",
        "round": 1,
        "task": ENROL,
    }
    return str(client.fit(FitIns(encode(PROBE), config)).metrics["failure"])


def test_the_server_hears_that_there_is_no_such_device(rows):
    assert failure_on("tpu", rows).startswith('client 1: device is "tpu"; it must be "cpu"')


def test_a_card_that_cannot_be_opened_is_an_answer_without_its_text(rows, monkeypatch):
    def busy(name):
        raise RuntimeError("CUDA error 46 at 0x7f00")

    monkeypatch.setattr("flower_fedclust.engine.client.open_device", busy)
    assert failure_on("cuda", rows) == "client 1 failed with RuntimeError; its own log says more."


def test_a_batch_that_could_not_be_kept_is_kept_when_it_is_asked_again(rows, monkeypatch):
    source, store = ClientData(rows[0]), KeptRows(10**9)
    frame = Frame(np.zeros(rows[0].shape[1]), 100.0)
    kept = store.of(source, frame, 1)
    with monkeypatch.context() as patch:

        def fails(*_, **__):
            raise MemoryError

        patch.setattr(Frame, "rows", fails)
        with pytest.raises(MemoryError):
            kept.keep(0, rows[0])
    assert store.n_bytes == 0
    again = kept.keep(0, rows[0])
    np.testing.assert_array_equal(again.integers, frame.rows(rows[0]).integers)
    assert store.n_bytes == kept.n_bytes
