"""Clients that miss a round which leaves something with clients for later rounds."""

import numpy as np
import pandas as pd
import pytest
from engine_toys import Toy, ToyClient, proxies_of, raising, serve, toy_answers

import flower_fedclust as fc
from flower_fedclust.engine import Gather, Sum, answers
from flower_fedclust.engine.fields import ENROL
from flower_fedclust.tables.schema import Column, Schema

CLIENTS = [np.random.default_rng(index).normal(size=(6, 2)) for index in range(4)]
STORE, CLIPPED = ToyClient.store.asked(np.ones(2)), ToyClient.clipped.asked()


def silent_in(proxy, number):
    proxy.misbehave[number] = raising(TimeoutError("paused"))


def never_hears(proxy, task):
    """Have the first message for a task never reach a client."""
    fit, lost = proxy.fit, []

    def heard(ins, timeout=None, group_id=None):
        if ins.config["task"] == task and not lost:
            lost.append(ins)
            raise TimeoutError("paused")
        return fit(ins, timeout, group_id)

    proxy.fit = heard


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_client_that_did_not_answer_is_asked_again_and_then_takes_part(is_heard):
    proxies = proxies_of(ToyClient, CLIENTS)
    if is_heard:
        silent_in(proxies[3], 2)  # it has stored the array, and its reply is lost
    else:
        never_hears(proxies[3], "store")
    strategy = serve(Toy([Gather(STORE), Sum(CLIPPED), Sum(CLIPPED)]), proxies)
    assert [one.n_clients for one in strategy.outcome.model.brought[1:]] == [3, 4]
    tasks = [ins.config["task"] for ins in proxies[3].received]
    assert tasks == [ENROL, *["store"] * (1 + is_heard), "clipped"]
    assert [(one.round, one.client) for one in strategy.failures] == [(2, "3"), (3, "3")]
    assert [one.content for one in strategy.report.unprotected] == [
        "sum of the rows, clipped to what was stored"
    ] * 2


class NeedyClient(ToyClient):
    @answers(needs=("stored",))
    def warm_up(self):
        raise AssertionError("it looks for what it needs first")

    @toy_answers("sum of the rows")
    def sums(self):
        return np.array([len(self.rows)])


class Needy(Toy):
    client_type = NeedyClient


class Watching:
    """A consent that notes what is asked; a site charges here."""

    says_what_failed = True

    def __init__(self):
        self.charged = []

    def check(self, request):
        self.charged.append(request.answer.task)

    def check_evaluation(self, name):
        pass


def client_of(proxy, consent):
    return proxy.client_type(
        fc.ClientData(proxy.rows), name=proxy.name, context=proxy.context, consent=consent
    )


def test_what_an_answer_needs_is_looked_for_before_anything_is_charged():
    consent, (proxy,) = Watching(), proxies_of(NeedyClient, CLIENTS[:1])
    arrays, _, facts = client_of(proxy, consent).fit([], {"task": "warm_up", "round": 2})
    assert (arrays, facts["missed"], consent.charged) == ([], True, [])
    assert facts["failure"] == "client 0 has no stored; it missed the round that leaves them."


def test_a_client_without_the_preparation_of_its_table_says_so_before_anything_is_charged():
    frame = pd.DataFrame(CLIENTS[0], columns=["a", "b"])
    schema = Schema(columns={name: Column(kind="number", bounds=(-9, 9)) for name in "ab"})
    consent, (proxy,) = Watching(), proxies_of(NeedyClient, [frame])

    def ask(task):
        data = fc.ClientData(frame, raw=True)
        client = NeedyClient(data, name="0", context=proxy.context, consent=consent)
        return client.fit(
            [],
            {"task": task, "round": 2, "schema": schema.to_json()}
            if task == ENROL
            else {"task": task, "round": 2},
        )[2]

    assert "failure" not in ask(ENROL)
    for task in ("sums", "moments"):
        said = ask(task)
        assert said["missed"] is True
        assert "it missed the round of it" in said["failure"]
    assert consent.charged == []
