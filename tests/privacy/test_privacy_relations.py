"""How neighbouring data sets differ: what composes, what is said of it, and which messages it leaves harmless."""

import json
import math
from itertools import permutations

import pytest

from flower_fedclust.privacy.accounting import composed_epsilon, delta_of_composition
from flower_fedclust.privacy.releases import PRIVACY_UNITS, Release
from flower_fedclust.privacy.report import NEIGHBOUR_SENTENCES, Message, PrivacyReport

DELTA = 1e-5
RELATIONS = ("add-or-remove", "replace")

ADDED = Release("gaussian", 1.0, 4.0, "rows are clipped")
REPLACED = Release("gaussian", 2.0, 4.0, "rows are clipped, and one is replaced", relation="replace")

NAME = Message(1, "enrol", "name and columns", "one per client", harmless=True)
NUMBER = Message(2, "column_sums", "number of rows", "sum over the clients", counts_rows=True)
KEPT = Message(2, "perturb_rows", "the rows", "one per row, kept by the client", REPLACED)
DERIVED = Message(3, "codes", "code of every row", "one per row", post_processing=True)
DERIVED_NUMBER = Message(4, "column_sums", "number of rows", "sum over the clients", None, True, counts_rows=True)
BARE = Message(5, "centers", "local centers", "one per client")
ADDED_SUM = Message(6, "assign", "sums", "sum over the clients", ADDED)

PROTECTED = "Protected by noise:"
COMPUTED = "Computed from nothing but what is protected above, so that it costs no more:"
UNPROTECTED = "Unprotected (no mechanism covers these messages):"
HARMLESS = "Sent, and independent of the values of the rows:"


def report(*messages, **options):
    fields = {"requested_epsilon": 2.0, "delta": DELTA, "unit": "record", "noise": "local"}
    return PrivacyReport("fedsc-perturbed-data", messages, **(fields | options))


def section(text, heading):
    lines = text.splitlines()
    if heading not in lines:
        return None
    start = lines.index(heading) + 1
    stop = next((index for index in range(start, len(lines)) if not lines[index]), len(lines))
    return lines[start:stop]


# Releases.


def test_release_is_for_adding_or_removing_unless_it_says_otherwise():
    assert ADDED.relation == "add-or-remove"
    assert Release.from_dict({"mechanism": "laplace", "sensitivity": 1.0, "noise_multiplier": 1.0, "bound": ""}) == (
        Release("laplace", 1.0, 1.0, "", "add-or-remove")
    )


def test_relation_goes_through_json():
    assert Release.from_dict(json.loads(json.dumps(REPLACED.to_dict()))) == REPLACED
    assert Release.from_dict(json.loads(json.dumps(ADDED.to_dict()))).relation == "add-or-remove"


@pytest.mark.parametrize("relation", ["", "add", "Replace", None])
def test_relation_that_does_not_exist_is_told_the_two_that_do(relation):
    with pytest.raises(ValueError, match=r"^relation is .*; it must be one of: add-or-remove, replace\.$"):
        Release("gaussian", 1.0, 1.0, "", relation)


# Composition.


@pytest.mark.parametrize("mixed", list(permutations([ADDED, REPLACED, REPLACED])))
def test_releases_for_different_relations_do_not_compose(mixed):
    sentence = "^releases for adding or removing a record do not compose with releases for replacing one[.]$"
    for near in (None, 1.0):
        with pytest.raises(ValueError, match=sentence):
            composed_epsilon(mixed, DELTA, near=near)


def test_releases_without_noise_do_not_compose_across_relations_either():
    with pytest.raises(ValueError, match="do not compose"):
        composed_epsilon([Release("gaussian", 1.0, 0.0, ""), REPLACED], DELTA)


@pytest.mark.parametrize("count", [1, 3])
def test_epsilon_depends_on_the_multiplier_and_not_on_the_relation_for_which_it_is_one(count):
    # The sensitivity, of which the noise is a multiple, is that of the release's own relation.
    assert composed_epsilon([REPLACED] * count, DELTA, near=1.0) == composed_epsilon([ADDED] * count, DELTA, near=1.0)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_same_noise_is_half_the_multiplier_where_a_row_is_replaced_and_costs_more(mechanism):
    scale, norm = 8.0, 1.0
    replaced = Release(mechanism, 2 * norm, scale / (2 * norm), "", relation="replace")
    added = Release(mechanism, norm, scale / norm, "")
    assert replaced.scale == added.scale
    half = Release(mechanism, norm, scale / (2 * norm), "")
    assert composed_epsilon([replaced], DELTA, near=1.0) == composed_epsilon([half], DELTA, near=1.0)
    assert composed_epsilon([replaced], DELTA, near=1.0) > composed_epsilon([added], DELTA, near=1.0)


def test_iterators_compose_as_lists_do():
    assert composed_epsilon(iter([REPLACED, REPLACED]), DELTA, near=1.0) == (
        composed_epsilon([REPLACED, REPLACED], DELTA, near=1.0)
    )


def test_report_of_releases_for_different_relations_gives_no_epsilon():
    mixed = report(KEPT, ADDED_SUM)
    for read in (lambda: mixed.epsilon, mixed.guarantee, mixed.to_dict, lambda: str(mixed)):
        with pytest.raises(ValueError, match="do not compose"):
            read()


# What is said.


@pytest.mark.parametrize(
    ("unit", "relation", "sentence"),
    [
        (
            "record",
            "add-or-remove",
            "one row of one client, added or removed (that a client has rows at all is not hidden)",
        ),
        (
            "client",
            "add-or-remove",
            "all that one client contributes, added or removed (that the client took part is not hidden)",
        ),
        (
            "record",
            "replace",
            "one row of one client, replaced by any other (how many rows a client has is not hidden)",
        ),
        ("client", "replace", "all rows of one client, replaced by as many others (how many it has is not hidden)"),
    ],
)
def test_relation_of_the_releases_and_the_unit_are_said_beside_epsilon(unit, relation, sentence):
    release = REPLACED if relation == "replace" else ADDED
    made = report(NAME, Message(2, "assign", "sums", "sum over the clients", release), unit=unit)
    assert made.relation == relation
    assert made.neighbours == sentence
    assert made.to_dict()["neighbouring_relation"] == sentence
    assert f"Neighbouring data sets differ in {sentence}." in str(made).splitlines()


def test_there_is_a_sentence_for_every_unit_and_relation():
    assert set(NEIGHBOUR_SENTENCES) == {(unit, relation) for unit in PRIVACY_UNITS for relation in RELATIONS}


def test_relation_is_that_of_what_has_noise():
    without_noise = Message(2, "assign", "sums", "", Release("gaussian", 1.0, 0.0, ""))
    assert report(without_noise).relation is None
    assert report(without_noise, KEPT).relation == "replace"
    assert report(NAME, NUMBER, BARE).relation is None
    assert report(NAME, NUMBER, BARE).neighbours is None
    assert "Neighbouring" not in str(report(NAME, NUMBER, BARE))


def test_no_relation_is_named_without_a_unit():
    assert report(KEPT, unit=None).neighbours is None
    assert "Neighbouring" not in str(report(KEPT, unit=None))


# Numbers of rows.


def test_number_of_rows_is_harmless_where_rows_are_replaced():
    made = report(NAME, NUMBER, KEPT)
    assert made.unprotected == []
    assert made.covers_everything
    assert section(str(made), HARMLESS) == [
        "  round 1 'enrol': name and columns (one per client)",
        "  round 2 'column_sums': number of rows (sum over the clients)",
    ]


def test_number_of_rows_is_unprotected_where_rows_are_added_or_removed():
    made = report(NAME, NUMBER, ADDED_SUM)
    assert made.unprotected == [NUMBER]
    assert not made.covers_everything
    assert section(str(made), UNPROTECTED) == ["  round 2 'column_sums': number of rows (sum over the clients)"]
    assert section(str(made), HARMLESS) == ["  round 1 'enrol': name and columns (one per client)"]


@pytest.mark.parametrize("messages", [(NUMBER,), (NAME, NUMBER, BARE)])
def test_number_of_rows_is_unprotected_where_nothing_is_released(messages):
    made = report(*messages)
    assert NUMBER in made.unprotected
    assert not made.covers_everything
    assert made.epsilon == math.inf


def test_number_of_rows_with_noise_of_its_own_is_protected_where_rows_are_added_or_removed():
    counted = Message(2, "column_sums", "number of rows", "sum over the clients", ADDED, counts_rows=True)
    made = report(NAME, counted)
    assert made.covers_everything
    assert len(section(str(made), PROTECTED)) == 2


def test_number_of_rows_with_noise_of_its_own_is_listed_once_where_rows_are_replaced():
    counted = Message(2, "column_sums", "number of rows", "sum over the clients", REPLACED, counts_rows=True)
    assert str(report(NAME, counted)).count("'column_sums': number of rows") == 1


# Post-processing.


def test_what_comes_from_protected_rows_costs_nothing_and_is_listed_as_such():
    made = report(NAME, KEPT, DERIVED)
    assert made.covers_everything
    assert made.unprotected == []
    assert made.releases == [KEPT]
    assert made.composed_epsilon == composed_epsilon([REPLACED], delta_of_composition(DELTA), near=2.0)
    assert made.guarantee().startswith("The whole run is covered by ")
    assert section(str(made), COMPUTED) == ["  round 3 'codes': code of every row (one per row)"]


def test_nothing_but_post_processing_is_no_guarantee():
    made = report(NAME, DERIVED)
    assert not made.covers_everything
    assert made.guarantee().startswith("None.")


def test_heading_of_what_is_computed_is_there_only_where_something_is():
    assert COMPUTED not in str(report(NAME, KEPT, BARE))
    assert COMPUTED not in str(report(NAME, KEPT, DERIVED_NUMBER))


def test_number_of_rows_from_protected_rows_is_listed_once_among_what_is_harmless():
    text = str(report(NAME, KEPT, DERIVED, DERIVED_NUMBER))
    assert text.count("number of rows (sum over the clients)") == 1
    assert "  round 4 'column_sums': number of rows (sum over the clients)" in section(text, HARMLESS)


def test_text_of_every_group_in_its_order():
    made = report(NAME, NUMBER, KEPT, DERIVED, DERIVED_NUMBER, BARE, notes=["a seed was given"])
    assert str(made).splitlines() == [
        "Privacy report of fedsc-perturbed-data",
        "",
        "Guarantee: The releases below compose to (2, 1e-05)-differential privacy per record. The "
        "run as a whole has NO such guarantee: 1 kind of message left the clients unprotected.",
        "Neighbouring data sets differ in one row of one client, replaced by any other (how many rows a client has is "
        "not hidden).",
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


def test_json_says_of_every_message_what_the_text_says():
    messages = json.loads(json.dumps(report(NAME, NUMBER, KEPT, DERIVED).to_dict(), allow_nan=False))["messages"]
    assert [message["counts_rows"] for message in messages] == [False, True, False, False]
    assert [message["post_processing"] for message in messages] == [False, False, False, True]
    assert messages[2]["release"]["relation"] == "replace"
