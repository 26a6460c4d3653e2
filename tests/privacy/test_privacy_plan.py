"""The plan of a run: what it composes to, and that nothing which another party sends instead of one does harm."""

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flower_fedclust.privacy.accounting import (
    LONGEST_NAME,
    LONGEST_PLAN,
    MOST_RELEASES,
    MOST_SHARES,
    Plan,
    Share,
    calibrate,
    composed_epsilon,
    delta_of_composition,
    releases_of,
)

SHARES = {"sums": Share("gaussian", 0.7, 3, "replace", (10, 1000)), "counts": Share("laplace", 0.3, 2, "replace")}


def plan(shares=SHARES, *, epsilon=1.0, factor=1.0, **changed):
    multipliers = calibrate(shares, epsilon, delta_of_composition(1e-6))
    multipliers = {name: factor * multiplier for name, multiplier in multipliers.items()} | changed
    return Plan(epsilon, 1e-6, "local", "record", shares, multipliers)


def written(made=None):
    return json.loads((made or plan()).to_json())


def changed(**fields):
    """A plan whose first share has other fields."""
    found = written()
    found["shares"]["sums"] |= fields
    return found


def test_a_plan_is_read_as_it_was_written():
    assert Plan.from_dict(written()) == plan()
    assert len(plan().to_json()) < LONGEST_PLAN


# What it composes to.


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_calibrated_noise_is_within_what_was_asked_for(epsilon):
    plan(epsilon=epsilon).check()


def test_less_noise_than_was_asked_for_is_refused():
    with pytest.raises(ValueError, match="epsilon"):
        plan(factor=0.999).check()


def test_a_share_without_noise_is_not_counted_as_one_that_protects():
    plan(sums=0.0).check()
    plan(sums=0.0, counts=0.0).check()
    Plan(None, 1e-6, "local", "record", SHARES, dict.fromkeys(SHARES, 0.0)).check()


def test_releases_compose_to_the_same_in_any_order():
    shares = {str(index): Share("laplace", 1.0 + index, 1 + index % 3) for index in range(6)}
    multipliers = calibrate(shares, 1.0, 1e-6)
    releases = list(releases_of(shares, multipliers).elements())
    spent = [composed_epsilon(some, 1e-6, near=1.0) for some in (releases, releases[::-1], releases[5:] + releases[:5])]
    assert spent[0] == spent[1] == spent[2] <= 1.0


# What another party sends.


@pytest.mark.parametrize(
    "found",
    [
        None,
        7,
        "shares",
        [],
        {},
        {"shares": {}},
        written() | {"epsilon": 0.0},
        written() | {"epsilon": math.inf},
        written() | {"epsilon": True},
        written() | {"epsilon": "1"},
        written() | {"epsilon": 10**400},
        written() | {"delta": 1},
        written() | {"delta": -1e-6},
        written() | {"noise": "nobody"},
        written() | {"unit": ["record"]},
        written() | {"shares": []},
        written() | {"shares": {"sums": None}},
        written() | {"shares": {"s" * (LONGEST_NAME + 1): written()["shares"]["counts"]}},
        written() | {"shares": {str(index): written()["shares"]["counts"] for index in range(MOST_SHARES + 1)}},
        changed(multiplier=0.0),
        changed(multiplier=True),
        changed(multiplier=math.nan),
        changed(multiplier=1e-9),
        changed(multiplier=1e-300),
        changed(fraction=math.inf),
        changed(count=0),
        changed(count=2.0),
        changed(count=True),
        changed(count=MOST_RELEASES + 1),
        changed(sample=[10]),
        changed(sample=[10, 5]),
        changed(sample=[1.5, 5]),
        changed(sample=[True, 5]),
        changed(sample="ab"),
        changed(mechanism="exponential"),
        changed(mechanism=[]),
        changed(mechanism="laplace"),
        changed(relation="add-or-remove"),
        changed(relation=None),
    ],
)
def test_what_is_no_plan_is_refused(found):
    with pytest.raises(ValueError, match=r"plan|noise|unit|mechanism|relation|sample"):
        Plan.from_dict(found)


numbers = st.one_of(st.floats(1e-3, 1e6), st.floats(), st.integers(-5, 5), st.integers(), st.booleans(), st.text())
samples = st.one_of(st.none(), st.lists(st.integers(0, 2**60), max_size=3), st.tuples(st.just(1), st.just(2**53 - 1)))
any_share = st.fixed_dictionaries(
    {
        "mechanism": st.sampled_from(["gaussian", "laplace"]),
        "fraction": st.just(1.0),
        "count": st.one_of(st.integers(1, MOST_RELEASES), st.integers()),
        "relation": st.just("replace"),
        "sample": samples,
        "multiplier": st.one_of(st.floats(1e-3, 1e6), numbers),
    }
)
any_plan = st.fixed_dictionaries(
    {
        "epsilon": st.one_of(st.floats(1e-300, 1e300), numbers),
        "delta": st.one_of(st.floats(1e-12, 0.5), numbers),
        "noise": st.sampled_from(["local", "server"]),
        "unit": st.sampled_from(["record", "client"]),
        "shares": st.dictionaries(st.text(max_size=5), any_share, max_size=4),
    }
)
json_like = st.recursive(
    st.one_of(st.none(), numbers), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(any_plan, json_like))
def test_any_plan_is_read_or_refused_and_composes_to_something(found):
    try:
        read = Plan.from_dict(found)
    except ValueError:
        return
    assert read.epsilon_of_row(1e-6) >= 0
