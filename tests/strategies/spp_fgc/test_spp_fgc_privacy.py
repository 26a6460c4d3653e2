"""The privacy of SPP-FGC's strategies, from the rounds they yield: what a row can change, what the report says."""

import warnings
from fractions import Fraction

import numpy as np
import pytest
from tested import PAPERS
from watching import watched

from flower_fedclust.engine import ClientData
from flower_fedclust.exact.rows import Frame
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.spp_fgc.spp_fgc import SPPFGC
from flower_fedclust.strategies.spp_fgc.spp_fgc_sums import SUMS_PART, SPPFGCSums

BOUND = 20.0


def clients_of(n_columns=3, n_rows=40, seed=0):
    rng = np.random.default_rng(seed)
    means = np.zeros((3, n_columns))
    means[1, 0] = means[2, n_columns - 1] = 9.0
    return [
        means[rng.integers(3, size=n_rows)] + 0.5 * rng.normal(size=(n_rows, n_columns))
        for _ in range(4)
    ]


def ran(kind, n_columns=3, *, seed=0, **options):
    clients = clients_of(n_columns)
    strategy_type, rounds, _ = watched(kind)
    given = {"epsilon": 5.0, "max_l1_norm": BOUND} | options
    strategy = strategy_type(
        3, **{name: value for name, value in given.items() if value is not None}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = simulate(strategy, clients, seed=seed)
    return rounds, result


RUNS = {
    "refined": (SPPFGCSums, 3, {}),
    "refined_one_column": (SPPFGCSums, 1, {"noise": "clients", "delta": 1e-3, "n_lloyd_rounds": 3}),
    "refined_wide": (SPPFGCSums, 66, {}),
    "votes": (SPPFGCSums, 3, {"epsilon": 500.0, "n_prototypes": 9, "n_lloyd_rounds": 2}),
    "votes_local": (
        SPPFGCSums,
        3,
        {"n_prototypes": 30, "noise": "local", "epsilon": 4.0, "delta": 1e-3},
    ),
}
OF_SUMS = list(RUNS)
TESTED = OF_SUMS
if PAPERS:
    from flower_fedclust_papers.spp_fgc_private_prototypes import SPPFGCPrivatePrototypes

    OF_PROTOTYPES = {
        "prototypes": (SPPFGCPrivatePrototypes, 3, {"delta": 1e-3}),
        "prototypes_diagonal": (
            SPPFGCPrivatePrototypes,
            3,
            {"covariance": "diagonal", "n_prototypes": 5, "epsilon": 0.4},
        ),
        "prototypes_one_column": (SPPFGCPrivatePrototypes, 1, {}),
        "prototypes_wide": (SPPFGCPrivatePrototypes, 66, {}),
    }
    RUNS |= OF_PROTOTYPES
    TESTED = list(OF_PROTOTYPES)


@pytest.fixture(scope="module")
def run_of():
    """The rounds and the result of every run, made once."""
    made = {}

    def get(name):
        if name not in made:
            kind, n_columns, options = RUNS[name]
            made[name] = ran(kind, n_columns, **options)
        return made[name]

    return get


def released(seen):
    """The rounds that carry a release."""
    return [round_ for round_ in seen if any(round_.releases)]


def reply_to(kind, round_, rows):
    client = kind.client_type(ClientData(rows), name="0")
    with one_thread():  # as in a run
        reply = round_.asks.reply_of(client, round_.question)
    assert len(reply) == len(round_.releases)
    return [
        (array, release) for array, release in zip(reply, round_.releases, strict=True) if release
    ]


def norm_of(sent, other=None):
    """The L1 norm of an array, or of a difference of two, as it is: no float has rounded it."""
    entries = sent.integers if other is None else sent.integers - other.integers
    return sum(abs(int(entry)) for entry in entries.ravel()) * Fraction(2) ** sent.exponent


def rows_on_ties(round_, rng):
    """Rows as far from one center of a round as from another, where it has centers."""
    question = round_.question
    if not question.arrays or len(question.arrays[0]) < 2 or question.arrays[0].ndim < 2:
        return np.empty((0, len(question.frame.origin)))
    centers, frame = question.arrays[0], question.frame or Frame.of_arrays(*question.arrays[1:])
    pairs = rng.integers(len(centers), size=(20, 2))
    # On a coarse grid, so that halves are exact.
    step = 2.0 ** (frame.exponent + 4)
    on_grid = np.round(centers / step) * step
    return frame.origin + 0.5 * (on_grid[pairs[:, 0]] + on_grid[pairs[:, 1]])


def rows_that_nobody_foresaw(rng, n_columns, largest):
    rows = rng.normal(size=(rng.integers(1, 9), n_columns)) * 10.0 ** rng.uniform(
        -3, 4, size=(1, 1)
    )
    rows += rng.choice([0.0, 3.0, -1e6])
    extreme = rng.choice([0.0, BOUND, 1e3, 1e12, largest])
    signs = rng.choice([-1.0, 0.0, 1.0], size=(2, n_columns))
    return np.concatenate([rows, signs * extreme, np.eye(n_columns)[:1] * -extreme])


@pytest.mark.parametrize("name", TESTED)
def test_one_row_moves_no_reply_by_more_than_the_sensitivities_allow(run_of, name):
    seen, _ = run_of(name)
    kind, n_columns, _ = RUNS[name]
    for seed in range(6 if n_columns < 9 else 2):
        rng = np.random.default_rng(seed)
        foreseen_by_nobody = rows_that_nobody_foresaw(
            rng, n_columns, 1e308 if name in OF_SUMS else 1e100
        )
        for round_ in released(seen):
            rows = np.concatenate([foreseen_by_nobody, rows_on_ties(round_, rng)])
            without = reply_to(kind, round_, np.delete(rows, rng.integers(len(rows)), axis=0))
            for (one, release), (other, _) in zip(
                reply_to(kind, round_, rows), without, strict=True
            ):
                assert norm_of(one, other) <= Fraction(release.sensitivity)


@pytest.mark.parametrize("name", TESTED)
def test_sensitivities_are_no_larger_than_they_have_to_be(run_of, name):
    seen, _ = run_of(name)
    extreme = np.eye(RUNS[name][1])[:1] * -1e12
    for round_ in released(seen):
        for array, release in reply_to(RUNS[name][0], round_, extreme):
            assert float(norm_of(array)) == pytest.approx(release.sensitivity, rel=1e-4)


def test_report_says_that_nothing_covers_what_clients_send():
    _, result = ran(SPPFGC, epsilon=None, max_l1_norm=None)
    assert_nothing_is_covered(result.privacy)


def assert_nothing_is_covered(report):
    assert report.releases == []
    assert report.epsilon == np.inf
    assert not report.covers_everything
    assert (
        report.guarantee()
        == "None. Nothing that depends on the rows is covered by a privacy mechanism."
    )
    assert len(report.unprotected) == 6


# What it costs


def test_radius_of_the_frame_is_what_bounds_the_later_sums(run_of):
    seen, _ = run_of("refined")
    rounds = released(seen)
    frame = rounds[2].question.frame
    radius = frame.radius
    found = [release.sensitivity for round_ in rounds for release in round_.releases]
    assert found == pytest.approx([BOUND, 1.0, 1.0, radius**2, radius, 1.0, radius / SUMS_PART])
    assert radius <= BOUND
    assert frame.norm == 1
