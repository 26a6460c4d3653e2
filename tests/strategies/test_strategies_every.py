"""Every strategy keeps the promises that every strategy makes: `check_strategy` over the whole registry."""

from contextlib import suppress
from functools import lru_cache
from typing import get_args

import numpy as np
import pytest
from tested import PAPERS, entries

import flower_fedclust.registry as registry
from flower_fedclust.checking import Subject, strategy_checks
from flower_fedclust.engine.parameters import _declared
from flower_fedclust.privacy.releases import NOISE_PLACES, PRIVACY_UNITS

PUBLIC = np.random.default_rng(0).normal(size=(12, 4))

#: What makes a run short, for strategies that have it and say nothing else in their entry's example.
SHORT = {
    "n_rounds": 2,
    "n_lloyd_rounds": 2,
    "n_local_steps": 2,
    "n_membership_steps": 2,
    "n_center_steps": 2,
    "n_sampling_rounds": 1,
    "n_pretraining_rounds": 1,
    "n_landmarks": 6,
    "n_atoms": 6,
    "n_prototypes": 6,
    "coreset_size": 6,
    "n_epochs": 1,
    "n_pretraining_epochs": 1,
    "n_targets": 2,
    "n_hidden": 8,
    "n_latent": 2,
    "n_samples": 30,
    "n_synthetic": 30,
    "perplexity": 5.0,
    "n_neighbors": 5,
    "batch_size": 10,
}

#: Large enough to be calibrated fast.
EPSILON = 8.0

#: Bounds that noise needs.
BOUNDS = {"max_norm": 1.0, "max_l1_norm": 2.0, "max_code_norm": 1.0}


def options_of(entry):
    accepted = set(entry.strategy.parameter_names()) - set(entry.fixed)
    options = {"n_clusters": 3} | {name: value for name, value in SHORT.items() if name in accepted}
    if "server_data" in accepted:
        options["server_data"] = PUBLIC
    return options | dict(entry.example)


def variants_of(entry):
    """Yield the strategy as its entry's example has it, and each other way in which it can be private, by name."""
    cls, options = entry.strategy, options_of(entry)
    hints = {name: hint for name, hint, _ in _declared(cls)}
    base = cls(**entry.fixed, **options)
    if base.epsilon is not None and "epsilon" not in entry.example:
        base = cls(**entry.fixed, **options | {"epsilon": EPSILON})
    yield "", base
    if "epsilon" not in hints or "epsilon" in entry.fixed:
        return
    if entry.name != cls.entries[0].name and cls.entries[0].fixed.keys() == entry.fixed.keys():
        return  # names that differ in the value of a parameter alone: the first stands for all
    bounded = options | {
        name: value for name, value in BOUNDS.items() if name in hints and name not in options
    }
    ways = {"without": options | {"epsilon": None}} if base.epsilon is not None else {}
    for place in get_args(hints["noise"]) if "noise" in hints else ("server",):
        for unit in get_args(hints["privacy_unit"]) if "privacy_unit" in hints else ("record",):
            if base.epsilon is None or (place, unit) != (base.noise, base.privacy_unit):
                more = {"epsilon": EPSILON, "noise": place, "privacy_unit": unit}
                ways[f"{place}-{unit}"] = bounded | {
                    name: value for name, value in more.items() if name in hints
                }
    for variant, parameters in ways.items():
        # Some classes are never without an epsilon, or never with one.
        with suppress(ValueError):
            yield variant, cls(**entry.fixed, **parameters)


#: Noise on something else than the examples have it on.
ELSEWHERE = {
    "fed-tsne-perturbed data": {"perturb": "data", "n_rounds": 2, "perplexity": 5.0},
    "fed-tsne-perturbed distances": {"perturb": "distances", "n_rounds": 2, "perplexity": 5.0},
    "fed-speclust-perturbed kernel": {"perturb": "kernel", "n_rounds": 2},
}
#: Little enough noise that private k-means compares several solutions by their costs, even on tables this small.
MANY_SOLUTIONS = 128.0


@lru_cache
def cases():
    """Return what is checked, by name; noise that clients add once for each client half."""
    found, of_clients = {}, {}
    for name, entry in entries().items():
        for variant, made in variants_of(entry):
            half = (entry.strategy.client_type, variant)
            if (
                not variant.startswith(("clients", "local"))
                or of_clients.setdefault(half, name) == name
            ):
                found[f"{name} {variant}".strip()] = made
    for case, options in (ELSEWHERE if PAPERS else {}).items():
        kind = registry.find(case.partition(" ")[0]).strategy
        found[case] = kind(3, n_landmarks=6, epsilon=EPSILON, max_norm=1.0, **options)
    if not PAPERS:
        kind = registry.find("private-kmeans").strategy
        found["private-kmeans many"] = kind(3, epsilon=MANY_SOLUTIONS, max_norm=1.0)
        # With few rows a mixture takes steps of k-means, unless it is told which covariances it has.
        kind = registry.find("private-mixture").strategy
        found["private-mixture diag"] = kind(
            3, epsilon=EPSILON, max_norm=1.0, covariance_type="diag"
        )
    return found


def has_noise(case):
    return cases()[case].epsilon is not None


@lru_cache(maxsize=4)
def subject_of(case):
    return Subject(cases()[case])


#: Checks for every place of the noise and every unit, then further ones for noise at the clients and at the server, and
#: for one case with noise and one without. All other checks run once for each class, with its first example.
AGAIN = {
    "the_class_says_for_whom_it_can_be_private",
    "all_that_leaves_is_declared_and_reported",
    "epsilon_is_spent_and_not_exceeded",
    "noise_has_its_declared_scale",
    "noise_that_protects_is_never_repeated",
    "a_site_that_allows_sums_alone_sends_nothing_else",
}
WITH_THE_CLIENTS = {"the_message_api_gives_the_same_bits", "every_number_is_finite"}
WITH_THE_SERVER = {
    "a_seed_repeats_every_bit",
    "the_number_of_rounds_is_enough",
    "the_budget_can_be_divided_by_name",
    "noise_off_is_no_noise",
    "no_neighbor_moves_a_release_too_far",
}
WITH_AND_WITHOUT_NOISE = {
    "the_order_of_the_clients_changes_nothing",
    "a_client_that_fails_is_named",
    "extreme_values_are_survived",
}
#: The engine draws the noise of clients and adds up persons, for every strategy alike. These have several sums for all
#: units, a sum, and rows that clients keep; `make check` has all strategies.
DRAWN_BY_CLIENTS = {"feddp-kmeans", "federated-kmeans-private", "fedsc-sums"}
#: Checks that depend on what a strategy asks and on its budget, which differ in each way of being private. How far a
#: row moves what is asked is looked at in test_strategies_declared.py, too.
OF_EACH_WAY = {
    "the_class_says_for_whom_it_can_be_private",
    "all_that_leaves_is_declared_and_reported",
    "epsilon_is_spent_and_not_exceeded",
    "every_number_is_finite",
    "the_number_of_rounds_is_enough",
}
#: Checks of the clients and of the engine, which two strategies with the same clients pass alike.
OF_THE_CLIENTS = {
    "a_client_that_fails_is_named",
    "a_client_that_is_never_there_is_survived",
    "a_client_with_other_columns_is_left_out",
    "a_seed_repeats_every_bit",
    "a_site_that_allows_sums_alone_sends_nothing_else",
    "extreme_values_are_survived",
    "no_neighbor_moves_a_release_too_far",
    "noise_has_its_declared_scale",
    "noise_that_protects_is_never_repeated",
    "rows_that_are_few_or_equal_are_survived",
    "the_evaluation_is_asked_for_once",
    "the_message_api_gives_the_same_bits",
    "the_order_of_the_clients_changes_nothing",
}


#: Checks of the engine: what can differ is of which kinds a strategy's rounds are.
OF_THE_ENGINE = {
    "a_client_that_fails_is_named",
    "a_client_that_is_never_there_is_survived",
    "a_client_with_other_columns_is_left_out",
    "noise_has_its_declared_scale",
    "noise_that_protects_is_never_repeated",
    "the_evaluation_is_asked_for_once",
    "the_message_api_gives_the_same_bits",
}
#: Runs whose rounds differ in kind: sums with and without noise, replies one by one, kept rows, clients that are drawn.
OF_EACH_KIND = {
    "dp-fedc server-record",
    "fed-speclust",
    "fedsc",
    "fedsc-sums server-record",
    "feddp-kmeans",
    "federated-kmeans-private",
    "k-fed",
    "private-density",
}
#: How the rounds of one strategy are private, one by one: who draws the noise, then whom it protects.
ONE_BY_ONE = {"without", "server-subject", "server-client", "clients-record", "local-record"}
#: Strategies that draw a map in every run. test_strategies_declared.py has what a row moves for each class, and
#: Fed-tSNE meets extreme values as they do.
OF_MAPS = {"fed-tsne-sums", "fed-umap-sums"}
OF_MANY_RUNS = {"extreme_values_are_survived", "no_neighbor_moves_a_release_too_far"}


@lru_cache
def first_with_these_clients(name):
    """Return the first strategy whose class has the same clients."""
    kind = registry.find(name).strategy.client_type
    return next(other for other, entry in entries().items() if entry.strategy.client_type is kind)


def applies(check, case):
    name, _, variant = case.partition(" ")
    if not variant and name != registry.find(name).strategy.entries[0].name:
        # Other fixed parameters, the same code.
        return check in AGAIN or check == "no_neighbor_moves_a_release_too_far"
    others = [
        other
        for other in cases()
        if other.partition(" ")[0] == name and has_noise(other) != has_noise(name)
    ]
    of_case = {"clients": WITH_THE_CLIENTS, "without": WITH_THE_CLIENTS, "local": set()}
    of_this = of_case.get(variant.partition("-")[0], WITH_THE_SERVER)
    if others and case == others[-1 if has_noise(name) else 0]:
        of_this = of_this | WITH_AND_WITHOUT_NOISE | WITH_THE_CLIENTS
    return not variant or check in of_this or (check in AGAIN and variant != "without")


def is_long(check, case):
    """Whether `make check` alone runs a check: what can differ from cases that `make test` runs is little, or slow."""
    name, _, variant = case.partition(" ")
    if PAPERS:
        return False
    if first_with_these_clients(name) != name and check in OF_THE_CLIENTS:
        return True
    if check in OF_THE_ENGINE and variant in ("", "server-record") and case not in OF_EACH_KIND:
        return True
    if check in OF_MANY_RUNS and name in OF_MAPS:
        return True
    if not variant:
        return False
    if name == "feddp-kmeans":
        return variant not in ONE_BY_ONE
    if variant == "server-record" and not has_noise(name):  # the first way in which it is private
        return check in {"a_client_that_fails_is_named", "extreme_values_are_survived"}
    if variant.startswith(("clients", "local")) or variant.endswith("subject"):
        return name not in DRAWN_BY_CLIENTS or variant.endswith("subject")
    return check not in OF_EACH_WAY


def parametrised():
    for case in cases():
        for check in strategy_checks():
            # `make check` has large audits of all strategies instead of the small ones.
            if applies(check.name, case) and check.name != "a_small_audit_finds_nothing":
                marks = [pytest.mark.long] if is_long(check.name, case) else []
                yield pytest.param(
                    case, check, id=f"{case}-{check.name}".replace(" ", "-"), marks=marks
                )


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("case", "check"), list(parametrised()))
def test_every_strategy_keeps_every_promise(case, check):
    check(subject_of(case))


def test_every_place_and_every_unit_is_among_the_cases():
    made = cases().values()
    named = AGAIN | WITH_THE_CLIENTS | WITH_THE_SERVER | WITH_AND_WITHOUT_NOISE
    assert named <= {check.name for check in strategy_checks()}
    if not PAPERS:
        assert {strategy.noise for strategy in made if strategy.epsilon is not None} == set(
            NOISE_PLACES
        )
        assert {strategy.privacy_unit for strategy in made if strategy.epsilon is not None} == set(
            PRIVACY_UNITS
        )
    assert {case.partition(" ")[0] for case in cases()} == set(entries())
