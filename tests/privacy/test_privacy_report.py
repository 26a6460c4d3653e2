import json
import math
from dataclasses import replace

import pytest

from flower_fedclust.privacy.accounting import Share, calibrate, composed_epsilon, delta_of_composition
from flower_fedclust.privacy.releases import NOISE_PLACES, PRIVACY_UNITS, Release
from flower_fedclust.privacy.report import (
    COLLUSION_SENTENCES,
    NEIGHBOUR_SENTENCES,
    PLACE_SENTENCES,
    TRUST_SENTENCES,
    Message,
    PrivacyReport,
)

SUMS = Release("gaussian", 2.5, 3.0, "rows are clipped to 2.5")
COUNTS = Release("laplace", 1.0, 4.0, "a row counts once")
DELTA = 1e-5

NAME = Message(1, "enrol", "the names of the columns", "one per client", harmless=True)
CENTERS = Message(2, "centers", "local centers", "one per client")
SUM_2, SUM_3, SUM_4 = (Message(number, "assign", "sums", "sum over the clients", SUMS) for number in (2, 3, 4))
COUNT_2 = Message(2, "assign", "counts", "sum over the clients", COUNTS)


def report(*messages, **options):
    fields = {"requested_epsilon": 2.0, "delta": DELTA, "unit": "record", "noise": "server"}
    return PrivacyReport("feddp-kmeans", messages, **(fields | options))


def test_composed_epsilon_is_what_the_releases_that_ran_compose_to():
    epsilon = report(NAME, SUM_2, COUNT_2, SUM_3).composed_epsilon
    assert epsilon == composed_epsilon([SUMS, COUNTS, SUMS], delta_of_composition(DELTA), near=2.0)
    assert epsilon > report(NAME, SUM_2, COUNT_2).composed_epsilon


def test_epsilon_is_what_was_asked_for_however_few_releases_ran():
    # That a run ended early can come from what noise made of the rows.
    for messages in ([SUM_2], [SUM_2, COUNT_2, SUM_3]):
        assert report(*messages, requested_epsilon=100.0).epsilon == 100.0
        assert report(*messages, requested_epsilon=100.0).guarantee().startswith("The whole run is covered by (100, ")


def test_epsilon_is_more_than_what_was_asked_for_where_the_releases_compose_to_more():
    made = report(SUM_2, COUNT_2, SUM_3, requested_epsilon=0.5)
    assert made.epsilon == made.composed_epsilon > 0.5
    alone = report(SUM_2, requested_epsilon=None)
    assert alone.epsilon == alone.composed_epsilon


def test_an_unprotected_message_does_not_change_the_epsilon_of_the_releases():
    assert report(SUM_2, CENTERS).composed_epsilon == report(SUM_2).composed_epsilon


@pytest.mark.parametrize(
    ("epsilon", "right", "odds", "found"), [(1.0, "73.2", "2.72", "2.72"), (0.1, "52.5", "1.11", "1.11")]
)
def test_what_epsilon_means_for_one_person_is_said_as_odds(epsilon, right, odds, found):
    quiet = replace(SUM_2, release=replace(SUMS, noise_multiplier=100.0))
    meaning = report(quiet, requested_epsilon=epsilon).meaning()
    assert f"right with a probability of at most {right}%" in meaning
    assert f"odds of {odds} to 1; tossing a coin gives 50%" in meaning
    assert f"accuses 1 in 100 wrongly finds at most {found} in 100" in meaning
    assert meaning in str(report(quiet, requested_epsilon=epsilon))


def test_a_large_epsilon_means_that_nearly_all_are_found():
    meaning = report(SUM_2, COUNT_2, requested_epsilon=8.0).meaning()
    assert "odds of 2990 to 1" in meaning
    assert "finds at most 100 in 100" in meaning


def test_a_meaning_says_what_it_does_not_limit_and_is_missing_where_there_is_no_guarantee():
    assert "None of this limits what is listed as unprotected." in report(SUM_2, CENTERS).meaning()
    assert "unprotected" not in report(SUM_2).meaning()
    assert "epsilon is k times as large, and delta k e^((k - 1) epsilon) times" in report(SUM_2).meaning()
    assert "k rows" not in report(SUM_2, unit="client").meaning()
    assert report(CENTERS).meaning() is None
    assert report(CENTERS).assumptions() == []


@pytest.mark.parametrize("noise", NOISE_PLACES)
def test_who_is_trusted_with_what_is_said(noise):
    text = str(report(SUM_2, noise=noise))
    for sentence in (PLACE_SENTENCES[noise], COLLUSION_SENTENCES[noise], *TRUST_SENTENCES):
        assert f"  - {sentence}" in text
    together = " ".join(TRUST_SENTENCES)
    words = ("Labels, metrics and costs", "rounding", "clip its own rows", "how long it takes", "left out for its size")
    assert all(word in together for word in words)


def test_noise_that_is_farther_from_its_law_than_delta_allows_covers_nothing():
    near, far = (replace(SUM_2, variation=variation) for variation in (1e-10, 1e-8))
    assert report(near).guarantee().startswith("The whole run is covered")
    assert report(far).guarantee().startswith("None that can be stated: at epsilon 2 and delta 1e-05")
    above = report(far, requested_epsilon=2.00001).guarantee()
    assert above.startswith("None that can be stated: at epsilon 2.001 and delta")  # never below what it is
    assert report(far).meaning() is None
    assert report(near, near, requested_epsilon=20.0).guarantee().startswith("None that can be stated")


def test_epsilon_is_infinite_where_nothing_is_released():
    assert report().epsilon == math.inf
    assert report(NAME, CENTERS).epsilon == math.inf


def test_epsilon_is_infinite_without_a_delta():
    assert report(SUM_2, delta=None).epsilon == math.inf


def test_a_run_of_releases_and_harmless_messages_is_covered():
    covered = report(NAME, SUM_2, COUNT_2)
    assert covered.covers_everything
    assert covered.guarantee() == (
        f"The whole run is covered by ({covered.epsilon:.4g}, 1e-05)-differential privacy per record."
    )


@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_unprotected_message_is_enough_to_lose_the_guarantee(position):
    messages = [SUM_2, COUNT_2]
    messages.insert(position, CENTERS)
    mixed = report(*messages)
    assert not mixed.covers_everything
    assert mixed.unprotected == [CENTERS]
    assert "NO such guarantee" in mixed.guarantee()
    assert "1 kind of message left the clients unprotected" in mixed.guarantee()
    assert "covered by" not in mixed.guarantee()


def test_a_release_without_noise_counts_as_unprotected():
    bare = Message(2, "assign", "sums", "sum over the clients", Release("gaussian", 2.5, 0.0, "clipped"))
    assert not bare.is_protected
    mixed = report(SUM_2, bare)
    assert mixed.unprotected == [bare]
    assert mixed.releases == [SUM_2]
    assert not mixed.covers_everything
    assert math.isfinite(mixed.epsilon)
    alone = report(bare)
    assert alone.epsilon == math.inf
    assert alone.guarantee().startswith("None.")
    assert "Protected by noise" not in str(alone)


def test_harmless_messages_are_listed_and_not_counted():
    listed = report(NAME, SUM_2)
    assert listed.unprotected == []
    text = str(listed)
    harmless = text[text.index("independent of the values of the rows") :]
    assert "the names of the columns" in harmless
    assert "the names of the columns" not in text[: text.index("independent of the values of the rows")]


def test_nothing_but_harmless_messages_is_no_guarantee():
    assert not report(NAME).covers_everything
    assert report(NAME).guarantee().startswith("None.")
    assert not report().covers_everything


def section(text, heading):
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(heading))
    stop = next((index for index in range(start + 1, len(lines)) if not lines[index]), len(lines))
    return lines[start + 1 : stop]


def test_the_text_lists_what_nothing_covers_under_unprotected():
    text = str(report(NAME, SUM_2, CENTERS))
    assert section(text, "Unprotected") == ["  round 2 'centers': local centers (one per client)"]
    assert "NO such guarantee" in text


def test_the_text_says_so_where_everything_is_covered():
    assert section(str(report(NAME, SUM_2)), "Unprotected") == ["  nothing that depends on the rows"]


def test_the_text_gives_mechanism_norm_sensitivity_bound_multiplier_and_scale():
    lines = section(str(report(SUM_2, COUNT_2)), "Protected by noise")
    assert lines == [
        "  round 2 'assign': sums (sum over the clients)",
        "      Gaussian mechanism, L2 sensitivity 2.5 (rows are clipped to 2.5), noise multiplier 3, noise scale 7.5",
        "  round 2 'assign': counts (sum over the clients)",
        "      Laplace mechanism, L1 sensitivity 1 (a row counts once), noise multiplier 4, noise scale 4",
    ]


def test_the_text_puts_the_rounds_of_the_same_message_together():
    assert "rounds 2 to 4 'assign'" in str(report(SUM_2, COUNT_2, SUM_3, SUM_4))
    assert "rounds 2, 4 'assign'" in str(report(SUM_2, COUNT_2, SUM_4))


def test_releases_of_different_noise_are_listed_apart():
    other = Message(3, "assign", "sums", "sum over the clients", Release("gaussian", 2.5, 9.0, "clipped"))
    lines = section(str(report(SUM_2, other)), "Protected by noise")
    assert len(lines) == 4
    assert "noise multiplier 9," in lines[3]


@pytest.mark.parametrize("unit", PRIVACY_UNITS)
@pytest.mark.parametrize("noise", NOISE_PLACES)
def test_the_text_says_unit_relation_place_and_what_was_asked(unit, noise):
    text = str(report(SUM_2, unit=unit, noise=noise))
    assert f"differential privacy per {unit}" in text
    assert f"Neighbouring data sets differ in {NEIGHBOUR_SENTENCES[unit, 'add-or-remove']}." in text
    assert PLACE_SENTENCES[noise] in text
    assert "Asked for: epsilon 2, delta 1e-05. The releases that were made compose to " in text


def test_the_text_ends_with_the_notes():
    assert str(report(SUM_2, notes=["a seed was given"])).endswith("Notes:\n  - a seed was given")


@pytest.mark.parametrize("messages", [(), (NAME,), (CENTERS,), (NAME, SUM_2), (NAME, SUM_2, CENTERS, COUNT_2)], ids=len)
def test_the_dictionary_is_json_without_infinity_and_says_what_the_report_says(messages):
    made = report(*messages, notes=("public rows were used",))
    fields = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert fields["strategy"] == "feddp-kmeans"
    assert fields["guarantee"] == made.guarantee()
    assert fields["covers_everything"] == made.covers_everything
    assert fields["epsilon"] == (made.epsilon if made.releases else None)
    assert fields["requested_epsilon"] == 2.0
    assert fields["delta"] == DELTA
    assert (fields["unit"], fields["noise"]) == ("record", "server")
    sentence = NEIGHBOUR_SENTENCES["record", "add-or-remove"] if made.releases else None
    assert fields["neighbouring_relation"] == sentence
    assert fields["notes"] == ["public rows were used"]
    assert [message["round"] for message in fields["messages"]] == [message.round for message in messages]


def test_the_dictionary_gives_back_the_releases():
    fields = json.loads(json.dumps(report(NAME, SUM_2, COUNT_2).to_dict()))
    releases = [message["release"] for message in fields["messages"]]
    assert releases[0] is None
    assert [Release.from_dict(release) for release in releases[1:]] == [SUMS, COUNTS]


def test_a_report_of_a_run_without_privacy_says_so_everywhere():
    bare = PrivacyReport("k-fed", [NAME, CENTERS])
    fields = json.loads(json.dumps(bare.to_dict(), allow_nan=False))
    assert fields["epsilon"] is None
    assert fields["neighbouring_relation"] is None
    assert not fields["covers_everything"]
    assert "Guarantee: None." in str(bare)
    assert section(str(bare), "Unprotected") == ["  round 2 'centers': local centers (one per client)"]


def test_a_guarantee_without_a_unit_names_none():
    assert report(SUM_2, unit=None).guarantee().endswith("differential privacy.")


def test_releases_can_be_reported_where_no_epsilon_was_asked_for():
    assert "Gaussian mechanism" in str(report(SUM_2, requested_epsilon=None))


def test_without_a_delta_there_is_no_guarantee():
    made = report(SUM_2, delta=None, requested_epsilon=None)
    assert made.guarantee().startswith("None.")
    assert json.loads(json.dumps(made.to_dict(), allow_nan=False))["epsilon"] is None


def test_without_a_delta_the_run_is_not_covered_though_an_epsilon_was_asked_for():
    made = report(SUM_2, delta=None)
    assert "Guarantee: None." in str(made)
    assert not made.covers_everything


@pytest.mark.parametrize(
    ("epsilon", "said"), [(1.0, "(1, "), (1.00049, "(1.001, "), (0.5, "(0.5, "), (12.34561, "(12.35, ")]
)
def test_no_bound_is_written_as_less_than_it_is(epsilon, said):
    quiet = replace(SUM_2, release=replace(SUMS, noise_multiplier=100.0))
    assert f"covered by {said}" in report(quiet, requested_epsilon=epsilon).guarantee()


@pytest.mark.parametrize(("epsilon", "rows"), [(1.0, 2), (1.0, 10), (4.0, 5)])
def test_what_is_said_of_several_rows_holds_for_gaussian_noise(epsilon, rows):
    """Noise for (epsilon, delta) is within what the sentence says of k rows, and not within (k epsilon, delta)."""
    delta = 1e-9
    multiplier = calibrate({"one": Share("gaussian", 1.0)}, epsilon, delta)["one"]
    of_all = Release("gaussian", 1.0, multiplier / rows, "")
    said = rows * math.exp((rows - 1) * epsilon) * delta
    if said < 1:
        assert composed_epsilon([of_all], said) <= rows * epsilon
    assert composed_epsilon([of_all], delta) > rows * epsilon
