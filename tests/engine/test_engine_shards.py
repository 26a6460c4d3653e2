"""Many clients of a shard answer together: the same bits, report and failures as one after the other."""

from dataclasses import replace

import numpy as np
import pytest
from engine_toys import Toy, ToyClient

import flower_fedclust as fc
from flower_fedclust import authoring
from flower_fedclust.checking.runs import difference
from flower_fedclust.engine import Gather, ProtocolError, Sent, Sum
from flower_fedclust.engine.replies import Inspection
from flower_fedclust.engine.shards import Shard
from flower_fedclust.exact import terms

RNG = np.random.default_rng(0)
CENTERS = 4.0 * np.eye(3)
#: From 1 to 9 rows.
CLIENTS = [
    CENTERS[RNG.integers(3, size=size)] + RNG.normal(size=(size, 3))
    for size in RNG.integers(1, 10, size=40)
]
PUBLIC = CENTERS[RNG.integers(3, size=30)] + RNG.normal(size=(30, 3))
PRIVATE = {"epsilon": 20.0, "max_norm": 12.0}

STRATEGIES = {
    "without noise": lambda: fc.FederatedKMeans(3, init=CENTERS),
    "server": lambda: fc.PrivateKMeans(3, **PRIVATE),
    "clients": lambda: fc.PrivateFederatedKMeans(3, **PRIVATE, n_rounds=2, noise="clients"),
    "local": lambda: fc.PrivateFederatedKMeans(3, **PRIVATE, n_rounds=2, noise="local"),
    "client level": lambda: fc.PrivateKMeans(
        3, **PRIVATE, privacy_unit="client", rows_per_client=5
    ),
    "mixture": lambda: fc.PrivateMixture(3, **PRIVATE),
    "mixture at client level": lambda: fc.PrivateMixture(
        3, **PRIVATE, privacy_unit="client", rows_per_client=5
    ),
    "density": lambda: fc.PrivateDensity(3, **PRIVATE),
    "density at client level": lambda: fc.PrivateDensity(
        3, **PRIVATE, privacy_unit="client", rows_per_client=5
    ),
    "client level with server rows": lambda: fc.FedDPKMeans(
        3, server_data=PUBLIC, epsilon=20.0, privacy_unit="client", rows_per_client=5, n_rounds=1
    ),
    "gather": lambda: fc.KFED(3),
    "some clients in each round": lambda: fc.DPFedC(
        3, n_rounds=2, fraction_fit=0.5, epsilon=20.0, max_norm=12.0
    ),
    "evaluated": lambda: fc.FederatedKMeans(3, init=CENTERS, federated_evaluation=True),
    "map": lambda: fc.FedUMAPSums(3),
}


#: Noise of the clients' own, replies that the server sees, and answers that are not by row.
APART = ("clients", "local", "gather", "some clients in each round")


@pytest.fixture
def joined(monkeypatch):
    """Count the clients that answered together."""
    counts = []
    whole = Shard.together

    def together(self, *arguments, **options):
        replies, rest = whole(self, *arguments, **options)
        counts.append(sum(len(getattr(res, "nodes", ())) for _, res in replies))
        return replies, rest

    monkeypatch.setattr(Shard, "together", together)
    return counts


def alone(strategy, clients, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shard, "together", lambda self, ins, members, *, adds_up: ([], list(members)))
        return fc.simulate(strategy, clients, seed=5, **options)


#: For each answer, test_engine_by_row.py shows that many clients answer together what each answers alone.
LONG = (
    "server",
    "client level",
    "map",
    "mixture",
    "mixture at client level",
    "density",
    "density at client level",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in STRATEGIES],
)
def test_clients_that_answer_together_give_the_same_result(name, joined):
    together = fc.simulate(STRATEGIES[name](), CLIENTS, seed=5)
    apart = alone(STRATEGIES[name](), CLIENTS)
    assert difference(together, apart) == ""
    assert together.privacy == apart.privacy
    assert together.doubts == apart.doubts
    assert (max(joined) >= 20) == (name not in APART)


class SidesClient(authoring.FrameClient):
    @authoring.by_row(
        sums=Sent("sums by side", has_columns=True),
        counts=Sent("rows by side", counts="every row", sizes=True),
    )
    def sides(rows):
        sides = (rows.integers[:, 0] > 0).astype(np.intp)
        return terms.at(sides, 2, rows), terms.at(sides, 2)

    @authoring.by_row(counts=Sent("half of the rows", counts="every row"))
    def halves(rows):
        return terms.at(np.where(rows.integers[:, 0] > 0, 0, -1), 1)

    @authoring.by_row(sums="sums of the sorted rows")
    def in_another_order(rows):
        order = np.argsort(rows.integers[:, 0])
        return terms.at(
            np.zeros(len(rows), dtype=np.intp), 1, replace(rows, held=rows.integers[order])
        )

    @authoring.by_row(sums="sums of the rows on one side")
    def some(rows):
        return terms.total(rows[rows.integers[:, 0] > 0])

    @authoring.by_row(sums="sums")
    def moody(rows):
        if (rows.integers[:, 0] > 2.0**24).any():
            raise ValueError("this client cannot answer")
        return terms.total(rows)

    own_number = ToyClient.moments


class Sides(Toy):
    client_type = SidesClient


FRAME, ROWS = authoring.Frame(np.zeros(2), 16.0), [rows[:, :2] for rows in CLIENTS]


def run(*tasks, clients=ROWS, kind=Sum, frame=FRAME, **options):
    rounds = [kind(getattr(SidesClient, task).asked(frame=frame)) for task in tasks]
    results = [
        make(Sides(rounds, **options), clients, **seed)
        for make, seed in ((alone, {}), (fc.simulate, {"seed": 5}))
    ]
    assert difference(*results) == ""
    assert results[0].privacy == results[1].privacy
    assert [doubt.code for doubt in results[0].doubts] == [
        doubt.code for doubt in results[1].doubts
    ]
    return results[1]


def test_sums_are_the_sums_over_all_clients(joined):
    result = run("sides")
    assert max(joined) == 40
    sums, counts = result.model.brought[0]
    rows = np.vstack(ROWS)
    np.testing.assert_allclose(
        sums, [rows[rows[:, 0] <= 0].sum(axis=0), rows[rows[:, 0] > 0].sum(axis=0)], atol=1e-4
    )
    assert counts.sum() == len(rows)


def test_replies_of_a_gather_round_come_by_themselves(joined):
    run("sides", kind=Gather)
    assert max(joined) == 0


@pytest.mark.parametrize("task", ["in_another_order", "some"])
def test_answers_that_do_not_tell_whose_rows_they_add_are_asked_one_by_one(task, joined):
    run(task)
    assert max(joined) == 0


def test_counts_that_do_not_fit_the_rows_are_left_for_the_server_to_check(joined):
    result = run("sides", "halves", min_clients=1)
    assert result.failures
    assert 0 < joined[-1] < 40


def test_a_client_that_fails_fails_alone(joined):
    clients = [*ROWS, np.full((3, 2), 9.0)]
    result = run("sides", "moody", clients=clients)
    assert [failure.client for failure in result.failures] == ["40"]
    assert result.model.brought[1].n_clients == 40
    with pytest.raises(ProtocolError):
        fc.simulate(Sides([Sum(SidesClient.moody.asked(frame=FRAME))], min_clients=41), clients)


@pytest.mark.parametrize("name", ["without noise", "server"])
def test_what_single_clients_sent_is_forgotten_where_noise_will_cover_it(joined, monkeypatch, name):
    seen, suspects = [], Inspection.suspects

    def see(inspection, round_, summed, n_summed):
        seen.append([one is None for one in summed.largest])
        assert seen[-1] == inspection.hidden(round_)
        return suspects(inspection, round_, summed, n_summed)

    monkeypatch.setattr(Inspection, "suspects", see)
    fc.simulate(STRATEGIES[name](), CLIENTS, seed=5)
    assert len(seen) > 1
    assert all(map(all, seen)) == (name == "server")


def test_a_client_in_another_unit_is_left_out(joined, monkeypatch):
    monkeypatch.setattr(Sides, "largest_ratio", 4.0)
    result = run("sides", clients=[*ROWS, np.full((40, 2), 11.0)])
    assert [failure.client for failure in result.failures] == ["40"]
    assert result.model.brought[0].n_clients == 40


def test_a_sum_that_could_overflow_is_refused(joined, monkeypatch):
    monkeypatch.setattr("flower_fedclust.engine.replies.largest_in_sum", lambda *_: 2**25)
    result = run("sides", min_clients=1)
    assert 0 < len(result.failures) < 40
    assert all(
        "so large that the sum could overflow" in failure.reason for failure in result.failures
    )


def test_large_clients_and_columns_in_another_order_come_by_themselves_or_are_put_right(joined):
    import pandas as pd

    frames = [pd.DataFrame(rows, columns=list("ab")) for rows in ROWS]
    mixed = [frame[["b", "a"]] if index % 2 else frame for index, frame in enumerate(frames)]
    large = pd.DataFrame(np.tile(ROWS[0], (10_000, 1)), columns=list("ab"))
    run("sides", clients=[*mixed, large])
    assert max(joined) == 40
