"""Releases, and the report that is made from them: whose epsilon it is, what is covered, and what is said."""

import dataclasses
import json
import math
from collections import Counter
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest

from flower_fedclust.privacy.accounting import (
    Share,
    calibrate,
    composed_epsilon,
    delta_of_composition,
)
from flower_fedclust.privacy.releases import NOISE_PLACES, PRIVACY_UNITS, Release
from flower_fedclust.privacy.report import (
    COLLUSION_SENTENCES,
    NEIGHBOR_SENTENCES,
    PLACE_SENTENCES,
    TRUST_SENTENCES,
    Message,
    PrivacyReport,
)

DELTA = 1e-5
SUMS = Release("gaussian", 2.5, 3.0, "rows are clipped to 2.5")
LOUD = replace(SUMS, noise_multiplier=1.0)
SILENT = replace(SUMS, noise_multiplier=0.0)
COUNTS = Release("laplace", 1.0, 4.0, "a row counts once")
REPLACED = Release(
    "gaussian", 2.0, 4.0, "rows are clipped, and one is replaced", relation="replace"
)
SAMPLED = Release("gaussian", 1.0, 1.0, "", "replace", (5, 1000))

NAME = Message(1, "enrol", "name and columns", "one per client", harmless=True)
NUMBER = Message(2, "column_sums", "number of rows", "sum over the clients", counts_rows=True)
KEPT = Message(2, "perturb_rows", "the rows", "one per row, kept by the client", REPLACED)
DERIVED = Message(3, "codes", "code of every row", "one per row", post_processing=True)
DERIVED_NUMBER = Message(
    4, "column_sums", "number of rows", "sum over the clients", None, True, counts_rows=True
)
CENTERS = Message(5, "centers", "local centers", "one per client")
SUM_2, SUM_3, SUM_4 = (
    Message(number, "assign", "sums", "sum over the clients", SUMS) for number in (2, 3, 4)
)
COUNT_2 = Message(2, "assign", "counts", "sum over the clients", COUNTS)

PROTECTED = "Protected by noise:"
COMPUTED = "Computed from nothing but what is protected above, so that it costs no more:"
UNPROTECTED = "Unprotected (no mechanism covers these messages):"
HARMLESS = "Sent, and independent of the values of the rows:"


def report(*messages, **options):
    fields = {"requested_epsilon": 2.0, "delta": DELTA, "unit": "record", "noise": "server"}
    return PrivacyReport("feddp-kmeans", messages, **(fields | options))


def asked(round_, clients, release=SUMS):
    """Return a message of these clients, a letter each; None means all of them."""
    detail = (
        "sum over the clients"
        if clients is None
        else f"sum over the clients, {len(clients)} of 8 clients asked"
    )
    return Message(round_, "step", "sums", detail, release, clients=clients and tuple(clients))


def epsilon_of(*releases):
    return composed_epsilon(releases, delta_of_composition(DELTA), near=2.0)


def section(made, heading):
    lines = str(made).splitlines()
    if heading not in lines:
        return None
    start = lines.index(heading) + 1
    return lines[
        start : next((index for index in range(start, len(lines)) if not lines[index]), len(lines))
    ]


# Releases.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("sensitivity", value) for value in (0.0, -1.0, 5e-324, math.inf, math.nan)),
        *(("noise_multiplier", value) for value in (-0.1, math.inf, math.nan)),
        *(("relation", value) for value in ("", "add", "Replace", None)),
        *(("sample", value) for value in ((5, 3), (0, 3), (-1, 3), (0, 0))),
        ("sample", (5, 1000)),  # for a row that is added
        ("mechanism", "exponential"),
    ],
)
def test_a_release_that_cannot_be_is_refused_by_the_name_of_its_field(field, value):
    with pytest.raises(ValueError, match=f"^{field} is"):
        replace(SUMS, **{field: value})
    with pytest.raises(ValueError, match=f"^{field} is"):
        Release.from_dict(SUMS.to_dict() | {field: value})


def test_samples_and_triangles_are_only_for_gaussian_noise():
    with pytest.raises(ValueError, match="sample"):
        replace(SAMPLED, mechanism="laplace")
    with pytest.raises(ValueError, match="triangle"):
        replace(COUNTS, triangle=True)


@pytest.mark.parametrize(
    "release", [SUMS, COUNTS, REPLACED, SAMPLED, SILENT, replace(SUMS, sensitivity=1 / 3)]
)
def test_a_release_goes_through_json_unchanged(release):
    back = Release.from_dict(json.loads(json.dumps(release.to_dict(), allow_nan=False)))
    assert (back, hash(back)) == (release, hash(release))
    with pytest.raises(TypeError):
        Release.from_dict(release.to_dict() | {"unknown": 1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        release.noise_multiplier = 0.0


def test_scale_norm_and_event_follow_from_mechanism_and_multiplier():
    assert (SUMS.scale, SUMS.norm, SUMS.relation) == (7.5, "L2", "add-or-remove")
    assert (COUNTS.standard_deviation, COUNTS.norm) == (4.0 * math.sqrt(2), "L1")
    assert SUMS.event() == dp_accounting.GaussianDpEvent(3.0)
    assert COUNTS.event() == dp_accounting.LaplaceDpEvent(4.0)
    gaussian = dp_accounting.GaussianDpEvent(1.0)
    assert SAMPLED.event() == gaussian
    assert SAMPLED.event(sampled=True) == dp_accounting.SampledWithoutReplacementDpEvent(
        1000, 5, gaussian
    )


# Epsilon.


def test_composed_epsilon_is_what_the_releases_that_ran_compose_to():
    assert report(NAME, SUM_2, COUNT_2, SUM_3, CENTERS).composed_epsilon == epsilon_of(
        SUMS, COUNTS, SUMS
    )


def test_epsilon_is_what_was_asked_for_or_what_the_releases_compose_to_if_that_is_more():
    # When a run ended can follow from noisy rows.
    for messages in ([SUM_2], [SUM_2, COUNT_2, SUM_3]):
        made = report(*messages, requested_epsilon=100.0)
        assert made.epsilon == 100.0
        assert made.guarantee().startswith("The whole run is covered by (100, ")
    for asked_for in (0.5, None):
        made = report(SUM_2, COUNT_2, SUM_3, requested_epsilon=asked_for)
        assert made.epsilon == made.composed_epsilon > 0.5


@pytest.mark.parametrize(
    "made",
    [
        report(),
        report(NAME, CENTERS),
        report(SUM_2, delta=None),
        report(asked(2, "a", SILENT)),
        report(NAME, DERIVED),
    ],
)
def test_without_a_release_or_a_delta_there_is_no_guarantee(made):
    assert made.epsilon == made.composed_epsilon == math.inf
    assert made.guarantee().startswith("None.")
    assert "Guarantee: None." in str(made)
    assert not made.covers_everything
    assert json.loads(json.dumps(made.to_dict(), allow_nan=False))["epsilon"] is None
    assert made.meaning() is None


def test_releases_for_different_relations_give_no_epsilon():
    mixed = report(KEPT, SUM_2)
    for read in (lambda: mixed.epsilon, mixed.guarantee, mixed.to_dict, lambda: str(mixed)):
        with pytest.raises(ValueError, match="do not compose"):
            read()


@pytest.mark.parametrize(
    ("messages", "releases"),
    [
        ([asked(2, "a"), asked(3, "a"), asked(4, "b")], [SUMS, SUMS]),
        ([asked(2, "a"), asked(3, "b"), asked(4, "c")], [SUMS]),
        ([asked(2, "ab"), asked(3, "bc"), asked(4, "bd"), asked(5, "cd")], [SUMS] * 3),
        ([asked(2, None), asked(3, None)], [SUMS, SUMS]),
        ([asked(2, None), asked(3, "a"), asked(4, "b")], [SUMS, SUMS]),
        ([asked(3, "a"), asked(4, "b"), asked(2, None)], [SUMS, SUMS]),
        ([asked(2, "a"), asked(3, "a"), asked(4, "b", LOUD)], [LOUD]),  # by cost, not by number
        ([asked(2, "a", LOUD), asked(3, "b", LOUD), asked(4, "a")], [LOUD, SUMS]),
        ([asked(2, "ab"), asked(3, "a", LOUD), asked(4, "b", COUNTS)], [SUMS, LOUD]),
        # Several arrays of one round.
        ([asked(2, "a"), asked(2, "a", COUNTS), asked(3, "b")], [SUMS, COUNTS]),
        ([asked(2, ""), asked(3, "a")], [SUMS]),
        ([asked(2, "b"), asked(3, "a", SILENT)], [SUMS]),
        (
            [asked(2, "a", SAMPLED), asked(3, "b", SAMPLED), asked(4, "a", SAMPLED)],
            [SAMPLED, SAMPLED],
        ),
    ],
)
def test_epsilon_is_that_of_the_client_whose_releases_cost_most(messages, releases):
    made = report(*messages)
    assert made.composed_epsilon == pytest.approx(epsilon_of(*releases), rel=1e-9)


def test_arrays_of_one_round_are_on_the_same_rows():
    anew = report(asked(2, "a", SAMPLED), asked(3, "a", SAMPLED)).composed_epsilon
    assert (
        report(
            asked(2, "a", SAMPLED), asked(2, "a", SAMPLED), asked(3, "b", SAMPLED)
        ).composed_epsilon
        > anew
    )


@pytest.mark.parametrize("seed", range(3))
def test_epsilon_is_the_largest_over_the_clients_of_what_each_was_asked_for(seed):
    rng, messages = np.random.default_rng(seed), []
    for number in range(2, 9):
        drawn = "".join(name for name in "abcdef" if rng.random() < 0.4)
        chosen = (SUMS, LOUD, COUNTS)[rng.integers(3)]
        messages.append(asked(number, drawn if drawn and rng.random() < 0.8 else None, chosen))
    slow = max(
        epsilon_of(*[one.release for one in messages if one.clients is None or name in one.clients])
        for name in "abcdef"
    )
    assert report(*messages).composed_epsilon == pytest.approx(slow, rel=1e-6)
    assert report(*messages[::-1]).composed_epsilon == pytest.approx(slow, rel=1e-6)


def test_thousands_of_clients_are_composed_only_as_often_as_they_differ(monkeypatch):
    composed, rng, messages = [], np.random.default_rng(0), []
    monkeypatch.setattr(
        "flower_fedclust.privacy.report.composed_epsilon",
        lambda releases, delta, near: composed.append(releases) or float(releases.total()),
    )
    for number in range(2, 42):
        drawn = tuple(str(index) for index in rng.choice(2000, size=600, replace=False))
        shorter = Release("gaussian", 1.0 / number, 3.0, f"rows are clipped to 1 / {number}")
        messages.append(
            Message(number, "step", "sums", "sum over the clients", shorter, clients=drawn)
        )
    most = max(Counter(name for message in messages for name in message.clients).values())
    assert report(*messages).composed_epsilon == most
    assert len(composed) == 1


def test_noise_that_is_farther_from_its_law_than_delta_allows_covers_nothing():
    near, far = (replace(SUM_2, variation=variation) for variation in (1e-10, 1e-8))
    assert report(near).guarantee().startswith("The whole run is covered")
    assert (
        report(far).guarantee().startswith("None that can be stated: at epsilon 2 and delta 1e-05")
    )
    above = report(far, requested_epsilon=2.00001).guarantee()
    assert above.startswith("None that can be stated: at epsilon 2.001 and delta")  # rounded up
    assert report(far).meaning() is None
    assert (
        report(near, near, requested_epsilon=20.0).guarantee().startswith("None that can be stated")
    )


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [(1.0, "(1, "), (1.00049, "(1.001, "), (0.5, "(0.5, "), (12.34561, "(12.35, ")],
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


# What is covered.


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("bare", [CENTERS, asked(5, "a", None), asked(5, "a", SILENT)])
def test_one_unprotected_message_is_enough_to_lose_the_guarantee(position, bare):
    messages = [SUM_2, COUNT_2]
    messages.insert(position, bare)
    mixed = report(NAME, *messages)
    assert (mixed.unprotected, mixed.releases) == ([bare], [SUM_2, COUNT_2])
    assert not mixed.covers_everything
    assert mixed.composed_epsilon == report(SUM_2, COUNT_2).composed_epsilon
    assert "NO such guarantee: 1 kind of message left the clients unprotected" in mixed.guarantee()
    assert "covered by" not in mixed.guarantee()
    assert len(section(mixed, UNPROTECTED)) == 1


@pytest.mark.parametrize(
    ("messages", "is_covered"),
    [
        ((NAME, NUMBER, KEPT), True),
        ((NAME, NUMBER, SUM_2), False),
        ((NUMBER,), False),
        ((NAME, NUMBER, CENTERS), False),
        ((NAME, replace(NUMBER, release=SUMS)), True),
        ((NAME, replace(NUMBER, release=REPLACED)), True),
    ],
)
def test_a_number_of_rows_is_harmless_only_where_rows_are_replaced(messages, is_covered):
    made = report(*messages)
    assert made.covers_everything == is_covered
    bare = [message for message in messages if message.counts_rows and message.release is None]
    assert [message for message in made.unprotected if message.counts_rows] == (
        [] if is_covered else bare
    )
    assert str(made).count("'column_sums': number of rows") == 1


def test_what_is_computed_from_protected_rows_costs_nothing():
    made = report(NAME, KEPT, DERIVED, DERIVED_NUMBER)
    assert made.covers_everything
    assert made.releases == [KEPT]
    assert made.composed_epsilon == epsilon_of(REPLACED)
    assert section(made, COMPUTED) == ["  round 3 'codes': code of every row (one per row)"]
    assert (
        section(made, HARMLESS)[1]
        == "  round 4 'column_sums': number of rows (sum over the clients)"
    )
    assert section(report(NAME, KEPT, CENTERS, DERIVED_NUMBER), COMPUTED) is None


# What is said.


@pytest.mark.parametrize("unit", PRIVACY_UNITS)
@pytest.mark.parametrize("noise", NOISE_PLACES)
@pytest.mark.parametrize("release", [SUMS, REPLACED])
def test_unit_relation_and_trust_are_said_beside_epsilon(unit, noise, release):
    made = report(NAME, replace(SUM_2, release=release), unit=unit, noise=noise)
    text = str(made)
    assert made.relation == release.relation
    assert (
        made.neighbors
        == NEIGHBOR_SENTENCES[unit, release.relation]
        == made.to_dict()["neighboring_relation"]
    )
    assert f"Neighboring data sets differ in {made.neighbors}." in text.splitlines()
    assert f"differential privacy per {unit}" in text
    assert "Asked for: epsilon 2, delta 1e-05. The releases that were made compose to " in text
    for sentence in (PLACE_SENTENCES[noise], COLLUSION_SENTENCES[noise], *TRUST_SENTENCES):
        assert f"  - {sentence}" in text
    words = (
        "Labels, metrics and costs",
        "rounding",
        "clip its own rows",
        "how long it takes",
        "Before the noise",
    )
    assert all(word in " ".join(TRUST_SENTENCES) for word in words)


def test_nothing_is_said_of_neighbors_without_noise_or_a_unit():
    for made in (
        report(replace(SUM_2, release=SILENT)),
        report(NAME, NUMBER, CENTERS),
        report(KEPT, unit=None),
    ):
        assert made.neighbors is None
        assert "Neighboring" not in str(made)
    assert report(KEPT, unit=None).guarantee().endswith("differential privacy.")
    assert report(CENTERS).assumptions() == []


@pytest.mark.parametrize(
    ("epsilon", "right", "odds", "found"),
    [(1.0, "73.2", "2.72", "2.72"), (0.1, "52.5", "1.11", "1.11"), (8.0, "100", "2990", "100")],
)
def test_what_epsilon_means_for_one_person_is_said_as_odds(epsilon, right, odds, found):
    quiet = replace(SUM_2, release=replace(SUMS, noise_multiplier=100.0))
    meaning = report(quiet, requested_epsilon=epsilon).meaning()
    assert f"right with a probability of at most {right}%" in meaning
    assert f"odds of {odds} to 1; tossing a coin gives 50%" in meaning
    assert f"accuses 1 in 100 wrongly finds at most {found} in 100" in meaning
    assert meaning in str(report(quiet, requested_epsilon=epsilon))


def test_a_meaning_says_what_it_does_not_limit():
    assert "None of this limits what is listed as unprotected." in report(SUM_2, CENTERS).meaning()
    assert "unprotected" not in report(SUM_2).meaning()
    assert (
        "epsilon is k times as large, and delta k e^((k - 1) epsilon) times"
        in report(SUM_2).meaning()
    )
    assert "k rows" not in report(SUM_2, unit="client").meaning()


def test_text_of_every_group_in_its_order():
    made = report(NAME, NUMBER, KEPT, DERIVED, DERIVED_NUMBER, CENTERS, notes=["a seed was given"])
    assert str(made).splitlines() == [
        "Privacy report of feddp-kmeans",
        "",
        f"Guarantee: {made.guarantee()}",
        f"Neighboring data sets differ in {made.neighbors}.",
        "Asked for: epsilon 2, delta 1e-05. The releases that were made compose to 0.9265.",
        "",
        "What this means for one person:",
        f"  {made.meaning()}",
        "",
        "Who is trusted, and with what:",
        *[f"  - {assumption}" for assumption in made.assumptions()],
        "",
        PROTECTED,
        "  round 2 'perturb_rows': the rows (one per row, kept by the client)",
        "      Gaussian mechanism, L2 sensitivity 2 (rows are clipped, and one is replaced), noise multiplier 4, noise "
        "scale 8",
        "",
        COMPUTED,
        "  round 3 'codes': code of every row (one per row)",
        "",
        UNPROTECTED,
        "  round 5 'centers': local centers (one per client)",
        "",
        HARMLESS,
        "  round 1 'enrol': name and columns (one per client)",
        "  rounds 2, 4 'column_sums': number of rows (sum over the clients)",
        "",
        "Notes:",
        "  - a seed was given",
    ]
    assert section(report(NAME, SUM_2), UNPROTECTED) == ["  nothing that depends on the rows"]
    assert ", noise scale 1, on 5 rows drawn from at least 1000\n" in str(
        report(asked(2, None, SAMPLED))
    )


def test_rounds_whose_sensitivity_changes_share_a_line_with_the_range():
    wider = replace(SUMS, sensitivity=2 * SUMS.sensitivity)
    heading, mechanism = section(report(SUM_2, replace(SUM_3, release=wider)), PROTECTED)
    assert heading.startswith("  rounds 2 to 3 ")
    assert f"sensitivity {SUMS.sensitivity:g} to {wider.sensitivity:g} (" in mechanism
    assert f"noise scale {SUMS.scale:g} to {wider.scale:g}" in mechanism
    other_share = replace(SUM_3, release=replace(SUMS, share="other"))
    assert len(section(report(SUM_2, other_share), PROTECTED)) == 4


@pytest.mark.parametrize(
    ("place", "how"),
    [
        ("server", "without noise, and the server adds"),
        ("clients", "its share"),
        ("local", "with noise that"),
    ],
)
def test_what_leaves_a_site_is_said_in_short(place, how):
    said = report(NAME, SUM_2, SUM_3, CENTERS, noise=place).what_leaves()
    covered, rest = said.split("Leaves each site, unprotected:\n")
    unprotected, harmless = rest.split(
        "Leaves each site, and says nothing about the values of its rows:\n"
    )
    assert how in covered
    assert covered.count(f"  - {SUM_2.content} ({SUM_2.detail})") == 1
    assert unprotected == f"  - {CENTERS.content} ({CENTERS.detail})\n"
    assert harmless == f"  - {NAME.content} ({NAME.detail})"
    assert "unprotected:\n  nothing\n" in report(NAME).what_leaves()


def test_rounds_of_the_same_message_share_a_line():
    assert "rounds 2 to 4 'assign'" in str(report(SUM_2, COUNT_2, SUM_3, SUM_4))
    assert "rounds 2, 4 'assign'" in str(report(SUM_2, COUNT_2, SUM_4))
    assert len(section(report(SUM_2, replace(SUM_3, release=LOUD)), PROTECTED)) == 4
    lines = section(
        report(asked(2, "abc"), asked(3, "ab"), asked(4, None), asked(5, "fgh")), PROTECTED
    )
    assert [line for line in lines if line.startswith("  round")] == [
        "  rounds 2, 5 'step': sums (sum over the clients, 3 of 8 clients asked)",
        "  round 3 'step': sums (sum over the clients, 2 of 8 clients asked)",
        "  round 4 'step': sums (sum over the clients)",
    ]


@pytest.mark.parametrize(
    "messages", [(), (NAME,), (CENTERS,), (NAME, SUM_2, asked(3, "ab")), (KEPT, NUMBER, DERIVED)]
)
def test_a_report_goes_through_json_unchanged(messages):
    made = report(*messages, notes=("public rows were used",))
    fields = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert PrivacyReport.from_dict(fields) == made
    assert fields["guarantee"] == made.guarantee()
    assert fields["covers_everything"] == made.covers_everything
    assert fields["epsilon"] == (made.epsilon if made.releases else None)
