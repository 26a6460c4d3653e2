"""For every kind of message that nothing protects, an attack that works, with one number."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from flower_fedclust.checking.subject import Subject
from flower_fedclust.engine import ClientData, ProtocolClient
from flower_fedclust.engine.rounds import KINDS, Askable
from flower_fedclust.models import KMeansModel
from flower_fedclust.privacy import attacks
from flower_fedclust.privacy.attacks import (
    advantage,
    attack_by_name,
    attack_on,
    clusters_from_graph,
    images_from_prototypes,
    membership_from_centers,
    row_by_replay,
    row_from_sums,
)
from flower_fedclust.registry import make_strategy, strategies
from flower_fedclust.strategies.common.frame import enter

RNG = np.random.default_rng(0)


def sums_of(rows, centers):
    inside = enter(rows, np.zeros(rows.shape[1]), np.array([10.0, 2.0]))
    sums, counts = inside.sums(inside.nearest(centers), len(centers))
    return sums.values, counts.integers


def test_exact_sums_of_two_runs_give_the_row_that_came():
    rows, row, centers = RNG.normal(size=(50, 5)), RNG.normal(size=5), RNG.normal(size=(4, 5))
    found = row_from_sums(*sums_of(np.vstack([rows, row]), centers), *sums_of(rows, centers))
    np.testing.assert_allclose(found, row[None], atol=1e-5)


def test_sums_of_other_clusters_are_refused():
    with pytest.raises(ValueError, match="the same clusters and columns"):
        row_from_sums(np.zeros((2, 3)), np.zeros(2, int), np.zeros((3, 3)), np.zeros(3, int))


def test_centers_of_small_clusters_tell_members_from_others_four_times_in_five():
    members, others = RNG.normal(size=(2, 60, 8))
    centers = KMeans(20, n_init=1, random_state=0).fit(members).cluster_centers_
    found = advantage(membership_from_centers(centers, members), membership_from_centers(centers, others))
    assert found > 0.8
    assert advantage(np.zeros(3), np.zeros(4)) == 0.5


def test_a_cluster_of_one_row_is_that_row():
    row = RNG.normal(size=(1, 3))
    assert membership_from_centers(row, row).tolist() == [0.0]


def test_evaluations_of_models_of_the_servers_choice_give_the_sum_of_the_rows():
    client = ProtocolClient(ClientData(RNG.normal(size=(40, 5))), name="0")

    def cost(centers):
        found, n_rows, _ = client.evaluate(KMeansModel(centers).to_arrays(), {"model": KMeansModel.name})
        assert n_rows == 40
        return found

    found = attacks.sums_by_evaluations(cost, 40, 5, reach=2.0)
    np.testing.assert_allclose(found, client.rows.sum(axis=0), atol=1e-10)


def test_whoever_knows_the_other_rows_finds_the_one_that_gives_the_same_message():
    rows, candidates = RNG.normal(size=(30, 4)), RNG.normal(size=(20, 4))

    def message(row):
        table = np.vstack([rows, row])
        return [np.linalg.norm(table, axis=1).mean(), np.cov(table.T)]

    scores = row_by_replay(message(candidates[7]), [*map(message, candidates), [0.0]])
    assert scores.argmax() == 7
    assert scores[7] == 0.0
    assert scores[-1] == -np.inf


def test_the_graph_of_the_nearest_rows_is_a_clustering():
    rows = np.repeat([[0.0, 0.0], [4.0, 4.0]], 20, axis=0) + RNG.normal(size=(40, 2))
    distances, neighbors = NearestNeighbors(n_neighbors=10).fit(rows).kneighbors()
    found = clusters_from_graph(neighbors, np.exp(-distances), 2)
    assert abs(found[:20].mean() - found[20:].mean()) > 0.8


def test_a_prototype_of_images_is_an_image_that_is_like_its_clients():
    rows = load_digits().data[:200]
    prototypes = KMeans(10, n_init=1, random_state=0).fit(rows).cluster_centers_
    images = images_from_prototypes(prototypes, (8, 8))
    assert images.shape == (10, 8, 8)
    assert (images.min(), images.max()) == (0.0, 1.0)
    alike = [max(np.corrcoef(image.ravel(), row)[0, 1] for row in rows) for image in images]
    assert min(alike) > 0.8


def messages():
    """Return what the clients of all strategies may be asked for, and the kind, if no mechanism covers it."""
    found = set()
    for entry in strategies().values():
        kind = entry.strategy.client_type
        asked = [value for name in dir(kind) if isinstance(value := getattr(kind, name), Askable)]
        found |= {(sent.content, sent.reveals) for one in asked for sent in one.answer.sends if not sent.kept_as}
    return found


def test_what_came_of_the_attack_on_every_unprotected_message_is_in_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    written = {row[0].removeprefix("| "): row[1].strip("`") for row in rows}
    kinds = dict(messages())
    for content, attack in list(written.items())[1:]:
        assert attack == attack_by_name(content, kinds[content])
        assert not attack or callable(getattr(attacks, attack))
    assert all(callable(getattr(attacks, attack_by_name(*one))) for one in messages() if one[1] != "rows")
    run = Subject(make_strategy("k-means-parallel", n_clusters=3)).run
    assert {message.content for message in run.strategy.report.unprotected} <= written.keys()


@pytest.mark.parametrize(
    ("content", "kind", "attack"),
    [
        ("kernel values of every row", "codes", "rows_from_kernel"),
        ("distances to the landmarks", "codes", "rows_from_distances"),
        ("code of every row", "codes", "rows_from_codes"),
        ("labels of another kind", "codes", "clusters_from_codes"),
        ("k-means cost of the rows", "sums", "sums_by_evaluations"),
        ("means of the client's prototypes", "centers", "images_from_prototypes"),
        ("anything else", "sums", "row_by_replay"),
        ("centers of the client's own clusters", "centers", "membership_from_centers"),
        ("sum of the rows in each cluster", "sums", "row_from_sums"),
    ],
)
def test_a_message_names_an_attack_that_exists(content, kind, attack):
    assert attack in attack_on(content, kind)
    assert callable(getattr(attacks, attack))


def test_every_kind_of_message_says_what_can_be_done_with_it():
    assert all(attack_on("anything", kind) for kind in KINDS)
