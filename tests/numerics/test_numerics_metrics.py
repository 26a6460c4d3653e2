from itertools import permutations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from flower_fedclust.numerics.metrics import add_tables, agreement, count_table

SHAPES = [(3, 3), (2, 5), (5, 2), (1, 4), (4, 1), (4, 6)]


def random_labels(n_classes, n_clusters, seed=0):
    rng = np.random.default_rng(seed)
    classes = rng.integers(n_classes, size=300)
    clusters = np.where(rng.random(300) < 0.5, classes % n_clusters, rng.integers(n_clusters, size=300))
    return classes, clusters


def brute_force_accuracy(classes, clusters, n_classes, n_clusters):
    best = 0
    size = max(n_classes, n_clusters)
    for permutation in permutations(range(size)):
        best = max(best, sum(permutation[cluster] == label for label, cluster in zip(classes, clusters, strict=True)))
    return best / len(classes)


def table_of(classes, clusters, n_clusters):
    return add_tables([count_table(classes, clusters, n_clusters)])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nmi_and_ari_of_the_table_are_scikit_learns_of_the_labels(shape):
    classes, clusters = random_labels(*shape)
    scores = agreement(table_of(classes, clusters, shape[1]))
    assert scores["nmi"] == pytest.approx(normalized_mutual_info_score(classes, clusters), abs=1e-12)
    assert scores["ari"] == pytest.approx(adjusted_rand_score(classes, clusters), abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_accuracy_is_the_best_over_all_matches(shape):
    for seed in range(2):
        classes, clusters = random_labels(*shape, seed)
        expected = brute_force_accuracy(classes, clusters, *shape)
        assert agreement(table_of(classes, clusters, shape[1]))["accuracy"] == pytest.approx(expected, abs=1e-12)


def test_count_table_counts_every_class_in_every_cluster():
    classes, clusters = random_labels(4, 3)
    table = count_table(classes, clusters, 5)
    assert list(table) == ["0", "1", "2", "3"]
    for name, row in table.items():
        expected = [((classes == int(name)) & (clusters == cluster)).sum() for cluster in range(5)]
        np.testing.assert_array_equal(row, expected)


@pytest.mark.parametrize("classes", [["b", "a", "b"], np.array(["b", "a", "b"])], ids=["list", "array"])
def test_classes_may_be_strings(classes):
    table = count_table(classes, np.array([0, 1, 1]), 2)
    assert {name: row.tolist() for name, row in table.items()} == {"a": [0, 1], "b": [1, 1]}
    assert all(type(name) is str for name in table)


def test_a_whole_number_is_the_same_class_as_integer_as_float_and_as_text():
    classes = [np.array([1, 2]), [1.0, 2.5], ["1", "x"]]
    tables = [count_table(names, np.array([index == 1, 1]), 2) for index, names in enumerate(classes)]
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
