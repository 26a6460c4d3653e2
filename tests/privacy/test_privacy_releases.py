import dataclasses
import json
import math

import dp_accounting
import pytest

from flower_fedclust.privacy.releases import NOISE_PLACES, PRIVACY_UNITS, Release


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, 5e-324, math.inf, math.nan])
def test_a_sensitivity_that_bounds_nothing_is_refused(sensitivity):
    with pytest.raises(ValueError, match=f"^sensitivity is {sensitivity}; it must be finite and at least 2"):
        Release("gaussian", sensitivity, 1.0, "")


@pytest.mark.parametrize("multiplier", [-0.1, math.inf, math.nan])
def test_a_noise_multiplier_that_is_not_a_finite_amount_is_refused(multiplier):
    with pytest.raises(ValueError, match=f"^noise_multiplier is {multiplier}; it must be finite and not negative.$"):
        Release("laplace", 1.0, multiplier, "")


def test_a_release_may_carry_no_noise():
    assert Release("gaussian", 2.0, 0.0, "").scale == 0.0


def test_the_scale_is_sensitivity_times_multiplier():
    assert Release("gaussian", 4.0, 0.75, "").scale == 3.0


@pytest.mark.parametrize(("mechanism", "norm"), [("gaussian", "L2"), ("laplace", "L1")])
def test_the_norm_is_that_of_the_mechanism(mechanism, norm):
    assert Release(mechanism, 1.0, 1.0, "").norm == norm


def test_the_event_is_that_of_the_mechanism_and_free_of_units():
    assert Release("gaussian", 4.0, 0.75, "").event() == dp_accounting.GaussianDpEvent(0.75)
    assert Release("laplace", 4.0, 0.75, "").event() == dp_accounting.LaplaceDpEvent(0.75)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_a_release_goes_through_json_unchanged(mechanism):
    release = Release(mechanism, 1 / 3, math.pi, "rows are clipped to 1/3")
    assert Release.from_dict(json.loads(json.dumps(release.to_dict(), allow_nan=False))) == release


def test_what_comes_from_json_is_checked_again():
    fields = Release("gaussian", 1.0, 1.0, "").to_dict()
    with pytest.raises(ValueError, match="sensitivity"):
        Release.from_dict(fields | {"sensitivity": -1.0})
    with pytest.raises(TypeError):
        Release.from_dict(fields | {"unknown": 1})


def test_a_mechanism_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"^mechanism is 'exponential'; it must be one of: gaussian, laplace\.$"):
        Release("exponential", 1.0, 1.0, "")


def test_a_release_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Release("gaussian", 1.0, 1.0, "").noise_multiplier = 0.0


def test_units_and_places_are_those_of_the_interface():
    assert PRIVACY_UNITS == ("record", "client")
    assert NOISE_PLACES == ("server", "clients", "local")
