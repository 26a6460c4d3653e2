"""Engine "shards": the same bits as inline, even if processes are lost in the middle of a run."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from engine_toys import Toy, ToyClient
from test_engine_shards import CLIENTS, STRATEGIES

import flower_fedclust as fc
from flower_fedclust.checking.runs import difference
from flower_fedclust.engine import Gather, Sum, answers
from flower_fedclust.engine.cluster import connected

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module", autouse=True)
def machine():
    import ray

    # As `connected` does: else Ray warns.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


def both(make, clients=CLIENTS, **options):
    inline, shards = (
        fc.simulate(make(), clients, seed=5, engine=engine, **options)
        for engine in ("inline", "shards")
    )
    assert difference(inline, shards) == ""
    assert inline.privacy == shards.privacy
    assert inline.doubts == shards.doubts
    return shards


@pytest.mark.parametrize("name", STRATEGIES)
def test_shards_equal_inline_bit_for_bit(name):
    both(STRATEGIES[name])


def test_clients_that_are_drawn_and_remember_equal_inline():
    both(lambda: fc.FedSpeClust(3, n_rounds=2, fraction_fit=0.75))


class FatalClient(ToyClient):
    @answers("how often the client was asked")
    def fatal(self, *, place):
        """Remember how often it was asked; client 7 kills the process of its shard once."""
        mark = Path(place)
        if self.name == "7" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.visits()

    @answers()
    def fails(self):
        if int(self.name) % 3 == 0:
            raise ValueError("this client fails")


class Fatal(Toy):
    client_type = FatalClient


@pytest.mark.parametrize("kind", [Sum, Gather])
def test_what_clients_remember_outlives_a_process(kind, tmp_path):
    place = str(tmp_path / "killed")
    rounds = [
        Sum(FatalClient.visits.asked()),
        kind(FatalClient.fatal.asked(place=place)),
        Sum(FatalClient.visits.asked()),
    ]
    result = fc.simulate(Fatal(rounds), [rows[:, :2] for rows in CLIENTS], engine="shards")
    assert (tmp_path / "killed").exists()
    assert result.failures == []
    assert [int(result.model.brought[index][0][0]) for index in (0, 2)] == [40, 120]


def test_failures_are_those_of_inline():
    rounds = [Gather(FatalClient.fails.asked()), Sum(ToyClient.moments.asked())]
    result = both(lambda: Fatal(rounds), [rows[:, :2] for rows in CLIENTS])
    # 14 clients fail, fail again when they are asked once more, and miss the next round.
    assert [
        sum(failure.task == task for failure in result.failures) for task in ("fails", "moments")
    ] == [28, 14]


def test_a_journal_goes_on_with_the_same_bits(tmp_path):
    make = STRATEGIES["server"]
    first = fc.simulate(make(), CLIENTS, seed=5, engine="shards", journal=tmp_path / "j")
    again = fc.simulate(make(), CLIENTS, seed=5, engine="shards", journal=tmp_path / "j")
    assert difference(first, again) == ""


@pytest.mark.parametrize("address", ["somewhere", "http://host"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="address"), connected(address):
        pass


def test_rows_of_clients_are_put_into_the_store_once(monkeypatch):
    import ray

    stored, put = [], ray.put
    monkeypatch.setattr(ray, "put", lambda value: (stored.append(value), put(value))[1])
    fc.simulate(fc.KFED(3), CLIENTS, seed=1, engine="shards")
    assert sum(len(clients) for clients, _ in stored) == 40
    assert np.array_equal(stored[0][0]["0"].rows, CLIENTS[0])
