"""Flower's own pieces around a strategy and its clients: each works, or is refused in a sentence."""

import numpy as np
import pytest
from engine_toys import manager_of, serve
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.client import mod as older
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp import ClientApp, mod
from flwr.common import ndarrays_to_parameters
from flwr.compat.common.recorddict_compat import fitins_to_recorddict, recorddict_to_fitres
from flwr.server import Server
from flwr.server import strategy as wrappers
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import strategy as wrappers_of_messages
from flwr.serverapp.exception import AggregationError
from flwr.supercore.task_identity import TaskIdentity

import flower_fedclust as fc
from flower_fedclust.checking import LocalGrid
from flower_fedclust.engine import ProtocolError

ROWS = [np.random.default_rng(index).normal(size=(20, 2)) for index in range(3)]


def short():
    """Return a strategy of few rounds: it has its first centers."""
    return fc.FederatedKMeans(2, init=ROWS[0][:2], n_rounds=1)


class Deployed(ClientProxy):
    """A ClientApp with mods, called with messages as a SuperNode calls it."""

    def __init__(self, index, app):
        super().__init__(str(index))
        self.node_id, self.app = index, app
        self.context = Context(
            1, index, UserConfig({"partition-id": index}), RecordDict(), UserConfig()
        )

    def fit(self, ins, timeout, group_id):
        message = Message(fitins_to_recorddict(ins, keep_input=True), self.node_id, "train")
        message.metadata.__dict__["_message_id"] = "one"
        reply = self.app(message, self.context)
        if reply.has_error():
            raise ValueError(reply.error.reason)
        return recorddict_to_fitres(reply.content, keep_input=False)

    def get_properties(self, *_):
        raise NotImplementedError

    get_parameters = evaluate = reconnect = get_properties


@pytest.fixture
def run(monkeypatch):
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)

    def run(*mods):
        def load(context):
            return fc.ClientData(ROWS[int(context.node_config["partition-id"])])

        strategy = short()
        app = ClientApp(client_fn=fc.client_fn(strategy.client_type, load), mods=list(mods))
        return serve(strategy, [Deployed(index, app) for index in range(3)])

    return run


@pytest.mark.parametrize("one", [mod.arrays_size_mod, mod.message_size_mod, older.arrays_size_mod])
def test_mods_that_measure_work(run, one):
    found = run(one)
    whole = fc.simulate(short(), ROWS)
    np.testing.assert_array_equal(
        found.outcome.model.cluster_centers_, whole.model.cluster_centers_
    )
    assert found.traffic == whole.traffic


def clips_a_little(message, context, call_next):
    """A mod of somebody's own, which Flower does not know."""
    reply = call_next(message, context)
    for name, record in reply.content.array_records.items():
        arrays = [np.clip(array, -0.8, 0.8) for array in record.to_numpy_ndarrays()]
        reply.content[name] = ArrayRecord(arrays)
    return reply


def rounds_a_little(message, context, call_next):
    reply = call_next(message, context)
    for name, record in reply.content.array_records.items():
        arrays = [
            array.astype(np.float32).astype(array.dtype) for array in record.to_numpy_ndarrays()
        ]
        reply.content[name] = ArrayRecord(arrays)
    return reply


def adds_an_array(message, context, call_next):
    reply = call_next(message, context)
    for name, record in reply.content.array_records.items():
        reply.content[name] = ArrayRecord([*record.to_numpy_ndarrays(), np.ones(1)])
    return reply


@pytest.mark.parametrize(
    "one",
    [
        *(clips_a_little, rounds_a_little, adds_an_array, mod.LocalDpMod(1.0, 1.0, 1.0, 1e-5)),
        *(
            mod.fixedclipping_mod,
            mod.adaptiveclipping_mod,
            older.fixedclipping_mod,
            secagg_mod,
            secaggplus_mod,
        ),
    ],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_whatever_changes_arrays_on_their_way_is_found_before_anything_is_asked(run, one, caplog):
    with pytest.raises(ProtocolError, match=r"round 1 \('enrol'\): 0 clients answered") as caught:
        run(one)
    assert "something has changed on the way" in str(caught.value) or "remove them" in str(
        caught.value
    )


def changes_one_sum(message, context, call_next):
    """A mod that changes nothing while clients enrol, and later the replies of one client."""
    reply = call_next(message, context)
    asked = next(one for one in message.content.config_records.values() if "task" in one)
    if asked["task"] != "enrol" and context.node_config["partition-id"] == 2:
        return adds_one(reply)
    return reply


def adds_one(reply):
    for name, record in reply.content.array_records.items():
        reply.content[name] = ArrayRecord([array + 1 for array in record.to_numpy_ndarrays()])
    return reply


def test_a_mod_that_changes_only_a_later_round_is_found_there(run):
    found = run(changes_one_sum)
    assert min(failure.round for failure in found.failures) > 1
    assert {failure.client for failure in found.failures} == {"2"}
    assert found.failures[0].reason.startswith(
        "client 2 sent a reply that something has changed on the way"
    )
    whole = fc.simulate(short(), ROWS[:2])
    np.testing.assert_array_equal(
        found.outcome.model.cluster_centers_, whole.model.cluster_centers_
    )


class ChangedAfterwards(fc.FederatedKMeans.client_type):
    """Changes what its own class has made of one client, as a subclass of somebody's own may do."""

    def fit(self, parameters, config):
        arrays, n_examples, facts = super().fit(parameters, config)
        return (
            [array + (self.name == "2" and config["task"] != "enrol") for array in arrays],
            n_examples,
            facts,
        )

    def evaluate(self, parameters, config):
        cost, n_rows, facts = super().evaluate(parameters, config)
        return cost / (2 if self.name == "3" else 1), n_rows, facts


class OfChanged(fc.FederatedKMeans):
    client_type = ChangedAfterwards


@pytest.mark.parametrize("secure", [False, True])
def test_a_reply_that_is_changed_in_the_same_process_is_found(secure):
    rows = [np.random.default_rng(index).normal(size=(20, 2)) for index in range(5)]
    strategy = OfChanged(2, init=ROWS[0][:2], n_rounds=1, federated_evaluation=not secure)
    found = fc.simulate(strategy, rows, secure=secure)
    assert {failure.client for failure in found.failures} == ({"2"} if secure else {"2", "3"})
    assert all("something has changed on the way" in failure.reason for failure in found.failures)
    whole = fc.simulate(short(), [*rows[:2], *rows[3:]])
    np.testing.assert_array_equal(found.model.cluster_centers_, whole.model.cluster_centers_)


@pytest.mark.usefixtures("run")
def test_a_client_under_another_strategy_is_a_failure_and_no_success():
    def load(context):
        return fc.ClientData(ROWS[int(context.node_config["partition-id"])])

    app = ClientApp(client_fn=fc.client_fn(fc.FederatedKMeans.client_type, load))
    proxies = [Deployed(index, app) for index in range(3)]
    server = Server(client_manager=manager_of(proxies), strategy=wrappers.FedAvg())
    server.parameters = ndarrays_to_parameters([np.zeros(3)])
    _, _, (results, failures) = server.fit_round(1, None)
    assert (len(results), len(failures)) == (0, 3)
    assert all("not from one" in str(failure) for failure in failures)


class Renamed(wrappers.FedAvg):
    """A wrapper that keeps another strategy under the name `strategy`, and passes everything on."""

    def __init__(self, strategy):
        super().__init__()
        self.strategy = strategy

    def initialize_parameters(self, client_manager):
        return self.strategy.initialize_parameters(client_manager)

    def configure_fit(self, *args, **named):
        return self.strategy.configure_fit(*args, **named)

    def aggregate_fit(self, *args, **named):
        return self.strategy.aggregate_fit(*args, **named)

    def configure_evaluate(self, *args, **named):
        return []

    def evaluate(self, server_round, parameters):
        return None


def served_by(strategy, inner):
    app = ClientApp(
        client_fn=fc.client_fn(
            inner.client_type,
            lambda context: fc.ClientData(ROWS[int(context.node_config["partition-id"])]),
        )
    )
    server = Server(
        client_manager=manager_of([Deployed(index, app) for index in range(3)]), strategy=strategy
    )
    server.set_max_workers(1)
    server.fit(inner.num_rounds, timeout=None)
    return inner


@pytest.mark.usefixtures("run")
def test_a_wrapper_that_changes_nothing_works():
    inner = short()
    found = served_by(Renamed(inner), inner).outcome.model.cluster_centers_
    whole = fc.simulate(short(), ROWS)
    np.testing.assert_array_equal(found, whole.model.cluster_centers_)


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    "name", [name for name in dir(wrappers) if name.startswith(("Differential", "DPFedAvg"))]
)
def test_wrappers_that_clip_updates_of_a_model_are_found_while_clients_enrol(name):
    given = {
        "noise_multiplier": 0.1,
        "clipping_norm": 1.0,
        "num_sampled_clients": 3,
        "clip_norm": 1.0,
    }
    made, inner = getattr(wrappers, name), short()
    accepted = made.__init__.__code__.co_varnames
    with pytest.raises(ProtocolError, match=r"round 1 \('enrol'\): 0 clients answered") as caught:
        served_by(
            made(inner, **{key: value for key, value in given.items() if key in accepted}), inner
        )
    assert "something has changed" in str(caught.value) or "that this client does not know" in str(
        caught.value
    )


def grid_of(strategy, *mods):
    def load(context):
        return fc.ClientData(ROWS[int(context.node_config["partition-id"])])

    return LocalGrid(
        ClientApp(client_fn=fc.client_fn(strategy.client_type, load), mods=list(mods)), 3
    )


#: What is said of Flower's wrappers under the Message API; "" if they change nothing that a protocol reads.
OF_MESSAGES = {
    # Flower's own: its mod at the clients is missing.
    "DifferentialPrivacyClientSideAdaptiveClipping": "norm_bit",
    "DifferentialPrivacyClientSideFixedClipping": "",
    "DifferentialPrivacyServerSideAdaptiveClipping": "something has changed",
    "DifferentialPrivacyServerSideFixedClipping": "something has changed",
}


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    "name", [name for name in dir(wrappers_of_messages) if name.startswith("Differential")]
)
def test_wrappers_of_the_message_api_are_found_or_change_nothing(name):
    given = {"noise_multiplier": 0.1, "clipping_norm": 1.0, "num_sampled_clients": 3}
    made, inner = (
        getattr(wrappers_of_messages, name),
        short(),
    )
    accepted = made.__init__.__code__.co_varnames
    wrapper = made(
        fc.MessageStrategy(inner), **{key: value for key, value in given.items() if key in accepted}
    )

    def run():
        wrapper.start(grid_of(inner), ArrayRecord([np.zeros(4)]), inner.num_rounds)
        return inner.outcome.model.cluster_centers_

    if said := OF_MESSAGES[name]:
        with pytest.raises((ProtocolError, AggregationError), match=said):
            run()
    else:
        whole = fc.simulate(short(), ROWS)
        np.testing.assert_array_equal(run(), whole.model.cluster_centers_)


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    "one", [clips_a_little, mod.LocalDpMod(1.0, 1.0, 1.0, 1e-5), mod.fixedclipping_mod]
)
def test_mods_under_the_message_api_are_found_while_clients_enrol(one):
    strategy = short()
    with pytest.raises(ProtocolError, match=r"round 1 \('enrol'\): 0 clients answered"):
        fc.MessageStrategy(strategy).start(grid_of(strategy, one))
