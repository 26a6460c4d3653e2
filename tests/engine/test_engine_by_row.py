"""Answers by row: the same bits in any batches and any order, paid for by the parts that a strategy names."""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from engine_toys import Toy, ToyClient, proxies_of, serve
from tested import PAPERS

import flower_fedclust as fc
from flower_fedclust import authoring
from flower_fedclust.checking import Subject, far_rows, small_tables
from flower_fedclust.engine import ProtocolError, Sum
from flower_fedclust.engine import by_row as engine
from flower_fedclust.engine.by_row import ByRow
from flower_fedclust.engine.parts import release_of
from flower_fedclust.engine.replies import check_capacity, largest_in_sum
from flower_fedclust.engine.rounds import Question
from flower_fedclust.exact import terms
from flower_fedclust.exact.terms import Bound, enforced
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.privacy.noise import noise_exponent
from flower_fedclust.privacy.releases import Release

sys.path.insert(0, str(Path(__file__).parents[1] / "strategies"))

from test_strategies_every import PUBLIC, cases, first_with_these_clients

#: Rows of a batch.
SIZES = (1, 7)


def bits(question, rows, size=None):
    """Return what a client with these rows answers, computed in batches of so many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "BATCH_ENTRIES", (size or len(rows)) * rows.shape[1])
        return [
            (array.exponent, array.integers.tobytes())
            for array in question.asks.reply(question, rows)
        ]


def depends_on(question, rows):
    """Return what an answer depends on that it must not depend on."""
    expected = bits(question, rows)
    found = [f"batches of {size}" for size in SIZES if bits(question, rows, size) != expected]
    shuffled = np.random.default_rng(0).permutation(rows)
    return found + ["the order of the rows"] * (bits(question, shuffled) != expected)


# Of every strategy.

FEDDP = {"n_clusters": 3, "server_data": PUBLIC, "n_rounds": 1}
#: Options that ask what no example asks.
MORE = {}
if PAPERS:
    MORE = {
        "feddp-kmeans margin": fc.FedDPKMeansProofs(**FEDDP),
        "feddp-kmeans margin client": fc.FedDPKMeansProofs(
            **FEDDP,
            epsilon=8.0,
            privacy_unit="client",
            simplify_server_data=False,
            reduce_diameter=False,
        ),
        "ffcm-private merged": fc.PrivateFFCM(
            3, max_norm=3.0, epsilon=8.0, merge="k-means", noise="local"
        ),
        "pe-means projected": fc.PEMeans(3, max_norm=3.0, epsilon=8.0, n_rounds=2, n_directions=2),
    }
#: The questions do not depend on who adds the noise.
VARIANTS = ("", "without", "server-record", "server-client", "many", "diag")


def answers_by_row(kind):
    """Return the names of a client's own answers by row, without the answers about tables that every client has."""
    return {name for name in dir(kind) if isinstance(getattr(kind, name, None), ByRow)} - set(
        dir(authoring.ProtocolClient)
    )


def has_answers_by_row(strategy):
    kind = strategy.client_type
    return bool(answers_by_row(kind))


STRATEGIES = {
    case: strategy
    for case, strategy in cases().items()
    # SPP-FGC+ has the answers of others, asks none of them, and takes long.
    if case.partition(" ")[2] in VARIANTS
    and has_answers_by_row(strategy)
    and strategy.name != "spp-fgc-plus"
} | MORE


@cache
def asked(case, n_columns):
    """Return the questions by row that a run asks, the first and the last of each, and rows to answer them from."""
    strategy = STRATEGIES[case]
    n_columns = strategy.expected_columns or n_columns
    subject = Subject(strategy, *small_tables(strategy, n_columns=n_columns))
    rows = np.vstack([*subject.rows, *(row[None] for _, row in far_rows(subject.rows[0]))])
    found = {}
    for round_ in subject.run.rounds.values():
        questions = (
            [round_.question] if isinstance(round_.question, Question) else round_.question.values()
        )
        for question in questions:
            if isinstance(question.asks, ByRow) and not round_.rows:
                first, _ = found.setdefault(question.answer, (question, question))
                found[question.answer] = first, question
    return [question for pair in found.values() for question in pair], rows


def is_asked_by_others(case):
    """Whether another case asks the same: a strategy with the same clients, or one that protects records."""
    name, _, variant = case.partition(" ")
    return case not in MORE and (
        first_with_these_clients(name) != name or variant == "server-client"
    )


WITH_LONG = [
    pytest.param(case, marks=[pytest.mark.long] if is_asked_by_others(case) and not PAPERS else [])
    for case in STRATEGIES
]


@pytest.mark.filterwarnings("ignore:.* clusters where n_clusters is 3:RuntimeWarning")
@pytest.mark.parametrize("case", WITH_LONG)
def test_an_answer_by_row_depends_neither_on_batches_nor_on_the_order_of_rows(case):
    questions, rows = asked(case, 3)
    assert [
        (question.answer.task, found)
        for question in questions
        if (found := depends_on(question, rows))
    ] == []


@pytest.mark.filterwarnings("ignore:.* clusters where n_clusters is 3:RuntimeWarning")
@pytest.mark.parametrize("case", WITH_LONG)
def test_many_clients_at_once_answer_what_each_answers_alone(case):
    questions, rows = asked(case, 3)
    parts = np.split(rows, [1, 2, 12, 22])
    for question in questions:
        together = question.asks.replies_of_many(question, parts)
        alone = [question.asks.reply(question, part) for part in parts]
        for index, array in enumerate(together):
            assert [array.exponent] * len(parts) == [one[index].exponent for one in alone]
            assert np.array_equal(array.integers, [one[index].integers for one in alone]), (
                question.answer.task
            )


ANY_COLUMNS = [case for case, strategy in STRATEGIES.items() if strategy.expected_columns is None]


@pytest.mark.long
@pytest.mark.parametrize("case", ANY_COLUMNS)
def test_the_same_holds_for_rows_of_500_columns(case):
    questions, rows = asked(case, 500)
    assert [
        (question.answer.task, found)
        for question in questions
        if (found := depends_on(question, rows))
    ] == []


@pytest.mark.long
def test_these_runs_ask_for_every_answer_by_row():
    runs = [(case, 3) for case in STRATEGIES] + [(case, 500) for case in ANY_COLUMNS]
    seen = {question.asks.function.__name__ for run in runs for question in asked(*run)[0]}
    kinds = {strategy.client_type for strategy in STRATEGIES.values()}
    assert seen == set().union(*map(answers_by_row, kinds))


# Planted faults.

FRAME = authoring.Frame(np.array([0.3, -0.1]), 4.0)
ROWS = np.random.default_rng(0).normal(size=(100, 2)) * 3.0


class MixingClient(authoring.FrameClient):
    """What a row adds depends on other rows of the batch, but for the first answer."""

    @authoring.by_row(array="sum of the rows")
    def sound(rows):
        return authoring.total(rows)

    @authoring.by_row(array="sum of the rows less their mean")
    def less_the_mean(rows):
        mean = rows.values.mean(axis=0) if len(rows) else 0.0
        return authoring.vectors(rows.values - mean, rows.radius)

    @authoring.by_row(array="sum of the rows, rounded as a whole")
    def rounded_together(rows):
        whole = terms.total(rows)
        return enforced(
            np.trunc(whole.integers / 3.0).astype(np.int64), *whole.form[1:], whole.n_rows
        )

    @authoring.by_row(array="number of rows at the beginning of a batch")
    def first_rows(rows):
        return authoring.at(np.where(np.arange(len(rows)) == 0, 0, -1), 1)

    @authoring.by_row(array="sum of the rows that lie beyond the first")
    def beyond_the_first(rows):
        return authoring.at(np.where(rows.integers[:, 0] > rows.integers[:1, 0], 0, -1), 1, rows)


def test_a_sound_answer_depends_on_nothing_else():
    assert depends_on(MixingClient.sound.asked(frame=FRAME), ROWS) == []


@pytest.mark.parametrize(
    "fault", ["less_the_mean", "rounded_together", "first_rows", "beyond_the_first"]
)
def test_an_answer_in_which_rows_are_mixed_is_found(fault):
    found = depends_on(getattr(MixingClient, fault).asked(frame=FRAME), ROWS)
    assert {"batches of 1", "batches of 7"} <= set(found)


# The parts that pay.


class PaidClient(authoring.FrameClient):
    @authoring.by_row(sums="sum of the rows", counts="number of rows")
    def sums(rows):
        return authoring.total(rows), authoring.count(rows)

    @authoring.by_row(squares="sum of the squares of the rows")
    def squares(rows):
        return authoring.squares(rows)

    @authoring.by_row(products="sum of the products of the rows")
    def products(rows):
        return authoring.products(rows)


class Paying(authoring.ClippedStrategy):
    """Asks what it is told to ask, paid for by what it is told."""

    client_type = PaidClient
    rounds = ()  #: The questions, and the parts that pay for each.

    @property
    def n_protocol_rounds(self):
        return len(self.rounds)

    def parts(self):
        return {
            "sums": authoring.Part(PaidClient.sums, 0.5),
            "counts": authoring.Part(PaidClient.sums, 0.25, mechanism="laplace"),
            "products": authoring.Part(PaidClient.products, 0.25, mechanism="laplace"),
        }

    def protocol(self):
        for question, parts in self.rounds:
            yield authoring.Sum(question, parts=parts)
        return authoring.KMeansModel(np.eye(2))


SUMS = (PaidClient.sums.asked(frame=FRAME), ("sums", "counts"))


def ended(rounds, match):
    """Return how many releases had left when a run ended that pays for its rounds in a wrong way."""
    strategy = Paying(2, epsilon=1.0, max_norm=4.0)
    strategy.rounds = rounds
    with pytest.raises(ProtocolError, match=match) as caught:
        fc.simulate(strategy, [ROWS[:40], ROWS[40:]], seed=0)
    return len(caught.value.privacy_report.releases)


@pytest.mark.parametrize(
    ("question", "parts", "match"),
    [
        (
            PaidClient.squares.asked(frame=FRAME),
            ("sums",),
            "'sums' of the budget does not pay for 'squares'",
        ),
        (SUMS[0], ("sums", "sums"), "two arrays of a round name one part"),
        (SUMS[0], ("sum", "counts"), "part 'sum', which is not in the run's plan"),
        (SUMS[0], ("sums",), "nothing bounds what it sends"),
        (
            PaidClient.products.asked(frame=FRAME),
            ("products",),
            "nothing bounds how much one record",
        ),
        (
            {
                name: PaidClient.sums.asked(frame=authoring.Frame(np.zeros(2), 1.0 + int(name)))
                for name in "01"
            },
            ("sums", "counts"),
            "has other bounds for some clients",
        ),
    ],
    ids=[
        "another answer",
        "twice in a round",
        "no such part",
        "too few parts",
        "no bound",
        "a bound for each client",
    ],
)
def test_what_no_part_pays_for_is_not_asked(question, parts, match):
    assert ended([(question, parts)], match) == 0


def test_a_part_is_used_no_more_often_than_it_says():
    assert ended([SUMS, SUMS], "'sums'") == 2


@pytest.mark.parametrize(
    ("mechanism", "relation", "unit", "bound"),
    [
        ("gaussian", "add-or-remove", "record", 2.0),
        ("gaussian", "replace", "record", 3.0),
        ("gaussian", "add-or-remove", "client", 5.0),
        ("gaussian", "replace", "client", 10.0),
        ("laplace", "add-or-remove", "record", 2.5),
        ("laplace", "replace", "record", 5.0),
    ],
)
def test_a_release_has_the_noise_and_the_name_of_its_part(mechanism, relation, unit, bound):
    moved = Bound(2.0, 2.5, apart=3.0, of_client=5.0)
    release = release_of(moved, "counts", Share(mechanism, 1.0, relation=relation), 3.0, unit)
    assert (release.mechanism, release.relation, release.share) == (mechanism, relation, "counts")
    assert release.noise_multiplier == 3.0
    # Never below the bound, whose factors may have been rounded down.
    assert bound < release.sensitivity < bound * (1 + 1e-14)


def test_noise_for_clients_needs_a_bound_for_clients():
    with pytest.raises(ProtocolError, match="nothing bounds how much one client"):
        release_of(Bound(2.0, 2.5), "sums", Share("gaussian", 1.0), 3.0, "client")


# Capacity: no sum over clients, with its noise, exceeds 63 bits.


def test_a_sum_that_could_overflow_with_its_noise_is_refused_before_anybody_is_asked():
    class LoudClient(authoring.FrameClient):
        @authoring.by_row(sum="sum of the rows")
        def total(rows):
            return authoring.total(rows)

    question = LoudClient.total.asked(frame=authoring.Frame(np.zeros(2), 1.0))
    check_capacity(Sum(question), 2**37, 1)
    for n_clients, multiplier in [(2**39, 0.0), (3, 2.0**33)]:
        release = Release("gaussian", 1.0, multiplier, "")
        with pytest.raises(ProtocolError, match=r"'total' asks \d+ clients for sum of the rows"):
            check_capacity(Sum(question, releases=[release]), n_clients, 1)


@pytest.mark.parametrize("n_clients", [1, 3, 1000])
@pytest.mark.parametrize(
    ("multiplier", "exponent"), [(0.0, 0), (1e-3, 0), (1.0, 0), (2.0**40, 5), (2.0**70, 0)]
)
def test_the_largest_replies_and_noise_add_up_to_63_bits_at_most(n_clients, multiplier, exponent):
    release = Release("laplace", 1.0, multiplier, "") if multiplier else None
    largest = largest_in_sum(n_clients, exponent, release)
    finer = 0 if release is None else exponent - noise_exponent(release, 1, exponent)
    noise = 0 if release is None else 64 * release.scale * 2.0 ** (finer - exponent)
    assert n_clients * (largest << finer) + int(min(noise, 2.0**62)) < 2**63
    assert largest > 0 or noise > 2**62 / n_clients


def test_a_round_that_asks_nobody_is_an_error_that_names_it():
    with pytest.raises(ProtocolError, match="a round asks no client"):
        serve(
            Toy([Sum(ToyClient.moments.asked()), Sum({})]), proxies_of(ToyClient, [np.eye(2)] * 3)
        )
