"""A toy strategy, and ways to drive any strategy by hand."""

import copyreg
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.common import (
    Code,
    EvaluateRes,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy

from flower_fedclust.engine import (
    ClientData,
    DataError,
    Gather,
    Outcome,
    PrivateStrategy,
    ProtocolClient,
    Sent,
    Sum,
    answers,
    parameter,
)
from flower_fedclust.engine.parts import release_of
from flower_fedclust.engine.rounds import Question
from flower_fedclust.engine.wire import with_hash
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.terms import Bound
from flower_fedclust.models import KMeansModel
from flower_fedclust.privacy.accounting import Plan, Share

# A journal hashes the parameters of a strategy, and a toy has rounds among them, which cannot be pickled.
for kind in (Question, Sum, Gather):
    copyreg.pickle(kind, lambda value: (str, (repr(value),)))


def on_grid(array):
    return GridArray.truncated(np.asarray(array, dtype=float), -40)


#: How much a row changes an array of a toy, as the toy says.
MOVED = Bound(2000.0, 1000.0, words="nothing")


def paid(mechanism, multiplier, relation="add-or-remove", *, moved=MOVED):
    """Return the noise of an array of a toy, for which a part of the budget pays that has no other."""
    name = f"{mechanism} {multiplier} {relation}"
    return release_of(moved, name, Share(mechanism, 1.0, relation=relation), multiplier, "record")


def plan_of(releases, **options):
    """Return a plan that has these releases, whatever they compose to."""
    given = {release.share: release for release in releases if release is not None}
    shares = {
        name: Share(one.mechanism, 1.0, 1, one.relation, one.sample) for name, one in given.items()
    }
    about = {"epsilon": 1.0, "delta": 1e-6, "noise": "local", "unit": "record"} | options
    return Plan(
        **about,
        shares=shares,
        multipliers={name: one.noise_multiplier for name, one in given.items()},
    )


def with_releases(config, releases):
    """Return what a message says that has clients add the noise of releases."""
    parts = [release and release.share for release in releases]
    return config | {"parts": json.dumps(parts), "plan": plan_of(releases).to_json()}


def toy_answers(*sends):
    """Mark a method of a toy, of which each array is changed as much as MOVED says."""
    return answers(*sends, moved=lambda *_, **__: (MOVED,) * len(sends))


class ToyClient(ProtocolClient):
    @toy_answers("number of rows", "sum of the rows to a power")
    def moments(self, *, power=1):
        return np.array([len(self.rows)]), on_grid((self.rows**power).sum(axis=0))

    @toy_answers("what was sent to all, times what was sent to this client")
    def scaled(self, shared, own):
        return on_grid(shared * own)

    @toy_answers("how often this client was asked")
    def visits(self):
        before = self.recall("visits")
        now = np.array([1]) if before is None else before[0] + 1
        self.remember("visits", [now])
        return now

    @answers(Sent("the rows", "rows", per="row"))
    def all_rows(self):
        return self.rows

    @answers()
    def store(self, array):
        self.remember("stored", [array])

    @toy_answers("sum of the rows, clipped to what was stored")
    def clipped(self):
        return on_grid(np.clip(self.rows, None, self.recall("stored")[0]).sum(axis=0))

    @answers("one array")
    def two_for_one(self):
        return self.rows, self.rows

    @answers("nothing")
    def crash(self):
        raise RuntimeError(f"the patient's row is {self.rows[0].tolist()}")

    @answers("nothing")
    def refuse(self):
        raise DataError(f"client {self.name} does not answer this.")


class Toy(PrivateStrategy):
    """Yields the rounds it is given, and keeps what they brought in the model it returns.

    Parameters
    ----------
    rounds : list of Round
        What is yielded.
    """

    client_type = ToyClient

    n_clusters: int = parameter(2, at_least=2)
    rounds: Sequence[Any] = parameter((), kw_only=False)
    name = "toy"

    def with_noise(self, round_):
        """Have parts of :attr:`frozen_plan` pay for the releases that a round has."""
        if not any(round_.releases):
            return super().with_noise(round_)
        return replace(round_, parts=[release and release.share for release in round_.releases])

    @property
    def frozen_plan(self):
        """The releases of the rounds, whatever they compose to."""
        given = [release for round_ in self.rounds for release in round_.releases if release]
        return plan_of(given, noise=self.noise) if given else super().frozen_plan

    def freeze_plan(self):
        """Freeze nothing if the rounds have releases."""
        if not any(any(round_.releases) for round_ in self.rounds):
            super().freeze_plan()

    @property
    def plan(self):
        """What the messages say of it."""
        return (
            self.frozen_plan.to_json()
            if any(any(round_.releases) for round_ in self.rounds)
            else super().plan
        )

    @property
    def n_protocol_rounds(self):
        return len(self.rounds)

    def protocol(self):
        brought = []
        for round_ in self.rounds:
            brought.append((yield round_))
        model = KMeansModel([[0.0, 0.0], [1.0, 1.0]])
        model.brought = brought
        return Outcome(model)


class ByHand(ClientProxy):
    """A ClientProxy whose client lives here. ``misbehave[round]`` is called with the FitRes instead of returning it."""

    def __init__(
        self, cid, client_type, rows, *, name, noise_seed=None, labels=None, misbehave=None
    ):
        super().__init__(str(cid))
        self.node_id = cid
        self.name = name
        self.client_type = client_type
        self.rows = rows
        self.labels = labels
        self.noise_seed = noise_seed
        self.misbehave = misbehave or {}
        self.context = Context(0, cid, {}, RecordDict(), {})
        self.asked = Counter()
        self.received = []
        self.sent = []

    def client(self):
        data = ClientData(self.rows, self.labels, owner=f"client {self.name}")
        return self.client_type(
            data, name=self.name, context=self.context, noise_seed=self.noise_seed
        )

    def fit(self, ins, timeout=None, group_id=None):
        self.asked[ins.config["task"]] += 1
        self.received.append(ins)
        arrays, n_examples, metrics = self.client().fit(
            parameters_to_ndarrays(ins.parameters), dict(ins.config)
        )
        res = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), n_examples, metrics)
        if ins.config["round"] in self.misbehave:
            res = self.misbehave[ins.config["round"]](res)
        self.sent.append(res)
        return res

    def evaluate(self, ins, timeout=None, group_id=None):
        loss, n_examples, metrics = self.client().evaluate(
            parameters_to_ndarrays(ins.parameters), dict(ins.config)
        )
        return EvaluateRes(Status(Code.OK, ""), loss, n_examples, metrics)

    def get_properties(self, ins, timeout, group_id):
        raise NotImplementedError

    def get_parameters(self, ins, timeout, group_id):
        raise NotImplementedError

    def reconnect(self, ins, timeout, group_id):
        raise NotImplementedError


def manager_of(proxies):
    manager = SimpleClientManager()
    for proxy in proxies:
        manager.register(proxy)
    return manager


def serve(strategy, proxies, num_rounds=None):
    """Run Flower's own Server."""
    server = Server(client_manager=manager_of(proxies), strategy=strategy)
    server.set_max_workers(1)
    server.fit(num_rounds=strategy.num_rounds if num_rounds is None else num_rounds, timeout=None)
    return strategy


def drive(strategy, proxies, reorder=lambda results: results):
    """Call the strategy as Flower does, and hand it the results in an order of one's own. Return what came last."""
    manager = manager_of(proxies)
    parameters = strategy.initialize_parameters(manager)
    for number in range(1, strategy.num_rounds + 1):
        results, failures = [], []
        for proxy, ins in strategy.configure_fit(number, parameters, manager):
            try:
                results.append((proxy, proxy.fit(ins)))
            except Exception as error:
                failures.append(error)
        if results or failures:
            aggregated, _ = strategy.aggregate_fit(number, reorder(results), failures)
            parameters = aggregated or parameters
    return parameters


def proxies_of(client_type, clients, names=None, seed=None, **options):
    names = [str(index) for index in range(len(clients))] if names is None else names
    return [
        ByHand(
            100 + index,
            client_type,
            rows,
            name=name,
            noise_seed=None if seed is None else seed + 1 + index,
            **options,
        )
        for index, (rows, name) in enumerate(zip(clients, names, strict=True))
    ]


def replaced(arrays):
    """Misbehaviour: send these arrays."""

    def reply(res):
        return with_hash(
            FitRes(res.status, ndarrays_to_parameters(arrays), res.num_examples, res.metrics)
        )

    return reply


def raising(error):
    """Misbehaviour: nothing comes back."""

    def reply(res):
        raise error

    return reply
