"""A site with a table of its own, and a server that asks it for anything at all."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common import EvaluateIns, FitIns
from flwr.server import Server as FlowerServer
from flwr.server import SimpleClientManager
from flwr.server.client_proxy import ClientProxy

from flower_fedclust.engine import ClientData
from flower_fedclust.engine.wire import decode, encode
from flower_fedclust.exact.rows import Frame
from flower_fedclust.format import FORMAT
from flower_fedclust.privacy.accounting import Plan, Share, calibrate, delta_of_composition
from flower_fedclust.privacy.releases import Release
from flower_fedclust.registry import find
from flower_fedclust.site.app import Site
from flower_fedclust.site.policy import SiteSettings
from flower_fedclust.strategies.private_kmeans import PrivateKMeansClient

RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(60, 3))
NAMES = np.array([f"patient {index}" for index in range(60)])

#: The relations that a site has to list for answers with an entry for every row.
BOTH = ("add-or-remove", "replace")

#: A ball that the rows fill.
BALL = Frame(np.zeros(3), 4.0)


def site(
    folder,
    *,
    name="north",
    rows=ROWS,
    labels=None,
    row_ids=None,
    data_set="the table",
    schema=None,
    init=True,
    limits=(),
    **policy,
):
    """Return a site, with a ledger if ``init``: a new one where nothing of an older one is there."""
    given = {
        "name": name,
        "data": "nowhere",
        "folder": str(folder),
        "data_set": data_set,
        "policy": policy,
    }
    settings = SiteSettings.model_validate(given | {"limits": dict(limits)})
    if schema is not None:
        table = pd.DataFrame(rows, columns=list(schema.read))
        made = Site(settings, lambda: ClientData(table, raw=True, schema=schema, row_ids=row_ids))
    else:
        made = Site(settings, lambda: ClientData(rows, labels, row_ids=row_ids))
    if init and not any(
        (folder / kept).exists() for kept in ("ledger.jsonl", "ledger.head", "kept.sqlite")
    ):
        made.create_ledger()
    return made


def gaussian(multiplier, sensitivity=4.0, **more):
    """Return the noise that a server would like; a message has its part and its multiplier, and nothing else."""
    return Release("gaussian", sensitivity, multiplier, "as the server says", **more)


def plan(shares, epsilon=1.0, delta=1e-6, noise="local", unit="record"):
    multipliers = calibrate(shares, epsilon, delta_of_composition(delta))
    return Plan(epsilon, delta, noise, unit, shares, multipliers)


def plan_of(releases, epsilon=1000.0, noise="local"):
    """Return a plan of these releases, of which each may be made three times."""
    noisy = [one for one in releases if one is not None]
    shares = {
        one.share or "a part": Share(one.mechanism, 1.0, 3, one.relation, one.sample)
        for one in noisy
    }
    return Plan(
        epsilon,
        1e-6,
        noise,
        "record",
        shares,
        {one.share or "a part": one.noise_multiplier for one in noisy},
    )


SHARES = {"row_sum": Share("gaussian", 1.0, 3)}
PLAN = plan(SHARES)

#: A question that a careful site answers with this noise, three times in a run.
SUM = PrivateKMeansClient.row_sum.asked(frame=BALL)
NOISE = gaussian(PLAN.multipliers["row_sum"], share="row_sum")
ANNOUNCED = {"plan": PLAN.to_json()}
ENROL = {"task": "enrol", "round": 1, "client": PrivateKMeansClient.key()}

#: A policy that lets nearly everything with noise out.
NO_LIMIT = {"epsilon_per_run": 50, "epsilon": 500, "delta": 1e-4, "least_noise_multiplier": 0.1}
NO_LIMIT |= {"row_count": True, "relations": BOTH}

#: All that a server hears of a failure.
FAILED = {"format": FORMAT, "client": "north", "failure": "failed"}


class Server:
    """Sends a site whatever it likes, as one run."""

    def __init__(self, site, run_id=1, strategy="private-kmeans", **run_config):
        self.site = site
        self.strategy = strategy
        self.context = Context(
            run_id,
            7,
            UserConfig({}),
            RecordDict(),
            UserConfig({"strategy": strategy, **run_config}),
        )
        self.round = 1
        self.plan = ""  #: Of the run, where this server has made it.

    def ask(self, question, *, releases=(), n_shares=1, number=None, client=None, **config):
        """Ask a question; ``releases`` are the noise that the server announces, unless it gives a plan."""
        self.round += 1
        arrays, fields = question.to_wire()
        full = {
            "client": client or find(self.strategy).strategy.client_type.key(),
            "round": self.round if number is None else number,
            **fields,
            "n_clients": 3,
            "n_shares": n_shares,
        }
        if releases:
            full["parts"] = json.dumps([one and (one.share or "a part") for one in releases])
            self.plan = plan_of(releases).to_json()
        if self.plan:
            full["plan"] = self.plan
        full = {key: value for key, value in (full | config).items() if value is not None}
        return self.send(arrays, full)

    def ask_sum(self, **config):
        """Ask for SUM with the noise of PLAN, unless ``config`` says otherwise."""
        return self.ask(config.pop("question", SUM), **{"releases": [NOISE]} | ANNOUNCED | config)

    def send(self, arrays, config):
        config = {"format": FORMAT} | config
        return self.site.client(self.context).fit(FitIns(encode(arrays), config))

    def evaluate(self, *arrays, model="k-means", client=None):
        config = {
            "format": FORMAT,
            "client": client or find(self.strategy).strategy.client_type.key(),
            "model": model,
        }
        return self.site.client(self.context).evaluate(EvaluateIns(encode(arrays), config))


class Proxy(ClientProxy):
    """A site as Flower's server sees it, without a network."""

    def __init__(self, index, site, run_config, heard=None):
        super().__init__(str(index))
        self.node_id = index
        self.site = site
        self.heard = heard
        self.context = Context(1, index, UserConfig({}), RecordDict(), UserConfig(run_config))

    def fit(self, ins, timeout=None, group_id=None):
        if self.heard is not None:
            self.heard.append((dict(ins.config), tuple(ins.parameters.tensors)))
        return self.site.client(self.context).fit(ins)

    def evaluate(self, ins, timeout=None, group_id=None):
        return self.site.client(self.context).evaluate(ins)

    def get_properties(self, ins, timeout, group_id):
        raise NotImplementedError

    get_parameters = reconnect = get_properties


def run(strategy, sites, num_rounds=None, heard=None, **run_config):
    """Run a strategy over sites as Flower's own server does; ``heard`` gets what the first is asked for."""
    manager = SimpleClientManager()
    for index, one in enumerate(sites):
        kept = heard if index == 0 else None
        manager.register(Proxy(index, one, {"strategy": strategy.name} | run_config, kept))
    server = FlowerServer(client_manager=manager, strategy=strategy)
    server.set_max_workers(1)
    server.fit(num_rounds=strategy.num_rounds if num_rounds is None else num_rounds, timeout=None)


def refused(answer, site):
    """What the site says of it, once it is known that the server hears a word and gets nothing."""
    assert answer.metrics == {"format": FORMAT, "client": "north", "failure": "refused"}
    assert not getattr(answer, "parameters", None) or answer.parameters.tensors == []
    assert getattr(answer, "loss", 0.0) == 0.0
    return audit(site)[-1]["reason"]


def audit(site):
    return [json.loads(line) for line in (site.folder / "audit.jsonl").read_text().splitlines()]


def arrays_of(answer):
    assert "failure" not in answer.metrics, answer.metrics
    return decode(answer.parameters)
