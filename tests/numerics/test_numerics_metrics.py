from itertools import permutations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from flower_fedclust.numerics.metrics import add_tables, agreement, best_agreement, count_table

SHAPES = [(3, 3), (2, 5), (5, 2), (1, 4), (4, 1), (4, 6)]


def random_labels(n_classes, n_clusters, seed=0):
    rng = np.random.default_rng(seed)
    classes = rng.integers(n_classes, size=300)
    clusters = np.where(
        rng.random(300) < 0.5, classes % n_clusters, rng.integers(n_clusters, size=300)
    )
    return classes, clusters


def brute_force_accuracy(classes, clusters, n_classes, n_clusters):
    best = 0
    size = max(n_classes, n_clusters)
    for permutation in permutations(range(size)):
        best = max(
            best,
            sum(
                permutation[cluster] == label
                for label, cluster in zip(classes, clusters, strict=True)
            ),
        )
    return best / len(classes)


def table_of(classes, clusters, n_clusters):
    return add_tables([count_table(classes, clusters, n_clusters)])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nmi_and_ari_of_the_table_are_scikit_learns_of_the_labels(shape):
    classes, clusters = random_labels(*shape)
    scores = agreement(table_of(classes, clusters, shape[1]))
    assert scores["nmi"] == pytest.approx(
        normalized_mutual_info_score(classes, clusters), abs=1e-12
    )
    assert scores["ari"] == pytest.approx(adjusted_rand_score(classes, clusters), abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_accuracy_is_the_best_over_all_matches(shape):
    for seed in range(2):
        classes, clusters = random_labels(*shape, seed)
        expected = brute_force_accuracy(classes, clusters, *shape)
        assert agreement(table_of(classes, clusters, shape[1]))["accuracy"] == pytest.approx(
            expected, abs=1e-12
        )


def test_count_table_counts_every_class_in_every_cluster():
    classes, clusters = random_labels(4, 3)
    table = count_table(classes, clusters, 5)
    assert list(table) == ["0", "1", "2", "3"]
    for name, row in table.items():
        expected = [((classes == int(name)) & (clusters == cluster)).sum() for cluster in range(5)]
        np.testing.assert_array_equal(row, expected)


@pytest.mark.parametrize(
    "classes", [["b", "a", "b"], np.array(["b", "a", "b"])], ids=["list", "array"]
)
def test_classes_may_be_strings(classes):
    table = count_table(classes, np.array([0, 1, 1]), 2)
    assert {name: row.tolist() for name, row in table.items()} == {"a": [0, 1], "b": [1, 1]}
    assert all(type(name) is str for name in table)


def test_a_whole_number_is_the_same_class_as_integer_as_float_and_as_text():
    classes = [np.array([1, 2]), [1.0, 2.5], ["1", "x"]]
    tables = [
        count_table(names, np.array([index == 1, 1]), 2) for index, names in enumerate(classes)
    ]
    np.testing.assert_array_equal(add_tables(tables), [[2, 1], [0, 1], [0, 1], [0, 1]])


def test_tables_with_different_classes_add_up_to_the_table_of_all_rows():
    classes, clusters = random_labels(6, 4)
    names = np.array(["f", "a", "e", "c", "b", "d"])[classes]
    halves = np.arange(300) % 2
    parts = [np.flatnonzero(np.isin(classes, group)) for group in ([0, 1, 2], [4], [5])]
    parts += [np.flatnonzero((classes == 3) & (halves == half)) for half in (0, 1)]
    parts += [np.arange(0, 300, 7)]
    total = add_tables([count_table(names[part], clusters[part], 4) for part in parts])
    together = np.concatenate(parts)
    np.testing.assert_array_equal(total, table_of(names[together], clusters[together], 4))


# Tables of classes by clusters, and what genieclust 1.3.0 gives: normalized clustering accuracy, normalized pivoted
# accuracy (our adjusted accuracy) and adjusted Rand index.
GENIECLUST = [
    ([[5, 1], [2, 8]], [0.6333333333333333, 0.625, 0.35]),
    (
        [[10, 2, 1], [0, 7, 3], [4, 4, 20]],
        [0.5917582417582419, 0.588235294117647, 0.325822744850446],
    ),
    (
        [[40, 0, 5, 5], [1, 9, 0, 0], [0, 2, 3, 1], [30, 0, 0, 30]],
        [0.5666666666666668, 0.5343915343915344, 0.24889138474264616],
    ),
]


def rows_with(table):
    classes, clusters = np.indices(np.shape(table))
    return np.repeat(classes.ravel(), np.ravel(table)) + 1, np.repeat(
        clusters.ravel(), np.ravel(table)
    )


@pytest.mark.parametrize(("table", "expected"), GENIECLUST, ids=["2", "3", "4"])
def test_normalized_accuracies_are_genieclusts(table, expected):
    classes, clusters = rows_with(table)
    scores = best_agreement(classes[:, None], clusters, len(table))
    assert [scores["nca"], scores["adjusted_accuracy"], scores["ari"]] == pytest.approx(
        expected, abs=1e-12
    )


def test_rows_with_the_label_0_are_not_scored():
    classes, clusters = rows_with([[5, 1], [2, 8]])
    noisy = np.append(classes, np.zeros(50, dtype=int))
    with_noise = best_agreement(noisy[:, None], np.append(clusters, np.arange(50) % 2), 2)
    assert with_noise == best_agreement(classes[:, None], clusters, 2)


def test_the_best_labeling_with_as_many_classes_as_clusters_counts():
    clusters = np.repeat([0, 1], 20)
    labelings = np.column_stack(
        [np.arange(40) % 2 + 1, np.where(np.arange(40) < 30, clusters, 1) + 1, clusters + 1]
    )
    assert best_agreement(labelings, clusters, 2)["ari"] == 1.0
    assert best_agreement(labelings[:, :1], clusters, 2)["ari"] < 0.1
    # A labeling of four classes does not count for two clusters; if none has as many classes, all count.
    finer = np.column_stack([labelings[:, 0], np.arange(40) // 10 + 1])
    assert best_agreement(finer, clusters, 2)["ari"] < 0.1
    assert best_agreement(finer, np.arange(40) // 10 % 3, 3)["ari"] > 0.5
