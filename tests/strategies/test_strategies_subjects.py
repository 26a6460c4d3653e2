"""Persons with many rows: one person more or less moves nothing by more than declared, in every family by row."""

import numpy as np
import pytest
from test_strategies_every import BOUNDS, EPSILON, options_of
from tested import PAPERS, entries

import flower_fedclust as fc
from flower_fedclust.checking import Subject
from flower_fedclust.checking.neighbors import (
    ROWS_OF_PERSONS,
    extreme_rows,
    far_rows,
    how_far,
    neighbor_tables,
    ratio_of,
)
from flower_fedclust.checking.runs import data_of, watched_run
from flower_fedclust.engine import ClientData

#: One name for each class whose answers are sums over rows, and what makes its runs have all of their rounds.
FAMILIES = {
    "private-kmeans": {},
    "private-mixture": {},
    "private-density": {},
    "feddp-kmeans": {},
    "federated-kmeans-private": {},
    "spp-fgc-sums": {},
    "fedsc-sums": {},
    "fed-tsne-sums": {},
    "fed-umap-sums": {},
    "fed-speclust-sums": {},
}
OF_PAPERS = {"pe-means": {}, "ffcm-private": {}}


def strategy_of(name, **parameters):
    entry = entries()[name]
    accepted = set(entry.strategy.parameter_names())
    bounds = {bound: value for bound, value in BOUNDS.items() if bound in accepted}
    return entry.strategy(
        **entry.fixed, **bounds | options_of(entry) | {"epsilon": EPSILON} | parameters
    )


@pytest.mark.parametrize("name", OF_PAPERS if PAPERS else FAMILIES)
def test_a_person_with_many_rows_moves_nothing_by_more_than_declared(name):
    subject = Subject(strategy_of(name, privacy_unit="subject"))
    run, client = subject.run, subject.names[0]
    assert run.strategy.report.covers_everything
    rows = run.data[client].rows
    hard = [*far_rows(rows)[:1], *extreme_rows(rows.shape[1])[1:4:2]]
    pairs = neighbor_tables(rows, hard, "subject", "add-or-remove")
    assert {np.bincount(pair.owners).max() for pair in pairs} >= set(ROWS_OF_PERSONS[1:])
    found = list(how_far(run, client, pairs))
    assert found
    assert not [
        f"{one.content}: {one.ratio} ({one.neighbors.description})"
        for one in found
        if one.is_too_far
    ]
    # Nor do bounds lie far above what a person can change: a person with many equal rows adds nearly one row.
    assert max(one.ratio for one in found) > 0.3


#: The engine adds up persons for every strategy alike; these have sums by cluster, of moments, of cells and of codes.
SOME = ("feddp-kmeans", "federated-kmeans-private", "fedsc-sums", "spp-fgc-sums")


@pytest.mark.parametrize(
    "name",
    OF_PAPERS
    if PAPERS
    else [
        pytest.param(name, marks=[] if name in SOME else [pytest.mark.long]) for name in FAMILIES
    ],
)
def test_one_row_for_each_person_has_the_bits_of_records(name):
    of_records, of_subjects = (
        Subject(strategy_of(name, privacy_unit=unit)) for unit in ("record", "subject")
    )
    one, other = of_records.run, of_subjects.run
    assert [list(map(np.ndarray.tobytes, one.replies(number)[0])) for number in one.rounds] == [
        list(map(np.ndarray.tobytes, other.replies(number)[0])) for number in other.rounds
    ]


@pytest.mark.skipif(PAPERS, reason="one strategy stands for all")
def test_copies_of_rows_change_nothing_but_truncation():
    """A person who is in a table twenty times with one row weighs as much as a person who is there once."""
    strategy = strategy_of("private-kmeans", privacy_unit="subject")
    once = Subject(strategy).data
    often = {
        name: data_of(
            strategy,
            np.repeat(one.rows, 16, axis=0),
            one.owner,
            subjects_of_rows=np.repeat(np.arange(one.n_rows), 16),
        )
        for name, one in once.items()
    }
    runs = [watched_run(strategy, data, seed=3) for data in (once, often)]
    sums = [
        [array for number in list(run.rounds)[:3] for array in run.replies(number)[0]]
        for run in runs
    ]
    for one, other in zip(*sums, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


REFUSED = ["dp-fedc"]
REFUSED_OF_PAPERS = [
    "fed-tsne-perturbed",
    "fedsc-perturbed-data",
    "coreset-k-median",
    "k-means-parallel",
]


@pytest.mark.parametrize("name", REFUSED_OF_PAPERS if PAPERS else REFUSED)
def test_what_is_no_sum_over_rows_is_refused_for_persons(name):
    with pytest.raises(
        ValueError, match="cannot protect a subject: it sends more than sums over rows"
    ):
        strategy_of(name, privacy_unit="subject")


@pytest.mark.skipif(PAPERS, reason="one strategy stands for all")
def test_numbers_of_rows_and_sites_are_for_subjects_and_need_an_epsilon():
    with pytest.raises(ValueError, match="for privacy_unit='subject'"):
        strategy_of("private-kmeans", rows_per_subject=3)
    with pytest.raises(ValueError, match="no epsilon"):
        strategy_of("private-kmeans", privacy_unit="subject", epsilon=None)


@pytest.mark.skipif(PAPERS, reason="one strategy stands for all")
def test_sites_per_subject_multiplies_all_noise_and_the_report_says_what_two_sites_cost():
    one, two = (
        Subject(strategy_of("private-kmeans", privacy_unit="subject", sites_per_subject=sites)).run
        for sites in (1, 2)
    )
    first, second = one.rounds[2].releases[0], two.rounds[2].releases[0]
    assert second.sensitivity == 2 * first.sensitivity
    assert second.noise_multiplier == first.noise_multiplier
    report = one.strategy.report
    assert report.epsilon_at_sites(1) == report.epsilon
    assert report.epsilon_at_sites(2) > 2 * report.epsilon
    assert two.strategy.report.epsilon_at_sites(2) == two.strategy.report.epsilon
    assert "at one site" in report.meaning()
    assert "at 2 sites at most" in two.strategy.report.meaning()


@pytest.mark.skipif(PAPERS, reason="one strategy stands for all")
def test_persons_who_have_few_rows_count_for_less():
    strategy = strategy_of("private-kmeans", privacy_unit="subject", rows_per_subject=4)
    run = watched_run(strategy, Subject(strategy).data, seed=1)
    exchange = next(one for one in run.to_client(run.sites[0].name) if one.task == "row_count")
    (sent,) = run.sent(exchange.round)[run.sites[0].name]
    assert sent.values == run.data[run.sites[0].name].n_rows / 4


#: Columns whose bounds a run finds by quantiles.
FOUND = {name: {"kind": "number"} for name in "01"} | {"2": {"kind": "number", "bounds": [-1, 1]}}


@pytest.mark.skipif(PAPERS, reason="one strategy stands for all")
def test_a_person_of_20_rows_moves_quantiles_and_the_choice_of_a_number_no_more_than_declared():
    strategy = fc.PrivateKMeans((2, 3), epsilon=200.0, privacy_unit="subject")
    tables = [np.random.default_rng(seed).uniform(-1, 1, (25 + seed, 3)) for seed in range(3)]
    subject = Subject(fc.with_schema(strategy, {"columns": FOUND}), tables)
    hard = [*far_rows(tables[0])[:1], *extreme_rows(3)[1:2]]
    pairs = neighbor_tables(tables[0], hard, "subject", "add-or-remove")
    of_20 = [pair for pair in pairs if np.bincount(pair.owners).max() == 20]
    found = list(how_far(subject.run, subject.names[0], of_20))
    assert of_20
    assert not [
        f"{one.content}: {one.ratio} ({one.neighbors.description})"
        for one in found
        if one.is_too_far
    ]
    assert {"preparation"} < {one.release.share for one in found}
    assert any(one.task.endswith("histograms") and one.ratio > 0.3 for one in found)


@pytest.mark.skipif(PAPERS, reason="one strategy stands for all")
def test_a_person_of_20_rows_at_two_clients_is_covered_by_two_sites_for_each_subject():
    subject = Subject(strategy_of("private-kmeans", privacy_unit="subject", sites_per_subject=2))
    run, ratios = subject.run, []
    for row in extreme_rows(subject.n_columns)[1:4:2]:
        at = []
        for name in subject.names[:2]:
            rows = run.data[name].rows
            pairs = neighbor_tables(rows, [row], "subject", "add-or-remove")
            (pair,) = [one for one in pairs if np.bincount(one.owners).max() == 20][:1]
            at.append({(one.round, one.index): one for one in how_far(run, name, [pair])})
        for place in at[0].keys() & at[1].keys():
            moved = at[0][place].difference + at[1][place].difference
            ratios.append(ratio_of(moved, 0, at[0][place].release))
    assert ratios
    assert not any(is_too_far for _, is_too_far in ratios)
    assert max(ratio for ratio, _ in ratios) > 0.6  # more than a person at one site can move


@pytest.mark.skipif(PAPERS, reason="one strategy stands for all")
@pytest.mark.parametrize("noise", ["server", "clients", "local"])
def test_secure_sums_of_persons_have_the_bits_of_open_ones_and_of_records(noise):
    rng = np.random.default_rng(0)
    tables = {name: rng.normal(size=(60, 2)) for name in ("a", "b", "c")}
    options = {
        "n_clusters": 2,
        "epsilon": 20.0,
        "max_norm": 4.0,
        "n_rounds": 2,
        "noise": noise,
        "seed": 3,
        "progress": False,
    }

    def run(unit, each, *, secure):
        own = {
            name: ClientData(
                rows, owner=name, subjects=None if unit == "record" else np.arange(60) // each
            )
            for name, rows in tables.items()
        }
        result = fc.simulate(
            "federated-kmeans-private", own, privacy_unit=unit, secure=secure, **options
        )
        assert result.privacy.covers_everything
        return [array.tobytes() for array in result.model.to_arrays()]

    # Under masks, a client whose share is part of the noise adds a little more, in case that others drop out.
    assert (run("subject", 5, secure=True) == run("subject", 5, secure=False)) == (
        noise != "clients"
    )
    assert run("subject", 1, secure=True) == run("record", 1, secure=True)
    assert run("subject", 1, secure=False) == run("record", 1, secure=False)


@pytest.mark.skipif(PAPERS, reason="one strategy stands for all")
class TestWhoseRows:
    """Clients and servers that disagree about whom a run protects."""

    def rows(self, subjects):
        rng = np.random.default_rng(0)
        return {
            name: ClientData(rng.normal(size=(40, 4)), owner=f"client {name}", subjects=subjects)
            for name in ("a", "b")
        }

    def test_single_rows_of_persons_are_refused(self):
        with pytest.raises(ValueError, match="set privacy_unit to 'subject'"):
            fc.simulate(strategy_of("private-kmeans"), self.rows(np.arange(40) // 2))

    def test_persons_need_a_subject_column(self):
        with pytest.raises(ValueError, match="name the subject_column"):
            fc.simulate(strategy_of("private-kmeans", privacy_unit="subject"), self.rows(None))

    def test_a_client_decides_for_itself(self):
        strategy = strategy_of("private-kmeans", privacy_unit="subject")
        run = watched_run(strategy, self.rows(None), keeps_error=True)
        assert "nothing says which rows are one person's" in str(run.strategy.failures)
        run = watched_run(strategy_of("private-kmeans"), self.rows(np.arange(40)), keeps_error=True)
        assert "protects single rows" in str(run.strategy.failures)
