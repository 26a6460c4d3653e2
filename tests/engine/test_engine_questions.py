"""What a message may hold, and when two messages ask the same."""

import json

import numpy as np
import pandas as pd
import pytest
from engine_toys import Toy, ToyClient, drive, proxies_of, serve, toy_answers
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays

from flower_fedclust.engine import ProtocolError, Sum
from flower_fedclust.engine.by_row import by_row, view
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.terms import total
from flower_fedclust.models import KMeansModel
from flower_fedclust.privacy.accounting import Plan

CLIENTS = [np.random.default_rng(index).normal(size=(4 + index, 2)) for index in range(5)]
FRAME = Frame(np.zeros(2), 5.0)


@by_row(sums="sums of rows")
def row_sums(rows, shift):
    return total(rows)


@view
def same_rows(rows):
    return rows


class AskedClient(ToyClient):
    row_sums = row_sums
    same_rows = same_rows

    @toy_answers("sum of the rows, times an array")
    def times(self, factors, *, power=1, negative=False):
        return GridArray.truncated(
            (self.rows**power * factors).sum(axis=0) * (-1 if negative else 1), -40
        )


class AnotherClient(AskedClient):
    """Has the same answers under another name."""


class Asked(Toy):
    client_type = AskedClient


TIMES = AskedClient.times.asked(np.ones(2), power=1)
ROWS = row_sums.asked(np.zeros(1), frame=FRAME, view=same_rows.asked(frame=FRAME))


# Fields.


def answer(proxy, **fields):
    ins = proxy.received[-1]
    client = proxy.client()
    return client.fit(parameters_to_ndarrays(ins.parameters), dict(ins.config) | fields)


@pytest.fixture
def proxy():
    proxies = proxies_of(AskedClient, CLIENTS[:3])
    serve(Asked([Sum(ROWS)]), proxies)
    return proxies[0]


def nested(text, **fields):
    return json.dumps(json.loads(text) | fields)


def test_an_honest_message_is_answered(proxy):
    assert "failure" not in answer(proxy)[2]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pad": 1}, "the message has a field 'pad' that this client does not know"),
        ({"view_": "x"}, "the message has a field 'view_' that this client does not know"),
        ({"model": "k-means"}, "the message has a field 'model' that this client does not know"),
        ({"round": "2"}, "the message has a field 'round' that is not of the type int"),
        ({"frame": True}, "the message has a field 'frame' that is not of the type int"),
        ({"plan": 3}, "the message has a field 'plan' that is not of the type str"),
        (
            {"secure": '{"step": "keys", "pad": 1}'},
            "the step of a secure sum in the message has a field 'pad'",
        ),
        (
            {"secure": '{"step": "roster", "names": "ab"}'},
            "a field 'names' that is not of the type list",
        ),
        ({"secure": "[]"}, "the step of a secure sum in the message is not an object with fields"),
        (
            {"task": "enrol", "pad": ""},
            "the message has a field 'pad' that this client does not know",
        ),
        ({"arguments": '{"power": 1}'}, "'row_sums' does not take the arguments of the message"),
    ],
)
def test_a_field_that_nobody_reads_is_refused(proxy, fields, said):
    arrays, _, facts = answer(proxy, **fields)
    assert arrays == []
    assert said in facts["failure"]


def test_a_field_of_a_view_that_nobody_reads_is_refused(proxy):
    text = proxy.received[-1].config["view"]
    assert (
        "the view in the message has a field 'pad'"
        in answer(proxy, view=nested(text, pad=1))[2]["failure"]
    )
    deep = nested(text, view=nested(text, pad=1))
    assert "the view in the message has a field 'pad'" in answer(proxy, view=deep)[2]["failure"]


def test_a_field_of_a_message_with_the_model_is_known_or_refused(proxy):
    arrays = KMeansModel(np.eye(2)).to_arrays()
    config = {"model": "k-means", "evaluate": True, "share": False}
    assert proxy.client().evaluate(arrays, config)[1] == len(CLIENTS[0])
    for more in ({"pad": 1}, {"task": "moments"}, {"share": "no"}):
        cost, n_rows, facts = proxy.client().evaluate(arrays, config | more)
        assert (cost, n_rows) == (0.0, 0)
        assert f"has a field '{next(iter(more))}'" in facts["failure"]


# The same question among others.


def fields(**changed):
    return lambda ins: ins.config.update(changed)


def without(name):
    return lambda ins: ins.config.pop(name)


def arrays_as(convert):
    def change(ins):
        ins.parameters = ndarrays_to_parameters(
            [convert(array) for array in parameters_to_ndarrays(ins.parameters)]
        )

    return change


#: Other ways to ask what was asked before.
SAME = {
    "other spaces": (TIMES, fields(arguments='{ "power" : 1 }')),
    "a number of another type": (TIMES, fields(arguments='{"power": 1.0}')),
    "a truth value for a number": (TIMES, fields(arguments='{"power": true}')),
    "an argument twice": (TIMES, fields(arguments='{"power": 3, "power": 1}')),
    "a default": (TIMES, fields(arguments="{}")),
    "no arguments": (TIMES, without("arguments")),
    "another default": (TIMES, fields(arguments='{"power": 1, "negative": 0}')),
    "integers": (TIMES, arrays_as(lambda array: array.astype(np.int32))),
    "short floats": (TIMES, arrays_as(lambda array: array.astype(np.float32))),
    "another class": (TIMES, fields(client=AnotherClient.key())),
    "no kept rows": (TIMES, fields(rows="")),
    "a plan": (TIMES, fields(plan=Plan(1.0, 1e-6, "server", "record", {}, {}).to_json())),
    "a run of another length": (TIMES, fields(n_clients=99)),
    "a negative zero": (ROWS, arrays_as(lambda array: np.where(array == 0, -0.0, array))),
    "spaces in a view": (
        ROWS,
        lambda ins: ins.config.update(view=" " + ins.config["view"].replace(",", " ,")),
    ),
}


def asked_twice(question, change, clients=CLIENTS):
    """Ask a question of all clients, then of all but the last, in other words."""
    proxies = proxies_of(AskedClient, clients)
    for proxy in proxies[:-1]:
        proxy.fit = changing(proxy.fit, change)
    falls_silent(proxies[-1])
    strategy = Asked([Sum(question), Sum(question)])
    strategy.secure, strategy.wait_for_clients = True, 0.0
    return serve(strategy, proxies)


def falls_silent(proxy):
    """Have a client fall silent once it has answered its first sum."""
    fit, asked = proxy.fit, []

    def answered(ins, timeout=None, group_id=None):
        asked.append(ins.config["task"])
        if asked.count("secure open") > 1 or (
            asked[-1] != "secure open" and "secure open" in asked
        ):
            raise TimeoutError("gone")
        return fit(ins, timeout, group_id)

    proxy.fit = answered


def changing(fit, change):
    asked = []

    def changed(ins, timeout=None, group_id=None):
        if json.loads(ins.config.get("secure", "{}")).get("step") == "mask":
            asked.append(ins)
            if len(asked) == 2:
                ins = type(ins)(ins.parameters, dict(ins.config))
                change(ins)
        return fit(ins, timeout, group_id)

    return changed


@pytest.mark.parametrize(("question", "change"), SAME.values(), ids=SAME)
def test_the_same_question_in_other_words_is_not_answered_among_fewer_clients(question, change):
    with pytest.raises(
        ProtocolError, match="the same question was asked before, and answered by other clients"
    ):
        asked_twice(question, change)


def test_another_question_is_answered_among_fewer_clients():
    first, second = asked_twice(TIMES, fields(arguments='{"power": 2}')).outcome.model.brought
    assert (first.n_clients, second.n_clients) == (5, 4)


def test_columns_in_their_own_order_are_the_same_question():
    frames = [pd.DataFrame(rows, columns=["a", "b"]) for rows in CLIENTS]
    with pytest.raises(ProtocolError, match="the same question was asked before"):
        asked_twice(TIMES, without("columns"), frames)
    first, second = asked_twice(TIMES, fields(columns='["b", "a"]'), frames).outcome.model.brought
    assert (first.n_clients, second.n_clients) == (5, 4)


@pytest.mark.parametrize("run", [drive, serve])
def test_what_honest_clients_are_asked_is_one_question(run):
    strategy = Asked([Sum(TIMES), Sum(ROWS), Sum(AskedClient.times.asked(np.ones(2), power=2))])
    strategy.secure = True
    run(strategy, proxies_of(AskedClient, CLIENTS))
    assert [one.n_clients for one in strategy.outcome.model.brought] == [5, 5, 5]
