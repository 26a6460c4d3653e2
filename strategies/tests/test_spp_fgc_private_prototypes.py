"""SPP-FGC with private prototypes: cells that all clients share, and what the report says of the graphs."""

import math

import numpy as np
import pytest
from test_spp_fgc import seen_by_the_server
from test_spp_fgc_privacy import OF_PROTOTYPES, ran
from test_spp_fgc_uploads import CLASSES, MEANS, RNG, ROWS, deeper, gathered, outside, shorter

from flower_fedclust.engine import ClientData, DataError, Gather, Reply
from flower_fedclust.engine.replies import values_of
from flower_fedclust.exact.rows import Frame
from flower_fedclust.numerics.prototypes import prototypes_of, shrunk
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.strategies.spp_fgc.spp_fgc_sums import Cells
from flower_fedclust_papers.spp_fgc_private_prototypes import (
    SPPFGCPrivatePrototypesClient,
    prototypes_of_cells,
)

FRAME = Frame(np.array([1.0, 2.0, 0.0]), 12.0, norm=1)
CELLS = Cells(FRAME, MEANS - FRAME.origin, np.ones(3), 60.0)


def cells_sent(rows, name="0", *, diagonal=False):
    client = SPPFGCPrivatePrototypesClient(ClientData(rows), name=name)
    options = {"n_clusters": 3, "n_neighbors": 5, "diagonal": diagonal}
    with one_thread():
        return client.cell_prototypes(CELLS.centers, *FRAME.arrays, **options)


def cells_reply(rows, name="0", *, diagonal=False):
    return Reply(name, values_of(cells_sent(rows, name, diagonal=diagonal)))


def of_cells(reply, *, products=0.0, counts=0.0):
    """The reply as the server reads it, with noise of these multipliers on two of its arrays."""
    return prototypes_of_cells(reply, CELLS, math.sqrt(2.0) * products * FRAME.radius**2, counts)


@pytest.mark.parametrize("diagonal", [False, True])
def test_cells_without_noise_are_the_prototypes_of_their_rows(diagonal):
    reply, deviation = of_cells(cells_reply(ROWS, diagonal=diagonal))
    own = reply.arrays[0]
    assert np.array_equal(own, CLASSES)
    slow = prototypes_of(FRAME.enter(ROWS), own, diagonal=diagonal)
    np.testing.assert_allclose(reply.arrays[3], slow.means + FRAME.origin, atol=1e-6)
    # Products are of entries truncated to 16 bits of the radius.
    np.testing.assert_allclose(
        reply.arrays[4], slow.covariances, atol=4 * FRAME.radius**2 * 2.0**-15
    )
    assert np.array_equal(reply.arrays[5], slow.counts)
    assert not deviation.any()
    assert gathered([reply]).prototypes.is_diagonal is diagonal


@pytest.mark.parametrize("diagonal", [False, True])
def test_products_by_cell_are_the_same_whichever_rows_stand_beside(diagonal):
    rows = np.concatenate([ROWS, np.full((2, 3), 1e100)])
    whole = cells_sent(rows, diagonal=diagonal)
    parts = [cells_sent(part, diagonal=diagonal) for part in (rows[:7], rows[7:40], rows[40:])]
    for position in (3, 4, 5):
        assert np.array_equal(
            whole[position].integers, sum(part[position].integers for part in parts)
        )


def test_rows_of_a_cell_with_hardly_a_row_go_to_the_nearest_that_is_left():
    reply = cells_reply(ROWS)
    reply.arrays[5] = np.array([30.0, 5.9, 40.0])
    changed, deviation = of_cells(reply, products=2.0, counts=3.0)
    assert len(changed.arrays[3]) == 2
    assert np.array_equal(changed.arrays[0], np.where(CLASSES == 2, 1, 0))
    np.testing.assert_allclose(
        deviation, math.sqrt(2) * FRAME.radius**2 * 2.0 / np.array([30.0, 40.0])
    )
    reply.arrays[5] = np.array([-3.0, 0.2, -9.0])
    changed, _ = of_cells(reply, products=2.0, counts=3.0)
    assert changed.arrays[5].tolist() == [1.0]
    assert not changed.arrays[0].any()


def test_prototypes_lie_in_the_frame_and_covariances_have_no_negative_variance_whatever_the_noise():
    for diagonal in (False, True):
        reply = cells_reply(ROWS, diagonal=diagonal)
        for position in (3, 4, 5):
            reply.arrays[position] += RNG.laplace(scale=1e4, size=reply.arrays[position].shape)
        changed, _ = of_cells(reply, counts=1e-9)
        means, covariances, counts = changed.arrays[3:]
        assert np.abs(means - FRAME.origin).sum(axis=1).max() <= FRAME.radius * (1 + 1e-9)
        smallest = covariances.min() if diagonal else np.linalg.eigvalsh(covariances).min()
        assert smallest >= -1e-9 * np.abs(covariances).max()
        assert counts.min() >= 1


@pytest.mark.parametrize(
    "change", [outside(0, 3), outside(0, -1), *map(shorter, (3, 4, 5)), *map(deeper, (0, 3, 4, 5))]
)
def test_cells_that_do_not_fit_are_refused_in_a_sentence_that_names_the_client(change):
    reply = cells_reply(ROWS, "a")
    change(reply.arrays)
    with pytest.raises(DataError, match="client a"):
        of_cells(reply)


def test_covariances_that_noise_has_blurred_are_drawn_to_their_mean_more_than_others():
    def distances_from_the_mean(covariances):
        return np.abs(covariances - covariances.mean(axis=0)).sum(axis=(1, 2))

    seen = seen_by_the_server("private")
    as_if_exact = shrunk(seen["found"].prototypes).covariances
    blurred = distances_from_the_mean(seen["prototypes"].covariances)
    assert blurred.sum() < 0.95 * distances_from_the_mean(as_if_exact).sum()


@pytest.mark.parametrize("name", OF_PROTOTYPES)
def test_report_of_graphs_says_that_they_are_not_covered(name):
    kind, n_columns, options = OF_PROTOTYPES[name]
    seen, result = ran(kind, n_columns, **options)
    report = result.privacy
    assert not report.covers_everything
    assert {message.content for message in report.unprotected} == {
        "prototype of every row", "nearest rows of every row", "weights of the nearest rows of every row",
    }  # fmt: skip
    assert report.noise == "local"
    assert any(
        "no noise covers either, so that nothing is promised for the run" in note
        for note in report.notes
    )
    assert "The run as a whole has NO such guarantee" in report.guarantee()
    gathered = next(round_ for round_ in seen if round_.task == "cell_prototypes")
    assert isinstance(gathered, Gather)
    assert [release is None for release in gathered.releases] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
