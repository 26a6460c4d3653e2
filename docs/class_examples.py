"""The example on each class's page. ``make check`` runs them all."""

from __future__ import annotations

from flower_fedclust.engine import Entry

_SITES = """\
import flower_fedclust as fc
from flower_fedclust.data import hold_out_server_rows, load_dataset, partition

flowers = hold_out_server_rows(load_dataset("iris"), 30)  # 30 rows are public
sites = partition(flowers, "iid", n_clients=4)
"""


def of_strategy(entry: Entry) -> str:
    """Return an example that runs a strategy on the iris flowers of four sites."""
    needs_rows = "server_data" in entry.strategy.required_parameters()
    given = {**entry.example, **entry.fixed}
    parameters = ["n_clusters=3", *(["server_data=sites.server_rows"] if needs_rows else [])]
    parameters += [f"{name}={value!r}" for name, value in given.items()]
    return f"""\
{_SITES}
strategy = fc.{entry.strategy.__name__}({", ".join(parameters)})
result = fc.simulate(strategy, sites.clients, labels=sites.labels)
print(result.metrics)
print(result.privacy.guarantee())
"""


def _model(strategy: str, use: str) -> str:
    return f"""\
{_SITES}
model = fc.simulate(fc.{strategy}, sites.clients).model
{use}
"""


_PREDICTED = "print(model.predict(sites.server_rows))  # clusters of rows that were not in the run"

_RESULT = f"""\
{_SITES}
result = fc.simulate(fc.PrivateKMeans(3, epsilon=5.0, max_norm=12.0), sites.clients, labels=sites.labels)
"""

_MEAN = """\
import flower_fedclust as fc
from flower_fedclust import authoring
from flower_fedclust.authoring import Entry, Gather, Outcome, Sent, Sum, answers


class MeanClient(authoring.ProtocolClient):
    @answers("sum of the rows", Sent("number of rows", counts_rows=True))
    def total(self):
        return authoring.GridArray.truncated(self.rows.sum(axis=0, keepdims=True), -30), [len(self.rows)]

    @answers(Sent("mean of the rows", "centers"))
    def mean(self):
        return [self.rows.mean(axis=0)]


class Mean(authoring.ProtocolStrategy):
    \"\"\"The mean of all rows.\"\"\"

    entries = (Entry("mean", "the mean of all rows", "an example"),)
    client_type = MeanClient
    n_protocol_rounds = 1

    def protocol(self):
        total, count = yield Sum(MeanClient.total.asked())
        return authoring.KMeansModel(total / count)

"""

_RUN_MEAN = "\nresult = fc.simulate(Mean(2), [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0]]])\n"

_GATHERED = (
    _MEAN
    + """
class MeanOfMeans(Mean):
    \"\"\"The mean of the clients' means, which the server sees.\"\"\"

    entries = (Entry("mean-of-means", "the mean of the clients' means", "an example"),)

    def protocol(self):
        replies = yield Gather(MeanClient.mean.asked())
        means = [reply.arrays[0] for reply in replies]
        return Outcome(authoring.KMeansModel([sum(means) / len(means)]))


result = fc.simulate(MeanOfMeans(2), [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0]]])
print(result.model.cluster_centers_)
"""
)

_PRIVATE = """\
import numpy as np

import flower_fedclust as fc
from flower_fedclust import authoring


class MeanClient(authoring.FrameClient):
    @authoring.by_row(sum="sum of the clipped rows", count="number of rows")
    def clipped_total(rows):
        return authoring.total(rows), authoring.count(rows)


class PrivateMean(authoring.ClippedStrategy):
    \"\"\"The mean of all rows, with noise.\"\"\"

    entries = (authoring.Entry("private-mean", "the mean of all rows, with noise", "an example"),)
    client_type = MeanClient
    n_protocol_rounds = 1

    def parts(self):
        answer = MeanClient.clipped_total
        return {"sum": authoring.Part(answer, 0.8), "count": authoring.Part(answer, 0.2, mechanism="laplace")}

    def protocol(self):
        frame = authoring.Frame(np.zeros(self.n_columns), self.max_norm)
        total, count = yield authoring.Sum(MeanClient.clipped_total.asked(frame=frame), parts=["sum", "count"])
        return authoring.KMeansModel([total / max(count.item(), 1.0)])


strategy = PrivateMean(2, epsilon=1.0, max_norm=3.0, budget={"sum": 0.9})
print(strategy.noise_multipliers())
print(fc.simulate(strategy, np.random.default_rng(0).normal(size=(3, 200, 2))).model.cluster_centers_)
"""

_AUDIT = """\
import flower_fedclust as fc

audit = fc.audit(fc.PrivateKMeans(3, epsilon=1.0, max_norm=3.0))
print(audit)
"""

_COMPARED = """\
import flower_fedclust as fc

results = fc.compare(["k-fed", "pooled-kmeans"], datasets="iris", seeds=2, jobs=1)
print(results)
print(results.to_markdown())
"""

_APP = """\
import flower_fedclust as fc
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = fc.PrivateKMeans(n_clusters=8, epsilon=1.0, max_norm=3.0)
    fc.MessageStrategy(strategy).start(grid)
    print(strategy.outcome.model.cluster_centers_, strategy.report)
"""

_CLIENT = """\
import flower_fedclust as fc


def load(context):
    return fc.ClientData([[44.0, 1.5], [61.0, 0.5]], columns=["age", "dose"])


app = fc.client_app(fc.PrivateKMeans.client_type, load, consent=fc.Consent({"sums"}))
"""

_TABLES = '''\
import numpy as np
import pandas as pd

import flower_fedclust as fc

schema = fc.Schema.from_toml("""
[columns.age]
kind = "number"
unit = "years"
bounds = [0, 110]
gaps = "mean"

[columns.job]
kind = "category"
categories = ["clerk", "cook", "pilot"]
gaps = "category"
""")
rng = np.random.default_rng(0)
kinds = rng.integers(3, size=(2, 1000))
tables = {
    site: pd.DataFrame({"age": 25.0 + 20 * kinds[i], "job": np.array(["clerk", "cook", "pilot"])[kinds[i]]})
    for i, site in enumerate(["north", "south"])
}
tables["north"].loc[3, "age"] = None  # a gap

result = fc.simulate(fc.PrivateKMeans(3, epsilon=2.0), tables, schema=schema)
print(result.model)
print(result.model.predict(tables["south"])[:10])  # raw tables, columns in any order
'''

_JOURNAL = f"""\
{_SITES}
strategy = fc.PrivateKMeans(3, epsilon=5.0, max_norm=12.0)
result = fc.simulate(strategy, sites.clients, journal="journal")  # after an interruption, the same line continues
print(result.metrics)
"""

_ESTIMATOR = """\
import numpy as np

import flower_fedclust as fc

rows, site = np.array([[0.0], [1.0], [9.0], [8.0]]), ["a", "b", "a", "b"]
estimator = fc.as_estimator(fc.FederatedKMeans(2), seed=0)
print(estimator.fit_predict(rows, groups=site))
"""

_NUMBER = f"""\
{_SITES}
result = fc.simulate(fc.PrivateKMeans((2, 6), epsilon=5.0, max_norm=12.0), sites.clients)
print(result.number)
"""

_PLAN = """\
import flower_fedclust as fc

print(fc.plan(fc.PrivateKMeans(4, epsilon=1.0, max_norm=3.0), n_rows=5000, n_columns=6, epsilons=(0.3, 1.0, 3.0)))
"""

EXAMPLES = {
    "FederatedClustering": _ESTIMATOR,
    "ClusterNumber": _NUMBER,
    "Forecast": _PLAN,
    "Clusters": _TABLES.replace("schema=schema)", "schema=schema, describe=True)")
    + "print(result.clusters)\n",
    "TableOne": _TABLES.replace("schema=schema)", "schema=schema, describe=True)")
    + 'table = result.clusters.table_one()\nprint(table)\ntable.save(".")  # table-one.csv, .md and .tex\n',
    "Journal": _JOURNAL,
    **dict.fromkeys(["Schema", "Column", "TableModel"], _TABLES),
    "Model": _model("KFED(3)", _PREDICTED),
    "KMeansModel": _model("KFED(3)", "print(model.cluster_centers_)\n" + _PREDICTED),
    "SpectralModel": _model("FedSC(3)", _PREDICTED),
    "MapModel": _model("FedTSNESums(3)", _PREDICTED),
    "FactorModel": _model("DPFedC(3)", _PREDICTED),
    "MixtureModel": _model(
        "PrivateMixture(3, epsilon=None)",
        "print(model.predict_proba(sites.server_rows))  # memberships of rows that were not in the run\n"
        "print(model.score_samples(sites.server_rows).mean())  # their log-likelihood\n"
        "print(model.weights_, model.means_, model.covariances_)",
    ),
    "CellModel": _model("PrivateDensity(3, epsilon=None)", _PREDICTED),
    "PrototypeModel": _model("SPPFGCSums(3)", _PREDICTED),
    "SubspaceModel": _model("FedSubspaceClustering(3)", _PREDICTED),
    "EncodedModel": _model("SPPFGCPlus(3, n_pretraining_rounds=1, n_rounds=1)", _PREDICTED),
    "Result": _RESULT
    + 'print(result)\nprint(result.metrics, result.bytes_up)\nresult.save("results/first")\n',
    "PrivacyReport": _RESULT
    + "print(result.privacy.guarantee())\nprint(result.privacy.covers_everything)\n",
    "Doubt": _RESULT + "for doubt in result.doubts:\n    print(doubt)\n",
    "Traffic": _RESULT + "print(result.traffic[0])\n",
    "Failure": _RESULT
    + "for failure in result.failures:\n    print(failure.client, failure.round, failure.reason)\n",
    "Results": _COMPARED,
    "MessageStrategy": _APP,
    "ClientData": _CLIENT,
    "Consent": _CLIENT,
    "Clustered": """\
import numpy as np

from flower_fedclust import authoring

print(authoring.Clustered(labels=np.array([0, 1, 1]), cost=2.5))  # what a model says of some rows
""",
    "Survival": """\
import numpy as np

from flower_fedclust.tables.survival import Survival

# Cluster 0: 30 rows had the event in the first year and 20 in the second, 10 and 15 were last seen, 60 are later.
survival = Survival(np.array([12.0, 24.0]), np.array([[30.0, 20, 10, 15, 60, 0]]), unit="months", happened="had died")
print(survival)
""",
    "GridArray": """\
import numpy as np

from flower_fedclust import authoring

sums = authoring.GridArray.clipped(np.array([3.0, 4.0]), 1.0)  # to a norm of 1
print(sums.integers, sums.exponent)  # integers, in units of a power of two
""",
    "Frame": """\
import numpy as np

from flower_fedclust import authoring

frame = authoring.Frame(np.array([40.0, 2.0]), radius=30.0)  # public: a point, and the largest distance from it
rows = frame.enter(np.array([[44.0, 1.5], [110.0, 0.5]]))
print(frame.leave(rows))  # the second row was clipped
""",
    "Rows": """\
import numpy as np

from flower_fedclust import authoring

rows = authoring.Frame(np.zeros(2), radius=5.0).rows(np.array([[3.0, 4.0], [30.0, 40.0]]))
print(rows.values)  # the second row is clipped to the radius
print(rows.nearest(np.array([[0.0, 0.0], [3.0, 4.0]])))
""",
    **dict.fromkeys(
        ["ProtocolStrategy", "ProtocolClient", "Sum", "Sent", "Entry"],
        _MEAN + _RUN_MEAN + "print(result.model.cluster_centers_)\n",
    ),
    "Question": _MEAN + "\nprint(MeanClient.total.asked())\n",
    **dict.fromkeys(["Total", "Round"], _MEAN + _RUN_MEAN + "print(result.privacy)\n"),
    **dict.fromkeys(["Gather", "Reply", "Outcome"], _GATHERED),
    **dict.fromkeys(
        ["PrivateStrategy", "ClippedStrategy", "FrameClient", "Part", "Release", "Share"], _PRIVATE
    ),
    **dict.fromkeys(["AuditResult", "AuditedRelease"], _AUDIT),
}
