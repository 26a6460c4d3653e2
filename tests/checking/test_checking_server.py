"""What a server decides, says and keeps before the noise is the same for neighbors: two runs that release the same."""

import logging

import pytest
from server_search import SIZES, difference, pairs, private_cases, search

from flower_fedclust.checking import Subject
from flower_fedclust.engine import replies
from flower_fedclust.engine.run import Run


def found_by_search(case, sizes):
    compared = list(search(private_cases()[case], sizes=sizes))
    assert len(compared) >= len(sizes)
    return [f"{what}: {one}" for what, differences in compared for one in differences]


def test_the_server_decides_nothing_before_the_noise_on_both_sides_of_its_limits():
    assert found_by_search("federated-kmeans-private", SIZES) == []


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("private-kmeans clients-record", marks=pytest.mark.long),
        "private-kmeans server-client",
        "feddp-kmeans",
        "dp-fedc server-record",
    ],
)
def test_the_server_decides_nothing_before_the_noise(case):
    assert found_by_search(case, (4096,)) == []


def other_cases():
    """Return each class with noise at the server and at the clients, and one class in every way in which it is private.

    With local noise a server gets no values. Subjects are counted by the clients.
    """
    kinds = ("", "many", "diag", "server-record", "server-client", "clients-record")
    parts = {case: case.partition(" ")[::2] for case in private_cases()}
    return sorted(
        case for case, (name, way) in parts.items() if way in kinds or name == "feddp-kmeans"
    )


@pytest.mark.long
@pytest.mark.parametrize("case", other_cases())
def test_the_server_of_any_private_strategy_decides_nothing_before_the_noise(case):
    """The limits are those of the engine, which are looked at above; the strategies' own servers have few rows here."""
    compared = search(private_cases()[case], sizes=(1, 12, 4096))
    assert [f"{what}: {one}" for what, differences in compared for one in differences] == []


# Decisions that the search must find.


def logs_large_sums(add_up):
    def adding(replies):
        total = add_up(replies)
        if any(array.largest > 2**24 for array in total):
            logging.getLogger("flower_fedclust").info("a sum is large")
        return total

    return adding


def warns_of_large_replies(add_up):
    """Decide on one client's reply, in the relation to the others."""

    def adding(replies):
        largest = [max(array.largest for array in arrays) for arrays in replies]
        if max(largest[:-1], default=0) * 3 < largest[-1]:
            logging.getLogger("flower_fedclust").warning("one reply is large")
        return add_up(replies)

    return adding


def keeps_the_last_sum(add_up):
    def adding(replies):
        keeps_the_last_sum.run.last_sum = add_up(replies)[0].integers.copy()
        return add_up(replies)

    return adding


@pytest.mark.parametrize("plant", [logs_large_sums, warns_of_large_replies])
def test_the_search_finds_what_is_said_of_values_before_the_noise(plant, monkeypatch):
    monkeypatch.setattr("flower_fedclust.engine.run.add_up", plant(replies.add_up))
    assert any("the log" in one for one in found_by_search("federated-kmeans-private", (1, 12)))


def test_the_search_finds_what_is_kept_of_values_before_the_noise(monkeypatch):
    receive = Run.receive

    def receiving(self, *given):
        keeps_the_last_sum.run = self
        return receive(self, *given)

    monkeypatch.setattr(Run, "receive", receiving)
    monkeypatch.setattr("flower_fedclust.engine.run.add_up", keeps_the_last_sum(replies.add_up))
    assert any(
        "what the server keeps" in one and "last_sum" in one
        for one in found_by_search("federated-kmeans-private", (1,))
    )


def test_the_search_finds_a_client_that_is_left_out(monkeypatch):
    """As the server once left out whoever sent more than 65,536 times as much as most."""
    checked = Run._checked_replies

    def leaving_out(self, *given):
        answered, sums = checked(self, *given)
        large = {
            name
            for name, arrays in answered.items()
            if any(one.values.sum() > 65_536 for one in arrays[-1:])
        }
        reasons = {name: f"client {name} sent too much." for name in large if self.number == 2}
        self.log.note_failures(self.number, "row_count", reasons)
        return {name: arrays for name, arrays in answered.items() if name not in reasons}, sums

    monkeypatch.setattr(Run, "_checked_replies", leaving_out)
    strategy = private_cases()["federated-kmeans-private"]
    pair = next(iter(pairs(strategy, Subject(strategy).neighboring[1], 4, (65_536,))))
    found = difference(strategy, pair)
    assert any("the failures" in one for one in found)
    assert any("the result: " in one for one in found)
