"""Audits look at the noise of large arrays and of large entries, which runs on small tables never draw."""

import math
import re
from itertools import cycle

import numpy as np
import pytest
from checking_toys import Means, changed

import flower_fedclust.privacy.noise as noise_module
from flower_fedclust.checking import Subject, audit
from flower_fedclust.checking.noise import Drawer
from flower_fedclust.checking.stand_ins import N_ENTRIES, findings_of_stand_ins
from flower_fedclust.engine import DataError
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.models import KMeansModel

pytestmark = pytest.mark.usefixtures("repeatable_noise")

PLACES = ("server", "clients", "local")


def found_in(**options):
    subject = Subject(Means(2, **options))
    return findings_of_stand_ins(subject.run, Drawer(subject.run, subject.names[0]), 1e-6)


@pytest.mark.parametrize("noise", PLACES)
@pytest.mark.parametrize("gathers", [False, True])
def test_sound_noise_is_sound_in_large_arrays_too(noise, gathers):
    assert found_in(noise=noise, gathers=gathers) == ([], [])


def test_what_there_is_no_time_for_is_named():
    subject = Subject(Means(2))
    found, left = findings_of_stand_ins(
        subject.run, Drawer(subject.run, subject.names[0]), 1e-6, deadline=0.0
    )
    assert (found, left) == ([], ["the noise of 'sums' for large arrays"])


# Planted faults. Each is in the code that every place of the noise shares.


def by_entry(change):
    """Return noise that is changed given the entries that it is added to, in deviations."""
    drawn = noise_module._with_noise

    def with_noise(array, release, *rest):
        noisy = drawn(array, release, *rest)
        plain = noise_module.on_grid(array).refined(noisy.exponent)
        noise = (noisy.integers - plain.integers).ravel()
        deviations = np.ldexp(plain.integers.astype(float), noisy.exponent).ravel() / release.scale
        changed_noise = change(noise, deviations).astype(np.int64)
        return GridArray(
            plain.integers + changed_noise.reshape(plain.integers.shape), noisy.exponent
        )

    return with_noise


def again(noise, period, sign=1):
    return sign * np.resize(noise[:period], noise.shape) if noise.size > period else noise


FAULTS = {
    "none above 20 deviations": (
        lambda n, x: np.where(np.abs(x) > 20, 0, n),
        "depends on the entries",
    ),
    "none below -1000 deviations": (
        lambda n, x: np.where(x < -1000, 0, n),
        "depends on the entries",
    ),
    "none on zeros": (
        lambda n, x: np.where((x == 0) & (np.abs(x).max() > 0), 0, n),
        "depends on the entries",
    ),
    "half in one octave": (
        lambda n, x: np.where((x > 8) & (x < 16), n // 2, n),
        "depends on the entries",
    ),
    "away from zero": (lambda n, x: np.where(x > 1000, np.abs(n), n), "depends on the entries"),
    "repeats after 2,048 entries": (lambda n, _: again(n, 2048), "repeats itself"),
    "repeats after 8,192 entries": (lambda n, _: again(n, 8192), "repeats itself"),
    "the negative of what was 2,048 entries earlier": (
        lambda n, _: np.concatenate([n[:2048], -n[:-2048]]) if n.size > 2048 else n,
        "repeats itself|depends on itself 2048 entries earlier|depends on itself",
    ),
    "every second entry repeats": (
        lambda n, _: np.where(np.arange(n.size) % 2, n, again(n, 2048)),
        "depends on itself",
    ),
    "none beyond the first 4,096 entries": (
        lambda n, _: np.where(np.arange(n.size) < 4096, n, 0),
        "narrower",
    ),
    "half in one block of 2,048": (
        lambda n, _: np.where(np.arange(n.size) // 2048 == 3, n // 2, n),
        "narrower than declared in one of its parts",
    ),
    "narrower in large arrays": (lambda n, _: n * 3 // 4 if n.size > 1000 else n, "narrower"),
}


@pytest.mark.parametrize(("fault", "noise"), list(zip(FAULTS, cycle(PLACES), strict=False)))
def test_a_fault_that_small_arrays_do_not_show_is_found(fault, noise, monkeypatch):
    change, says = FAULTS[fault]
    monkeypatch.setattr(noise_module, "_with_noise", by_entry(change))
    found, left = found_in(noise=noise, n_rounds=1)
    assert any(re.search(says, one) for one in found), found
    assert left == []


@pytest.mark.long
def test_an_audit_says_that_it_is_broken(monkeypatch):
    monkeypatch.setattr(
        noise_module, "_with_noise", by_entry(FAULTS["none above 20 deviations"][0])
    )
    found = audit(Means(2), runs=10)
    assert found.verdict == "broken"
    assert any("depends on the entries that it is added to" in one for one in found.broken)


def test_words_of_the_operating_system_that_repeat_are_found(monkeypatch):
    words = noise_module.OperatingSystemNoise.words
    monkeypatch.setattr(
        noise_module.OperatingSystemNoise,
        "words",
        lambda self, size: np.resize(words(self, min(size, 2048)), size),
    )
    found, _ = found_in(n_rounds=1)
    assert any("repeats itself" in one or "depends on itself" in one for one in found)


# A strategy that the server refuses.


def test_a_strategy_that_the_server_refuses_is_broken_in_one_line():
    found = audit(changed(paid_by=("sums", "no such part"))(2), runs=10)
    assert found.verdict == "broken"
    assert found.sentence.startswith("broken: a run ends with ProtocolError: ")
    assert "no such part" in found.sentence
    assert "\n" not in found.sentence
    assert str(found).startswith("Audit of Broken: broken: a run ends")
    assert found.to_dict()["verdict"] == "broken"


def unfinished(self):
    for _ in range(9):
        yield self.ask()


def failing(self):
    yield self.ask()
    raise KeyError(f"{math.pi}")


def with_shapes_that_do_not_fit(self):
    yield self.ask()
    return KMeansModel(np.zeros((2, 3)) @ np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("protocol", "says"),
    [
        (unfinished, "ProtocolError: 'sums' is round 3 of the protocol"),
        (failing, "KeyError"),
        (with_shapes_that_do_not_fit, "ValueError"),
    ],
)
def test_a_strategy_whose_own_half_fails_is_broken(protocol, says):
    found = audit(changed(protocol=protocol)(2), runs=10)
    assert found.sentence.startswith(f"broken: a run ends with {says}")
    assert "3.14" not in str(found)


def test_rows_and_parameters_that_do_not_fit_are_errors_of_the_caller():
    def no_rows(self):
        yield self.ask()
        raise DataError("client a has too few rows.")

    with pytest.raises(DataError, match="too few rows"):
        audit(changed(protocol=no_rows)(2), runs=10)
    with pytest.raises(ValueError, match="n_clusters is 1"):
        audit(Means(1), runs=10)


def test_arrays_are_larger_than_a_block_of_each_sampler():
    assert N_ENTRIES > 8 * noise_module.BLOCK
