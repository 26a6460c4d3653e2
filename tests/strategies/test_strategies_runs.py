"""Whole runs of every strategy: totals computed again from all rows, rounds that a site misses, and more budget."""

import warnings
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import test_strategies_every as every
from sklearn.datasets import load_iris, load_wine
from tested import PAPERS

import flower_fedclust as fc
from flower_fedclust.checking import Subject, runs, small_tables
from flower_fedclust.engine import ProtocolError
from flower_fedclust.engine.by_row import ByRow, Finisher
from flower_fedclust.engine.rounds import Question, Sum

LONG = pytest.mark.long

#: Every class, in the way in which its first entry runs, and as it runs with noise at the server.
CASES = [
    case
    for case in every.cases()
    if case.partition(" ")[2] in ("", "many", "server-record", "server-client")
    and every.registry.find(case.partition(" ")[0]).strategy.entries[0].name
    == case.partition(" ")[0]
]


@cache
def without_noise(case):
    """Return a run whose noise is computed and paid for, and left out."""
    strategy = every.cases()[case]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr("flower_fedclust.engine.run.add_noise", lambda arrays, *_, **__: arrays)
        return Subject(strategy, *small_tables(strategy, n_columns=3)).run


def computed_again(run):
    """Yield the task of each sum by row, what the server got, and what one site with all rows would send."""
    rows = np.vstack([client.rows for client in run.data.values()])
    if getattr(run.strategy, "noise", "server") == "local":  # then every reply has noise of its own
        return
    for number, round_ in run.rounds.items():
        question = round_.question
        if not (
            isinstance(round_, Sum)
            and isinstance(question, Question)
            and isinstance(question.asks, ByRow)
        ):
            continue
        # Clipped by client.
        is_of_each = question.finish is not None or isinstance(question.asks, Finisher)
        if is_of_each or round_.rows or len(run.sent(number)) < len(run.data):
            continue
        exact = [
            np.ldexp(one.integers.astype(float), one.exponent)
            for one in question.asks.reply(question, rows)
        ]
        yield question.answer.task, list(run.received[number]), exact


@pytest.mark.parametrize("case", CASES)
def test_every_total_of_a_run_is_that_of_all_rows_at_one_site(case):
    for task, received, exact in computed_again(without_noise(case)):
        for one, other in zip(received, exact, strict=True):
            np.testing.assert_array_equal(
                np.asarray(one), other.reshape(np.shape(one)), err_msg=task
            )


def test_the_totals_of_most_strategies_are_among_them():
    found = {
        case.partition(" ")[0]
        for case in CASES
        if next(computed_again(without_noise(case)), None) is not None
    }
    wanted = {
        "private-kmeans",
        "private-mixture",
        "private-density",
        "federated-kmeans",
        "feddp-kmeans",
        "fedsc-sums",
    }
    assert PAPERS or wanted <= found


def silent_in(number):
    def tamper(current, honest):
        if current == number:
            raise TimeoutError("gone")
        return honest()

    return tamper


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case in every.OF_EACH_KIND else [pytest.mark.long])
        for case in CASES
    ],
)
def test_a_site_that_misses_each_round_in_turn_is_named_or_ends_the_run_in_a_sentence(case):
    strategy = every.cases()[case]
    subject = Subject(strategy, *small_tables(strategy, n_columns=3))
    victim = subject.names[1]
    missed = [number for number in subject.run.rounds if subject.run.sent(number).get(victim)]
    assert missed
    ended = {}
    for number in missed:
        try:
            run = runs.watched_run(
                strategy, subject.data, seed=runs.SEED, tamper={victim: silent_in(number)}
            )
        except (ProtocolError, ValueError) as error:
            ended[number] = str(error)
            continue
        assert run.strategy.is_finished
        named = [failure for failure in run.strategy.failures if failure.round == number]
        assert [failure.client for failure in named] == [victim] * len(named) != [], number
        assert all(np.isfinite(array).all() for array in run.result.model.to_arrays()), number
        # What is missing from a sum is the site's rows: the others' totals are those of a run in which it answers.
        if (asked := run.rounds.get(number)) is not None and isinstance(asked, Sum):
            assert set(run.sent(number)) - {victim} == set(subject.run.sent(number)) - {victim}
    assert [said for said in ended.values() if not said.endswith(".") or "\n" in said] == []


def iris():
    return load_iris().data - load_iris().data.mean(axis=0)


def wine():
    rows = load_wine().data
    return (rows - rows.mean(axis=0)) / rows.std(axis=0)


def blobs():
    rng = np.random.default_rng(0)
    return 4.0 * rng.normal(size=(6, 5))[rng.integers(6, size=900)] + rng.normal(size=(900, 5))


TABLES = {"iris": iris, "wine": wine, "blobs": blobs}


def cost(make, rows, k, epsilon, seeds):
    """Return the mean over seeds of the k-means cost, or of a mixture's perplexity, which it is fitted for."""
    max_norm = float(np.linalg.norm(rows, axis=1).max())
    found = []
    for seed in seeds:
        result = fc.simulate(
            make(k, epsilon=epsilon, max_norm=max_norm), np.array_split(rows, 3), seed=seed
        )
        if make is fc.PrivateMixture:
            found.append(np.exp(-result.model.score_samples(rows).mean()))
            continue
        labels = np.concatenate(result.labels)
        means = np.array([rows[labels == label].mean(axis=0) for label in np.unique(labels)])
        found.append(np.min(((rows[:, None] - means) ** 2).sum(axis=2), axis=1).sum())
    return float(np.mean(found))


@pytest.mark.skipif(PAPERS, reason="of the core's strategies")
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
@pytest.mark.parametrize("k", [3, pytest.param(6, marks=LONG)])
@pytest.mark.parametrize(
    "table", ["blobs", *(pytest.param(name, marks=pytest.mark.long) for name in ("iris", "wine"))]
)
@pytest.mark.parametrize(
    "make",
    [
        fc.PrivateKMeans,
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in (fc.PrivateMixture, fc.PrivateDensity)
        ),
    ],
)
def test_more_epsilon_is_not_worse(make, table, k):
    """The mean cost over seeds of the clusters that are found, at budgets that differ by the factor of ten."""
    costs = [cost(make, TABLES[table](), k, epsilon, range(2)) for epsilon in (0.3, 3.0, 30.0)]
    for less, more in pairwise(costs):
        assert more <= 1.05 * less, costs
