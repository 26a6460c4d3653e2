"""`check_strategy` on a sound strategy, and on copies of it with one fault each."""

from dataclasses import replace

import numpy as np
import pytest

from flower_fedclust.checking import Check, Subject, check_strategy, neighbours, strategy_checks, watched_run
from flower_fedclust.checking.neighbours import how_far
from flower_fedclust.engine import (
    ClippedStrategy,
    DataError,
    Gather,
    GridArray,
    Protocol,
    ProtocolClient,
    Sent,
    Sum,
    answers,
    parameter,
)
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import ONE_COUNT, Moved
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.strategies.common.frame import enter

CHECKS = {check.name: check for check in strategy_checks()}


def totals(rows, max_norm):
    return enter(rows, np.zeros(rows.shape[1]), np.array([max_norm, 2.0])).total()


class MeansClient(ProtocolClient):
    """Answers about clipped rows."""

    @answers("sum of the rows", "number of rows", moved=lambda _, max_norm: (Moved(max_norm), ONE_COUNT))
    def sums(self, *, max_norm: float):
        return totals(self.rows, max_norm)

    @answers(Sent("the mean of the rows", "centers", has_columns=True))
    def own_mean(self):
        return self.rows.mean(axis=0)


class Means(ClippedStrategy):
    """Centers about the mean of all rows, in each of some rounds.

    Parameters
    ----------
    n_rounds : int, default=2
        How often the sums are asked for.
    epsilon : float, default=20.0
        The privacy budget of the whole run.
    max_norm : float, default=1.0
        To which rows are clipped.
    """

    client_type = MeansClient

    n_rounds: int = parameter(2, at_least=1)
    epsilon: float = parameter(20.0, above=0, at_most=1000)
    max_norm: float = parameter(1.0, above=0)

    @property
    def n_protocol_rounds(self) -> int:
        """As many as asked for."""
        return self.n_rounds

    def parts(self):
        """Return half of the budget for each array."""
        answer = self.client_type.sums
        return {"sums": Part(answer, 0.5, self.n_rounds), "counts": Part(answer, 0.5, self.n_rounds, "laplace")}

    def ask(self):
        """Return a round."""
        return Sum(self.client_type.sums.asked(max_norm=self.max_norm), parts=["sums", "counts"])

    def protocol(self) -> Protocol:
        """Ask and divide."""
        for _ in range(self.n_rounds):
            sums, counts = yield self.ask()
        mean = clip_rows((sums / max(float(counts), 1.0))[None], self.max_norm)[0]
        directions = self.rng.normal(size=(self.n_clusters, self.n_columns))
        return KMeansModel(mean + 0.1 * directions)


# The suite.


def test_a_sound_strategy_passes_every_check():
    strategy = Means(3)
    check_strategy(strategy, skip={"metrics_of_extreme_values_are_finite"})
    assert strategy._run is None


def test_tables_and_labels_may_be_given():
    rows = [np.random.default_rng(index).normal(size=(9 + index, 2)) for index in range(3)]
    subject = Subject(Means(2), rows, [np.arange(len(part)) % 2 for part in rows])
    assert [part.shape for part in subject.rows] == [(9, 2), (10, 2), (11, 2)]
    assert "nmi" in subject.run.result.metrics
    CHECKS["every_number_is_finite"](subject)


def test_every_check_has_a_name_and_a_promise():
    assert all(isinstance(check, Check) and check.promise.endswith(".") for check in CHECKS.values())
    assert len(CHECKS) == len(strategy_checks()) > 30


def test_a_check_that_does_not_exist_cannot_be_left_out():
    with pytest.raises(ValueError, match="There is no check 'a_clone': did you mean 'a_clone_has_the_same_parameters'"):
        check_strategy(Means(3), skip={"a_clone"})


def test_a_broken_promise_is_one_sentence_that_begins_with_the_name_of_the_check():
    class TooFew(Means):
        n_protocol_rounds = 1

    with pytest.raises(AssertionError) as caught:
        check_strategy(TooFew(3))
    assert str(caught.value).count("\n") == 0
    name, _, found = str(caught.value).partition(": ")
    assert name in CHECKS
    assert found.endswith(".")


# Planted faults: each is found by the check that is about it.


def client(method):
    """Return a client whose "sums" are another method."""
    method.answer = replace(method.answer, task="sums")
    return type("Changed", (MeansClient,), {"sums": method})


#: Marks a method that claims the bounds of the sound one.
as_bounded = answers("sum of the rows", "number of rows", moved=MeansClient.sums.moved)


def strategy(**attributes):
    """Return a class of sound strategies with other attributes."""
    return type("Changed", (Means,), {"__doc__": "Changed.", "__annotations__": {}, "seen": [], **attributes})


@as_bounded
def unclipped(self, *, max_norm):
    return totals(self.rows, 1e3 * max_norm)


@as_bounded
def counted_twice(self, *, max_norm):
    sums, counts = totals(self.rows, max_norm)
    return sums, GridArray(2 * counts.integers)


@as_bounded
def clipped_after_the_sum(self, *, max_norm):
    return GridArray.clipped(self.rows.sum(axis=0), 10 * max_norm), np.array(len(self.rows))


@as_bounded
def quoting(self, *, max_norm):
    if len(self.rows) == 1:
        raise DataError(f"{self.name} has one row, which begins with {self.rows[0, 0]:.5f}.")
    return totals(self.rows, max_norm)


@as_bounded
def careless_with_rows(self, *, max_norm):
    self.data.rows[0, 0] += 1e-3
    return totals(self.rows, max_norm)


@as_bounded
def random_itself(self, *, max_norm):
    jitter = np.random.default_rng().normal(size=self.rows.shape[1]) * 1e-3
    return totals(self.rows + jitter, max_norm)


class Loud(MeansClient):
    """Says how many rows it has."""

    def fit(self, parameters, config):
        arrays, _, facts = super().fit(parameters, config)
        return arrays, len(self.rows), facts


class Talkative(MeansClient):
    """Says how it feels."""

    def fit(self, parameters, config):
        arrays, n_examples, facts = super().fit(parameters, config)
        return arrays, n_examples, facts | {"longest": 1.0}


@answers("sum of the rows", "number of rows", moved=lambda _, max_norm: (Moved(max_norm / 2), ONE_COUNT))
def understated(self, *, max_norm):
    return totals(self.rows, max_norm)


def half_noise(self, round_):
    whole = Means.with_noise(self, round_)
    halves = [replace(one, noise_multiplier=one.noise_multiplier / 2) for one in whole.releases]
    return replace(whole, releases=halves)


def one_part_for_both(self):
    return Sum(MeansClient.sums.asked(max_norm=self.max_norm), parts=["sums", "sums"])


def gathered(self):
    replies = yield Gather(MeansClient.own_mean.asked())
    return KMeansModel(np.concatenate([[reply.arrays[0]] for reply in replies])[: self.n_clusters])


def infinite(self):
    yield self.ask()
    model = KMeansModel(np.zeros((self.n_clusters, self.n_columns)))
    model.cluster_centers_ = np.full((self.n_clusters, self.n_columns), np.inf)
    return model


def by_luck(self):
    sums, counts = yield self.ask()
    return KMeansModel(sums / counts + 0.1 * np.random.default_rng().normal(size=(self.n_clusters, self.n_columns)))


def three_rounds(self):
    for _ in range(3):
        yield self.ask()
    return KMeansModel(np.eye(self.n_clusters, self.n_columns))


def remembering(self):
    yield self.ask()
    self.seen.append(1)
    return KMeansModel(np.eye(self.n_clusters, self.n_columns) + len(self.seen))


def unchecked(self):
    pass


FAULTS = {
    "unclipped": ({"client_type": client(unclipped)}, "no_neighbour_moves_a_release_too_far"),
    "counted twice": ({"client_type": client(counted_twice)}, "no_neighbour_moves_a_release_too_far"),
    "clipped late": ({"client_type": client(clipped_after_the_sum)}, "no_neighbour_moves_a_release_too_far"),
    "half the bound": ({"client_type": client(understated)}, "no_neighbour_moves_a_release_too_far"),
    "half the noise": ({"with_noise": half_noise}, "epsilon_is_spent_and_not_exceeded"),
    "another's part": ({"ask": one_part_for_both}, "the_budget_can_be_divided_by_name"),
    "no part": ({"parts": lambda self: {}}, "epsilon_is_spent_and_not_exceeded"),
    "a value quoted": ({"client_type": client(quoting)}, "rows_that_are_few_or_equal_are_survived"),
    "rows changed": ({"client_type": client(careless_with_rows)}, "the_rows_are_left_as_they_are"),
    "unseeded": ({"client_type": client(random_itself)}, "a_seed_repeats_every_bit"),
    "unseeded server": ({"protocol": by_luck}, "a_seed_repeats_every_bit"),
    "remembering": ({"protocol": remembering}, "a_seed_repeats_every_bit"),
    "number of rows": ({"client_type": Loud}, "all_that_leaves_is_declared_and_reported"),
    "a metric": ({"client_type": Talkative}, "all_that_leaves_is_declared_and_reported"),
    "infinite": ({"protocol": infinite}, "every_number_is_finite"),
    "a round too many": ({"protocol": three_rounds}, "the_number_of_rounds_is_enough"),
    "unchecked": ({"check_parameters": unchecked}, "a_bad_value_is_refused_by_name"),
    "undocumented": (
        {"tol": parameter(0.0), "__annotations__": {"tol": float}},
        "every_parameter_is_documented",
    ),
    "another default": (
        {"n_rounds": parameter(3), "__annotations__": {"n_rounds": int}},
        "every_parameter_is_documented",
    ),
    "by position": (
        {"tol": parameter(0.0, kw_only=False), "__annotations__": {"tol": float}},
        "the_signature_is_the_parameters",
    ),
}


@pytest.mark.parametrize(("attributes", "check"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found(attributes, check):
    with pytest.raises(AssertionError, match=f"^{check}: .*[.]$"):
        CHECKS[check](Subject(strategy(**attributes)(3)))


def test_consent_finds_what_is_not_a_sum():
    class Gathering(Means):
        """Gathers means, and says that they are sums."""

        n_protocol_rounds = 1
        protocol = gathered

    subject = Subject(Gathering(3, epsilon=20.0))
    CHECKS["a_site_that_allows_sums_alone_sends_nothing_else"](subject)  # it is refused, by name
    with pytest.raises(AssertionError, match="epsilon is 20 and no message carries noise"):
        CHECKS["epsilon_is_spent_and_not_exceeded"](subject)


def test_an_entry_for_every_row_must_say_so():
    class Rows(MeansClient):
        @answers(Sent("all rows", has_columns=True))
        def own_mean(self):
            return self.rows

    class Sending(Means):
        """Sends rows, and says that they are sums."""

        client_type = Rows
        n_protocol_rounds = 1

        def protocol(self):
            replies = yield Gather(Rows.own_mean.asked())
            return KMeansModel(replies[0].arrays[0][: self.n_clusters])

    with pytest.raises(AssertionError, match=r"'all rows' has .* rows of the client, and is said to reveal sums"):
        CHECKS["what_has_an_entry_for_every_row_is_no_sum"](Subject(Sending(3)))


@pytest.mark.parametrize("noise", ["server", "clients", "local"])
def test_noise_of_another_width_is_found_wherever_it_is_drawn(noise, monkeypatch):
    import flower_fedclust.privacy.noise as module

    drawn = module.sample_gaussian_share
    subject = Subject(Means(3, noise=noise))
    CHECKS["noise_has_its_declared_scale"](subject)
    monkeypatch.setattr(module, "sample_gaussian_share", lambda scale, *others: drawn(scale / np.sqrt(2), *others))
    with pytest.raises(AssertionError, match=r"is 0\.\d+ times what is declared"):
        CHECKS["noise_has_its_declared_scale"](subject)


def test_noise_from_random_state_is_found(monkeypatch):
    from flower_fedclust.engine.run import Run
    from flower_fedclust.privacy.noise import SeededNoise

    subject = Subject(Means(3))
    for name in ("noise_that_protects_is_never_repeated", "random_state_never_reaches_the_noise"):
        CHECKS[name](subject)
    monkeypatch.setattr(Run, "_noise", lambda self, number: SeededNoise([self.settings.random_state, number]))
    for name in ("noise_that_protects_is_never_repeated", "random_state_never_reaches_the_noise"):
        with pytest.raises(AssertionError, match=name):
            CHECKS[name](Subject(Means(3)))


def test_what_a_neighbour_moves_is_measured_exactly():
    subject = Subject(Means(3, n_rounds=1))
    far = np.array([9.0, 0.0, 0.0, 0.0])
    pairs = neighbours(subject.rows[0], [("a long row", far)], "record", "add-or-remove")
    assert len(pairs) == 4
    found = [moved.ratio for moved in how_far(subject.run, "site-b", pairs[:1])]
    assert found == pytest.approx([1.0, 1.0])
    assert not any(moved.is_too_far for moved in how_far(subject.run, "site-b", pairs))
    halves = Subject(strategy(client_type=client(understated))(3, n_rounds=1))
    assert max(moved.ratio for moved in how_far(halves.run, "site-b", pairs)) == pytest.approx(2.0)


def test_at_client_level_all_that_a_client_sends_is_measured():
    subject = Subject(Means(3, n_rounds=1))
    pairs = neighbours(subject.rows[0], [("a long row", np.full(4, 9.0))], "client", "add-or-remove")
    ratios = [moved.ratio for moved in how_far(subject.run, "site-b", pairs)]
    assert max(ratios) == pytest.approx(25.0)


def test_a_watched_run_is_the_run_of_simulate():
    from flower_fedclust.simulation import simulate

    subject = Subject(Means(3))
    run = watched_run(subject.strategy, subject.data, seed=5)
    result = simulate(subject.strategy, subject.rows, names=subject.names, seed=5)
    assert np.array_equal(run.result.model.cluster_centers_, result.model.cluster_centers_)
    assert run.result.traffic == result.traffic
    assert list(run.rounds) == list(run.received) == [2, 3]
    assert [len(run.sent(number)) for number in run.rounds] == [3, 3]
