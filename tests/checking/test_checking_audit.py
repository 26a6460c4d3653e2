"""Audits find what is planted, say nothing of what is sound, and say where they cannot know."""

import json
import math
import os
import re
import time
from dataclasses import replace
from itertools import count

import checking_toys
import numpy as np
import pytest
from checking_toys import Means, MeansClient, Sending, changed, with_method
from scipy.stats import norm
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.checking import Neighbors, Subject, audit
from flower_fedclust.checking.books import epsilon_of
from flower_fedclust.checking.neighbors import (
    findings_of_samples,
    neighbor_tables,
    ratio_of,
    with_edges,
)
from flower_fedclust.checking.noise import Loss, compare_with_law, lower, upper
from flower_fedclust.cli.commands import app
from flower_fedclust.engine import GridArray
from flower_fedclust.engine import client as client_module
from flower_fedclust.engine import run as run_module
from flower_fedclust.engine.log import RunLog
from flower_fedclust.exact.sums import directions_onto_grid
from flower_fedclust.exact.terms import ONE_COUNT, Bound
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.privacy import noise as noise_module
from flower_fedclust.privacy.noise import OperatingSystemNoise, SeededNoise
from flower_fedclust.privacy.releases import Release
from flower_fedclust.registry import make_strategy

POINTS = np.random.default_rng(0).normal(size=(3, 4))


pytestmark = pytest.mark.usefixtures("repeatable_noise")


@pytest.fixture(scope="module")
def sound(repeatable):
    with repeatable("sound"):
        return audit(Means(2), runs=800, seed=0)


@pytest.fixture
def slow(monkeypatch):
    """A machine on which every look at the clock takes a second."""
    ticks = count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))


# Neighbors.


@pytest.mark.parametrize(
    ("is_triangle", "norm"), [(False, math.sqrt(1 + 4 + 9)), (True, math.sqrt(1 + 2 * 4 + 9))]
)
def test_entries_off_the_diagonal_of_a_triangle_count_twice_in_the_norm_of_a_change(
    is_triangle, norm
):
    release = Release("gaussian", 2.0, 1.0, "a bound", triangle=is_triangle)
    ratio, is_too_far = ratio_of(np.array([1, 2, 3]), 0, release)
    assert ratio == pytest.approx(norm / 2.0)
    assert is_too_far


def test_a_row_is_added_and_replaced_among_equal_rows_too():
    rows, hard = (
        np.zeros((3, 2)),
        [("a long row", np.array([9.0, 0.0])), ("its opposite", np.array([-9.0, 0.0]))],
    )
    added, *_ = neighbor_tables(rows, hard, "record", "add-or-remove")
    np.testing.assert_array_equal(added.rows, [[9.0, 0.0]] * 3)
    np.testing.assert_array_equal(added.others, [[9.0, 0.0]] * 2)
    replaced, *_ = neighbor_tables(rows, hard, "record", "replace")
    np.testing.assert_array_equal(replaced.rows, [[9.0, 0.0]] * 3)
    np.testing.assert_array_equal(replaced.others, [[-9.0, 0.0], [9.0, 0.0], [9.0, 0.0]])


# What is sound, or was not seen.


def test_an_audit_of_a_sound_strategy_says_so_in_one_line(sound):
    assert (sound.verdict, sound.sentence) == ("sound", "sound as far as seen.")
    assert sound.broken == []
    assert sound.missing == []
    assert sound.not_examined == ()
    assert str(sound).startswith("Audit of Means: sound as far as seen.")
    found = json.loads(json.dumps(sound.to_dict()))
    assert found["verdict"] == "sound"
    assert found["loss"]["epsilon_at_least"] <= 8.0


def test_the_hardest_neighbors_reach_the_sensitivity_and_do_not_exceed_it(sound):
    sums, counts = sound.releases
    assert 1 - 1e-14 < counts.moved <= 1.0  # a sensitivity is rounded up a little
    assert 0.999 < sums.moved <= 1.0
    assert not (sums.is_too_far)
    assert not (counts.is_too_far)


@pytest.mark.long
def test_the_command_audits_by_name_and_saves(tmp_path):
    pytest.importorskip("matplotlib")
    given = ["audit", "feddp-kmeans", "--runs", "800", "--seconds", "300"]
    done = CliRunner().invoke(
        app, [*given, "--epsilon", "8", "--out", str(tmp_path / "audit"), "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "audit" / "audit.json").read_text())["verdict"] == "sound"
    assert {path.name for path in (tmp_path / "audit").iterdir()} == {
        "audit.json",
        "audit.txt",
        "audit.png",
    }
    assert (tmp_path / "audit" / "audit.png").stat().st_size > 10_000


@pytest.mark.long
@pytest.mark.parametrize(("place", "gathers"), [("clients", True), ("local", False)])
def test_noise_of_clients_is_audited_from_outputs_alone(place, gathers):
    found = audit(Means(2, noise=place, gathers=gathers), runs=800)
    assert found.verdict == "sound"
    assert not found.loss.sees_noise


def test_a_round_that_is_given_up_lacks_no_share():
    assert (
        audit(
            fc.DPFedC(3, max_norm=1.0, epsilon=8.0, n_rounds=2, noise="clients"),
            runs=2,
            seconds=0.1,
        ).broken
        == []
    )


@pytest.mark.long
@pytest.mark.parametrize(("place", "raises"), [("server", False), ("clients", True)])
def test_a_client_that_fails_by_a_coin_of_its_own_is_no_alarm(place, raises, monkeypatch):
    monkeypatch.setattr(checking_toys.UnluckyClient, "raises", raises)
    found = audit(checking_toys.Unlucky(2, noise=place), runs=800)
    assert found.sentence == "sound as far as seen."
    (failures,) = (fact for fact in found.facts if fact.topic == "failures")
    assert failures.covered.startswith("there are some, no more often for one")


def test_without_epsilon_there_is_no_guarantee_and_what_leaves_is_named():
    found = audit(make_strategy("k-fed", n_clusters=3), runs=10)
    assert found.verdict == "no guarantee"
    assert found.unprotected == ("centers of the client's own clusters",)
    with pytest.raises(ValueError, match="k-fed"):
        found.figure("never.png")


@pytest.mark.long
def test_too_few_runs_are_said():
    found = audit(Means(2, n_rounds=1), runs=2)
    assert found.verdict == "not shown"
    assert "too few runs" in found.sentence
    assert sum("cut off at" in one or "from a source" in one for one in found.missing) == 3


@pytest.mark.parametrize("bad", [{"runs": 0}, {"seconds": 0.0}, {"false_alarm": 0.0}])
def test_options_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        audit(Means(2), **bad)


@pytest.mark.usefixtures("slow")
def test_what_there_was_no_time_for_is_said_with_its_name_and_number():
    found = audit(Means(2), runs=800, seconds=4.0)
    assert found.verdict == "not shown"
    assert found.to_dict()["not_examined"] == found.not_examined
    assert all(one in str(found) for one in found.not_examined)
    left = "\n".join(found.not_examined)
    assert "all neighbors with a bound of 53 binary digits next below a power of two" in left
    assert re.search(r"^\d+ of \d+ neighbors", left)
    assert "what the report says where no answer can be used in round 3" in left
    assert re.search(r"\d+ of 800 draws of the noise$", left)


# What is broken. Audits that draw much noise are left to `make check`, which plants these faults in the code, too.


def far(self, *, max_norm):
    return self._rows(40 * max_norm).total()


def test_a_row_that_is_not_clipped_is_found_and_tells_neighbors_apart():
    found = audit(with_method("sums", far)(2, n_rounds=1, epsilon=1.0), runs=300)
    assert "'sum of the rows' in round 2 moves by 40 times its sensitivity" in found.sentence
    assert found.loss.epsilon_at_least > 1.0
    assert found.loss.expected > 8.0
    assert any(
        clause.startswith("neighbors can be told apart: epsilon is at least")
        for clause in found.broken
    )


def test_the_command_ends_with_1_where_a_promise_is_broken(monkeypatch, sound):
    for found, code in ((audit(with_method("sums", far)(2, n_rounds=1), runs=2), 1), (sound, 0)):
        monkeypatch.setattr(
            "flower_fedclust.cli.advice.audit_by_name", lambda *_, found=found, **__: found
        )
        assert CliRunner().invoke(app, ["audit", "feddp-kmeans"]).exit_code == code


def test_a_count_that_depends_on_the_rows_around_is_found():
    def sums(self, *, max_norm):
        total, number = self._rows(max_norm).total()
        return total, type(number)(number.integers + len(self.rows) % 2)

    found = audit(with_method("sums", sums)(2, n_rounds=1), runs=40)
    assert any(
        "'number of rows'" in clause and "moves by 2 times" in clause for clause in found.broken
    )


@pytest.mark.long
def test_a_choice_by_float_products_is_found_where_points_mirror_each_other():
    def sums(self, centers, *, max_norm):
        rows = self._rows(max_norm)
        return rows.sums(nearest_center(rows.values, centers), len(centers))

    found = audit(with_method("sums", sums, toy=Sending)(2, points=POINTS), runs=2)
    assert any(
        "'number of rows'" in one and "of points that mirror each other" in one
        for one in found.broken
    )


@pytest.mark.usefixtures("slow")
def test_a_tie_that_depends_on_other_rows_is_found_however_little_time_there_is():
    def sums(self, centers, *, max_norm):
        rows = self._rows(max_norm)
        lowest, highest = rows.nearest(centers), len(centers) - 1 - rows.nearest(centers[::-1])
        return rows.sums(highest if len(rows) % 2 else lowest, len(centers))

    found = audit(with_method("sums", sums, toy=Sending)(2, points=POINTS), runs=2, seconds=4.0)
    assert any(
        "'number of rows' in rounds 2 to 3 moves by 51 times its sensitivity" in one
        for one in found.broken
    )


@pytest.mark.long
def test_a_projection_that_relies_on_the_servers_directions_is_found():
    def sums(self, directions, *, max_norm):
        rows = self._rows(max_norm)
        projected = np.trunc(rows.integers @ directions_onto_grid(directions)).sum(axis=0)
        return GridArray(projected, rows.exponent), GridArray(np.array(len(self.rows)))

    directions = np.linalg.qr(POINTS.T)[0]
    found = audit(with_method("sums", sums, toy=Sending)(2, n_rounds=1, points=directions), runs=2)
    (clause,) = (one for one in found.broken if "'sum of the rows'" in one)
    assert "moves by 1.73205 times" in clause
    assert "where the server sends points with all columns alike" in clause


def test_rounding_up_is_found_where_a_bound_is_next_below_a_power_of_two():
    def sums(self, *, max_norm):
        rows = self._rows(max_norm)
        squares = np.ceil(np.ldexp(rows.integers**2, -10)).sum(axis=0)  # of 40 bits
        return GridArray(squares, 2 * rows.exponent + 10), GridArray(np.array(len(self.rows)))

    strategy = with_method(
        "sums", sums, moved=lambda _, *, max_norm: (Bound(max_norm**2), ONE_COUNT)
    )(2, n_rounds=1)
    assert with_edges(Subject(strategy), 53).strategy.max_norm == np.nextafter(4.0, 0.0)
    (clause,) = (one for one in audit(strategy, runs=2).broken if "'sum of the rows'" in one)
    assert "moves by a little more than its sensitivity" in clause
    assert "with a bound of 24 binary digits next below a power of two" in clause


def test_an_answer_that_rests_on_an_earlier_run_is_found():
    def sums(self, *, max_norm):
        return self.data.derived("clipped", lambda: self._rows(max_norm).total())

    found = audit(with_method("sums", sums)(2, n_rounds=1), runs=2)
    assert (
        "the answer to 'sums' depends on a run that the client has answered before"
        in found.findings
    )


@pytest.mark.long
@pytest.mark.parametrize("place", ["server", "local"])
def test_noise_of_half_the_width_is_found_wherever_it_is_drawn(place, monkeypatch):
    honest = noise_module.sample_laplace_share
    monkeypatch.setattr(
        noise_module, "sample_laplace_share", lambda scale, *rest: honest(0.5 * scale, *rest)
    )
    found = audit(Means(2, noise=place), runs=80)
    assert (
        "the noise of 'number of rows' in rounds 2 to 3 is narrower than declared" in found.sentence
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda noise: noise // 16 * 16, "is with holes"),
        (
            lambda noise: noise * (np.arange(noise.size) > 0),
            "is narrower than declared in one of its entries",
        ),
        (
            lambda noise: np.full(noise.size, noise[0]),
            "in round 2, entry 0 depends on the noise of 'sum of the rows' in round 2, entry 2",
        ),
        (lambda noise: noise * [1, 1, 1, 0] + [0, 0, 0, 77], "in round 2 is the same in every run"),
    ],
)
def test_noise_with_holes_or_with_wrong_entries_is_found(wrong, says, monkeypatch):
    honest = noise_module.sample_gaussian_share
    monkeypatch.setattr(noise_module, "sample_gaussian_share", lambda *given: wrong(honest(*given)))
    assert says in " ".join(audit(Means(2, n_rounds=1), runs=80).broken)


@pytest.mark.long
@pytest.mark.parametrize("place", ["server", "local"])
def test_noise_that_is_cut_off_at_three_deviations_is_found(place, monkeypatch):
    honest = noise_module.sample_gaussian_share

    def cut_off(scale, n_shares, *rest):
        reach = int(3 * scale / math.sqrt(n_shares))
        return np.clip(honest(scale, n_shares, *rest), -reach, reach)

    monkeypatch.setattr(noise_module, "sample_gaussian_share", cut_off)
    found = audit(Means(2, noise=place), runs=800)
    assert any("all gaussian noise together is cut off" in one for one in found.broken)


@pytest.mark.long
@pytest.mark.parametrize("place", ["server", "local"])
def test_noise_from_a_source_of_16_bits_is_found(place, monkeypatch):
    def words(self, size):
        return np.random.PCG64(list(os.urandom(2))).random_raw(size)

    monkeypatch.setattr(OperatingSystemNoise, "words", words)
    found = audit(Means(2, noise=place), runs=800)
    assert any(
        one.startswith("the noise of 'sum of the rows' repeats: of ") for one in found.broken
    )


@pytest.mark.long
@pytest.mark.parametrize("place", ["clients", "server"])
def test_noise_of_several_arrays_from_the_same_words_is_found(place, monkeypatch):
    honest = noise_module._with_noise

    def add_noise(arrays, releases, source, *, n_shares=1):
        words = source.words(2).tolist()
        return [
            honest(*pair, SeededNoise(words), n_shares)
            for pair in zip(arrays, releases, strict=True)
        ]

    monkeypatch.setattr(run_module, "add_noise", add_noise)
    monkeypatch.setattr(client_module, "add_noise", add_noise)
    found = audit(Means(2, noise=place, gathers=place == "clients"), runs=400)
    assert any("depends on the noise of 'number of rows'" in one for one in found.broken)


def test_a_round_that_nobody_answers_and_the_report_leaves_out_is_found(monkeypatch):
    honest = RunLog.note_round

    def note_round(self, *args, answered, **facts):
        if answered:
            honest(self, *args, answered=answered, **facts)

    monkeypatch.setattr(RunLog, "note_round", note_round)
    found = audit(Means(2, n_rounds=1), runs=2)
    assert "'sum of the rows' of round 2 is not in the report" in found.broken


@pytest.mark.parametrize(
    ("drawn", "says"),
    [
        (lambda self: np.argsort(self.noise_source.words(25))[:5], ""),
        (
            lambda self: np.argsort(self.noise_source.words(25))[:15],
            "15 rows count in an answer to 'sums', and 5 are declared",
        ),
        (
            lambda self: self.generator(7).permutation(25)[:5],
            "every answer to one message is of the same rows",
        ),
        (
            lambda self: np.r_[0, np.argsort(self.noise_source.words(25))[:4]],
            "a row counts in 1 of the answers to 'sums'",
        ),
    ],
)
def test_rows_that_are_not_drawn_as_is_declared_are_found(drawn, says):
    def sums(self, *, max_norm):
        return self._rows(max_norm)[np.isin(np.arange(len(self.rows)), drawn(self))].total()

    run = Subject(with_method("sums", sums)(2)).run
    release = Release("gaussian", 1.0, 1.0, "", "replace", sample=(5, 25))
    for number, round_ in run.rounds.items():
        run.rounds[number] = replace(round_, releases=[release, release])
    rows = run.data["site-b"].rows
    pair = Neighbors("", rows, np.vstack([-rows[:1], rows[1:]]))
    found, not_examined = findings_of_samples(run, "site-b", pair, 1e-6)
    assert not_examined == []
    assert says in " ".join(found)
    assert bool(says) == bool(found)


def test_a_class_that_promises_what_nothing_covers_is_found():
    found = audit(changed(paid_by=("sums", None))(2, n_rounds=1), runs=2)
    assert (
        "a guarantee per record is promised, and nothing covers 'number of rows'" in found.findings
    )


def test_metrics_and_numbers_that_follow_from_rows_are_found():
    class Client(MeansClient):
        def fit(self, parameters, config):
            arrays, _, facts = super().fit(parameters, config)
            return arrays, len(self.rows), facts | {"hint": float(self.rows[0, 0])}

    found = " ".join(audit(changed(client_type=Client)(2, n_rounds=1), runs=40).findings)
    assert "the number of examples of 'sums' is not the same for neighbors" in found
    assert "sends hint beside its arrays" in found
    assert "tells how many rows" in found


@pytest.mark.long
def test_a_failure_that_follows_from_a_row_is_shown_as_not_covered():
    def sums(self, *, max_norm):
        if np.abs(self.rows).max() > 100:
            raise fc.DataError("a row is too long.")
        return self._rows(max_norm).total()

    found = audit(with_method("sums", sums)(2), runs=40)
    (failures,) = (fact for fact in found.facts if fact.topic == "failures")
    assert failures.covered.startswith("NOT the same for neighbors: sums (a ")


# The numbers.


def test_epsilon_of_one_gaussian_release_is_that_of_the_closed_form():
    epsilon, mu = epsilon_of([("gaussian", 0.5)], 1e-5), 2.0
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize("multiplier", [1e-2, 1e-5, 1e-200])
def test_a_release_with_hardly_any_noise_has_a_huge_epsilon(multiplier):
    assert epsilon_of([("gaussian", multiplier)], 1e-6) > 0.4 / multiplier
    assert epsilon_of([("laplace", multiplier)], 1e-6) == pytest.approx(1 / multiplier, rel=1e-3)


def test_bounds_of_clopper_and_pearson():
    assert lower(0, 10, 0.01) == 0.0
    assert upper(10, 10, 0.01) == 1.0
    assert lower(10, 10, 0.01) == pytest.approx(0.01 ** (1 / 10))
    assert upper(0, 10, 0.01) == pytest.approx(1 - 0.01 ** (1 / 10))


def test_a_lower_bound_on_epsilon_comes_near_to_it_and_not_above():
    rng = np.random.default_rng(0)
    one, other = (rng.normal(sign / 2, 1.0, size=20_000) for sign in (1, -1))
    epsilon = epsilon_of([("gaussian", 1.0)], 1e-2)
    loss = Loss(epsilon, 1e-2, one, other, True, "")
    assert 0.5 * epsilon < loss.epsilon_at_least < epsilon
    assert loss.delta_at_least < 1e-2 < loss.delta_at_most
    assert loss.delta_seen == pytest.approx(1e-2, rel=0.2)


def test_losses_beyond_what_is_promised_are_an_alarm():
    rng = np.random.default_rng(1)
    one, other = (rng.normal(sign * 4.5, 3.0, size=2000) for sign in (1, -1))
    loss = Loss(1.0, 1e-6, one, other, True, "")
    assert loss.epsilon_at_least > 1.0
    assert loss.delta_at_least > 1e-6


@pytest.mark.long
def test_sound_noise_is_called_broken_as_rarely_as_is_said():
    class Drawn:
        release, is_whole, exponent = Release("laplace", 1.0, 1.0, ""), True, -12

        def __init__(self, rng):
            self.noise = {
                "": [np.rint(rng.laplace(size=40) * 2.0**12) * 2.0**-12 for _ in range(5)]
            }
            self.standardized = list(self.noise.values())

    rng = np.random.default_rng(2)
    tests = [compare_with_law([Drawn(rng)]) for _ in range(300)]
    n_tests = len(tests[0].p_values)
    alarms = sum(min(test.p_values.values()) < 0.05 / n_tests for test in tests)
    assert 2 <= alarms <= 32  # 15 are expected
