"""The attacks on messages without noise work, and every unprotected message names one of them."""

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cdist, pdist
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_iris
from sklearn.neighbors import NearestNeighbors

from flower_fedclust.engine import ClientData, ProtocolClient
from flower_fedclust.engine.rounds import KINDS, Askable
from flower_fedclust.models import KMeansModel
from flower_fedclust.privacy.attacks import attack_by_name, attack_on
from flower_fedclust.registry import strategies
from reproduce import attacks
from reproduce.attacks import relative_errors, row_by_replay

RNG = np.random.default_rng(0)
IRIS, DIGITS = load_iris().data, load_digits().data[:400] / 16.0


def kernel(left, right, bandwidth):
    return np.exp(-cdist(left, right, "sqeuclidean") / (2 * bandwidth**2))


def recovered(form, rows, *, n_points=100, noise=0.0, shift=0.0):
    """Attack what a client uploads about its rows, with noise in units of the upload's spread."""
    generator = np.random.default_rng(1)
    rows = rows + shift
    points = rows.mean(axis=0) + rows.std(axis=0) * generator.standard_normal(
        (n_points, rows.shape[1])
    )
    bandwidth = pdist(rows).mean()
    values = cdist(rows, points) if form == "distances" else kernel(rows, points, bandwidth)
    if form == "codes":
        values = np.linalg.solve(
            kernel(points, points, bandwidth) + 0.01 * np.eye(n_points), values.T
        ).T
    values = values + noise * values.std() * generator.standard_normal(values.shape)
    if form == "codes":
        return attacks.rows_from_codes(points, values, bandwidth=bandwidth, regularization=0.01)
    if form == "kernel":
        return attacks.rows_from_kernel(points, values, gamma=1 / (2 * bandwidth**2))
    return attacks.rows_from_distances(points, values)


FORMS = pytest.mark.parametrize("form", ["codes", "kernel", "distances"])


@FORMS
def test_every_row_is_recovered_from_what_carries_no_noise(form):
    for rows in (IRIS, DIGITS):
        assert relative_errors(recovered(form, rows), rows).max() < 1e-6
    assert relative_errors(recovered(form, IRIS, n_points=5), IRIS).max() < 1e-6
    assert relative_errors(recovered(form, IRIS, shift=1e5), IRIS + 1e5).max() < 1e-6
    with pytest.raises(ValueError, match="columns"):
        recovered(form, IRIS, n_points=4)


def test_errors_are_relative_to_the_distance_from_the_mean_row():
    rows = np.array([[100.0, 0.0], [104.0, 0.0], [102.0, 6.0]])  # the mean row is (102, 2)
    found = rows + np.array([[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]])
    np.testing.assert_allclose(relative_errors(found, rows), [5 / np.sqrt(8), 0.0, 0.5])
    line = np.array([[-1.0], [0.0], [1.0]])
    assert relative_errors(line, line).tolist() == [0.0, 0.0, 0.0]
    assert relative_errors(line + 0.5, line).tolist() == [0.5, np.inf, 0.5]


def test_codes_and_graphs_give_clusters():
    rows = np.repeat([[0.0, 0.0], [4.0, 4.0]], 20, axis=0) + RNG.normal(size=(40, 2))
    distances, neighbors = NearestNeighbors(n_neighbors=10).fit(rows).kneighbors()
    for found in (
        attacks.clusters_from_codes(kernel(rows, rows[::4], 2.0), 2),
        attacks.clusters_from_graph(neighbors, np.exp(-distances), 2),
    ):
        assert abs(found[:20].mean() - found[20:].mean()) > 0.8


def test_exact_sums_of_two_runs_give_the_row_that_came():
    rows, row = RNG.normal(size=(50, 5)), RNG.normal(size=5)
    sums, counts = np.array([rows[:20].sum(axis=0), rows[20:].sum(axis=0)]), np.array([20, 30])
    now = sums + np.array([np.zeros(5), row])
    np.testing.assert_allclose(
        attacks.row_from_sums(now, counts + np.array([0, 1]), sums, counts), row[None]
    )


def test_centers_of_small_clusters_tell_members_from_others_four_times_in_five():
    members, others = RNG.normal(size=(2, 60, 8))
    centers = KMeans(20, n_init=1, random_state=0).fit(members).cluster_centers_
    scores = (attacks.membership_from_centers(centers, rows) for rows in (members, others))
    assert attacks.advantage(*scores) > 0.8
    assert attacks.advantage(np.zeros(3), np.zeros(4)) == 0.5


def test_evaluations_of_models_of_the_servers_choice_give_the_sum_of_the_rows():
    client = ProtocolClient(ClientData(RNG.normal(size=(40, 5))), name="0")

    def cost(centers):
        found, n_rows, _ = client.evaluate(
            KMeansModel(centers).to_arrays(), {"model": KMeansModel.name}
        )
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
    assert (scores.argmax(), scores[7], scores[-1]) == (7, 0.0, -np.inf)


def test_a_prototype_of_images_is_an_image_that_is_like_its_clients():
    prototypes = KMeans(10, n_init=1, random_state=0).fit(DIGITS).cluster_centers_
    images = attacks.images_from_prototypes(prototypes, (8, 8))
    assert (images.shape, images.min(), images.max()) == ((10, 8, 8), 0.0, 1.0)
    assert (
        min(max(np.corrcoef(image.ravel(), row)[0, 1] for row in DIGITS) for image in images) > 0.75
    )


def messages():
    """Return what clients of all strategies may be asked for, and its kind."""
    found = {}
    for entry in strategies().values():
        kind = entry.strategy.client_type
        asked = [value for name in dir(kind) if isinstance(value := getattr(kind, name), Askable)]
        found |= {
            sent.content: sent.reveals
            for one in asked
            for sent in one.answer.sends
            if not sent.kept_as
        }
    return found


def test_every_message_names_an_attack_that_exists_and_the_page_has_what_came_of_it():
    kinds = messages()
    for content, kind in kinds.items():
        name = attack_by_name(content, kind)
        assert attack_on(content, kind)
        assert kind == "rows" or callable(getattr(attacks, name))
    page = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text(encoding="utf-8")
    rows = [
        line.removeprefix("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")
    ][1:]
    # The first cell has "`strategy`: message; message" for each strategy.
    written = {
        content: row[1].strip("` ")
        for row in rows
        for sent in row[0].split("<br>")
        for content in sent.split(": ", 1)[1].split("; ")
    }
    assert written == {content: attack_by_name(content, kinds[content]) for content in written}
    assert all(attack_on("anything", kind) for kind in KINDS)
