"""`check_strategy` on a sound strategy, and on copies of it with one fault each."""

from dataclasses import replace

import numpy as np
import pytest
from checking_toys import Means, MeansClient, changed, with_method

import flower_fedclust.privacy.noise as noise_module
from flower_fedclust.checking import (
    Check,
    Subject,
    check_strategy,
    how_far,
    neighbor_tables,
    strategy_checks,
    watched_run,
)
from flower_fedclust.engine import DataError, Gather, GridArray, Sent, parameter
from flower_fedclust.engine.rounds import Askable
from flower_fedclust.engine.run import Run
from flower_fedclust.exact.terms import ONE_COUNT, Bound
from flower_fedclust.models import KMeansModel
from flower_fedclust.privacy.noise import SeededNoise
from flower_fedclust.simulation import simulate

CHECKS = {check.name: check for check in strategy_checks()}


# The suite.


@pytest.mark.long
def test_a_sound_strategy_passes_every_check():
    strategy = Means(3)
    check_strategy(strategy)
    assert strategy._run is None


def test_tables_and_labels_may_be_given():
    rows = [np.random.default_rng(index).normal(size=(9 + index, 2)) for index in range(3)]
    subject = Subject(Means(2), rows, [np.arange(len(part)) % 2 for part in rows])
    assert [part.shape for part in subject.rows] == [(9, 2), (10, 2), (11, 2)]
    assert "nmi" in subject.run.result.metrics
    CHECKS["every_number_is_finite"](subject)


def test_every_check_has_a_promise():
    assert all(
        isinstance(check, Check) and check.promise.endswith(".") for check in CHECKS.values()
    )
    assert len(CHECKS) == len(strategy_checks()) > 30


def test_skipping_an_unknown_check_is_an_error():
    with pytest.raises(ValueError, match="a_clone_has_the_same_parameters"):
        check_strategy(Means(3), skip={"a_clone"})


def test_a_broken_promise_is_one_sentence_that_begins_with_the_name_of_the_check():
    with pytest.raises(AssertionError) as caught:
        check_strategy(changed(n_protocol_rounds=1)(3))
    name, _, found = str(caught.value).partition(": ")
    assert name in CHECKS
    assert found.endswith(".")
    assert "\n" not in found


# Planted faults: each is found by the check that is about it.


def client(method, *, moved=None):
    """Return attributes: a client whose "sums" are another method."""
    return {"client_type": with_method("sums", method, moved=moved).client_type}


def unclipped(self, *, max_norm):
    return self._rows(1e3 * max_norm).total()


def counted_twice(self, *, max_norm):
    sums, counts = self._rows(max_norm).total()
    return sums, GridArray(2 * counts.integers)


def clipped_after_the_sum(self, *, max_norm):
    return GridArray.clipped(self.rows.sum(axis=0), 10 * max_norm), np.array(len(self.rows))


def sound(self, *, max_norm):
    return self._rows(max_norm).total()


def half(_, *, max_norm):
    return Bound(max_norm / 2), ONE_COUNT


def quoting(self, *, max_norm):
    if len(self.rows) == 1:
        raise DataError(f"{self.name} has one row, which begins with {self.rows[0, 0]:.5f}.")
    return self._rows(max_norm).total()


def changing_rows(self, *, max_norm):
    self.data.rows[0, 0] += 1e-3
    return self._rows(max_norm).total()


def unseeded(self, *, max_norm):
    return self._rows(max_norm, shift=1e-3 * np.random.default_rng().normal()).total()


class Loud(MeansClient):
    """Tells how many rows it has."""

    def fit(self, parameters, config):
        arrays, _, facts = super().fit(parameters, config)
        return arrays, len(self.rows), facts


class Talkative(MeansClient):
    """Sends a metric."""

    def fit(self, parameters, config):
        arrays, n_examples, facts = super().fit(parameters, config)
        return arrays, n_examples, facts | {"longest": 1.0}


def half_noise(self, round_):
    whole = Means.with_noise(self, round_)
    halves = [replace(one, noise_multiplier=one.noise_multiplier / 2) for one in whole.releases]
    return replace(whole, releases=halves)


def infinite(self):
    yield self.ask()
    model = KMeansModel(np.zeros((self.n_clusters, self.n_columns)))
    model.cluster_centers_ = np.full((self.n_clusters, self.n_columns), np.inf)
    return model


def unseeded_server(self):
    yield self.ask()
    return KMeansModel(np.random.default_rng().normal(size=(self.n_clusters, self.n_columns)))


def three_rounds(self):
    for _ in range(3):
        yield self.ask()
    return KMeansModel(np.eye(self.n_clusters, self.n_columns))


def remembering(self):
    yield self.ask()
    self.seen.append(1)
    return KMeansModel(np.eye(self.n_clusters, self.n_columns) + len(self.seen))


TOO_FAR = "no_neighbor_moves_a_release_too_far"
FAULTS = {
    "unclipped": (client(unclipped), TOO_FAR),
    "counted twice": (client(counted_twice), TOO_FAR),
    "clipped late": (client(clipped_after_the_sum), TOO_FAR),
    "half the bound": (client(sound, moved=half), TOO_FAR),
    "half the noise": ({"with_noise": half_noise}, "epsilon_is_spent_and_not_exceeded"),
    "another's part": ({"paid_by": ("sums", "sums")}, "the_budget_can_be_divided_by_name"),
    "no part": ({"parts": lambda self: {}}, "epsilon_is_spent_and_not_exceeded"),
    "a value quoted": (client(quoting), "rows_that_are_few_or_equal_are_survived"),
    "rows changed": (client(changing_rows), "the_rows_are_left_as_they_are"),
    "unseeded": (client(unseeded), "a_seed_repeats_every_bit"),
    "unseeded server": ({"protocol": unseeded_server}, "a_seed_repeats_every_bit"),
    "remembering": ({"protocol": remembering, "seen": []}, "a_seed_repeats_every_bit"),
    "number of rows": ({"client_type": Loud}, "all_that_leaves_is_declared_and_reported"),
    "a metric": ({"client_type": Talkative}, "all_that_leaves_is_declared_and_reported"),
    "infinite": ({"protocol": infinite}, "every_number_is_finite"),
    "a round too many": ({"protocol": three_rounds}, "the_number_of_rounds_is_enough"),
    "unchecked": ({"check_parameters": lambda self: None}, "a_bad_value_is_refused_by_name"),
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


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("attributes", "check"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found(attributes, check):
    with pytest.raises(AssertionError, match=f"^{check}: .*[.]$"):
        CHECKS[check](Subject(changed(**attributes)(3)))


def gathering(sent, method):
    """Return a strategy that gathers one array without noise, and its client."""
    method.__name__ = "own"
    own = Askable(method, (sent,))

    def protocol(self):
        replies = yield Gather(own.asked())
        return KMeansModel(
            np.concatenate([reply.arrays[0] for reply in replies])[: self.n_clusters]
        )

    kind = type("Client", (MeansClient,), {"own": own})
    return changed(client_type=kind, protocol=protocol, n_protocol_rounds=1)


def test_consent_finds_what_is_not_a_sum():
    kind = gathering(
        Sent("the mean of the rows", "centers"), lambda self: self.rows.mean(axis=0, keepdims=True)
    )
    subject = Subject(kind(3))
    CHECKS["a_site_that_allows_sums_alone_sends_nothing_else"](subject)  # it is refused, by name
    with pytest.raises(AssertionError, match="no message carries noise"):
        CHECKS["epsilon_is_spent_and_not_exceeded"](subject)


def test_an_entry_for_every_row_must_say_so():
    kind = gathering(Sent("all rows", has_columns=True), lambda self: self.rows)
    with pytest.raises(AssertionError, match="all rows"):
        CHECKS["what_has_an_entry_for_every_row_is_no_sum"](Subject(kind(3)))


@pytest.mark.parametrize("noise", ["server", "clients", "local"])
def test_noise_of_another_width_is_found_wherever_it_is_drawn(noise, monkeypatch):
    drawn = noise_module.sample_gaussian_share
    subject = Subject(Means(3, noise=noise))
    CHECKS["noise_has_its_declared_scale"](subject)
    monkeypatch.setattr(
        noise_module, "sample_gaussian_share", lambda scale, *rest: drawn(scale / np.sqrt(2), *rest)
    )
    with pytest.raises(AssertionError, match=r"is 0\.\d+ times as wide as declared"):
        CHECKS["noise_has_its_declared_scale"](subject)


def test_noise_from_random_state_is_found(monkeypatch):
    check = CHECKS["noise_that_protects_is_never_repeated"]
    check(Subject(Means(3)))
    monkeypatch.setattr(
        Run, "_noise", lambda self: SeededNoise([self.settings.random_state, self.number])
    )
    with pytest.raises(AssertionError, match="random_state"):
        check(Subject(Means(3)))


def test_what_a_neighbor_moves_is_measured_exactly():
    subject, halves = (
        Subject(Means(3, n_rounds=1)),
        Subject(changed(**client(sound, moved=half))(3, n_rounds=1)),
    )
    pairs = neighbor_tables(
        subject.rows[0], [("a long row", np.eye(4)[0] * 9)], "record", "add-or-remove"
    )
    assert len(pairs) == 4
    assert [change.ratio for change in how_far(subject.run, "site-b", pairs[:1])] == pytest.approx(
        [1.0, 1.0]
    )
    assert not any(change.is_too_far for change in how_far(subject.run, "site-b", pairs))
    assert max(change.ratio for change in how_far(halves.run, "site-b", pairs)) == pytest.approx(
        2.0
    )


def test_at_client_level_all_that_a_client_sends_is_measured():
    subject = Subject(Means(3, n_rounds=1))
    pairs = neighbor_tables(
        subject.rows[0], [("a long row", np.full(4, 9.0))], "client", "add-or-remove"
    )
    assert max(change.ratio for change in how_far(subject.run, "site-b", pairs)) == pytest.approx(
        25.0
    )


def test_a_watched_run_is_the_run_of_simulate():
    subject = Subject(Means(3))
    run = watched_run(subject.strategy, subject.data, seed=5)
    result = simulate(subject.strategy, subject.rows, names=subject.names, seed=5)
    assert np.array_equal(run.result.model.cluster_centers_, result.model.cluster_centers_)
    assert run.result.traffic == result.traffic
    assert list(run.rounds) == list(run.received) == [2, 3]
    assert [len(run.sent(number)) for number in run.rounds] == [3, 3]
