"""Flower's own pieces around a strategy and its clients: each works, or is refused in a sentence."""

import numpy as np
import pytest
from engine_toys import manager_of, serve
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
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
from flwr.supercore.task_identity import TaskIdentity

import flower_fedclust as fc
from flower_fedclust.engine import ProtocolError

ROWS = [np.random.default_rng(index).normal(size=(20, 2)) for index in range(3)]


class Deployed(ClientProxy):
    """A ClientApp with mods, called with messages as a SuperNode calls it."""

    def __init__(self, index, app):
        super().__init__(str(index))
        self.node_id, self.app = index, app
        self.context = Context(1, index, UserConfig({"partition-id": index}), RecordDict(), UserConfig())

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

        strategy = fc.FederatedKMeans(2, random_state=0, n_rounds=1)
        app = ClientApp(client_fn=fc.client_fn(strategy.client_type, load), mods=list(mods))
        return serve(strategy, [Deployed(index, app) for index in range(3)])

    return run


@pytest.mark.parametrize("one", [mod.arrays_size_mod, mod.message_size_mod, older.arrays_size_mod])
def test_mods_that_measure_work(run, one):
    found = run(one)
    whole = fc.simulate(fc.FederatedKMeans(2, random_state=0, n_rounds=1), ROWS)
    np.testing.assert_array_equal(found.outcome.model.cluster_centers_, whole.model.cluster_centers_)
    assert found.traffic == whole.traffic


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (mod.LocalDpMod(1.0, 1.0, 1.0, 1e-5), "client 0 has Flower's LocalDpMod, which changes what it sends"),
        (mod.fixedclipping_mod, "one of Flower's mods would change what it sends"),
        (mod.adaptiveclipping_mod, "one of Flower's mods would change what it sends"),
        (older.fixedclipping_mod, "one of Flower's mods would change what it sends"),
        (secagg_mod, "one of Flower's mods would change what it sends"),
        (secaggplus_mod, "one of Flower's mods would change what it sends"),
    ],
    ids=["local", "fixed", "adaptive", "older", "secagg", "secagg+"],
)
def test_mods_that_change_what_is_sent_are_refused_in_a_sentence(run, one, reason):
    with pytest.raises(ProtocolError, match=reason):
        run(one)


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


@pytest.mark.parametrize("name", [name for name in dir(wrappers) if name.startswith(("Differential", "DPFedAvg"))])
def test_wrappers_that_clip_updates_of_a_model_are_refused_in_a_sentence(name):
    given = {"noise_multiplier": 0.1, "clipping_norm": 1.0, "num_sampled_clients": 3, "clip_norm": 1.0}
    made = getattr(wrappers, name)
    accepted = made.__init__.__code__.co_varnames
    wrapper = made(fc.KFED(2), **{key: value for key, value in given.items() if key in accepted})
    with pytest.raises(ProtocolError, match=f"^{name} clips updates of a model, and a clustering strategy sends none"):
        wrapper.initialize_parameters(manager_of([]))


@pytest.mark.parametrize("name", [name for name in dir(wrappers_of_messages) if name.startswith("Differential")])
def test_so_are_those_of_the_message_api(name):
    given = {"noise_multiplier": 0.1, "clipping_norm": 1.0, "num_sampled_clients": 3}
    made = getattr(wrappers_of_messages, name)
    accepted = made.__init__.__code__.co_varnames
    strategy = fc.MessageStrategy(fc.KFED(2))
    wrapper = made(strategy, **{key: value for key, value in given.items() if key in accepted})
    with pytest.raises(ProtocolError, match=f"^{name} clips updates of a model"):
        wrapper.configure_train(1, ArrayRecord(), ConfigRecord(), None)
