"""Before and after a run, its epsilon is at most the one that was asked for: every strategy, in every way it is run."""

from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import test_strategies_every as every
from tested import PAPERS

import flower_fedclust as fc
from flower_fedclust.engine import Journal, PrivateStrategy
from flower_fedclust.privacy.accounting import composed_epsilon, delta_of_composition, releases_of

ROWS = [0.3 * np.random.default_rng(seed).normal(size=(40, 4)) for seed in range(4)]

#: Three columns, no more than clusters, become five; and the preparation takes noise.
SCHEMA = {
    "columns": {
        "age": {"kind": "number", "bounds": [0, 100], "scale": "standard"},
        "dose": {"kind": "number", "bounds": [0, 10], "gaps": "mean"},
        "job": {"kind": "category", "categories": ["clerk", "cook", "pilot"]},
    }
}
# A description has a schema, too.
WAYS = {"rows": {}, "described": {"schema": SCHEMA, "describe": True}}
#: The preparation and the description have the same noise in every class. Noise at the clients is looked at in one.
DESCRIBED_EVERYWHERE = "private-kmeans"


def people(n_rows, seed):
    rng = np.random.default_rng(seed)
    columns = {"age": rng.uniform(20, 80, n_rows), "dose": rng.uniform(0, 10, n_rows)}
    return pd.DataFrame(columns | {"job": rng.choice(["clerk", "cook", "pilot"], n_rows)})


TABLES = [people(40, seed) for seed in range(4)]


def with_parameters(strategy, **changed):
    return type(strategy)(
        **{name: getattr(strategy, name) for name in strategy.parameter_names()} | changed
    )


def strategies():
    """Yield the name of a strategy and of a way to run it, the strategy, and what it is run with."""
    for case, made in every.cases().items():
        if not isinstance(made, PrivateStrategy) or made.epsilon is None or not made.shares():
            continue
        chosen = {"": made}
        with suppress(ValueError, TypeError):
            chosen["choosing k"] = with_parameters(made, n_clusters=(2, 4))
        for number, strategy in chosen.items():
            for way, options in WAYS.items():
                ready = strategy
                if options and getattr(strategy, "server_data", None) is not None:
                    ready = with_parameters(strategy, server_data=people(12, 9))
                yield (
                    f"{case} {number} {way}".replace("  ", " ").replace(" ", "-"),
                    (case, ready, options),
                )


def parametrised():
    for name, (case, strategy, options) in strategies():
        kind, _, variant = case.partition(" ")
        if (
            not options
            or not variant.startswith(("clients", "local"))
            or kind == DESCRIBED_EVERYWHERE
        ):
            is_described = bool(options) and kind not in (DESCRIBED_EVERYWHERE, "feddp-kmeans")
            is_long = variant or (is_described and not PAPERS)
            yield pytest.param(
                strategy, options, id=name, marks=[pytest.mark.long] if is_long else []
            )


def check_plan(strategy):
    plan = strategy.frozen_plan
    releases = releases_of(plan.shares, plan.multipliers)
    assert (
        0.0
        < composed_epsilon(releases, delta_of_composition(plan.delta), near=plan.epsilon)
        <= strategy.epsilon
    )


def check_report(strategy, report):
    assert report.releases
    assert report.composed_epsilon <= strategy.epsilon == report.epsilon


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("strategy", "options"), list(parametrised()))
def test_epsilon_is_at_most_the_one_asked_for(strategy, options):
    check_plan(fc.with_schema(strategy, **options) if options else strategy)
    clients = TABLES if options else ROWS
    if strategy.privacy_unit == "subject":
        clients, options = of_persons(clients), {**options, "subject_column": "person"}
    result = fc.simulate(strategy, clients, seed=0, **options)
    check_report(strategy, result.privacy)


def of_persons(clients):
    """Return the tables of the clients, with two rows of each person."""
    tables = [
        pd.DataFrame(rows) if isinstance(rows, pd.DataFrame) else named(rows) for rows in clients
    ]
    return [
        table.assign(person=[f"{client} {row // 2}" for row in range(len(table))])
        for client, table in enumerate(tables)
    ]


def named(rows):
    return pd.DataFrame(rows, columns=[f"column {index}" for index in range(rows.shape[1])])


def test_every_strategy_with_a_promise_is_among_them():
    private = {
        case.partition(" ")[0]
        for case, made in every.cases().items()
        if made.epsilon and made.promises
    }
    assert private <= {case.partition(" ")[0] for _, (case, _, _) in strategies()}
    assert PAPERS or any("choosing" in name for name, _ in strategies())


# What a run finds out as it goes on changes nothing of the noise: how many clients there are, how many rows they have,
# how many columns the rows have once they are prepared.

FOUND = {"columns": SCHEMA["columns"] | {"age": {"kind": "number", "scale": "standard"}}}
JOBS = [f"job {index}" for index in range(25)]
WIDE = {"columns": SCHEMA["columns"] | {"job": {"kind": "category", "categories": JOBS}}}


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_dp_fedc_pays_for_the_preparation_from_the_same_budget(epsilon):
    strategy = fc.DPFedC(3, epsilon=epsilon, n_rounds=20)
    tables = [people(1000, seed) for seed in range(6)]
    check_report(strategy, fc.simulate(strategy, tables, schema=FOUND, seed=0).privacy)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
def test_rows_of_many_prepared_columns_are_reduced_within_the_same_budget():
    rng = np.random.default_rng(0)
    tables = [people(60, seed).assign(job=rng.choice(JOBS, 60)) for seed in range(3)]
    strategy = fc.FedTSNESums(3, epsilon=8.0, n_landmarks=6, perplexity=2.0)
    report = fc.simulate(strategy, tables, schema=WIDE, seed=0).privacy
    assert "directions" in {message.release.share for message in report.releases}
    check_report(strategy, report)


def test_a_run_that_goes_on_has_the_plan_that_it_had(tmp_path):
    def runs(n_rounds_at_first):
        strategy = fc.DPFedC(
            3, epsilon=8.0, max_norm=1.0, n_rounds=6, fraction_fit=0.5, random_state=0
        )
        strategy.journal = journal = Journal(tmp_path)
        keep = journal.keep

        def dies(record):
            if record.number == n_rounds_at_first:
                raise KeyboardInterrupt
            keep(record)

        journal.keep = dies
        with journal:
            return fc.simulate(strategy, ROWS, seed=0).privacy

    with pytest.raises(KeyboardInterrupt):
        runs(5)
    report = runs(99)
    whole = fc.simulate(
        fc.DPFedC(3, epsilon=8.0, max_norm=1.0, n_rounds=6, fraction_fit=0.5, random_state=0),
        ROWS,
        seed=0,
    ).privacy
    assert [message.release for message in report.releases] == [
        message.release for message in whole.releases
    ]
    assert report.composed_epsilon == whole.composed_epsilon <= 8.0
